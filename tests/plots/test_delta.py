"""The figures of a delta reader hold the samples that they were given."""

from __future__ import annotations

import numpy as np
import pytest

from walkit.plots import alt_text, delta_latencies


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
