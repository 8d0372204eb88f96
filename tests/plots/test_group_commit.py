"""The figure of group commit: each run is part of a point in four panels, beside theory and the raw device."""

from __future__ import annotations

from math import log10
from typing import Any

import pytest

import walkit
from tests.plots.test_figures import make_run
from walkit.measure import Baseline, FrameSummary, LatencyHistogram, Run, kept_up, offered_per_s
from walkit.plots import alt_text, group_commit
from walkit.policy import OneRecordPerFrame
from walkit.simulate import ConstantLatency, DeviceModel, drive
from walkit.workload import OpenLoop, Workload

DEVICE = DeviceModel(name="d", latency=ConstantLatency(1_000))


def run_of(name: str, writers: int, frames: int, **changes: Any) -> Run:
    """A run of a second: its records in so many frames."""
    run = make_run(name, writers)
    summary = FrameSummary(frames=frames, records=run.records, frame_bytes=frames * 128)
    given: dict[str, Any] = {"labels": {"writers": writers}, "frames": summary, **changes}
    return make_run(name, writers, **given)


def test_records_are_frames_times_records_in_a_frame() -> None:
    """Two series of simulated runs: in each panel a point for each number of writers, and the factors multiply."""
    runs = [
        drive(
            Workload(operations=50 * writers, writers=writers, value_bytes=100, name=name),
            DEVICE,
            walkit.LogOptions(policy=policy),
        )
        for name, policy in (("all", None), ("one", OneRecordPerFrame()))
        for writers in (8, 2)
    ]
    drawing = group_commit(runs, theory={"halves": [(2, 1000, 1), (8, 1000, 4)]})
    curves, theory = drawing.data[:8], drawing.data[8:]
    assert [curve.name for curve in curves] == ["all"] * 4 + ["one"] * 4
    for records, _, frames, size in (curves[:4], curves[4:]):
        assert list(records.x) == [2, 8]
        products = [f * r for f, r in zip(frames.y, size.y, strict=True)]
        assert products == pytest.approx(list(records.y))
    assert [list(line.y) for line in theory] == [[1000, 4000], [1000, 1000], [1, 4]]
    assert sum(bool(curve.showlegend) for curve in drawing.data) == 2
    (label,) = [note for note in drawing.layout.annotations if note.text == "theory"]
    assert (label.x, label.y, label.xref) == (log10(8), log10(4), "x4"), "at the end of the last panel's line"
    two = group_commit(
        runs, theory={name: [(2, 1000, 1), (8, 1000, 4)] for name in ("halves of them", "all")}
    )
    assert sum(bool(curve.showlegend) for curve in two.data) == 4, "long names are a legend"
    assert "all, at 8" in alt_text(drawing)


def test_repeats_are_one_point_with_a_whisker() -> None:
    """Three runs of one load: their median; a whisker from the least to the most; no banner of n = 1."""
    raw = Baseline(
        writes_per_s=900, latencies=LatencyHistogram.from_samples([1_000]), block_bytes=4096, duration_s=1
    )
    drawing = group_commit([run_of("log", 4, frames, baseline=raw) for frames in (10, 30, 20)])
    frames = drawing.data[2]
    assert (list(frames.y), list(frames.error_y.array), list(frames.error_y.arrayminus)) == ([20], [10], [10])
    assert "n = 3" in " ".join(drawing.layout.meta["facts"])
    assert not any("n = 1" in text for text in drawing.layout.meta["warnings"])
    assert drawing.layout.shapes[0].y0 == 900


@pytest.mark.parametrize(
    ("frames", "tick"),
    [((3, 10), None), ((3, 60), "D2"), ((3, 3_000), None)],
    ids=["short", "decade", "long"],
)
def test_labels_of_a_logarithmic_axis_do_not_overprint(frames: tuple[int, int], tick: str | None) -> None:
    """Records/s over some ten to one have ticks at 1, 2 and 5, where plotly would name nine; others are plotly's."""
    drawing = group_commit(
        [run_of("log", writers, n, records=n) for writers, n in zip((1, 2), frames, strict=True)]
    )
    assert drawing.layout.yaxis.dtick == tick


def test_an_open_loop_in_virtual_time_shows_its_load() -> None:
    """A simulated open loop has the labels of a real one: x is the load, and above the knee it is not kept up with."""
    runs = [
        drive(
            Workload(operations=400, writers=32, value_bytes=100, arrival=OpenLoop(rate=rate)),
            DEVICE,
            walkit.LogOptions(policy=OneRecordPerFrame()),
        )
        for rate in (200, 4_000)
    ]
    assert [offered_per_s(run) for run in runs] == [200, 4_000]
    assert [kept_up(run) for run in runs] == [True, False]
    assert list(group_commit(runs).data[0].x) == [200, 4_000]


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [run_of("log", 4, 0)],
        [run_of("log", 4, 10), run_of("open", 4, 10, arrival="open", labels={"offered_per_s": 3})],
        [run_of("log", 4, 10, labels={})],
    ],
)
def test_what_cannot_be_drawn_is_refused(runs: list[Run]) -> None:
    """No run with frames, loops of both kinds, no number of writers: ValueError."""
    with pytest.raises(ValueError, match="run"):
        group_commit(runs)
