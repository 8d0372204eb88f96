"""The figures of a delta reader hold the samples and the bytes that they were given."""

from __future__ import annotations

import numpy as np
import pytest

from walkit.plots import alt_text, delta_hits, delta_latencies, svg_of
from walkit.replication.delta_state import HitRow

ROWS = [
    HitRow(up_to=1024, delta_bytes=900, loaded_bytes=100),
    HitRow(up_to=65536, delta_bytes=0, loaded_bytes=4000),
]


def test_each_histogram_has_every_sample_in_its_bin() -> None:
    """Draw two kinds and an empty one: shares add up to one, and each sample lies between its bin's edges."""
    given = {"read": np.array([20e6, 21e6, 50e6]), "insert": np.array([1000.0]), "poll": np.array([])}
    drawing = delta_latencies(given)
    assert [trace.name for trace in drawing.data] == ["read, p50 21 ms", "insert, p50 1 µs"]
    for trace, ns in zip(drawing.data, (given["read"], given["insert"]), strict=True):
        edges, shares = np.asarray(trace.x), np.asarray(trace.y)
        assert shares.sum() == pytest.approx(1)
        assert edges[0] <= ns.min() / 1e9 <= ns.max() / 1e9 <= edges[-1] * (1 + 1e-9)
    assert "read: p50 21 ms" in alt_text(drawing)
    assert "no samples" in alt_text(delta_latencies({}))


def test_the_bars_are_the_bytes_and_the_words_their_share() -> None:
    """Draw two classes: stacked bytes by path, the share above each bar, and all of it in title and picture."""
    drawing = delta_hits(ROWS)
    by_delta, by_log = drawing.data
    assert (list(by_delta.y), list(by_log.y)) == ([900, 0], [100, 4000])
    assert list(by_delta.x) == ["to 1 KiB", "to 64 KiB"]
    assert [note.text for note in drawing.layout.annotations] == ["90%", "0%"]
    assert drawing.layout.title.text.startswith("Delta reader: 18% of 4.883 KiB by delta")
    assert svg_of(drawing).lstrip().startswith("<svg")
    assert delta_hits([], by="bytes in a second").layout.title.text.startswith("Delta reader: no bytes yet")
