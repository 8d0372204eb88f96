"""Single records share a submission: the rules of joining, and each still has an outcome of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.support.fake_segments import DriverHarness, Sink, io_error
from tests.support.threads import GUARD_S, Task, raise_in_thread, wait_until
from walkit.commit import ways_in
from walkit.commit.frame import SealedFrame
from walkit.commit.policy import CappedFrames
from walkit.commit.ticket import ANY_THREAD, BATCH_BYTES_MAX, HAS_LEFT, Batch, BatchSlot, SingleTicket
from walkit.errors import (
    CommitFailedError,
    LogClosedError,
    LogFullError,
    LogPoisonedError,
    RecordTooLargeError,
    WalkitError,
)


def held(**options: Any) -> tuple[DriverHarness, Task]:
    """Return a harness and a caller that hangs in its write, so that whatever comes waits in line."""
    harness = DriverHarness(**options)
    return harness, harness.leader_in_write()


def enqueue_awaited(
    harness: DriverHarness, loop: asyncio.AbstractEventLoop, value: bytes, key: bytes | None = None
) -> Any:
    """Queue a put as a task does while this loop runs."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        return harness.driver.enqueue_awaited(key, value)
    finally:
        asyncio._set_running_loop(before)


def awaited(
    harness: DriverHarness, loop: asyncio.AbstractEventLoop, value: bytes, key: bytes | None = None
) -> BatchSlot:
    """Queue a put as a task of this loop does; return a ticket for its record."""
    queued: Any = enqueue_awaited(harness, loop, value, key)
    place = queued.gi_frame.f_locals
    ticket = BatchSlot()
    ticket.batch, ticket.index = place["batch"], place["index"]
    return ticket


JOINING = {
    "equal kinds": (["put", "put", "put", "put"], [4]),
    "a caller shares none that another thread fills": (["put", "put", "caller", "put", "caller"], [2, 3]),
    "callers, and a thread that submits": (["caller", "put", "caller", "put"], [4]),
    "threads that submit in turns": (["put", "put", "other", "put", "other", "put"], [2, 4]),
    "a key begins another": (["put", "keyed", "keyed", "put"], [1, 2, 1]),
    "a ticket of its own stands between": (["put", "ticket", "put", "put"], [1, 1, 2]),
    "the limit of bytes": (["large", "large", "large", "put"], [2, 2]),
    "tasks of one loop": (["task", "task", "keyed task", "task"], [2, 1, 1]),
    "tasks of two loops": (["task", "other's task", "other's task", "task"], [1, 2, 1]),
    "tasks, and their thread submits": (["put", "task", "put", "put", "task", "caller"], [1, 1, 2, 1, 1]),
    "tasks and the limit of bytes": (["large task", "large task", "large task", "task"], [2, 2]),
}


@pytest.mark.parametrize("case", JOINING)
def test_records_that_join_a_submission(case: str) -> None:
    """Queue records of several ways during a write: the table gives those that share a submission."""
    ways, counts = JOINING[case]
    harness, leader = held(frame_bytes_max=1 << 20)
    tasks: list[Task] = []
    loops = {other: asyncio.new_event_loop() for other in (False, True)}
    # One thread for all: a batch belongs to the thread that runs the loop, and the next thread may have another number.
    others = ThreadPoolExecutor(1)
    for way in ways:
        if way.endswith("task"):
            value = bytes(BATCH_BYTES_MAX // 2 - 100) if "large" in way else b"v"
            put = partial(awaited, harness, loops["other" in way], value, b"k" if "keyed" in way else None)
            others.submit(put).result(GUARD_S) if "other" in way else put()
        elif way == "caller":
            tasks += harness.waiting(1)
        elif way == "other":
            tasks.append(Task(harness.putted, b"v").join())
        elif way == "ticket":
            harness.queued()
        else:
            harness.putted(
                bytes(BATCH_BYTES_MAX // 2 - 100) if way == "large" else b"v",
                b"k" if way == "keyed" else None,
            )
    assert [s.count for s in harness.core.pending] == counts
    harness.place.release()
    for task in [leader, *tasks]:
        task.result()
    harness.driver.wait_written()
    assert harness.core.acked_lsn == 1 + sum(counts)
    harness.driver.stop(LogClosedError())
    others.shutdown()
    for loop in loops.values():
        loop.close()


def test_a_batch_that_was_taken_no_longer_grows() -> None:
    """Submit while the frame before is being written and again while the own one is: two submissions, two frames."""
    harness, leader = held()
    first = harness.putted(b"a")
    harness.place.hold()
    harness.place.released.set()
    leader.join()
    wait_until(lambda: first.frame is not None, "the first to be taken")
    second = harness.putted(b"b")
    assert second.batch is not first.batch
    harness.place.release()
    assert (first.result(GUARD_S).first_lsn, second.result(GUARD_S).first_lsn) == (2, 3)
    harness.driver.stop(LogClosedError())


class Meddled(list[bytes]):
    """A batch's values; something happens before one is appended, and after it."""

    def __init__(
        self, values: list[bytes], before: Callable[[], object], after: Callable[[], object]
    ) -> None:
        super().__init__(values)
        self._before, self._after = before, after

    def append(self, value: bytes) -> None:
        self._before()
        super().append(value)
        self._after()


MEDDLING = {
    "it ends before": ("end", "", 2),
    "it ends after": ("", "end", 1),
    "it is written and released before": ("write", "", 2),
    "it is written and released after": ("", "write", 1),
    "it ends before, and is written after": ("end", "write", 2),
    "who ends it is interrupted before": ("half", "", 1),
    "who ends it is interrupted after": ("", "half", 1),
    "its owner submits another before": ("nested", "", 2),
    "its owner submits another after": ("", "nested", 1),
    "the log is closed before": ("stop", "", 0),
}


@pytest.mark.parametrize("way", ["submits", "awaits"])
@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("case", MEDDLING)
def test_a_batch_that_ends_while_its_owner_appends_to_it(case: str, key: bytes | None, way: str) -> None:
    """End or write a batch, or close, between its owner's steps: the record is written once, or refused."""
    before, after, batches = MEDDLING[case]
    frames: list[Any] = []

    def note(frame: Any) -> None:
        frames.append(frame.columns)

    harness, leader = held(ack_sink=note)
    loop = asyncio.new_event_loop()
    put = harness.putted if way == "submits" else partial(awaited, harness, loop)
    first = put(b"first", key)
    batch = first.batch
    stopping: list[Task] = []
    nested: list[BatchSlot] = []

    def act(what: str) -> None:
        if not what:
            return
        if what == "end":
            with harness.driver.lock:
                harness.core.end_batch()
        elif what == "half":
            batch.ended = True
        elif what == "nested":
            nested.append(put(b"nested", key))
        elif what == "write":
            harness.place.release()
            wait_until(
                lambda: not batch.attached and first.done() and not batch.values, "the batch to be released"
            )
        else:
            stopping.append(Task(harness.driver.stop, LogClosedError()))
            wait_until(
                lambda: harness.driver.refusal is not None and harness.core.batch is None, "the log to refuse"
            )

    batch.values = Meddled(batch.values, partial(act, before), partial(act, after))
    if case == "the log is closed before":
        with pytest.raises(LogClosedError):
            put(b"second", key)
    else:
        second = put(b"second", key)
    harness.place.release()
    expected = [b"first"]
    if batches:
        tickets = [second, *nested, put(b"third", key)]
        tickets.sort(key=lambda ticket: ticket.result(GUARD_S).first_lsn)
        assert [ticket.result(0).first_lsn for ticket in [first, *tickets]] == list(
            range(2, 4 + len(nested) + 1)
        )
        assert len({id(first.batch), id(second.batch)}) == batches
        expected += [b"second", b"third"]
        if nested:
            expected.insert(1 if before else 2, b"nested")
            assert tickets.index(nested[0]) == (0 if before else 1)
    leader.join()
    for task in stopping or [Task(harness.driver.stop, LogClosedError())]:
        task.join()
    assert [value for columns in frames[1:] for value in columns.values] == expected
    assert key is None or [k for columns in frames[1:] for k in columns.keys] == [key] * len(expected)
    loop.close()


@pytest.mark.parametrize("way", ["submits", "awaits"])
def test_a_key_of_an_interrupted_caller_joins_no_record(way: str) -> None:
    """Leave a key without a value, as an interrupt may, before a record and before the frame: neither gets it."""
    seen: list[Any] = []
    harness, leader = held(ack_sink=lambda frame: seen.append(frame.columns))
    loop = asyncio.new_event_loop()
    put = harness.putted if way == "submits" else partial(awaited, harness, loop)
    first = put(b"a", b"1")
    first.batch.keys.append(b"stray")
    second = put(b"b", b"2")
    second.batch.keys.append(b"stray")
    harness.place.release()
    assert second.result(GUARD_S).first_lsn == 3
    leader.join()
    assert (list(seen[-1].keys), list(seen[-1].values)) == ([b"1", b"2"], [b"a", b"b"])
    harness.driver.stop(LogClosedError())
    loop.close()


def test_a_second_loop_of_a_thread_joins_what_the_first_has_left() -> None:
    """Leave a loop whose task waits for a hung write, and run another in the thread: its records share the batch."""
    harness, leader = held()

    async def append(*values: bytes) -> list[int]:
        queued = [harness.driver.enqueue_awaited(None, value) for value in values]
        return [(await wait).first_lsn for wait in queued if wait is not None]

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(append(b"left"), 0.01)

    async def stay() -> list[int]:
        task = asyncio.ensure_future(append(b"a", b"b"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done() and [s.count for s in harness.core.pending] == [3]
        harness.place.release()
        return await asyncio.wait_for(task, GUARD_S)

    def both() -> list[int]:
        asyncio.run(leave())
        return asyncio.run(stay())

    assert Task(both).result() == [3, 4]
    leader.join()
    harness.driver.stop(LogClosedError())


def test_every_waiter_of_a_record_gets_it() -> None:
    """Wait for records of one batch by call, future, loop and callback: each gets its own, callbacks in order."""
    harness, leader = held()
    tickets = [harness.putted(b"%d" % n) for n in range(6)]
    waiting = [Task(tickets[n].result) for n in (3, 0, 3)]
    called: list[int] = []
    for n in (5, 1, 2):
        tickets[n].add_done_callback(lambda ticket: called.append(ticket.first_lsn))

    async def awaited() -> list[int]:
        return [result.first_lsn for result in await asyncio.gather(*map(wait, (tickets[4], tickets[4])))]

    async def wait(ticket: Any) -> Any:
        return await ticket

    on_loop = Task(asyncio.run, awaited())
    wait_until(lambda: len(tickets[0].batch.attached) == 6, "all to wait")
    harness.place.release()
    assert [task.result().first_lsn for task in waiting] == [5, 2, 5]
    assert on_loop.result() == [6, 6]
    wait_until(lambda: len(called) == 3, "the callbacks")
    assert called == [3, 4, 7]
    tickets[5].add_done_callback(lambda ticket: called.append(-ticket.first_lsn))
    wait_until(lambda: called[-1] == -7, "a callback that came late")
    batch = tickets[0].batch
    assert not batch.values and not batch.attached and not batch.callers, (
        "a ticket keeps no other record's bytes"
    )
    leader.join()
    harness.driver.stop(LogClosedError())


class FailsLater(Sink):
    """Every write but the first fails."""

    def write(self, frame: SealedFrame, *, sync: bool) -> None:
        super().write(frame, sync=sync)
        if frame.position:
            raise io_error()


BAD: dict[str, tuple[type[Sink], type[Exception]]] = {
    "its write fails": (FailsLater, CommitFailedError),
    "the write before fails": (Sink, LogPoisonedError),
    "the disk is full": (Sink, LogFullError),
}


@pytest.mark.parametrize("case", BAD)
def test_a_failure_reaches_every_record(case: str) -> None:
    """Let the write of a batch fail, that before it, or the disk be full: ticket, callers and task get the error."""
    kind, expected = BAD[case]
    harness, leader = held(place=kind(256))
    ticket = harness.putted(b"x" * 100)
    callers = harness.waiting(3)

    async def awaited() -> Any:
        queued = harness.driver.enqueue_awaited(None, b"y")
        assert queued is not None
        try:
            return await queued
        except WalkitError as error:
            return error

    on_loop = Task(asyncio.run, awaited())
    wait_until(lambda: harness.core.pending_records == 5, "all to wait")
    if case == "the write before fails":
        harness.place.fail("write", io_error())
    elif case == "the disk is full":
        harness.place.fail("begin_segment", LogFullError("no room", reason="disk", limit_bytes=1))
    harness.place.release()
    leader.result()
    assert isinstance(ticket.exception(GUARD_S), expected)
    assert isinstance(on_loop.result(), expected)
    assert all(isinstance(task.join().error, expected) for task in callers)
    if case == "the disk is full":
        assert harness.putted(b"after").result(GUARD_S).first_lsn == 2
    else:
        with pytest.raises(LogPoisonedError):
            harness.driver.enqueue_put(None, b"after", BatchSlot())
    harness.driver.stop(LogClosedError())


def test_callers_of_a_batch_let_each_other_through() -> None:
    """Let twenty callers share a batch: one leads for all, two are let in by it, the other seventeen by each other."""
    harness, leader = held()
    tasks = harness.waiting(20)
    (batch,) = harness.core.pending
    assert isinstance(batch, Batch)
    callers = list(batch.callers)
    harness.place.release()
    assert sorted(task.result().first_lsn for task in [*tasks]) == list(range(2, 22))
    leader.join()
    assert len(harness.place.frames) == 2
    assert len([c for c in callers if c.next_latch is not None]) == 17
    assert {c.lead for c in callers} == {HAS_LEFT}
    harness.driver.stop(LogClosedError())


@pytest.mark.parametrize("fails", [False, True])
def test_an_exception_in_a_caller_of_a_batch_strands_no_other(fails: bool) -> None:
    """Raise an exception of another thread in nine of ten callers of a batch, then end the write: all return."""
    harness, leader = held()
    tasks = harness.waiting(10)
    for task in tasks[:-1]:
        raise_in_thread(task, ZeroDivisionError)
    if fails:
        harness.place.fail("write", io_error())
    harness.place.release()
    leader.join()
    for task in tasks:
        task.join()
    assert all(isinstance(task.error, ZeroDivisionError) for task in tasks[:-1])
    if fails:
        assert isinstance(tasks[-1].error, LogPoisonedError)
    else:
        assert tasks[-1].result().first_lsn == harness.core.acked_lsn == 11
        assert Task(harness.put, b"after").result().first_lsn == 12
    Task(harness.driver.stop, LogClosedError()).result()


def test_a_policy_sees_every_record_as_a_submission() -> None:
    """Queue nine puts under a policy of four records per frame: it cuts between them, which a batch forbids."""
    harness = DriverHarness(policy=CappedFrames(records=4))
    leader = harness.leader_in_write()
    loop = asyncio.new_event_loop()
    tickets: list[Any] = [harness.driver.enqueue_put(None, b"%d" % n, BatchSlot()) for n in range(5)]
    tickets += [enqueue_awaited(harness, loop, b"%d" % n) for n in range(4)]
    loop.close()
    assert all(isinstance(ticket, SingleTicket) for ticket in tickets)
    harness.place.release()
    leader.join()
    harness.driver.wait_written()
    assert [frame.count for frame in harness.place.frames] == [1, 4, 4, 1]
    harness.driver.stop(LogClosedError())


def test_a_full_queue_takes_no_part_of_a_record() -> None:
    """Submit puts until the queue of 300 bytes has no room, and one that never fits: nothing of these is queued."""
    harness, leader = held(queue_bytes_max=300)
    accepted = 0
    while harness.driver.enqueue_put(b"k" * 20, b"v" * 20, BatchSlot()) is not None:
        accepted += 1
    assert harness.driver.append_put(b"k" * 20, b"v" * 20) is None
    with pytest.raises(RecordTooLargeError):
        harness.driver.enqueue_put(None, bytes(300), BatchSlot())
    assert accepted == harness.core.pending_records == sum(s.count for s in harness.core.pending) == 4
    harness.place.release()
    leader.join()
    harness.driver.wait_written()
    assert harness.core.acked_lsn == 5
    harness.driver.stop(LogClosedError())


def test_a_lone_caller_and_the_main_thread_have_a_submission_of_their_own() -> None:
    """Append from a lone thread, and from the main thread: one frame each, and no batch is made."""
    harness = DriverHarness()
    batches: list[Any] = []
    join = harness.driver.batches.join
    harness.driver.batches.join = lambda *a: batches.append(a) or join(*a)  # type: ignore[method-assign,func-returns-value]
    assert Task(harness.put, b"lone").result().first_lsn == 1
    assert harness.put(b"main").first_lsn == 2
    assert not batches and len(harness.place.frames) == 2
    harness.driver.stop(LogClosedError())


def test_a_batch_is_filled_with_the_lock_where_the_interpreter_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Queue as an interpreter without its lock would: records share a batch of anyone's, a task has a ticket."""
    monkeypatch.setattr(ways_in, "ALONE", False)
    harness, leader = held()
    first, second = harness.putted(b"a"), harness.putted(b"b")
    assert first.batch is second.batch and first.batch.owner == ANY_THREAD
    loop = asyncio.new_event_loop()
    single = enqueue_awaited(harness, loop, b"c", b"key")
    assert isinstance(single, SingleTicket) and (single.key, single.value) == (b"key", b"c")
    harness.place.release()
    assert [ticket.result(GUARD_S).first_lsn for ticket in (first, second, single)] == [2, 3, 4]
    leader.join()
    harness.driver.stop(LogClosedError())
    loop.close()
