"""Tasks that wait for records: woken in one step of their loop, cancelled, ended, and of every make."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
from typing import Any

import pytest

from tests.support.logs import SEGMENTS, faulty_log, memory_log, values
from tests.support.threads import GUARD_S, Task, wait_until
from walkit import WriteAheadLog
from walkit.commit.asyncio_wait import TaskWait, done_future, waits_of, wake_all


def tasks_of(count: int) -> tuple[list[TaskWait], list[asyncio.Task[str]], list[str]]:
    """Return waits of the running loop, tasks that await them, and the names of those that went on, as they do."""
    loop = asyncio.get_running_loop()
    waits, went_on = [TaskWait(loop) for _ in range(count)], []

    async def wait(n: int) -> str:
        await waits[n]
        went_on.append(f"task {n}")
        return f"task {n}"

    return waits, [asyncio.ensure_future(wait(n)) for n in range(count)], went_on


async def steps(count: int = 1) -> None:
    """Let the loop take so many steps."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_all_tasks_of_a_frame_go_on_in_one_step_of_the_loop() -> None:
    """Wake five tasks by one callback: all continue, in order, before later callbacks run."""

    async def main() -> None:
        waits, tasks, went_on = tasks_of(5)
        await steps()
        seen: list[list[str]] = []
        loop = asyncio.get_running_loop()
        loop.call_soon(wake_all, loop, waits)
        loop.call_soon(lambda: seen.append(list(went_on)))
        assert await asyncio.gather(*tasks) == seen[0] == [f"task {n}" for n in range(5)]

    asyncio.run(main())


def test_a_cancelled_wait_ends_at_once_and_once() -> None:
    """Cancel a waiting task twice, and wake it too: CancelledError with its message, and the others wait on."""

    async def main() -> None:
        waits, tasks, went_on = tasks_of(3)
        await steps()
        tasks[1].cancel("first")
        tasks[1].cancel("second")
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        assert not tasks[0].done() and not tasks[2].done()
        loop = asyncio.get_running_loop()
        loop.call_soon(wake_all, loop, waits)
        assert list(await asyncio.gather(tasks[0], tasks[2])) == went_on == ["task 0", "task 2"]

    asyncio.run(main())


def test_the_message_of_a_cancellation_arrives() -> None:
    """Cancel a waiting task with a message: the CancelledError within the task has it."""

    async def main() -> None:
        wait, seen = TaskWait(asyncio.get_running_loop()), []

        async def task() -> None:
            try:
                await wait
            except asyncio.CancelledError as error:
                seen.append(error.args)
                raise

        cancelled = asyncio.ensure_future(task())
        await steps()
        cancelled.cancel("why")
        await asyncio.wait([cancelled])
        assert seen == [("why",)] and cancelled.cancelled()

    asyncio.run(main())


def test_a_task_that_is_woken_may_cancel_the_next() -> None:
    """Let the first of three tasks that are woken together cancel the second: the third still goes on."""

    async def main() -> None:
        waits, tasks, went_on = tasks_of(2)
        first = TaskWait(asyncio.get_running_loop())

        async def cancel() -> None:
            await first
            tasks[0].cancel()

        canceller = asyncio.ensure_future(cancel())
        await steps()
        loop = asyncio.get_running_loop()
        loop.call_soon(wake_all, loop, [first, *waits])
        await asyncio.wait([canceller, *tasks])
        assert tasks[0].cancelled() and went_on == ["task 1"]

    asyncio.run(main())


def test_a_wait_that_was_over_before_it_began() -> None:
    """Wake a wait before it is awaited, then await it: it ends, and can no longer be cancelled."""

    async def main() -> None:
        wait = TaskWait(asyncio.get_running_loop())
        wake_all(asyncio.get_running_loop(), [wait])
        assert not wait.cancel()
        await asyncio.wait_for(asyncio.ensure_future(_awaited(wait)), GUARD_S)

    asyncio.run(main())


async def _awaited(wait: TaskWait) -> None:
    await wait


def sharing(count: int) -> tuple[TaskWait, list[asyncio.Task[int]]]:
    """Return one wait of the running loop, and tasks that await it and return how often they were cancelled."""
    wait = TaskWait(asyncio.get_running_loop())

    async def task() -> int:
        cancelled = 0
        while not wait.over and cancelled < 3:
            try:
                await wait
            except asyncio.CancelledError:
                cancelled += 1
        return cancelled

    return wait, [asyncio.ensure_future(task()) for _ in range(count)]


@pytest.mark.parametrize("debug", [False, True])
def test_tasks_that_share_a_wait_are_cancelled_one_by_one(debug: bool) -> None:
    """Cancel some of six tasks of one wait, one of them twice and awaiting it again: the others are not disturbed."""

    async def main() -> list[int]:
        wait, tasks = sharing(6)
        await steps()
        for n in (1, 4, 5):
            assert tasks[n].cancel()
        await steps(3)
        tasks[4].cancel()
        await steps(3)
        assert wait.waiting and not any(task.done() for task in tasks)
        loop = asyncio.get_running_loop()
        loop.call_soon(wake_all, loop, [wait])
        return await asyncio.gather(*tasks)

    assert asyncio.run(main(), debug=debug) == [0, 1, 0, 0, 2, 1]


def test_a_cancellation_as_the_wait_ends() -> None:
    """Cancel a task in the step that ends its wait, before and after that: it is cancelled once, and continues."""

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        wait, tasks = sharing(4)
        await steps()
        loop.call_soon(tasks[1].cancel)
        loop.call_soon(wake_all, loop, [wait])
        loop.call_soon(tasks[2].cancel)
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [0, 1, 0, 0]


def test_a_task_that_is_called_without_a_cause_waits_on() -> None:
    """Call a waiting task though nothing has come, as after a cancellation that was taken back: it waits again."""

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        wait, tasks = sharing(1)
        await steps()
        [(wakeup, context)] = wait._calls
        wait._keep_anew()
        loop.call_soon(wakeup, done_future(loop), context=context)
        await steps(2)
        assert wait.waiting and not tasks[0].done()
        loop.call_soon(wake_all, loop, [wait])
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [0]


def test_a_task_that_ends_the_loop_leaves_the_others_to_go_on() -> None:
    """Let the first of three woken tasks raise SystemExit: it leaves the loop, which then runs the others."""
    loop = asyncio.new_event_loop()

    async def leave(wait: TaskWait) -> None:
        await wait
        raise SystemExit(3)

    async def begin() -> tuple[asyncio.Task[None], list[TaskWait], list[asyncio.Task[str]]]:
        ending = TaskWait(loop)
        leaving = asyncio.ensure_future(leave(ending))
        waits, tasks, _ = tasks_of(3)
        await steps()
        return leaving, [ending, *waits], tasks

    leaving, waits, tasks = loop.run_until_complete(begin())
    loop.call_soon(wake_all, loop, waits)
    with pytest.raises(SystemExit):
        loop.run_forever()
    assert not any(task.done() for task in tasks)
    woken = loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks), GUARD_S))
    assert woken == ["task 0", "task 1", "task 2"]
    assert isinstance(leaving.exception(), SystemExit)
    loop.close()


def test_waits_are_grouped_by_their_loops() -> None:
    """Group waits of one loop and of two: each group has its own, in order."""
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    waits = [TaskWait(one), TaskWait(other), TaskWait(one)]
    assert waits_of(*waits) == {one: [waits[0], waits[2]], other: [waits[1]]}
    one.close()
    other.close()


def _python_tasks(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
    return asyncio.tasks._PyTask(coroutine, loop=loop, **options)  # type: ignore[attr-defined]


@pytest.mark.parametrize("factory", [None, _python_tasks], ids=["C", "Python"])
@pytest.mark.parametrize("debug", [False, True])
def test_tasks_of_every_make_append(factory: Any, debug: bool) -> None:
    """Append and await tickets by asyncio's tasks in C and in Python, in debug mode too: context and results stay."""
    name: contextvars.ContextVar[int] = contextvars.ContextVar("name")

    async def append(log: WriteAheadLog, n: int) -> tuple[int, int]:
        name.set(n)
        appended = await log.append_async(b"%d" % n)
        submitted = await log.submit(b"%d" % n)
        assert name.get() == n
        return appended.first_lsn, submitted.first_lsn

    async def main(log: WriteAheadLog) -> list[tuple[int, int]]:
        asyncio.get_running_loop().set_task_factory(factory)
        return await asyncio.gather(*(append(log, n) for n in range(20)))

    with memory_log() as log:
        got = asyncio.run(main(log), debug=debug)
        assert sorted(lsn for pair in got for lsn in pair) == list(range(1, 41))
        written = values(log.read())
        assert all(written[lsn - 1] == b"%d" % n for n, pair in enumerate(got) for lsn in pair)


def test_waits_of_asyncio_work_with_append_async() -> None:
    """Time out, shield and group appends during a hung write: all are written, and each waiter gets its result."""
    storage, log = faulty_log()
    hang = storage.hang("synced_write", SEGMENTS)
    leader = Task(log.append, b"leads")
    assert hang.entered.wait(GUARD_S)

    async def main() -> list[int]:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(log.append_async(b"timed"), 0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await log.append_async(b"timed, too")
        shielded = asyncio.ensure_future(log.append_async(b"shielded"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(shielded), 0.01)
        async with asyncio.TaskGroup() as group:
            grouped = [group.create_task(log.append_async(b"grouped")) for _ in range(3)]
            await steps()
            hang.release()
        return [(await task).first_lsn for task in (shielded, *grouped)]

    assert asyncio.run(main()) == [5, 6, 7, 8]
    assert leader.result().first_lsn == 2
    wait_until(lambda: log.acked_lsn == 8)
    assert values(log.read())[2:] == [b"timed", b"timed, too", b"shielded", *[b"grouped"] * 3]
    log.close()


NESTED = """
import asyncio
from collections import deque
import nest_asyncio2
from walkit.commit.asyncio_wait import TaskWait, wake_all

async def main():
    loop = asyncio.get_running_loop()
    waits = [TaskWait(loop) for _ in range(4)]

    async def wait(n):
        await waits[n]
        return n

    async def run_within():
        await waits[0]
        return loop.run_until_complete(asyncio.gather(*others))

    first = asyncio.ensure_future(run_within())
    others = [asyncio.ensure_future(wait(n)) for n in range(1, 4)]
    await asyncio.sleep(0)
    loop.call_soon(wake_all, loop, waits)
    return await first

nest_asyncio2.apply()
assert asyncio.run(main()) == [1, 2, 3]
"""


def test_a_loop_that_runs_within_itself_wakes_the_others_of_a_frame() -> None:
    """Let a woken task run its loop for those of its own frame, as notebooks do (ipykernel brings nest_asyncio2)."""
    pytest.importorskip("nest_asyncio2", reason="comes with ipykernel 7")
    subprocess.run([sys.executable, "-c", NESTED], check=True, timeout=GUARD_S)


def test_a_wait_does_not_rest_on_the_futures_of_its_loop() -> None:
    """Give a loop futures of another make, which hide the calls that they keep: the wait has one of asyncio's own."""

    class Loop(asyncio.SelectorEventLoop):
        def create_future(self) -> Any:
            return object()

    loop = Loop()
    wait = TaskWait(loop)
    wait.add_done_callback(print)
    assert wait.waiting and len(wait.end()) == 1
    loop.close()


def test_a_wait_that_is_woken_twice_wakes_its_task_once() -> None:
    """Wake a wait when its task waits for another already: that wait lasts, and its task continues once."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        room, record, went_on = TaskWait(loop), TaskWait(loop), list[str]()

        async def task(name: str) -> None:
            await room
            await record
            went_on.append(name)

        tasks = [asyncio.ensure_future(task(name)) for name in ("first", "second", "third")]
        await steps()
        for _ in range(3):
            loop.call_soon(wake_all, loop, [room])
            await steps()
        assert not went_on
        loop.call_soon(wake_all, loop, [record])
        await asyncio.wait_for(asyncio.gather(*tasks), GUARD_S)
        assert went_on == ["first", "second", "third"]

    asyncio.run(main())


def test_calls_that_raise_keep_no_other_task_waiting() -> None:
    """Put two calls that raise before those of tasks: the tasks go on, and the loop reports both errors."""
    errors: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, facts: errors.append(facts["exception"]))
        wait = TaskWait(loop)

        def broken(_: object) -> None:
            raise ZeroDivisionError

        for _ in range(2):
            wait.add_done_callback(broken, context=contextvars.copy_context())
        tasks = [asyncio.ensure_future(wait_for(wait)) for _ in range(3)]
        await steps()
        loop.call_soon(wake_all, loop, [wait])
        await asyncio.wait_for(asyncio.gather(*tasks), GUARD_S)

    async def wait_for(wait: TaskWait) -> None:
        await wait

    asyncio.run(main())
    assert [type(error) for error in errors] == [ZeroDivisionError] * 2
