"""A log in an event loop: everything works there, nothing blocks it, and each await may be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.logs import SEGMENTS, FaultyMemory
from walkit.log.async_log import CHUNK_RECORDS


async def first(records: AsyncIterator[walkit.Record], count: int) -> list[bytes | None]:
    """The values of the next `count` records."""
    return [(await anext(records)).value for _ in range(count)]


def test_all_ways_of_writing_and_reading(tmp_path: Path) -> None:
    """Append, delete and a transaction are read, followed by writer and reader, and refused after the block."""

    async def main() -> None:
        async with walkit.open_async(tmp_path / "log") as log:
            results = await asyncio.gather(*(log.append(b"%d" % n) for n in range(2 * CHUNK_RECORDS)))
            assert sorted(r.first_lsn for r in results) == list(range(1, 2 * CHUNK_RECORDS + 1))
            await log.delete(b"k")
            async with log.transaction() as tx:
                tx.put(b"a", b"in one")
                tx.put(b"b", b"frame")
            assert tx.result is not None and tx.result.last_lsn - tx.result.first_lsn == 1
            with suppress(ZeroDivisionError):
                async with log.transaction() as tx:
                    tx.put(b"c", b"never")
                    1 / 0  # noqa: B018
            assert tx.result is None
            read = [record async for record in log.read_async()]
            assert [r.lsn for r in read] == list(range(1, 2 * CHUNK_RECORDS + 4))
            assert await first(log.follow_async(1), len(read)) == [r.value for r in read]
            async with walkit.open_async(tmp_path / "log", "r") as reader:
                assert [r async for r in reader.read_async(2, 5)] == read[1:5]
                assert await first(reader.follow_async(3), len(read) - 2) == [r.value for r in read[2:]]
                with pytest.raises(walkit.OptionsError, match="opened for reading"):
                    await reader.append(b"no")
            assert isinstance(log.log, walkit.WriteAheadLog)
            log.log.trim(100)
            for records in (log.read_async(1), log.follow_async(1)):
                with pytest.raises(walkit.GapError):
                    await anext(records)
        with pytest.raises(walkit.LogClosedError, match="async with"):
            await log.append(b"late")

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["a", "r"])
def test_follower_gets_each_record_and_holds_no_thread(tmp_path: Path, mode: str) -> None:
    """Twenty followers wait with one thread in the pool; each gets all that is appended meanwhile, then the end."""

    async def main() -> None:
        from concurrent.futures import ThreadPoolExecutor

        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with walkit.open_async(tmp_path / "log") as log:
            await log.append(b"0")
            async with walkit.open_async(tmp_path / "log", mode="r") as reader:
                source = reader if mode == "r" else log
                followers = [source.follow_async(1) for _ in range(20)]
                assert [await first(f, 1) for f in followers] == [[b"0"]] * 20
                waiting = [asyncio.ensure_future(first(f, 2)) for f in followers]
                await asyncio.sleep(0.05)
                await log.append(b"1")
                await log.append(b"2")
                assert await asyncio.gather(*waiting) == [[b"1", b"2"]] * 20
                ends = [asyncio.ensure_future(anext(f, None)) for f in followers]
                await asyncio.sleep(0.05)
                if mode == "r":
                    reader.log.close()
                else:
                    await asyncio.to_thread(log.log.close)
                assert await asyncio.gather(*ends) == [None] * 20

    asyncio.run(main())


HANGS: dict[str, tuple[Any, str]] = {
    "open": ("sync", "*"),
    "append": ("synced_write", SEGMENTS),
    "read": ("read", SEGMENTS),
    "close": ("synced_write", "*"),
}


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("step", HANGS)
def test_device_that_hangs_leaves_the_loop_its_turns(step: str, cancel: bool) -> None:
    """Hang the device in each call: other tasks run. Cancelled there, a task ends when its log is closed."""
    storage, hangs = FaultyMemory(), list[Any]()
    with walkit.open(storage=storage) as made:
        made.append(b"first")

    def hang_at(reached: str) -> None:
        if step == reached:
            hangs.append(storage.hang(*HANGS[step]))

    async def work() -> list[bytes | None]:
        hang_at("open")
        async with walkit.open_async(storage=storage) as log:
            hang_at("append")
            await log.append(b"second")
            hang_at("read")
            read = [record.value async for record in log.read_async()]
            hang_at("close")
        return read

    async def main() -> None:
        task = asyncio.ensure_future(work())
        while not hangs or not hangs[0].entered.is_set():
            await asyncio.sleep(0)  # turns of the loop, while another thread hangs
            assert not task.done()
        if cancel:
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done(), "its call still runs"
        hangs[0].release()
        await asyncio.wait([task])
        assert task.cancelled() == cancel
        assert cancel or task.result() == [b"first", b"second"]

    asyncio.run(main())
    with walkit.open(storage=storage.inner) as log:  # its lock is free
        assert [r.value for r in log] == [b"first", b"second"][: 1 if step == "open" and cancel else 2]


def test_cancelled_follower_ends_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    """Cancel a task that waits for news: it ends without another record, and no waker is left in the log."""

    async def main() -> None:
        async with walkit.open_async(tmp_path / "log") as log:
            await log.append(b"1")
            records = log.follow_async(1)
            assert await first(records, 1) == [b"1"]
            waiting = asyncio.ensure_future(anext(records))
            await asyncio.sleep(0.05)
            assert isinstance(log.log, walkit.WriteAheadLog)
            assert len(log.log.parts.driver.delivery.wakers) == 1
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not log.log.parts.driver.delivery.wakers

    asyncio.run(main())
