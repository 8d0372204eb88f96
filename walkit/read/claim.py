"""Claims: the records that a consumer still needs, in a file beside the log (FORMAT.md F-18).

Consumer and writer meet at one lock: the consumer has it while it reads the manifest and writes its claim, the writer
while it reads the claims and publishes a trim. `log.hold` takes a claim in the writer's own process.

A claim may be written if its records are there, its position belongs to this history, and the log has room for it. Each
rule is checked while the claims' lock is held, against the manifest read under it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

from walkit._internal.arguments import as_lsn, as_seconds, refuse
from walkit._internal.html import titled
from walkit._main_thread import run_uninterrupted
from walkit.errors import ClaimError, CorruptionError, DivergenceError, GapError
from walkit.events import EventSink
from walkit.format.consumer_file import ClaimRecord
from walkit.format.file_names import claim_file_name, claim_of_name
from walkit.format.layout import CLAIM_LEASE_US_MAX, CLAIMS_MAX, LSN_MAX, OWN_CLAIMS_MAX
from walkit.format.manifest import LogEnd, Manifest
from walkit.read.cursor import check_name
from walkit.read.reader import found_lsn
from walkit.record import STAMP_MAX, to_datetime
from walkit.recovery.log_scan import read_durable_slot
from walkit.segments.consumer_files import (
    LOCK_WAIT_S,
    OWN,
    claim_facts,
    in_claims_turn,
    own_error,
    remove_claims,
    stored_claim,
    time_text,
    write_claim,
)
from walkit.segments.history import identity_at, lies_in, parted_at
from walkit.segments.manifest_store import LOCK_NAME, load_manifest
from walkit.storage.interface import Storage


def now_us() -> int:
    """Return the wall clock's time, microseconds since 1970."""
    return time.time_ns() // 1000


def clock_us(name: str) -> int:
    """Return the time that a claim is written with; ClaimError for one that no claim file has."""
    at_us = now_us()
    if 0 <= at_us <= STAMP_MAX:
        return at_us
    raise ClaimError(
        f"the claim {name!r} was not written: this machine's clock is {at_us:,} microseconds after 1970, and a lease "
        "runs by it. Nothing was changed; set the clock right",
        name=name,
        reason="clock",
    )


def as_first(first_lsn: int) -> int:
    """Return the position of a claim as a plain int; OptionsError for one that no record has."""
    first_lsn = as_lsn(first_lsn, "first_lsn")
    if not 1 <= first_lsn <= LSN_MAX:
        refuse("first_lsn", first_lsn, "the LSN of a record")
    return first_lsn


def refuse_back(name: str, first_lsn: int, wanted: int) -> None:
    """OptionsError for a position below the one that a claim has."""
    if wanted < first_lsn:
        refuse("first_lsn", wanted, f"the claim {name!r} is at {first_lsn} and does not move back", first_lsn)


def oldest_lsn(manifest: Manifest, *, complete: bool) -> int:
    """Return the oldest record that a claim can keep; with `complete` the oldest from which on none is missing."""
    oldest = max(manifest.first_lsn, manifest.low_watermark + 1)
    return max(oldest, manifest.complete_from_lsn) if complete else oldest


def refuse_beyond(storage: Storage, name: str, first_lsn: int, manifest: Manifest, *, saved: bool) -> None:
    """Refuse a position after the end of the log.

    OptionsError for one that a caller gives; DivergenceError for one that was `saved`: the records before it were cut.
    """
    last_lsn = _last_lsn(storage, manifest, first_lsn - 1)
    if first_lsn - 1 > last_lsn and saved:
        raise DivergenceError(
            f"the claim {name!r} needs LSN {first_lsn:,} and what follows, and the log ends at {last_lsn:,}: "
            "records that its consumer has read were cut. Nothing was changed",
            first_lsn=last_lsn + 1,
        )
    refuse_after(first_lsn, last_lsn)


def refuse_after(first_lsn: int, last_lsn: int) -> None:
    """OptionsError for a position more than one after the last record."""
    if first_lsn - 1 > last_lsn:
        refuse("first_lsn", first_lsn, f"the log ends at {last_lsn}", last_lsn)


def _last_lsn(storage: Storage, manifest: Manifest, wanted: int) -> int:
    """Return the last LSN of the log, or any from `wanted` on that it is known to have: a long scan may be saved."""
    known = max(manifest.end.last_lsn, manifest.vouched_lsn)
    if wanted > known:
        slot = read_durable_slot(storage)
        if slot.epoch_id in {e.id for e in manifest.lineage}:
            known = max(known, slot.lsn)
    return known if wanted <= known else max(known, found_lsn(storage, wanted))


def refuse_another_history(storage: Storage, name: str, mark: ClaimRecord, manifest: Manifest) -> None:
    """DivergenceError if the record before the position of a claim is not the one that its consumer knows."""
    if mark.log_id != manifest.log_id:
        raise DivergenceError(
            f"the claim {name!r} is of log {mark.log_id:016x}, and this is log {manifest.log_id:016x}. "
            "Nothing was changed",
            first_lsn=1,
        )
    refuse_another_epoch(name, mark.first_lsn, mark.epoch_id, manifest)
    refuse_beyond(storage, name, mark.first_lsn, manifest, saved=True)


def refuse_another_epoch(name: str, first_lsn: int, epoch_id: int, manifest: Manifest) -> None:
    """DivergenceError, with the first LSN that can differ, if the record before `first_lsn` is not of this epoch."""
    if lies_in(manifest, first_lsn - 1, epoch_id):
        return
    found = identity_at(manifest, first_lsn - 1).epoch_id
    raise DivergenceError(
        f"the claim {name!r} needs LSN {first_lsn:,} and what follows, after a record of epoch {epoch_id:016x}; the "
        f"record there is of epoch {found:016x}: what its consumer has read was cut. Nothing was changed",
        first_lsn=parted_at(manifest, epoch_id),
    )


def taken(name: str, found: ClaimRecord, whose: str) -> ClaimError:
    """Return the error of a claim whose file is another's."""
    until = time_text(found.lease_until_us)
    return ClaimError(
        f"the claim {name!r} is {whose}, with a lease until {until}. Nothing was changed; give owner= to continue "
        "a claim of one's own, and take_over=True if its consumer is known to be gone",
        name=name,
        reason="taken",
        owner=found.owner.hex(),
        lease_until_us=found.lease_until_us,
    )


def refuse_taken(name: str, found: ClaimRecord, storage: Storage, *, take_over: bool) -> None:
    """ClaimError if another owner has the claim, and its lease, or the process of the log's own writer, lives."""
    if found.owner == OWN and storage.is_locked(LOCK_NAME):
        raise own_error(name)
    if now_us() < found.lease_until_us and not take_over:
        raise taken(name, found, "another owner's")


def make_room(storage: Storage, name: str, own: bool, manifest: Manifest, events: EventSink) -> None:
    """Remove claims that have ended, if there are as many as may be; ClaimError if that is not enough.

    The claims of the log's own writer and those of others are counted apart.
    """
    limit = OWN_CLAIMS_MAX if own else CLAIMS_MAX
    names = {claim_of_name(n) for n in storage.names()} - {None}
    if name in names or len(names) < limit:
        return
    others = [f for f in claim_facts(storage, manifest) if f.is_own is own]
    over = [f for f in others if not f.counts]
    if len(others) - len(over) >= limit:
        raise ClaimError(
            f"the log at {storage.location} has {len(others)} claims, and {limit} are the most: release one, or "
            "drop one whose consumer is gone (walkit claims LOG --drop NAME)",
            name=name,
            reason="full",
        )
    if len(others) < limit:
        return
    for fact in over:
        events.emit(
            "walkit.claim.expire",
            name=fact.name,
            first_lsn=fact.first_lsn,
            oldest=manifest.low_watermark + 1,
            owner=fact.owner,
        )
    remove_claims(storage, [f.name for f in over])


LEASE_S_DEFAULT = 3600.0
RENEWALS = 3
"""Whoever keeps a claim in force writes it so many times in its lease, if nothing else writes it."""


def lease_us_of(lease_s: float) -> int:
    """Return a lease in microseconds; OptionsError for one that a claim cannot have."""
    lease_us = as_seconds(lease_s, "lease_s") * 1e6
    if not 1 <= lease_us <= CLAIM_LEASE_US_MAX:
        refuse(
            "lease_s",
            lease_s,
            f"a claim has a lease of at least a microsecond and at most {CLAIM_LEASE_US_MAX / 1e6:,.0f} "
            "seconds (30 days)",
        )
    return int(lease_us)


def is_due(claim: Claim) -> bool:
    """Whether it is time to renew a claim: by the wall clock, as its lease runs, and also after that was set."""
    mark = claim._last
    return not 0 <= now_us() - mark.written_us < mark.lease_us * 0.9 / RENEWALS


class Claim:
    """Records from `first_lsn` on are kept for one consumer. Made by `walkit.claim`, and by `log.hold`.

    A context manager: a block that ends well releases the claim; if an exception ends it, the claim counts until its
    lease is over, so that the consumer can continue with it. Safe from any thread.

    One of `walkit.claim` is as it was last written, and nothing renews it by itself. One of `log.hold` is kept in
    memory while the log is open: it ends with `release` alone, and each trim of this process sees its position. Its
    lease counts after the process has died, and is renewed each third of it.
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
        check_name(name)
        self._storage, self._events = storage, events
        self._name, self._owner, self._lease_us = name, owner, lease_us
        self._complete, self._wait_s = complete, wait_s
        self._mark: ClaimRecord | None = None
        self._before: ClaimRecord | None = None
        """The mark before: it counts again if the newer place was damaged."""
        self._unsure: list[ClaimRecord] = []
        """Marks that failed to be written since then: any of them may be on storage."""
        self.ended: Literal["", "released", "lost"] = ""
        self.label, self.acked = "", LogEnd()
        """Of a replica's claim: written with the position; the end never moves back."""
        self.continues = True
        """Whether a claim that is taken without a position continues at the stored one, whose records may be cut."""

    @property
    def name(self) -> str:
        """The claim's name."""
        return self._name

    @property
    def owner(self) -> uuid.UUID:
        """The consumer's random id: save it to take the claim up again. Zero for the log's own writer."""
        return self._owner

    @property
    def first_lsn(self) -> int:
        """The first record that is kept."""
        return self._last.first_lsn

    @property
    def epoch_id(self) -> int:
        """The random id of the epoch of the record before the stored position; 0 before the first record."""
        return self._last.epoch_id

    @property
    def lease_s(self) -> float:
        """How long the claim counts after each writing, in seconds."""
        return self._lease_us / 1e6

    @property
    def expires(self) -> datetime:
        """When the lease is over, by the wall clock, in UTC."""
        until = to_datetime(min(self._last.lease_until_us, STAMP_MAX))
        assert until is not None, "a time before the year 1"
        return until

    @property
    def state(self) -> str:
        """How the claim stands as far as this object knows.

        "held", "expired" by the clock, "released", "lost", or "log closed" for one of `log.hold`.
        """
        return self.ended or ("expired" if now_us() >= self._last.lease_until_us else "held")

    def take(self, first_lsn: int | None, epoch_id: int | None = None, *, take_over: bool = False) -> None:
        """Take the claim, or take it again after a loss: see `walkit.claim`."""
        wanted = None if first_lsn is None else as_first(first_lsn)
        # As deep on the stack as `advance`, so that a claim which can be taken can be advanced.
        run_uninterrupted(lambda: self._take(wanted, epoch_id, take_over), "claim", events=self._events)

    def advance(self, first_lsn: int) -> None:
        """Say that only records from `first_lsn` on are still needed: the next one that the consumer needs.

        Of `walkit.claim`: renews the lease, durable on return. One writing with a sync, which takes no room: for now
        and then, not for each record. Of `log.hold`: in memory, for each record; the file follows with the next renewal
        or trim, or the close, and an older position there only keeps more.

        OptionsError for one below `self.first_lsn`, or more than one after the end of the log. GapError if records from
        there on are gone, as after a lease that ran out or a hard cap: the claim is "lost". DivergenceError if the
        records before it were cut. ClaimError if the claim belongs to another by now, was dropped or released.
        LogClosedError for one of `log.hold` once the log is closed.
        StorageError: either position may be saved, and advancing again is right.
        """
        first_lsn = as_first(first_lsn)
        run_uninterrupted(lambda: self._renew(first_lsn), "claim", events=self._events)

    def renew(self) -> None:
        """Write the claim with a new lease, at the same position; durable on return. Raises the errors of `advance`.

        A claim whose lease ran out is in force again, if all that it keeps is still there.
        """
        run_uninterrupted(lambda: self._renew(None), "claim", events=self._events)

    def release(self) -> None:
        """Give the claim up: its file goes, durably. Releasing twice does nothing, nor where another has the name.

        LogClosedError for one of `log.hold` once the log is closed: the claim counts then until its lease is over.
        """
        if not self.ended:
            run_uninterrupted(self._release, "claim", events=self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.release()
        else:
            self._leave()

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

    # -- the file

    @property
    def _last(self) -> ClaimRecord:
        """The mark that this object has written last."""
        assert self._mark is not None, "a claim is taken before it is given away"
        return self._mark

    def _leave(self) -> None:
        """Leave the claim to its lease."""

    def _take(self, first_lsn: int | None, epoch_id: int | None, take_over: bool) -> None:
        load_manifest(self._storage)  # only the place of a log gets a lock file

        def take() -> ClaimRecord:
            manifest = load_manifest(self._storage)
            stored = found = self._found()
            if found is not None and found.owner != self._owner.bytes:
                foreign = found.log_id != manifest.log_id
                if not foreign:
                    refuse_taken(self._name, found, self._storage, take_over=take_over)
                if foreign or first_lsn is not None:
                    found = None
            if first_lsn is None and not self.continues:
                found = None
            if found is not None:
                refuse_another_history(self._storage, self._name, found, manifest)
            if first_lsn is None:
                wanted = oldest_lsn(manifest, complete=self._complete) if found is None else found.first_lsn
            else:
                wanted = first_lsn
                refuse_beyond(self._storage, self._name, wanted, manifest, saved=epoch_id is not None)
            if epoch_id is not None:
                refuse_another_epoch(self._name, wanted, epoch_id, manifest)
            return self._write(wanted, manifest, stored)

        self._in_turn(take)

    def _renew(self, first_lsn: int | None) -> None:
        """Write the claim at a position, None for the one that it has; raises as `advance`."""
        if self.ended == "released":
            raise ClaimError(f"the claim {self._name!r} was released", name=self._name, reason="released")

        def renew() -> ClaimRecord:
            manifest, found = load_manifest(self._storage), self._found()
            if found is not None and found in self._unsure:
                self._mark = found  # a writing that failed has landed: trims may have gone up to there
            mine = self._last
            refuse_another_history(self._storage, self._name, mine, manifest)
            wanted = mine.first_lsn if first_lsn is None else first_lsn
            refuse_back(self._name, mine.first_lsn, wanted)
            if wanted > mine.first_lsn:
                refuse_beyond(self._storage, self._name, wanted, manifest, saved=False)
            self._refuse_gap(wanted, manifest)
            if found is None or not self._is_mine(found):
                self._refuse_loss(found)
            return self._write(wanted, manifest, found)

        self._in_turn(renew)

    def _in_turn(self, write: Callable[[], ClaimRecord]) -> None:
        """Have a mark written, and then take it for the last one: until then it may be on storage, or not."""
        with self._events.held():
            self._note_written(in_claims_turn(self._storage, write, self._wait_s))

    def _note_written(self, mark: ClaimRecord) -> None:
        """Take a mark that was written for the last one."""
        self._before, self._mark, self.ended = self._mark, mark, ""
        self._unsure.clear()
        self._check()

    def _release(self) -> None:
        """Remove the file, if it is this claim's."""

        def release() -> None:
            found = self._found()
            if found is not None and self._is_mine(found):
                remove_claims(self._storage, [self._name])

        with self._events.held():
            in_claims_turn(self._storage, release, self._wait_s)
        self.ended = "released"

    def _write(self, first_lsn: int, manifest: Manifest, found: ClaimRecord | None) -> ClaimRecord:
        """Write the claim after the `found` one, and return it.

        GapError if it could not be kept, ClaimError without room.
        """
        self._refuse_gap(first_lsn, manifest)
        make_room(self._storage, self._name, self._owner.bytes == OWN, manifest, self._events)
        # After a failure the same place is written: only the other one is known to be on stable storage.
        generation = 1 if found is None else found.generation + (found not in self._unsure)
        log_id, epoch, epoch_id = identity_at(manifest, first_lsn - 1)
        owner, at_us = self._owner.bytes, self._clock_us()
        if found is not None and (found.owner, found.log_id) == (owner, log_id):
            self.acked = max(found.acked, self.acked, key=lambda end: end.position)
        mark = ClaimRecord(
            *(generation, log_id, owner, epoch, epoch_id, first_lsn, self._lease_us, at_us),
            acked=self.acked,
            label=self.label,
        )
        self._unsure.append(mark)
        write_claim(self._storage, self._name, mark)
        return mark

    def _clock_us(self) -> int:
        return clock_us(self._name)

    def _check(self) -> None:
        """Assert that the written claim is this consumer's."""
        mark = self._last
        assert mark.owner == self._owner.bytes and mark.log_id and mark.first_lsn >= 1
        assert bool(mark.epoch_id) == bool(mark.epoch)

    def _refuse_gap(self, first_lsn: int, manifest: Manifest) -> None:
        oldest = oldest_lsn(manifest, complete=self._complete)
        if first_lsn < oldest:
            self.ended = "lost"
            raise GapError(first_lsn, oldest)

    def _is_mine(self, mark: ClaimRecord) -> bool:
        known = (self._mark, self._before, *self._unsure)
        # The log's writer gives one that was written while the clock was ahead an earlier time.
        return any(
            k is not None
            and mark.written_us <= k.written_us
            and mark == k._replace(generation=mark.generation, written_us=mark.written_us)
            for k in known
        )

    def _found(self) -> ClaimRecord | None:
        """Return the claim of this name; None if absent, and with an event if unreadable."""
        try:
            return stored_claim(self._storage, self._name)
        except CorruptionError as error:
            self._events.emit("walkit.claim.damage", name=self._name, error=str(error))
            return None

    def _refuse_loss(self, found: ClaimRecord | None) -> None:
        """Refuse a claim that another has, or that was dropped: a lease that is over, or damage, loses none."""
        if found is not None:
            self.ended = "lost"
            whose = "another owner's" if found.owner != self._owner.bytes else "another session's"
            raise taken(self._name, found, whose)
        gone = claim_file_name(self._name) not in self._storage.names()
        if gone and now_us() < self._last.lease_until_us:
            self.ended = "lost"
            raise ClaimError(
                f"the claim {self._name!r} was dropped before its lease was over; take it again",
                name=self._name,
                reason="dropped",
            )
