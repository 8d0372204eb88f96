"""The upkeep thread: work of a log that nobody waits for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from walkit.errors import WalkitError
from walkit.events import EventSink

_ORDER = {"seal": 0, "prepare": 1, "zero": 2}


class Upkeep:
    """Runs jobs one after the other on one thread, which starts with the first job; sealing goes before zeroing.

    A job that fails with a WalkitError is reported as an event and dropped: whoever needs its result does the work
    again, and is told the error then.
    """

    def __init__(self, name: str, events: EventSink) -> None:
        self._name = name
        self._events = events
        self._condition = threading.Condition()
        self._jobs: dict[str, deque[Callable[[], None]]] = {kind: deque() for kind in _ORDER}
        self._thread: threading.Thread | None = None
        self._closing = False
        self._busy = False

    def submit(self, kind: str, job: Callable[[], None]) -> None:
        """Queue a job of kind "seal", "prepare" or "zero". Dropped once the log closes."""
        with self._condition:
            if self._closing:
                return
            self._jobs[kind].append(job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"walkit-upkeep {self._name}", daemon=True
                )
                self._thread.start()
            self._condition.notify_all()

    def _take(self) -> tuple[str, Callable[[], None]] | None:
        for kind in _ORDER:
            if self._jobs[kind]:
                return kind, self._jobs[kind].popleft()
        return None

    def _run(self) -> None:
        while True:
            with self._condition:
                self._busy = False
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._closing or any(self._jobs.values()))
                if self._closing:
                    return
                taken = self._take()
                self._busy = taken is not None
            if taken is None:
                continue
            kind, job = taken
            try:
                job()
            except WalkitError as error:
                self._events.emit("walkit.upkeep.fail", job=kind, error=str(error))

    def drain(self) -> None:
        """Wait until all jobs queued so far, zeroing excepted, are done."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._closing or not (self._busy or self._jobs["seal"] or self._jobs["prepare"])
            )

    def close(self) -> None:
        """Finish the job under way, drop the rest, end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
