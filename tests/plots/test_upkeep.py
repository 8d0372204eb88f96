"""The figure of a log's inventory: what is drawn is what the report says."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

import walkit
from tests.log.logs import tiny
from tests.stores import memory_store
from walkit.plots import recovery_over_checkpoint, upkeep
from walkit.storage import MemoryStorage


def boxes(drawing: go.Figure, row: str) -> dict[str, list[tuple[int, int]]]:
    """(first LSN, LSNs) of the bars in a row, by what they are."""
    return {
        trace.name: list(zip(trace.base, trace.x, strict=True))
        for trace in drawing.data
        if trace.type == "bar" and trace.y[0] == row
    }


def points(drawing: go.Figure) -> dict[str, list[str]]:
    """The texts of the marks, by row."""
    return {trace.name: list(trace.text) for trace in drawing.data if trace.type == "scatter"}


def test_segments_marks_holds_and_cursors() -> None:
    """A trimmed log with two holds and a cursor: the part below the watermark, who holds what, and every mark."""
    with walkit.open(storage=MemoryStorage(), options=tiny()) as log:
        log.append_many([bytes(7000)] * 44)
        log._engine.segments.upkeep.drain()
        log.trim(10)
        log.hold("<slow>", 19)
        log.cursor("c").advance(30)
        found = log.inventory()
    drawing = upkeep(found)
    shown = boxes(drawing, "segments")
    assert shown["below the low watermark"] == [(9, 2)] and shown["sealed"][0] == (11, 6)
    assert sum(n for row in shown.values() for _, n in row) == 44 - 8
    assert boxes(drawing, "hold <slow>") == {"held": [(19, 26)]}
    assert points(drawing)["cursor c"] == ["30"]
    marks = points(drawing)["marks"]
    assert marks[0] == "low watermark 10" and "complete from" in marks[1]
    assert f"last {found.last_lsn}" in marks
    assert list(drawing.layout.yaxis.categoryarray) == ["cursor c", "hold <slow>", "marks", "segments"]


def test_live_keys_of_a_store() -> None:
    """A store before and after compaction: the live part of each segment is as wide as it has live keys."""
    with memory_store() as store:
        for n in range(60):
            store.put(b"%d" % (n % 25), bytes(5000))
        store._engine.segments.upkeep.drain()
        store.compact()
        found = store.inventory()
    drawing = upkeep(found)
    live = boxes(drawing, "live keys")["live"]
    assert live == [(s.first_lsn, s.live_keys) for s in found.segments if s.live_keys]
    assert (
        len(boxes(drawing, "segments")["compacted"])
        == sum(s.state == "compacted" for s in found.segments)
        > 0
    )


@pytest.mark.parametrize("wrong", [None, "log", 3])
def test_only_an_inventory_is_drawn(wrong: Any) -> None:
    """Draw something else: a TypeError that says what to give; an empty log is drawn."""
    with pytest.raises(TypeError, match="inventory"):
        upkeep(wrong)
    with walkit.open(storage=MemoryStorage()) as log:
        assert "0 segments" in upkeep(log.inventory()).layout.title.text


def test_openings_over_the_age_of_the_checkpoint() -> None:
    """Open a store with and without records behind its checkpoint: every bar is the sum of its report's phases."""
    reports = {}
    for behind in (0, 20):
        storage = MemoryStorage()
        with memory_store(storage) as store:
            for n in range(40):
                if n == 40 - behind:
                    store.checkpoint()
                store.put(b"%d" % n, b"v")
            if not behind:
                store.checkpoint()
        with memory_store(storage) as store:
            reports[behind] = store.recovery
    drawing = recovery_over_checkpoint(reports)
    shown = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in drawing.data}
    for behind, report in reports.items():
        drawn = sum(found[str(behind)] for found in shown.values())
        assert drawn == pytest.approx(sum(p.duration_s for p in report.phases) * 1000, rel=0.05)
    replay = {n: next(p for p in r.phases if p.name == "replay") for n, r in reports.items()}
    assert shown["replay"]["20"] == pytest.approx(replay[20].duration_s * 1000)
    assert [p.detail["records"] for p in replay.values()] == [0, 20]
    with pytest.raises(ValueError, match="no report"):
        recovery_over_checkpoint({})
