"""The upkeep thread: work of a log that nobody waits for."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable

from walkit.commit.interrupts import uninterrupted
from walkit.commit.news import News
from walkit.errors import StorageError, WalkitError
from walkit.events import EventSink
from walkit.threads import EndingThread

_ORDER = {"seal": 0, "prepare": 1, "retain": 2, "zero": 3, "index": 4}
_WAITED_FOR = ("seal", "prepare", "retain")


class Upkeep:
    """Runs jobs one after the other on one thread, which starts with the first job; sealing goes before zeroing.

    A job that fails with a WalkitError is reported as an event and dropped: whoever needs its result does the work
    again, and is told the error then. (That a file with frames has failed is told to the log by who syncs it.) Any
    other error is one that nobody has thought of: the log is told by `broken`, and the jobs that are left are done.
    """

    def __init__(self, name: str, events: EventSink, limit_ms: int | None = None) -> None:
        self._name = name
        self._events = events
        self._news = News()
        self._jobs: dict[str, deque[Callable[[], None]]] = {kind: deque() for kind in _ORDER}
        self._thread: EndingThread | None = None
        self._closing = False
        self._busy = False
        self.steps = 0
        """Moves on with each answer of the device to a job, and to who closes the log."""
        self._limit_ms = limit_ms
        self._period_s: float | None = None
        self._periodic: Callable[[], None] | None = None
        self.broken: Callable[[BaseException], object] = lambda _: None
        """Called with an error that is no WalkitError; raises nothing."""

    def every(self, period_s: float, job: Callable[[], None]) -> None:
        """Do a job of kind "retain" every so many seconds, once the thread has been started by another."""
        self._period_s, self._periodic = period_s, job

    def submit(self, kind: str, job: Callable[[], None]) -> None:
        """Queue a job of kind "seal", "prepare", "retain", "zero" or "index". Dropped once the log closes."""
        with self._news.lock:
            if self._closing:
                return
            self._jobs[kind].append(job)
            if self._thread is None:
                thread = EndingThread(target=self._run, name=f"walkit-upkeep {self._name}", daemon=True)
                with uninterrupted():
                    thread.start()
                    self._thread = thread
            self._news.tell_locked()

    def _take(self) -> tuple[str, Callable[[], None]] | None:
        for kind in _ORDER:
            if self._jobs[kind]:
                return kind, self._jobs[kind].popleft()
        return None

    def _run(self) -> None:
        while True:
            with self._news.lock:
                self._busy = False
                self._news.tell_locked()
            woken = self._news.wait_for(lambda: self._closing or any(self._jobs.values()), self._period_s)
            with self._news.lock:
                if self._closing:
                    return
                if not woken and self._periodic is not None:
                    self._jobs["retain"].append(self._periodic)
                taken = self._take()
                self._busy = taken is not None and taken[0] in _WAITED_FOR
            if taken is None:
                continue
            self.steps += 1
            try:
                self._do(*taken)
            except BaseException as error:  # noqa: BLE001 - no job may end the thread: nothing would be sealed any more
                self.broken(error)

    def _do(self, kind: str, job: Callable[[], None]) -> None:
        try:
            job()
        except WalkitError as error:
            self._events.emit("walkit.upkeep.fail", job=kind, error=str(error))

    def drain(self) -> None:
        """Wait until all jobs queued so far, but for zeroing and indexing, are done.

        On the thread itself it does not wait. StorageError (ETIMEDOUT) where none of them has moved for twice the
        limit: the device hangs.
        """
        if self._thread is threading.current_thread():
            return  # a job, or a host's callback in one: it would wait for itself
        limit_s = None if self._limit_ms is None else self._limit_ms / 1000
        steps = -1
        while not self._news.wait_for(self._is_done, limit_s):
            if steps == self.steps:
                raise StorageError(
                    f"the device has not answered an upkeep job for {limit_s:g} s (write_timeout_ms)",
                    errno=errno.ETIMEDOUT,
                )
            steps = self.steps

    def _is_done(self) -> bool:
        waiting = any(self._jobs[kind] for kind in _WAITED_FOR)
        return self._closing or not (self._busy or waiting)

    def close(self) -> None:
        """Finish the job under way, drop the rest, end the thread. May be called again where it was interrupted."""
        with self._news.lock:
            self._closing = True
            self._news.tell_locked()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
