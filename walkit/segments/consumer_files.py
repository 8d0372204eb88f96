"""The files of a log's consumers, claims and cursors (FORMAT.md F-17, F-18), their contents, and the claims' lock.

A consumer writes its claim while it has the lock and sees the manifest; a writer that drops records has the lock from
before it reads the claims until the manifest that drops is on stable storage. So a claim is either seen by the writer,
or its consumer sees the new low watermark. The kernel frees the lock of a process that dies.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from walkit._internal.locks import marked
from walkit.errors import ClaimError, StorageError, WalkitError
from walkit.format.consumer_file import (
    ClaimRecord,
    CursorRecord,
    decode_claim,
    decode_cursor,
    encode_claim,
    whole_claim,
)
from walkit.format.file_names import (
    CLAIMS_LOCK_NAME,
    claim_file_name,
    claim_of_name,
    cursor_file_name,
    cursor_of_name,
    is_temporary_claim,
)
from walkit.format.layout import CLAIM_FILE_BYTES, CURSOR_FILE
from walkit.format.manifest import Manifest
from walkit.record import STAMP_MAX, to_datetime, wall_us
from walkit.segments.manifest_store import LOCK_NAME, load_manifest
from walkit.storage.bulk import read_if_there, write_whole
from walkit.storage.interface import LockHolder, Storage, StorageLock, TakesTurns, remove_if_there

T = TypeVar("T")
LOCK_WAIT_S = 10.0
"""How long the claims' lock is waited for: its holder has it for a few small writes, unless its process is stopped."""
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
"""The errors of a folder in which this process cannot write a claim."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.0005, 0.02
"""Between two looks at a lock that is taken; from the first to the second by doubling."""


ClaimState: TypeAlias = Literal["live", "expired", "passed", "foreign", "damaged"]
"""live: it counts. expired: its lease is over. passed: the log was trimmed past it, at the hard cap of a retention.
foreign: of another log. damaged: it cannot be read, and counts as one that needs every record."""

OWN = bytes(16)
"""The owner of the claims that the log's own writer has taken."""

_taken: set[StorageLock] = set()
"""The locks that this process has now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimFact:
    """The content of one claim file, and its meaning at one moment by the wall clock."""

    name: str
    state: ClaimState
    first_lsn: int | None = None
    """The first record that is needed; None if the file cannot be read."""
    owner: str | None = None
    """The consumer's random id, 32 hexadecimal digits."""
    lease_until_us: int | None = None
    """When the lease is over, microseconds since 1970."""
    fault: str | None = None
    """Why the file cannot be read, in words."""
    label: str = ""
    """A replica's own name for itself; "" for any other consumer."""
    mark: ClaimRecord | None = field(default=None, repr=False)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the claim in IPython, also within a list, as a person reads it."""
        needed = "cannot be read" if self.first_lsn is None else f"LSN {self.first_lsn:,} and later"
        printer.text(f"<Claim {self.name} {self.state}: {needed}, until {self.lease_until}>")

    @property
    def lease_until(self) -> str:
        """When the lease is over, in UTC, for people; "?" if the file does not say a time."""
        return "?" if self.lease_until_us is None else time_text(self.lease_until_us)

    @property
    def is_own(self) -> bool:
        """Whether the log's own writer has taken it (`log.hold`)."""
        return self.owner == OWN.hex()

    @property
    def counts(self) -> bool:
        """Whether it keeps records back."""
        return self.state in ("live", "damaged")

    @property
    def needed_lsn(self) -> int:
        """The first record that may not be dropped for it; every record for one that cannot be read."""
        return 1 if self.first_lsn is None else self.first_lsn


def time_text(time_us: int) -> str:
    """Return a moment in UTC for people; the end of the year 9999 for any later one."""
    moment = to_datetime(min(time_us, STAMP_MAX))
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def claim_facts(storage: Storage, manifest: Manifest, now_us: int | None = None) -> list[ClaimFact]:
    """Return the claims of a log, by name, each as it stands now. Reads only them, and takes no lock."""
    now_us = wall_us() if now_us is None else now_us
    facts = []
    for file_name in storage.names():
        name = claim_of_name(file_name)
        if name is None:
            continue
        try:
            mark = stored_claim(storage, name)
        except WalkitError as error:
            facts.append(ClaimFact(name=name, state="damaged", fault=str(error)))
            continue
        if mark is not None:
            facts.append(fact_of(name, mark, state_of(mark, manifest, now_us)))
    return facts


def fact_of(name: str, mark: ClaimRecord, state: ClaimState, first_lsn: int | None = None) -> ClaimFact:
    """Return a mark's position, or the position that its owner has in memory."""
    return ClaimFact(
        name=name,
        state=state,
        first_lsn=first_lsn or mark.first_lsn,
        owner=mark.owner.hex(),
        lease_until_us=mark.lease_until_us,
        label=mark.label,
        mark=mark,
    )


def own_error(name: str) -> ClaimError:
    """Return the error of a claim that the process with the log open has in memory."""
    return ClaimError(
        f"the process that has the log open has taken the claim {name!r}: release it there, with "
        "log.drop_claim, or close that log. Nothing was changed",
        name=name,
        reason="taken",
        owner=OWN.hex(),
    )


def state_of(mark: ClaimRecord, manifest: Manifest, now_us: int) -> ClaimState:
    """Return the state of a claim at a moment of the wall clock. Pure."""
    if mark.log_id != manifest.log_id:
        return "foreign"
    if now_us >= mark.lease_until_us:
        return "expired"
    return "passed" if mark.first_lsn <= manifest.low_watermark else "live"


def stored_claim(storage: Storage, name: str) -> ClaimRecord | None:
    """Return the content of a claim's file; None if it is absent. StorageError, and the errors of `decode_claim`."""
    file_name = claim_file_name(name)
    data = read_if_there(storage, file_name, CLAIM_FILE_BYTES + 1)
    return None if data is None else decode_claim(data, file_name)


@contextmanager
def claims_locked(storage: Storage, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Have the claims' lock in this block. Not reentrant.

    StorageError (ETIMEDOUT), with the holder if known, if another has the lock for all of `wait_s` seconds.
    """
    with marked():
        lock = _take(storage, wait_s)
        _taken.add(lock)
        try:
            yield
        finally:
            _taken.discard(lock)
            lock.release()


def in_claims_turn(storage: Storage, do: Callable[[], T], wait_s: float = LOCK_WAIT_S) -> T:
    """Return the result of `do`, which reads and writes claims while no other process does.

    It has the claims' lock, or a turn of a storage that takes turns: then it may be called again.
    """
    if isinstance(storage, TakesTurns):
        return storage.in_turn(do)
    with claims_locked(storage, wait_s):
        return do()


def _take(storage: Storage, wait_s: float) -> StorageLock:
    deadline, pause_s = time.monotonic() + wait_s, PAUSE_S_MIN
    while True:
        lock = storage.lock(CLAIMS_LOCK_NAME)
        if not isinstance(lock, LockHolder):
            return lock
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise busy(storage, wait_s, lock)
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def busy(storage: Storage, wait_s: float, holder: LockHolder | None) -> StorageError:
    """Return the error of a lock that was waited for in vain; None for a holder in this process."""
    who = "this process" if holder is None else "another process"
    if holder is not None and holder.pid:
        who = f"process {holder.pid} ({holder.command})"
    return StorageError(
        f"the lock of the claims of {storage.location} was not free for {wait_s:g} s: {who} has it. Nothing was "
        "changed; try again, and if that process is stopped, continue or end it",
        errno=errno.ETIMEDOUT,
        name=CLAIMS_LOCK_NAME,
    )


def write_claim(storage: Storage, name: str, mark: ClaimRecord) -> None:
    """Write a claim, durably. Needs the claims' lock held.

    Generation 1 makes the file, or takes the place of one that cannot be read, atomically; the file that a consumer
    which died left half written goes then: while the lock is held, no claim is being written. A later one is written
    over the older of the two places, which takes no room.
    """
    file_name = claim_file_name(name)
    if mark.generation == 1:
        for left in storage.names():
            if is_temporary_claim(left):
                storage.remove(left)
        write_whole(storage, file_name, claim_file_name(name, new=True), whole_claim(mark))
        return
    offset, data = encode_claim(mark)
    file = storage.open(file_name, "write")
    try:
        file.write(offset, [data])
        file.sync()
    finally:
        file.close()


def remove_claims(storage: Storage, names: Iterable[str]) -> bool:
    """Remove claims, durably on return; False if none was there. Needs the claims' lock held."""
    removed = [remove_if_there(storage, claim_file_name(name)) for name in names]
    if any(removed):
        storage.sync_directory()
    return any(removed)


def drop_claim(storage: Storage, name: str) -> bool:
    """Remove a claim, durably, whatever its content; False if it is absent.

    ClaimError for one of the log's own writer, if that lives.
    """
    manifest = load_manifest(storage)  # a place without a log gets no lock file

    def drop() -> bool:
        there = claim_file_name(name) in storage.names()
        mine = [f for f in claim_facts(storage, manifest) if f.name == name and f.is_own]
        if mine and storage.is_locked(LOCK_NAME):
            raise own_error(name)
        remove_claims(storage, [name])
        return there

    return in_claims_turn(storage, drop)


def _after_fork_in_child() -> None:
    for lock in list(_taken):
        lock.forget()
    _taken.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(frozen=True, slots=True)
class CursorFact:
    """The content of one cursor file: `lsn`, and when it was written; or why it cannot be read, in words."""

    name: str
    lsn: int | None
    moved_us: int | None
    fault: str | None = None


def cursor_facts(storage: Storage) -> list[CursorFact]:
    """Return the contents of the cursor files of a storage, by name. Reads only them."""
    facts = []
    for file_name in storage.names():
        name = cursor_of_name(file_name)
        if name is None:
            continue
        try:
            mark = stored_cursor(storage, name)
        except WalkitError as error:
            facts.append(CursorFact(name, None, None, str(error)))
            continue
        if mark is not None:
            facts.append(CursorFact(name, mark.lsn, mark.moved_us))
    return facts


def stored_cursor(storage: Storage, name: str) -> CursorRecord | None:
    """Return the content of a cursor's file; None if it is absent."""
    file_name = cursor_file_name(name)
    data = read_if_there(storage, file_name, CURSOR_FILE.size + 1)
    return None if data is None else decode_cursor(data, file_name)
