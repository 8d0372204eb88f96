"""The figure of one schedule of a seeded world."""

from __future__ import annotations

import pytest

from walkit import plots
from walkit.errors import OptionsError
from walkit.simulate.world import run_schedule
from walkit.simulate.world_faults import Schedule


def test_the_figure_shows_everyone_and_every_fault() -> None:
    """Draw a schedule: a line for each process that ends at the same LSN, and a bar for each fault with its words."""
    outcome = run_schedule(Schedule(seed=3), sample_ms=20)
    drawn = plots.world_schedule(outcome)
    lines = [trace for trace in drawn.data if trace.type == "scatter"]
    assert [line.name for line in lines] == ["primary", "replica-1", "replica-2", "reader-1", "reader-2"]
    assert {line.y[-1] for line in lines} == {outcome.records}
    bars = [words for trace in drawn.data if trace.type == "bar" for words in trace.customdata]
    assert sorted(bars) == sorted(map(str, outcome.schedule.faults()))
    assert "every rule holds" in plots.alt_text(drawn) or "every rule holds" in drawn.layout.title.text


def test_an_outcome_without_samples_is_refused() -> None:
    """Draw what was run without samples: an OptionsError says how to run it."""
    with pytest.raises(OptionsError, match="sample_ms"):
        plots.world_schedule(run_schedule(Schedule(seed=2, keep=(), chaos_ms=100)))
