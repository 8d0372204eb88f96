"""Which rows are the newest of their keys: against a dict, for keys of every length, and where hashes collide."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkit.state.reconcile import newest_of

LENGTHS = (0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65)


def expected_of(keys: list[bytes]) -> list[bool]:
    """A dict keeps the last."""
    last = {key: row for row, key in enumerate(keys)}
    return [last[key] == row for row, key in enumerate(keys)]


def check(keys: list[bytes]) -> None:
    """Ask for both widths of offsets, and for a slice between other rows."""
    for kind in (pa.binary(), pa.large_binary()):
        assert newest_of(pa.array(keys, kind)).tolist() == expected_of(keys)
        cut = pa.array([b"before", *keys, b"behind"], kind).slice(1, len(keys))
        assert newest_of(cut).tolist() == expected_of(keys)


@given(st.lists(st.binary(max_size=3) | st.text("ab\0", max_size=70).map(str.encode), max_size=40))
def test_it_keeps_the_keys_of_a_dict(keys: list[bytes]) -> None:
    """Keys of mixed lengths, zero bytes among them, up to longer than is compared word by word."""
    check(keys)


@pytest.mark.parametrize("length", LENGTHS)
def test_keys_of_one_length(length: int) -> None:
    """Few distinct keys of exactly one length, each many times, that differ in the first or in the last byte alone."""
    rng = np.random.default_rng(length)
    keys = [bytes(length)] * 50
    if length:
        keys = [bytes([n % 4]) + bytes(length - 1) for n in rng.integers(0, 9, 50)]
        keys += [bytes(length - 1) + bytes([n % 4]) for n in rng.integers(0, 9, 50)]
    check(keys)


def test_keys_that_collide_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one hash for all keys each round settles one key; the dictionary settles the rest."""
    monkeypatch.setitem(newest_of.__globals__, "_hashed", lambda words: np.zeros(len(words[0]), np.uint64))
    check([b"%d" % (n % 23) for n in range(100)])


def test_many_rows_of_many_keys() -> None:
    """A hundred thousand rows of forty thousand keys, where hundreds of keys come to one slot with another."""
    rows = np.random.default_rng(7).integers(0, 40_000, 100_000).tolist()
    keys = [b"%d" % row for row in rows]
    assert newest_of(pa.array(keys, pa.binary())).tolist() == expected_of(keys)
