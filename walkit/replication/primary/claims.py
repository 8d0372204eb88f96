"""The claims of a primary's replicas: each keeps the records that its replica has not acknowledged (FORMAT.md F-18).

A claim is written with a sync, so no session waits for one: a thread of the primary writes them all, each a few
times a minute. Its LSN is at most the acknowledged one: a claim may be lower, never higher.
"""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from walkit._internal.arguments import refuse
from walkit._internal.locks import WORK, alone, once
from walkit._internal.threads import LogThread, WakeEvent
from walkit.errors import ClaimError, DivergenceError, GapError, OptionsError, WalkitError
from walkit.events import EventSink
from walkit.format.manifest import LogEnd
from walkit.read.claim import LEASE_S_DEFAULT, lease_us_of, oldest_lsn
from walkit.read.kept_claim import KeptClaim
from walkit.segments.consumer_files import LOCK_WAIT_S, claim_facts, stored_claim
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage

MOVE_S = 5.0
"""Seconds between two writes of a claim; less only for a short lease."""
LEASE_S_MIN = 1.0
LOCK_S = 2.0
"""How long the thread waits for the claims' lock each time: it tries again, and other claims wait meanwhile."""


def check_lease(lease_s: float) -> float:
    """Return a lease that a primary can keep renewed, in seconds; OptionsError for another."""
    if lease_us_of(lease_s) < LEASE_S_MIN * 1e6:
        refuse("lease_s", lease_s, f"a primary renews a lease of at least {LEASE_S_MIN:g} s")
    return float(lease_s)


def replicas_with_claims(storage: Storage) -> frozenset[str]:
    """Return the keys of the replicas whose claim on this log counts now; empty if its folder cannot be read."""
    try:
        facts = claim_facts(storage, load_manifest(storage))
    except WalkitError:
        return frozenset()
    return frozenset(
        f.name for f in facts if f.counts and f.name == (f.owner or f.name) and len(f.name) == 32
    )


def acked_before(storage: Storage, key: str, log_id: int) -> LogEnd:
    """Return how far the replica with this key has acknowledged, by its claim; the empty end without one."""
    with suppress(WalkitError):  # damaged: it keeps everything until the next writing
        stored = stored_claim(storage, key)
        if stored is not None and (stored.owner.hex(), stored.log_id) == (key, log_id):
            return stored.acked
    return LogEnd()


@dataclass(slots=True)
class _Entry:
    """The records that one replica needs, and the claim that keeps them."""

    kept: KeptClaim
    wanted: int
    epoch_id: int | None
    """Of the record before; None if all that there is is kept, for a bootstrap."""
    on_loss: Callable[[WalkitError], object] | None
    """Ends the session; None after its end."""


class ReplicaClaims:
    """Writes the claims of a primary's replicas, on a thread of its own. Safe from any thread.

    `keep` sets the records that a replica needs. `leave` ends its session: its claim is written once more and remains
    until its lease is over. A failed write is tried again; `trouble` and an event have the reason for a missing claim.
    """

    def __init__(self, storage: Storage, events: EventSink, lease_s: float = LEASE_S_DEFAULT) -> None:
        self.lease_s = lease_s
        self._storage, self._events = storage, events
        self._period_s = min(MOVE_S, lease_s / 4)
        self._lock = threading.RLock()
        self._writing = threading.Lock()
        """Held while a claim is written, so that one of a session that has ended is not written over a newer one."""
        self._entries: dict[str, _Entry] = {}
        self._wake = WakeEvent()
        self._stopping = False
        self._thread: LogThread | None = None

    # -- any thread

    def start(self) -> None:
        """Begin to write claims."""
        self._stopping = False
        thread = LogThread(target=self._run, name="walkit-publisher-claims", daemon=True)
        thread.start()
        self._thread = thread  # only now: `stop` cannot wait for one that never began

    def stop(self) -> None:
        """Write the wanted claims once more, and end. To be called when no session is left.

        If the claims' lock is taken the claims stay as they are, without a wait for each.
        """
        self._stopping = True
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def keep(
        self, key: str, name: str, acked: LogEnd, epoch_id: int, on_loss: Callable[[WalkitError], object]
    ) -> None:
        """Keep the records after the acknowledged end of the replica with this key, from soon on.

        `name` is its label, `epoch_id` the epoch of the last record before. `on_loss` is called on another thread, at
        most once, with the error that ends its claim.
        """
        first_lsn = acked.last_lsn + 1
        with once(self._lock), self._lock:
            if key not in self._entries:
                self._entries[key] = _Entry(self._kept(key, LOCK_S), first_lsn, epoch_id, on_loss)
            entry = self._entries[key]
            entry.wanted, entry.epoch_id, entry.on_loss = first_lsn, epoch_id, on_loss
            entry.kept.label, entry.kept.acked = name, acked
        if entry.kept.is_time(first_lsn):
            self._wake.set()

    def take_all(self, key: str, name: str, on_loss: Callable[[WalkitError], object]) -> None:
        """Keep all records that there are for the replica with this id; in force on return.

        For a replica that fetches its log, by the session's own thread. Compacted segments count as they are.
        Raises the errors of `walkit.claim`, as a GapError if a trim comes in between, but nothing if the log's folder
        is read-only.
        """
        with self._events.held(), alone(WORK), self._writing:
            with once(self._lock), self._lock:
                self._entries.pop(key, None)  # of a session that has ended
            # The wait for a session's first claim is longer: a session needs it.
            kept = self._kept(key, LOCK_WAIT_S)
            kept.label = name
            first_lsn = oldest_lsn(load_manifest(self._storage), complete=False)
            kept.take(first_lsn)
            if kept.trouble:
                self._report(key, first_lsn, kept)
            with once(self._lock), self._lock:
                self._entries[key] = _Entry(kept, first_lsn, None, on_loss)

    def leave(self, key: str) -> None:
        """The session of this replica has ended."""
        with once(self._lock), self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                entry.on_loss = None
        self._wake.set()

    def held_from(self, key: str) -> int | None:
        """Return the first LSN that the claim of this replica keeps; None without one."""
        return entry.kept.first_lsn if (entry := self._entries.get(key)) else None

    @property
    def trouble(self) -> str:
        """Why a served replica has no claim, or one that does not move; "" if all have theirs."""
        with once(self._lock), self._lock:
            return next((e.kept.trouble for e in self._entries.values() if e.kept.trouble), "")

    # -- the thread

    def _run(self) -> None:
        while True:
            self._wake.clear()
            stopping = self._stopping
            with once(self._lock), self._lock:
                entries = list(self._entries.items())
            for key, entry in entries:
                with self._events.held(), alone(WORK), self._writing:
                    is_free = self._write(key, entry, last=stopping)
                if stopping and not is_free:
                    break
            if stopping:
                return
            self._wake.wait(self._period_s)

    def _write(self, key: str, entry: _Entry, *, last: bool) -> bool:
        """Write one claim, if it is time; False if the claims' lock is taken. Needs `_writing` held."""
        with once(self._lock), self._lock:
            if self._entries.get(key) is not entry:  # a newer session has claimed meanwhile
                return True
            wanted, epoch_id, ended = entry.wanted, entry.epoch_id, entry.on_loss is None
            complete = epoch_id is not None
        kept, lost = entry.kept, None
        before = kept.trouble
        try:
            kept.keep(wanted, now=last or ended, epoch_id=epoch_id, complete=complete)
        except WalkitError as error:
            lost = error if self._is_loss(error) else None
        with once(self._lock), self._lock:
            on_loss = entry.on_loss
            if (ended and on_loss is None) or lost is not None:
                self._entries.pop(key, None)
        if on_loss is not None:
            if kept.trouble and not before:
                self._report(key, wanted, kept)
            if lost is not None:
                on_loss(lost)
        return kept.errno != errno.ETIMEDOUT

    def _report(self, key: str, first_lsn: int, kept: KeptClaim) -> None:
        self._events.emit("walkit.replica.unclaimed", id=key, first_lsn=first_lsn, error=kept.trouble)

    def _kept(self, key: str, wait_s: float) -> KeptClaim:
        events = self._events.pass_on
        return KeptClaim(
            self._storage,
            key,
            self.lease_s,
            uuid.UUID(hex=key),
            move_s=self._period_s,
            wait_s=wait_s,
            events=events,
        )

    @staticmethod
    def _is_loss(error: WalkitError) -> bool:
        """Return whether the session has to end: its records are gone or cut, or another session has its claim."""
        taken = isinstance(error, ClaimError) and error.reason == "taken"
        return taken or isinstance(error, GapError | DivergenceError | OptionsError)
