"""Who may still append to a store with a journal: a record whose slot is free of what no checkpoint has saved.

Admission is arithmetic over three numbers: the LSNs that may be given by now, the newest checkpoint, the slots. It is
asked before anything is queued, so that what is refused was never written. It stands between the log and its commit
driver, where every way of appending passes; checkpoints do not pass there, and can never wait for it.

With a margin a thread takes a checkpoint before the journal is full, and nobody notices. Where appends are faster, or a
checkpoint fails, they wait for one that ends well, as they wait for room in the queue, or are refused.
"""

from __future__ import annotations

import threading
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable
from threading import get_ident
from typing import Any

from walkit.commit.batch import BatchTicket
from walkit.commit.commit_signal import News
from walkit.commit.driver import CommitDriver
from walkit.commit.ticket import SingleTicket
from walkit.errors import JournalFullError, LogClosedError, OptionsError
from walkit.log.engine import LogEngine
from walkit.record import AppendResult


class Admission:
    """The commit driver of a log whose store has a journal: the same, and it lets in what has a slot.

    `margin` is how many slots are left when a checkpoint is forced; 0: none is, and a full journal refuses.
    """

    def __init__(self, engine: LogEngine, slots: int, margin: int, checkpoint_lsn: int) -> None:
        self.slots, self.margin = slots, margin
        self.checkpoint_lsn = checkpoint_lsn
        """LSN of the newest snapshot that is on stable storage."""
        self.demand: Callable[[], object] | None = None
        """Asks the thread that takes checkpoints for one; None where there is no such thread."""
        self._engine = engine
        self._driver: CommitDriver = engine.driver
        self._lock = threading.Lock()
        self._news = News(self._lock)
        self._reserved_lsn = engine.core.appended_lsn
        """No LSN above it is given to what was let in by now. Too high after a refusal, until room is looked for."""
        self._entering: dict[int, int] = {}
        """Records by thread that were let in, and perhaps have not reached the queue."""
        self._wanting: dict[int, int] = {}
        """Records by thread that found no room."""
        self._failures = 0
        self._failure: BaseException | None = None
        """What the last checkpoint failed with; None where it did well."""
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    # -- ways in: those of the driver

    def append(self, ticket: SingleTicket) -> bool:
        """See CommitDriver; False also where the journal has no room, and there may be some soon."""
        if not self._admit(ticket.count):
            return False
        try:
            return self._driver.append(ticket)
        finally:
            self._entering.pop(get_ident(), None)

    def append_put(self, key: bytes | None, value: bytes) -> AppendResult | None:
        """See CommitDriver; None also where the journal has no room, and there may be some soon."""
        if not self._admit(1):
            return None
        try:
            return self._driver.append_put(key, value)
        finally:
            self._entering.pop(get_ident(), None)

    def enqueue(self, ticket: SingleTicket) -> bool:
        """See CommitDriver; False also where the journal has no room, and there may be some soon."""
        if not self._admit(ticket.count):
            return False
        try:
            return self._driver.enqueue(ticket)
        finally:
            self._entering.pop(get_ident(), None)

    def enqueue_put(
        self, key: bytes | None, value: bytes, ticket: BatchTicket
    ) -> BatchTicket | SingleTicket | None:
        """See CommitDriver; None also where the journal has no room, and there may be some soon."""
        if not self._admit(1):
            return None
        try:
            return self._driver.enqueue_put(key, value, ticket)
        finally:
            self._entering.pop(get_ident(), None)

    def enqueue_awaited(self, key: bytes | None, value: bytes) -> Awaitable[AppendResult] | None:
        """See CommitDriver; None also where the journal has no room, and there may be some soon."""
        if not self._admit(1):
            return None
        try:
            return self._driver.enqueue_awaited(key, value)
        finally:
            self._entering.pop(get_ident(), None)

    def wait_for_room(self, size_bytes: int, timeout: float | None) -> bool:
        """Wait until there may be room; JournalFullError where no checkpoint makes any in time, or it fails."""
        count = self._wanting.pop(get_ident(), 0)
        if not count:
            return self._driver.wait_for_room(size_bytes, timeout)
        with self._lock:
            seen = self._failures
        self._demand()
        moved = self._news.wait_for(
            lambda: self._over() or self._failures != seen or self._has_room(count), timeout
        )
        with self._lock:
            # Where there was room and somebody was quicker, the caller asks again, and waits for the next checkpoint.
            if self._over() or (moved and self._failures == seen) or self._has_room(count):
                return True
        raise self._refusal(count)

    def on_room(self, callback: Callable[[], object]) -> None:
        """Call back once when there may be room; from any thread: it must only wake something."""
        count = self._wanting.pop(get_ident(), 0)
        if not count:
            self._driver.on_room(callback)
            return
        with self._lock:
            waits = not (self._over() or self._has_room(count))
            if waits:
                self._news.call_next_locked(callback)
        if waits:
            self._demand()
        else:
            callback()

    def _admit(self, count: int) -> bool:
        """Reserve LSNs; False where the caller may wait for them. Takes no lock of a log that refuses everything."""
        if self._driver.refusal is not None:
            return True  # the driver says why
        with self._lock:
            if self._reserved_lsn + count <= self.checkpoint_lsn + self.slots or self._has_room(count):
                self._reserved_lsn += count
                self._entering[get_ident()] = count
                return True
            refuse = self._refuses_at_once(count)
        if self._ended:
            raise LogClosedError(f"the log at {self._engine.storage.location} is closed")
        if refuse:
            if count <= self.slots:
                self._demand()
            raise self._refusal(count)
        self._wanting[get_ident()] = count
        return False

    def _refuses_at_once(self, count: int) -> bool:
        """Say whether nobody waits: no checkpoint comes by itself, or the caller is one that must not wait."""
        if count > self.slots or self.demand is None:
            return True
        if _on_event_loop():
            return self._failure is not None
        return (
            self._engine.options.on_full == "raise"
            or self._engine.events.is_calling
            or threading.current_thread().name.startswith("walkit-")
        )

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
        if self._engine.closed:
            raise LogClosedError(f"the log at {self._engine.storage.location} is closed")
        with self._lock:
            self._tighten()
            return max(self.checkpoint_lsn + self.slots - self._reserved_lsn, 0)

    def _has_room(self, count: int) -> bool:
        """Ask again after letting go of what was reserved and never used; needs the lock held."""
        self._tighten()
        return self._reserved_lsn + count <= self.checkpoint_lsn + self.slots

    def _tighten(self) -> None:
        """Bring the reservation down to what is queued, and what others of this moment may queue."""
        core, mine = self._engine.core, get_ident()
        # Before the queue: what enters it meanwhile counts twice, and not never.
        entering = sum(count for thread, count in self._entering.copy().items() if thread != mine)
        with self._driver._lock:
            # A frame may be sealed meanwhile: first its LSNs are given, then it is no longer counted as taken.
            appended = core.appended_lsn
            queued = core.queued_lsn
            while core.appended_lsn != appended:
                appended = core.appended_lsn
                queued = core.queued_lsn
        self._reserved_lsn = min(self._reserved_lsn, queued + entering)

    # -- checkpoints

    def _demand(self) -> None:
        if self.demand is not None:
            self.demand()

    def saved(self, lsn: int) -> None:
        """A snapshot at this LSN is on stable storage: the slots up to it are free."""
        with self._lock:
            self.checkpoint_lsn = max(self.checkpoint_lsn, lsn)
            self._failure = None
            callbacks = self._news.tell_locked()
        _call_all(callbacks)

    def failed(self, error: BaseException) -> None:
        """A checkpoint that was taken by itself failed: who waits and has no room is refused."""
        with self._lock:
            self._failures += 1
            self._failure = error
            callbacks = self._news.tell_locked()
        _call_all(callbacks)

    def end(self) -> None:
        """No checkpoint comes any more: nobody waits."""
        with self._lock:
            self._ended = True
            callbacks = self._news.tell_locked()
        _call_all(callbacks)

    def _over(self) -> bool:
        return self._ended or self._driver.refusal is not None


def _call_all(callbacks: list[Callable[[], object]]) -> None:
    for callback in callbacks:
        callback()


def _on_event_loop() -> bool:
    try:
        get_running_loop()
    except RuntimeError:
        return False
    return True
