"""Jobs of a page: the state after an unforeseen error."""

from __future__ import annotations

import threading

import pytest

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
