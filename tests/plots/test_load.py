"""Latency over offered load, and space amplification: the figures hold what the runs say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plots.test_figures import make_run
from walkit.measure import LatencyHistogram, Run, kept_up, knee, offered_per_s
from walkit.plots import latency_over_load
from walkit.plots.style import COLOURS


def at_load(rate: float, *, due_s: float = 0.99, **changes: Any) -> Run:
    """A run of one second whose last call was due at `due_s`, its latency in proportion to its rate."""
    latency = {"total": LatencyHistogram.from_samples([rate * 1000] * 99 + [rate * 50_000])}
    given: dict[str, Any] = {
        "arrival": "open",
        "labels": {"offered_per_s": rate},
        "options": {"due_s": due_s},
        "latency": latency,
        "name": "swept",
    }
    return make_run(**{"seed": 1, **given, **changes})


LATE = {"due_s": 0.5}


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], None),
        ([at_load(10), at_load(20)], None),
        ([at_load(10, **LATE)], None),
        ([at_load(40, **LATE), at_load(10), at_load(20)], 20),
        ([at_load(10), at_load(20, **LATE), at_load(30)], 10),
        ([at_load(10), at_load(20, interrupted=True), at_load(30, **LATE)], 20),
        ([make_run("closed", 1), at_load(5), at_load(6, **LATE)], 5),
    ],
)
def test_the_knee_is_the_highest_load_with_all_below_kept_up(runs: list[Run], expected: float | None) -> None:
    """Runs in any order, late ones, partial and closed ones: the knee is where keeping up ends, or is not there."""
    assert knee(runs) == expected


def test_unknown_values_are_not_shown() -> None:
    """A closed loop offers no load; a partial run neither kept up nor fell behind."""
    closed = make_run("closed", 1, labels={"offered_per_s": 5})
    assert offered_per_s(closed) is None and kept_up(closed) is None
    assert kept_up(at_load(5, interrupted=True)) is None
    assert kept_up(at_load(5)) is True and kept_up(at_load(5, **LATE)) is False


def test_latency_over_load_draws_every_percentile_of_every_series() -> None:
    """Two series and a closed run: a line for each percentile, points in order of load, hollow after the knee."""
    runs = [at_load(40, **LATE), at_load(10), at_load(20), make_run("closed", 2)]
    runs += [at_load(15, name="other", durability="none")]
    drawing = latency_over_load(runs, percentiles=(50, 100))
    assert [trace.name for trace in drawing.data] == [
        *("swept (sync): p50", "swept (sync): max"),
        *("other (none): p50", "other (none): max"),
    ]
    first = drawing.data[0]
    assert list(first.x) == [10, 20, 40]
    assert [round(y * 1e6) for y in first.y] == [10, 20, 40]
    assert [round(y * 1e6 / 50) for y in drawing.data[1].y] == [10, 20, 40]
    assert list(first.marker.symbol) == ["circle", "circle", "circle-open"]
    assert first.line.color == COLOURS[0] and drawing.data[2].line.color == COLOURS[1]
    assert [line.x0 for line in drawing.layout.shapes] == [20]
    (note,) = drawing.layout.annotations
    assert note.text == "knee 20/s" and 10**note.x == pytest.approx(20)
    assert "sync means nothing" in drawing.layout.title.text
    assert latency_over_load([]).data == ()


def test_one_run_is_drawn_as_a_list_of_it_is() -> None:
    """Draw a single Run and the list of it, and two series with percentiles that can be gone through only once."""
    run, other = at_load(10), at_load(15, name="other")
    assert latency_over_load(run).to_dict() == latency_over_load([run]).to_dict()
    assert len(latency_over_load([run, other], percentiles=iter((50, 99))).data) == 4
