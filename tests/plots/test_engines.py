"""The figure of engines by size."""

from __future__ import annotations

import pytest

from walkit.plots import alt_text, engine_times, svg_of


def test_engines_show_their_number_and_spread() -> None:
    """Draw two engines at two sizes: n and medians in the words, whiskers, sizes in order, a picture."""
    drawing = engine_times(
        {"Arrow": {9_000: [0.2, 0.4, 0.3], 100: [0.01, 0.03, 0.02]}, "<Spark>": {100: [0.5, 0.7, 0.6]}}
    )
    words = alt_text(drawing)
    assert "n 3" in words and words.index("20 ms") < words.index("300 ms") < words.index("600 ms")
    arrow, spark = drawing.data
    assert list(arrow.x) == [100, 9_000] and list(arrow.y) == pytest.approx([0.02, 0.3])
    assert list(arrow.error_y.arrayminus) == pytest.approx([0.01, 0.1])
    assert spark.name == "&lt;Spark&gt;" and spark.marker.symbol != arrow.marker.symbol
    assert list(drawing.layout.xaxis.ticktext) == ["100", "9k"]
    assert "n = 3" in str(drawing.layout) and "<svg" in svg_of(drawing)


def test_many_sizes_have_the_marks_of_the_axis() -> None:
    """Draw seven sizes, of segments: the axis has its own marks, which do not meet, and that name."""
    drawing = engine_times({"Arrow": {100 * 2**n: [0.1, 0.2] for n in range(7)}}, unit="segments")
    assert drawing.layout.xaxis.title.text == "segments" and "over segments" in alt_text(drawing)
    assert drawing.layout.xaxis.tickvals is None and drawing.layout.xaxis.dtick == "D2"


@pytest.mark.parametrize("given", [{}, {"Arrow": {}}, {"Arrow": {100: []}}])
def test_no_rounds_are_refused(given: dict[str, dict[float, list[float]]]) -> None:
    """Give no engine, one without a size, and a size without a round."""
    with pytest.raises(ValueError, match="at least one round"):
        engine_times(given)
