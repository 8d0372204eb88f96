"""Admission to a store with a journal: a record enters if its slot holds nothing unsaved.

Admission is arithmetic over three numbers: the LSNs that may be given by now, the newest checkpoint, the slots. It is
asked before anything is queued, so refused records were never written. It is the gate of the log's commit path,
which every way of appending passes; checkpoints do not pass there, and can never wait for it.

With a margin a thread takes a checkpoint before the journal is full, and no writer waits. Where appends are faster, or
a checkpoint fails, they wait for one that ends well, as they wait for room in the queue, or are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident

from walkit._internal.locks import STATE, marked, once, refuse_holder
from walkit._internal.threads import on_event_loop, on_log_thread
from walkit.commit.latches import CommitSignal, call_all
from walkit.commit.ports import GatedQueue
from walkit.errors import CallbackError, JournalFullError, LogClosedError, OptionsError


class Admission:
    """The admission gate of a log whose store has a journal: it admits records that have a slot.

    `margin` is how many slots are left when a checkpoint is forced; 0: never, and a full journal refuses.
    """

    def __init__(self, slots: int, margin: int, *, refuses: bool) -> None:
        """With `refuses` a full journal refuses at once, even if a checkpoint would make room soon."""
        self.slots, self.margin = slots, margin
        self.records_max = max(slots // 4, 1)
        # Only grows. Written by the thread that takes checkpoints, under `_lock`; read without it: an older value
        # refuses more.
        self.checkpoint_lsn = 0
        """LSN of the newest snapshot that is on stable storage."""
        self.demand: Callable[[], object] | None = None
        """Requests a checkpoint from the thread that takes them; None without such a thread."""
        self._refuses = refuses
        self._queue: GatedQueue
        # Guards all below. Taken before the commit lock, which `queued_lsn` takes; never under it.
        self._lock = threading.RLock()
        self._news = CommitSignal(self._lock)
        self._reserved_lsn = 0
        """No admitted record gets an LSN above it. Too high after a refusal, until room is looked for."""
        self._entering: dict[int, int] = {}
        """Records by thread that were let in, and perhaps have not reached the queue."""
        self._wanting: dict[int, int] = {}
        """Records by thread that found no room."""
        self._failures = 0
        self._failure: BaseException | None = None
        """The error of the last checkpoint; None if it succeeded."""
        self._ended = False

    def attach(self, queue: GatedQueue) -> None:
        """See AdmissionGate."""
        self._queue = queue
        self._reserved_lsn = queue.queued_lsn()

    def begin(self, checkpoint_lsn: int) -> None:
        """Let records in, after a snapshot at this LSN."""
        self.checkpoint_lsn = checkpoint_lsn

    # -- asked by the ways in

    def admit(self, count: int) -> bool:
        """See AdmissionGate. Takes no lock of a log that refuses everything."""
        if self._queue.refusal is not None:
            return True  # the driver raises the reason
        refuse_holder()
        with once(self._lock), self._lock:
            if self._reserved_lsn + count <= self.checkpoint_lsn + self.slots or self._has_room(count):
                self._reserved_lsn += count
                self._entering[get_ident()] = count
                return True
            refuse = self._refuses_at_once(count)
        if self._ended:
            raise LogClosedError
        if refuse:
            if count <= self.slots:
                self._demand()
            raise self._refusal(count)
        self._wanting[get_ident()] = count
        return False

    def entered(self) -> None:
        """See AdmissionGate."""
        self._entering.pop(get_ident(), None)

    def wait(self, timeout: float | None) -> bool:
        """See AdmissionGate. JournalFullError if no checkpoint makes room in time, or it fails."""
        count = self._wanting.pop(get_ident(), 0)
        if not count:
            return False
        with once(self._lock), self._lock:
            seen = self._failures
        self._demand()
        moved = self._news.wait_for(
            lambda: self._over() or self._failures != seen or self._has_room(count), timeout
        )
        with once(self._lock), self._lock:
            # Where there was room and another caller took it, this one asks again, and waits for the next checkpoint.
            if self._over() or (moved and self._failures == seen) or self._has_room(count):
                return True
        raise self._refusal(count)

    def on_space(self, callback: Callable[[], object]) -> bool:
        """See AdmissionGate."""
        count = self._wanting.pop(get_ident(), 0)
        if not count:
            return False
        with once(self._lock), self._lock:
            waits = not (self._over() or self._has_room(count))
            if waits:
                self._news.call_next_locked(callback)
        if waits:
            self._demand()
        else:
            callback()
        return True

    def _refuses_at_once(self, count: int) -> bool:
        """Return whether no wait is possible: no checkpoint comes by itself, or the caller must not wait."""
        if count > self.slots or self.demand is None:
            return True
        if on_event_loop():
            return self._failure is not None
        if marked(STATE)._is_owned():
            raise CallbackError  # its wait would need this thread's lock
        return self._refuses or self._queue.events.is_calling or on_log_thread()

    def _refusal(self, count: int) -> Exception:
        if count > self.slots:
            return OptionsError(
                f"{count:,} records that stay together, and journal_slots={self.slots:,}: they never fit. Nothing was "
                "written; write fewer at once, or open the store with more slots",
                option="journal_slots",
                wanted=count,
                stored=self.slots,
            )
        error = JournalFullError(self.slots, self.checkpoint_lsn, failed=str(self._failure or ""))
        error.__cause__ = self._failure
        return error

    # -- arithmetic

    def remaining(self) -> int:
        """Return how many records may still be let in."""
        if self._ended or isinstance(self._queue.refusal, LogClosedError):
            raise LogClosedError
        return self.room()

    def room(self) -> int:
        """Return how many records may still be let in, also of a log that is being closed."""
        with once(self._lock), self._lock:
            self._tighten()
            return max(self.checkpoint_lsn + self.slots - self._reserved_lsn, 0)

    def _has_room(self, count: int) -> bool:
        """Look again after releasing unused reservations; needs the lock held."""
        self._tighten()
        return self._reserved_lsn + count <= self.checkpoint_lsn + self.slots

    def _tighten(self) -> None:
        """Reduce the reservation to the queued records, and those that others may queue at this moment."""
        mine = get_ident()
        # Before the queue: a record that enters meanwhile counts twice, never zero times.
        entering = sum(count for thread, count in self._entering.copy().items() if thread != mine)
        self._reserved_lsn = min(self._reserved_lsn, self._queue.queued_lsn() + entering)

    # -- checkpoints

    def _demand(self) -> None:
        if self.demand is not None:
            self.demand()

    def saved(self, lsn: int) -> None:
        """A snapshot at this LSN is on stable storage: the slots up to it are free."""
        with once(self._lock), self._lock:
            self.checkpoint_lsn = max(self.checkpoint_lsn, lsn)
            self._failure = None
            self._check()
            callbacks = self._news.notify_locked()
        call_all(callbacks)

    def failed(self, error: BaseException) -> None:
        """A checkpoint that was taken by itself failed: refuse the waiting appends that have no room."""
        with once(self._lock), self._lock:
            self._failures += 1
            self._failure = error
            self._check()
            callbacks = self._news.notify_locked()
        call_all(callbacks)

    def end(self) -> None:
        """No checkpoint comes from now on: refuse the waiting appends."""
        with once(self._lock), self._lock:
            self._ended = True
            callbacks = self._news.notify_locked()
        call_all(callbacks)

    def _over(self) -> bool:
        return self._ended or self._queue.refusal is not None

    def _check(self) -> None:
        """Assert the invariants between two checkpoints; needs the lock held. The rest holds of one thread alone."""
        assert 0 <= self.checkpoint_lsn <= self._queue.queued_lsn(), "a checkpoint is newer than the log"
        assert self._reserved_lsn >= 0 and self._failures >= (self._failure is not None)
        assert min((*self._entering.copy().values(), *self._wanting.copy().values()), default=1) > 0
