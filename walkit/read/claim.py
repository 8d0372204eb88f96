"""Claims: what a consumer in another process than the writer's still needs, in a file beside the log (FORMAT.md F-18).

A hold is taken in the writer's process and is part of the manifest, which has one writer. A claim is a file of its own.
Consumer and writer meet at one lock: the consumer has it while it reads the manifest and writes its claim, the writer
while it reads the claims and publishes what it drops.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

from walkit._arguments import as_lsn, as_seconds
from walkit._html import titled
from walkit.commit.to_end import run_to_end
from walkit.errors import ClaimError, CorruptionError, GapError, OptionsError
from walkit.events import EventCallback, EventSink
from walkit.format.claim import ClaimMark
from walkit.format.layout import CLAIM_LEASE_US_MAX, LSN_MAX
from walkit.format.manifest import Manifest
from walkit.format.names import claim_file_name, is_claim_name
from walkit.read.claim_rules import (
    clock_us,
    make_room,
    now_us,
    oldest_lsn,
    refuse_another_epoch,
    refuse_another_history,
    refuse_beyond,
    taken,
)
from walkit.record import STAMP_MAX, to_datetime
from walkit.segments.claim_files import (
    LOCK_WAIT_S,
    claims_locked,
    remove_claims,
    stored_claim,
    write_claim,
)
from walkit.segments.identity import identity_at
from walkit.segments.manifest_store import load_manifest
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import Storage

LEASE_S_DEFAULT = 3600.0


def claim(
    path: Place,
    name: str,
    first_lsn: int | None = None,
    lease_s: float = LEASE_S_DEFAULT,
    *,
    owner: uuid.UUID | None = None,
    take_over: bool = False,
    epoch_id: int | None = None,
    complete: bool = True,
    wait_s: float = LOCK_WAIT_S,
    events: EventCallback | None = None,
) -> Claim:
    """Keep the records of a log from `first_lsn` on, from any process; durable, and in force, on return.

    Trims, retention and compaction of the log's writer keep to it until its lease is over: `lease_s` seconds, at most
    30 days, after it was written, by the wall clock of this machine. `advance` and `renew` write it anew. Only the hard
    cap of a retention (`Retention.hard_bytes_max`) is above a claim.

    `name` is 1 to 64 letters, digits, "_" and "-". `first_lsn` None continues where the claim of this name stands; with
    none there, it is the oldest record there is. `owner` is the consumer's random id, kept with the consumer's own
    state: a consumer that begins again gives it, and has its claim back; None makes a new one (`Claim.owner`). A claim
    of another owner whose lease runs is left to it, unless `take_over`. `epoch_id`, where the consumer has saved it, is
    that of the record before `first_lsn`. With `complete=False` records that compaction has dropped as superseded may
    be missing after `first_lsn`: for a consumer that takes the compacted segments as they are. Each writing of a claim
    waits at most `wait_s` seconds for the claims' lock, which a writer has while it publishes what it drops.

    GapError where records from `first_lsn` on are gone already; DivergenceError where the saved position is of records
    that were cut: the log there is another history. ClaimError where the name is another's, the log has 64 claims, or
    the wall clock is before 1970 or after 9999.
    StorageError: EACCES or EROFS for a consumer that may not write to the log's folder, ETIMEDOUT where the claims'
    lock is not free in time. LogNotFoundError, FormatVersionError, OptionsError. Safe from any thread.

    For local file systems: other machines need locks that work between them, and clocks that agree.
    """
    if not isinstance(name, str) or not is_claim_name(name):
        raise OptionsError(
            f"a claim's name is 1 to 64 letters, digits, '_' and '-', not {name!r}",
            option="name",
            wanted=name,
        )
    if owner is not None and not isinstance(owner, uuid.UUID):
        raise OptionsError(f"owner={owner!r}: a uuid.UUID, or None", option="owner", wanted=owner)
    made = Claim(
        storage_at(path),
        EventSink(events),
        name,
        owner or uuid.uuid4(),
        lease_us_of(lease_s),
        complete=complete,
        wait_s=as_seconds(wait_s, "wait_s"),
    )
    first_lsn = None if first_lsn is None else _as_first(first_lsn)
    run_to_end(lambda: made._take(first_lsn, epoch_id, take_over), "claim", events=made.events)
    return made


def lease_us_of(lease_s: float) -> int:
    """Return a lease in microseconds; OptionsError for one that a claim cannot have."""
    lease_us = as_seconds(lease_s, "lease_s") * 1e6
    if not 1 <= lease_us <= CLAIM_LEASE_US_MAX:
        raise OptionsError(
            f"lease_s={lease_s!r}: a claim has a lease of at least a microsecond and at most "
            f"{CLAIM_LEASE_US_MAX / 1e6:,.0f} seconds (30 days)",
            option="lease_s",
            wanted=lease_s,
        )
    return int(lease_us)


def _as_first(first_lsn: int) -> int:
    first_lsn = as_lsn(first_lsn, "first_lsn")
    if not 1 <= first_lsn <= LSN_MAX:
        raise OptionsError(
            f"first_lsn={first_lsn!r}: the LSN of a record", option="first_lsn", wanted=first_lsn
        )
    return first_lsn


class Claim:
    """Records from `first_lsn` on are kept for one consumer, until its lease is over. Made by `walkit.claim`.

    A context manager: a block that ends well releases the claim; where an exception ends it, the claim stands until its
    lease is over, so that the consumer can begin again. Nothing renews it by itself. Safe from any thread.
    """

    def __init__(
        self,
        storage: Storage,
        events: EventSink,
        name: str,
        owner: uuid.UUID,
        lease_us: int,
        *,
        complete: bool = True,
        wait_s: float = LOCK_WAIT_S,
    ) -> None:
        self.name = name
        self.owner = owner
        """The consumer's random id: save it to take the claim up again."""
        self.events = events
        self._storage = storage
        self._lease_us = lease_us
        self._complete, self._wait_s = complete, wait_s
        self._mark: ClaimMark | None = None
        """What was last written by this object."""
        self._before: ClaimMark | None = None
        """The one before: it counts again if the newer place was damaged."""
        self._unsure: list[ClaimMark] = []
        """What was tried to write since then: any of it may be on storage."""
        self._ended: Literal["", "released", "lost"] = ""

    @property
    def first_lsn(self) -> int:
        """The first record that is kept."""
        return self._written.first_lsn

    @property
    def epoch_id(self) -> int:
        """The random id of the epoch of the record before `first_lsn`; 0 before the first record."""
        return self._written.epoch_id

    @property
    def lease_s(self) -> float:
        """How long the claim counts after each writing, in seconds."""
        return self._lease_us / 1e6

    @property
    def expires(self) -> datetime:
        """When the lease is over, by the wall clock, in UTC."""
        until = to_datetime(min(self._written.lease_until_us, STAMP_MAX))
        assert until is not None, "a time before the year 1"
        return until

    @property
    def state(self) -> str:
        """How the claim stands as far as this object knows: "held", "expired" by the clock, "released", or "lost"."""
        if self._ended:
            return self._ended
        return "expired" if now_us() >= self._written.lease_until_us else "held"

    @property
    def _written(self) -> ClaimMark:
        assert self._mark is not None, "a claim is taken before it is given away"
        return self._mark

    def advance(self, first_lsn: int) -> None:
        """Say that only records from `first_lsn` on are still needed, and renew the lease; durable on return.

        `first_lsn` is the next record that the consumer needs, as with a hold's `move`, and not the last it has done.
        One writing with a sync, which takes no room: for now and then, not for each record.

        OptionsError for one below `self.first_lsn`, or more than one after the end of the log. GapError where records
        from there on are gone, as after a lease that ran out or a hard cap: the claim is "lost". DivergenceError where
        the records before it were cut. ClaimError where the claim is another's by now, was dropped or released.
        StorageError: either position may be saved, and advancing again is right.
        """
        first_lsn = _as_first(first_lsn)
        run_to_end(lambda: self._renew(first_lsn), "claim", events=self.events)

    def renew(self) -> None:
        """Begin the lease anew, at the same position; durable on return. Raises what `advance` raises.

        A claim whose lease ran out is in force again, if all that it keeps is still there.
        """
        run_to_end(lambda: self._renew(None), "claim", events=self.events)

    def release(self) -> None:
        """Give the claim up: its file goes, durably. Releasing twice does nothing, nor where another has the name."""
        if not self._ended:
            run_to_end(self._release, "claim", events=self.events)

    def _take(self, first_lsn: int | None, epoch_id: int | None, take_over: bool) -> None:
        load_manifest(self._storage)  # a place that is no log gets no lock file
        with self.events.held(), claims_locked(self._storage, self._wait_s):
            manifest = load_manifest(self._storage)
            stored = found = self._found()
            if found is not None and found.owner != self.owner.bytes:
                foreign = found.log_id != manifest.log_id
                if now_us() < found.lease_until_us and not take_over and not foreign:
                    raise taken(self.name, found, "another owner's")
                if foreign or first_lsn is not None:
                    found = None
            if found is not None:
                refuse_another_history(self._storage, self.name, found, manifest)
            if first_lsn is None:
                wanted = oldest_lsn(manifest, complete=self._complete) if found is None else found.first_lsn
            else:
                wanted = first_lsn
                refuse_beyond(self._storage, self.name, wanted, manifest, saved=epoch_id is not None)
            if epoch_id is not None:
                refuse_another_epoch(self.name, wanted, epoch_id, manifest)
            self._write(wanted, manifest, stored)

    def _renew(self, first_lsn: int | None) -> None:
        if self._ended == "released":
            raise ClaimError(f"the claim {self.name!r} was released", name=self.name, reason="released")
        with self.events.held(), claims_locked(self._storage, self._wait_s):
            manifest, found = load_manifest(self._storage), self._found()
            if found is not None and found in self._unsure:
                self._mark = (
                    found  # a writing that failed has landed: the log may be trimmed up to there by now
                )
            mine = self._written
            refuse_another_history(self._storage, self.name, mine, manifest)
            wanted = mine.first_lsn if first_lsn is None else first_lsn
            if wanted < mine.first_lsn:
                raise OptionsError(
                    f"the claim {self.name!r} stands at {mine.first_lsn} and does not move back to {wanted}",
                    option="first_lsn",
                    wanted=wanted,
                    stored=mine.first_lsn,
                )
            if wanted > mine.first_lsn:
                refuse_beyond(self._storage, self.name, wanted, manifest, saved=False)
            self._refuse_gap(wanted, manifest)
            if found is None or not self._is_mine(found):
                self._refuse_loss(found)
            self._write(wanted, manifest, found)

    def _release(self) -> None:
        with self.events.held(), claims_locked(self._storage, self._wait_s):
            found = self._found()
            if found is not None and self._is_mine(found):
                remove_claims(self._storage, [self.name])
        self._ended = "released"

    def _write(self, first_lsn: int, manifest: Manifest, found: ClaimMark | None) -> None:
        """Write the claim after what was `found`; GapError where it could not be kept, ClaimError without room."""
        self._refuse_gap(first_lsn, manifest)
        make_room(self._storage, self.name, manifest, self.events)
        # After a failure the same place is written: only the other one is known to be on stable storage.
        generation = 1 if found is None else found.generation + (found not in self._unsure)
        log_id, epoch, epoch_id = identity_at(manifest, first_lsn - 1)
        at_us = clock_us(self.name)
        mark = ClaimMark(
            generation, log_id, self.owner.bytes, epoch, epoch_id, first_lsn, self._lease_us, at_us
        )
        self._unsure.append(mark)
        write_claim(self._storage, self.name, mark)
        self._before, self._mark, self._ended = self._mark, mark, ""
        self._unsure.clear()
        self._check()

    def _check(self) -> None:
        """Assert that what was written is this consumer's."""
        mark = self._written
        assert mark.owner == self.owner.bytes and mark.log_id and mark.first_lsn >= 1
        assert bool(mark.epoch_id) == bool(mark.epoch)

    def _refuse_gap(self, first_lsn: int, manifest: Manifest) -> None:
        oldest = oldest_lsn(manifest, complete=self._complete)
        if first_lsn < oldest:
            self._ended = "lost"
            raise GapError(first_lsn, oldest)

    def _is_mine(self, mark: ClaimMark) -> bool:
        return mark in (self._mark, self._before) or mark in self._unsure

    def _found(self) -> ClaimMark | None:
        """Return what stands under this name; None for nothing, and with an event for what cannot be read."""
        try:
            return stored_claim(self._storage, self.name)
        except CorruptionError as error:
            self.events.emit("walkit.claim.damage", name=self.name, error=str(error))
            return None

    def _refuse_loss(self, found: ClaimMark | None) -> None:
        """Refuse where the claim is another's, or was dropped: a lease that is over, or damage, loses none."""
        if found is not None:
            self._ended = "lost"
            whose = "another owner's" if found.owner != self.owner.bytes else "another session's"
            raise taken(self.name, found, whose)
        gone = claim_file_name(self.name) not in self._storage.names()
        if gone and now_us() < self._written.lease_until_us:
            self._ended = "lost"
            raise ClaimError(
                f"the claim {self.name!r} was dropped before its lease was over; take it anew",
                name=self.name,
                reason="dropped",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.release()

    def __repr__(self) -> str:
        return f"Claim({self.name!r}, first_lsn={self.first_lsn}, {self.state})"

    def _repr_html_(self) -> str:
        return titled(
            f"Claim {self.name}",
            [
                ("log", self._storage.location),
                ("first LSN needed", f"{self.first_lsn:,}"),
                ("lease", f"{self.lease_s:,g} s, until {self.expires.isoformat(' ', 'seconds')}"),
                ("owner", self.owner.hex),
                ("state", self.state),
            ],
        )
