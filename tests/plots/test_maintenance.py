"""The figure of a log's inventory: the drawing equals the report."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

import walkit
from tests.support.logs import tiny
from tests.support.stores import memory_store
from walkit.models import CrashingStorage
from walkit.plots import maintenance, recovery_over_checkpoint


def boxes(drawing: go.Figure, row: str, axis: str = "y") -> dict[str, list[tuple[float, float]]]:
    """(start, size) of the bars in a row, bytes, by kind."""
    return {
        trace.name: list(zip(trace.base, trace.x, strict=True))
        for trace in drawing.data
        if trace.type == "bar" and trace.y[0] == row and trace.yaxis == axis
    }


def marks(drawing: go.Figure) -> dict[str, float]:
    """Where each mark stands, bytes, by its words; the lowest panel's."""
    trace = [trace for trace in drawing.data if trace.type == "scatter"][-1]
    return dict(zip(trace.text, trace.x, strict=True))


def test_segments_marks_claims_and_cursors() -> None:
    """A trimmed log with a claim and a cursor: the part below the watermark, the part that is kept, and every mark."""
    with walkit.open(storage=CrashingStorage(), options=tiny()) as log:
        log.append_many([bytes(7000)] * 44)
        log.wait_idle()
        log.trim(10)
        log.hold("slow", 19)
        log.cursor("c").advance(30)
        found = log.inventory()
    drawing = maintenance(found)
    shown = boxes(drawing, "segments")
    first = found.segments[0]
    assert (first.first_lsn, first.last_lsn) == (9, 16)
    quarter = first.size_bytes / 4
    assert shown["below the low watermark"] == [(0, quarter)]
    assert shown["sealed"][0] == (quarter, first.size_bytes - quarter)
    assert sum(size for row in shown.values() for _, size in row) == pytest.approx(found.size_bytes)
    ((start, size),) = boxes(drawing, "claim slow")["held"]
    assert start + size == pytest.approx(found.size_bytes) and start > first.size_bytes
    texts = list(marks(drawing))
    assert texts[0] == "low watermark 10" and "complete from" in texts[1] and texts[-1] == "cursor c 30"
    assert marks(drawing)["low watermark 10"] == quarter
    assert marks(drawing)[f"last {found.last_lsn}"] == found.size_bytes
    held = texts.pop(texts.index("claim slow"))
    assert marks(drawing)[held] == start
    assert list(drawing.layout.yaxis.categoryarray) == [*texts[::-1], held, "segments"]


def test_live_keys_of_a_store_before_and_after() -> None:
    """A store before and after compaction: live parts are as wide as they have live keys, and both have one axis."""
    with memory_store() as store:
        for n in range(60):
            store.put(b"%d" % (n % 25), bytes(5000))
        store.log.wait_idle()
        before = store.inventory()
        store.compact()
        found = store.inventory()
    drawing = maintenance(found, before=before)
    live = boxes(drawing, "live keys", "y2")["live"]
    with_keys = [s for s in found.segments if s.live_keys]
    assert len(live) == len(with_keys)
    for (_, width), segment in zip(live, with_keys, strict=True):
        records = segment.records or segment.last_lsn - segment.first_lsn + 1
        assert width == pytest.approx(segment.size_bytes * (segment.live_keys or 0) / records)
    compacted = boxes(drawing, "segments", "y2")["compacted"]
    assert len(compacted) == sum(s.state == "compacted" for s in found.segments) > 0
    assert "compacted" not in boxes(drawing, "segments")
    assert before.size_bytes > found.size_bytes
    assert drawing.layout.xaxis.range == drawing.layout.xaxis2.range
    assert drawing.layout.xaxis.range[1] >= before.size_bytes
    names = [trace.name for trace in drawing.data if trace.showlegend]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("wrong", [None, "log", 3])
def test_only_an_inventory_is_drawn(wrong: Any) -> None:
    """Draw something else: a TypeError that names the right type; an empty log is drawn."""
    with pytest.raises(TypeError, match="inventory"):
        maintenance(wrong)
    with walkit.open(storage=CrashingStorage()) as log:
        assert "0 segments" in maintenance(log.inventory()).layout.title.text


def test_openings_over_the_age_of_the_checkpoint() -> None:
    """Open a store with and without records after its checkpoint: every bar is the sum of its report's phases."""
    reports = {}
    for behind in (0, 20):
        storage = CrashingStorage()
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
        assert drawn == pytest.approx(sum(p.duration_s for p in report.phases), rel=0.05)
    replay = {n: next(p for p in r.phases if p.name == "replay") for n, r in reports.items()}
    assert shown["replay"]["20"] == pytest.approx(replay[20].duration_s)
    assert [p.detail["records"] for p in replay.values()] == [0, 20]
    with pytest.raises(ValueError, match="no report"):
        recovery_over_checkpoint({})
