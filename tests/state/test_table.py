"""The keyed table: its results, and that an interrupted batch can be applied again."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from walkit._internal.arrow import numbers_of
from walkit.record import Batch
from walkit.state import KeyedTable
from walkit.state.table import IMAGE_RECORDS, TABLE_SCHEMA


def table_with(count: int) -> KeyedTable:
    """A table of `count` keys that came in descending order."""
    table = KeyedTable()
    keys = [b"%06d" % i for i in reversed(range(count))]
    table.apply(Batch(range(1, count + 1), 1, keys, [key * 2 for key in keys]))
    return table


def test_reading_is_in_order_of_keys() -> None:
    """Keys that came in descending order come out ascending: iteration, items, Arrow."""
    table = table_with(50)
    keys = [b"%06d" % i for i in range(50)]
    assert list(table) == keys
    assert table.items() == [(key, key * 2) for key in keys]
    arrow = table.to_arrow()
    assert arrow.schema == TABLE_SCHEMA
    assert arrow["key"].to_pylist() == keys
    assert arrow["lsn"].to_pylist() == list(range(50, 0, -1))


def test_single_keys() -> None:
    """get with and without a default, [], in, len, lsn_of: of a live key, a deleted one, one never there."""
    table = table_with(3)
    table.apply(Batch([4], 2, [b"000001"], None))
    assert (table.get(b"000000"), table[b"000000"], table.lsn_of(b"000000")) == (
        b"000000" * 2,
        b"000000" * 2,
        3,
    )
    for gone in (b"000001", b"never"):
        assert (table.get(gone), table.get(gone, 7), table.lsn_of(gone), gone in table) == (
            None,
            7,
            None,
            False,
        )
        with pytest.raises(KeyError):
            table[gone]
    assert len(table) == 2
    assert b"000002" in table


def test_a_put_without_a_value_is_a_live_key() -> None:
    """An absent value is kept apart from an empty one, and from no key, also through a snapshot."""
    table = KeyedTable()
    table.apply(Batch(range(1, 4), 1, [b"absent", b"empty", b"full"], [None, b"", b"x"]))
    table.apply(Batch([4], 1, [b"uniform"], None))
    again = KeyedTable()
    again.restore(table.snapshot(), 4)
    for t in (table, again):
        assert t.items() == [(b"absent", None), (b"empty", b""), (b"full", b"x"), (b"uniform", None)]


def test_large_snapshots_come_in_equal_batches() -> None:
    """More keys than one batch takes: full batches except the last, and an empty table has none."""
    sizes = [len(batch) for batch in table_with(IMAGE_RECORDS * 2 + 5).snapshot()]
    assert sizes == [IMAGE_RECORDS, IMAGE_RECORDS, 5]
    assert list(KeyedTable().snapshot()) == []
    assert len(KeyedTable().to_arrow()) == 0


class Breaks(list[bytes]):
    """A column in which an interrupt strikes once, at its second item."""

    struck = False

    def __iter__(self):  # type: ignore[no-untyped-def]
        for i, item in enumerate(super().__iter__()):
            if i == 1 and not Breaks.struck:
                Breaks.struck = True
                raise KeyboardInterrupt
            yield item


@pytest.mark.parametrize("kinds", [1, [1, 1, 1]])
def test_an_interrupted_batch_can_be_applied_again(kinds: int | list[int]) -> None:
    """An interrupt in the middle of apply leaves applied_lsn unchanged; the same batch again gives the whole."""
    Breaks.struck = False
    table = KeyedTable()
    batch = Batch(range(1, 4), kinds, [b"a", b"b", b"a"], Breaks([b"1", b"2", b"3"]))
    with pytest.raises(KeyboardInterrupt):
        table.apply(batch)
    assert table.applied_lsn == 0
    table.apply(batch)
    assert (table.items(), table.lsn_of(b"a"), table.applied_lsn) == ([(b"a", b"3"), (b"b", b"2")], 3, 3)


@pytest.mark.parametrize("pieces", [0, 1, 2])
def test_an_interrupted_settling_brings_no_deleted_key_back(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt the making of objects after some pieces, then gather a delete of each key: none is there."""
    monkeypatch.setattr("walkit.state.table.SETTLE_RECORDS", 2)
    keys = [b"a", b"b", b"c", b"d"]
    table = KeyedTable()
    table.gather(Batch(range(1, 5), 1, keys, keys).to_arrow())
    done = 0

    def interrupted(*given: Any) -> Any:
        nonlocal done
        if done == pieces:
            raise KeyboardInterrupt
        done += 1
        return numbers_of(*given)

    with monkeypatch.context() as patch:
        patch.setattr("walkit.state.table.numbers_of", interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            table.settle()
    table.gather(Batch(range(5, 8), 2, keys[:3], None).to_arrow())
    assert (table.items(), table.applied_lsn) == ([(b"d", b"d")], 7)


def test_lsns_of_a_replay_and_of_later_records() -> None:
    """Gather, then put, delete, and put a deleted key again: each key's LSN, one by one, in a snapshot, and all."""
    table, plain = KeyedTable(), KeyedTable()
    first = Batch(range(1, 6), 1, [b"a", b"b", b"c", b"d", b"a"], [b"1"] * 5)
    table.gather(first.to_arrow())
    plain.apply(first)
    for later in (
        Batch([6], 1, [b"b"], [b"2"]),
        Batch([7, 8], 2, [b"c", b"d"], None),
        Batch([9, 10], [1, 1], [b"c", b"e"], [b"3", None]),
    ):
        table.apply(later)
        plain.apply(later)
    assert [table.lsn_of(key) for key in (b"a", b"b", b"c", b"d", b"e")] == [5, 6, 9, None, 10]
    assert sorted(table.live_lsns()) == sorted(plain.live_lsns()) == [5, 6, 9, 10]
    assert table.to_arrow().equals(plain.to_arrow()) and table.checksum() == plain.checksum()
    table.restore(plain.snapshot(), 10)
    assert table.to_arrow().equals(plain.to_arrow())


def test_a_settling_interrupted_at_its_very_end_loses_no_delete() -> None:
    """Interrupt when the objects are made and not yet the table's; a delete that is gathered then is applied."""
    table = KeyedTable()
    table.gather(Batch(range(1, 3), 1, [b"a", b"b"], [b"1", b"2"]).to_arrow())
    assert table._gathered is not None
    table._gathered.tombstones = True  # as an interrupt right after it leaves it
    table.gather(Batch([3], 2, [b"a"], None).to_arrow())
    assert (table.items(), table.lsn_of(b"a"), table.lsn_of(b"b")) == ([(b"b", b"2")], None, 2)


def test_a_foreign_snapshot_is_refused() -> None:
    """Restoring records without keys or values is a ValueError: no keyed table gave them."""
    keyless, mixed = Batch([1], 1, None, [b"v"]), Batch([1, 2], 1, [b"k", None], [b"v", b"w"])
    for batch in (keyless, mixed, Batch([1], 1, [b"k"], None)):
        with pytest.raises(ValueError, match="keyed table"):
            KeyedTable().restore([batch], 2)
