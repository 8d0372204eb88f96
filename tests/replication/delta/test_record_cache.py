"""The newest records of a delta reader: an answer is whole or there is none, in a fixed number of bytes."""

from __future__ import annotations

import random
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import walkit
from tests.replication.delta.test_reader import WAIT_S, mixed
from tests.support.logs import tiny
from tests.support.threads import wait_until
from walkit.errors import GapError, HistoryTrimmedError, LogClosedError, OptionsError, RecordTypeError
from walkit.record import Kind, Record
from walkit.replication import DeltaReader, Primary
from walkit.replication.delta.record_cache import KEY_BYTES, RECORD_BYTES, RecordCache

KEYS = [b"a", b"b", b"c"]
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.sampled_from([*KEYS, None]), max_size=6)), max_size=30
)


def record(lsn: int, key: bytes | None, value: bytes = b"value") -> Record:
    """A record for tests."""
    return Record(lsn, Kind.PUT, key, value)


@given(STEPS, st.integers(1, 12))
def test_an_answer_is_all_that_the_log_has_or_none(
    steps: list[tuple[int, list[bytes | None]]], room: int
) -> None:
    """Put ranges, some after a gap, into a cache of few records: answers equal the log, bytes are bounded."""
    cache = RecordCache(room * (RECORD_BYTES + KEY_BYTES + 6))
    log: list[Record] = []
    for skipped, keys in steps:
        log += [record(len(log) + n + 1, b"a") for n in range(skipped)]  # which the cache never sees
        first = len(log) + 1
        new = [record(first + n, key) for n, key in enumerate(keys)]
        log += new
        cache.put(first, iter(new), len(log))
        assert cache.size_bytes <= cache.bytes_max
        for key in KEYS:
            for lsn in range(1, len(log) + 2):
                found = cache.records_of(key, lsn)
                assert found is None or found == [r for r in log if r.key == key and r.lsn >= lsn]
        assert all(cache.records_of(key, len(log) + 1) == [] for key in KEYS), "nothing is after the end"
        assert skipped or not new or cache.records_of(b"z", len(log)) is not None, "no other key is there"


def test_each_key_knows_from_where_it_is_whole() -> None:
    """Fill a cache of three records with a rare and a common key: the rare one's answer reaches further back."""
    cache = RecordCache(3 * (RECORD_BYTES + 6) + 2 * KEY_BYTES)
    keys = [b"a", b"a", b"b", b"a", b"a"]
    cache.put(1, [record(n, key) for n, key in enumerate(keys, 1)], 5)
    assert cache.records_of(b"a", 2) is None and cache.records_of(b"z", 2) is None
    assert [r.lsn for r in cache.records_of(b"b", 1) or ()] == [3], "of b there was nothing before"
    assert [r.lsn for r in cache.records_of(b"a", 3) or ()] == [4, 5]
    cache.put(7, [record(7, b"b")], 7)
    assert cache.records_of(b"a", 4) is None, "what came between is not known"
    assert [r.lsn for r in cache.records_of(b"b", 7) or ()] == [7]


def test_a_record_above_the_bound_leaves_nothing() -> None:
    """Put a record larger than the cache: nothing is kept, nothing is claimed to be, and the next one is."""
    cache = RecordCache(2000)
    cache.put(1, [record(1, b"a"), record(2, b"b", bytes(2000)), record(3, b"c")], 3)
    assert cache.records_of(b"b", 2) is None and cache.records_of(b"a", 1) is None
    assert [r.lsn for r in cache.records_of(b"c", 3) or ()] == [3]


@pytest.mark.parametrize("keys", [1, 100, 1 << 30])
def test_the_bound_is_of_memory(keys: int) -> None:
    """Fill a cache with records of one key, of a few, and of a key each: the process takes no more than the bound."""
    bound = 2 << 20
    tracemalloc.start()
    try:
        cache, lsn = RecordCache(bound), 0
        while cache.records_of(b"none", 1) is not None:
            lsn += 1
            new = Record(
                lsn,
                Kind.PUT,
                b"key %d" % (lsn % keys),
                b"%d" % lsn * 10,
                datetime(2026, 1, 1, microsecond=lsn, tzinfo=UTC),
            )
            cache.put(lsn, [new], lsn)
        assert 0.6 * bound < tracemalloc.get_traced_memory()[0] < 1.15 * bound
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cache_bytes", [0, 4_000, 1 << 20])
def test_the_records_of_a_key_are_the_logs(cache_bytes: int, tmp_path: Path) -> None:
    """Follow a mixed log with no, a small and a large cache: the records of each key from any LSN are the log's."""
    chance = random.Random(cache_bytes)
    with walkit.open(tmp_path / "log", options=tiny()) as log, Primary(log) as primary:
        before = mixed(log, chance, 20)
        log.sync()
        with DeltaReader(tmp_path / "log", primary.address, cache_bytes=cache_bytes) as reader:
            reader.wait_for(before, WAIT_S)
            last = mixed(log, chance, 40)
            log.sync()
            reader.wait_for(last, WAIT_S)
            all_of_it = list(log.read())
            for key in {r.key for r in all_of_it if r.key is not None}:
                for lsn in (1, before + 1, last - 5, last + 1):
                    wanted = [r for r in all_of_it if r.key == key and r.lsn >= lsn]
                    assert reader.records_of(key, lsn) == wanted
            found = reader.statistics()
            assert found.cache_bytes <= cache_bytes
            assert (found.cache_hits > 0, found.cache_misses > 0) == (cache_bytes > 0, cache_bytes < 1 << 20)
        if cache_bytes == 1 << 20:
            assert reader.records_of(key, last) == [r for r in all_of_it if r.key == key and r.lsn >= last]
        else:
            with pytest.raises(LogClosedError):
                reader.records_of(key, 1)


def test_what_is_gone_from_memory_and_log_is_an_error(tmp_path: Path) -> None:
    """Trim the log under a reader whose cache begins later: GapError for what is dropped, and no part of an answer."""
    with walkit.open(tmp_path / "log", options=tiny()) as log, Primary(log) as primary:
        for n in range(200):
            log.append(bytes(500), key=b"%d" % (n % 7))
        log.sync()
        with DeltaReader(tmp_path / "log", primary.address, cache_bytes=8_000) as reader:
            last = log.append(b"new", key=b"1").last_lsn
            reader.wait_for(last, WAIT_S)
            log.wait_idle()
            # The reader needs none of them any more.
            wait_until(lambda: log.claims()[0].first_lsn == last + 1)
            assert log.trim(100) > 0
            with pytest.raises(GapError) as error:
                reader.records_of(b"1", 1)
            assert error.value.wanted == 1 and error.value.oldest > 1
            assert [r.value for r in reader.records_of(b"1", last)] == [b"new"]


def test_compaction_leaves_no_history(tmp_path: Path) -> None:
    """Compact a store under a reader: what only has its newest records is refused, and what is kept is answered."""
    with walkit.Store.open(tmp_path / "log") as store, Primary(store.log) as primary:
        for n in range(50):
            store.put(b"key", b"%d" % n)
        store.checkpoint()
        store.compact()
        with DeltaReader(tmp_path / "log", primary.address, cache_bytes=1 << 20) as reader:
            last = store.put(b"key", b"new").last_lsn
            store.log.sync()
            reader.wait_for(last, WAIT_S)
            with pytest.raises((HistoryTrimmedError, GapError)):
                reader.records_of(b"key", 1)
            assert [r.value for r in reader.records_of(b"key", last)] == [b"new"]


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None, 1 << 41])
def test_a_size_that_cannot_be_is_refused(wrong: object, tmp_path: Path) -> None:
    """Give a cache a size that is none: OptionsError before anything is read."""
    walkit.open(tmp_path / "log").close()
    with pytest.raises(OptionsError, match="cache_bytes"):
        DeltaReader(tmp_path / "log", "127.0.0.1:1", cache_bytes=wrong)  # type: ignore[arg-type]
    with DeltaReader(tmp_path / "log", "127.0.0.1:1") as reader, pytest.raises(RecordTypeError):
        reader.records_of("text", 1)  # type: ignore[arg-type]
