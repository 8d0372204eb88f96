"""Consumers that continue from a position by a log's name, after another log or history has taken that name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import walkit
from tests.support.logs import lsns, tiny
from walkit.errors import CorruptionError, CursorError, DivergenceError, GapError, SegmentMissingError
from walkit.read.claim import Claim
from walkit.read.cursor import Cursor
from walkit.read.reader import LogReader, view_of
from walkit.read.resumable_scan import ResumableScan
from walkit.read.view import View
from walkit.storage import FileStorage

DONE = 10
"""All consumers have come to this record when the log is exchanged; the other one has it too, and more."""


class Consumer(NamedTuple):
    """A reader of the log, with its progress at record `DONE`."""

    reader: LogReader
    cursor: Cursor
    claim: Claim
    following: Iterator[walkit.Record]


CONTINUES: dict[str, Callable[[Consumer], object]] = {
    "Cursor.advance": lambda c: c.cursor.advance(DONE + 5),
    "Cursor.read": lambda c: list(c.cursor.read()),
    "Cursor.follow": lambda c: list(c.cursor.follow(timeout=0)),
    "Claim.advance": lambda c: c.claim.advance(DONE + 5),
    "Claim.renew": lambda c: c.claim.renew(),
    "LogReader.follow": lambda c: list(c.following),
    "LogReader.cursor": lambda c: c.reader.cursor("c"),
    "walkit.claim": lambda c: walkit.claim(c.reader.location, "k", owner=c.claim.owner),
    "walkit.claim, saved": lambda c: walkit.claim(
        c.reader.location, "z", DONE + 1, epoch_id=c.claim.epoch_id
    ),
}
"""Each way to continue: it must raise, for the records after `DONE` do not follow the records read."""
HAS_NO_POSITION = {
    "Claim.take": "is `walkit.claim` itself: a new claim has no position yet",
    "Claim.release": "removes its own file alone, and the one that is there is another's",
}


def _fill(folder: Path, count: int) -> None:
    with walkit.open(folder, options=tiny()) as log:
        for n in range(count):
            log.append(bytes(1000), key=b"%d" % n)


@pytest.fixture(params=["another history", "another log"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make a log of ten records in "log", and something that has the first ten LSNs too; return where that is."""
    _fill(tmp_path / "log", 5)
    if request.param == "another history":
        walkit.copy(tmp_path / "log", tmp_path / "other")
        _fill(tmp_path / "other", 15)
    else:
        _fill(tmp_path / "other", 20)
    _fill(tmp_path / "log", DONE - 5)
    return tmp_path / "other"


def _consume(folder: Path) -> Consumer:
    reader = walkit.open(folder, mode="r")
    following, cursor = reader.follow(1, timeout=0.2), reader.cursor("c")
    assert lsns(islice(following, DONE)) == list(range(1, DONE + 1))
    cursor.advance(DONE)
    return Consumer(reader, cursor, walkit.claim(folder, "k", DONE + 1), following)


@pytest.mark.parametrize(
    ("way", "brings_files"),
    # Without its file nothing is saved that could be taken up again.
    [(way, True) for way in CONTINUES]
    + [(way, False) for way in sorted(CONTINUES.keys() - {"LogReader.cursor", "walkit.claim"})],
)
def test_nothing_continues_in_another_history(
    tmp_path: Path, other: Path, way: str, brings_files: bool
) -> None:
    """Exchange the log beneath a consumer at LSN 10, cursor and claim files brought along or not: a typed error."""
    consumer = _consume(tmp_path / "log")
    os.rename(tmp_path / "log", tmp_path / "before")
    os.rename(other, tmp_path / "log")
    if brings_files:
        for name in ("cursor-c", "claim-k"):
            (tmp_path / "log" / name).write_bytes((tmp_path / "before" / name).read_bytes())
    before = {entry.name: entry.read_bytes() for entry in (tmp_path / "log").glob("c*-*")}
    with pytest.raises((DivergenceError, CursorError, CorruptionError, SegmentMissingError)):
        CONTINUES[way](consumer)
    assert before == {entry.name: entry.read_bytes() for entry in (tmp_path / "log").glob("c*-*")}


def test_a_scan_does_not_continue_in_another_history(tmp_path: Path, other: Path) -> None:
    """Take a segment away from a scan at LSN 7, and give it the view of the exchanged log: no record of that."""
    view, newest = view_of(FileStorage(tmp_path / "log"))
    there = view_of(FileStorage(other))

    def until_gone(seen: View, first_lsn: int, last_lsn: int) -> Iterator[pa.RecordBatch]:
        yield from seen.batches(first_lsn, 7 if seen is view else last_lsn, records=1)
        if seen is view:
            raise GapError(8, 9)

    scan = iter(ResumableScan(lambda: there, view, 1, newest, until_gone, to_newest=True))
    assert sum(len(batch) for batch in islice(scan, 7)) == 7
    with pytest.raises(DivergenceError):
        next(scan)


def _public(cls: type[Any]) -> set[str]:
    return {
        f"{cls.__name__}.{name}"
        for name, each in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }


def test_each_call_of_a_saved_position_is_tried() -> None:
    """Look through the classes that keep a position: each public call is in the table, or listed with a reason."""
    calls = _public(Cursor) | _public(Claim) | {"LogReader.follow", "LogReader.cursor"}
    assert calls <= CONTINUES.keys() | HAS_NO_POSITION.keys()
