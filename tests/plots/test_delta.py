"""The figures of a delta reader hold the samples and the bytes that they were given."""

from __future__ import annotations

import numpy as np
import pytest

from walkit.plots import alt_text, delta_lags, delta_latencies


def test_each_histogram_has_every_sample_in_its_bin() -> None:
    """Draw two kinds and an empty one: shares add up to one, and each sample lies between its bin's edges."""
    given = {"read": np.array([20e6, 21e6, 50e6]), "insert": np.array([1000.0]), "poll": np.array([])}
    drawing = delta_latencies(given)
    assert [trace.name for trace in drawing.data] == ["read, p50 21 ms, n 3", "insert, p50 1 µs, n 1"]
    for trace, ns in zip(drawing.data, (given["read"], given["insert"]), strict=True):
        edges, shares = np.asarray(trace.x), np.asarray(trace.y)
        assert shares.sum() == pytest.approx(1)
        assert edges[0] <= ns.min() / 1e9 <= ns.max() / 1e9 <= edges[-1] * (1 + 1e-9)
    assert "read: p50 21 ms" in alt_text(drawing)
    assert "no samples" in alt_text(delta_latencies({}))


@pytest.mark.parametrize(("most", "dtick"), [(30.0, "D2"), (3_000.0, None)])
def test_lags_within_two_decades_are_named_at_1_2_and_5(most: float, dtick: str | None) -> None:
    """Draw lags of one and of three decades: of the narrow axis only 1, 2 and 5 have words, which do not overlap."""
    assert delta_lags({"by delta": {1.0: [2.0], 4.0: [most]}}, x="KiB").layout.yaxis.dtick == dtick


def test_lags_are_medians_with_their_spread() -> None:
    """Draw two ways and one without lags: medians in seconds, bars to least and most, n and ways in the words."""
    drawing = delta_lags(
        {
            "by delta": {4.0: [1.0, 2.0, 6.0], 1.0: [1.0]},
            "the log alone": {4.0: [20.0, 30.0]},
            "no": {4.0: []},
        },
        x="KiB",
    )
    by_delta, by_log = drawing.data
    assert list(by_delta.x) == [1.0, 4.0]
    assert list(by_delta.y) == pytest.approx([0.001, 0.002])
    assert list(by_delta.error_y.array) == pytest.approx([0, 0.004])
    assert list(by_delta.error_y.arrayminus) == pytest.approx([0, 0.001])
    assert list(by_log.y) == pytest.approx([0.025])
    assert (
        alt_text(drawing)
        == "Lag over KiB, medians of 1 to 3 rounds: by delta: 1 ms to 2 ms; the log alone: 25 ms to 25 ms"
    )
    assert "no lags" in alt_text(delta_lags({}, x="KiB"))
