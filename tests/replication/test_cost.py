"""Sessions share their work: one reading and one compression for all, one watching thread, no polling."""

from __future__ import annotations

import threading
import tracemalloc
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, quick, until
from tests.replication.frame_history import History, whole
from walkit._internal.threads import LogThread
from walkit.format.manifest import LogEnd
from walkit.models import CrashingStorage
from walkit.replication import Primary, Replica
from walkit.replication.logs.source import OpenSource
from walkit.replication.logs.tail_watch import REOPEN_S, TailWatch
from walkit.replication.primary.frame_reader import FrameReader
from walkit.replication.primary.shared_runs import KEPT_BYTES, SharedRuns
from walkit.replication.protocol import walkit_pb2
from walkit.replication.protocol.frame_run import FrameRun
from walkit.replication.protocol.messages import Batch
from walkit.replication.protocol.wire import decode_from_publisher, encode_from_publisher

pb: Any = walkit_pb2


@pytest.fixture
def history() -> History:
    """A log of three epochs, all of it durable."""
    return whole()


def first_run(history: History) -> FrameRun:
    """The first frames of a history."""
    run = history.read(LogEnd(), 4096)
    assert run is not None
    return run


def threads(name: str) -> int:
    """So many threads of this name run."""
    return sum(thread.name == name for thread in threading.enumerate())


def test_a_run_is_kept_for_the_second_session(history: History) -> None:
    """Put a run in as one of two: the other gets the same one; alone nothing is kept."""
    run, shared = first_run(history), SharedRuns()
    shared.enter()
    shared.put(run, history.lineage())
    assert shared.get(run.identity.log_id, run.after, 1 << 20) is None
    shared.enter()
    shared.put(run, history.lineage())
    assert shared.get(run.identity.log_id, run.after, 1 << 20) == (run, history.lineage())
    for found in (
        shared.get(run.identity.log_id + 1, run.after, 1 << 20),
        shared.get(run.identity.log_id, run.end, 1 << 20),
        shared.get(run.identity.log_id, run.after, len(run.data) - 1),
    ):
        assert found is None, "another log, another place, or more than is taken"
    shared.leave()
    assert shared.kept_bytes == 0 and shared.get(run.identity.log_id, run.after, 1 << 20) is None


def test_what_is_kept_has_a_bound(history: History) -> None:
    """Put in runs of 1 MiB at 40 places: at most 16 MiB are kept, the newest of them."""
    run, shared = first_run(history), SharedRuns()
    shared.enter()
    shared.enter()
    for n in range(40):
        after = LogEnd(last_lsn=n, position=n, chain=n)
        large = FrameRun(run.identity, run.limits, after, 0, run.headers, bytes(1 << 20))
        shared.put(large, ())
        assert shared.kept_bytes <= KEPT_BYTES
    assert shared.get(run.identity.log_id, LogEnd(), 1 << 20) is None
    assert shared.get(run.identity.log_id, after, 1 << 20) is not None


@pytest.mark.parametrize("stored", [False, True])
def test_three_replicas_get_the_same_from_one_reading(tmp_path: Path, stored: bool) -> None:
    """Append beside three replicas: each has all frames, and one thread watches a stored log for all of them."""
    with ExitStack() as stack:
        log = stack.enter_context(walkit.open(tmp_path / "p"))
        primary = stack.enter_context(Primary(tmp_path / "p" if stored else log))
        replicas = [
            stack.enter_context(Replica(tmp_path / f"r{n}", primary.address, backoff=quick()))
            for n in range(3)
        ]
        until(lambda: len(primary.status().followers) == 3, "three sessions")
        for n in range(60):
            log.append_many([b"%d" % n * 200] * 20)
        for replica in replicas:
            assert replica.wait_for(1_200, WAIT_S) >= 1_200
            assert [r.value for r in replica.log.read()] == [r.value for r in log.read()]
        if stored:
            assert threads("walkit-end-watch") == 1, "one for all sessions"
    until(lambda: threads("walkit-end-watch") == 0, "the end of the thread")


def test_a_session_without_news_does_not_wake(tmp_path: Path) -> None:
    """Look at how often an idle session asks its source in a second: with the heartbeats, and not each 5 ms."""
    with walkit.open(tmp_path / "p") as log:
        log.append(b"x")
        primary = Primary(log)
        asked: list[int] = []
        durable = primary.source.durable

        def counted() -> tuple[int, int]:
            asked.append(1)
            return durable()

        primary.source.durable = counted  # type: ignore[method-assign]
        with primary, Replica(tmp_path / "r", primary.address, backoff=quick()) as replica:
            replica.wait_for(1, WAIT_S)
            until(lambda: [f.acked_lsn for f in primary.status().followers] == [1], "the acknowledgement")
            before = len(asked)
            assert not threading.Event().wait(1.0)
            assert len(asked) - before < 20


def test_the_end_of_a_log_is_news(tmp_path: Path) -> None:
    """Watch an open log: a record, a sync of level interval, and its closing call back; after the end nothing does."""
    options = walkit.LogOptions(durability="interval", interval_ms=10)
    log = walkit.open(tmp_path / "p", options=options)
    called: list[int] = []
    source = OpenSource(log)
    unwatch = source.watch(lambda: called.append(1))
    log.append(b"x")
    until(lambda: source.durable()[0] == 1 and bool(called), "the sync")
    before = len(called)
    log.close()
    assert source.ended()
    until(lambda: len(called) > before, "the end")
    unwatch()


def test_a_log_that_cannot_be_read_is_news_too() -> None:
    """Let the durable end fail and come back after the first look: all three are told, and the watching goes on."""
    failing = threading.Event()
    calls = threading.Semaphore(0)

    def durable() -> tuple[int, int]:
        if failing.is_set():
            raise walkit.errors.LogNotFoundError("gone")
        return 1, 64

    watch = TailWatch(CrashingStorage(), durable)
    end = watch.add(calls.release)
    assert calls.acquire(timeout=WAIT_S), "the end may have moved before the first look"
    failing.set()
    assert calls.acquire(timeout=WAIT_S)
    failing.clear()
    assert calls.acquire(timeout=WAIT_S)
    end()


def test_the_first_look_is_told_to_a_callback_that_is_noted_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold `add` after the start of its thread until that has looked twice, or waits: the callback is called."""
    twice, looks, calls = threading.Event(), list[int](), threading.Semaphore(0)

    def durable() -> tuple[int, int]:
        looks.append(1)
        if len(looks) > 1:
            twice.set()
        return 1, 64

    class Late(LogThread):
        def start(self) -> None:
            super().start()
            twice.wait(2 * REOPEN_S)

    monkeypatch.setattr("walkit.replication.logs.tail_watch.LogThread", Late)
    end = TailWatch(CrashingStorage(), durable).add(calls.release)
    assert calls.acquire(timeout=WAIT_S)
    end()


def test_a_batch_is_the_message_that_protobuf_would_make(history: History) -> None:
    """Parse batches with protobuf itself: each field is there; with data of each length of a varint, and without."""
    run = first_run(history)
    for size in (0, 1, 127, 128, 20_000, 3 << 20):
        batch = Batch(
            after_position=0, start_position=0, end_position=len(run.data), epoch=1 << 63, epoch_id=3, alignment=64,
            frame_bytes_max=1 << 30, source_lsn=5, source_position=6, lineage=history.lineage(), codec="zstd",
            data=bytes(size),
        )  # fmt: skip
        data = encode_from_publisher(batch)
        outer = pb.PublisherMessage.FromString(data)
        assert outer.WhichOneof("message") == "batch" and len(outer.batch.data) == size
        assert outer.SerializeToString() and outer.crc == int.from_bytes(data[-4:], "little")
        assert decode_from_publisher(data) == batch


def test_a_large_frame_is_copied_once_on_its_way_into_a_message(tmp_path: Path) -> None:
    """Read a frame of 24 MiB and make its message: at most the buffer and the message are in memory at once."""
    size = 24 << 20
    options = walkit.LogOptions(frame_bytes_max=32 << 20, segment_bytes=64 << 20)
    with walkit.open(tmp_path / "p", options=options) as log:
        log.append(bytes(size))
        reader = FrameReader(OpenSource(log))
        tracemalloc.start()
        try:
            run = reader.read(LogEnd(), 1 << 20)
            assert run is not None
            batch = Batch(
                after_position=0, start_position=0, end_position=run.end.position, epoch=1, epoch_id=3, alignment=64,
                frame_bytes_max=1 << 30, source_lsn=1, source_position=run.end.position, data=run.data,
            )  # fmt: skip
            message = encode_from_publisher(batch)
            _, peak = tracemalloc.get_traced_memory()
            assert len(message) > size and peak < 2.2 * size
            del run, batch, message
            left, _ = tracemalloc.get_traced_memory()
            assert left < size / 2, "the reader keeps no large frame"
        finally:
            tracemalloc.stop()
            reader.close()
