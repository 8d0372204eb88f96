"""Patches: a store that stands as a diff's left side becomes its right side, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import walkit
from walkit.models import CrashingStorage

LEFT = {b"same": b"1", b"gone": b"2", b"other": b"3", b"": b"", b"none": b"4"}
RIGHT = {b"same": b"1", b"new": b"5", b"other": b"6", b"": b"7", b"none": None}


def a_store(state: Mapping[bytes, bytes | None]) -> walkit.Store:
    """A store in memory with this state."""
    store = walkit.Store.open(storage=CrashingStorage())
    for key, value in state.items():
        store.log.append(value, key)
    return store


def test_a_store_becomes_the_right_side_in_one_transaction() -> None:
    """Patch the left with the diff to the right: equal states, by one frame; the way back too, also after opening."""
    with a_store(LEFT) as left, a_store(RIGHT) as right:
        there, back = walkit.diff(left, right), walkit.diff(right, left)
        before = left.log.statistics()
        assert left.apply_patch(there) is not None
        assert dict(left.items()) == RIGHT and walkit.diff(left, right).num_rows == 0
        after = left.log.statistics()  # a log that falls idle on a busy machine writes a mark
        assert (after.frames_written - after.marker_frames) - (
            before.frames_written - before.marker_frames
        ) == 1
        left.apply_patch(back)
        assert dict(left.items()) == LEFT


def test_a_patch_of_nothing_writes_nothing() -> None:
    """Apply the diff of a state with itself: None, and no LSN is given."""
    with a_store(LEFT) as store:
        before = store.log.appended_lsn
        assert store.apply_patch(walkit.diff(store, store)) is None
        assert store.log.appended_lsn == before


@pytest.mark.parametrize("key", [b"gone", b"other", b"new"])
def test_a_patch_of_another_state_is_refused_whole(key: bytes) -> None:
    """Let one key stand as on neither side, for each kind of change: refused by its name, and no key is changed."""
    with a_store(LEFT) as left, a_store(RIGHT) as right:
        patch = walkit.diff(left, right)
        left.put(key, b"something else")
        before = dict(left.items())
        with pytest.raises(walkit.OptionsError, match=key.decode()):
            left.apply_patch(patch)
        assert dict(left.items()) == before


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        pa.table({"key": [b"a"]}),
        pa.table({"key": ["a"], "change": ["I"], "left_value": [None], "right_value": [b"1"]}),
        pa.table({"key": [b"a"], "change": ["X"], "left_value": [None], "right_value": [b"1"]}),
    ],
)
def test_a_wrong_diff_is_refused(wrong: Any) -> None:
    """Apply a list, or a table without columns, with text keys or unknown changes: OptionsError, nothing is written."""
    with a_store(LEFT) as store:
        before = store.log.appended_lsn
        with pytest.raises(walkit.OptionsError, match="diff=") as refused:
            store.apply_patch(wrong)
        assert refused.value.option == "diff"
        assert store.log.appended_lsn == before
