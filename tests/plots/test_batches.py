"""The figure of a stream's batches."""

from __future__ import annotations

import pytest

from walkit.plots import alt_text, batch_times, svg_of


def test_batches_show_their_number_and_spread() -> None:
    """Draw two sizes: n, medians and ranges in the words, whiskers from least to most, a picture without a browser."""
    drawing = batch_times({3_200: [0.9, 0.7, 0.8], 200: [0.5, 0.3, 0.4]})
    words = alt_text(drawing)
    assert "n 3" in words and words.index("400 ms") < words.index("800 ms")
    assert "n = 3" in drawing.layout.title.text or "n = 3" in str(drawing.layout)
    medians = drawing.data[1]
    assert list(medians.x) == [200, 3_200] and list(medians.y) == pytest.approx([0.4, 0.8])
    assert list(medians.error_y.array) == pytest.approx([0.1, 0.1])
    assert "<svg" in svg_of(drawing)


@pytest.mark.parametrize("given", [{}, {200: []}])
def test_no_batches_are_refused(given: dict[int, list[float]]) -> None:
    """Give no size, and a size without a batch."""
    with pytest.raises(ValueError, match="at least one batch"):
        batch_times(given)
