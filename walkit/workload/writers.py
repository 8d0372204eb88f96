"""The threads that drive a stream, each its own part of it, and how they reach a log or a Store."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter_ns, sleep

from walkit._internal.arguments import refuse
from walkit._internal.threads import EndingThread
from walkit.log.wal import WriteAheadLog
from walkit.measure import RunRecorder
from walkit.measure.recorder import RecordFunction
from walkit.record import AppendResult, Kind
from walkit.store import Store
from walkit.workload.operations import READ, OperationStream

DELETE = int(Kind.DELETE)
NAP_S = 0.05
"""A writer that waits for the time of its next call looks this often whether it is to stop."""

Due = Sequence[int]
"""When each group of a part is meant to begin, ns from the start of the run."""


def no_reads(key: bytes) -> object:
    """Refuse a read of a target that looks no key up."""
    refuse("mix", "read", "a log looks up no keys; drive reads into a Store")


def calls_of(
    target: WriteAheadLog | Store,
) -> tuple[
    Callable[[bytes, bytes | None], AppendResult],
    Callable[[bytes], AppendResult],
    Callable[[bytes], object],
]:
    """Return (put, delete, read) of a log or a Store."""
    if isinstance(target, WriteAheadLog):
        log = target
        return (lambda key, value: log.append(value, key)), log.delete, no_reads
    return target.put, target.delete, target.get


class Writers:
    """The writer threads of one run. Each takes its part of the stream in order, one group at a time.

    `done[w]` counts the groups of part w that were acknowledged; it is written by writer w alone. `lsns[w]` holds the
    last LSN of each of its groups that made records, in the order in which they were recorded. `may_begin(w, group)`
    is called before each group and may wait; if it returns False, the writer ends. With `due`, a group waits for its
    time and is measured from it. The first error of any kind ends all writers and is in `errors`.
    """

    def __init__(
        self,
        target: WriteAheadLog | Store,
        parts: Sequence[OperationStream],
        recorder: RunRecorder,
        may_begin: Callable[[int, int], bool] | None = None,
        due: Sequence[Due] | None = None,
    ) -> None:
        self.target = target
        self.parts = parts
        self.done = [0] * len(parts)
        self.lsns = [array("q") for _ in parts]
        self.errors: list[BaseException] = []
        self._recorder = recorder
        self._may_begin = may_begin
        self._due = due
        self._go = threading.Event()
        self._stop = threading.Event()
        self._threads = self._make_threads()

    def _make_threads(self) -> list[EndingThread]:
        recorder = self._recorder
        made = []
        for w, part in enumerate(self.parts):
            record = recorder.thread().record
            reads = recorder.thread("read").record if bool((part.kinds == READ).any()) else record
            made.append(
                EndingThread(
                    target=self._write, args=(w, part, record, reads), name=f"writer-{w}", daemon=True
                )
            )
        return made

    def start(self) -> None:
        """Make all threads, then move time 0 of the recorder to now and let them begin."""
        try:
            for thread in self._threads:
                thread.start()
            self._recorder.start()
            self._go.set()
        except BaseException:
            # Those that are there already wait at the gate: they find the stop after it, and write nothing.
            self._stop.set()
            self._go.set()
            raise

    def stop(self) -> None:
        """Let each writer finish the group under way, and begin no other."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the writers to end; False after `timeout` seconds."""
        deadline = None if timeout is None else monotonic() + timeout
        for thread in self._threads:
            left = None if deadline is None else max(deadline - monotonic(), 0)
            if thread.ident is not None and not thread.wait(left):
                return False
        return True

    def _write(
        self, writer: int, part: OperationStream, record: RecordFunction, record_read: RecordFunction
    ) -> None:
        self._go.wait()
        try:
            self._write_part(writer, part, record, record_read)
        except BaseException as error:  # noqa: BLE001 - the wait for the writers raises it
            self.errors.append(error)
            self._stop.set()

    def _write_part(
        self, writer: int, part: OperationStream, record: RecordFunction, record_read: RecordFunction
    ) -> None:
        put, delete, read = calls_of(self.target)
        keys, values, kinds = part.keys, part.values, part.kinds.tolist()
        done, stopped, may_begin, told = (
            self.done,
            self._stop.is_set,
            self._may_begin,
            self.lsns[writer].append,
        )
        due = None if self._due is None else self._due[writer]
        for group, (first, end) in enumerate(part.bounds()):
            if stopped() or (may_begin is not None and not may_begin(writer, group)):
                return
            if due is None:
                began = perf_counter_ns()
            else:
                began = self._recorder.start_ns + due[group]
                if not self._wait_until(began):
                    return
            records = end - first
            if records > 1:
                records, result = self._do_group(part, kinds, range(first, end), read, began, record_read)
            elif kinds[first] == DELETE:
                result = delete(keys[first])
            elif kinds[first] == READ:
                read(keys[first])
                record_read(began, perf_counter_ns())
                records, result = 0, None
            else:
                result = put(keys[first], values[first])
            if result is not None:
                # The LSN goes first: a call without one could not be distinguished from the next.
                told(result.last_lsn)
                record(began, perf_counter_ns(), records)
            done[writer] = group + 1

    def _do_group(
        self,
        part: OperationStream,
        kinds: list[int],
        rows: range,
        read: Callable[[bytes], object],
        began: int,
        record_read: RecordFunction,
    ) -> tuple[int, AppendResult | None]:
        """Do the reads of a group, then its changes in one transaction; return (records, their result)."""
        reads = [i for i in rows if kinds[i] == READ]
        if reads:
            for i in reads:
                read(part.keys[i])
            record_read(began, perf_counter_ns(), len(reads))
            if len(reads) == len(rows):
                return 0, None
        with self.target.transaction() as tx:
            for i in rows:
                if kinds[i] == DELETE:
                    tx.delete(part.keys[i])
                elif kinds[i] != READ:
                    tx.put(part.keys[i], part.values[i])
        return len(rows) - len(reads), tx.result

    def _wait_until(self, due_ns: int) -> bool:
        """Wait for a time; False if the writers are to stop first."""
        while (left := due_ns - perf_counter_ns()) > 0:
            if self._stop.is_set():
                return False
            sleep(min(left / 1e9, NAP_S))
        return True
