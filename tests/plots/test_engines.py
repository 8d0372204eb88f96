"""The figure of engines by size."""

from __future__ import annotations

from math import log10

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


def test_lines_are_named_at_their_ends_if_there_is_room() -> None:
    """Draw lines that end together, and apart: a label at each, none over another. Long names and many: a legend."""
    times = {"Arrow": 1.0, "Spark": 1.01, "SQLite": 100.0}
    drawing = engine_times({name: {10: [0.1], 100: [seconds]} for name, seconds in times.items()})
    labels = {note.text: note for note in drawing.layout.annotations}
    assert list(labels) == ["Arrow", "Spark", "SQLite"] and not any(t.showlegend for t in drawing.data)
    assert [labels[name].y for name in labels] == pytest.approx([0, log10(1.01), 2])
    assert (labels["Arrow"].yshift, labels["SQLite"].yshift) == (0, 0) and 15 < labels["Spark"].yshift < 17
    assert drawing.layout.margin.r > 6 * len("SQLite"), "there is room beside the panel"
    zero = engine_times({"Arrow": {10: [0.1]}, "Spark": {10: [0.0]}})
    assert [note.text for note in zero.layout.annotations] == ["Arrow"] and zero.data[1].showlegend is None
    for names in (["an engine of many words", "b"], list("abcde")):
        drawing = engine_times({name: {10: [0.1]} for name in names})
        assert not drawing.layout.annotations and all(t.showlegend is not False for t in drawing.data)


def test_durations_have_a_space_before_their_unit() -> None:
    """Draw milliseconds: ticks of the picture, and of plotly on a logarithmic axis, have a narrow space."""
    drawing = engine_times({"Arrow": {10: [0.002, 0.003], 100: [0.2]}})
    assert ">10\u202fms<" in svg_of(drawing)
    names = drawing.layout.yaxis.labelalias
    assert (names["2m"], names["10ms"], names["1s"]) == ("2\u202fms", "10\u202fms", "1\u202fs")


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
