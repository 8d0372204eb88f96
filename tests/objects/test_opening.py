"""Opening a log on object storage: each state that a writer, a loss or another log can leave, and its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from walkit.commit.policy import OneRecordPerFrame
from walkit.config import LogOptions
from walkit.errors import (
    CorruptionError,
    DivergenceError,
    LogExistsError,
    LogFencedError,
    LogNotFoundError,
    ObjectDeniedError,
    ObjectStoreError,
    OptionsError,
    WalkitError,
)
from walkit.log.wal import WriteAheadLog
from walkit.objects.layout import BULK_HEADER_BYTES, CLAIMS_KEY, MANIFEST_KEY, BulkHeader, Claims, object_key
from walkit.objects.object_sink import ObjectSink
from walkit.objects.open import open_object_writer
from walkit.objects.vouched import VouchedEnd
from walkit.storage.object_memory import MemoryObjectStore, ObjectFault, ObjectRequest
from walkit.storage.object_store import ObjectBytes

OPTIONS = LogOptions(in_flight=2, policy=OneRecordPerFrame())


def opened(store: MemoryObjectStore, **how: str) -> WriteAheadLog:
    return open_object_writer(store, how.get("mode", "a"), OPTIONS)


def killed(store: MemoryObjectStore, records: int = 6) -> None:
    """Append records from b"0" on, and end without closing: the vouched end is the fence."""
    client = store.client()
    log = opened(client)
    for n in range(records):
        log.append(b"%d" % n)
    client.plan = lambda request: ObjectFault(before=ObjectStoreError)
    log.close()


def bulks(store: MemoryObjectStore) -> dict[str, ObjectBytes]:
    """All bulks, with their tags."""
    return {entry.key: store.get(entry.key) for entry in store.list_after("log")}


def values(store: MemoryObjectStore) -> list[bytes | None]:
    with opened(store.client()) as log:
        return [record.value for record in log.read()]


def changed(store: MemoryObjectStore, bulk: int, **fields: int) -> bytes:
    """The bulk of this number with other fields, under a right checksum."""
    data = store.get(object_key(bulk)).data
    return BulkHeader.decode(data)._replace(**fields).encode() + data[BULK_HEADER_BYTES:]


def overwrite(store: MemoryObjectStore, key: str, data: bytes) -> None:
    store.delete(key)
    store.put_if_absent(key, data)


def test_a_log_is_made_and_opened_again() -> None:
    """Make a log, close it, open it: the records are there, and the second opening reads no bulk."""
    store = MemoryObjectStore()
    with opened(store, mode="x") as log:
        assert log.recovery.verdict == "created" and log.append(b"a").first_lsn == 1
        assert [r.value for r in log.read()] == [b"a"] and log.statistics().segments == 1
        assert "memory:objects" in repr(log) and "memory:objects" in log._repr_html_()
    with opened(store) as log:
        assert log.recovery.verdict == "clean" and log.recovery.bytes_scanned == 0
        assert log.append(b"b").first_lsn == 2 and [r.value for r in log.read()] == [b"a", b"b"]
    with pytest.raises(LogExistsError):
        opened(store, mode="x")


def test_after_a_kill_all_acknowledged_records_are_recovered() -> None:
    """End a writer without closing: the next one reads its bulks, and reports how much that was, with progress."""
    store, seen = MemoryObjectStore(), list[tuple[int, int]]()
    killed(store)
    with open_object_writer(store.client(), "a", OPTIONS, progress=lambda *done: seen.append(done)) as log:
        assert log.recovery.verdict == "recovered" and log.recovery.frames_scanned == 6
        assert [r.value for r in log.read()] == [b"%d" % n for n in range(6)]
        assert seen[-1][0] == log.recovery.bytes_scanned > 0 and "recovered" in str(log.recovery)
        assert [e.number for e in log.parts.manifest_store.current.lineage] == [1, 2]


def lose(number: int) -> Callable[[MemoryObjectStore], object]:
    return lambda store: store.delete(object_key(number))


def damage(store: MemoryObjectStore) -> None:
    data = bytearray(store.get(object_key(4)).data)
    data[-1] ^= 1
    overwrite(store, object_key(4), bytes(data))


def foreign(key: str) -> Callable[[MemoryObjectStore], object]:
    other = MemoryObjectStore()
    killed(other)
    return lambda store: overwrite(store, key, other.get(key).data)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lose(3), CorruptionError),
        (lose(1), CorruptionError),
        (damage, CorruptionError),
        (lambda store: overwrite(store, object_key(4), store.get(object_key(4)).data[:-64]), CorruptionError),
        (lambda store: overwrite(store, object_key(4), store.get(object_key(3)).data), CorruptionError),
        (lambda store: overwrite(store, object_key(4), changed(store, 4, chain=5)), CorruptionError),
        (lambda store: overwrite(store, object_key(4), changed(store, 4, epoch_id=5)), CorruptionError),
        (lambda store: overwrite(store, object_key(4), changed(store, 4, epoch=9)), LogFencedError),
        (foreign(object_key(4)), DivergenceError),
        (foreign(CLAIMS_KEY), DivergenceError),
        (lambda store: store.delete(MANIFEST_KEY), CorruptionError),
        (lambda store: store.delete(CLAIMS_KEY), CorruptionError),
        (lambda store: overwrite(store, CLAIMS_KEY, b"x"), CorruptionError),
        (lambda store: overwrite(store, CLAIMS_KEY, newer_claims(store)), LogFencedError),
        (
            lambda store: store.put_if_absent(object_key(11), changed(store, 4, number=11, log_id=1)),
            DivergenceError,
        ),
    ],
    ids=[
        *("lost", "vouched bulk lost", "flipped bit", "cut", "misplaced", "chain", "epoch id", "newer epoch"),
        *("foreign bulk", "foreign claims", "no manifest", "no claims", "damaged claims", "newer claims"),
        "foreign bulk after the end",
    ],
)
@pytest.mark.parametrize("can_list", [True, False], ids=["lists", "cannot list"])
def test_what_is_lost_or_wrong_is_refused_and_no_bulk_is_changed(
    change: Callable[[MemoryObjectStore], object], error: type[WalkitError], can_list: bool
) -> None:
    """Change one object of a log that was killed: the opening raises, twice, and every bulk is as it was."""
    store = MemoryObjectStore(can_list=True)
    killed(store)
    change(store)
    before = bulks(store)
    client = store.client()
    client.can_list = can_list
    for _ in range(2):
        with pytest.raises(error):
            opened(client)
    assert bulks(store) == before


def newer_claims(store: MemoryObjectStore) -> bytes:
    return replace(Claims.decode(store.get(CLAIMS_KEY).data), epoch=99).encode()


def test_an_answer_that_was_cut_is_read_again_before_the_verdict() -> None:
    """Cut the first answer of each bulk short: the opening reads it again, and recovers everything."""
    store, seen = MemoryObjectStore(), set[str]()
    killed(store)
    client = store.client()
    whole = client.get

    def get(key: str) -> object:
        found = whole(key)
        is_first = key not in seen
        seen.add(key)
        return found._replace(data=found.data[:-1]) if is_first and key.startswith("log/") else found

    client.get = get  # type: ignore[method-assign,assignment]
    with opened(client) as log:
        assert log.recovery.frames_scanned == 6


def test_a_removed_log_is_not_opened_and_not_made_again() -> None:
    """Mark the manifest as being removed: LogNotFoundError."""
    store = MemoryObjectStore()
    killed(store)
    with opened(store) as log:
        vouched = log.parts.manifest_store
        assert isinstance(vouched, VouchedEnd)
        vouched.stored = vouched.stored.next(extra={**vouched.stored.extra, "removed": True})
        log.append(b"x")
    with pytest.raises(LogNotFoundError):
        opened(store)


def test_a_lost_bulk_is_missed_as_far_ahead_as_its_writer_was() -> None:
    """Lose the bulk after the vouched end of a writer with 16 in flight; one with 2 misses it without a list."""
    store = MemoryObjectStore()
    with open_object_writer(store, options=LogOptions(in_flight=16, policy=OneRecordPerFrame())) as log:
        log.append(b"vouched")
        vouched = log.parts.manifest_store
        assert isinstance(vouched, VouchedEnd)
        vouched.save()
        saved, end = store.get(MANIFEST_KEY), vouched.saved
        for _ in range(33):
            log.append(b"acknowledged")
    assert end.number == 2
    for number in range(end.number + 2, end.number + 33):
        overwrite(store, object_key(number), changed(store, number, promised_position=end.position))
    overwrite(store, MANIFEST_KEY, saved.data)
    store.delete(object_key(end.number + 1))
    store.can_list = False
    with pytest.raises(CorruptionError, match="promises it"):
        opened(store)


def test_stale_bulks_are_replaced_by_their_tag() -> None:
    """Lose the oldest of four puts in flight: the next writer fences there and replaces the stale ones after it."""
    store = MemoryObjectStore()
    with opened(store.client()):
        pass
    options = LogOptions(in_flight=4, policy=OneRecordPerFrame())
    client = store.client(hold_back(object_key(3)))
    log = open_object_writer(client, options=options)
    tickets = [log.submit(b"stale-%d" % n) for n in range(4)]
    assert [type(t.exception()).__name__ for t in tickets] == ["CommitFailedError"] * 4
    log.close()
    assert {e.key for e in store.list_after("log")} >= {object_key(n) for n in (1, 2, 4, 5, 6)}
    second = store.client()
    with opened(second) as log:
        for n in range(3):
            log.append(b"new-%d" % n)
    replaced = [r.key for r in second.requests if r.method == "put_if_match" and r.key.startswith("log/")]
    assert replaced == [object_key(n) for n in (4, 5, 6)]
    assert not any(r.method.startswith("delete") for r in second.requests)
    assert values(store) == [b"new-0", b"new-1", b"new-2"]


def hold_back(key: str) -> Callable[[ObjectRequest], ObjectFault | None]:
    """A plan that fails the put of one key once the three after it are under way."""
    return lambda request: (
        ObjectFault(delay_s=0.3, before=ObjectStoreError)
        if request.key == key and request.method == "put_if_absent"
        else None
    )


@pytest.mark.parametrize(
    "options",
    [
        *({"ack_order": "completion"}, {"durability": "none"}, {"direct_io": True}, {"in_flight": 129}),
        {"recovery": "salvage"},
    ],
    ids=str,
)
def test_options_that_such_a_log_cannot_have_are_refused(options: dict[str, object]) -> None:
    """Open with each: OptionsError, before any request."""
    store = MemoryObjectStore()
    with pytest.raises(OptionsError):
        open_object_writer(store, options=LogOptions(**options))  # type: ignore[arg-type]
    assert store.requests == []


def test_refused_credentials_are_not_missing_objects() -> None:
    """Deny the read of the manifest: ObjectDeniedError, and no log is made."""
    store = MemoryObjectStore()
    with pytest.raises(ObjectDeniedError):
        opened(store.client(lambda request: ObjectFault(before=ObjectDeniedError)))
    assert list(store.list_after("")) == []


def test_thousands_of_appends_are_one_request_each_and_an_idle_writer_makes_none() -> None:
    """Count the requests of 2,000 bulks: at most 1.01 puts for each and nothing else; then of an idle writer."""
    store = MemoryObjectStore()
    log = open_object_writer(store, options=LogOptions(in_flight=16, policy=OneRecordPerFrame()))
    before = len(store.requests)
    for _ in range(2):
        tickets = [log.submit(b"v") for _ in range(1_000)]
        tickets[-1].result()
    log.wait_idle()
    assert log.statistics().frames_written == 2_000
    made = store.requests[before:]
    assert {r.method for r in made} == {"put_if_absent", "put_if_match"} and len(made) <= 2_020
    assert {r.key for r in made if r.method == "put_if_match"} == {MANIFEST_KEY}
    log.sync()
    assert log.wait_idle() and len(store.requests) == before + len(made)
    log.close()


@pytest.mark.parametrize("can_list", [True, False])
def test_an_opening_after_a_kill_takes_few_requests_whatever_the_length(can_list: bool) -> None:
    """Kill a writer that has saved no vouched end for as long as it may: at most 1,100 requests, with 16 in flight."""
    store = MemoryObjectStore(can_list=can_list)
    client = store.client(refuse_saves)
    log = open_object_writer(client, options=LogOptions(in_flight=16, policy=OneRecordPerFrame()))
    tickets = [log.submit(b"v") for _ in range(1_500)]
    written = sum(t.exception() is None for t in tickets)
    assert 900 < written < 1_000
    log.close()
    client = store.client()
    with open_object_writer(client) as log:
        assert len(client.requests) <= 1_100 and log.recovery.records_scanned >= written


def refuse_saves(request: ObjectRequest) -> ObjectFault | None:
    """A plan under which the manifest cannot be replaced once the log is open."""
    is_save = request.method == "put_if_match" and request.key == MANIFEST_KEY and request.number > 60
    return ObjectFault(before=ObjectStoreError) if is_save else None


def test_a_segment_of_bulks_costs_no_request() -> None:
    """A frame sink for objects: neither the beginning of a segment, nor sync, nor sealing makes a request."""
    store = MemoryObjectStore()
    with opened(store) as log:
        sink = log.parts.driver.writer.frame_sink
        assert isinstance(sink, ObjectSink)
        before = len(store.requests)
        assert sink.begin_segment(position=0, first_lsn=1, chain=0) == (64 << 20) - 4096
        sink.sync()
        sink.passed(0)
        assert len(store.requests) == before
