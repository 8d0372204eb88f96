"""The Live page without a browser: its controls' loads, and its drawings of a session's readings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlencode

import numpy as np
import pytest

from walkit.errors import OptionsError
from walkit.measure import FrameSample, LatencyHistogram, RunEvent
from walkit.measure.downsampled import FINE_EDGES_NS
from walkit.plots.live_load import LATENCY_EDGES_S, Band
from walkit.views.history import NOTHING, POINTS_MAX, History, Point, detail_of
from walkit.views.load_controls import PRESETS, LoadControls
from walkit.views.page import make_shell
from walkit.views.page_live import Card, CardRow, LivePage, LoadView, cards_html, spark_words
from walkit.views.session import Session
from walkit.views.shell import Shell
from walkit.views.sources import Reading
from walkit.workload import ContinuousLoad

DISK, MODEL = "this disk", "gp3, modelled"


@pytest.fixture
def shell() -> Iterator[Shell]:
    made = make_shell()
    yield made
    made.close()


def page_of(shell: Shell) -> LivePage:
    assert isinstance(shell.page, LivePage)
    return shell.page


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("One writer", [{"writers": 1}]),
        ("64 writers", [{"writers": 64}]),
        ("Open loop", [{"writers": 64, "arrivals_per_s": 1_000}]),
        ("Slow volume", [{"writers": 16, "device": "gp3"}]),
        ("Direct I/O", [{"direct_io": True}]),
    ],
)
def test_a_preset_sets_every_control(shell: Shell, preset: str, expected: list[dict[str, Any]]) -> None:
    """Press a preset after other choices: the load is the preset's, all else as on a new page; the URL has it."""
    page = page_of(shell)
    page.controls.choose({"bytes": 5_000, "policy": "adaptive", "seed": 3})
    page.presets[preset].clicks += 1
    assert page.controls.loads == tuple(ContinuousLoad(raw=True, **fields) for fields in expected)
    shell.refresh()
    assert urlencode(page.state()) in str(shell.query.value)
    drawers: Any = page.controls.__panel__()
    assert not drawers.objects
    for name, count in (("Load", 7), ("Log", 5)):
        page.controls.drawers[name].value = True
        assert len(drawers.objects) == count
        page.controls.drawers[name].value = False
    assert set(PRESETS[preset]) <= set(LoadControls().named)


def test_both_volumes_have_one_seed(shell: Shell) -> None:
    """Side by side: the same load and seed on this disk and on the model, which has no page cache to go past."""
    page = page_of(shell)
    page.controls.choose({"where": "both", "device": "local-nvme", "seed": 5, "direct": True})
    disk, model = page.controls.loads
    assert (disk.device, disk.direct_io, disk.seed) == ("", True, 5)
    assert model == replace(disk, device="local-nvme", direct_io=False)
    page.controls.choose({"where": "model", "direct": True})
    with pytest.raises(OptionsError, match="direct_io"):
        _ = page.controls.loads
    page.start.clicks += 1
    assert "direct_io" in page.live.status.object and "role='alert'" in page.live.status.object


def test_a_url_sets_the_controls_and_what_means_nothing_is_ignored() -> None:
    """Every control there and back; text that is not a choice changes nothing."""
    chosen = {
        "style": "asyncio tasks",
        "writers": "3",
        "arrivals": "50",
        "direct": "yes",
        "device": "local-nvme",
    }
    controls = LoadControls()
    controls.restore(chosen)
    assert {name: controls.state()[name] for name in chosen} == chosen
    before = controls.state()
    for wrong in ("", "9" * 30, "-1", "nonsense", "٣", "maybe"):
        controls.restore(dict.fromkeys(controls.named, wrong))
    assert controls.state() == before


class Told(Session):
    """A session with given readings; it has no children."""

    def __init__(self) -> None:
        super().__init__()
        self.next: dict[str, Reading] = {}

    def readings(self) -> dict[str, Reading]:
        found, self.next = self.next, {place: Reading(status="") for place in self.next}
        return found


@pytest.fixture
def told() -> Iterator[Told]:
    session = Told()
    yield session
    session.close()


def sample(first_position: int) -> FrameSample:
    """Three frames in two lanes; the second is the slowest."""
    column = np.array
    return FrameSample(
        column([1, 3, 5]),
        column([2, 2, 1]),
        column([256, 256, 256]),
        column([0, 256, 512]) + first_position,
        column([1000, 2000, 9000]),
        column([1100, 2100, 9100]),
        column([2000, 8000, 9500]),
        column([2000, 8000, -1]),
        column([2000, 8000, 9500]),
        column([0, 1, 0]),
        seen=3,
        slowest=1,
    )


def reading(first: int, count: int, *, position: int = 0, text: str = "8 threads") -> Reading:
    latency = LatencyHistogram.from_samples([1_000_000] * 9 + [50_000_000])
    points = [
        Point(float(i), 100.0 + i, 1000, 50000, 50000, frames_per_s=50.0, raw_per_s=200.0)
        for i in range(first, first + count)
    ]
    return Reading(
        status="",
        points=points,
        details=[detail_of(latency, sample(position + 1000 * i)) for i in range(count)],
        bands=[Band(float(first), text)],
        events=[RunEvent(float(first), "walkit.segment.rotate", {})],
        raw="200 writes/s of 512 B, measured at 10:00:00",
    )


def traces(view: LoadView, pane: str) -> dict[str, Any]:
    return {trace.name: trace for trace in getattr(view, pane).object.data}


def test_what_a_session_tells_is_drawn(told: Told) -> None:
    """Curves, raw line, heat map, frames, bands and cards are those of the readings."""
    view = LoadView(told, lambda place, position: None)
    told.next = {DISK: reading(0, 4)}
    view.refresh()
    rates, latency = traces(view, "rates"), traces(view, "latency")
    assert list(rates["records/s"].y) == [100.0, 101.0, 102.0, 103.0]
    assert list(rates["frames/s"].y) == [50.0] * 4 and list(rates["raw device"].y) == [200.0] * 4
    heat = latency["records by latency"]
    assert np.asarray(heat.z).sum() == 40 and np.asarray(heat.z).shape[1] == 4
    assert len(heat.y) == len(heat.z) + 1 and len(heat.x) == 5
    assert min(heat.y) <= 0.001 <= max(heat.y)
    bars = traces(view, "frames")["write and sync"]
    assert [row[0] for row in bars.customdata] == [3000, 3256, 3512]
    assert list(bars.y) == ["slot 1", "slot 2", "slot 1"]
    assert "the slowest" in bars.customdata[1][2]
    assert "synced not yet" in bars.customdata[2][2]
    assert [note.text for note in view.rates.object.layout.annotations] == ["8 threads"]
    cards = view.cards.object
    assert "25%" in cards and "measured at 10:00:00" in cards and ">103<" in cards
    assert cards.count('role="img"') == 5 and "records/s: last 103, between 100 and 103" in cards


def test_axes_have_numbers_once_there_is_a_point(told: Told) -> None:
    """Draw nothing, then a reading: an example, then frames; each axis has numbers but one of two equal clocks."""
    view = LoadView(told, lambda place, position: None)
    for count, numbered in ((0, False), (4, True)):
        told.next = {DISK: reading(0, count)}
        view.refresh()
        assert ("An example" in str(view.frames.object.layout.annotations)) is not numbered
        for pane in view.panes:
            layout = pane.object.layout.to_plotly_json()
            axes = [axis for name, axis in layout.items() if name.startswith(("xaxis", "yaxis"))]
            own = [axis.get("showticklabels", True) for axis in axes if "matches" not in axis]
            assert own and set(own) == {numbered}
            assert not any(axis["showticklabels"] for axis in axes if "matches" in axis)


def test_words_of_a_late_configuration_stay_in_the_figure(told: Told) -> None:
    """Three configurations, the last near the end: words at the left edge, at its beginning, at the right edge."""
    view = LoadView(told, lambda place, position: None)
    told.next = {DISK: reading(0, 40)}
    bands = [Band(0.0, "8 threads"), Band(10.0, "9 threads"), Band(38.0, "10 threads")]
    told.next[DISK] = replace(told.next[DISK], bands=bands)
    view.refresh()
    notes = view.rates.object.layout.annotations
    assert [(note.text, note.x, note.xref, note.xanchor) for note in notes] == [
        ("8 threads", 0, "x domain", "left"),
        ("9 threads", 10, "x", "left"),
        ("10 threads", 1, "x domain", "right"),
    ]


def test_two_places_are_drawn_with_their_names(told: Told) -> None:
    """Two readings: curves with their place's name, a heat map each, lanes of both, two rows in a card."""
    view = LoadView(told, lambda place, position: None)
    told.next = {DISK: reading(0, 4), MODEL: reading(1, 4, position=90_000)}
    view.refresh()
    rates = traces(view, "rates")
    assert {"records/s, disk", "records/s, gp3", "raw device, gp3"} <= set(rates)
    latency = traces(view, "latency")
    assert {"records by latency, disk", "records by latency, gp3"} <= set(latency)
    assert {"disk slot 1", "gp3 slot 2"} <= set(traces(view, "frames")["write and sync"].y)
    assert view.cards.object.count('role="img"') == 10
    told.next = {DISK: reading(4, 300)}
    view.window = "10 s"
    view.refresh()
    assert "records/s" in traces(view, "rates"), "a place that is out of the window is not drawn"


def test_a_pause_freezes_what_is_drawn_and_forgets_nothing(told: Told) -> None:
    """Paused: figures and cards stand still while points come; then everything is there."""
    view = LoadView(told, lambda place, position: None)
    told.next = {DISK: reading(0, 4)}
    view.refresh()
    before = view.cards.object
    view.paused = True
    told.next = {DISK: reading(4, 4)}
    view.refresh()
    assert "Paused" in view.status.object and view.cards.object == before
    assert len(traces(view, "rates")["records/s"].x) == 4
    view.paused = False
    view.refresh()
    assert list(traces(view, "rates")["records/s"].x) == list(range(8))


@pytest.mark.parametrize(("window", "begin_s"), [("10 s", 289.0), ("1 min", 239.0), ("all", 0.0)])
def test_the_window_is_chosen(told: Told, window: str, begin_s: float) -> None:
    """Three windows: each clock ends at the newest point and reaches back as far as asked; no more is drawn."""
    view = LoadView(told, lambda place, position: None)
    told.next = {DISK: reading(0, 300)}
    view.refresh()
    view.window = window
    view.refresh()
    for pane, clocks in (("rates", ("xaxis", "xaxis2")), ("latency", ("xaxis",))):
        layout = getattr(view, pane).object.layout
        assert [tuple(layout[clock].range) for clock in clocks] == [(begin_s, 299.0)] * len(clocks)
    drawn = traces(view, "rates")["records/s"].x
    assert drawn[0] == max(begin_s - 1, 0)


def test_all_is_all_of_the_time_in_a_bounded_number_of_points(told: Told) -> None:
    """Ten times as many points as are remembered, looked at as "all": from the first second on, no more of them."""
    view = LoadView(told, lambda place, position: None)
    view.window = "all"
    count = 10 * POINTS_MAX
    told.next = {DISK: reading(0, count)}
    view.refresh()
    rates, latency = traces(view, "rates"), traces(view, "latency")
    drawn = rates["records/s"]
    assert POINTS_MAX // 2 <= len(drawn.x) <= POINTS_MAX
    assert view.rates.object.layout.xaxis.range == (drawn.x[0], count - 1)
    assert drawn.x[0] < count / 100 and drawn.x[-1] == count - 1
    assert np.asarray(latency["records by latency"].z).sum() == 10 * count
    assert np.mean(drawn.y) == pytest.approx(100 + (count - 1) / 2, rel=0.01)


def test_a_clicked_frame_is_inspected(shell: Shell, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """A click on a bar, and the button for the slowest one, turn to the Inspector; a model has none."""
    page, gone = page_of(shell), cast("list[tuple[str, Mapping[str, str]]]", [])
    monkeypatch.setattr(page, "_go", lambda slug, state: gone.append((slug, state)))
    page.live.session = told
    assert page.inspect.disabled
    told.next = {DISK: reading(0, 1, position=7_000), MODEL: reading(0, 1)}
    page.refresh()
    assert not page.inspect.disabled
    page.live.frames.click_data = {"points": [{"curveNumber": 1}, {"customdata": [7256, 0, "words"]}]}
    assert gone == [("inspector", {"log": "scratch", "position": "7256"})]
    page.live.frames.click_data = {"points": [{"customdata": [256, 1, "words"]}]}
    assert len(gone) == 1 and "without a file to inspect" in str(page.session.jobs.problem)
    page.inspect.clicks += 1
    assert gone[1:] == [("inspector", {"log": "scratch", "position": "7256"})]


def test_frames_around_the_slowest_in_view(shell: Shell) -> None:
    """Asked for the slowest: the sample with the slowest frame of the window, not the newest one."""
    history = History()
    slow = sample(0)._replace(acked_ns=np.array([2000, 90_000, 95_000]))
    samples = [slow, None, sample(5000)]
    history.add([Point(float(i)) for i in range(3)], details=[detail_of(None, each) for each in samples])
    newest, slowest = (history.load_series(DISK, 9, slowest=flag).frames for flag in (False, True))
    assert newest is samples[2] and slowest is slow


def test_a_point_without_a_detail_is_counted_as_nothing() -> None:
    """Fewer details than points: the last rows are zeros; more details than points are a mistake."""
    history = History(points_max=3)
    latency = LatencyHistogram.from_samples([5_000])
    history.add([Point(0.0), Point(1.0)], details=[detail_of(latency, None)])
    assert history.load_series("", 9).latency_counts.sum(axis=1).tolist() == [1, 0]
    assert len(NOTHING) % (len(LATENCY_EDGES_S) - 1) == 0
    every = (len(FINE_EDGES_NS) - 1) // (len(LATENCY_EDGES_S) - 1)
    assert np.allclose(FINE_EDGES_NS[::every], np.asarray(LATENCY_EDGES_S) * 1e9)
    with pytest.raises(ValueError, match="more details"):
        history.add([], details=[detail_of(None, None)])


def test_cards_are_escaped_and_said_in_words() -> None:
    """Whatever a title or a place holds is text; a curve has words, gaps and nothing included."""
    row = CardRow(place="<a>", value="<b>", curve=np.array([1.0, np.nan, 2000.0, 3.0]), note="<c>")
    html = cards_html([Card(title="<d>", meaning='"m"', rows=[row, row])])
    assert not any(f"<{letter}>" in html for letter in "abcd")
    assert "&quot;m&quot;" in html
    assert html.count("<polyline") == 2
    assert spark_words("p99", np.array([1.0, np.nan, 2000.0])) == "p99: last 2k, between 1 and 2k"
    assert spark_words("p99", np.array([np.nan])) == "p99: nothing seen yet"
