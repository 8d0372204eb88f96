"""Many records a call, and large records: what the device, the file system and the interpreter leave of raw writes.

Five ways to write the same bytes, one after the other in each round, as MB/s of the records' own bytes:

- `raw`: durable writes of as many bytes as a call (or a frame) has, again and again over the same 16 MB that are
  written already. It is what `walkit bench write` compares with.
- `reserved`: the same, each to the next place of a file whose space is reserved and was never written, as a log's is.
- `sketch`: what no log in Python can leave out, into reserved space: copy or join and measure the records, take one
  checksum, write, and, where several are on their way, queue, take and tell.
- `objects`: the part of the sketch that makes bytes of the caller's objects, without any writing.
- `walkit`: the log.

The calls: 10,000 records of 100 B in an Arrow column, the same in a list of bytes, and records of 4 KiB of which one
thread keeps 64 on their way by `submit`, in one frame at a time and in eight at a time::

    python tests/benchmarks/bench_bytes.py --seconds 0.5 --rounds 5

All figures are medians of the rounds, ratios medians of each round's ratio to `raw`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pyarrow as pa

import walkit
from walkit.format.checksum import crc32c
from walkit.measure import raw_baseline

RECORDS = 10_000
SMALL = b"x" * 100
LARGE = os.urandom(4096)
OUTSTANDING = 64
RESERVED_BYTES = 256 << 20
WARM_CALLS = 3


class Reserved:
    """A file of reserved space, written from its begin on; its space is reserved anew when it is full."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._fd = -1
        self._at = 0
        self._begin()

    def _begin(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)
        self._fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_DSYNC)
        os.posix_fallocate(self._fd, 0, RESERVED_BYTES)
        os.fsync(self._fd)
        self._at = 0

    def place(self, size_bytes: int) -> tuple[int, int]:
        """Return (descriptor, offset) of the next place for so many bytes; nobody may be writing when it is full."""
        with self._lock:
            if self._at + size_bytes > RESERVED_BYTES:
                self._begin()
            at, self._at = self._at, self._at + size_bytes
        return self._fd, at

    def renew(self) -> None:
        """Begin with unwritten space, before anything is measured."""
        self._begin()

    def write(self, data: Any) -> None:
        """Write the bytes durably."""
        fd, at = self.place(len(data))
        os.pwrite(fd, data, at)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def calls_per_s(call: Callable[[], object], seconds: float) -> float:
    """Return how often this thread makes the call in a second."""
    for _ in range(WARM_CALLS):
        call()
    count, began = 0, perf_counter()
    while perf_counter() - began < seconds:
        call()
        count += 1
    return count / (perf_counter() - began)


class Group:
    """Records of a sketch that are written together."""

    __slots__ = ("done", "gate", "values")

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.done = False
        self.gate = allocate_lock()
        self.gate.acquire()


class Queue:
    """A sketch of `submit`: groups of at most `cap` records, and as many writer threads as groups may be in flight."""

    def __init__(self, device: Reserved, cap: int, writers: int) -> None:
        self._device, self._cap, self._lock = device, cap, threading.Lock()
        self._open: Group | None = None
        self._groups: deque[Group] = deque()
        self._bell = threading.Semaphore(0)
        self._ended = False
        self._threads = [threading.Thread(target=self._run) for _ in range(writers)]
        for thread in self._threads:
            thread.start()

    def submit(self, value: bytes) -> Group:
        """Queue a record."""
        with self._lock:
            group = self._open
            if group is not None:
                group.values.append(value)
                if len(group.values) == self._cap:
                    self._open = None
                return group
            self._open = group = Group()
            group.values.append(value)
            self._groups.append(group)
        self._bell.release()
        return group

    def _run(self) -> None:
        while True:
            self._bell.acquire()
            with self._lock:
                if not self._groups:
                    return
                group = self._groups.popleft()
                if group is self._open:
                    self._open = None
            block = b"".join(group.values)
            crc32c(block)
            self._device.write(block)
            group.done = True
            group.gate.release()

    def close(self) -> None:
        """End the threads; everything was waited for before."""
        for _ in self._threads:
            self._bell.release()
        for thread in self._threads:
            thread.join()


def kept_on_their_way(submit: Callable[[], Any], wait: Callable[[Any], object]) -> Callable[[], None]:
    """Return a call that submits 64 records, waiting for the oldest of 64 before each."""
    tickets: deque[Any] = deque()

    def call() -> None:
        for _ in range(OUTSTANDING):
            if len(tickets) == OUTSTANDING:
                wait(tickets.popleft())
            tickets.append(submit())

    return call


def wait_for(group: Group) -> None:
    """Wait for a group of a sketch."""
    if not group.done:
        group.gate.acquire()
        group.gate.release()


class Bench:
    """What is measured, in MB/s: by the way of calling, then by who does it."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._reserved = Reserved(folder / "reserved")
        self._values = [bytes((n & 255,)) * len(SMALL) for n in range(RECORDS)]
        self._table = pa.table({"value": pa.array(self._values, pa.binary())})
        self.found: dict[str, dict[str, list[float]]] = {}

    def run(self) -> None:
        """One round."""
        small_bytes, column = RECORDS * len(SMALL), self._table.column("value").chunk(0)

        def copied() -> bytes:
            block: bytes = column.buffers()[2].to_pybytes()
            crc32c(block)
            return block

        def joined() -> bytes:
            if list(map(type, self._values)).count(bytes) != RECORDS:
                raise TypeError
            lengths = list(map(len, self._values))
            block = b"".join(self._values)
            if sum(lengths) != len(block):
                raise ValueError
            crc32c(block)
            return block

        with walkit.open(self._folder / "arrow") as log:
            self._way("append_arrow", small_bytes, copied, lambda: log.append_arrow(self._table))
        with walkit.open(self._folder / "many") as log:
            self._way("append_many", small_bytes, joined, lambda: log.append_many(self._values))
        for name in ("arrow", "many"):
            shutil.rmtree(self._folder / name)
        for in_flight in (1, 8):
            self._large(in_flight)

    def _way(
        self, way: str, size_bytes: int, make: Callable[[], bytes], append: Callable[[], object]
    ) -> None:
        block, seconds, write = make(), self._seconds, self._reserved.write
        raw = raw_baseline(self._folder, block_bytes=size_bytes, seconds=seconds).writes_per_s
        self._note(way, "raw", raw * size_bytes)
        for who, call in (
            ("reserved", lambda: write(block)),
            ("objects", make),
            ("sketch", lambda: write(make())),
            ("walkit", append),
        ):
            self._reserved.renew()
            self._note(way, who, calls_per_s(call, seconds) * size_bytes)

    def _large(self, in_flight: int) -> None:
        way, cap = f"4 KiB x 64, {in_flight} in flight", OUTSTANDING // in_flight
        block, size_bytes, seconds = LARGE * cap, OUTSTANDING * len(LARGE), self._seconds
        raw = raw_baseline(self._folder, block_bytes=len(block), seconds=seconds, threads=in_flight)
        self._note(way, "raw", raw.writes_per_s * len(block))
        self._reserved.renew()
        self._note(way, "reserved", self._parallel(block, in_flight))
        self._reserved.renew()
        self._note(way, "objects", calls_per_s(lambda: crc32c(b"".join([LARGE] * cap)), seconds) * len(block))
        queue = Queue(self._reserved, cap, in_flight)
        call = kept_on_their_way(lambda: queue.submit(LARGE), wait_for)
        self._note(way, "sketch", calls_per_s(call, seconds) * size_bytes)
        queue.close()
        frame_bytes = len(block) + 4096 if in_flight > 1 else 4 << 20
        options = walkit.LogOptions(in_flight=in_flight, frame_bytes_max=frame_bytes)
        with walkit.open(self._folder / "large", options=options) as log:
            call = kept_on_their_way(lambda: log.submit(LARGE), lambda ticket: ticket.result())
            self._note(way, "walkit", calls_per_s(call, seconds) * size_bytes)
        shutil.rmtree(self._folder / "large")

    def _parallel(self, block: bytes, threads: int) -> float:
        """Return the bytes/s of so many threads that write the block into reserved space, each one after another."""
        counts, until = [0] * threads, perf_counter() + self._seconds
        places = RESERVED_BYTES // len(block)

        def write(number: int) -> None:
            while perf_counter() < until and sum(counts) < places - threads:
                self._reserved.write(block)
                counts[number] += 1

        began = perf_counter()
        running = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return sum(counts) * len(block) / (perf_counter() - began)

    def _note(self, way: str, who: str, bytes_per_s: float) -> None:
        self.found.setdefault(way, {}).setdefault(who, []).append(bytes_per_s)

    def close(self) -> None:
        """Close the file."""
        self._reserved.close()


def show(found: dict[str, dict[str, list[float]]]) -> None:
    """Print a row for each way and who."""
    print(f"{'way':24} {'by':9} {'MB/s':>7} {'x raw':>6} {'x sketch':>9}")
    for way, by_whom in found.items():
        for who, rates in by_whom.items():
            over = [
                median(rate / other for rate, other in zip(rates, by_whom[than], strict=True))
                for than in ("raw", "sketch")
            ]
            print(f"{way:24} {who:9} {median(rates) / 1e6:7.0f} {over[0]:6.2f} {over[1]:9.2f}")


def main() -> None:
    """Measure in turns, print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", help="where to measure; default: the system's place for temporary files")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="walkit-bytes-", dir=arguments.path))
    try:
        bench = Bench(folder, arguments.seconds)
        for _ in range(arguments.rounds):
            bench.run()
        bench.close()
        show(bench.found)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
