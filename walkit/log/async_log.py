"""A log for programs of asyncio: calls that would block the event loop run on another thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from walkit._internal.arguments import as_lsn, refuse
from walkit.errors import LogClosedError, PayloadError
from walkit.log.append import Transaction
from walkit.log.follow import followed
from walkit.log.wal import WriteAheadLog
from walkit.read.reader import LogReader, followed_by
from walkit.record import AppendResult, LinkedRecord, Record

T = TypeVar("T")
CHUNK_RECORDS = 1024
"""Most records that are read before the event loop has its turn again."""
CHUNK_BYTES = 8 << 20
"""They end with the record with which their values in payload logs have more bytes."""


class AsyncLog:
    """A log in an event loop, made by `walkit.open_async`. An asynchronous context manager, used by one loop.

    Opening, closing and reading run on the loop's own threads, and appending is `append_async`: no call blocks the
    loop. A cancelled task gets its CancelledError when its call has ended on the other thread; a call that only waits
    ends at once. `log` is the log itself, for everything else.
    """

    def __init__(self, open_log: Callable[[], WriteAheadLog | LogReader]) -> None:
        self._open_log = open_log
        self._log: WriteAheadLog | LogReader | None = None

    @property
    def log(self) -> WriteAheadLog | LogReader:
        """The log that is open. LogClosedError outside of the `async with` block."""
        if self._log is None:
            raise LogClosedError("the log is open within its `async with` block alone")
        return self._log

    @property
    def _writer(self) -> WriteAheadLog:
        log = self.log
        if not isinstance(log, WriteAheadLog):
            refuse("mode", "r", "a log that is opened for reading takes no records; nothing was written")
        return log

    async def __aenter__(self) -> Self:
        """Open the log. Cancelled, it waits until the opening has ended, and closes the log."""
        self._log = await _to_end(self._open_log, undo=lambda log: log.close())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the queue and close the log. Cancelled, it closes the log all the same, first."""
        log, self._log = self._log, None
        if log is not None:
            await _to_end(log.close)

    async def append(
        self, value: Any, key: Any = None, timestamp: datetime | int | None = None
    ) -> AppendResult:
        """Append one record and return when it is acknowledged; see `WriteAheadLog.append`.

        Cancelled while it waits for room, nothing was written. Cancelled after that, the record stays on its way.
        """
        return await self._writer.append_async(value, key, timestamp)

    async def delete(self, key: Any, timestamp: datetime | int | None = None) -> AppendResult:
        """Append a tombstone for `key` and return when it is acknowledged. Cancelled as `append`."""
        async with self._writer.transaction() as tx:
            tx.delete(key, timestamp)
        assert tx.result is not None
        return tx.result

    def transaction(self) -> Transaction:
        """Return the context of an `async with` for operations that are appended all or not at all."""
        return self._writer.transaction()

    async def read_async(
        self, first_lsn: int | None = None, last_lsn: int | None = None
    ) -> AsyncIterator[Record]:
        """Yield the records of `read`, a thousand at a time. Cancelled, it waits until those at hand are read."""
        log = self.log
        records = await _to_end(lambda: iter(log.read(first_lsn, last_lsn)))
        while chunk := await _to_end(lambda: _taken(records)):
            for record in chunk:
                if record is not None:
                    yield record

    async def follow_async(self, first_lsn: int) -> AsyncIterator[Record]:
        """Yield the records of `follow`: new ones when they are acknowledged or, of mode "r", on stable storage.

        Waiting for news holds no thread. Cancelled while it waits it ends at once, and while it reads when those at
        hand are read. Nothing is marked as read by that: continue after the last record that was handled.
        """
        log, wake, wanted = self.log, _LoopWake(), max(as_lsn(first_lsn, "first_lsn"), 1)
        if isinstance(log, WriteAheadLog):
            steps, pause_s = followed(log.parts, log, wanted, wake), None
        else:
            steps, pause_s = followed_by(log, wanted), log.source.poll_s
        with closing(steps):
            while chunk := await _to_end(lambda: _taken(steps)):
                for record in chunk:
                    if record is not None:
                        yield record
                    elif pause_s is None:
                        await wake.wait()
                    else:
                        await asyncio.sleep(pause_s)


def _taken(records: Iterator[Record | None]) -> list[Record | None]:
    """Return the next records, up to a None, which comes after the newest one; [] at the end.

    Values in payload logs are fetched here, so using them does not block the loop.
    """
    chunk, size = list[Record | None](), 0
    for record in records:
        chunk.append(record)
        if isinstance(record, LinkedRecord):
            size += record.link.length
            with suppress(PayloadError):  # using the value raises it
                _ = record.value
        if record is None or len(chunk) == CHUNK_RECORDS or size > CHUNK_BYTES:
            break
    return chunk


async def _to_end(work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Run `work` on another thread to its end, also if the task is cancelled meanwhile; return its result.

    If the task is cancelled, `undo` takes back its effect, there too, and then the cancellation is raised. So no
    thread works for a task that has ended.
    """
    loop = asyncio.get_running_loop()
    running, cancelled = loop.run_in_executor(None, work), None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return running.result()
    if running.exception() is None and undo is not None:
        with suppress(asyncio.CancelledError):
            await _to_end(lambda: undo(running.result()))
    raise cancelled


class _LoopWake:
    """Wakes the one task that waits for it, on the loop that made it. `set` may be called on any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake it; a loop that is closed by now has no task that waits."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Forget the news before this call. Only a look at the log follows it, while no task waits."""
        self._event.clear()

    async def wait(self) -> None:
        """Wait until it is set."""
        await self._event.wait()
