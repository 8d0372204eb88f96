"""A payload log that fails, is away or has lost values: who waits, what is refused, and with which error."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
import time
from pathlib import Path

import pytest

import walkit
from tests.links.made import Watched, is_fetch, linked, value_of
from tests.support.logs import FaultyMemory, tiny, values
from walkit.models import CrashingStorage
from walkit.models.faults import Operation
from walkit.record import Link


def outage(storage: FaultyMemory) -> None:
    """Make everything that is written to a place fail."""
    for name in ("write", "synced_write", "sync", "sync_directory", "create", "replace"):
        storage.fail(name, times=None)


def test_waiting_records_fail_at_their_own_deadlines() -> None:
    """Goal: each waiting record has its own deadline and a typed error, and later ones succeed. Method: an outage."""
    payloads = FaultyMemory()
    options = linked(payloads, write_timeout_ms=1500)
    with walkit.open(storage=CrashingStorage(), options=options, events=lambda *_: None) as log:
        log.append(value_of(1))
        outage(payloads)
        large, small = log.submit(value_of(2)), log.submit(b"behind")
        began = time.monotonic()
        with pytest.raises(walkit.AppendTimeoutError):
            log.append(value_of(3), timeout=0.3)
        with pytest.raises(walkit.AppendTimeoutError):
            log.append(b"small, and behind", timeout=0.3)
        assert time.monotonic() - began < 1.4 and not small.done() and not large.done()
        with pytest.raises(walkit.PayloadUnreachableError) as caught:
            large.result(30)
        assert caught.value.location == log.location and caught.value.__cause__ is not None
        assert small.result(30).first_lsn == 2, "the record after it is written"
        payloads.clear()
        assert log.append(value_of(4)).first_lsn == 3
        assert values(log) == [value_of(1), b"behind", value_of(4)]


def test_waiting_records_are_written_when_the_payload_log_is_back() -> None:
    """Goal: an outage shorter than the deadline costs no record and no order. Method: an outage of a short time."""
    payloads = FaultyMemory()
    with walkit.open(storage=CrashingStorage(), options=linked(payloads), events=lambda *_: None) as log:
        log.append(value_of(0))
        outage(payloads)
        tickets = [log.submit(value_of(n) if n % 2 else b"%d" % n) for n in range(1, 9)]
        threading.Timer(0.5, payloads.clear).start()
        assert [t.result(30).first_lsn for t in tickets] == list(range(2, 10))
        assert values(log)[1:] == [value_of(n) if n % 2 else b"%d" % n for n in range(1, 9)]
        usage = log.payload_usage()
        assert usage is not None and usage.live == 5


def test_full_payload_log_refuses_its_record_alone() -> None:
    """Goal: a value without room fails its record, typed; the log works. Method: no room for a new segment."""
    payloads = FaultyMemory()
    with walkit.open(storage=CrashingStorage(), options=linked(payloads), events=lambda *_: None) as log:
        for name in ("create", "allocate"):
            payloads.fail(name, times=None, errno=errno.ENOSPC)
        with pytest.raises(walkit.PayloadUnreachableError) as caught:
            log.append(value_of(1))
        assert isinstance(caught.value.__cause__, walkit.LogFullError)
        assert log.append(b"small").first_lsn == 1
        payloads.clear()
        log.append(value_of(2))
        assert values(log) == [b"small", value_of(2)]


@pytest.mark.parametrize("prefix", ["", "objects:"])
def test_payload_log_that_is_away_is_never_made_again(tmp_path: Path, prefix: str) -> None:
    """Goal: no link names a payload log that is gone. Method: move it away under an open log, and before an opening."""
    place, away = tmp_path / "payloads", tmp_path / "away"
    options = linked(f"{prefix}{place}", write_timeout_ms=700)
    with walkit.open(tmp_path / "log", options=options, events=lambda *_: None) as log:
        log.append(value_of(1))
        place.rename(away)
        refused = 0
        for number in range(2, 4):
            try:
                log.append(value_of(number))
            except walkit.PayloadUnreachableError:
                refused += 1
        acked = log.acked_lsn
        assert refused == (2 if prefix else 0)
    for _ in range(2):
        with pytest.raises(walkit.LogNotFoundError, match="payload log"):
            walkit.open(tmp_path / "log", options=options)
    assert not list(place.rglob("manifest*"))
    shutil.rmtree(place, ignore_errors=True)
    away.rename(place)
    with walkit.open(tmp_path / "log", options=options) as log:
        log.append(value_of(9))
        assert len(values(log)) == acked + 1


@pytest.mark.parametrize("prefix", ["", "objects:"])
def test_refused_opening_leaves_the_place_of_a_lost_payload_log_empty(tmp_path: Path, prefix: str) -> None:
    """Goal: nothing is in the way of putting it back, by any path. Method: move it away; a symbolic link as a path."""
    place, path, also = tmp_path / "payloads", tmp_path / "log", tmp_path / "also"
    with walkit.open(path, options=linked(f"{prefix}{place}")) as log:
        log.append(value_of(1))
    place.rename(tmp_path / "away")
    also.symlink_to(tmp_path)
    for spelled in (place, also / "payloads"):
        with pytest.raises(walkit.LogNotFoundError, match="payload log"):
            walkit.open(path, options=linked(f"{prefix}{spelled}"))
        assert not place.exists()
    (tmp_path / "away").rename(place)
    with walkit.open(path, options=linked(f"{prefix}{also / 'payloads'}")) as log:
        assert values(log) == [value_of(1)]


def test_closing_does_not_wait_for_an_opening_that_hangs() -> None:
    """Goal: `close` ends all waits of the writer. Method: a payload log that failed, and whose opening hangs."""
    payloads = FaultyMemory()
    options = linked(payloads, write_timeout_ms=300)
    log = walkit.open(storage=CrashingStorage(), options=options, events=lambda *_: None)
    outage(payloads)
    hang = payloads.hang("lock", times=None)
    with pytest.raises(walkit.PayloadUnreachableError):
        log.append(value_of(1))
    assert hang.entered.wait(30)
    began = time.monotonic()
    log.close()
    assert time.monotonic() - began < 10
    payloads.clear()


def test_loop_of_a_task_never_fetches(tmp_path: Path) -> None:
    """Goal: values are fetched on other threads than the event loop's. Method: note the threads that fetch."""
    seen, payloads = set[threading.Thread](), Watched()

    def fetched(operation: Operation) -> None:
        if is_fetch(operation):
            seen.add(threading.current_thread())

    async def work() -> list[bytes | None]:
        async with walkit.open_async(tmp_path / "log", options=linked(payloads)) as log:
            for number in range(20):
                await log.append(value_of(number))
            payloads.seen = fetched
            return [record.value async for record in log.read_async()]

    assert asyncio.run(work()) == [value_of(n) for n in range(20)]
    assert seen and threading.current_thread() not in seen


def test_queue_of_values_is_bounded() -> None:
    """Goal: held values count in the log's queue. Method: an absent payload log, and a queue that refuses."""
    payloads = FaultyMemory()
    options = linked(payloads, queue_bytes_max=64 * 1024, on_full="raise", write_timeout_ms=2000)
    with walkit.open(storage=CrashingStorage(), options=options, events=lambda *_: None) as log:
        outage(payloads)
        for number in range(10):
            log.submit(value_of(number, 6000))
        with pytest.raises(walkit.LogFullError):
            log.submit(value_of(10, 6000))
        assert log.statistics().queue_bytes <= 64 * 1024
        payloads.clear()
        log.append(b"end")
        assert len(values(log)) == 11


def test_closing_and_poison_end_what_waits() -> None:
    """Goal: no caller waits forever, and nothing written is lost. Method: close with held values; poison with them."""
    storage, payloads = FaultyMemory(), FaultyMemory()
    log = walkit.open(
        storage=storage, options=linked(payloads, write_timeout_ms=1000), events=lambda *_: None
    )
    log.append(value_of(0))
    hang = payloads.hang("synced_write", "*.segment")
    tickets = [log.submit(value_of(n)) for n in range(1, 4)]
    threading.Timer(0.2, hang.cancel).start()
    log.close()
    assert [t.result(0).first_lsn for t in tickets] == [2, 3, 4]
    log = walkit.open(storage=storage, options=linked(payloads), events=lambda *_: None)
    outage(storage)
    with pytest.raises((walkit.CommitFailedError, walkit.LogPoisonedError)):
        log.append(value_of(9))
    with pytest.raises(walkit.LogPoisonedError):
        log.append(value_of(10))
    storage.clear()
    log.close()


def test_gone_and_unreachable_values_have_two_errors(tmp_path: Path) -> None:
    """Goal: a lost value and one without a way have two errors, and no empty value. Method: lose some."""
    path, place = tmp_path / "log", tmp_path / "payloads"
    with walkit.open(path, options=linked(place)) as log:
        log.append(value_of(1))
        log.append(b"small")
    moved = tmp_path / "moved"
    place.rename(moved)
    with walkit.open(path, mode="r") as reader:
        first, second = reader.read()
        assert second.value == b"small" and first.key is None and first.link is not None
        with pytest.raises(walkit.PayloadUnreachableError) as caught:
            _ = first.value
        link = first.link
        assert (caught.value.location, caught.value.lsn, caught.value.link) == (str(path), 1, tuple(link))
        with pytest.raises(walkit.PayloadUnreachableError):
            reader.to_arrow()
        assert reader.read_batches(resolve="link").read_all()["value"].to_pylist()[1] == b"small"
    with walkit.open(path, mode="r", payload_log=moved) as reader:
        assert values(reader) == [value_of(1), b"small"]
    with walkit.open(place) as other, walkit.open(path, mode="r") as reader:
        other.append(value_of(1))
        with pytest.raises(walkit.PayloadUnreachableError, match="another log"):
            values(reader)
    # A payload log that was put back from before the value, or whose value is damaged.
    with walkit.open(path, mode="r", payload_log=moved) as reader:
        for wrong in (
            link._replace(lsn=2),
            link._replace(epoch_id=5),
            link._replace(crc32c=1),
            link._replace(length=3),
        ):
            with pytest.raises(walkit.PayloadGoneError) as gone:
                reader.payloads.value(1, wrong)
            assert gone.value.lsn == 1 and gone.value.link == tuple(wrong)
    with walkit.open(path, options=linked(moved)) as log:
        log.append_many([value_of(2), value_of(3)])
    segment = min(moved.glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[data.index(value_of(1)) + 9] ^= 1
    segment.write_bytes(data)
    with (
        walkit.open(path, mode="r", payload_log=moved) as reader,
        pytest.raises(walkit.PayloadGoneError) as gone,
    ):
        reader.to_arrow()
    assert isinstance(gone.value.__cause__, walkit.CorruptionError) and gone.value.lsn == 1
    with walkit.open(path, mode="r", payload_log=moved) as reader:
        assert [r.value for r in reader if r.lsn != 1] == [b"small", value_of(2), value_of(3)]


def test_one_lost_value_of_many_releases_the_others() -> None:
    """Goal: what was fetched is released if another value fails. Method: count the values that frames still have."""
    payloads = CrashingStorage()
    with walkit.open(storage=CrashingStorage(), options=linked(payloads, queue_bytes_max=32 << 20)) as log:
        for number in range(6):
            log.append(value_of(number, 1_200_000))
        links = [r.link for r in log.read(resolve="link") if r.link]
        links[3] = links[3]._replace(crc32c=1)
        with pytest.raises(walkit.PayloadGoneError) as caught:
            log.payloads.values(list(range(1, 7)), links)
        trace, kept = caught.value.__traceback__, 0
        frames = []
        while trace is not None:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        for frame in frames:
            for held in frame.f_locals.values():
                parts = held.values() if isinstance(held, dict) else [held]
                kept += sum(isinstance(part, bytes) and len(part) > 1_000_000 for part in parts)
        assert kept <= 1, "the value that was looked at last, at most"


def test_values_are_read_ahead_in_bounded_parts() -> None:
    """Goal: reading in order fetches several values at a time. Method: count them."""
    payloads, seen = Watched(), list[Operation]()
    with walkit.open(storage=CrashingStorage(), options=linked(payloads)) as log:
        log.append_many([value_of(n) for n in range(100)])
        payloads.seen = lambda operation: seen.append(operation) if is_fetch(operation) else None
        assert values(log) == [value_of(n) for n in range(100)]
        assert 0 < len(seen) < 12
        seen.clear()
        assert list(log)[50].value == value_of(50) and len(seen) == 1


def test_batch_of_many_parts_is_read_in_order() -> None:
    """Goal: a batch has as many parts as its values need. Method: values of which no two are fetched together."""
    wanted = [value_of(n, 4_800_000) for n in range(3)]
    options = linked(CrashingStorage(), queue_bytes_max=64 << 20)
    with walkit.open(storage=CrashingStorage(), options=options) as log:
        log.append_many(wanted)
        assert [batch.num_rows for batch in log.read_batches()] == [1] * 3
        assert values(log) == wanted


def test_payload_frames_are_small() -> None:
    """Goal: a read of one value reads little else. Method: many values at once, and the frames of their log."""
    payloads = CrashingStorage()
    with walkit.open(storage=CrashingStorage(), options=linked(payloads)) as log:
        for ticket in [log.submit(value_of(n, 600_000)) for n in range(8)]:
            ticket.result()
    with walkit.open(storage=payloads, mode="r") as reader:
        view = reader.source.now().view
        assert [header.records for header, _, _ in view.frames(1)] == [1] * 8


def test_link_bytes_are_as_documented() -> None:
    """Goal: the form of a link does not change unseen. Method: one link, as bytes."""
    link = Link(0x0102, 0x0304, 5, 6, 0x0708090A, walkit.Kind.BUNDLE)
    wanted = "03000000 0a090807 0201000000000000 0403000000000000 0500000000000000 0600000000000000"
    assert link.encode().hex() == wanted.replace(" ", "") and Link.decode(link.encode()) == link


def test_options_show_the_payload_log() -> None:
    """Goal: run records name the payload log as text. Method: the options as plain values."""
    assert tiny().as_dict()["payload_log"] is None
    assert linked("objects:/x").as_dict()["payload_log"] == "objects:/x"
