"""A sync or a synced write that fails beside the frames: the file is never believed again, and nothing durable is lost.

Linux reports a failed writeback once to a handle, to whichever call syncs next; the pages look clean, and the next sync
of the handle succeeds. `Writeback` is that error on memory: all unsynced bytes of the file are gone.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest

import walkit
from tests.support.held_writes import Gates, Held
from tests.support.logs import SEGMENTS, FaultyMemory, lsns, reopened, segment_set, tiny
from tests.support.threads import GUARD_S, Task, wait_until
from walkit._internal.threads import current_frames
from walkit.commit.policy import OneRecordPerFrame
from walkit.errors import CommitFailedError, LogFullError, LogPoisonedError, StorageError, WalkitError
from walkit.models.faults import Fault, Operation
from walkit.segments.active_segment import ZERO_STEP_BYTES
from walkit.storage.interface import OpenMode, StorageFile

LEVELS = ["none", "interval", "sync"]
WIDE = {"segment_bytes": 4 << 20, "frame_bytes_max": 64 << 10}
STEPS_OF_ZEROING = 3


class Writeback(FaultyMemory):
    """Memory whose n-th operation that `matches` gets the error of an earlier writeback of its whole file."""

    def __init__(self, matches: Callable[[Operation], bool], nth: int = 1) -> None:
        super().__init__()
        self._matches, self._nth, self.heard = matches, nth, threading.Event()

    def perform(self, operation: Operation, act: Callable[[], Any], **named: Any) -> Any:
        """See FaultyStorage."""
        if self._matches(operation):
            self._nth -= 1
            if self._nth == 0:
                file = self.inner.open(operation.file, "write")
                file.fail_sync(file.sync_mark())
                file.close()
                self.heard.set()
                raise StorageError("EIO: the writeback failed", errno=errno.EIO, name=operation.file)
        return super().perform(operation, act, **named)


def waits_for(event: threading.Event) -> Callable[[], None]:
    """Return a job that keeps the maintenance thread until the event comes."""

    def wait() -> None:
        assert event.wait(GUARD_S)

    return wait


def is_zeroing(operation: Operation) -> bool:
    """Whether this is a step of zeroing ahead after the first, which is done before the file has frames."""
    whole = operation.name == "synced_write" and operation.size in (ZERO_STEP_BYTES, ZERO_STEP_BYTES - 4096)
    return whole and operation.offset > 4096


def is_sync(operation: Operation) -> bool:
    """Whether this is a sync of a segment."""
    return operation.name == "sync" and operation.file.endswith(".segment")


def options_of(durability: str, in_flight: int, **more: Any) -> walkit.LogOptions:
    """Return options of this level; nothing is synced by the time alone."""
    if durability == "interval":
        more["interval_ms"] = 86_400_000
    if in_flight > 1:
        more["policy"] = OneRecordPerFrame()
    return tiny(durability=durability, in_flight=in_flight, **more)


def fill(log: walkit.WriteAheadLog, stop: Callable[[], object], size: int = 4000) -> int:
    """Append until the log refuses or `stop()`; return the last LSN that was acknowledged."""
    acked = 0
    try:
        while not stop():
            acked = log.append(bytes(size)).last_lsn
    except WalkitError:
        pass
    return acked


def check_the_rule(storage: FaultyMemory, log: walkit.WriteAheadLog, durable: int | None = None) -> None:
    """The log has failed, reports exactly the durable part, closes, and opens with that after a power cut."""
    wait_until(lambda: log.statistics().poisoned, "the poison")
    durable = log.durable_lsn if durable is None else durable
    for attempt in (log.sync, lambda: log.append(b"refused"), lambda: log.submit(b"refused")):
        with pytest.raises(LogPoisonedError):
            attempt()
    assert log.durable_lsn == durable
    sealed = log.parts.manifest_store.current.end.last_lsn
    log.close()
    assert log.durable_lsn == durable and log.parts.manifest_store.current.end.last_lsn == sealed
    for image in (storage.inner.crash(keep="none"), storage.inner.process_kill()):
        found = lsns(reopened(image, tiny(**WIDE)))
        assert found == list(range(1, len(found) + 1)) and len(found) >= durable


@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_write_beside_a_failed_sync_is_not_believed(in_flight: int) -> None:
    """Let a sync of the file have failed, and nothing heard of it yet: a write of it that ends well is refused."""
    with walkit.open(storage=FaultyMemory(), options=options_of("sync", in_flight)) as log:
        log.append(b"first")
        (segment,) = segment_set(log).open_segments
        segment.fail(StorageError("EIO", errno=errno.EIO))
        with pytest.raises(CommitFailedError):
            log.append(b"second")
        assert (log.acked_lsn, log.durable_lsn) == (1, 1)


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("durability", LEVELS)
@pytest.mark.parametrize("nth", range(1, STEPS_OF_ZEROING + 1))
def test_a_failed_zeroing_poisons(durability: str, in_flight: int, nth: int) -> None:
    """Lose a writeback before each step of zeroing: poison, `durable_lsn` is right, a cut leaves all acknowledged."""
    storage = Writeback(is_zeroing, nth)
    log = walkit.open(storage=storage, options=options_of(durability, in_flight, **WIDE))
    fill(log, lambda: log.acked_lsn >= 20)
    log.sync()
    acked = fill(log, storage.heard.is_set)
    assert storage.heard.is_set() and acked == log.acked_lsn
    check_the_rule(storage, log, acked if durability == "sync" else None)


@pytest.mark.parametrize("durability", LEVELS)
def test_a_failed_zeroing_beside_nothing_unsynced_poisons(durability: str) -> None:
    """Sync all, then fail a step of zeroing of the file: it is a failed sync of a file with frames like any other."""
    storage = Writeback(is_zeroing)
    log = walkit.open(storage=storage, options=options_of(durability, 1, **WIDE))
    segments = segment_set(log)
    held = threading.Event()
    segments.maintenance.submit("seal", waits_for(held))
    while not any(segments.maintenance._jobs["zero"]):
        log.append(bytes(4000))
    durable = log.sync()
    held.set()
    check_the_rule(storage, log, durable)


def first_segment_is_full(
    log: walkit.WriteAheadLog, held: int, *, poisons: bool = False
) -> list[walkit.Ticket]:
    """Fill the first segment and begin the next with one of its frames held: its sync is still to come.

    With `poisons` that sync fails, and may do so before the last frames of the next segment have landed.
    """
    gates = Gates(held)
    Held(log, gates)
    tickets = [log.submit(bytes(7000)) for _ in range(12)]
    wait_until(lambda: len(segment_set(log).open_segments) == 2 and log.parts.core.landed > 3, "the rotation")
    gates.let(held)
    for ticket in tickets:
        error = ticket.exception(GUARD_S)
        assert error is None or (poisons and isinstance(error, walkit.WalkitError)), error
    return tickets


@pytest.mark.parametrize("durability", ["none", "interval"])
def test_a_failed_sync_of_a_seal_poisons(durability: str) -> None:
    """Lose a writeback before the sync of a seal: poison, no seal, even at the close, a cut leaves all acknowledged."""
    storage = Writeback(is_sync, 2)
    log = walkit.open(storage=storage, options=options_of(durability, 8, reorder_window_bytes=1 << 20))
    first_segment_is_full(log, 5, poisons=True)
    wait_until(storage.heard.is_set, "the sync of the seal")
    check_the_rule(storage, log)


@pytest.mark.parametrize("durability", ["none", "interval"])
def test_a_seal_that_waits_while_a_sync_fails_is_skipped(durability: str) -> None:
    """Fail a sync while a seal of the same file is queued: the seal is not made, then or at the close."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=options_of(durability, 8, reorder_window_bytes=1 << 20))
    held = threading.Event()
    log.parts.segments.maintenance.submit("seal", waits_for(held))
    first_segment_is_full(log, 5)
    durable = log.durable_lsn
    wait_until(lambda: log.parts.segments.maintenance._jobs["seal"], "the seal to wait")
    storage.fail("sync", SEGMENTS)
    with pytest.raises(StorageError):
        log.sync()
    held.set()
    with pytest.raises(LogPoisonedError):
        log.wait_idle()
    assert log.parts.manifest_store.current.sealed == ()
    check_the_rule(storage, log, durable)


@pytest.mark.parametrize("durability", ["none", "interval"])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_failed_sync_of_the_last_seal_is_raised_and_not_counted(durability: str, in_flight: int) -> None:
    """Lose a writeback before the sync of the close: raised, nothing is counted as durable, the log opens."""
    storage = Writeback(is_sync, 2)
    log = walkit.open(storage=storage, options=options_of(durability, in_flight))
    log.append(b"first")
    log.sync()
    log.append(b"second")
    with pytest.raises(StorageError):
        log.close()
    assert (log.durable_lsn, log.statistics().poisoned) == (1, 1)
    assert log.parts.manifest_store.current.sealed == ()
    assert lsns(reopened(storage.inner.crash(keep="none"))) == [1]


def test_a_failed_file_is_not_synced_again() -> None:
    """Fail a sync, then ask the segment itself for another: refused with the cause, and the device is not asked."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=tiny(durability="none"))
    log.append(b"value")
    storage.fail("sync", SEGMENTS)
    with pytest.raises(StorageError):
        log.sync()
    asked = [o.name for o in storage.trace].count("sync")
    with pytest.raises(StorageError, match="EIO") as refused:
        segment_set(log).sync()
    assert refused.value.__cause__ is log.parts.core.failure
    log.close()
    assert [o.name for o in storage.trace if o.file.endswith(".segment")].count("sync") == 1 <= asked


def test_a_full_disk_for_a_spare_segment_does_not_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill or break the disk while a spare segment is made: no poison; the caller gets the error, and continues."""
    for code, told in ((errno.ENOSPC, 0), (errno.EDQUOT, 0), (errno.EIO, 1)):
        seen: list[str] = []
        storage = FaultyMemory()
        log = walkit.open(
            storage=storage,
            options=tiny(),
            events=lambda name, _, seen=seen: seen.append(name),  # type: ignore[misc]
        )
        log.append(b"first")
        full = storage.fail("synced_write", SEGMENTS, errno=code, times=None)
        monkeypatch.setattr(full, "meets", only_a_first_step(full))
        while log.statistics().frame_bytes < log.options.segment_bytes * 3 // 4:
            log.append(bytes(4000))
        log.wait_idle()
        assert full.hits == 1
        wait_until(lambda: seen.count("walkit.maintenance.fail") == told, "the event")  # noqa: B023
        assert not log.statistics().poisoned
        if code != errno.EIO:
            with pytest.raises(LogFullError):
                append_more(log)
        full.cancel()
        append_more(log)
        last = log.acked_lsn
        log.close()
        assert len(reopened(storage.inner)) == last


def append_more(log: walkit.WriteAheadLog) -> None:
    """Append into the next segment."""
    for _ in range(20):
        log.append(bytes(4000))


def only_a_first_step(fault: Fault) -> Callable[[Operation], bool]:
    """Return a fault's `meets` that sees only the zeroing of a file that is being made."""
    meets = fault.meets
    return lambda operation: operation.offset == 4096 and operation.size > 32_000 and meets(operation)


def stands_in(task: Task, name: str, looks: int = 20) -> Callable[[], bool]:
    """Return a predicate: the thread of a task is over, or was seen `looks` times at one place of a function."""
    before: list[tuple[object, int]] = []

    def is_there() -> bool:
        assert task.thread.ident is not None
        frame = current_frames().get(task.thread.ident)
        while frame is not None and frame.f_code.co_name != name:
            frame = frame.f_back
        now = (frame, -1 if frame is None else frame.f_lasti)
        if before and before[-1] != now:
            before.clear()
        before.append(now)
        return not task.thread.is_alive() or (frame is not None and len(before) > looks)

    return is_there


@pytest.mark.parametrize("durability", ["none", "interval"])
def test_a_sync_under_way_and_a_seal_of_the_file_do_not_meet(durability: str) -> None:
    """Hold a sync of the first segment while it is sealed, then let it go on: no poison, and both are done."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=options_of(durability, 8, reorder_window_bytes=1 << 20))
    segments = segment_set(log)
    beside = threading.Event()
    segments.maintenance.submit("seal", waits_for(beside))
    first_segment_is_full(log, 5)
    hang = storage.hang("sync", SEGMENTS)
    syncing = Task(log.sync)
    assert hang.entered.wait(GUARD_S)
    sealing = Task(segments.seal, segments.open_segments[0])
    wait_until(stands_in(sealing, "sync"), "the seal")
    hang.release()
    assert syncing.result() == log.acked_lsn == 12
    sealing.result()
    beside.set()
    assert log.statistics().poisoned == 0 and len(log.parts.manifest_store.current.sealed) == 1
    log.append(b"goes on")
    log.close()
    assert len(reopened(storage.inner.crash(keep="none"))) == 13


class Handles(FaultyMemory):
    """Memory that notes synced writes of one handle that overlap: one of them could take the other's error."""

    def __init__(self) -> None:
        super().__init__()
        self.overlaps: list[str] = []
        self.used: set[Any] = set()
        self.under_way: list[Any] = []

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """See Storage."""
        file = super().open(name, mode)
        if not name.endswith(".segment"):
            return file
        write, busy = file.write, threading.Lock()

        def noted(offset: int, buffers: Any, *, sync: bool = False) -> None:
            if not sync:
                write(offset, buffers)
                return
            alone = busy.acquire(blocking=False)
            if not alone:
                self.overlaps.append(name)
            self.used.add(busy)
            self.under_way.append(busy)
            try:
                write(offset, buffers, sync=True)
            finally:
                self.under_way.remove(busy)
                if alone:
                    busy.release()

        file.write = noted  # type: ignore[method-assign]
        return file


def test_no_two_synced_writes_share_a_handle() -> None:
    """Hold four frames of one segment in their writes at once: each has a handle of its own, and all are released."""
    storage = Handles()
    log = walkit.open(
        storage=storage, options=tiny(in_flight=4, policy=OneRecordPerFrame(), segment_bytes=1 << 20)
    )
    log.append(b"first")
    hang = storage.hang("synced_write", SEGMENTS, times=4)
    tickets = [log.submit(b"beside") for _ in range(4)]
    wait_until(lambda: len(storage.under_way) == 4)
    hang.release()
    for ticket in tickets:
        ticket.result(GUARD_S)
    log.close()
    assert storage.overlaps == [] and len(storage.used) >= 4
    assert lsns(reopened(storage.inner)) == [1, 2, 3, 4, 5]
