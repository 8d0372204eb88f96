"""The figure of an exploration holds every point with its states, and marks what was judged whole and what breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from walkit.crashlab import Exploration, PointResult
from walkit.errors import OptionsError
from walkit.plots import alt_text, crash_states, data, svg_of


def explored(*points: PointResult, broken: int = 0, mutant: str = "") -> Exploration:
    """Return an exploration of these points."""
    return Exploration(
        scenario="append",
        about="one record",
        profile="contract",
        seed=0,
        budget=10,
        durability="sync",
        mutant=mutant,
        points=points,
        distinct=9,
        violations=(),
        broken=broken,
        duration_s=0.5,
    )


def point(number: int, operation: str, possible: int, judged: int, broken: int = 0) -> PointResult:
    """Return what came of one point."""
    return PointResult(
        number=number, operation=operation, possible=possible, explored=judged, violations=broken
    )


POINTS = (
    point(0, "create <manifest>.new", 2, 2),
    point(1, "synced write of [0, 4,096) of 1.segment", 512, 40, broken=3),
    point(2, "write of [0, 4,096) of 1.segment", 10**400, 7),
    point(3, "the end of the run", 1, 0),
)


def test_each_point_has_its_states_its_kind_and_its_marks() -> None:
    """Draw four points: bars of possible and judged states by kind, a diamond, a cross, no bar for unjudged points."""
    drawing = crash_states(explored(*POINTS, broken=3))
    drawn = {trace.name: (list(trace.x), list(trace.y)) for trace in drawing.data}
    assert drawn == {
        "write: possible": ([1, 2], [512, 1e200]),
        "write": ([1, 2], [40, 7]),
        "name: possible": ([0], [2]),
        "name": ([0], [2]),
        "end of the run: possible": ([3], [1]),
        "end of the run": ([3], [None]),
        "all states judged": ([0], [2]),
        "breaks a rule": ([1], [40]),
    }
    words = [text for trace in drawing.data for text in trace.customdata]
    assert any("create &lt;manifest&gt;.new<br>2 possible, 2 judged" in text for text in words)
    assert any("512 possible, 40 judged, 3 break a rule" in text for text in words)
    assert any("1.0 x 10^400 possible, 7 judged" in text for text in words)
    assert "3 distinct ones break a rule" in alt_text(drawing) and "1 of them whole" in alt_text(drawing)
    assert drawing.layout.yaxis.type == "log" and drawing.layout.yaxis.title.text == "states"
    assert svg_of(drawing).lstrip().startswith("<svg") and len(data(drawing)) == 10


def test_several_runs_have_a_panel_each_and_one_legend() -> None:
    """Draw two runs, one with a mutant and interrupted: two titled panels, each name once in the legend, a banner."""
    second = explored(*POINTS[:2], broken=3, mutant="promise-first")
    drawing = crash_states([explored(*POINTS), replace(second, interrupted=True)])
    titles = [note.text for note in drawing.layout.annotations]
    assert titles == ["append, contract", "append, contract, with promise-first"]
    named = [trace.name for trace in drawing.data if trace.showlegend is not False]
    assert sorted(named) == sorted(set(named))
    assert {trace.yaxis for trace in drawing.data} == {"y", "y2"}
    assert "interrupted" in drawing.layout.meta["warnings"][0]
    with pytest.raises(OptionsError, match="explored="):
        crash_states([])
