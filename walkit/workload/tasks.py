"""The same drivers as asyncio tasks: many callers on one event loop, which runs on another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter_ns

from walkit._internal.arguments import refuse
from walkit._internal.threads import EndingThread
from walkit.log.wal import WriteAheadLog
from walkit.measure.recorder import RecordFunction
from walkit.record import AppendResult, Kind
from walkit.store import Store
from walkit.workload.operations import READ, OperationStream
from walkit.workload.writers import NAP_S, Writers, calls_of

PUT = int(Kind.PUT)


def require_task_operations(stream: OperationStream) -> None:
    """Refuse operations without an asyncio form: tombstones and transactions block their caller."""
    kinds = set(stream.kinds.tolist())
    if kinds - {PUT, READ} or stream.group_count != len(stream):
        text = "puts and reads, one a group; threads drive deletes, transactions and scans, which block"
        refuse("tasks", sorted(kinds), text)


class TaskWriters(Writers):
    """Writers that are tasks of one event loop. The same interface; `due`, `done` and `lsns` mean the same."""

    def _make_threads(self) -> list[EndingThread]:
        records = [self._recorder.thread().record for _ in self.parts]
        reads = any(bool((part.kinds == READ).any()) for part in self.parts)
        readers = [self._recorder.thread("read").record for _ in self.parts] if reads else records
        recorders = list(zip(records, readers, strict=True))
        return [EndingThread(target=self._run_loop, args=(recorders,), name="writer-loop", daemon=True)]

    def _run_loop(self, recorders: list[tuple[RecordFunction, RecordFunction]]) -> None:
        self._go.wait()
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._all(recorders))
        except BaseException as error:  # noqa: BLE001 - the wait for the writers raises it
            self.errors.append(error)
            self._stop.set()
        finally:
            loop.close()

    async def _all(self, recorders: list[tuple[RecordFunction, RecordFunction]]) -> None:
        async def one(writer: int) -> None:
            try:
                await self._one(writer, *recorders[writer])
            except BaseException:
                self._stop.set()
                raise

        found = await asyncio.gather(*map(one, range(len(self.parts))), return_exceptions=True)
        self.errors += [outcome for outcome in found if isinstance(outcome, BaseException)]

    async def _one(self, writer: int, record: RecordFunction, record_read: RecordFunction) -> None:
        part, put, (_, _, read) = self.parts[writer], put_of(self.target), calls_of(self.target)
        keys, values, kinds = part.keys, part.values, part.kinds.tolist()
        stopped, told = self._stop.is_set, self.lsns[writer].append
        due = None if self._due is None else self._due[writer]
        for group in range(len(part)):
            if stopped():
                return
            began = perf_counter_ns() if due is None else self._recorder.start_ns + due[group]
            while (left := began - perf_counter_ns()) > 0:
                await asyncio.sleep(min(left / 1e9, NAP_S))
                if stopped():
                    return
            if kinds[group] == READ:
                read(keys[group])
                record_read(began, perf_counter_ns())
            else:
                result = await put(keys[group], values[group])
                told(result.last_lsn)
                record(began, perf_counter_ns())
            self.done[writer] = group + 1


def put_of(target: WriteAheadLog | Store) -> Callable[[bytes, bytes | None], Awaitable[AppendResult]]:
    """Return the asyncio form of a put."""
    if isinstance(target, WriteAheadLog):
        log = target
        return lambda key, value: log.append_async(value, key)
    return target.put_async
