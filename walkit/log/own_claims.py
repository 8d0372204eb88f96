"""The claims of the log's own writer: their values are in memory, and their files follow (FORMAT.md F-18).

Each trim of this process sees a value as it is. The file has it for the time after the process has died, but nothing
above the durable LSN + 1: an older value there only keeps more. Lock order: the turn of this process, the claims' lock,
the manifest; none of them is taken under the lock of the commit path or of a state.
"""

from __future__ import annotations

import errno
import threading
import uuid
from typing import Any

from walkit._locks import once
from walkit._main_thread import run_uninterrupted
from walkit.errors import ClaimError, GapError, LogClosedError, StorageError, WalkitError
from walkit.format.claim import ClaimMark
from walkit.log.claims import BACKGROUND_WAIT_S, ClaimTable, Mine
from walkit.log.contents import LogContents
from walkit.log.lifetime import Lifetime
from walkit.log.marks import LogMarks
from walkit.read.claim import RENEWALS, Claim, is_due, lease_us_of
from walkit.read.claim_rules import as_first, refuse_after, refuse_back, refuse_taken, taken
from walkit.read.cursor import check_name
from walkit.record import wall_us
from walkit.segments.claim_files import OWN, remove_claims
from walkit.segments.maintenance_worker import MaintenanceWorker

RENEW_S_MIN = 0.5
"""The least time between two renewals: a lease of less than a few times this can be over when its process is killed."""


class OwnClaims:
    """Takes and writes the claims of an open log's own process. Safe from any thread."""

    def __init__(
        self,
        claims: ClaimTable,
        contents: LogContents,
        marks: LogMarks,
        lifetime: Lifetime,
        maintenance: MaintenanceWorker,
    ) -> None:
        self.claims, self.contents, self.marks, self.lifetime = claims, contents, marks, lifetime
        self._maintenance = maintenance

    def take(self, name: str, first_lsn: int, lease_s: float) -> Claim:
        """Take the claim of this name, or take it over from another object; durable, and in force, on return."""
        check_name(name)
        made = OwnClaim(self, name, lease_us_of(lease_s), as_first(first_lsn))
        run_uninterrupted(made.take_own, "claim", events=self.claims.events)
        # Trims may never come: the lease must not be over meanwhile.
        shortest_s = min((claim.lease_s for claim in list(self.claims.mine.values())), default=made.lease_s)
        self._maintenance.every(max(shortest_s / RENEWALS, RENEW_S_MIN), self._renew, "renew")
        self._maintenance.submit("renew", self._renew)  # it starts the thread
        return made

    def _renew(self) -> None:
        """Write each claim that was not written for a part of its lease; on the maintenance thread."""
        self._save([c for c in list(self.claims.mine.values()) if is_due(c)])

    def close(self) -> None:
        """Write them all, so that they count for their lease after the closing. A failure is an event."""
        self._save(list(self.claims.mine.values()))

    def _save(self, claims: list[Mine]) -> None:
        """Write these: one that fails keeps no other from it, and a lock that is not free is waited for once."""
        for claim in claims:
            try:
                claim.save(BACKGROUND_WAIT_S)
            except WalkitError as error:
                self.claims.events.emit("walkit.upkeep.fail", job="claims", error=str(error))
                if isinstance(error, StorageError) and error.errno == errno.ETIMEDOUT:
                    return

    def drop(self, name: str) -> bool:
        """Remove a claim of any owner, durably; False if there was nothing to remove."""
        with self.claims.events.held(), self.claims.locked():
            mine = self.claims.mine.pop(name, None)
            if mine is not None:
                mine.ended = "lost"
            return bool(remove_claims(self.claims.storage, [name])) or mine is not None


class OwnClaim(Mine):
    """One claim of the log's own writer."""

    def __init__(self, own: OwnClaims, name: str, lease_us: int, first_lsn: int) -> None:
        claims = own.claims
        super().__init__(claims.storage, claims.events, name, uuid.UUID(bytes=OWN), lease_us, complete=False)
        self._own = own
        self._moving: Any = threading.RLock()
        self._value = first_lsn

    @property
    def first_lsn(self) -> int:
        """The first record that is kept; it never moves back."""
        return self._value

    @property
    def state(self) -> str:
        """See `Claim.state`: while the log is open, no lease ends it."""
        return self.ended or ("log closed" if self._own.lifetime.closed else "held")

    def advance(self, first_lsn: int) -> None:
        """See `Claim.advance`. Does no I/O."""
        if type(first_lsn) is not int or first_lsn < 1:
            first_lsn = as_first(first_lsn)
        if self._own.lifetime.closed or self.ended:
            raise self._refusal()
        with once(self._moving), self._moving:
            refuse_back(self.name, self._value, first_lsn)
            refuse_after(first_lsn, self._own.marks.acked_lsn)
            self._value = first_lsn

    def _clock_us(self) -> int:
        return wall_us()  # a clock that is far wrong stops no trim

    def _refusal(self) -> ClaimError | GapError | LogClosedError:
        if self._own.lifetime.closed:
            return LogClosedError(
                f"the log is closed; the claim {self.name!r} counts until its lease is over"
            )
        oldest = self._own.contents.first_lsn
        if self.ended == "lost" and self._value < oldest:
            return GapError(self._value, oldest)
        reason = "released" if self.ended == "released" else "dropped"
        why = "released" if reason == "released" else "dropped, or another one of this name was taken"
        return ClaimError(f"the claim {self.name!r} was {why}", name=self.name, reason=reason)

    def take_own(self) -> None:
        """Write the claim for the first time, and count it from then on."""
        claims, own = self._own.claims, self._own
        with self._events.held(), claims.locked():
            manifest, found = claims.manifest, self._found()
            if found is not None and found.owner != OWN and found.log_id == manifest.log_id:
                refuse_taken(self.name, found, self._storage, take_over=False)
            oldest = own.contents.first_lsn
            if self._value < oldest:
                raise GapError(self._value, oldest)
            refuse_after(self._value, own.marks.acked_lsn)
            self._save(found)
            before = claims.mine.get(self.name)
            if before is not None:
                before.ended = "lost"
            claims.mine[self.name] = self

    def _save(self, found: ClaimMark | None) -> None:
        """Write the value, as far as the log is durable. Needs the claims' lock."""
        self._write(min(self._value, self._own.marks.durable_lsn + 1), self._own.claims.manifest, found)

    def save_locked(self) -> None:
        """Write the claim as it is now; ClaimError if its file is another owner's. Needs the claims' lock."""
        found = self._found()
        if found is not None and found.owner != OWN:
            self.ended = "lost"
            self._own.claims.mine.pop(self.name, None)
            raise taken(self.name, found, "another owner's")
        self._save(found)

    def save(self, wait_s: float | None = None) -> None:
        """Write the claim as it is now, unless it has ended."""
        claims = self._own.claims
        with self._events.held(), claims.locked(wait_s):
            if claims.mine.get(self.name) is self:
                self.save_locked()

    def _renew(self, first_lsn: int | None) -> None:
        if self._own.lifetime.closed or self.ended:
            raise self._refusal()
        self.save()

    def _release(self) -> None:
        self._end(keep=False)

    def _leave(self) -> None:
        """Leave the claim to its lease: this process counts it no longer."""
        if not self._own.lifetime.closed:
            run_uninterrupted(lambda: self._end(keep=True), "claim", events=self._events)

    def _end(self, *, keep: bool) -> None:
        if self._own.lifetime.closed:
            raise self._refusal()
        claims = self._own.claims
        with self._events.held(), claims.locked():
            if claims.mine.get(self.name) is not self:
                return
            if keep:
                self.save_locked()
            else:
                remove_claims(self._storage, [self.name])
            del claims.mine[self.name]
            self.ended = "lost" if keep else "released"
