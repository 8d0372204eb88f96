"""The figure of a log's segments: what a report says, at its positions."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

import walkit
from tests.support.logs import SEGMENTS, FaultyMemory, tiny
from walkit.models import CrashingStorage
from walkit.plots import segments
from walkit.recovery.scan_report import ScanReport


def boxes(drawing: go.Figure, row: str) -> dict[str, list[tuple[int, int]]]:
    """(start, size) of the boxes in a row, by kind."""
    return {
        trace.name: list(zip(trace.base, trace.x, strict=True))
        for trace in drawing.data
        if trace.type == "bar" and trace.y[0] == row
    }


def marks(drawing: go.Figure) -> dict[str, float]:
    trace = drawing.data[-1]
    return dict(zip(trace.text, trace.x, strict=True))


def test_segments_and_marks_are_those_of_the_report() -> None:
    """A live log of several segments: boxes are the report's, side by side, and so are the marks."""
    with walkit.open(storage=CrashingStorage(), options=tiny()) as log:
        log.append_many([bytes(3000)] * 190)
        log.wait_idle()  # what is full is sealed
        report = walkit.scan(log.parts.storage)
    drawing = segments(report)
    found = boxes(drawing, "segments")
    for state in ("sealed", "open"):
        assert found[state] == [
            (s.start_position, s.size_bytes) for s in report.segments if s.state == state and s.size_bytes
        ]
    assert len(found["sealed"]) > 2
    intact = boxes(drawing, "found")["intact"]
    assert sum(size for _, size in intact) == report.end_position
    assert marks(drawing) == {
        "first 1": 0,
        "last 190": report.end_position,
        "promised": report.promised_position,
    }
    assert "ok" in drawing.layout.title.text


def torn() -> tuple[ScanReport, ScanReport, walkit.RecoveryReport]:
    """Reports of a log with a torn tail: before and after the opening that cuts it, and of that opening."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=tiny())
    log.append_many([b"x" * 3000] * 3)
    storage.fail("synced_write", SEGMENTS, short_bytes=150)
    with pytest.raises(walkit.CommitFailedError):
        log.append(b"torn" * 100)
    log.close()
    before = walkit.scan(storage.inner)
    with walkit.open(storage=storage.inner, options=tiny()) as again:
        again.append(b"after")
        return before, walkit.scan(storage.inner), again.recovery


def test_a_torn_tail_is_drawn() -> None:
    """Before the opening the tail is a box, at the position that the recovery cuts; after it the box is gone."""
    before, after, recovery = torn()
    (tail,) = boxes(segments(before), "found")["torn tail"]
    (cut,) = recovery.cuts
    assert tail[0] == cut.position
    assert "torn tail" not in boxes(segments(after), "found")


def test_only_reports_are_drawn() -> None:
    """A live log is refused with the call to make; an empty log is drawn with nothing in it."""
    with walkit.open(storage=CrashingStorage()) as log:
        with pytest.raises(TypeError, match=r"walkit\.scan\(log\.location\)"):
            segments(log)  # type: ignore[arg-type]
        drawing = segments(walkit.scan(log.parts.storage))
    assert boxes(drawing, "segments") == {}
    assert list(marks(drawing)) == ["promised"]
