"""Words for people: tables, counts and ranges."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import walkit
from walkit._internal.text import aligned, bounds, counted, lsn_range


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    """Align two rows under a head, one column to the right: as wide as the widest cell, and nothing trails."""
    lines = aligned(("way", "records/s"), [("append", "7"), ("x", "12,345,678,900")], right=(1,))
    assert lines == ["way          records/s", "append               7", "x       12,345,678,900"]
    assert aligned(("a", "b"), [("wide", "")]) == ["a     b", "wide"]
    assert aligned(("a", "b"), []) == ["a  b"]


def test_a_row_with_a_cell_too_many_is_refused() -> None:
    """A table is never shown with a cell left out."""
    with pytest.raises(ValueError, match="argument 2"):
        aligned(("a",), [("1", "2")])


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 segments"), (1, "1 segment"), (2, "2 segments"), (12_345, "12,345 segments")]
)
def test_a_count_has_its_noun(number: int, said: str) -> None:
    """One is singular, everything else plural; a plural of its own is taken."""
    assert counted(number, "segment") == said
    assert counted(number, "batch", "batches") == said.replace("segments", "batches").replace(
        "segment", "batch"
    )


@pytest.mark.parametrize(
    ("first", "last", "said", "alone"),
    [
        (1, 0, "no records", "no records"),
        (101, 100, "no records", "no records"),
        (1, 1, "1", "LSN 1"),
        (999, 12_345, "999 to 12,345", "LSN 999 to 12,345"),
    ],
)
def test_a_range_of_lsns_is_never_written_backwards(first: int, last: int, said: str, alone: str) -> None:
    """An empty range is named so, one record is one number, more are from and to."""
    assert (bounds(first, last), lsn_range(first, last)) == (said, alone)


def test_texts_of_nothing_and_of_one_record(tmp_path: Path) -> None:
    """Log, reader, inventory, scan, Store and table, empty and with one record: no "1 segments", no "LSN 1 to 0"."""
    said = []
    with walkit.open(tmp_path / "log") as log:
        for turn in range(2):
            said += [repr(log), log._repr_html_(), log.inventory()._repr_html_()]
            with walkit.open(tmp_path / "log", mode="r") as reader:
                said += [repr(reader), reader._repr_html_()]
            found = walkit.scan(tmp_path / "log")
            said += [found.summary(), found._repr_html_()]
            assert (lsn_range(1, turn) in repr(log)) and (lsn_range(1, turn) in found.summary())
            if not turn:
                log.append(b"one")
    with walkit.Store.open(tmp_path / "store") as store:
        store[b"key"] = b"value"
        said += [repr(store), store._repr_html_(), repr(store.state_at(1)), store.log._repr_html_()]
        with store.log.transaction() as tx:
            said.append(repr(tx))
            tx.put(b"key", b"value")
        assert [said[-1], repr(tx)] == [
            "<Transaction open: 0 operations>",
            "<Transaction over: 1 operation at LSN 2>",
        ]
    said.append(walkit.repair(tmp_path / "log").summary())
    wrong = re.compile(
        r"(?<![\d,.])1 (?:segments|frames|records|keys|bytes|tails|problems)\b|\b1 to 0\b|\b(\d+) to \1\b"
    )
    assert [text for text in said if wrong.search(text)] == []
