"""Newest records that are not alone: `FinalState` of a log that comes twice, or of several logs."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkit.record import RECORD_SCHEMA
from walkit.state.latest_reducer import FinalState

rows = st.lists(st.tuples(st.integers(1, 12), st.sampled_from([b"", b"a", b"b", b"a" * 80])), max_size=40)


def batch_of(part: list[tuple[int, bytes]]) -> pa.RecordBatch:
    """Puts of keys at LSNs."""
    records = [{"lsn": lsn, "kind": 1, "key": key, "value": b"v", "timestamp": None} for lsn, key in part]
    return pa.RecordBatch.from_pylist(records, RECORD_SCHEMA)


@given(rows=rows, size=st.integers(1, 7), eager=st.booleans())
def test_a_newest_record_that_is_not_alone_is_noticed(
    rows: list[tuple[int, bytes]], size: int, eager: bool
) -> None:
    """Any rows in any order, reduced at once or late: tied as a loop says, whatever came between, and nothing lost."""
    state = FinalState()
    for start in range(0, len(rows), size):
        state.add(batch_of(rows[start : start + size]))
        if eager:
            state.newest()
    found = state.newest()
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for lsn, key in rows:
        by_key[key].append(lsn)
    tied = {(key, max(lsns)) for key, lsns in by_key.items() if lsns.count(max(lsns)) > 1}
    assert (state.tied in tied) if tied else state.tied is None
    held = set(zip(found["key"].to_pylist(), found["lsn"].to_pylist(), strict=True))
    assert held == {(key, max(lsns)) for key, lsns in by_key.items()}
    if not tied:
        assert len(found) == len(by_key)


@pytest.mark.parametrize("later", [[(3, b"k")], [(9, b"k")]])
def test_a_tie_lasts_until_it_is_superseded(later: list[tuple[int, bytes]]) -> None:
    """Reduce two equal records, then add an older or a newer one in order: still tied, or no longer."""
    state = FinalState()
    state.add(batch_of([(5, b"k"), (5, b"k"), (5, b"other")]))
    state.newest()
    assert state.tied == (b"k", 5)
    state.add(batch_of(later))
    newest = state.newest()
    assert state.tied == ((b"k", 5) if later[0][0] < 5 else None)
    assert sorted(set(newest["lsn"].to_pylist())) == ([5] if later[0][0] < 5 else [5, 9])
