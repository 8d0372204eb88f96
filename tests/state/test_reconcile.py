"""The one reconciliation rule, in words, as columns, and as the keyed table applies it."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkit.record import Batch, Kind
from walkit.state import KeyedTable, Winner, reconcile, reconcile_arrow

PUT, DELETE, BUNDLE, LINK = (int(kind) for kind in Kind)
Row = tuple[int, int, bytes | None, bytes | None]

KEYS = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"ab", b"\0", b"\xff"]), st.binary(max_size=3))
VALUES = st.one_of(st.none(), st.binary(max_size=6))


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Records in LSN order, with gaps."""
    rows: list[Row] = []
    lsn = 0
    for _ in range(draw(st.integers(0, 30))):
        lsn += draw(st.integers(1, 3))
        kind = draw(st.sampled_from([PUT, DELETE, BUNDLE, LINK]))
        rows.append((lsn, kind, draw(KEYS), None if kind == DELETE else draw(VALUES)))
    return rows


def batch_from(rows: list[Row]) -> Batch:
    """The batch of these rows."""
    return Batch([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], [r[3] for r in rows])


@pytest.mark.parametrize(
    ("rows", "winners"),
    [
        ([], {}),
        ([(1, PUT, b"k", b"v")], {b"k": (1, PUT, b"v")}),
        ([(1, PUT, b"k", b"v"), (2, PUT, b"k", b"w")], {b"k": (2, PUT, b"w")}),
        ([(2, PUT, b"k", b"w"), (1, PUT, b"k", b"v")], {b"k": (2, PUT, b"w")}),
        ([(1, PUT, b"k", b"v"), (2, DELETE, b"k", None)], {b"k": (2, DELETE, None)}),
        ([(2, DELETE, b"k", None), (1, PUT, b"k", b"v")], {b"k": (2, DELETE, None)}),
        ([(1, DELETE, b"k", None), (2, PUT, b"k", b"v")], {b"k": (2, PUT, b"v")}),
        ([(1, PUT, None, b"event"), (2, DELETE, None, None)], {}),
        ([(1, PUT, b"", b"v")], {b"": (1, PUT, b"v")}),
        ([(1, PUT, b"k", None)], {b"k": (1, PUT, None)}),
        ([(1, BUNDLE, b"k", b"arrow")], {b"k": (1, BUNDLE, b"arrow")}),
        ([(1, LINK, b"k", b"url")], {b"k": (1, LINK, b"url")}),
    ],
)
def test_the_rule(rows: list[Row], winners: dict[bytes, tuple[int, int, bytes | None]]) -> None:
    """Newest LSN wins in any order of records; tombstones suppress; events do not count; an empty key is a key."""
    found = reconcile(batch_from(rows))
    assert found == {key: Winner(*winner) for key, winner in winners.items()}
    assert all(winner.is_live == (winner.kind != DELETE) for winner in found.values())


@given(histories(), st.randoms(use_true_random=False))
def test_columns_keep_what_the_rule_keeps(rows: list[Row], chance: random.Random) -> None:
    """`reconcile_arrow` keeps the very rows of `reconcile`, in LSN order, in whatever order they came."""
    expected = sorted((w.lsn, w.kind, key, w.value) for key, w in reconcile(batch_from(rows)).items())
    chance.shuffle(rows)
    assert list(Batch.from_arrow(reconcile_arrow(batch_from(rows).to_arrow())).rows()) == expected


@given(histories(), st.integers(0, 30))
def test_the_table_follows_the_rule(rows: list[Row], cut: int) -> None:
    """A keyed table fed record by record, in two batches, and as Arrow holds the live winners, with their LSNs."""
    winners = reconcile(batch_from(rows))
    expected = {key: (w.value, w.lsn) for key, w in winners.items() if w.is_live}
    single, halves, arrow = KeyedTable(), KeyedTable(), KeyedTable()
    for row in rows:
        single.apply(batch_from([row]))
    for part in (rows[:cut], rows[cut:]):
        halves.apply(batch_from(part))
        arrow.apply_arrow(batch_from(part).to_arrow())
    for table in (single, halves, arrow):
        assert {key: (value, table.lsn_of(key)) for key, value in table.items()} == expected
        assert table.applied_lsn == (rows[-1][0] if rows else 0)


@given(histories(), st.lists(st.integers(0, 30), max_size=4), st.integers(0, 4))
def test_gathered_records_are_what_the_rule_says(rows: list[Row], cuts: list[int], settled: int) -> None:
    """A table that gathers, reducing after every batch, equals a table fed record by record."""
    single, gathering = KeyedTable(), KeyedTable()
    for row in rows:
        single.apply(batch_from([row]))
    borders = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("walkit.state.latest_reducer.REDUCE_BYTES", 1)
        for number, (start, stop) in enumerate(pairwise(borders)):
            gathering.gather(batch_from(rows[start:stop]).to_arrow())
            gathering.reduce()
            if number == settled:
                gathering.settle()
    assert gathering.to_arrow() == single.to_arrow()
    assert gathering.applied_lsn == single.applied_lsn


@given(histories(), histories())
def test_reduced_history_gives_the_same_state(first: list[Row], second: list[Row]) -> None:
    """Reducing part of a history to its winners, tombstones kept, changes nothing: as compaction relies on."""
    last = first[-1][0] if first else 0
    rows = first + [(lsn + last, kind, key, value) for lsn, kind, key, value in second]
    reduced = Batch.from_arrow(reconcile_arrow(batch_from(first).to_arrow())) if first else batch_from([])
    whole, shorter = KeyedTable(), KeyedTable()
    whole.apply(batch_from(rows))
    shorter.apply(reduced)
    shorter.apply(batch_from(rows[len(first) :]))
    assert shorter.to_arrow() == whole.to_arrow()


def test_a_batch_in_which_every_row_wins_is_not_copied() -> None:
    """Distinct keys in LSN order come back as the same batch object."""
    batch = batch_from([(1, PUT, b"a", b"1"), (2, PUT, b"b", b"2")]).to_arrow()
    assert reconcile_arrow(batch) is batch
