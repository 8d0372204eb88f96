"""One record: the accepted values, its place, and the refusals before anything is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import walkit
from tests.support.logs import headers, lsns, memory_log, tiny, values
from walkit import AppendResult, Kind, Record, RecordTooLargeError, RecordTypeError
from walkit.format.body import COLUMN_BYTES_PER_RECORD
from walkit.models import CrashingStorage
from walkit.segments.history import identity_at
from walkit.segments.manifest_store import load_manifest


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """An empty log in memory."""
    with memory_log() as made:
        yield made


def test_lsns_are_dense_and_positions_meet(log: walkit.WriteAheadLog) -> None:
    """Append one by one: LSNs from 1 on, each result's next position is the next frame's position."""
    results = [log.append(bytes(n)) for n in range(50)]
    assert [r.first_lsn for r in results] == [r.last_lsn for r in results] == list(range(1, 51))
    assert [r.next_position for r in results[:-1]] == [r.position for r in results[1:]]
    assert [h.position for h in headers(log)] == [r.position for r in results]
    assert [h.end_position for h in headers(log)] == [r.next_position for r in results]
    assert (log.first_lsn, log.appended_lsn, log.acked_lsn, log.durable_lsn) == (1, 50, 50, 50)


def test_an_empty_log_has_marks_too(log: walkit.WriteAheadLog) -> None:
    """Ask an empty log: no LSN was given, the oldest that can be read is the first one that will be."""
    assert (log.first_lsn, log.appended_lsn, log.acked_lsn, log.durable_lsn) == (1, 0, 0, 0)
    assert list(log.read()) == [] and log.to_arrow().num_rows == 0
    assert log.to_arrow().schema == walkit.RECORD_SCHEMA


def test_a_tombstone_has_a_key_and_no_value(log: walkit.WriteAheadLog) -> None:
    """Delete a key, and an empty key; without a key there is nothing to delete."""
    stamp = datetime(2020, 1, 1, tzinfo=UTC)
    assert log.delete(b"k", timestamp=stamp).first_lsn == 1
    log.delete(b"")
    with pytest.raises(ValueError, match="needs a key"):
        log.delete(None)
    expected = [Record(1, Kind.DELETE, b"k", None, stamp), Record(2, Kind.DELETE, b"", None, None)]
    assert list(log.read()) == expected


def test_text_gets_a_hint(log: walkit.WriteAheadLog) -> None:
    """Offer text: the message names the remedy."""
    with pytest.raises(RecordTypeError, match=r"\.encode\(\)") as caught:
        log.append(b"v", key="text")
    assert caught.value.what == "key"


def test_the_limit_of_a_record_is_exact() -> None:
    """Append the largest record that fits, with key, value and stamp: fine; one byte more: refused, nothing written."""
    with memory_log(tiny(frame_bytes_max=4096)) as log:
        limit = min(log.parts.core.body_bytes_max, log.options.queue_bytes_max)
        largest = limit - COLUMN_BYTES_PER_RECORD
        assert log.append(bytes(largest - 5), key=b"12345", timestamp=1).first_lsn == 1
        for attempt in (
            lambda: log.append(bytes(largest + 1)),
            lambda: log.append(bytes(largest), key=b"1"),
            lambda: log.submit(bytes(largest + 1)),
            lambda: log.append_many([b"small", bytes(largest + 1)]),
            lambda: log.submit_many([b""], keys=[bytes(largest + 1)]),
        ):
            with pytest.raises(RecordTooLargeError, match="nothing was written") as caught:
                attempt()
            assert (caught.value.size_bytes, caught.value.limit_bytes) == (limit + 1, limit)
        assert log.append(b"after").first_lsn == 2
        assert max(h.footprint for h in headers(log)) <= 4096


def test_what_the_queue_could_never_hold_is_refused_at_once() -> None:
    """Append more than `queue_bytes_max` to an idle log: refused instead of waiting for room that never comes."""
    with memory_log(tiny(queue_bytes_max=4096)) as log, pytest.raises(RecordTooLargeError):
        log.append(bytes(5000))


EAST = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("given_stamp", "expected"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        (1_600_000_000_123_456, datetime(2020, 9, 13, 12, 26, 40, 123_456, tzinfo=UTC)),
        (datetime(2020, 1, 1, 12, 0, 0, 7, tzinfo=EAST), datetime(2020, 1, 1, 6, 30, 0, 7, tzinfo=UTC)),
        (datetime.min.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)),
        (datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
        (np.int64(1_000_000), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (None, None),
    ],
)
def test_timestamps_are_kept_to_the_microsecond(
    log: walkit.WriteAheadLog, given_stamp: Any, expected: datetime | None
) -> None:
    """Append with a stamp: it is read back in UTC, as a record and as Arrow."""
    log.append(b"v", timestamp=given_stamp)
    assert next(log.read()).timestamp == expected
    assert log.to_arrow()["timestamp"].to_pylist() == [expected]


@pytest.mark.parametrize(
    ("stamp", "error"),
    [
        (datetime(2020, 1, 1), ValueError),  # noqa: DTZ001 - the point of the test
        (2**63, ValueError),
        (-(2**63) - 1, ValueError),
        (2**200, ValueError),
        (253_402_300_800_000_000, ValueError),
        (1.5, TypeError),
        ("2020-01-01", TypeError),
        (True, TypeError),
        (np.datetime64("2020-01-01"), TypeError),
    ],
)
def test_a_stamp_that_could_not_be_read_back_is_refused(
    log: walkit.WriteAheadLog, stamp: Any, error: type[Exception]
) -> None:
    """Offer naive, huge and foreign stamps by every way in: refused, nothing written, the log goes on."""
    for attempt in (
        lambda: log.append(b"v", timestamp=stamp),
        lambda: log.submit(b"v", timestamp=stamp),
        lambda: log.delete(b"k", timestamp=stamp),
        lambda: log.transaction().__enter__().append(b"v", timestamp=stamp),
        lambda: asyncio.run(log.append_async(b"v", timestamp=stamp)),
    ):
        with pytest.raises(error) as refused:
            attempt()
        assert error is TypeError or isinstance(refused.value, walkit.RecordTimeError)
        assert error is ValueError or isinstance(refused.value, walkit.RecordTypeError)
    assert (log.appended_lsn, log.append(b"fine").first_lsn) == (0, 1)


def test_submit_gives_a_ticket_for_the_same_result(log: walkit.WriteAheadLog) -> None:
    """Submit a hundred records: tickets in order, results like those of append, all read back."""
    tickets = [log.submit(b"%d" % n, key=b"k", timestamp=n) for n in range(100)]
    results = [t.result() for t in tickets]
    assert all(isinstance(r, AppendResult) and t.done() for r, t in zip(results, tickets, strict=True))
    assert [r.first_lsn for r in results] == list(range(1, 101))
    assert values(log.read()) == [b"%d" % n for n in range(100)]


def _ways_in(log: walkit.WriteAheadLog) -> dict[str, AppendResult | None]:
    """Return the result of each call that appends, by its name; a new one has to be added here."""
    with log.transaction() as many:
        many.put(b"k", b"v")
    columns = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())})
    return {
        "append": log.append(b"v"),
        "append keyed": log.append(b"v", key=b"k"),
        "delete": log.delete(b"k"),
        "submit": log.submit(b"v").result(),
        "submit_many": log.submit_many([b"v"] * 3).result(),
        "append_many": log.append_many([b"v"] * 3),
        "append_many, none": log.append_many([]),
        "append_many, several frames": log.append_many([bytes(1 << 20)] * 5),
        "append_arrow": log.append_arrow(columns),
        "append_bundle": log.append_bundle(columns),
        "transaction": many.result,
        "append_async": asyncio.run(log.append_async(b"v")),
    }


@pytest.mark.parametrize("in_flight", [1, 4])
def test_each_result_names_the_epoch_that_wrote_it(in_flight: int) -> None:
    """Append by every way in, close, open again: each result has the id of the epoch that the manifest has there."""
    storage, options, named = CrashingStorage(), walkit.LogOptions(in_flight=in_flight), []
    for _ in range(2):
        with walkit.open(storage=storage, options=options) as log:
            results = _ways_in(log)
            assert None not in results.values()
            named += [r for r in results.values() if r is not None]
    manifest = load_manifest(storage)
    wanted = [identity_at(manifest, min(r.first_lsn, r.last_lsn)).epoch_id for r in named]
    assert [r.epoch_id for r in named] == wanted and len(set(wanted)) == 2


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.binary(max_size=40)),
            st.one_of(st.none(), st.binary(max_size=300)),
            st.one_of(st.none(), st.datetimes(timezones=st.just(UTC))),
            st.booleans(),
        ),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([None, "zstd"]),
)
def test_what_goes_in_comes_out(rows: list[tuple[Any, Any, Any, bool]], codec: Any) -> None:
    """Round-trip random records by append, submit and delete over a reopening, compressed or not."""
    storage = walkit.models.CrashingStorage()
    expected = []
    with walkit.open(storage=storage, options=tiny(codec=codec)) as log:
        for lsn, (key, value, stamp, submits) in enumerate(rows, 1):
            if value is None and key is not None and submits:
                log.delete(key, timestamp=stamp)
                expected.append(Record(lsn, Kind.DELETE, key, None, stamp))
                continue
            (log.submit if submits else log.append)(value, key=key, timestamp=stamp)
            expected.append(Record(lsn, Kind.PUT, key, value, stamp))
        log.sync()
        assert list(log.read()) == expected
    with walkit.open(storage=storage, mode="r") as reader:
        assert list(reader.read()) == expected
        assert reader.to_arrow()["lsn"].to_pylist() == lsns(expected)


def test_bounds_of_reading_are_inclusive(log: walkit.WriteAheadLog) -> None:
    """Read every range of a log of several segments: exactly the LSNs asked for, in every form of reading."""
    log.append_many([bytes(3000)] * 60)
    log.append_many([b"x"] * 40)
    for first, last in [
        (1, 1),
        (1, 100),
        (7, 7),
        (20, 61),
        (61, 100),
        (100, 100),
        (99, 250),
        (0, 3),
        (-5, 2),
    ]:
        expected = list(range(max(first, 1), min(last, 100) + 1))
        assert lsns(log.read(first, last)) == expected
        assert log.to_arrow(first, last)["lsn"].to_pylist() == expected
        assert log.to_pandas(first, last)["lsn"].tolist() == expected
    assert lsns(log.read(95)) == list(range(95, 101))
    assert lsns(log.read(last_lsn=3)) == [1, 2, 3]
    assert list(log.read(101)) == list(log.read(50, 49)) == list(log.read(200, 300)) == []


def test_reading_is_as_of_the_call(log: walkit.WriteAheadLog) -> None:
    """Start reading, append, continue reading: later records are not in it."""
    log.append(b"1")
    reading = log.read()
    batches = log.read_batches()
    log.append(b"2")
    assert values(reading) == [b"1"]
    assert batches.read_all().num_rows == 1
    assert values(log) == [b"1", b"2"]


def test_a_log_exports_the_arrow_stream(log: walkit.WriteAheadLog) -> None:
    """Hand the log itself to pyarrow: its records come as a table of RECORD_SCHEMA."""
    log.append_many([b"a", None, b""], keys=[b"k", None, b""])
    table = pa.table(pa.RecordBatchReader.from_stream(log).read_all())
    assert table.schema == walkit.RECORD_SCHEMA
    assert table["value"].to_pylist() == [b"a", None, b""]
