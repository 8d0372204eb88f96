"""The device worker: a thread that calls the device for threads that must not hang with it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from walkit._interrupts import uninterrupted
from walkit._locks import once
from walkit._threads import LogThread
from walkit.commit.ticket import new_latch, open_latch


class DeviceWorker:
    """Does jobs one after the other on a thread of its own, which starts with the first. Safe from any thread."""

    def __init__(
        self, name: str, broken: Callable[[BaseException], object], serving: set[int] | None = None
    ) -> None:
        """`broken` is called with an error that a job raised all the same, and raises nothing.

        `serving` gets the thread's number while it runs.
        """
        self._name = name
        self._serving: set[int] = set() if serving is None else serving
        self._broken = broken
        self._guard = threading.RLock()
        self._bell = new_latch()
        """A latch and not an Event, whose lock an interrupt of the main thread could leave locked."""
        self._jobs: deque[tuple[str, Callable[[], object]]] = deque()
        self._doing = ""
        self._closing = False
        self._thread: LogThread | None = None

    @property
    def is_current(self) -> bool:
        """Whether the caller is the device worker itself."""
        return self._thread is threading.current_thread()

    def do(self, name: str, job: Callable[[], object]) -> bool:
        """Queue a job, which raises nothing; False once it is closed: then it is never done.

        RuntimeError where the system has no thread to give: then it is not queued.
        """
        with once(self._guard), self._guard:
            if self._closing:
                return False
            if self._thread is None:
                thread = LogThread(target=self._run, name=f"walkit-device {self._name}", daemon=True)
                with uninterrupted():
                    thread.start()
                    self._thread = thread
            self._jobs.append((name, job))
            self._check()
        open_latch(self._bell)
        return True

    def do_once(self, name: str, job: Callable[[], object]) -> None:
        """Queue a job unless one of this name is queued or under way."""
        with once(self._guard), self._guard:
            if self._doing == name or any(queued == name for queued, _ in self._jobs):
                return
        self.do(name, job)

    def _run(self) -> None:
        thread = threading.get_ident()
        self._serving.add(thread)
        try:
            self._do_jobs()
        finally:
            self._serving.discard(thread)

    def _do_jobs(self) -> None:
        while True:
            with once(self._guard), self._guard:
                self._doing, job = self._jobs.popleft() if self._jobs else ("", None)
                if job is None and self._closing:
                    return
            if job is None:
                self._bell.acquire()
            else:
                try:
                    job()
                except BaseException as error:  # noqa: BLE001 - what comes later is waited for, too
                    self._broken(error)

    def _check(self) -> None:
        """Assert that a thread is there for what is queued or under way; needs the guard held."""
        assert self._thread is not None or not (self._jobs or self._doing), (
            "jobs wait, and no thread does them"
        )

    def close(self, timeout: float) -> bool:
        """Take no more, and end once what is queued has been done; False where that is not so after `timeout` s."""
        with once(self._guard), self._guard:
            self._closing = True
        open_latch(self._bell)
        if self._thread is None or self.is_current:
            return True
        self._thread.join(timeout)
        return self._thread.ended
