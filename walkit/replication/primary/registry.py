"""The replicas that a primary knows, by their keys, and how far each has acknowledged.

They are kept in the log's folder, for its owner alone, so that they survive a restart. A replica that is not known is
given a new identity, so a registry that is lost costs what it remembered, and no replica.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from walkit._internal.locks import once
from walkit.errors import CorruptionError, StorageError, WalkitError
from walkit.format.manifest import LogEnd
from walkit.record import wall_us
from walkit.replication.logs.private_file import read_private, write_private
from walkit.replication.protocol.identity import Identity, KnownReplica
from walkit.segments.manifest_store import REGISTRY_LOCK_NAME, REGISTRY_NAME
from walkit.storage.interface import LockHolder, Storage

IDENTITIES_MAX = 1024
SAVE_S = 5.0
"""Acknowledgements are saved at most so often: what is saved may be less than what came, and is never more."""
LOCK_S = 1.0


class ReplicaRegistry:
    """The replicas of one log. Safe from any thread; several primaries, of other processes too, may share the file.

    What a session asks for at each acknowledgement waits for no file: one lock is for what is in memory, the other for
    the file, and is taken first.
    """

    def __init__(self, storage: Storage, limit: int = IDENTITIES_MAX) -> None:
        """Reads nothing yet: a folder that cannot be read is reported to the replica that needs it."""
        self.limit = limit
        self.trouble = ""
        """What was wrong with the file when it was last read or written; "" where nothing was."""
        self._storage = storage
        self._lock, self._file_lock = threading.RLock(), threading.RLock()
        self._known: dict[str, KnownReplica] = {}
        self._moved: set[str] = set()
        """Keys of which more is known than the file says."""
        self._saved_at = time.monotonic()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: str) -> KnownReplica | None:
        """Return what is known of this key; None where it is not known. StorageError where the file cannot be read."""
        with once(self._lock), self._lock:
            known = self._known.get(key)
        if known is None:  # another primary of this log may have minted it
            with once(self._file_lock), self._file_lock:
                self._take_in(self._stored())
            with once(self._lock), self._lock:
                known = self._known.get(key)
        return known

    def add(self, identity: Identity, name: str, keep: Collection[str]) -> bool:
        """Keep a new replica, durably; False where there is no room.

        One that never acknowledged anything makes room, or the one that was not seen for the longest time; those whose
        keys are in `keep` stay. StorageError where the file cannot be written.
        """
        with once(self._file_lock), self._file_lock, self._exclusive():
            self._take_in(self._stored())
            with once(self._lock), self._lock:
                before = dict(self._known)
                while len(self._known) >= self.limit:
                    spare = self._spare(keep)
                    if spare is None:
                        return False
                    del self._known[spare]
                self._known[identity.key] = KnownReplica(identity.key, name, seen_us=_now_us())
            try:
                self._write()
            except BaseException:
                with once(self._lock), self._lock:
                    self._known = before
                raise
        return True

    def seen(self, key: str, name: str) -> None:
        """Note that a known replica has come, under this label."""
        self._move(key, name=name)

    def acknowledged(self, key: str, end: LogEnd) -> None:
        """Note how far a replica has acknowledged; saved by `save`."""
        known = self._known.get(key)
        if known is not None and end.position > known.acked.position:
            self._move(key, acked=end)

    def save(self, *, now: bool = False) -> None:
        """Write what has moved, where that is due or must be `now`. An error is `trouble`, and tried again."""
        if not self._moved or not (now or time.monotonic() - self._saved_at >= SAVE_S):
            return
        self._saved_at = time.monotonic()
        try:
            with once(self._file_lock), self._file_lock, self._exclusive():
                self._take_in(self._stored())
                self._write()
        except WalkitError as error:
            self.trouble = f"the registry of replicas was not saved: {error}"

    def names(self) -> dict[str, str]:
        """Return the label of each known replica by its key, as the file and this object know them."""
        with once(self._file_lock), self._file_lock:
            self._take_in(self._stored())
        with once(self._lock), self._lock:
            return {known.key: known.name for known in self._known.values()}

    def stored(self) -> list[KnownReplica]:
        """Return the replicas that the file names; none where it is damaged. StorageError where it cannot be read."""
        with once(self._file_lock), self._file_lock:
            return self._stored() or []

    def _check(self) -> None:
        """Assert that each is known by its own key, and how many may be; needs the lock held.

        Beside what the file says stands what has moved here, which may be as much again.
        """
        assert len(self._known) <= 2 * self.limit
        assert all(key == known.key for key, known in self._known.items())

    def _move(self, key: str, **changes: Any) -> None:
        with once(self._lock), self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known[key] = replace(known, seen_us=_now_us(), **changes)
                self._moved.add(key)

    def _spare(self, keep: Collection[str]) -> str | None:
        """Return the key that makes room; None where none may. Needs the lock held."""
        spare = [known for known in self._known.values() if known.key not in keep]
        if not spare:
            return None
        return min(spare, key=lambda known: (known.acked.position > 0, known.seen_us)).key

    # -- the file, with its lock held

    def _stored(self) -> list[KnownReplica] | None:
        """Return what the file says; None where it says nothing that can be used."""
        try:
            found = read_private(self._storage, REGISTRY_NAME)
            return [] if found is None else [_known_of(facts) for facts in found.facts["replicas"]]
        except (CorruptionError, KeyError, TypeError, ValueError, OverflowError) as error:
            self.trouble = f"the registry of replicas is damaged, and is made anew: {error}"
            return None

    def _take_in(self, stored: list[KnownReplica] | None) -> None:
        """Know what the file says, and what has moved since: of each replica the later acknowledgement counts."""
        if stored is None:
            return
        with once(self._lock), self._lock:
            mine = {key: known for key, known in self._known.items() if key in self._moved}
            self._known = {known.key: known for known in stored[: self.limit]}
            for key, known in mine.items():
                other = self._known.get(key, known)
                acked = max(known.acked, other.acked, key=lambda end: end.position)
                self._known[key] = replace(known, acked=acked)

    def _write(self) -> None:
        with once(self._lock), self._lock:
            self._check()
            facts = {"replicas": [_facts_of(known) for known in self._known.values()]}
            moved, self._moved = self._moved, set()
        try:
            write_private(self._storage, REGISTRY_NAME, facts)
        except BaseException:
            with once(self._lock), self._lock:
                self._moved |= moved
            raise
        self.trouble = ""

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other primaries from writing; StorageError where one does not end."""
        deadline = time.monotonic() + LOCK_S
        while isinstance(lock := self._storage.lock(REGISTRY_LOCK_NAME), LockHolder):
            if time.monotonic() >= deadline:
                raise StorageError(
                    f"{self._storage.location}/{REGISTRY_LOCK_NAME} has been held for {LOCK_S:.0f} s",
                    name=REGISTRY_LOCK_NAME,
                )
            time.sleep(0.005)
        try:
            yield
        finally:
            lock.release()


def _facts_of(known: KnownReplica) -> dict[str, Any]:
    acked = known.acked
    return {
        "key": known.key,
        "name": known.name,
        "acked": [acked.last_lsn, acked.position, acked.chain],
        "seen_us": known.seen_us,
    }


def _known_of(facts: dict[str, Any]) -> KnownReplica:
    lsn, position, chain = map(int, facts["acked"])
    end = LogEnd(last_lsn=lsn, position=position, chain=chain)
    return KnownReplica(str(facts["key"]), str(facts["name"]), end, int(facts["seen_us"]))


def _now_us() -> int:
    return wall_us()
