"""Jobs of a page: the state after an unforeseen error."""

from __future__ import annotations

import threading
from concurrent.futures import thread

import pytest

from tests.support.threads import GUARD_S, Task, wait_until
from walkit.views.background_jobs import Job, Jobs


def test_an_unforeseen_error_is_on_the_page_and_its_stack_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fail in a job as a bug does: the page says its type, and the log has its stack."""
    jobs, begun = Jobs("walkit-test"), threading.Event()

    def divide(_: Job) -> None:
        begun.set()
        raise ZeroDivisionError("a bug")

    jobs.start("counting", divide)
    assert begun.wait(30)
    jobs.close()
    assert jobs.problem is not None and "ZeroDivisionError('a bug')" in jobs.problem
    (record,) = [record for record in caplog.records if record.exc_info]
    assert (
        "counting" in record.getMessage() and record.exc_text is not None and "in divide" in record.exc_text
    )


def test_no_job_starts_while_the_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a job before and after what closing cancels: it is refused, and closing waits for nothing."""
    jobs, asked = Jobs("test"), list[Job | None]()
    cancel = jobs.cancel

    def beside() -> None:
        asked.append(jobs.start("early", lambda _: None))
        cancel()
        asked.append(jobs.start("late", lambda _: None))

    monkeypatch.setattr(jobs, "cancel", beside)
    Task(jobs.close).result()
    assert asked == [None, None] and "session has ended" in str(jobs.problem)


def test_a_job_that_waits_for_the_worker_ends_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close before the worker has taken a job: it never runs, and counts as ended."""
    gate, taken = threading.Event(), thread._worker
    monkeypatch.setattr(thread, "_worker", lambda *given: (gate.wait(GUARD_S), taken(*given)))
    jobs, begun = Jobs("test"), list[Job]()
    job = jobs.start("working", begun.append)
    closing = Task(jobs.close)
    assert job is not None
    wait_until(lambda: job.cancelled)
    gate.set()
    closing.result()
    assert job.ended and jobs.current is None and not begun and jobs.start("more", begun.append) is None
    assert "session has ended" in str(jobs.problem)
