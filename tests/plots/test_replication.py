"""The figure of a replica's lag holds the samples it was given."""

from __future__ import annotations

import numpy as np
import pytest

from walkit.errors import OptionsError
from walkit.plots import replication_lag

SAMPLES = [(0.5, 10, 0), (1.0, 20, 15), (1.5, 30, 31), (4.0, 30, 30)]


def test_both_sides_and_the_lag_are_the_samples() -> None:
    """LSNs and their difference, on one clock; a replica sampled later than its primary is not ahead."""
    drawn = {trace.name: trace for trace in replication_lag(SAMPLES).data}
    assert list(drawn) == ["primary", "replica", "lag"]
    for trace in drawn.values():
        assert np.asarray(trace.x).tolist() == [0.5, 1.0, 1.5, 4.0]
        assert trace.line.shape == "hv"
    assert np.asarray(drawn["primary"].y).tolist() == [10, 20, 30, 30]
    assert np.asarray(drawn["replica"].y).tolist() == [0, 15, 31, 30]
    assert np.asarray(drawn["lag"].y).tolist() == [10, 5, 0, 0]
    drawing = replication_lag(np.array(SAMPLES))
    assert drawing.layout.title.text.startswith("Replication lag: at most 10 records, 0 in the end<br>")
    assert tuple(drawing.layout.xaxis2.range) == (0.5, 4.0)


def test_marks_are_at_their_time_inside_the_figure() -> None:
    """A line for each mark in both panels, words escaped, those at the right end left of their line, on the axis."""
    marks = [(0.25, "started"), (1.25, "<killed>"), (4.0, "caught up")]
    drawing = replication_lag(SAMPLES, marks=marks)
    assert sorted({shape.x0 for shape in drawing.layout.shapes}) == [0.25, 1.25, 4.0]
    words = [(note.x, note.text, note.xanchor) for note in drawing.layout.annotations]
    assert words == [
        (0.25, "started", "left"),
        (1.25, "&lt;killed&gt;", "left"),
        (4.0, "caught up", "right"),
    ]
    assert tuple(drawing.layout.xaxis.range) == (0.25, 4.0)


def test_no_samples_are_an_empty_figure_and_another_shape_is_refused() -> None:
    """Without samples the figure's title notes it; rows of two numbers are an OptionsError."""
    drawing = replication_lag(np.empty((0, 3)))
    assert drawing.layout.title.text.startswith("Replication lag: no samples<br>")
    with pytest.raises(OptionsError, match="primary's LSN"):
        replication_lag([(0.0, 1.0)])
