"""Long work off the page's thread: one job at a time, with progress, a way to cancel it, and its error."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from walkit.errors import WalkitError

Apply: TypeAlias = Callable[[], None]
"""Shows the read data; called by the page's thread."""


class Looking:
    """One read at a time, the newest that was asked for: an older one that has not ended is cancelled.

    Used by the page's thread, except `done`, which the worker calls when a result is ready.
    """

    def __init__(self, jobs: Jobs, done: Callable[[], None] = lambda: None) -> None:
        self._jobs, self._done = jobs, done
        self._wanted: tuple[str, Callable[[Job], Apply]] | None = None
        self._job: Job | None = None
        self._found: deque[Apply] = deque(maxlen=1)
        self.problem: str | None = None
        """The error of the newest read, as a sentence."""

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
        """The read under way, as a sentence; "" without one."""
        job = self._job
        return "" if job is None or job.ended else f"{sentence(job)}."

    def request(self, title: str, read: Callable[[Job], Apply]) -> None:
        """Read as soon as the worker is free; `read(job)` returns a function that shows it."""
        self._wanted, self.problem = (title, read), None
        if self._job is not None:
            self._job.cancel()
        self.take()

    def cancel(self) -> None:
        """Cancel the read under way."""
        self._wanted = None
        if self._job is not None:
            self._job.cancel()

    def take(self) -> bool:
        """Show the results since the last call; False if there is nothing new. Never waits."""
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
        """Assert the invariants between two calls, on the page's thread."""
        assert self._job is not None or not self._found, (
            "a result belongs to no read, and would be shown later"
        )
        if self._wanted is not None and self._job is not None:
            assert self._job.cancelled, "a newer read waits for one that nothing ends"


logger = logging.getLogger("walkit")


class JobCancelledError(Exception):
    """Raised inside a job that was cancelled; it ends the job and nothing else."""


class Job:
    """One piece of work under way. The job's thread reports, any thread reads and cancels."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.words = ""
        """The current step of the job, if it reports one."""
        self.done = 0
        self.total: int | None = None
        """How many steps there are; None: not known."""
        self.problem: str | None = None
        """The error that ended it, as a sentence."""
        self.ended = False
        self._cancelled = threading.Event()

    def step(self, done: int, total: int | None = None, words: str = "") -> None:
        """Report progress. Raises JobCancelledError if the job is to end."""
        self.done, self.total, self.words = done, total, words
        self.check()

    def check(self) -> None:
        """Raise JobCancelledError if the job is to end."""
        if self._cancelled.is_set():
            raise JobCancelledError

    @property
    def cancelled(self) -> bool:
        """Whether the job is to end."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Request the job to end at its next step."""
        self._cancelled.set()

    def __str__(self) -> str:
        of = "" if self.total is None else f": {self.done:,} of {self.total:,}"
        words = f" ({self.words})" if self.words else ""
        return f"{self.title}{of}{words}"


class Jobs:
    """Runs one job at a time on a worker thread. `start` and `cancel` return at once; safe from any thread."""

    def __init__(self, name: str) -> None:
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = threading.Lock()
        self.current: Job | None = None
        """The job under way."""
        self.problem: str | None = None
        """The error of the last job, or why one was not started, as a sentence."""
        self.finished = 0
        """How many jobs have ended."""
        self._started = 0

    def start(self, title: str, work: Callable[[Job], None]) -> Job | None:
        """Start `work(job)`; None, with the reason in `problem`, where another job is under way or all is closed."""
        with self._lock:
            if self.current is not None:
                self.problem = f"Still {self.current.title}; ask again when that is done."
                return None
            job = Job(title)
            self.current, self.problem = job, None
            try:
                self._worker.submit(self._run, job, work)
            except RuntimeError:
                self.current, self.problem = None, "The session has ended; load the page again."
                return None
            self._started += 1
            self._check_locked()
        return job

    def _check(self) -> None:
        """Assert the invariants between two steps, from any thread."""
        with self._lock:
            self._check_locked()

    def _check_locked(self) -> None:
        """Assert that each started job has ended, except the one under way; needs the lock held."""
        assert self._started - self.finished == (self.current is not None)
        assert self.current is None or not self.current.ended, (
            "a job that has ended keeps others from starting"
        )

    def _run(self, job: Job, work: Callable[[Job], None]) -> None:
        problem: str | None = None
        try:
            job.check()
            work(job)
        except JobCancelledError:
            problem = f"{sentence(job.title)} was cancelled."
        except (WalkitError, OSError) as error:
            problem = f"{sentence(job.title)} failed: {str(error).rstrip('.')}."
        except Exception as error:  # shown on the page with its type: a job has no other caller
            problem = f"{sentence(job.title)} failed in a way that walkit did not foresee: {error!r}."
            logger.exception("%s failed in a way that walkit did not foresee", job.title)
        finally:
            with self._lock:
                self.problem, self.current = problem, None
                self.finished += 1
                job.problem, job.ended = problem, True
                self._check_locked()

    def cancel(self) -> None:
        """Request the job under way to end at its next step; without one nothing happens."""
        job = self.current
        if job is not None:
            job.cancel()

    def close(self) -> None:
        """Cancel the job under way, wait for its end, and take no more."""
        self._worker.shutdown(wait=False)  # first: no job starts after the one that is cancelled
        self.cancel()
        self._worker.shutdown(wait=True)


def sentence(text: object) -> str:
    """Return a text with a capital at its beginning."""
    return str(text)[:1].upper() + str(text)[1:]
