"""A claim as its consumer writes it: the file that it has under its name, and the rules of each writing."""

from __future__ import annotations

import uuid
from typing import Literal

from walkit.commit.to_end import run_to_end
from walkit.errors import ClaimError, CorruptionError, GapError
from walkit.events import EventSink
from walkit.format.claim import ClaimMark
from walkit.format.manifest import Manifest
from walkit.format.names import claim_file_name
from walkit.read.claim_rules import (
    as_first,
    clock_us,
    make_room,
    now_us,
    oldest_lsn,
    refuse_another_epoch,
    refuse_another_history,
    refuse_back,
    refuse_beyond,
    refuse_taken,
    taken,
)
from walkit.segments.claim_files import (
    LOCK_WAIT_S,
    OWN,
    claims_locked,
    remove_claims,
    stored_claim,
    write_claim,
)
from walkit.segments.identity import identity_at
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage


class WrittenClaim:
    """One consumer's claim in its file. Safe from any thread: the claims' lock lets one write at a time."""

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
        self.name, self.owner, self.lease_us, self.events = name, owner, lease_us, events
        self._storage = storage
        self._complete, self._wait_s = complete, wait_s
        self._mark: ClaimMark | None = None
        self._before: ClaimMark | None = None
        """The mark before: it counts again if the newer place was damaged."""
        self._unsure: list[ClaimMark] = []
        """Marks that failed to be written since then: any of them may be on storage."""
        self.ended: Literal["", "released", "lost"] = ""

    @property
    def mark(self) -> ClaimMark:
        """The mark that this object has written last."""
        assert self._mark is not None, "a claim is taken before it is given away"
        return self._mark

    @property
    def first_lsn(self) -> int:
        """The first record that is kept."""
        return self.mark.first_lsn

    @property
    def location(self) -> str:
        """Where the log is."""
        return self._storage.location

    @property
    def state(self) -> str:
        """See `Claim.state`."""
        return self.ended or ("expired" if now_us() >= self.mark.lease_until_us else "held")

    def advance(self, first_lsn: int) -> None:
        """See `Claim.advance`."""
        first_lsn = as_first(first_lsn)
        run_to_end(lambda: self.renew(first_lsn), "claim", events=self.events)

    def leave(self) -> None:
        """Leave the claim to its lease."""

    def take(self, first_lsn: int | None, epoch_id: int | None, take_over: bool) -> None:
        """Write the claim for the first time; what `walkit.claim` raises."""
        # As deep on the stack as `advance`, so that a claim which can be taken can be advanced.
        run_to_end(lambda: self._take(first_lsn, epoch_id, take_over), "claim", events=self.events)

    def _take(self, first_lsn: int | None, epoch_id: int | None, take_over: bool) -> None:
        load_manifest(self._storage)  # only the place of a log gets a lock file
        with self.events.held(), claims_locked(self._storage, self._wait_s):
            manifest = load_manifest(self._storage)
            stored = found = self._found()
            if found is not None and found.owner != self.owner.bytes:
                foreign = found.log_id != manifest.log_id
                if not foreign:
                    refuse_taken(self.name, found, self._storage, take_over=take_over)
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

    def renew(self, first_lsn: int | None) -> None:
        """Write the claim at a position, None for the one that it has; raises as `Claim.advance`."""
        if self.ended == "released":
            raise ClaimError(f"the claim {self.name!r} was released", name=self.name, reason="released")
        with self.events.held(), claims_locked(self._storage, self._wait_s):
            manifest, found = load_manifest(self._storage), self._found()
            if found is not None and found in self._unsure:
                self._mark = found  # a writing that failed has landed: trims may have gone up to there
            mine = self.mark
            refuse_another_history(self._storage, self.name, mine, manifest)
            wanted = mine.first_lsn if first_lsn is None else first_lsn
            refuse_back(self.name, mine.first_lsn, wanted)
            if wanted > mine.first_lsn:
                refuse_beyond(self._storage, self.name, wanted, manifest, saved=False)
            self._refuse_gap(wanted, manifest)
            if found is None or not self._is_mine(found):
                self._refuse_loss(found)
            self._write(wanted, manifest, found)

    def release(self) -> None:
        """Remove the file, if it is this claim's."""
        with self.events.held(), claims_locked(self._storage, self._wait_s):
            found = self._found()
            if found is not None and self._is_mine(found):
                remove_claims(self._storage, [self.name])
        self.ended = "released"

    def _write(self, first_lsn: int, manifest: Manifest, found: ClaimMark | None) -> None:
        """Write the claim after what was `found`; GapError if it could not be kept, ClaimError without room."""
        self._refuse_gap(first_lsn, manifest)
        make_room(self._storage, self.name, self.owner.bytes == OWN, manifest, self.events)
        # After a failure the same place is written: only the other one is known to be on stable storage.
        generation = 1 if found is None else found.generation + (found not in self._unsure)
        log_id, epoch, epoch_id = identity_at(manifest, first_lsn - 1)
        at_us = self._clock_us()
        mark = ClaimMark(
            generation, log_id, self.owner.bytes, epoch, epoch_id, first_lsn, self.lease_us, at_us
        )
        self._unsure.append(mark)
        write_claim(self._storage, self.name, mark)
        self._before, self._mark, self.ended = self._mark, mark, ""
        self._unsure.clear()
        self._check()

    def _clock_us(self) -> int:
        return clock_us(self.name)

    def _check(self) -> None:
        """Assert that what was written is this consumer's."""
        mark = self.mark
        assert mark.owner == self.owner.bytes and mark.log_id and mark.first_lsn >= 1
        assert bool(mark.epoch_id) == bool(mark.epoch)

    def _refuse_gap(self, first_lsn: int, manifest: Manifest) -> None:
        oldest = oldest_lsn(manifest, complete=self._complete)
        if first_lsn < oldest:
            self.ended = "lost"
            raise GapError(first_lsn, oldest)

    def _is_mine(self, mark: ClaimMark) -> bool:
        known = (self._mark, self._before, *self._unsure)
        # The log's writer gives one that was written while the clock was ahead an earlier time.
        return any(
            k is not None
            and mark.written_us <= k.written_us
            and mark == k._replace(generation=mark.generation, written_us=mark.written_us)
            for k in known
        )

    def _found(self) -> ClaimMark | None:
        """Return what stands under this name; None for nothing, and with an event for what cannot be read."""
        try:
            return stored_claim(self._storage, self.name)
        except CorruptionError as error:
            self.events.emit("walkit.claim.damage", name=self.name, error=str(error))
            return None

    def _refuse_loss(self, found: ClaimMark | None) -> None:
        """Refuse a claim that another has, or that was dropped: a lease that is over, or damage, loses none."""
        if found is not None:
            self.ended = "lost"
            whose = "another owner's" if found.owner != self.owner.bytes else "another session's"
            raise taken(self.name, found, whose)
        gone = claim_file_name(self.name) not in self._storage.names()
        if gone and now_us() < self.mark.lease_until_us:
            self.ended = "lost"
            raise ClaimError(
                f"the claim {self.name!r} was dropped before its lease was over; take it again",
                name=self.name,
                reason="dropped",
            )
