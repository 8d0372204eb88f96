"""Figures hold the data they were given, and read on light and dark pages."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from tests.support.damaged_logs import crash_image, frames_of, in_frame, opened
from tests.support.makers import TRANSACTION, frame_of
from walkit._internal.report import Phase
from walkit._internal.text import counted, lsn_range
from walkit.errors import MissingExtraError
from walkit.format.manifest import HoleRecord
from walkit.format.segment import segment_name
from walkit.measure import Baseline, LatencyHistogram, MachineFacts, Run, RunEvent, Timeline
from walkit.plots import (
    frame_bytes,
    latency_distribution,
    recovery_timeline,
    segments,
    throughput_timeline,
)
from walkit.plots.style import COLOURS, HATCHES, colour
from walkit.plots.units import duration_text
from walkit.recovery.report import Cut, RecoveryReport
from walkit.recovery.verify import scan


def report_of(*phases: Phase, **changes: Any) -> RecoveryReport:
    numbers = ("segments", "segments_scanned", "frames_scanned", "records_scanned", "bytes_scanned")
    fixed: dict[str, Any] = {"location": "", "policy": "prefix", "verdict": "torn tail cut", "decisions": ()}
    fixed |= dict.fromkeys(("cuts", "holes", "lost"), ())
    fixed |= dict.fromkeys((*numbers, "promised_position", "last_lsn", "end_position"), 0)
    return RecoveryReport(phases=phases, **(fixed | changes))


def phase(name: str, started_s: float, duration_s: float, **detail: Any) -> Phase:
    return Phase(name=name, started_s=started_s, duration_s=duration_s, detail=detail)


def make_run(name: str, seed: int, **changes: Any) -> Run:
    rng = np.random.default_rng(seed)
    latency, completed = rng.lognormal(12, 1, 2000).astype(np.int64), rng.integers(0, 10**9, 2000)
    completed = completed[(completed < 3 * 10**8) | (completed > 5 * 10**8)]
    latency = latency[: len(completed)]
    everything: dict[str, Any] = {
        "name": name,
        "started_at": datetime(2026, 1, 1, tzinfo=UTC),
        "duration_s": 1.0,
        "records": len(completed),
        "durability": "sync",
        "machine": MachineFacts(),
        "latency": {"total": LatencyHistogram.from_samples(latency)},
        "timeline": Timeline.from_samples(completed, latency, duration_s=1.0, bucket_s=0.05),
    }
    return Run(**(everything | changes))


BASELINE = Baseline(
    writes_per_s=14_000.0,
    latencies=LatencyHistogram.from_samples([70_000] * 99 + [500_000]),
    block_bytes=4096,
    duration_s=0.1,
)


def value_at(trace: go.Scatter, x: float) -> float:
    """Return the height of an "hv" step at x: that of the last point at or before it."""
    return float(np.asarray(trace.y)[np.searchsorted(np.asarray(trace.x), x, side="right") - 1])


@pytest.mark.parametrize("p", [0.5, 25, 50.1, 90.05, 99.01, 99.9])
def test_the_distribution_is_the_histogram(p: float) -> None:
    """Read off at any percentile, the step is the latency of that rank; it ends at (records, maximum)."""
    run = make_run("a", 1)
    (trace,) = latency_distribution(run).data
    histogram, n = run.latency["total"], run.records
    rank = int(np.floor(p / 100 * n)) + 1  # the first record of which at least p % lie below
    expected_s = histogram.percentile(100 * rank / n) / 1e9
    assert value_at(trace, 1 / (1 - p / 100)) == expected_s
    assert (trace.x[0], trace.x[-1], trace.y[-1]) == (1.0, n, histogram.max / 1e9)
    assert trace.line.shape == "hv"
    assert (np.diff(trace.x) >= 0).all()


def test_each_run_and_its_baseline_have_a_curve() -> None:
    """Runs with and without baseline and histogram: as many curves as there is data, baselines dotted."""
    runs = [make_run("a", 1, baseline=BASELINE), make_run("b", 2), make_run("c", 3, latency={})]
    drawing = latency_distribution(runs)
    assert [trace.name for trace in drawing.data] == [
        "a (sync, closed loop)",
        "a: raw O_DSYNC, 4,096 B",
        "b (sync, closed loop)",
    ]
    assert drawing.data[1].line.dash == "dot"
    assert drawing.data[0].line.color == drawing.data[1].line.color
    assert value_at(drawing.data[1], 50) == pytest.approx(70e-6, rel=1e-3)
    assert value_at(drawing.data[1], 100) == pytest.approx(500e-6, rel=1e-3)
    assert len(latency_distribution(runs, baseline=False).data) == 2
    assert len(latency_distribution([]).data) == 0


def test_repeated_runs_are_one_curve_with_their_spread() -> None:
    """Five runs of one name and one of another: medians and quartiles at the marked percentiles are the histograms'."""
    runs = [*(make_run("a", seed) for seed in range(5)), make_run("b", 9, baseline=BASELINE)]
    drawing = latency_distribution(runs, repeated=True)
    curve, marks, other, _ = drawing.data
    assert [curve.name, other.name] == ["a (sync, closed loop)", "b (sync, closed loop)"]
    assert marks.x[:2] == pytest.approx((2, 10)) and not marks.showlegend
    for p, y, up, down in zip((50, 90), marks.y, marks.error_y.array, marks.error_y.arrayminus, strict=False):
        seconds = [run.latency["total"].percentile(p) / 1e9 for run in runs[:5]]
        low, median, high = np.percentile(seconds, (25, 50, 75))
        assert (y, up, down) == pytest.approx((median, high - median, median - low))
    assert curve.x[-1] == pytest.approx(min(run.records for run in runs[:5]))
    assert curve.y[-1] == pytest.approx(
        np.median([run.latency["total"].percentile(100 - 100 / curve.x[-1]) for run in runs[:5]]) / 1e9
    )
    assert (np.diff(curve.y) >= 0).all()
    alt = drawing.layout.meta["alt"]
    assert alt.count("a (sync, closed loop): p50") == 1
    text = drawing.layout.title.text
    assert "median and their spread, n = 1 to 5" in text and "n = 1 each" not in text
    assert "n = 1" in latency_distribution(runs[:1], repeated=True).layout.title.text


def test_the_timeline_is_the_run_s() -> None:
    """Rate, percentiles, baseline and events of the figure are the arrays of the Run, gaps included."""
    events = (
        RunEvent(0.1, "rotate", {"segment": 2}),
        RunEvent(0.7, "checkpoint", {}),
        RunEvent(0.8, "rotate", {}),
    )
    run = make_run("a", 1, events=events, baseline=BASELINE)
    drawn = {trace.name: trace for trace in throughput_timeline(run).data}
    line = run.timeline
    assert np.isnan(line.p50_us).any()
    for name, values in (
        ("records/s", line.records_per_s),
        ("p50", line.p50_us / 1e6),
        ("p99", line.p99_us / 1e6),
        ("max", line.max_us / 1e6),
    ):
        assert np.array_equal(np.asarray(drawn[name].x), line.middle_s)
        assert np.array_equal(np.asarray(drawn[name].y, dtype=float), values, equal_nan=True)
    assert list(drawn["raw O_DSYNC writes/s, 4,096 B"].y) == [14_000.0, 14_000.0]
    assert (list(drawn["events"].x), list(drawn["events"].y)) == (
        [0.1, 0.7, 0.8],
        ["rotate", "checkpoint", "rotate"],
    )
    assert drawn["events"].text[0] == "segment=2"


def test_panels_share_one_clock() -> None:
    """With events three panels, without two; the clock of the upper ones is that of the lowest."""
    bare = throughput_timeline(make_run("a", 1))
    marked = throughput_timeline(make_run("a", 1, events=(RunEvent(0.1, "rotate", {}),)))
    assert bare.layout.xaxis.matches == "x2"
    assert len(list(bare.select_yaxes())) == 2
    assert len(list(marked.select_yaxes())) == 3
    assert marked.layout.xaxis.matches == marked.layout.xaxis2.matches == "x3"
    assert "events" not in {trace.name for trace in bare.data}


def test_recovery_bars_are_the_phases() -> None:
    """One bar per phase, from its start, as long as it took, in seconds; verdict and cuts in the title."""
    report = report_of(
        phase("open", 0.0, 0.001),
        phase("scan", 0.001, 0.25, segments=4, note="<x>"),
        cuts=(Cut(segment="<s>", position=640, bytes=64, first_lsn=9, reason="torn"),) * 2,
        end_position=640,
    )
    drawing = recovery_timeline(report)
    bars, cuts, marks = drawing.data
    assert list(bars.y) == ["open", "scan"]
    assert bars.orientation == "h"
    assert list(bars.base) == pytest.approx([0.0, 0.001])
    assert list(bars.x) == pytest.approx([0.001, 0.25])
    assert bars.hovertext[1] == "segments: 4<br>note: &lt;x&gt;"
    assert drawing.layout.title.text.startswith("Recovery: torn tail cut, 2 cuts, 251 ms")
    assert drawing.layout.yaxis.autorange == "reversed"
    assert (list(cuts.base), list(cuts.x), list(marks.x)) == ([640, 640], [64, 64], [640, 640])
    assert "&lt;s&gt;" in cuts.customdata[0] and "nothing: it was all zero" in cuts.customdata[0]
    (bare,) = recovery_timeline(report_of()).data
    assert len(bare.x or ()) == 0


def test_losses_of_a_recovery_are_drawn_by_their_positions() -> None:
    """Salvage a log with a damaged frame: the lost range is drawn in its place, with a text; so is a hole."""
    storage = crash_image(closed=True)
    in_frame(2, 1, 100)(storage)
    _, header = frames_of(storage, segment_name(2))[1]
    with opened(storage, "salvage") as log:
        report = log.recovery
    (lost,) = report.lost
    assert (lost.start_position, lost.end_position) == (header.position, header.end_position)
    drawing = recovery_timeline(report)
    drawn = {trace.name: trace for trace in drawing.data if trace.name}
    assert (list(drawn["lost"].x), drawn["lost"].mode) == ([lost.start_position], "markers")
    assert lsn_range(lost.first_lsn, lost.last_lsn) in drawn["lost"].customdata[0]
    assert lost.segment in drawn["lost"].customdata[0]
    assert f"lost: {counted(lost.lsns, 'LSN')} in 1 range" in drawing.layout.title.text
    assert [shape.x0 for shape in drawing.layout.shapes] == [report.end_position]
    holes = recovery_timeline(
        report_of(holes=(HoleRecord(start_position=64, end_position=128, first_lsn=2, last_lsn=1, chain=0),))
    )
    assert "1 hole," in holes.layout.title.text and "no record" in holes.data[1].customdata[0]


def figures() -> list[go.Figure]:
    run = make_run("a", 1, durability="none", events=(RunEvent(0.1, "rotate", {}),), baseline=BASELINE)
    return [
        latency_distribution(run),
        throughput_timeline(run),
        recovery_timeline(report_of(phase("open", 0, 1))),
        frame_bytes(frame_of(TRANSACTION)),
        segments(scan(Path(__file__).parents[2] / "data/golden/v0/log")),
    ]


@pytest.mark.parametrize("drawing", figures())
def test_figures_read_on_both_pages(drawing: go.Figure) -> None:
    """Transparent backgrounds, grey text, colours of the palette, and JSON that a browser can read."""
    raw = json.loads(drawing.to_json())
    layout = raw["layout"]["template"]["layout"]
    assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert layout["font"]["color"] == "#808080"
    given = [trace.get("line", trace.get("marker", {})).get("color") for trace in raw["data"]]
    painted = {one for each in given for one in (each if isinstance(each, list) else [each])}
    assert painted <= {*COLOURS, "#808080", "#9a9a9a", None}
    assert len(painted) >= 1


def test_the_palette_repeats() -> None:
    """Nine series take nine colours, the last being the first again; all eight differ, and so do their hatches."""
    assert colour(8) == colour(0)
    assert len(set(COLOURS)) == len(set(HATCHES)) == 8


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 µs"), (0.0000125, "12.5 µs"), (0.0034, "3.4 ms"), (1.25, "1.25 s"), (4000, "4,000 s")],
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    """Durations are written in the unit that suits them."""
    assert duration_text(seconds) == text


def test_missing_plotly_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without plotly, importing the room raises the error that names the extra."""
    for name in [name for name in sys.modules if name.split(".")[:2] == ["walkit", "plots"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(MissingExtraError, match=r"\[dashboard\]"):
        importlib.import_module("walkit.plots")
