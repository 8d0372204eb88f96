"""Claims: what a consumer in another process than the writer's still needs, in a file beside the log (FORMAT.md F-18).

A hold is taken in the writer's process and is part of the manifest, which has one writer. A claim is a file of its own.
Consumer and writer meet at one lock: the consumer has it while it reads the manifest and writes its claim, the writer
while it reads the claims and publishes what it drops.
"""

from __future__ import annotations

import time
import uuid
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

from walkit._html import titled
from walkit.commit.to_end import run_to_end
from walkit.config import as_lsn, as_seconds
from walkit.errors import ClaimError, CorruptionError, DivergenceError, GapError, OptionsError
from walkit.events import EventCallback, EventSink
from walkit.format.claim import ClaimMark
from walkit.format.layout import CLAIM_LEASE_US_MAX, CLAIMS_MAX, LSN_MAX
from walkit.format.manifest import Manifest
from walkit.format.names import claim_of_name, is_claim_name
from walkit.read.cursor import identity_at
from walkit.read.reader import sight_of
from walkit.record import to_datetime
from walkit.recovery.scan import read_mark
from walkit.segments.claim_files import (
    LOCK_WAIT_S,
    claim_facts,
    claims_locked,
    remove_claims,
    stored_claim,
    write_claim,
)
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
    that were cut: the log there is another history. ClaimError where the name is another's, or the log has 64 claims.
    StorageError: EACCES or EROFS for a consumer that may not write to the log's folder, ETIMEDOUT where the claims'
    lock is not to be had. LogNotFoundError, FormatVersionError, OptionsError. Safe from any thread.

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
        _lease_us(lease_s),
        complete=complete,
        wait_s=as_seconds(wait_s, "wait_s"),
    )
    first_lsn = None if first_lsn is None else _as_first(first_lsn)
    run_to_end(lambda: made._take(first_lsn, epoch_id, take_over), "claim", events=made.events)
    return made


def _lease_us(lease_s: float) -> int:
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
        return to_datetime(self._written.lease_until_us)

    @property
    def state(self) -> str:
        """How the claim stands as far as this object knows: "held", "expired" by the clock, "released", or "lost"."""
        if self._ended:
            return self._ended
        return "expired" if _now_us() >= self._written.lease_until_us else "held"

    @property
    def _written(self) -> ClaimMark:
        assert self._mark is not None, "a claim is taken before it is given away"
        return self._mark

    def advance(self, first_lsn: int) -> None:
        """Say that only records from `first_lsn` on are still needed, and renew the lease; durable on return.

        `first_lsn` is the next record that the consumer needs, as with a hold's `move`, and not the last it has done.
        One writing with three syncs: for now and then, not for each record.

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
            try:
                found = stored_claim(self._storage, self.name)
            except CorruptionError as error:
                found = None
                self.events.emit("walkit.claim.damage", name=self.name, error=str(error))
            if found is not None and found.owner != self.owner.bytes:
                foreign = found.log_id != manifest.log_id
                if _now_us() < found.lease_until_us and not take_over and not foreign:
                    raise self._taken(found, "another owner's")
                if foreign or first_lsn is not None:
                    found = None
            if found is not None:
                self._refuse_another_history(found, manifest)
            if first_lsn is None:
                wanted = self._oldest(manifest) if found is None else found.first_lsn
            else:
                wanted = first_lsn
                self._refuse_beyond(wanted, manifest, saved=epoch_id is not None)
            mark = self._mark_at(wanted, manifest)
            if epoch_id is not None and mark.epoch_id != epoch_id:
                raise _diverged(self.name, mark._replace(epoch=0, epoch_id=epoch_id), manifest)
            self._write(mark, manifest)

    def _renew(self, first_lsn: int | None) -> None:
        if self._ended == "released":
            raise ClaimError(f"the claim {self.name!r} was released", name=self.name, reason="released")
        with self.events.held(), claims_locked(self._storage, self._wait_s):
            manifest = load_manifest(self._storage)
            mine = self._written
            self._refuse_another_history(mine, manifest)
            wanted = mine.first_lsn if first_lsn is None else first_lsn
            if wanted < mine.first_lsn:
                raise OptionsError(
                    f"the claim {self.name!r} stands at {mine.first_lsn} and does not move back to {wanted}",
                    option="first_lsn",
                    wanted=wanted,
                    stored=mine.first_lsn,
                )
            if wanted > mine.first_lsn:
                self._refuse_beyond(wanted, manifest, saved=False)
            self._refuse_gap(wanted, manifest)
            self._refuse_taken()
            self._write(self._mark_at(wanted, manifest), manifest)

    def _release(self) -> None:
        with claims_locked(self._storage, self._wait_s):
            try:
                found = stored_claim(self._storage, self.name)
            except CorruptionError:
                found = None
            if found is not None and self._is_mine(found):
                remove_claims(self._storage, [self.name])
        self._ended = "released"

    def _write(self, mark: ClaimMark, manifest: Manifest) -> None:
        """Put the claim in its place; GapError where it could not be kept, ClaimError where there is no room."""
        self._refuse_gap(mark.first_lsn, manifest)
        self._make_room(manifest)
        self._unsure.append(mark)
        write_claim(self._storage, self.name, mark)
        self._mark, self._ended = mark, ""
        self._unsure.clear()
        self._check()

    def _check(self) -> None:
        """Assert that what was written is this consumer's."""
        mark = self._written
        assert mark.owner == self.owner.bytes and mark.log_id and mark.first_lsn >= 1
        assert bool(mark.epoch_id) == bool(mark.epoch)

    def _mark_at(self, first_lsn: int, manifest: Manifest) -> ClaimMark:
        log_id, epoch, epoch_id = identity_at(manifest, first_lsn - 1)
        return ClaimMark(log_id, self.owner.bytes, epoch, epoch_id, first_lsn, self._lease_us, _now_us())

    def _oldest(self, manifest: Manifest) -> int:
        """Return the oldest record from which on this consumer finds what it needs."""
        oldest = max(manifest.first_lsn, manifest.low_watermark + 1)
        return max(oldest, manifest.complete_from_lsn) if self._complete else oldest

    def _refuse_gap(self, first_lsn: int, manifest: Manifest) -> None:
        oldest = self._oldest(manifest)
        if first_lsn < oldest:
            self._ended = "lost"
            raise GapError(first_lsn, oldest)

    def _refuse_beyond(self, first_lsn: int, manifest: Manifest, *, saved: bool) -> None:
        """Refuse a position after the end of the log: what the consumer says, or, `saved`, what it was cut from."""
        last_lsn = _last_lsn(self._storage, manifest, first_lsn - 1)
        if first_lsn - 1 <= last_lsn:
            return
        if saved:
            raise DivergenceError(
                f"the claim {self.name!r} needs LSN {first_lsn:,} and what follows, and the log ends at {last_lsn:,}: "
                "what its consumer has read was cut. Nothing was changed",
                first_lsn=last_lsn + 1,
            )
        raise OptionsError(
            f"first_lsn={first_lsn}: the log ends at {last_lsn}",
            option="first_lsn",
            wanted=first_lsn,
            stored=last_lsn,
        )

    def _refuse_another_history(self, mark: ClaimMark, manifest: Manifest) -> None:
        """DivergenceError where the record before the position of a claim is not the one that its consumer knows."""
        if mark.log_id != manifest.log_id:
            raise DivergenceError(
                f"the claim {self.name!r} is of log {mark.log_id:016x}, and this is log {manifest.log_id:016x}. "
                "Nothing was changed",
                first_lsn=1,
            )
        if identity_at(manifest, mark.first_lsn - 1)[1:] != (mark.epoch, mark.epoch_id):
            raise _diverged(self.name, mark, manifest)
        self._refuse_beyond(mark.first_lsn, manifest, saved=True)

    def _is_mine(self, mark: ClaimMark) -> bool:
        return mark == self._mark or mark in self._unsure

    def _refuse_taken(self) -> None:
        """Refuse where the file is not as this object left it, unless it went because its lease was over."""
        try:
            found = stored_claim(self._storage, self.name)
        except CorruptionError as error:
            self.events.emit("walkit.claim.damage", name=self.name, error=str(error))
            return  # what this object knows takes its place
        if found is None:
            if _now_us() < self._written.lease_until_us:
                self._ended = "lost"
                raise ClaimError(
                    f"the claim {self.name!r} was dropped before its lease was over; take it anew",
                    name=self.name,
                    reason="dropped",
                )
        elif not self._is_mine(found):
            self._ended = "lost"
            raise self._taken(
                found, "another owner's" if found.owner != self.owner.bytes else "another session's"
            )

    def _taken(self, found: ClaimMark, whose: str) -> ClaimError:
        until = to_datetime(found.lease_until_us).isoformat(" ", "seconds")
        return ClaimError(
            f"the claim {self.name!r} is {whose}, with a lease until {until}. Nothing was changed; give owner= to "
            "continue a claim of one's own, and take_over=True where its consumer is known to be gone",
            name=self.name,
            reason="taken",
            owner=found.owner.hex(),
            lease_until_us=found.lease_until_us,
        )

    def _make_room(self, manifest: Manifest) -> None:
        """Remove claims that count no more, where there are as many as may be; ClaimError where that is not enough."""
        others = {claim_of_name(n) for n in self._storage.names()} - {None, self.name}
        if len(others) < CLAIMS_MAX:
            return
        over = [f for f in claim_facts(self._storage, manifest) if f.name in others and not f.counts]
        if len(others) - len(over) >= CLAIMS_MAX:
            raise ClaimError(
                f"the log at {self._storage.location} has {len(others)} claims, and {CLAIMS_MAX} are the most: release "
                "one, or drop one whose consumer is gone (walkit claims LOG --drop NAME)",
                name=self.name,
                reason="full",
            )
        for fact in over:
            self.events.emit(
                "walkit.claim.expire",
                name=fact.name,
                first_lsn=fact.first_lsn,
                oldest=manifest.low_watermark + 1,
                owner=fact.owner,
            )
        remove_claims(self._storage, [f.name for f in over])

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


def _now_us() -> int:
    return time.time_ns() // 1000


def _last_lsn(storage: Storage, manifest: Manifest, wanted: int) -> int:
    """Return the last LSN of the log, or any from `wanted` on that it is known to have: a long scan may be saved."""
    known = max(manifest.end.last_lsn, manifest.low_watermark, manifest.checkpoint_lsn)
    if wanted > known:
        slot = read_mark(storage)
        if slot.epoch_id in {e.id for e in manifest.lineage}:
            known = max(known, slot.lsn)
    return known if wanted <= known else max(known, sight_of(storage).last_lsn)


def _diverged(name: str, mark: ClaimMark, manifest: Manifest) -> DivergenceError:
    """Return the error of a position that is in no epoch of the log; it names the first LSN that can differ."""
    theirs = next((e for e in manifest.lineage if e.id == mark.epoch_id), None)
    after = [e.first_lsn for e in manifest.lineage if theirs is None or e.number > theirs.number]
    found = identity_at(manifest, mark.first_lsn - 1)[2]
    return DivergenceError(
        f"the claim {name!r} needs LSN {mark.first_lsn:,} and what follows, after a record of epoch "
        f"{mark.epoch_id:016x}; the record there is of epoch {found:016x}: what its consumer has read was cut. Nothing "
        "was changed",
        first_lsn=min(after, default=1),
    )
