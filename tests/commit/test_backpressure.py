"""Back-pressure: a queue with a bound, timeouts, and a disk that is full."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

import walkit
from tests.support.logs import SEGMENTS, FaultyMemory, faulty_log, lsns, reopened, run_python, tiny, values
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.errors import LogClosedError, LogFullError, LogPoisonedError
from walkit.storage.interface import BACK_PRESSURE


def test_a_full_queue_blocks_until_there_is_room() -> None:
    """Fill the queue while a write hangs: append and submit wait, and go through when it moves."""
    storage, log = faulty_log(queue_bytes_max=4096)
    hang = storage.hang("synced_write", SEGMENTS)
    first = Task(log.append, b"hangs")
    assert hang.entered.wait(GUARD_S)
    filling = log.submit(bytes(4000))
    waiting = [Task(log.append, bytes(500)), Task(lambda: log.submit(bytes(500)).result(GUARD_S))]
    wait_until(lambda: log.parts.driver.signal.waiting == 2, "both to wait for room")
    assert log.statistics().queue_records == 1
    hang.release()
    assert first.result().first_lsn == 2 and filling.result(GUARD_S).first_lsn == 3
    assert sorted(t.result().first_lsn for t in waiting) == [4, 5]
    log.close()


def test_the_queue_never_holds_more_than_its_limit() -> None:
    """Append from 16 threads into a queue of 4 KiB: it is never over its limit, and everybody gets through."""
    storage = FaultyMemory()
    with walkit.open(storage=storage, options=tiny(queue_bytes_max=4096)) as log:
        storage.delay("synced_write", SEGMENTS, seconds=0.0005)
        seen: list[int] = []

        def work() -> None:
            for _ in range(30):
                log.append(bytes(700))
                seen.append(log.statistics().queue_bytes)

        for task in [Task(work) for _ in range(16)]:
            task.result()
        assert max(seen) <= 4096
        assert log.acked_lsn == 480


def test_on_full_raise_refuses_at_once() -> None:
    """Fill the queue of a log that raises: append, delete, transaction, submit and many at once are refused whole."""
    storage, log = faulty_log(queue_bytes_max=4096, on_full="raise")
    hang = storage.hang("synced_write", SEGMENTS)
    first = Task(log.append, b"hangs")
    assert hang.entered.wait(GUARD_S)
    filling = log.submit(bytes(4000))

    def transact() -> None:
        with log.transaction() as tx:
            tx.put(b"k", bytes(500))

    for attempt in (
        lambda: log.append(bytes(500)),
        lambda: log.append(bytes(500), timeout=5),
        lambda: log.delete(bytes(500)),
        lambda: log.submit(bytes(500)),
        lambda: log.append_many([bytes(500)] * 5),
        lambda: log.submit_many([bytes(500)] * 5),
        transact,
    ):
        with pytest.raises(LogFullError) as full:
            attempt()
        assert (full.value.reason, full.value.limit_bytes) == ("queue", 4096)
    hang.release()
    assert (first.result().first_lsn, filling.result(GUARD_S).first_lsn) == (2, 3)
    assert log.append(bytes(500)).first_lsn == 4
    log.close()


def test_an_answer_in_the_last_moment_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the write end between the timeout and the withdrawal: the record is acknowledged, so that is the result."""
    storage, log = faulty_log()
    hang = storage.hang("synced_write", SEGMENTS)
    withdraw = log.parts.driver.withdraw

    def late(ticket: walkit.commit.ticket.SingleTicket) -> bool:
        hang.release()
        wait_until(ticket.done)
        return withdraw(ticket)

    monkeypatch.setattr(log.parts.driver, "withdraw", late)
    assert log.append(b"just in time", timeout=0.05).first_lsn == 2
    log.close()


def test_room_is_waited_for_until_the_log_is_closed() -> None:
    """Close while callers wait for room: the queue is written, the callers get LogClosedError."""
    storage, log = faulty_log(queue_bytes_max=4096)
    hang = storage.hang("synced_write", SEGMENTS)
    first = Task(log.append, b"hangs")
    assert hang.entered.wait(GUARD_S)
    filling = log.submit(bytes(4000))
    waiting = [Task(log.append, bytes(500)) for _ in range(3)]
    wait_until(lambda: log.parts.driver.signal.waiting == 3, "three to wait for room")
    closing = Task(log.close)
    wait_until(lambda: log.closed)
    hang.release()
    closing.result()
    assert (first.result().first_lsn, filling.result(0).first_lsn) == (2, 3)
    assert [type(t.join().error) for t in waiting] == [LogClosedError] * 3
    assert lsns(reopened(storage.inner)) == [1, 2, 3]


@pytest.mark.parametrize("operation", ["create", "allocate", "synced_write"])
@pytest.mark.parametrize("code", BACK_PRESSURE, ids=errno.errorcode.get)
def test_a_full_disk_does_not_poison(operation: walkit.models.faults.OperationName, code: int) -> None:
    """Refuse a resource for a new segment: LogFullError with a reason, no LSN lost, and it works again with room."""
    events: list[str] = []
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=tiny(), events=lambda name, _: events.append(name))
    full = storage.fail(operation, SEGMENTS, errno=code, times=None)
    ways: list[Callable[[], object]] = [lambda: log.append(b"1"), lambda: log.submit(b"2").result(GUARD_S)]
    for way in ways:
        with pytest.raises(LogFullError, match=f"{errno.errorcode[code]}.*nothing was written") as caught:
            way()
        assert caught.value.reason == BACK_PRESSURE[code][0]
    assert (log.appended_lsn, log.statistics().poisoned) == (0, 0)
    assert "walkit.segment.full" in events and "walkit.log.poison" not in events
    assert not [n for n in storage.names() if n.endswith(".segment")], (
        "a segment that was not made stays behind"
    )
    full.cancel()
    assert log.append(b"room").first_lsn == 1
    log.close()
    assert values(reopened(storage.inner)) == [b"room"]


STARVED = """
import os, resource, sys, walkit
path, reason, options = sys.argv[1], sys.argv[2], walkit.LogOptions(segment_bytes=256 * 1024, idle_marker_ms=0)
limit = getattr(resource, {"descriptors": "RLIMIT_NOFILE", "file-size": "RLIMIT_FSIZE"}[reason])
log, soft, taken = walkit.open(path, options=options), resource.getrlimit(limit), []
resource.setrlimit(limit, (64 if reason == "descriptors" else 100 * 1024, soft[1]))
try:
    while reason == "descriptors":
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for _ in range(2):
    try:
        log.append(b"no segment")
    except walkit.LogFullError as error:
        print(error.reason)
for fd in taken:
    os.close(fd)
resource.setrlimit(limit, soft)
print(log.append(b"room").first_lsn, log.statistics().poisoned)
log.close()
print([record.value for record in walkit.open(path, mode="r").read()])
"""


@pytest.mark.parametrize("reason", ["descriptors", "file-size"])
def test_a_process_at_its_limits_is_refused_and_continues(reason: str, tmp_path: Path) -> None:
    """Lower RLIMIT_NOFILE or RLIMIT_FSIZE in a child: an append needs a segment and is refused, then works again."""
    child = run_python(STARVED, tmp_path / "log", reason, check=False)
    assert child.stdout.splitlines() == [reason, reason, "1 0", "[b'room']"]


IN_FLIGHT = """
import os, resource, sys, walkit
from walkit.policy import OneRecordPerFrame
options = walkit.LogOptions(in_flight=8, policy=OneRecordPerFrame(), idle_marker_ms=0)
log, soft, taken = walkit.open(sys.argv[1], options=options), resource.getrlimit(resource.RLIMIT_NOFILE), []
log.append(b"the segment is made")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, soft[1]))
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
tickets = [log.submit(b"%d" % n) for n in range(300)]
print(len({ticket.result(20).first_lsn for ticket in tickets}), log.statistics().poisoned)
"""


def test_frames_in_flight_share_handles_without_a_descriptor(tmp_path: Path) -> None:
    """Submit 300 frames, eight at a time, in a child without a free descriptor: all are acknowledged."""
    assert run_python(IN_FLIGHT, tmp_path / "log", check=False).stdout == "300 0\n"


def test_a_disk_that_is_full_for_the_manifest_is_the_same() -> None:
    """Refuse the edit that names a new segment, then the new base: LogFullError; appends go on once there is room."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=tiny())
    for operation in ("synced_write", "write"):
        full = storage.fail(operation, "manifest*", errno=errno.ENOSPC, times=None)
        with pytest.raises(LogFullError):
            log.append(b"1")
        assert full.hits == 1
        full.cancel()
    assert log.append(b"2").first_lsn == 1
    log.close()
    assert values(reopened(storage.inner)) == [b"2"]


def test_append_many_on_a_full_disk_reports_its_prefix() -> None:
    """Fill the disk while a long call runs: LogFullError with the acknowledged prefix, and the log holds that."""
    storage, log = faulty_log()
    storage.fail("allocate", SEGMENTS, errno=errno.ENOSPC, times=None)
    with pytest.raises(LogFullError) as full:
        log.append_many([bytes(3000)] * 200)
    prefix = vars(full.value)["acknowledged_prefix"]
    assert 0 < prefix == log.acked_lsn - 1
    storage.clear()
    log.close()
    assert len(reopened(storage.inner)) == prefix + 1


def test_an_error_while_making_a_segment_that_is_not_about_room_poisons() -> None:
    """Fail the making of a segment with an I/O error: the log is poisoned, and nothing was written."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=tiny())
    storage.fail("allocate", SEGMENTS)
    with pytest.raises(LogPoisonedError):
        log.append(b"1")
    log.close()
    assert reopened(storage.inner) == []
