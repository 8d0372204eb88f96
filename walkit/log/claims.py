"""Claims as the writer's process sees them: which count, and the lock under which records are dropped.

A lease is judged by the wall clock, which consumers share, and by this process's own clock, which never goes back: a
claim counts no longer than its lease after it was first seen here as it is. So a wall clock that is set back keeps no
claim for longer than that, and is an event.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from walkit.errors import StorageError
from walkit.events import EventSink
from walkit.format.claim import ClaimMark
from walkit.format.layout import CLAIM_LEASE_US_MAX
from walkit.format.manifest import HoldRecord, Manifest
from walkit.segments.claim_files import LOCK_WAIT_S, ClaimFact, claim_facts, claims_locked, remove_claims
from walkit.segments.manifest_store import ManifestStore
from walkit.storage.interface import Storage


class _Seen(NamedTuple):
    """A claim as it was when it was seen for the first time, and when that was by the clock of this process."""

    mark: ClaimMark | None
    at_s: float


class ClaimTable:
    """The claims on an open log: files that consumers in other processes write. Safe from any thread.

    `wall_us` and `own_s` are its clocks, `wait_s` how long it waits for the claims' lock.
    """

    def __init__(
        self,
        storage: Storage,
        manifest_store: ManifestStore,
        events: EventSink,
        *,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        own_s: Callable[[], float] = time.monotonic,
        wait_s: float = LOCK_WAIT_S,
    ) -> None:
        self._storage, self._manifest_store, self._events = storage, manifest_store, events
        self._wall_us, self._own_s, self._wait_s = wall_us, own_s, wait_s
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}
        """By name; only of claims that are there."""
        self._kept: list[ClaimFact] | None = None
        """While the claims' lock is held: what stood there when it was taken, but for what is being dropped."""

    def live(self, manifest: Manifest) -> tuple[HoldRecord, ...]:
        """Return the claims that count now, in the form of holds; one that cannot be read needs every record.

        Within `shut` that is exact. Outside it says what a preview needs: the next moment may bring another claim. An
        event says of each claim once that it cannot be read, or was written after what the clock says now.
        """
        facts = self._kept
        return tuple(
            HoldRecord(name=f.name, first_lsn=f.needed_lsn, lease_until_us=f.lease_until_us or 0)
            for f in (self._look(manifest) if facts is None else facts)
            if f.counts
        )

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Have the claims' lock in this block, so that none is written until the manifest is replaced.

        Needs the lock of the leftovers held; a block within a block does nothing. After it, claims whose lease is over,
        and such as a hard cap has passed, are removed. StorageError (ETIMEDOUT) where the lock is not to be had.
        """
        if self._kept is not None:
            yield
            return
        with claims_locked(self._storage, self._wait_s):
            self._kept = found = self._look(self._manifest_store.current)
            try:
                yield
            finally:
                self._kept = None
            self._remove([f for f in found if f.state in ("expired", "passed")])

    @contextmanager
    def dropping(self, names: Collection[str]) -> Iterator[None]:
        """Drop claims, within `shut`: the manifest that is published in this block no longer has to keep to them.

        Their files go after it, with an event each; where the block fails they stand as before. A crash in between
        leaves files that the low watermark has passed: they count no more.
        """
        before = self._kept
        assert before is not None, "claims are dropped under their lock"
        lost = [f for f in before if f.name in names]
        self._kept = [f for f in before if f.name not in names]
        try:
            yield
        except BaseException:
            self._kept = before
            raise
        self._remove(lost)

    def _remove(self, facts: list[ClaimFact]) -> None:
        """Remove the files of claims that are over, or were dropped, with an event each.

        A failure is an event, too, and no error: what was published stands, and the next block removes them.
        """
        oldest = self._manifest_store.current.low_watermark + 1
        for fact in facts:
            about = {"name": fact.name, "first_lsn": fact.first_lsn, "oldest": oldest, "owner": fact.owner}
            if fact.state == "expired":
                self._events.emit("walkit.claim.expire", **about)
            else:
                self._events.emit("walkit.claim.drop", **about)
        try:
            remove_claims(self._storage, [f.name for f in facts])
        except StorageError as error:
            self._events.emit("walkit.upkeep.fail", job="claims", error=str(error))

    def _look(self, manifest: Manifest) -> list[ClaimFact]:
        """Read the claims, and judge them by both clocks."""
        now_us, now_s = self._wall_us(), self._own_s()
        facts = claim_facts(self._storage, manifest, now_us)
        with self._lock:
            judged, new = self._judged(facts, now_s)
        for fact in new:  # a callback may look, too
            self._report(fact, now_us)
        return judged

    def _judged(self, facts: list[ClaimFact], now_s: float) -> tuple[list[ClaimFact], list[ClaimFact]]:
        """Return the claims, judged by this process's clock too, and those of them that are new or have changed."""
        known, self._seen = self._seen, {}
        judged, new = [], []
        for fact in facts:
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
        """Send the event of a claim that is seen for the first time, where it is not as it should be."""
        if fact.mark is None:
            self._events.emit("walkit.claim.damage", name=fact.name, error=fact.fault)
        elif fact.state == "live" and fact.mark.written_us > now_us:
            ahead_s = (fact.mark.written_us - now_us) / 1e6
            self._events.emit("walkit.claim.clock", name=fact.name, ahead_s=ahead_s)
