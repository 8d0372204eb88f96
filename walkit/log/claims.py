"""Claims as the writer's process sees them: its own and others', which count, the lock under which records are dropped.

A lease is judged by the wall clock, which consumers share, and by this process's own clock, which never goes back: a
claim counts no longer than its lease after it was first seen here as it is. So a wall clock that is set back keeps no
claim for longer than that, and is an event.
"""

from __future__ import annotations

import errno
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from walkit._internal.arguments import as_seconds
from walkit._internal.locks import once
from walkit._main_thread import run_uninterrupted
from walkit.errors import (
    ClaimError,
    CorruptionError,
    FormatVersionError,
    GapError,
    LogClosedError,
    StorageError,
    WalkitError,
)
from walkit.events import EventSink
from walkit.format.consumer_file import ClaimRecord
from walkit.format.layout import CLAIM_LEASE_US_MAX
from walkit.format.manifest import Manifest
from walkit.log.live_log import Contents, Lifetime, LogMarks
from walkit.read.claim import (
    RENEWALS,
    Claim,
    as_first,
    is_due,
    lease_us_of,
    refuse_after,
    refuse_back,
    refuse_taken,
    taken,
)
from walkit.record import wall_us
from walkit.segments.consumer_files import (
    LOCK_WAIT_S,
    OWN,
    ClaimFact,
    busy,
    claim_facts,
    claims_locked,
    fact_of,
    remove_claims,
    stored_claim,
    write_claim,
)
from walkit.segments.maintenance_worker import MaintenanceWorker
from walkit.segments.manifest_store import Manifests
from walkit.storage.interface import Storage, TakesTurns

T = TypeVar("T")
BACKGROUND_WAIT_S = 0.1
"""How long the maintenance thread, and a log that closes, wait for the claims' lock."""


class _Seen(NamedTuple):
    """A claim as it was when it was seen for the first time, and when that was by the clock of this process."""

    mark: ClaimRecord | None
    at_s: float


class ClaimTable:
    """The claims on an open log: files that consumers write, and those of this process. Safe from any thread.

    `wall_us` and `own_s` are its clocks, `wait_s` how long it waits for the claims' lock.
    """

    def __init__(
        self,
        storage: Storage,
        manifest_store: Manifests,
        events: EventSink,
        *,
        wall_us: Callable[[], int] = wall_us,
        own_s: Callable[[], float] | None = None,
        wait_s: float = LOCK_WAIT_S,
    ) -> None:
        self.storage, self.events, self._manifest_store = storage, events, manifest_store
        # Changed while the claims' lock is held, which `locked` takes; read without it.
        self.mine: dict[str, OwnClaim] = {}
        """By name, those that this process has now: their values count, whatever their files say."""
        self._wall_us, self._own_s, self._wait_s = wall_us, own_s or time.monotonic, wait_s
        # Guards `_seen`. Taken alone, for a few steps of Python, also while the claims' lock is held.
        self._lock = threading.RLock()
        # Guards `_kept`. Taken before the claims' lock, which is one between processes and would not keep two threads
        # of this one apart; the locks of the orphan files and of the manifest come after both.
        self._turn: Any = threading.RLock()
        """Between the threads of this process that would shut the claims."""
        self._seen: dict[str, _Seen] = {}
        """By name; only of claims that are there."""
        self.takes_turns = isinstance(storage, TakesTurns)
        self._dropping: Mapping[str, ClaimFact] = {}
        """Claims that the next turn has to keep to no more, as they were judged."""
        self._kept: list[ClaimFact] | None = None
        """While they are shut: the claims found when the lock was taken, without those that are being dropped."""

    def in_turn(self, do: Callable[[], T], wait_s: float | None = None) -> T:
        """Return the result of `do`, which reads and writes claims alone; see `in_claims_turn`."""
        if isinstance(self.storage, TakesTurns):
            return self.storage.in_turn(do)
        if self._turn._is_owned():
            return do()
        with self.locked(wait_s):
            return do()

    @property
    def manifest(self) -> Manifest:
        """The log's manifest."""
        return self._manifest_store.current

    def live(self, manifest: Manifest) -> tuple[ClaimFact, ...]:
        """Return the claims that count now; one that cannot be read needs every record.

        While they are shut that is exact, with the values of this process at that moment; where storage takes turns
        instead, in a turn. Else it is for a preview: the next moment may bring another claim. An event says of each
        claim once that it cannot be read, or was written after the time of the clock now.
        """
        kept = self._kept
        if kept is None or self.takes_turns:
            kept = [f for f in self._look(manifest) if not self._is_dropped(f)]
        return tuple(f for f in kept if f.counts)

    def _is_dropped(self, fact: ClaimFact) -> bool:
        judged = self._dropping.get(fact.name)
        return judged is not None and (fact.mark == judged.mark or fact.is_own)

    def _stands(self, judged: ClaimFact) -> bool:
        """Whether a claim is as it was judged. In a turn: before it, a consumer may have changed it."""
        try:
            found = stored_claim(self.storage, judged.name)
        except (CorruptionError, FormatVersionError):
            return judged.mark is None
        return found is not None and (found == judged.mark or (judged.is_own and found.owner == OWN))

    def oldest_needed(self, manifest: Manifest) -> int | None:
        """Return the oldest record that a claim needs now; None if none is needed."""
        return min((fact.needed_lsn for fact in self.live(manifest)), default=None)

    def facts(self, manifest: Manifest) -> list[ClaimFact]:
        """Return the claims, by name, as they are now: those of this process by their values."""
        found = {fact.name: fact for fact in claim_facts(self.storage, manifest, self._wall_us())}
        for name, mine in list(self.mine.items()):
            found[name] = fact_of(name, mine.mark, "live", mine.first_lsn)
        return [found[name] for name in sorted(found)]

    @property
    def are_shut(self) -> bool:
        """Whether a thread of this process has the claims' lock."""
        return self._kept is not None

    @contextmanager
    def locked(self, wait_s: float | None = None) -> Iterator[ExitStack]:
        """Have the turn of this process, and the claims' lock, in this block; closing the stack frees the lock.

        StorageError (ETIMEDOUT) if they are not free within `wait_s` seconds.
        """
        wait_s = self._wait_s if wait_s is None else as_seconds(wait_s, "wait_s")
        wait_s = min(max(wait_s, 0), threading.TIMEOUT_MAX)
        deadline = time.monotonic() + wait_s
        with once(self._turn):
            if not self._turn.acquire(timeout=wait_s):
                raise busy(self.storage, wait_s, None)
            try:
                with ExitStack() as lock:
                    lock.enter_context(claims_locked(self.storage, max(deadline - time.monotonic(), 0)))
                    yield lock
            finally:
                self._turn.release()

    @contextmanager
    def shut(self, wait_s: float | None = None) -> Iterator[ShutClaims]:
        """Have the claims' lock in this block, or until `reopen`: none is written until the manifest is replaced.

        It is taken before that of the orphan files, which others need while this one is waited for, and within a block
        that keeps events. Where the block ends well, claims whose lease is over, and such as a hard cap has passed, are
        removed. Raises the errors of `locked`.
        """
        with self.locked(wait_s) as lock:
            try:
                self._kept = [self._dated(f) for f in self._look(self._manifest_store.current)]
                self._check()
                shut = ShutClaims(self, lock)
                yield shut
                shut.reopen()
            finally:
                self._kept = None

    def _dated(self, fact: ClaimFact) -> ClaimFact:
        """Give a claim that was written while the clock was ahead the time of now, so that it ends with its lease.

        Otherwise each opening would count a whole lease, until the clock is that far.
        """
        mark, now_us = fact.mark, self._wall_us()
        if mark is None or fact.state != "live" or fact.name in self.mine or mark.written_us <= now_us:
            return fact
        dated = mark._replace(generation=mark.generation + 1, written_us=now_us)

        def date() -> bool:
            stands = self._stands(fact)
            if stands:
                write_claim(self.storage, fact.name, dated)
            return stands

        try:
            if not self.in_turn(date):
                return fact
        except StorageError as error:
            self.events.emit("walkit.maintenance.fail", job="claims", error=str(error))
            return fact
        with once(self._lock), self._lock:
            self._seen[fact.name] = _Seen(dated, self._seen[fact.name].at_s)
        return fact_of(fact.name, dated, fact.state)

    def save_below(self, up_to_lsn: int) -> None:
        """Write those of this process whose files would limit a trim to this LSN. Needs the claims shut.

        A file must not claim dropped records: the claim would end with the process.
        """
        for claim in list(self.mine.values()):
            if claim.mark.first_lsn <= up_to_lsn and claim.mark.first_lsn < claim.first_lsn:
                claim.save_locked()

    def _check(self) -> None:
        """Assert the invariants between two steps; while the claims are shut, on the thread that has shut them."""
        with once(self._lock), self._lock:
            now_s = self._own_s()
            assert all(seen.at_s <= now_s for seen in self._seen.values()), "a lease begins later than now"
        if self._kept is not None:
            assert self._turn._is_owned(), "the claims are shut, and no thread has their turn"
            assert len({fact.name for fact in self._kept}) == len(self._kept), "a claim is kept twice"
            for name, claim in self.mine.items():
                assert claim.name == name and not claim.ended, "a claim counts that has ended"
                assert claim.mark.first_lsn <= claim.first_lsn, "a file is before its claim"
                assert claim.first_lsn > self.manifest.low_watermark, "records that are claimed were dropped"

    def forget(self) -> None:
        """In a forked child: forget locks that a thread of the parent may hold."""
        self._lock, self._turn = threading.RLock(), threading.RLock()

    def remove(self, facts: list[ClaimFact]) -> None:
        """Remove the files of claims that are over, or were dropped, with an event each; those that stand as judged.

        A failure is an event, not an error: the manifest stands, and the next block removes the files.
        """

        def remove() -> list[ClaimFact]:
            gone = [fact for fact in facts if self._stands(fact)]
            remove_claims(self.storage, [fact.name for fact in gone])
            return gone

        gone = facts
        try:
            gone = self.in_turn(remove) if facts else []
        except StorageError as error:
            self.events.emit("walkit.maintenance.fail", job="claims", error=str(error))
        oldest = self._manifest_store.current.low_watermark + 1
        for fact in gone:
            about = {"name": fact.name, "first_lsn": fact.first_lsn, "oldest": oldest, "owner": fact.owner}
            if fact.state == "expired":
                self.events.emit("walkit.claim.expire", **about)
            else:
                self.events.emit("walkit.claim.drop", **about)

    def _look(self, manifest: Manifest) -> list[ClaimFact]:
        """Read the claims, and judge them by both clocks."""
        now_s, facts = self._own_s(), self.facts(manifest)
        now_us = self._wall_us()  # after the reading: none of them was written later
        with once(self._lock), self._lock:
            judged, new = self._judged(facts, now_s)
        for fact in new:  # a callback may look, too
            self._report(fact, now_us)
        return judged

    def _judged(self, facts: list[ClaimFact], now_s: float) -> tuple[list[ClaimFact], list[ClaimFact]]:
        """Return the claims, judged by this process's clock too, and those of them that are new or have changed."""
        known, self._seen = self._seen, {}
        judged, new = [], []
        for fact in facts:
            if fact.name in self.mine:
                judged.append(fact)
                continue
            seen = known.get(fact.name)
            if seen is None or seen.mark != fact.mark:
                seen = _Seen(fact.mark, now_s)
                new.append(fact)
            self._seen[fact.name] = seen
            lease_us = CLAIM_LEASE_US_MAX if fact.mark is None else fact.mark.lease_us
            over = fact.counts and (now_s - seen.at_s) * 1e6 >= lease_us
            judged.append(replace(fact, state="expired") if over else fact)
        return judged, new

    def _report(self, fact: ClaimFact, now_us: int) -> None:
        """Send the event of a claim that is seen for the first time and is damaged or ahead of the log."""
        if fact.mark is None:
            self.events.emit("walkit.claim.damage", name=fact.name, error=fact.fault)
        elif fact.state == "live" and fact.mark.written_us > now_us:
            ahead_s = (fact.mark.written_us - now_us) / 1e6
            self.events.emit("walkit.claim.clock", name=fact.name, ahead_s=ahead_s)


class ShutClaims:
    """The claims of a log while their lock is held: none comes, none is renewed. For the thread that holds it."""

    def __init__(self, table: ClaimTable, locked: ExitStack) -> None:
        self._table, self._locked = table, locked
        self._found = list(table._kept or ())

    @contextmanager
    def dropping(self, names: Collection[str]) -> Iterator[None]:
        """Drop claims: the manifest that is published in this block no longer has to keep to them.

        Their files go after it, with an event each; if the block fails they stay as before. A crash in between leaves
        files that the low watermark has passed: they no longer count.
        """
        table, before = self._table, self._table._kept
        assert before is not None, "claims are dropped under their lock"
        lost = [f for f in before if f.name in names]
        mine = {f.name: table.mine.pop(f.name) for f in lost if f.name in table.mine}
        for claim in mine.values():
            claim.ended = "lost"
        table._kept = [f for f in before if f.name not in names]
        table._dropping = {f.name: f for f in lost}
        table._check()
        try:
            yield
        except BaseException:
            for claim in mine.values():
                claim.ended = ""
            table.mine.update(mine)
            table._kept = before
            raise
        finally:
            table._dropping = {}
        table.remove(lost)

    def reopen(self) -> None:
        """Free the lock before the block ends: the manifest is published. Does nothing the second time."""
        if self._table._kept is None:
            return
        self._table.remove([f for f in self._found if f.state in ("expired", "passed")])
        self._table._kept = None
        self._locked.close()


RENEW_S_MIN = 0.5
"""The least time between two renewals: a lease of less than a few times this can be over when its process is killed."""


class OwnClaims:
    """Takes and writes the claims of an open log's own process. Safe from any thread."""

    def __init__(
        self,
        claims: ClaimTable,
        contents: Contents,
        marks: LogMarks,
        lifetime: Lifetime,
        maintenance: MaintenanceWorker,
    ) -> None:
        self.claims, self.contents, self.marks, self.lifetime = claims, contents, marks, lifetime
        self._maintenance = maintenance

    def take(self, name: str, first_lsn: int, lease_s: float) -> Claim:
        """Take the claim of this name, or take it over from another object; durable, and in force, on return."""
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

    def _save(self, claims: list[OwnClaim]) -> None:
        """Write these, where storage takes turns in one."""
        if len(claims) > 1 and self.claims.takes_turns:
            self.claims.in_turn(lambda: self._save_each(claims))
        else:
            self._save_each(claims)

    def _save_each(self, claims: list[OwnClaim]) -> None:
        """Write these: one that fails keeps no other from it, and a lock that is not free is waited for once."""
        for claim in claims:
            try:
                claim.save(BACKGROUND_WAIT_S)
            except WalkitError as error:
                self.claims.events.emit("walkit.maintenance.fail", job="claims", error=str(error))
                if isinstance(error, StorageError) and error.errno == errno.ETIMEDOUT:
                    return

    def drop(self, name: str) -> bool:
        """Remove a claim of any owner, durably; False if there was nothing to remove."""
        with self.claims.events.held():
            is_removed = self.claims.in_turn(lambda: remove_claims(self.claims.storage, [name]))
            mine = self.claims.mine.pop(name, None)
            if mine is not None:
                mine.ended = "lost"
            return is_removed or mine is not None


class OwnClaim(Claim):
    """One claim of the log's own writer."""

    def __init__(self, own: OwnClaims, name: str, lease_us: int, first_lsn: int) -> None:
        claims = own.claims
        super().__init__(claims.storage, claims.events, name, uuid.UUID(bytes=OWN), lease_us, complete=False)
        self._own = own
        # Guards `_value`, which only grows. Taken alone, without I/O: any thread may advance the claim.
        self._moving: Any = threading.RLock()
        self._value = first_lsn

    @property
    def first_lsn(self) -> int:
        """The first record that is kept; it never moves back."""
        return self._value

    @property
    def mark(self) -> ClaimRecord:
        """The mark in its file."""
        return self._last

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
            refuse_after(first_lsn, max(self._own.marks.acked_lsn, self._own.marks.durable_lsn))
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
        fate = "released" if reason == "released" else "dropped, or another one of this name was taken"
        return ClaimError(f"the claim {self.name!r} was {fate}", name=self.name, reason=reason)

    def take_own(self) -> None:
        """Write the claim for the first time, and count it from then on."""
        claims, own = self._own.claims, self._own

        def take() -> ClaimRecord:
            manifest, found = claims.manifest, self._found()
            if found is not None and found.owner != OWN and found.log_id == manifest.log_id:
                refuse_taken(self.name, found, self._storage, take_over=False)
            refuse_after(self._value, max(own.marks.acked_lsn, own.marks.durable_lsn))
            return self._save(found)

        with self._events.held():
            self._note_written(claims.in_turn(take))
            before = claims.mine.get(self.name)
            if before is not None:
                before.ended = "lost"
            claims.mine[self.name] = self  # a trim that came first has seen its file

    def _save(self, found: ClaimRecord | None) -> ClaimRecord:
        """Write the value, as far as the log is durable. Needs the claims' lock."""
        return self._write(
            min(self._value, self._own.marks.durable_lsn + 1), self._own.claims.manifest, found
        )

    def save_locked(self) -> None:
        """Write the claim as it is now; ClaimError if its file is another owner's. Needs the claims' lock."""
        self._note_written(self._save_own())

    def _save_own(self) -> ClaimRecord:
        found = self._found()
        if found is not None and found.owner != OWN:
            self.ended = "lost"
            self._own.claims.mine.pop(self.name, None)
            raise taken(self.name, found, "another owner's")
        return self._save(found)

    def save(self, wait_s: float | None = None) -> None:
        """Write the claim as it is now, unless it has ended."""
        claims = self._own.claims

        def save() -> ClaimRecord | None:
            return self._save_own() if claims.mine.get(self.name) is self else None

        with self._events.held():
            mark = claims.in_turn(save, wait_s)
            if mark is not None:
                self._note_written(mark)

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

        def end() -> bool:
            if claims.mine.get(self.name, self) is not self:
                return False
            if keep:
                self.save_locked()
            else:
                remove_claims(self._storage, [self.name])
            claims.mine.pop(self.name, None)  # in the turn: a trim would write the file again
            return True

        with self._events.held():
            if claims.in_turn(end):
                self.ended = "lost" if keep else "released"
