"""Where the stream is cut for the two moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from walkit.demo.parts import FIRST_BETWEEN, SECOND_AT, cut
from walkit.workload import OperationStream, flight_operations
from walkit.workload.expected_state import change_counts, expected_changes

if TYPE_CHECKING:
    import pandas as pd


@pytest.fixture(scope="module")
def stream(flights: pd.DataFrame) -> OperationStream:
    return flight_operations(5_000, flights=flights)


def states(stream: OperationStream, ends: set[int]) -> dict[int, dict[bytes, bytes]]:
    """The states after the first n operations, by a dict."""
    live: dict[bytes, bytes] = {}
    found = {}
    for at in range(len(stream) + 1):
        if at in ends:
            found[at] = dict(live)
        if at < len(stream):
            key, value = stream.keys[at], stream.values[at]
            live.pop(key, None) if value is None else live.update({key: value})
    return found


def test_the_parts_are_the_stream(stream: OperationStream) -> None:
    """Put together the parts are the stream, no group is split, and the cuts are at their reported places."""
    parts = cut(stream)
    assert np.concatenate([part.numbers for part in parts.streams]).tolist() == stream.numbers.tolist()
    groups = [set(part.groups.tolist()) for part in parts.streams]
    assert not groups[0] & groups[1] and not groups[1] & groups[2]
    sizes = [len(part) for part in parts.streams]
    assert (parts.first_lsn, parts.second_lsn) == (sizes[0], sizes[0] + sizes[1])
    low, high = FIRST_BETWEEN
    assert low * len(stream) <= parts.first_lsn <= high * len(stream) + 1
    assert SECOND_AT * len(stream) <= parts.second_lsn <= SECOND_AT * len(stream) + 1


def test_the_first_cut_is_where_most_is_deleted(stream: OperationStream) -> None:
    """No other cut in its range has more keys that the second part deletes; something is inserted and changed, too."""
    parts = cut(stream)
    low, high = (int(len(stream) * part) for part in FIRST_BETWEEN)
    known = states(stream, {*range(low, high), parts.first_lsn, parts.second_lsn})
    counts = change_counts(expected_changes(known[parts.first_lsn], known[parts.second_lsn]))
    assert min(counts.values()) > 0
    second = known[parts.second_lsn].keys()
    assert counts["D"] == max(len(known[at].keys() - second) for at in range(low, high))
