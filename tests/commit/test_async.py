"""Event loops: awaiting tickets and append_async, on one loop and on several, cancelled, closed and failed."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

import walkit
from tests.support.logs import SEGMENTS, faulty_log, lsns, memory_log, reopened, values
from tests.support.threads import GUARD_S, Task, wait_until
from walkit import AppendResult
from walkit.errors import CommitFailedError, LogClosedError, LogFullError, LogPoisonedError


async def awaited(ticket: walkit.commit.ticket.Ticket) -> AppendResult:
    """Await a ticket as a coroutine."""
    result: AppendResult = await ticket
    return result


def test_many_tasks_append_at_once() -> None:
    """Append from 64 tasks of one loop: every record once, LSNs dense, far fewer frames than records."""
    with memory_log() as log:

        async def task(who: int) -> list[int]:
            return [(await log.append_async(b"%d.%d" % (who, n))).first_lsn for n in range(20)]

        async def main() -> list[list[int]]:
            return await asyncio.gather(*(task(who) for who in range(64)))

        got = asyncio.run(main())
        assert sorted(lsn for per_task in got for lsn in per_task) == list(range(1, 1281))
        assert all(per_task == sorted(per_task) for per_task in got)
        assert len(set(values(log.read()))) == 1280
        assert log.statistics().frames_written < 640


def test_a_loop_in_each_of_two_threads() -> None:
    """Await one ticket and many of one's own on two loops at once: each is woken on its own loop."""
    storage, log = faulty_log()
    hang = storage.hang("synced_write", SEGMENTS)
    shared = log.submit(b"shared")
    assert hang.entered.wait(GUARD_S)

    async def main() -> tuple[AppendResult, list[AppendResult], str]:
        first = await shared
        rest = [await log.append_async(b"x") for _ in range(30)]
        return first, rest, threading.current_thread().name

    tasks = [Task(asyncio.run, main()) for _ in range(2)]
    wait_until(lambda: getattr(shared, "task_wait", None) and shared.callbacks, "both loops to wait")
    hang.release()
    (first, one, name), (second, other, other_name) = (t.result() for t in tasks)
    assert first == second == shared.result()
    assert name != other_name
    assert sorted(r.first_lsn for r in one + other) == list(range(3, 63))
    log.close()


def test_awaiting_what_is_done_already() -> None:
    """Await tickets after their acknowledgement, and a ticket of many: the same results, more than once."""
    with memory_log() as log:
        ticket = log.submit(b"1")
        ticket.result()
        many = log.submit_many([bytes(3000)] * 10)

        async def main() -> tuple[AppendResult, AppendResult, AppendResult]:
            return await ticket, await ticket, await many

        first, second, third = asyncio.run(main())
        assert first == second == ticket.result()
        assert (third.first_lsn, third.last_lsn) == (2, 11)


def test_a_cancelled_await_leaves_the_log_intact() -> None:
    """Cancel waits for a ticket and for append_async while a write hangs: the queued records are written anyway."""
    storage, log = faulty_log()
    hang = storage.hang("synced_write", SEGMENTS)
    ticket = log.submit(b"ticket")
    assert hang.entered.wait(GUARD_S)

    async def main() -> None:
        waits = [asyncio.ensure_future(awaited(ticket)), asyncio.ensure_future(log.append_async(b"async"))]
        await asyncio.sleep(0)
        for wait in waits:
            wait.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await wait
            assert wait.cancelled()

    asyncio.run(main())
    hang.release()
    assert ticket.result(GUARD_S).first_lsn == 2
    log.append(b"after")
    assert values(log.read()) == [b"first", b"ticket", b"async", b"after"]
    log.close()


def test_a_full_queue_on_a_loop_raises_for_submit_and_is_waited_for_by_append_async() -> None:
    """Fill the queue while a write hangs, on a loop: submit raises at once, append_async waits and gets through."""
    storage, log = faulty_log(queue_bytes_max=4096)
    hang = storage.hang("synced_write", SEGMENTS)
    log.submit(b"hangs")
    assert hang.entered.wait(GUARD_S)

    async def main() -> list[int]:
        log.submit(bytes(4000))
        for way in (log.submit, lambda v: log.submit_many([v])):
            with pytest.raises(LogFullError, match="append_async") as full:
                way(bytes(200))
            assert (full.value.reason, full.value.limit_bytes) == ("queue", 4096)
        waits = [asyncio.ensure_future(log.append_async(b"%d" % n + bytes(1000))) for n in range(10)]
        await asyncio.sleep(0)
        assert not any(w.done() for w in waits)
        hang.release()
        return [r.first_lsn for r in await asyncio.gather(*waits)]

    assert sorted(asyncio.run(main())) == list(range(4, 14))
    log.close()


def test_append_async_waits_for_room_under_each_on_full() -> None:
    """Fill the queue of a log that raises: append_async waits for room, since it can without blocking."""
    storage, log = faulty_log(queue_bytes_max=4096, on_full="raise")
    hang = storage.hang("synced_write", SEGMENTS)
    log.submit(b"hangs")
    assert hang.entered.wait(GUARD_S)
    log.submit(bytes(4000))
    with pytest.raises(LogFullError):
        log.append(bytes(200))

    async def main() -> AppendResult:
        wait = asyncio.ensure_future(log.append_async(bytes(200)))
        await asyncio.sleep(0)
        hang.release()
        return await wait

    assert asyncio.run(main()).first_lsn == 4
    log.close()


def test_a_loop_that_ends_while_it_waits_for_room_breaks_nothing() -> None:
    """Give up waiting for room and close the loop, then free the queue: threads that append never notice."""
    storage, log = faulty_log(queue_bytes_max=4096)
    hang = storage.hang("synced_write", SEGMENTS)
    leader = Task(log.append, b"leads")
    assert hang.entered.wait(GUARD_S)
    queued = log.submit(bytes(4000))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(log.append_async(bytes(200)), 0.01)

    asyncio.run(main())
    hang.release()
    assert leader.result().first_lsn == 2
    assert queued.result(GUARD_S).first_lsn == 3
    assert Task(log.append, b"after").result().first_lsn == 4
    log.close()


def test_waiters_on_a_loop_get_poison_and_close() -> None:
    """Fail the write that tasks wait for: unknown for its frame, not written for the others."""
    storage, log = faulty_log(queue_bytes_max=4096)
    hang = storage.hang("synced_write", SEGMENTS)
    storage.fail("synced_write", SEGMENTS)
    ticket = log.submit(b"hangs")
    assert hang.entered.wait(GUARD_S)

    async def main() -> tuple[object, object, object]:
        behind = asyncio.ensure_future(log.append_async(bytes(4000)))
        await asyncio.sleep(0)
        without_room = asyncio.ensure_future(log.append_async(bytes(4000)))
        await asyncio.sleep(0)
        hang.release()
        return await asyncio.gather(awaited(ticket), behind, without_room, return_exceptions=True)

    first, behind, without_room = asyncio.run(asyncio.wait_for(main(), GUARD_S))
    assert isinstance(first, CommitFailedError)
    assert isinstance(behind, LogPoisonedError) and isinstance(without_room, LogPoisonedError)
    log.close()
    assert lsns(reopened(storage.inner))[0] == 1

    async def late() -> None:
        with pytest.raises((LogClosedError, LogPoisonedError)):
            await log.append_async(b"x")

    asyncio.run(late())
