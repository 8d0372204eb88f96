"""How near walkit comes to what the interpreter allows: a bare group commit beside it, and LevelDB, in turns.

The sketch does what no group commit in Python can leave out, and nothing else: it queues, joins what waits, takes one
checksum, writes it with O_DSYNC, and tells who waits. It has no format, positions, limits, policies, errors, segments,
observers or interrupts. What it makes is the floor; the rest is what walkit's own work costs. `by hand` is the same
sketch with a write that is one function and makes what a log's frame is: header, both checksums, padding, marks and
durable slot; `one wait` is that again, with tasks that are woken as walkit wakes them, by one wait for a frame::

    python tests/benchmarks/bench_floor.py --seconds 0.6 --rounds 5

Four ways: one thread that appends (beside it the device alone: the same write, again and again), 64 threads that
append, 64 tasks of an event loop, one thread that submits and never waits (LevelDB: an unsynced put). A row says
records/s, its ratio to LevelDB of the same round, CPU time of a record, and how often a thread gave up its core for it;
all are medians of the rounds. Needs the extra `peers`.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import resource
import shutil
import tempfile
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import plyvel

import walkit
from walkit.commit.asyncio_wait import TaskWait, wake_all
from walkit.commit.batch import PUT_VALUE
from walkit.format.body import ONE_KIND_TIMELESS, ONE_RECORD_FLAGS
from walkit.format.checksum import crc32c
from walkit.format.durable_slot import encode_slot
from walkit.format.layout import (
    CODEC_NONE,
    DURABLE_SLOTS_BYTES,
    FORMAT_VERSION,
    FRAME_HEADER_BYTES,
    FRAME_HEADER_FRONT,
    FRAME_MAGIC,
    ZEROS,
)

CALLERS = 64
VALUE = b"x" * 100
FILE_BYTES = 64 << 20
STEP_BYTES = 1 << 20
WARM_S = 0.1
CHAINS = 2
SUBMITS = 1000


class Measured(NamedTuple):
    """One way for some time."""

    per_s: float
    user_us: float
    system_us: float
    switches: float


def usage() -> tuple[float, float, int]:
    """Return (user s, system s, voluntary switches) of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime, used.ru_nvcsw


@contextmanager
def measured(count: Callable[[], int], into: list[Measured]) -> Iterator[None]:
    """Measure what is done within."""
    before, first, began = usage(), count(), time.perf_counter()
    yield
    seconds, records, after = time.perf_counter() - began, max(count() - first, 1), usage()
    user, system, switches = (b - a for a, b in zip(before, after, strict=True))
    into.append(Measured(records / seconds, user / records * 1e6, system / records * 1e6, switches / records))


class Device:
    """A file whose blocks are written already, and its synced writes."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DSYNC)
        for offset in range(0, FILE_BYTES, STEP_BYTES):
            os.pwrite(self._fd, bytes(STEP_BYTES), offset)
        self._at = 0

    def write(self, values: list[bytes]) -> None:
        """Write the values as one block."""
        block = b"".join(values)
        crc32c(block)
        self.write_block(block)

    def write_block(self, block: bytes) -> None:
        """Write the block, and nothing else."""
        os.pwrite(self._fd, block, self._at)
        self._at = (self._at + len(block)) % (FILE_BYTES // 2)


class ByHand(Device):
    """Writes values of one length as a frame of walkit's format, and stores the durable slot, in one function."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._cell = mmap.mmap(-1, DURABLE_SLOTS_BYTES)
        self._position = self._lsn = self._chain = self._turn = 0
        self._calls: dict[int, int] = {}
        self.frames = self.frame_bytes = self.user_bytes = self.write_ns = 0

    def write(self, values: list[bytes]) -> None:
        """See Device."""
        count, position, first_lsn = len(values), self._position, self._lsn + 1
        lengths, joined = list(map(len, values)), b"".join(values)
        user_bytes = sum(lengths)
        assert user_bytes == len(joined) and lengths.count(lengths[0]) == count
        body = b"".join((bytes(4), lengths[0].to_bytes(4, "little"), ONE_KIND_TIMELESS[PUT_VALUE], joined))
        stored_bytes = len(body)
        footprint = (FRAME_HEADER_BYTES + stored_bytes + 63) & -64
        front = (
            FRAME_MAGIC,
            FORMAT_VERSION,
            CODEC_NONE,
            ONE_RECORD_FLAGS,
            7,
            1,
            9,
            position,
            first_lsn,
            count,
            count,
        )
        sizes = (
            footprint,
            stored_bytes,
            stored_bytes,
            crc32c(body),
            position,
            time.time_ns() // 1000,
            self._chain,
        )
        head = FRAME_HEADER_FRONT.pack(*front, *sizes)
        self._chain = crc32c(head)
        padding = ZEROS[: footprint - FRAME_HEADER_BYTES - stored_bytes]
        block = b"".join((head, self._chain.to_bytes(4, "little"), body, padding))
        self._position, self._lsn = position + footprint, self._lsn + count
        began = self._calls[threading.get_ident()] = time.perf_counter_ns()
        try:
            self.write_block(block)
        finally:
            self._calls.pop(threading.get_ident(), None)
        self.write_ns += time.perf_counter_ns() - began
        self.frames, self.frame_bytes = self.frames + 1, self.frame_bytes + footprint
        self.user_bytes += user_bytes
        self._turn += 1
        at, slot = encode_slot((self._turn, 1, 9, self._position, self._lsn))
        self._cell[at : at + len(slot)] = slot


class Cell:
    """A caller that waits."""

    __slots__ = ("following", "gate", "leads")

    def __init__(self) -> None:
        self.gate = allocate_lock()
        self.gate.acquire()
        self.leads = False
        self.following: Any = None


class LeaderSketch:
    """Leader and followers: who finds nobody leading writes what waits, and passes the lead to the oldest."""

    def __init__(self, device: Device) -> None:
        self._device, self._lock = device, threading.Lock()
        self._values: list[bytes] = []
        self._cells: list[Cell] = []
        self._led = False

    def append(self, value: bytes) -> None:
        """Return when the value is written."""
        mine = Cell()
        with self._lock:
            alone, self._led = not self._led, True
            if alone:
                values, cells = [value], []
            else:
                self._values.append(value)
                self._cells.append(mine)
        if not alone:
            mine.gate.acquire()
            if not mine.leads:
                if mine.following is not None:
                    mine.following.release()
                return
            with self._lock:
                values, self._values = self._values, []
                cells, self._cells = self._cells, []
        self._device.write(values)
        with self._lock:
            self._led = bool(self._cells)
            if self._led:
                self._cells[0].leads = True
                self._cells[0].gate.release()
        others = [cell for cell in cells if cell is not mine]
        for cell, following in zip(others, others[CHAINS:], strict=False):
            cell.following = following.gate
        for cell in others[:CHAINS]:
            cell.gate.release()


class WriterSketch:
    """A writer thread for those who do not wait: values and what is to be told of them, in two lists."""

    def __init__(self, device: Device, tell: Callable[[list[Any]], object]) -> None:
        self._device, self._tell, self._lock = device, tell, threading.Lock()
        self._values: list[bytes] = []
        self._waiting: list[Any] = []
        self._bell = allocate_lock()
        self._bell.acquire()
        self._busy = self._ended = False
        self.written = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def submit(self, value: bytes, waiter: Any = None) -> None:
        """Queue a value."""
        with self._lock:
            self._values.append(value)
            if waiter is not None:
                self._waiting.append(waiter)
            if self._busy:
                return
            self._busy = True
        self._bell.release()

    def awaited(self, value: bytes, loop: asyncio.AbstractEventLoop) -> TaskWait:
        """Queue a value; return what all tasks await whose values are queued with it."""
        with self._lock:
            self._values.append(value)
            if not self._waiting:
                self._waiting.append(TaskWait(loop))
            wait: TaskWait = self._waiting[0]
            if self._busy:
                return wait
            self._busy = True
        self._bell.release()
        return wait

    def _run(self) -> None:
        while not self._ended:
            self._bell.acquire()
            while True:
                with self._lock:
                    values, self._values = self._values, []
                    waiting, self._waiting = self._waiting, []
                    self._busy = bool(values)
                if not values:
                    break
                self._device.write(values)
                self.written += len(values)
                if waiting:
                    self._tell(waiting)

    def close(self) -> None:
        """End the thread; everything was written before."""
        self._ended = True
        self._bell.release()
        self._thread.join()


def by_threads(
    append: Callable[[int], Callable[[], object]],
    seconds: float,
    into: list[Measured],
    callers: int = CALLERS,
) -> None:
    """Let so many threads append for some time."""
    ended, counts = threading.Event(), [0] * callers

    def write(number: int) -> None:
        one, over = append(number), ended.is_set
        while not over():
            one()
            counts[number] += 1

    threads = [threading.Thread(target=write, args=(n,)) for n in range(callers)]
    for thread in threads:
        thread.start()
    time.sleep(WARM_S)
    with measured(lambda: sum(counts), into):
        time.sleep(seconds)
    ended.set()
    for thread in threads:
        thread.join()


def by_tasks(append: Callable[[], Any], seconds: float, into: list[Measured]) -> None:
    """Let 64 tasks of one event loop append for some time."""
    count, ended = [0], False

    async def write() -> None:
        while not ended:
            await append()
            count[0] += 1

    async def main() -> None:
        nonlocal ended
        tasks = [asyncio.create_task(write()) for _ in range(CALLERS)]
        await asyncio.sleep(WARM_S)
        with measured(lambda: count[0], into):
            await asyncio.sleep(seconds)
        ended = True
        await asyncio.gather(*tasks)

    asyncio.run(main())


def by_submits(
    submit: Callable[[], object], finish: Callable[[], object], seconds: float, into: list[Measured]
) -> None:
    """Let this thread submit for some time, and count what is written by the end of the last."""
    count = 0
    with measured(lambda: count, into):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for _ in range(SUBMITS):
                submit()
            count += SUBMITS
        finish()


def resolve_all(futures: list[asyncio.Future[None]]) -> None:
    """Let the tasks go on that wait for these, as asyncio does it."""
    for future in futures:
        future.set_result(None)


class Bench:
    """What is measured, by way and by who does it."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._device = Device(folder / "sketch")
        self._by_hand = ByHand(folder / "by-hand")
        self._leader = LeaderSketch(self._device)
        self._leader_by_hand = LeaderSketch(self._by_hand)
        self._round = 0
        self.found: dict[str, dict[str, list[Measured]]] = {
            way: {who: [] for who in ("leveldb", "sketch", "by hand", "walkit")}
            for way in ("alone", "threads", "tasks", "submit")
        }
        self.found["tasks"]["one wait"] = []
        del self.found["submit"]["by hand"]
        self.found["alone"]["device"] = []

    def run(self) -> None:
        """One round: each way by each, one after the other."""
        self._round += 1
        seconds = self._seconds
        log_path = self._folder / f"log-{self._round}"
        # Anew, as the database: what follows a round's large frames is written into space that nothing has zeroed.
        log = walkit.open(log_path)
        alone, threads, tasks, submits = self.found.values()
        path = self._folder / f"leveldb-{self._round}"
        database = plyvel.DB(str(path), create_if_missing=True)
        keys = [b"%012d" % number for number in range(CALLERS)]
        by_threads(lambda n: lambda: database.put(keys[n], VALUE, sync=True), seconds, alone["leveldb"], 1)
        by_threads(lambda _: lambda: self._device.write_block(VALUE), seconds, alone["device"], 1)
        by_threads(lambda _: lambda: self._leader.append(VALUE), seconds, alone["sketch"], 1)
        by_threads(lambda _: lambda: self._leader_by_hand.append(VALUE), seconds, alone["by hand"], 1)
        by_threads(lambda _: lambda: log.append(VALUE), seconds, alone["walkit"], 1)
        by_threads(lambda n: lambda: database.put(keys[n], VALUE, sync=True), seconds, threads["leveldb"])
        tasks["leveldb"].append(threads["leveldb"][-1])
        by_threads(lambda _: lambda: self._leader.append(VALUE), seconds, threads["sketch"])
        by_threads(lambda _: lambda: self._leader_by_hand.append(VALUE), seconds, threads["by hand"])
        by_threads(lambda _: lambda: log.append(VALUE), seconds, threads["walkit"])
        self._tasks_of_sketch(self._device, tasks["sketch"])
        self._tasks_of_sketch(self._by_hand, tasks["by hand"])
        self._tasks_with_one_wait(tasks["one wait"])
        by_tasks(lambda: log.append_async(VALUE), seconds, tasks["walkit"])
        by_submits(lambda: database.put(b"key", VALUE), lambda: None, seconds, submits["leveldb"])
        sketch = WriterSketch(self._device, lambda _: None)
        by_submits(lambda: sketch.submit(VALUE), sketch.close, seconds, submits["sketch"])
        by_submits(lambda: log.submit(VALUE), lambda: log.submit(VALUE).result(), seconds, submits["walkit"])
        database.close()
        log.close()
        shutil.rmtree(path)
        shutil.rmtree(log_path)

    def _tasks_of_sketch(self, device: Device, into: list[Measured]) -> None:
        loops: list[asyncio.AbstractEventLoop] = []
        sketch = WriterSketch(device, lambda waiting: loops[0].call_soon_threadsafe(resolve_all, waiting))

        async def append() -> None:
            if not loops:
                loops.append(asyncio.get_running_loop())
            future = loops[0].create_future()
            sketch.submit(VALUE, future)
            await future

        by_tasks(append, self._seconds, into)
        sketch.close()

    def _tasks_with_one_wait(self, into: list[Measured]) -> None:
        loops: list[asyncio.AbstractEventLoop] = []
        sketch = WriterSketch(
            self._by_hand, lambda waiting: loops[0].call_soon_threadsafe(wake_all, loops[0], waiting)
        )

        async def append() -> None:
            if not loops:
                loops.append(asyncio.get_running_loop())
            await sketch.awaited(VALUE, loops[0])

        by_tasks(append, self._seconds, into)
        sketch.close()


def show(found: dict[str, dict[str, list[Measured]]]) -> None:
    """Print a row for each way and who."""
    print(f"{'way':8} {'by':8} {'k/s':>8} {'x LevelDB':>10} {'x sketch':>9}", end="")
    print(f"{'user us':>9} {'sys us':>7} {'switches':>9}")
    for way, by_whom in found.items():
        for who, rows in by_whom.items():
            over = [
                median(row.per_s / other.per_s for row, other in zip(rows, by_whom[than], strict=True))
                for than in ("leveldb", "sketch")
            ]
            print(
                f"{way:8} {who:8} {median(r.per_s for r in rows) / 1e3:8.1f} {over[0]:10.2f} {over[1]:9.2f} "
                f"{median(r.user_us for r in rows):8.2f} {median(r.system_us for r in rows):7.2f} "
                f"{median(r.switches for r in rows):9.2f}"
            )


def main() -> None:
    """Measure in turns, print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", help="where to measure; default: the system's place for temporary files")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="walkit-floor-", dir=arguments.path))
    try:
        bench = Bench(folder, arguments.seconds)
        for _ in range(arguments.rounds):
            bench.run()
        show(bench.found)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
