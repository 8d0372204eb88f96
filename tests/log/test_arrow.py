"""Records from Arrow: `append_arrow` and reading give the same rows, whatever shape the columns have; and bundles."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import walkit
from tests.support.logs import SEGMENTS, faulty_log, headers, memory_log
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.errors import (
    CommitFailedError,
    CorruptionError,
    LogClosedError,
    OptionsError,
    RecordTooLargeError,
    RecordTypeError,
)
from walkit.log import columns as packing
from walkit.record import Kind, Record, encode_bundle

STAMP = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
UTC_US = pa.timestamp("us", tz="UTC")
BUNDLE = encode_bundle(pa.record_batch({"x": [1, 2]}))


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """An empty log in memory, with small frames and segments."""
    with memory_log() as made:
        yield made


def rows(log: walkit.WriteAheadLog, first_lsn: int = 1) -> list[tuple[Any, ...]]:
    """Key, value, kind and timestamp of the records, in order."""
    return [(r.key, r.value, int(r.kind), r.timestamp) for r in log.read(first_lsn)]


BINARY_TYPES = (pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.binary()), pa.binary_view())
NAMES = st.none() | st.just(b"") | st.binary(max_size=9)
STAMPS = st.none() | st.datetimes(timezones=st.just(UTC))


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[tuple[Any, ...]], pa.Table]:
    """Records as plain rows, and as a table: any binary type, any chunks, slices, and columns left out."""
    plain: list[tuple[Any, ...]] = []
    for kind in draw(st.lists(st.sampled_from([1, 1, 2, 3]), max_size=12)):
        key = draw(NAMES)
        value = None if kind == 2 else BUNDLE if kind == 3 else draw(NAMES)
        plain.append((b"k" if kind == 2 and key is None else key, value, kind, draw(STAMPS)))
    cuts = sorted(draw(st.lists(st.integers(0, len(plain)), max_size=3)))
    columns: dict[str, pa.ChunkedArray] = {}
    names = ("key", "value", "kind", "timestamp")
    for at, name in enumerate(names):
        items, absent = [row[at] for row in plain], 1 if name == "kind" else None
        if name != "value" and all(item == absent for item in items) and draw(st.booleans()):
            continue
        if name in ("key", "value"):
            kind_of = draw(st.sampled_from(BINARY_TYPES))
        else:
            kind_of = draw(st.sampled_from([pa.int8(), pa.uint64()])) if name == "kind" else UTC_US
        # Each chunk is a slice, so that offsets do not begin at 0 and null slots lie over bytes.
        chunks = [
            pa.array([items[0], *items[a:b]], kind_of).slice(1) if b > a else pa.array([], kind_of)
            for a, b in zip([0, *cuts], [*cuts, len(items)], strict=True)
        ]
        columns[name] = pa.chunked_array(chunks, kind_of)
    return plain, pa.table(columns)


@given(tables(), st.integers(1, 64))
def test_appended_tables_are_read(given: tuple[list[tuple[Any, ...]], pa.Table], part_bytes: int) -> None:
    """Append random tables, packed into parts of random size, after one record: the same rows, LSNs dense."""
    plain, table = given
    whole = packing.PART_BYTES
    packing.PART_BYTES = part_bytes
    try:
        with memory_log() as log:
            log.append(b"before")
            result = log.append_arrow(table)
            assert (result.first_lsn, result.last_lsn) == (2, 1 + len(plain))
            assert rows(log, 2) == plain
    finally:
        packing.PART_BYTES = whole


@given(st.lists(NAMES, max_size=40), st.data(), st.integers(1, 64))
def test_lists_and_arrays_give_the_same_bytes(
    values: list[bytes | None], data: st.DataObject, part_bytes: int
) -> None:
    """Append one list by parts and as one array, with keys: the same records and user bytes."""
    keys = data.draw(st.lists(NAMES, min_size=len(values), max_size=len(values)))
    whole = packing.PART_BYTES
    with memory_log() as log, memory_log() as other:
        log.append_many(pa.array(values, pa.binary()), pa.array(keys, pa.binary()))
        packing.PART_BYTES = part_bytes
        try:
            other.append_many(values, keys)
        finally:
            packing.PART_BYTES = whole
        assert rows(log) == rows(other) == [(k, v, 1, None) for k, v in zip(keys, values, strict=True)]
        assert log.statistics().user_bytes == other.statistics().user_bytes


def test_a_log_copied_by_arrow_is_the_same(log: walkit.WriteAheadLog) -> None:
    """Read a log with puts, tombstones, events, bundles and times as a table, and append that to another log."""
    log.append(b"v", key=b"k", timestamp=STAMP)
    log.delete(b"k")
    log.append(b"event")
    log.append(None, key=b"empty")
    log.append_bundle(pa.record_batch({"x": [1]}), key=b"b")
    with memory_log() as copy:
        with pytest.raises(OptionsError, match="lsn"):
            copy.append_arrow(log.to_arrow())
        copy.append_arrow(log.to_arrow().drop_columns("lsn"))
        assert list(copy.read()) == list(log.read())


def test_batches_and_other_libraries_are_taken(log: walkit.WriteAheadLog) -> None:
    """A RecordBatch, a DataFrame of pandas, and nothing at all: each gives its records."""
    batch = pa.record_batch({"value": pa.array([b"a", b"b"]), "key": pa.array([b"k", None])})
    log.append_arrow(batch)
    log.append_arrow(batch.to_pandas())
    assert rows(log) == [(b"k", b"a", 1, None), (None, b"b", 1, None)] * 2
    empty = log.append_arrow(batch.slice(2))
    assert (empty.first_lsn, empty.last_lsn) == (5, 4)


STAMP_COLUMNS: dict[str, tuple[pa.Array, datetime]] = {
    "seconds": (pa.array([7], pa.timestamp("s", tz="UTC")), datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)),
    "milliseconds": (pa.array([7], pa.timestamp("ms", tz="UTC")), datetime(1970, 1, 1, 0, 0, 0, 7000, UTC)),
    "whole nanoseconds": (
        pa.array([7000], pa.timestamp("ns", tz="UTC")),
        datetime(1970, 1, 1, 0, 0, 0, 7, UTC),
    ),
    "another zone": (pa.array([STAMP], pa.timestamp("us", tz="America/New_York")), STAMP),
    "a number": (pa.array([5], pa.int64()), datetime(1970, 1, 1, 0, 0, 0, 5, UTC)),
}


@pytest.mark.parametrize("name", STAMP_COLUMNS)
def test_times_of_every_unit_and_zone(log: walkit.WriteAheadLog, name: str) -> None:
    """A timestamp of any unit and zone, or a number of microseconds, is the same instant when it is read."""
    column, instant = STAMP_COLUMNS[name]
    log.append_arrow(pa.table({"value": [b"v"], "timestamp": column}))
    assert [r.timestamp for r in log.read()] == [instant]


REFUSED: dict[str, tuple[Any, type[Exception]]] = {
    "no table": ([b"v"], RecordTypeError),
    "no value": (pa.table({"key": [b"k"]}), OptionsError),
    "another column": (pa.table({"value": [b"v"], "extra": [1]}), OptionsError),
    "a column twice": (pa.table([pa.array([b"v"])] * 2, names=["value", "value"]), OptionsError),
    "text": (pa.table({"value": ["text"]}), RecordTypeError),
    "text in a dictionary": (pa.table({"value": pa.array(["t"]).dictionary_encode()}), RecordTypeError),
    "numbers": (pa.table({"value": [1]}), RecordTypeError),
    "a key of text": (pa.table({"value": [b"v"], "key": ["k"]}), RecordTypeError),
    "kind 0": (pa.table({"value": [b"v"], "kind": [0]}), OptionsError),
    "kind 4": (pa.table({"value": [b"v"], "kind": [4]}), OptionsError),
    "kind 257": (pa.table({"value": [b"v"], "kind": [257]}), OptionsError),
    "no kind": (pa.table({"value": [b"v", b"v"], "kind": [1, None]}), OptionsError),
    "a kind of text": (pa.table({"value": [b"v"], "kind": ["put"]}), RecordTypeError),
    "delete of nothing": (pa.table({"value": pa.nulls(1, pa.binary()), "kind": [2]}), OptionsError),
    "delete with a value": (pa.table({"value": [b"v"], "key": [b"k"], "kind": [2]}), OptionsError),
    "bundle of noise": (pa.table({"value": [b"v"], "kind": [3]}), OptionsError),
    "bundle of nothing": (pa.table({"value": pa.nulls(1, pa.binary()), "kind": [3]}), OptionsError),
    "time without zone": (
        pa.table({"value": [b"v"], "timestamp": pa.array([1], pa.timestamp("us"))}),
        RecordTypeError,
    ),
    "time as text": (pa.table({"value": [b"v"], "timestamp": ["now"]}), RecordTypeError),
    "time too late": (pa.table({"value": [b"v"], "timestamp": [1 << 60]}), OptionsError),
    "a split microsecond": (
        pa.table({"value": [b"v"], "timestamp": pa.array([7], pa.timestamp("ns", tz="UTC"))}),
        OptionsError,
    ),
    "too large": (pa.table({"value": [b"v", bytes(9000)]}), RecordTooLargeError),
    "too large together": (pa.table({"value": [bytes(5000)], "key": [bytes(5000)]}), RecordTooLargeError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_records_is_refused_whole(log: walkit.WriteAheadLog, name: str) -> None:
    """Wrong columns, types, kinds, times and sizes: a typed error, and nothing of the table is written."""
    given, error = REFUSED[name]
    with pytest.raises(error):
        log.append_arrow(given)
    assert log.appended_lsn == 0


def test_sizes_are_checked_before_the_first_part_is_queued(
    log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that is too large in the last of many parts: nothing of the earlier parts is written."""
    monkeypatch.setattr(packing, "PART_BYTES", 100)
    for values in ([b"x" * 50] * 9 + [None, bytes(9000)], pa.array([b"x" * 50] * 9 + [bytes(9000)])):
        with pytest.raises(RecordTooLargeError):
            log.append_many(values)
    assert log.appended_lsn == 0


def test_memory_that_changes_afterwards_changes_nothing() -> None:
    """Overwrite the memory under a submitted array while its write hangs: the log and observers have the old bytes."""
    storage, log = faulty_log()
    seen: list[walkit.ObservedFrames] = []
    log.observe(seen.append)
    memory = bytearray(b"as it was")
    column = pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(np.array([0, 9], np.int32)), pa.py_buffer(memory)]
    )
    hang = storage.hang("synced_write", SEGMENTS)
    ticket = log.submit_many(column)
    assert hang.entered.wait(GUARD_S)
    memory[:] = b"changed!!"
    hang.release()
    ticket.result(GUARD_S)
    wait_until(lambda: bool(seen))
    assert [r.value for r in log.read(2)] == [r.value for r in seen[0].records()] == [b"as it was"]
    log.close()


def test_a_call_that_fits_a_frame_is_one_frame_and_a_long_one_many(log: walkit.WriteAheadLog) -> None:
    """Append 50 small rows, then 300 KB of rows with keys: one frame, then many over several segments, in order."""
    log.append_arrow(pa.table({"value": [b"x"] * 50}))
    assert log.statistics().frames_written == 1
    table = pa.table({"value": [b"%04d" % n + bytes(7 * n % 1500) for n in range(400)], "key": [b"k"] * 400})
    result = log.append_arrow(table)
    frames = headers(log)
    assert (result.first_lsn, result.last_lsn) == (51, 450)
    assert result.position == frames[1].position and result.next_position == frames[-1].end_position
    assert len(frames) > 20 and log.statistics().rotations > 3
    assert [r.value for r in log.read(51)] == table.column("value").to_pylist()


def test_packed_tickets_that_share_a_frame_keep_their_records() -> None:
    """Queue packed, timed, keyed and single records during a hung write: one frame, every record as given."""
    storage, log = faulty_log()
    hang = storage.hang("synced_write", SEGMENTS)
    first = log.submit(b"hangs")
    assert hang.entered.wait(GUARD_S)
    tables = [
        pa.table({"value": [b"a", None]}),
        pa.table({"value": [b"b"], "key": [b"k"], "timestamp": pa.array([STAMP], UTC_US)}),
        pa.table({"value": pa.nulls(1, pa.binary()), "key": [b"gone"], "kind": [2]}),
    ]
    calls = []
    for count, table in zip((2, 3, 4), tables, strict=True):
        calls.append(Task(log.append_arrow, table))
        wait_until(lambda count=count: log.statistics().queue_records >= count)  # type: ignore[misc]
    hang.release()
    for call in calls:
        call.result()
    first.result(GUARD_S)
    expected = [
        (None, b"a", 1, None),
        (None, None, 1, None),
        (b"k", b"b", 1, STAMP),
        (b"gone", None, 2, None),
    ]
    assert rows(log, 3) == expected
    assert len(headers(log)) == 3
    log.append(b"single")
    assert rows(log, 3)[-1] == (None, b"single", 1, None)
    log.close()


def test_a_store_sees_what_comes_by_arrow() -> None:
    """Append puts and a tombstone to a store's log by Arrow: the table has them, also after opening again."""
    storage = walkit.models.CrashingStorage()
    with walkit.Store.open(storage=storage) as store:
        store.put(b"old", b"1")
        store.log.append_arrow(
            pa.table({"key": [b"old", b"a", b"b"], "value": [None, b"2", b"3"], "kind": [2, 1, 1]})
        )
        assert dict(store.items()) == {b"a": b"2", b"b": b"3"}
        store.put_many(pa.array([b"c"]), [b"4"])
    with walkit.Store.open(storage=storage) as store:
        assert dict(store.items()) == {b"a": b"2", b"b": b"3", b"c": b"4"}


def test_failures_have_the_acknowledged_prefix() -> None:
    """Fail the only frame of a call, then a closed log: typed errors with `acknowledged_prefix` 0."""
    storage, log = faulty_log()
    storage.fail("synced_write", SEGMENTS)
    with pytest.raises(CommitFailedError) as failed:
        log.append_arrow(pa.table({"value": [b"v"]}))
    assert failed.value.acknowledged_prefix == 0
    log.close()
    log = memory_log()
    log.close()
    with pytest.raises(LogClosedError):
        log.append_arrow(pa.table({"value": [b"v"]}))
    with pytest.raises(LogClosedError):
        log.append_bundle(pa.record_batch({"x": [1]}))


BATCHES: dict[str, pa.RecordBatch] = {
    "numbers and nulls": pa.record_batch({"x": pa.array([1, None, 3]), "y": [None, "two", "drei"]}),
    "dictionary": pa.record_batch({"d": pa.array(["a", "b", "a", None]).dictionary_encode()}),
    "nested": pa.record_batch(
        {"n": pa.array([[{"a": 1, "b": [b"x"]}], None, []]), "m": pa.array([{"q": None}, None, {"q": 2.5}])}
    ),
    "a slice": pa.record_batch({"x": list(range(100)), "s": [str(n) for n in range(100)]}).slice(40, 3),
    "no rows": pa.record_batch({"x": pa.array([], pa.float32())}),
    "no columns": pa.record_batch([], names=[]),
    "metadata": pa.record_batch({"x": [1]}).replace_schema_metadata({"origin": "here"}),
    "times": pa.record_batch({"t": pa.array([STAMP], UTC_US), "d": pa.array([1.5], pa.float16())}),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_bundle_comes_back_as_it_was(log: walkit.WriteAheadLog, name: str) -> None:
    """Append a batch as one record and decode it, by read and by follow: equal, with schema and metadata."""
    batch = BATCHES[name]
    assert log.append_bundle(batch, key=b"k").last_lsn == 1
    (record,) = log.read()
    assert (record.kind, record.key) == (Kind.BUNDLE, b"k")
    back = record.arrow()
    assert back.schema.equals(batch.schema, check_metadata=True)
    assert back.equals(batch)
    back.validate(full=True)
    assert next(log.follow(1)).arrow().equals(batch)


def test_only_a_batch_is_a_bundle(log: walkit.WriteAheadLog) -> None:
    """Tables, lists, and batches over the frame limit are refused with a typed error, and nothing is written."""
    for wrong in (pa.table({"x": [1]}), [1, 2], None):
        with pytest.raises(RecordTypeError, match="RecordBatch"):
            log.append_bundle(wrong)
    with pytest.raises(RecordTooLargeError):
        log.append_bundle(pa.record_batch({"x": list(range(10_000))}))
    assert log.appended_lsn == 0


@pytest.mark.parametrize("damage", ["noise", "empty", "absent", "short", "two batches", "no batch"])
def test_a_bundle_that_cannot_be_decoded_names_its_record(damage: str) -> None:
    """Decode values other than a stream of one batch: CorruptionError with the LSN, chained to Arrow's error."""
    batch = pa.record_batch({"x": list(range(100))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(2 if damage == "two batches" else 0):
            writer.write_batch(batch)
    value = {
        "noise": b"\xff" * 50,
        "empty": b"",
        "absent": None,
        "short": encode_bundle(batch)[:-300],
    }.get(damage, sink.getvalue().to_pybytes())
    with pytest.raises(CorruptionError, match="record 17") as found:
        Record(17, Kind.BUNDLE, None, value).arrow()
    assert found.value.first_lost_lsn == 17
    with pytest.raises(ValueError, match="record 3 is a put"):
        Record(3, Kind.PUT, None, value).arrow()
