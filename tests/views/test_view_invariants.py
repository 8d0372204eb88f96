"""The views' invariants hold between two steps, and each check can fail."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.invariants import changed, inside
from walkit.errors import WalkitError
from walkit.views.background_jobs import Job, Jobs, Looking
from walkit.views.fault_lab import FaultLab, FaultReport, Killed, Outcome, RecoveryLab, Refusal
from walkit.views.history import History, Point
from walkit.views.page_replication import ReplicaHistory, ReplicationLab
from walkit.views.session import Session, Shelf


def _history() -> History:
    history = History(points_max=2)
    history.add([Point(1.0), Point(2.0), Point(3.0)])
    return history


def _lives() -> ReplicaHistory:
    lives = ReplicaHistory("replica 1", 0.0)
    span = {"state": "streaming", "since": 1.0, "until": None, "detail": ""}
    lives.take({"status": {"history": [span]}})
    lives.end("killed", 2.0)
    return lives


def _jobs() -> Jobs:
    jobs, go = Jobs("walkit-test"), threading.Event()
    assert jobs.start("a job", lambda _: go.set()) is not None
    assert go.wait(30)
    jobs.close()
    return jobs


def _looking() -> Looking:
    """A read under way that another one waits for."""
    jobs, go = Jobs("walkit-test"), threading.Event()
    looking = Looking(jobs)

    def read(job: Job) -> Callable[[], None]:
        go.wait(30)
        return lambda: None

    looking.request("the first", read)
    looking.request("the second", read)
    go.set()
    jobs.close()
    return looking


def _recovery() -> RecoveryLab:
    """A lab whose newest fault was refused, and whose log is gone."""
    lab = RecoveryLab(
        "nowhere", Jobs("walkit-test"), lambda load: Killed("", load, 0), lambda name, data: None
    )
    lab.reports = (_report(1), _report(2, refusal=Refusal.of(WalkitError("damaged"))))
    return lab


def _report(number: int, refusal: Refusal | None = None) -> FaultReport:
    outcome = Outcome(policy="prefix", refusal=refusal)
    return FaultReport(
        fault="bit", number=number, place="", steps=(), acked_lsn=0, promise="", outcome=outcome
    )


SEAT = SimpleNamespace(name="replica 1", link=None, child=None, ended="", close=lambda: None)
SPOILED: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
    (_history, inside("_details", deque.pop)),
    (_history, inside("_points", deque.reverse)),
    (_history, changed("points_seen", 1)),
    (_lives, inside("_past", lambda past: past.append(("streaming", 1.0, None, "")))),
    (_lives, inside("_spans", lambda spans: spans.append(spans[0]))),
    (_jobs, changed("finished", 2)),
    (_jobs, changed("current", Job("a job"))),
    (_looking, inside("_job", inside("_cancelled", threading.Event.clear))),
    (_looking, lambda looking: changed("_found", deque([print]))(looking) or changed("_job", None)(looking)),
    (Session, inside("_writers", lambda writers: writers.append(None))),
    (Session, changed("runs", (None,))),
    (lambda: FaultLab("nowhere"), changed("_last", Path("nowhere/fault-0-bit"))),
    (_recovery, inside("_faults", changed("_last", Path("nowhere/fault-0-bit")))),
    (_recovery, changed("reports", (_report(2), _report(1)))),
    (_recovery, changed("reports", tuple(map(_report, range(9))))),
    (_recovery, changed("reports", (replace(_report(1), salvage=Outcome(policy="salvage")),))),
    (_recovery, lambda lab: changed("reports", (replace(lab.newest, mended=lab.newest.outcome),))(lab)),
    (lambda: Shelf("nowhere"), changed("_number", 2)),
    (lambda: Shelf("nowhere"), changed("_hold", object())),
    (lambda: Shelf("nowhere"), changed("_upkeep_bytes", 1)),
    (ReplicationLab, inside("_belongings", inside("seats", lambda seats: seats.update({"replica 1": SEAT})))),
]


@pytest.mark.parametrize(("make", "spoil"), SPOILED, ids=range(len(SPOILED)))
def test_a_spoiled_view_is_noticed(make: Callable[[], Any], spoil: Callable[[Any], object]) -> None:
    """Spoil one field of a view: its check, which passed before, fails."""
    thing = make()
    try:
        thing._check()
        spoil(thing)
        with pytest.raises(AssertionError):
            thing._check()
    finally:
        close = getattr(thing, "close", None)
        if close is not None:
            close()
