"""Reads of a page that take a moment: done on a worker thread, applied on the page's own. No panel in here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from walkit.views.jobs import Job, Jobs

Apply: TypeAlias = Callable[[], None]
"""Shows what was read; called by the page's thread."""


class Looking:
    """One read at a time, the newest that was asked for: an older one that has not ended is cancelled.

    Used by the page's thread, but for `done`, which the worker calls when there is something to take.
    """

    def __init__(self, jobs: Jobs, done: Callable[[], None] = lambda: None) -> None:
        self._jobs, self._done = jobs, done
        self._wanted: tuple[str, Callable[[Job], Apply]] | None = None
        self._job: Job | None = None
        self._found: deque[Apply] = deque(maxlen=1)
        self.problem: str | None = None
        """What went wrong with the newest read, as a sentence."""

    @property
    def busy(self) -> bool:
        """Whether a read is under way or waits for its turn."""
        return self._wanted is not None or self._job is not None

    @property
    def job(self) -> Job | None:
        """The read that is under way."""
        return self._job

    @property
    def words(self) -> str:
        """What is being read at the moment, as a sentence; "" where nothing is."""
        job = self._job
        return "" if job is None or job.ended else f"{str(job)[:1].upper()}{str(job)[1:]}."

    def ask(self, title: str, read: Callable[[Job], Apply]) -> None:
        """Read as soon as the worker is free; `read(job)` returns what shows it."""
        self._wanted, self.problem = (title, read), None
        if self._job is not None:
            self._job.cancel()
        self.take()

    def cancel(self) -> None:
        """Give up what is being read."""
        self._wanted = None
        if self._job is not None:
            self._job.cancel()

    def take(self) -> bool:
        """Show what was read since the last call; False where there is nothing new. Never waits."""
        job, new = self._job, False
        if job is not None:
            if not job.ended:
                return False
            self._job, new = None, True
            found = self._found.popleft() if self._found else None
            if self._wanted is None:
                self.problem = job.problem
                if found is not None:
                    found()
        if self._wanted is not None and self._job is None and self._jobs.current is None:
            title, read = self._wanted

            def work(running: Job) -> None:
                try:
                    self._found.append(read(running))
                finally:
                    self._done()

            self._job = self._jobs.start(title, work)
            self._wanted = None if self._job is not None else self._wanted
        self._check()
        return new

    def _check(self) -> None:
        """Assert what holds between two calls, on the page's thread."""
        assert self._job is not None or not self._found, (
            "what was read is of no read, and would be shown later"
        )
        if self._wanted is not None and self._job is not None:
            assert self._job.cancelled, "a newer read waits for one that nothing ends"
