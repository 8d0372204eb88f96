"""Diff in process: against a loop over two dicts, by tables of rows, over every kind of side, and its refusals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import walkit
from tests.support.histories import DiffRow, Row, diff_of, newest_of, random_rows, state_of, write
from tests.support.stores import copy
from walkit.errors import HistoryTrimmedError, LogNotFoundError, OptionsError, SnapshotError
from walkit.models import CrashingStorage
from walkit.record import RECORD_SCHEMA
from walkit.state import DIFF_SCHEMA, DiffCounts, KeyedTable
from walkit.state.diff import diff_states, narrowed
from walkit.state.latest_reducer import FinalState

SMALL = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=0)


def rows_of(diff: pa.Table) -> list[DiffRow]:
    """The rows of a diff, in its order."""
    assert diff.schema.equals(DIFF_SCHEMA)
    return [tuple(row.values()) for row in diff.to_pylist()]


def log_of(rows: list[Row], epochs: int = 1) -> CrashingStorage:
    """A log of these records in memory."""
    storage = CrashingStorage()
    write(storage, rows, epochs)
    return storage


PUT, DELETE = 1, 2
# name, left records, right records, expected rows with N, whole and in order
TABLE: list[tuple[str, list[Row], list[Row], list[DiffRow]]] = [
    ("both empty", [], [], []),
    ("one empty", [], [(PUT, b"k", b"v")], [(b"k", "I", None, b"v", None, 1)]),
    ("equal", [(PUT, b"k", b"v")], [(PUT, b"k", b"v")], [(b"k", "N", b"v", b"v", 1, 1)]),
    (
        "equal by other records",
        [(PUT, b"k", b"v")],
        [(PUT, b"k", b"x"), (PUT, None, b"event"), (PUT, b"k", b"v")],
        [(b"k", "N", b"v", b"v", 1, 3)],
    ),
    ("changed", [(PUT, b"k", b"v")], [(PUT, b"k", b"w")], [(b"k", "C", b"v", b"w", 1, 1)]),
    (
        "deleted",
        [(PUT, b"k", b"v")],
        [(PUT, b"k", b"v"), (DELETE, b"k", None)],
        [(b"k", "D", b"v", None, 1, 2)],
    ),
    (
        "deleted twice",
        [(PUT, b"k", b"v")],
        [(PUT, b"k", b"v"), (DELETE, b"k", None), (DELETE, b"k", None)],
        [(b"k", "D", b"v", None, 1, 3)],
    ),
    (
        "a delete of a key never set",
        [(PUT, b"k", b"v")],
        [(DELETE, b"k", None), (PUT, b"never on the left", b"v")],
        [(b"k", "D", b"v", None, 1, 1), (b"never on the left", "I", None, b"v", None, 2)],
    ),
    ("only ever deleted", [], [(DELETE, b"k", None)], []),
    ("deleted on both sides", [(PUT, b"k", b"v"), (DELETE, b"k", None)], [(DELETE, b"k", None)], []),
    (
        "put again after a delete",
        [(PUT, b"k", b"v")],
        [(PUT, b"k", b"v"), (DELETE, b"k", None), (PUT, b"k", b"v")],
        [(b"k", "N", b"v", b"v", 1, 3)],
    ),
    ("events alone", [(PUT, None, b"v")], [(PUT, None, b"w"), (PUT, None, b"x")], []),
    ("no value and no key", [(PUT, b"k", None)], [], [(b"k", "D", None, None, 1, None)]),
    ("no value on both sides", [(PUT, b"k", None)], [(PUT, b"k", None)], [(b"k", "N", None, None, 1, 1)]),
    ("no value and an empty one", [(PUT, b"k", None)], [(PUT, b"k", b"")], [(b"k", "C", None, b"", 1, 1)]),
    ("the empty key", [(PUT, b"", b"")], [(PUT, b"", b"v")], [(b"", "C", b"", b"v", 1, 1)]),
    (
        "every change, in order of bytes",
        [(PUT, b"z", b"1"), (PUT, b"a", b"1"), (PUT, b"m", b"1"), (PUT, b"\xff", b"1")],
        [(PUT, b"\xff", b"1"), (PUT, b"a", b"2"), (PUT, b"m\x00", b"1"), (PUT, b"m", b"1")],
        [
            (b"a", "C", b"1", b"2", 2, 2),
            (b"m", "N", b"1", b"1", 3, 4),
            (b"m\x00", "I", None, b"1", None, 3),
            (b"z", "D", b"1", None, 1, None),
            (b"\xff", "N", b"1", b"1", 4, 1),
        ],
    ),
]
REVERSED = {"I": "D", "D": "I", "C": "C", "N": "N"}


def turned(rows: list[DiffRow]) -> list[DiffRow]:
    """The diff seen from the other side."""
    return [(key, REVERSED[change], rv, lv, rl, ll) for key, change, lv, rv, ll, rl in rows]


@pytest.mark.parametrize(("left", "right", "expected"), [t[1:] for t in TABLE], ids=[t[0] for t in TABLE])
def test_expected_rows(left: list[Row], right: list[Row], expected: list[DiffRow]) -> None:
    """Two logs by hand: the rows are exactly these, from either side, with the keys that are equal and without."""
    a, b = log_of(left), log_of(right)
    changed = [row for row in expected if row[1] != "N"]
    assert rows_of(walkit.diff(a, b)) == changed
    assert rows_of(walkit.diff(b, a)) == turned(changed)
    states = []
    for storage in (a, b):
        state = FinalState()
        for batch in walkit.open(storage=storage, mode="r").read_batches():
            state.add(batch)
        states.append(state.newest())
    whole = narrowed(diff_states(*states, unchanged=True), DIFF_SCHEMA)
    assert rows_of(whole) == expected


@given(
    left=st.integers(0, 9), right=st.integers(0, 9), sizes=st.tuples(st.integers(0, 90), st.integers(0, 90))
)
def test_diff_is_a_loop_over_two_dicts(left: int, right: int, sizes: tuple[int, int]) -> None:
    """Seeded histories with deletes, transactions and three epochs, at their ends and on the way."""
    histories = random_rows(left, sizes[0]), random_rows(right, sizes[1])
    a, b = log_of(histories[0], 3), log_of(histories[1])
    assert rows_of(walkit.diff(a, b)) == diff_of(newest_of(histories[0]), newest_of(histories[1]))
    at = sizes[0] // 2, sizes[1] // 3
    expected = diff_of(newest_of(histories[0], at[0]), newest_of(histories[1], at[1]))
    assert rows_of(walkit.diff((a, at[0]), (b, at[1]))) == expected


def test_reducing_on_the_way_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce after almost every batch, in LSN order and against it: the state is that of a dict."""
    monkeypatch.setattr("walkit.state.latest_reducer.REDUCE_BYTES", 1)
    rows = random_rows(3, 400, keys=40)
    batches = [
        pa.RecordBatch.from_pylist(
            [
                {"lsn": lsn, "kind": kind, "key": key, "value": value, "timestamp": None}
                for lsn, (kind, key, value) in list(enumerate(rows, 1))[start : start + 9]
            ],
            RECORD_SCHEMA,
        )
        for start in range(0, 400, 9)
    ]
    for order in (batches, batches[::-1]):
        state = FinalState()
        state._goal = 1
        for batch in order:
            state.add(batch)
        live = {row["key"]: (row["value"], row["lsn"]) for row in state.live().to_pylist()}
        assert live == state_of(rows)


def test_every_kind_of_side(tmp_path: Path) -> None:
    """A log, a reader, a path, a storage, a Store, a table, each with an LSN if it has a history: one answer."""
    with walkit.Store.open(str(tmp_path / "store"), options=SMALL) as store:
        for n in range(60):
            store.put(b"%d" % (n % 20), b"%d" % n)
        table = KeyedTable()
        walkit.replay(store.log, table)
        with walkit.open(str(tmp_path / "store"), mode="r") as reader:
            now: list[Any] = [store, store.log, reader, str(tmp_path / "store"), tmp_path / "store", table]
            empty = CrashingStorage()
            walkit.open(storage=empty).close()
            for side in now:
                found = walkit.diff(empty, side)
                assert DiffCounts.of(found) == DiffCounts(inserted=20, deleted=0, changed=0)
                assert found["right_lsn"].to_pylist() == [
                    int(value) + 1 for value in found["right_value"].to_pylist()
                ]
                assert len(walkit.diff(side, store)) == 0
            for side in now[:-1]:
                back = walkit.diff((side, 45), side)
                assert DiffCounts.of(back) == DiffCounts(inserted=0, deleted=0, changed=15)
                assert set(back["left_lsn"].to_pylist()) == set(range(26, 41))
                assert len(walkit.diff((side, 60), side)) == 0
                assert DiffCounts.of(walkit.diff((side, 0), side)).inserted == 20


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda log: (log, 7), "at_lsn"),
        (lambda log: (log, -1), "at_lsn"),
        (lambda log: (log, True), "side"),
        (lambda log: (log, "3"), "side"),
        (lambda log: (log, 1, 2), "side"),
        (lambda log: (KeyedTable(), 0), "at_lsn"),
        (lambda log: 5, "path"),
    ],
)
def test_a_wrong_side_is_refused(make: Callable[[object], object], option: str) -> None:
    """An LSN not reached, or invalid, a table with one, something else: OptionsError, on either side."""
    log = log_of([(PUT, b"k", b"v")] * 3)
    for sides in ((make(log), log), (log, make(log))):
        with pytest.raises(OptionsError) as refused:
            walkit.diff(*sides)
        assert refused.value.option == option


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    """A path without a log: the error of opening it, and no folder is made."""
    with pytest.raises(LogNotFoundError):
        walkit.diff(str(tmp_path / "none"), str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def trimmed(storage: CrashingStorage, snapshots: tuple[int, ...], trim: int, count: int = 100) -> None:
    """A store of `count` puts over ten keys, with snapshots at some LSNs, its log trimmed up to one without it."""
    with walkit.Store.open(storage=storage, options=SMALL) as store:
        for n in range(1, count + 1):
            store.put(b"%d" % (n % 10), b"%d" % n)
            if n in snapshots:
                store.snapshot()
    with walkit.open(storage=storage, options=SMALL) as log:
        log.trim(trim)


# snapshots, trimmed up to, LSN asked for, expected: None for the exact state, else (wanted, exact from) of the error
EXACT: list[tuple[tuple[int, ...], int, int, tuple[int, int] | None]] = [
    ((), 0, 50, None),
    ((), 50, 100, (1, 51)),
    ((), 50, 50, (50, 51)),
    ((), 50, 49, (49, 51)),
    ((), 50, 0, None),
    ((40,), 50, 100, (1, 51)),
    ((40,), 50, 40, None),
    ((40,), 50, 45, (45, 51)),
    ((50,), 50, 49, (49, 51)),
    ((50,), 50, 50, None),
    ((50,), 50, 51, None),
    ((50,), 50, 100, None),
    ((30, 60), 50, 59, (1, 51)),
    ((30, 60), 50, 60, None),
    ((30, 60, 90), 50, 77, None),
    ((100,), 100, 100, None),
    ((100,), 100, 99, (99, 101)),
]


@pytest.mark.parametrize(("snapshots", "trim", "lsn", "refused"), EXACT)
def test_states_of_a_trimmed_log(
    snapshots: tuple[int, ...], trim: int, lsn: int, refused: tuple[int, int] | None
) -> None:
    """Trim below and above snapshots: each state is exact, or HistoryTrimmedError says from where on it is."""
    storage = CrashingStorage()
    trimmed(storage, snapshots, trim)
    empty = log_of([])
    if refused is not None:
        with pytest.raises(HistoryTrimmedError) as caught:
            walkit.diff((storage, lsn), empty)
        assert (caught.value.wanted, caught.value.exact_from_lsn) == refused
        return
    state: dict[bytes, int] = {b"%d" % (n % 10): n for n in range(1, lsn + 1)}
    expected = [(key, "D", b"%d" % n, None, n, None) for key, n in sorted(state.items())]
    assert rows_of(walkit.diff((storage, lsn), empty)) == expected


def test_a_damaged_snapshot_is_passed_over_or_named() -> None:
    """Damage the newest of two snapshots above the watermark: the older one serves; damage both: the newest's error."""
    storage = CrashingStorage()
    trimmed(storage, (60, 80), 50)
    expected = rows_of(walkit.diff((storage, 90), log_of([])))
    for lsn in (80, 60):
        name = walkit.state.snapshot_name(lsn)
        file = storage.open(name, "read")
        data = bytearray(file.read(0, file.size()))
        data[len(data) // 2] ^= 1
        storage.remove(name)
        storage.open(name, "create").write(0, [bytes(data)])
        if lsn == 80:
            assert rows_of(walkit.diff((storage, 90), log_of([]))) == expected
    with pytest.raises(SnapshotError, match="LSN 80"):
        walkit.diff((storage, 90), log_of([]))


def test_a_snapshot_older_than_dropped_tombstones_is_not_used() -> None:
    """Delete a key, let compaction drop the tombstone, put an older snapshot back: the key does not live again."""
    storage, kept = CrashingStorage(), log_of([])
    with walkit.Store.open(storage=storage, options=SMALL) as store:
        for n in range(1, 11):
            store.put(b"%d" % n, b"%d" % n)
        store.checkpoint()
        copy(storage, kept, walkit.state.snapshot_name(10))
        store.delete(b"3")
        for n in range(12, 60):
            store.put(b"%d" % n, bytes(8000))
            if n in (30, 40):
                store.checkpoint(trim=False)
        assert store.compact().tombstones_dropped == 1
    for lsn in (30, 40):
        storage.remove(walkit.state.snapshot_name(lsn))
    empty = log_of([])
    copy(kept, storage, walkit.state.snapshot_name(10))
    for lsn in (20, 59):
        with pytest.raises(HistoryTrimmedError):
            walkit.diff((storage, lsn), empty)
    # At its own LSN it tells the state: the key lived then.
    assert [row[0] for row in rows_of(walkit.diff((storage, 10), empty))].count(b"3") == 1


def test_a_deleted_key_has_the_lsn_of_its_deletion(tmp_path: Path) -> None:
    """Delete keys of a store: from every kind of side that has a log, both ways round, the LSN is the delete's."""
    path = tmp_path / "store"
    with walkit.Store.open(path, options=SMALL) as store:
        for n in range(1, 41):
            store.put(b"%02d" % (n % 20), b"%d" % n)
        for key in (b"03", b"07", b"07", b"11"):
            store.delete(key)
        store[b"11"] = b"back"
        store.put(b"new", b"46")
        store.delete(b"never there")
        with walkit.open(path, mode="r") as reader:
            for side in (store, store.log, reader, path, (store, 47), (path, 46)):
                for found, own, other, change in (
                    (walkit.diff((path, 40), side), "left_lsn", "right_lsn", "D"),
                    (walkit.diff(side, (path, 40)), "right_lsn", "left_lsn", "I"),
                ):
                    rows = found.filter(pc.equal(found["change"], change))
                    assert rows["key"].to_pylist() == [b"03", b"07"]
                    assert (rows[own].to_pylist(), rows[other].to_pylist()) == ([23, 27], [41, 43])
                    assert b"never there" not in found["key"].to_pylist()
                    (new,) = found.filter(pc.equal(found["key"], b"new")).to_pylist()
                    assert new["left_lsn" if change == "D" else "right_lsn"] is None
        table = KeyedTable()
        walkit.replay(store.log, table)
        assert set(walkit.diff((path, 40), table)["right_lsn"].to_pylist()) == {None, 45, 46}


def test_a_deletion_that_is_gone_has_no_lsn() -> None:
    """Trim or compact the delete away: null; keep it above the oldest snapshot: its LSN, whatever snapshot serves."""
    storage, before = CrashingStorage(), log_of([(PUT, b"%d" % n, b"v") for n in range(1, 11)])
    with walkit.Store.open(storage=storage, options=SMALL) as store:

        def lsns() -> list[list[int | None]]:
            sides = (store, storage, (store.log, store.log.acked_lsn))
            found = [walkit.diff(before, side) for side in sides]
            return [f.filter(pc.equal(f["change"], "D"))["right_lsn"].to_pylist() for f in found]

        store.log.append_many([b"v"] * 10, keys=[b"%d" % n for n in range(1, 11)])
        store.delete(b"1")
        store.checkpoint()
        assert lsns() == [[None]] * 3
        hold = store.log.hold("reader", 12)
        store.delete(b"2")
        store.checkpoint()
        store.delete(b"3")
        assert walkit.state.snapshot_lsns(storage) == [11, 12] and store.log.first_lsn == 12
        assert lsns() == [[None, 12, 13]] * 3
        hold.release()
        store.checkpoint()
        assert lsns() == [[None, None, None]] * 3
        for n in range(40):
            store.put(b"%d" % (n % 5 + 20), bytes(8000))
        store.delete(b"4")
        for n in range(40):
            store.put(b"%d" % (n % 5 + 20), bytes(8000))
        assert lsns()[0][-1] is not None
        for _ in range(2):
            store.checkpoint(trim=False)
            store.put(b"5", b"v")
        assert store.compact().tombstones_dropped > 0
        assert lsns() == [[None] * 4] * 3


def test_counts() -> None:
    """Counts by change, in words, as JSON and in a notebook."""
    left, right = log_of([(PUT, b"a", b""), (PUT, b"b", b"1")]), log_of([(PUT, b"b", b"2"), (PUT, b"c", b"")])
    counts = DiffCounts.of(walkit.diff(left, right))
    assert counts.to_dict() == {"equal": False, "inserted": 1, "deleted": 1, "changed": 1}
    assert (counts.total, counts.text()) == (3, "different: 1 inserted, 1 deleted, 1 changed")
    assert "<td" in counts._repr_html_() and "inserted" in counts._repr_html_()
    same = DiffCounts.of(walkit.diff(left, left))
    assert same.equal and same.text() == "equal"


def test_progress_passes_through_both_sides() -> None:
    """The callback counts LSNs up to the end of each side; its error ends the diff."""
    storage = log_of(random_rows(1, 50))
    seen: list[tuple[int, int]] = []
    walkit.diff(storage, (storage, 20), progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (50, 50) and seen[-1] == (20, 20)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        walkit.diff(storage, storage, progress=stop)


def test_a_diff_larger_than_one_arrow_column_comes_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit of 32-bit offsets moved down to 1,000 bytes: several chunks, the same rows."""
    rows: list[Row] = [(PUT, b"%04d" % n, bytes(30)) for n in range(200)]
    whole = walkit.diff(log_of([]), log_of(rows))
    # By the table of modules: `walkit.state.diff` is the function.
    monkeypatch.setattr(sys.modules["walkit.state.diff"], "NARROW_BYTES_MAX", 1000)
    parts = walkit.diff(log_of([]), log_of(rows))
    assert parts["key"].num_chunks > 5
    assert rows_of(parts) == rows_of(whole) and len(whole) == 200
