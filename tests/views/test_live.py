"""Views from recorded and live sources, without a browser: they show the source's numbers."""

from __future__ import annotations

import gc
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import walkit
from tests.plots.test_figures import make_run
from walkit.errors import MissingExtraError
from walkit.measure import LatencyHistogram, RawRate, RunEvent
from walkit.metrics import LogStatistics
from walkit.views import LiveView, LogSource, Point, Reading, live, recorded, sources
from walkit.views.base import numbers_html, pn, sentence_html
from walkit.views.history import detail_of
from walkit.views.sources import ChildSource, RunSource
from walkit.workload import SteadyWriter
from walkit.workload.steady import SteadyLine

WIDGET = "application/vnd.jupyter.widget-view+json"


def curves(view: LiveView) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The values of the shown figures, by curve."""
    drawn = [pane.object for pane in view.panes if pane.visible]
    return {
        t.name: np.asarray(t.y, dtype=float) for drawing in drawn for t in drawing.data if t.mode == "lines"
    }


def test_a_recorded_run_is_shown_as_it_was() -> None:
    """Curves, events, percentiles, warnings and the sentence are the Run's; a second refresh adds nothing."""
    run = make_run("a <run>", 1, durability="none", events=(RunEvent(0.25, "walkit.segment.seal", {}),))
    view = recorded(run)
    for _ in range(2):
        shown = curves(view)
        assert np.array_equal(shown["records/s"], run.timeline.records_per_s)
        assert np.array_equal(shown["p50"], run.timeline.p50_us / 1e6, equal_nan=True)
        assert "p99" in shown and "records that wait" not in shown
        assert [pane.visible for pane in view.panes] == [True, False]
        assert list(view.panes[0].object.data[-1].x) == [0.25]
        assert "a &lt;run&gt;" in view.status.object
        assert "an acknowledged record may be lost" in view.status.object
        assert f"{run.latency['total'].percentile(50) / 1000:,.0f}" in view.numbers.object
        assert view.refresh() is False


def test_the_turn_of_the_raw_device_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four lines of a child, the third with a raw rate: a gap of the points there; the rate counts from then on."""
    raw = RawRate(
        writes_per_s=50, lowest=50, highest=50, rounds=1, block_bytes=512, threads=1, mode="O_DSYNC"
    )
    lines = [
        SteadyLine(
            at_ns=number * 10**9,
            statistics=LogStatistics(frames_written=acked, records_acked=acked),
            latency=None,
            events=(),
            raw=raw if number == 2 else None,
        )
        for number, acked in enumerate((0, 10, 10, 30))
    ]
    writer = SteadyWriter(tmp_path / "log")
    monkeypatch.setattr(writer, "read", lambda: lines)
    reading = ChildSource(writer).read()
    rates = [(point.records_per_s, point.frames_per_s, point.raw_per_s) for point in reading.points]
    nan = float("nan")
    assert np.array_equal(rates, [(nan,) * 3, (10, 10, nan), (nan,) * 3, (20, 20, 50)], equal_nan=True)
    assert "median of 1" in reading.raw


def test_a_saved_cell_is_read_without_trust() -> None:
    """The view of a Run and of a log in a cell: beside the widget is HTML of numbers, and the Run's figure."""
    pytest.importorskip("anywidget")
    run = make_run("a run", 1)
    with walkit.open("memory://saved-cell") as log:
        log.append(b"value")
        log.sync()
        for source, said, pictures in (
            (RunSource(run), "a run", 1),
            (LogSource(log), "memory://saved-cell", 0),
        ):
            view = LiveView(source, in_cell=True)
            data, _ = view._repr_mimebundle_()
            assert WIDGET in data and "0x" not in data["text/plain"]
            assert said in data["text/html"] and data["text/html"].count("<img") == pictures
            view.close()


def test_a_live_log_is_shown_through_its_statistics() -> None:
    """Two refreshes around 100 records: the newest point has their rate, and the marks are the log's."""
    with walkit.open("memory://live-view") as log:
        view = live(log)
        for i in range(100):
            log.append(b"%d" % i)
        assert view.refresh() is True
        last = view.history.last
        assert last is not None
        assert last.records_per_s > 0
        assert last.write_us > 0
        assert np.isnan(last.p50_us)
        assert "records that wait" in curves(view) and "p50" not in curves(view)
        assert "write and sync of a frame" in view.numbers.object
        assert "acked lsn" in view.numbers.object
        assert ">100<" in view.numbers.object
        assert view.history.series().time_s.tolist() == sorted(view.history.series().time_s)
    assert view.refresh() is False
    assert "is closed" in view.status.object


def test_a_store_is_shown_through_its_log() -> None:
    """`live` takes a Store, and names its log's place."""
    with walkit.Store.open("memory://live-store") as store:
        view = live(store)
        assert store.log.location in view.status.object
        view.close()


def test_events_of_a_live_log_are_on_the_clock(tmp_path: Path) -> None:
    """Segments that are made and sealed while a source listens are told once, with rising times; not after close."""
    options = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024)
    with walkit.open(tmp_path / "log", options=options, events=lambda *_: None) as log:
        source = LogSource(log)
        for _ in range(40):
            log.append(bytes(8_000))
        reading = source.read()
        assert {"walkit.segment.prepare", "walkit.segment.rotate"} <= {event.name for event in reading.events}
        assert [e.time_s for e in reading.events] == sorted(e.time_s for e in reading.events)
        assert reading.events[0].time_s >= 0
        source.close()
        source.close()
        source.read()
        for _ in range(20):
            log.append(bytes(8_000))
        assert source.read().events == []


def test_a_live_log_stands_still_when_nothing_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Append, then rest longer than the limit: no more points and a sentence; a later append follows a gap."""
    with walkit.open("memory://live-idle") as log:
        source = LogSource(log)
        log.append(b"first")
        assert len(source.read().points) == 1
        monkeypatch.setattr(sources, "IDLE_NS", 0)
        idle = [source.read() for _ in range(3)]
        assert not any(each.points for each in idle)
        assert re.search(r"Idle since \d\d:\d\d:\d\d, showing the last run", idle[-1].status)
        log.append(b"second")
        gap, point = source.read().points
        assert np.isnan(gap.records_per_s) and point.records_per_s > 0 and gap.time_s <= point.time_s
        source.close()


def test_a_view_does_not_keep_a_log_open() -> None:
    """A log that is dropped while a view shows it closes itself; the view shows that it is closed."""
    log: walkit.WriteAheadLog | None = walkit.open("memory://live-dropped")
    assert log is not None
    view = LiveView(LogSource(log))
    with pytest.warns(ResourceWarning):
        log = None
    gc.collect()
    assert view.refresh() is False


class Steps:
    """A source that tells one point at each reading, for counting updates."""

    def __init__(self) -> None:
        self.steps = 0

    def read(self) -> Reading:
        self.steps += 1
        point = Point(self.steps / 2, *(float(self.steps + i) for i in range(8)))
        detail = detail_of(LatencyHistogram.from_samples([1_000_000 * self.steps]), None)
        event = RunEvent(self.steps / 2, "seal", {})
        return Reading(status=f"step {self.steps}", points=[point], details=[detail], events=[event])

    def close(self) -> None: ...


def test_a_change_reaches_what_the_browser_has() -> None:
    """Rendered as for a browser, the model's data, clock and marks are those of the newest point after each refresh."""
    view = LiveView(Steps())
    models: list[Any] = [pane.get_root() for pane in view.panes]
    rates, latency = models
    for steps in range(2, 6):
        view.refresh()
        for model, axis in ((rates, "xaxis"), (rates, "xaxis2"), (latency, "xaxis")):
            assert model.layout[axis]["range"] == [0.5, max(steps / 2, 1.5)]
        assert len(rates.data[-1]["x"]) == 3 * steps
        assert rates.data_sources[0].data["y"][0].tolist() == [float(i) for i in range(1, steps + 1)]
        assert np.nansum(np.array(latency.data_sources[0].data["z"][0], dtype=float)) == steps


def test_sentences_and_numbers_are_escaped() -> None:
    """Whatever a path or an error holds, it is text on the page; a problem is an alert."""
    html = sentence_html("<a>", warnings=("<b>",), problem="<c>")
    assert "<a>" not in html
    assert "&lt;a&gt;" in html
    assert "role='alert'" in html
    assert "&quot;x&quot;" in numbers_html([("n", "1", 'is "x"')])


def test_panel_is_set_up_without_a_network() -> None:
    """After `live` Panel takes what the browser needs from here: inline, with plotly among its extensions."""
    with walkit.open("memory://live-inline") as log:
        live(log).close()
    assert pn.config.inline is True
    assert "panel.models.plotly" in sys.modules


def test_views_load_on_first_use() -> None:
    """`walkit.views` is there without being asked for, and Panel is not loaded for it."""
    probe = "import sys, walkit; assert 'views' in dir(walkit) and 'panel' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_missing_panel_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without panel, importing the room raises the error that names the extra."""
    for name in [name for name in sys.modules if name.split(".")[:2] == ["walkit", "views"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "panel", None)
    with pytest.raises(MissingExtraError, match="dashboard"):
        importlib.import_module("walkit.views")
