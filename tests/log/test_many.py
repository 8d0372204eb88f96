"""Many records in one call: lists, generators and Arrow columns, cut into frames; and their errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import walkit
from tests.support.held_writes import Gates, Held
from tests.support.logs import (
    SEGMENTS,
    FaultyMemory,
    faulty_log,
    headers,
    lsns,
    memory_log,
    reopened,
    tiny,
    values,
)
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.ports import GatedQueue, LogPorts
from walkit.errors import (
    CommitFailedError,
    LogClosedError,
    LogFullError,
    LogPoisonedError,
    OptionsError,
)
from walkit.log import columns as rows
from walkit.log.open import open_writer
from walkit.models.faults import Fault


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """An empty log in memory, with small frames and segments."""
    with memory_log() as made:
        yield made


PLAIN = [b"a", b"", b"ccc"]
HOLED = [b"a", None, b"", None]


@pytest.mark.parametrize(
    "keys", [HOLED[:3], pa.array(HOLED[:3], pa.binary()), pa.chunked_array([HOLED[:1], HOLED[1:3]])]
)
def test_keys_may_be_of_any_kind_too(log: walkit.WriteAheadLog, keys: Any) -> None:
    """Append values with keys that are partly absent: each pair as it was given, by both ways in."""
    log.append_many(PLAIN, keys=keys)
    log.submit_many(pa.array(PLAIN), keys=keys).result()
    assert [(r.key, r.value) for r in log.read()] == list(zip(HOLED[:3], PLAIN, strict=True)) * 2


def test_nothing_gives_an_empty_range(log: walkit.WriteAheadLog) -> None:
    """Append no records: first LSN is the next one, last the one before it, no frame was written."""
    log.append(b"1")
    for result in (log.append_many([]), log.submit_many(iter(())).result(), log.append_many([], keys=[])):
        assert (result.first_lsn, result.last_lsn, result.position) == (2, 1, result.next_position)
    assert log.statistics().frames_written == 1
    assert log.append(b"2").position == result.next_position


@pytest.mark.parametrize("keys", [[b"k"], [b"k"] * 4, []])
def test_keys_and_values_have_one_length(log: walkit.WriteAheadLog, keys: list[bytes]) -> None:
    """Give more or fewer keys than values: refused before anything is written."""
    for way in (log.append_many, log.submit_many):
        with pytest.raises(ValueError, match="nothing was written"):
            way(PLAIN, keys)
    assert log.appended_lsn == 0


def test_more_than_a_frame_and_a_segment_is_cut_and_stays_in_order(log: walkit.WriteAheadLog) -> None:
    """Append 300 KB in one call to segments of 64 KiB: many frames and segments, one dense range."""
    records = [b"%04d" % n + bytes(7 * n % 1500) for n in range(400)]
    log.append(b"before")
    result = log.append_many(records, keys=[b"k%d" % n for n in range(400)])
    assert (result.first_lsn, result.last_lsn) == (2, 401)
    frames = headers(log)
    assert result.position == frames[1].position and result.next_position == frames[-1].end_position
    assert len(frames) > 20 and log.statistics().rotations > 3
    assert values(log.read(2)) == records
    assert all(f.footprint <= 8192 for f in frames)


def test_others_may_stand_between_and_each_ticket_knows_its_own(log: walkit.WriteAheadLog) -> None:
    """Append large lists on two threads at once: dense LSNs overall, each call's records in their order."""
    tasks = [
        Task(log.append_many, [b"%d:%d" % (who, n) + bytes(900) for n in range(100)]) for who in range(2)
    ]
    results = [task.result() for task in tasks]
    got = values(log.read())
    assert len(got) == 200
    for who, result in enumerate(results):
        mine = [(lsn, v) for lsn, v in enumerate(got, 1) if v is not None and v.startswith(b"%d:" % who)]
        assert [int(v[2:].split(b"\0")[0]) for _, v in mine] == list(range(100))
        assert (mine[0][0], mine[-1][0]) == (result.first_lsn, result.last_lsn)


def test_one_ticket_for_all(log: walkit.WriteAheadLog) -> None:
    """Submit a list of several frames: one ticket, done when the last of them is, with one callback."""
    called = threading.Event()
    ticket = log.submit_many([bytes(1000)] * 50)
    ticket.add_done_callback(lambda t: called.set() if t is ticket and t.done() else None)
    assert ticket.result(GUARD_S).last_lsn == 50
    assert ticket.done() and ticket.exception() is None and ticket.acknowledged == 50
    assert called.wait(GUARD_S)
    again = threading.Event()
    log.submit_many([]).add_done_callback(lambda _: again.set())
    assert again.is_set()


def test_an_error_carries_the_acknowledged_prefix() -> None:
    """Fail the third of many frames: the error counts the records of this call in the frames before it."""
    storage, log = faulty_log()
    storage.fail("synced_write", SEGMENTS, nth=3)
    with pytest.raises(CommitFailedError) as failed:
        log.append_many([bytes(3000)] * 10)
    assert (failed.value.acknowledged_prefix, failed.value.acked_lsn) == (4, 5)
    assert failed.value.outcome == "unknown"
    with pytest.raises(LogPoisonedError) as poisoned:
        log.append_many([b"x"])
    assert poisoned.value.acknowledged_prefix == 0
    log.close()
    assert len(reopened(storage.inner)) >= 5


def test_the_prefix_is_right_if_the_log_closes_meanwhile() -> None:
    """Close while a long call waits for room: queued records are written, the error has their number."""
    storage, log = faulty_log(queue_bytes_max=9000)
    hang = storage.hang("synced_write", SEGMENTS)
    call = Task(log.append_many, [bytes(3000)] * 40)
    assert hang.entered.wait(GUARD_S)
    wait_until(lambda: log.appended_lsn == 3, "the call's first part to be written")
    closing = Task(log.close)
    wait_until(lambda: log.closed)
    hang.release()
    closing.result()
    error = call.join().error
    assert isinstance(error, LogClosedError)
    assert error.acknowledged_prefix == len(reopened(storage.inner)) - 1 > 0


def test_a_long_call_waits_for_room_also_where_a_full_queue_raises() -> None:
    """Append ten times the queue's limit with on_full="raise": the call's own records never make it fail."""
    with memory_log(tiny(queue_bytes_max=9000, on_full="raise")) as log:
        assert log.append_many([bytes(3000)] * 60).last_lsn == 60


def test_a_ticket_reports_a_queue_that_fills_meanwhile() -> None:
    """Submit more than the queue holds with on_full="raise": queued records are written, the ticket has the error."""
    storage, log = faulty_log(queue_bytes_max=9000, on_full="raise")
    hang = storage.hang("synced_write", SEGMENTS)
    log.submit(b"hangs")
    assert hang.entered.wait(GUARD_S)
    ticket = log.submit_many([bytes(3000)] * 10)
    called: list[Any] = []
    ticket.add_done_callback(called.append)
    assert called == []
    hang.release()
    with pytest.raises(LogFullError) as full:
        ticket.result(GUARD_S)
    assert vars(full.value)["acknowledged_prefix"] == ticket.acknowledged == log.acked_lsn - 2 > 0
    wait_until(lambda: called == [ticket])
    log.close()


def test_a_closed_log_refuses_also_what_is_empty() -> None:
    """Append nothing to a closed log: LogClosedError as for anything else."""
    log = memory_log()
    log.close()
    for way in (log.append_many, log.submit_many):
        with pytest.raises(LogClosedError):
            way([])
    with pytest.raises(OptionsError):
        walkit.LogOptions(queue_bytes_max=1)


def test_a_transaction_is_never_cut_by_a_long_call(log: walkit.WriteAheadLog) -> None:
    """Run transactions beside a long append_many: each one's records stay together in one frame."""
    call = Task(log.append_many, [bytes(700)] * 300)
    spans = []
    for n in range(20):
        with log.transaction() as transaction:
            for _ in range(5):
                transaction.put(b"t%d" % n, bytes(100))
        assert transaction.result is not None
        spans.append((transaction.result.first_lsn, transaction.result.last_lsn))
    call.result()
    frames = [(h.first_lsn, h.last_lsn) for h in headers(log)]
    assert all(any(begin <= first and last <= end for begin, end in frames) for first, last in spans)
    assert lsns(log.read()) == list(range(1, 401))


LISTS: dict[str, tuple[list[bytes], list[bytes] | None]] = {
    "one length": ([b"abc"] * 9, None),
    "several lengths": ([bytes(n) for n in range(9)], None),
    "keys": ([b"abc"] * 9, [b"%d" % n * n for n in range(9)]),
    "nothing but empty": ([b""] * 9, [b""] * 9),
}


@pytest.mark.parametrize("case", LISTS)
def test_a_short_list_makes_the_frame_that_packing_makes(
    case: str, log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Append short lists as objects, then with packing for all: both times the same body with the same flags."""
    given_values, keys = LISTS[case]
    log.append_many(given_values, keys)
    monkeypatch.setattr(rows, "JOINED_ITEMS_MAX", 0)
    log.append_many(given_values, keys)
    first, second = headers(log)
    assert (first.records, first.flags, first.body_crc) == (second.records, second.flags, second.body_crc)
    assert values(log.read()) == given_values * 2


def test_a_short_list_that_changes_while_it_waits_changes_nothing() -> None:
    """Submit a short list during a write and change it before its turn: the list as given is written."""
    with memory_log() as log:
        gates = Gates(1)
        Held(log, gates)
        first = Task(log.append, b"first")
        wait_until(lambda: gates.entered, "the write")
        given_values, given_keys = [b"a", b"b"], [b"k", b"l"]
        ticket = log.submit_many(given_values, given_keys)
        given_values[0], given_keys[:] = b"changed", []
        gates.let(1)
        first.result()
        assert ticket.result(GUARD_S).last_lsn == 3
        assert [(r.key, r.value) for r in log.read(2)] == [(b"k", b"a"), (b"l", b"b")]


class LateGate:
    """An admission gate that lets the second call in only when the log has refused the first, and there is room."""

    records_max = 1 << 20

    def __init__(self, held: Fault, no_room: Fault) -> None:
        """`held` keeps the first call from its segment until the second one asks, `no_room` refuses it then."""
        self._held, self._no_room = held, no_room
        self._calls = 0

    def attach(self, queue: GatedQueue) -> None:
        self._queue = queue

    def admit(self, count: int) -> bool:
        self._calls += 1
        if self._calls == 2:
            assert self._queue.queued_lsn() == 1
            self._held.release()
            wait_until(lambda: self._queue.queued_lsn() == 0, "the refusal of the queue")
            self._no_room.cancel()
        return True

    def entered(self) -> None:
        pass

    def wait(self, timeout: float | None) -> bool:
        return False

    def on_space(self, callback: object) -> bool:
        return False


def test_what_follows_a_refused_part_is_not_written_where_the_disk_has_room_again() -> None:
    """Refuse the first part of a call on a full disk, and make room before the second is queued: none is written."""
    storage = FaultyMemory()
    held = storage.hang("allocate", SEGMENTS)
    gate = LateGate(held, storage.fail("allocate", SEGMENTS, errno=28, times=None))
    with open_writer(storage, "x", tiny(), lambda *_: None, ports=LogPorts(gate=gate)) as log:
        with pytest.raises(LogFullError) as told:
            log.append_many([bytes(5000)] * 3)
        assert told.value.acknowledged_prefix == 0
        assert log.append(b"after").first_lsn == 1
        assert values(log.read()) == [b"after"]
