"""The maintenance thread of a log: work that no caller waits for."""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from walkit._internal.locks import marked, once
from walkit._internal.threads import LogThread
from walkit._main_thread import uninterrupted
from walkit.commit.latches import CommitSignal
from walkit.errors import CallbackError, StorageError, WalkitError
from walkit.events import EventSink

_ORDER = {"seal": 0, "prepare": 1, "renew": 2, "retain": 3, "zero": 4, "index": 5}
_WAITED_FOR = ("seal", "prepare", "retain")


@dataclass(slots=True)
class _Periodic:
    """A job that is done from time to time: how often, in seconds, and when it is due by the monotonic clock."""

    job: Callable[[], None]
    period_s: float
    due_s: float


class MaintenanceWorker:
    """Runs jobs one after the other on one thread, which starts with the first job; sealing goes before zeroing.

    A job that fails with a WalkitError is reported as an event and dropped: a caller that needs its result does the
    work again, and gets the error then. (A file with frames that has failed is reported to the log by its sync.) Any
    other error is unforeseen: the log gets it by `on_failure`, and the jobs that are left are done.
    """

    def __init__(self, name: str, events: EventSink, limit_ms: int | None = None) -> None:
        self._name = name
        self._events = events
        # Its lock guards all below but `steps`. Taken without the commit lock; no job runs under it.
        self._news = CommitSignal()
        self._jobs: dict[str, deque[Callable[[], None]]] = {kind: deque() for kind in _ORDER}
        self._thread: LogThread | None = None
        self._closing = False
        self._doing: str | None = None
        """Kind of the job under way."""
        self.steps = 0
        """Moves on with each answer of the device to a job, and to `close` of the log."""
        self._limit_ms = limit_ms
        self._periodic: dict[str, _Periodic] = {}
        """By kind."""
        self.on_failure: Callable[[BaseException], object] = lambda _: None
        """Called with an error other than a WalkitError; raises nothing."""

    def every(self, period_s: float, job: Callable[[], None], kind: str = "retain") -> None:
        """Do a job of this kind every so many seconds, once the thread has been started by another.

        There is one of each kind: it takes the place of the one before, and is due no later than that was.
        """
        with once(self._news.lock), self._news.lock:
            due_s, before = time.monotonic() + period_s, self._periodic.get(kind)
            if before is not None:
                due_s = min(due_s, before.due_s)
            self._periodic[kind] = _Periodic(job, period_s, due_s)

    def submit(self, kind: str, job: Callable[[], None]) -> None:
        """Queue a job of kind "seal", "prepare", "renew", "retain", "zero" or "index". Dropped once the log closes.

        One that waits already is not queued again.
        """
        with once(self._news.lock), self._news.lock:
            if self._closing:
                return
            if job not in self._jobs[kind]:
                self._jobs[kind].append(job)
            if self._thread is None:
                thread = LogThread(target=self._run, name=f"walkit-maintenance {self._name}", daemon=True)
                with uninterrupted():
                    thread.start()
                    self._thread = thread
            self._check_locked()
            self._news.notify_locked()

    def _queue_due(self) -> None:
        """Queue the periodic jobs that are due. Needs the lock held."""
        now_s = time.monotonic()
        for kind, periodic in self._periodic.items():
            if now_s >= periodic.due_s:
                periodic.due_s = now_s + periodic.period_s
                self._jobs[kind].append(periodic.job)

    def _take(self) -> tuple[str, Callable[[], None]] | None:
        for kind in _ORDER:
            if self._jobs[kind]:
                return kind, self._jobs[kind].popleft()
        return None

    def _run(self) -> None:
        while True:
            with once(self._news.lock), self._news.lock:
                self._doing = None
                self._news.notify_locked()
                due_s = min((p.due_s for p in self._periodic.values()), default=None)
            nap_s = None if due_s is None else max(due_s - time.monotonic(), 0)
            self._news.wait_for(lambda: self._closing or any(self._jobs.values()), nap_s)
            with once(self._news.lock), self._news.lock:
                if self._closing:
                    return
                self._queue_due()
                taken = self._take()
                self._doing = None if taken is None else taken[0]
                self._check_locked()
            if taken is None:
                continue
            self.steps += 1
            try:
                self._do(*taken)
            except BaseException as error:  # noqa: BLE001 - no job may end the thread: sealing would stop
                self.on_failure(error)

    def _do(self, kind: str, job: Callable[[], None]) -> None:
        try:
            job()
        except WalkitError as error:
            self._events.emit("walkit.maintenance.fail", job=kind, error=str(error))

    def _check(self) -> None:
        """Assert the invariants between two steps, from any thread; if no thread could be started, once one has."""
        with once(self._news.lock), self._news.lock:
            self._check_locked()

    def _check_locked(self) -> None:
        """See `_check`; needs the lock held."""
        assert self._jobs.keys() == _ORDER.keys() >= self._periodic.keys()
        assert self._doing is None or self._doing in _ORDER
        if self._thread is None:
            assert self._doing is None and not any(self._jobs.values()), "jobs wait, and no thread does them"

    @property
    def doing(self) -> str | None:
        """Kind of the job under way; None between jobs."""
        return self._doing

    @property
    def is_current(self) -> bool:
        """Whether this is the thread that does the jobs: it would wait for itself."""
        return self._thread is threading.current_thread()

    def refuse_current(self) -> None:
        """CallbackError on the thread itself: for callers that wait for its jobs, and hold a lock that one may need."""
        if self.is_current:
            raise CallbackError(
                "this thread does the log's maintenance, and would wait for itself: wait on another"
            )

    def drain(self) -> None:
        """Wait until all jobs queued so far, except zeroing and indexing, are done.

        On the thread itself it does not wait. StorageError (ETIMEDOUT) if none of them has moved for twice the
        limit: the device hangs.
        """
        if not self.is_current:  # a job, or a host's callback in one
            self._wait(_WAITED_FOR, None)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until no job of any kind is left, or the log closes; False after `timeout` seconds.

        StorageError as in `drain`. Not from the thread itself.
        """
        return self._wait(tuple(_ORDER), timeout)

    def _wait(self, kinds: tuple[str, ...], timeout: float | None) -> bool:
        """Wait until no job of these kinds is left; False after `timeout` seconds."""

        def is_done() -> bool:
            return self._closing or not (self._doing in kinds or any(self._jobs[kind] for kind in kinds))

        deadline = None if timeout is None else time.monotonic() + timeout
        limit_s = None if self._limit_ms is None else self._limit_ms / 1000
        steps = -1
        while True:
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0)
            nap_s = limit_s if left_s is None else left_s if limit_s is None else min(left_s, limit_s)
            if self._news.wait_for(is_done, nap_s):
                return True
            if left_s is not None and nap_s == left_s:
                return False
            if steps == self.steps:
                raise StorageError(
                    f"the device has not answered a maintenance job for {limit_s:g} s (write_timeout_ms)",
                    errno=errno.ETIMEDOUT,
                )
            steps = self.steps

    def close(self, timeout: float | None = None) -> None:
        """Finish the job under way, drop the rest, end the thread. May be called again if it was interrupted.

        After `timeout` seconds the thread is left to its job.
        """
        with marked(), self._news.lock:
            self._closing = True
            self._news.notify_locked()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
