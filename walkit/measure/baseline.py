"""The raw device under a log: one thread, or as many as frames are in flight, that do nothing but durable writes.

A log that syncs cannot acknowledge frames one after another faster than this. Every benchmark shows it beside
the log, from the same run and the same folder (pg_test_fsync and fio's fdatasync jobs are the models).
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter_ns

import numpy as np

from walkit._internal.html import Markup, tag
from walkit.errors import StorageError
from walkit.measure.histogram import LatencyHistogram
from walkit.storage.file import DIRECT_BYTES, O_DIRECT

ROUNDS = 5
"""Newest rounds of which a rate is the median."""
REGION_BYTES_MAX = 16 * 1024 * 1024
"""The loop goes round and round in at most this many pre-zeroed bytes (at least one block a thread)."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The rate of bare durable writes of one size; each thread makes one after another."""

    writes_per_s: float
    latencies: LatencyHistogram
    """Of each write: from the call to its return, which is when the bytes are on stable storage."""
    block_bytes: int
    duration_s: float
    mode: str = "O_DSYNC"
    threads: int = 1

    @property
    def writes(self) -> int:
        """How many writes were timed."""
        return self.latencies.count

    def _repr_html_(self) -> str:
        """Render the rate and the percentiles for a notebook."""
        title = f"raw {self.mode}, {self.block_bytes:,} B: {self.writes_per_s:,.0f} writes/s"
        return tag("div", tag("b", title), Markup(self.latencies._repr_html_()))


def raw_baseline(
    directory: str | os.PathLike[str],
    *,
    block_bytes: int = 4096,
    seconds: float | None = None,
    operations: int | None = None,
    threads: int = 1,
    direct: bool = False,
) -> Baseline:
    """Time pwrite on an O_DSYNC file over pre-zeroed space in `directory`, until either bound (default: 1 s).

    `threads` write at the same time, each the next block of the file; `operations` are those of all. With `direct` they
    write past the page cache (O_DIRECT): `block_bytes` is then a multiple of 4096. The scratch file has no name while
    the loop runs, so nothing is left even if the process is killed. Blocks the calling thread. StorageError if
    the place refuses or is full; ValueError for bounds below 1 and blocks that cannot be written directly.
    """
    if (
        block_bytes < 1
        or threads < 1
        or (operations is not None and operations < 1)
        or (seconds is not None and seconds <= 0)
    ):
        raise ValueError("block_bytes, operations and threads must be at least 1, and seconds positive")
    if direct and block_bytes % DIRECT_BYTES:
        raise ValueError(f"block_bytes={block_bytes} past the page cache: a multiple of {DIRECT_BYTES}")
    if seconds is None and operations is None:
        seconds = 1.0
    try:
        with _scratch_file(directory, direct) as (cached, fd):
            blocks = _zero(cached, block_bytes, threads)
            offsets = islice(cycle(range(0, blocks * block_bytes, block_bytes)), operations)
            found = _loops(fd, block_bytes, offsets, seconds, threads)
    except OSError as error:
        raise StorageError(f"no baseline in {directory}: {error}", errno=error.errno) from error
    stamps_ns = [np.frombuffer(stamps, dtype=np.int64) for stamps in found]
    elapsed_s = float(max(s[-1] for s in stamps_ns) - min(s[0] for s in stamps_ns)) / 1e9
    latencies = LatencyHistogram.from_samples(np.concatenate([np.diff(s) for s in stamps_ns]))
    return Baseline(
        writes_per_s=latencies.count / elapsed_s,
        latencies=latencies,
        block_bytes=block_bytes,
        duration_s=elapsed_s,
        mode="O_DIRECT|O_DSYNC" if direct else "O_DSYNC",
        threads=threads,
    )


@dataclass(frozen=True, kw_only=True)
class RawRate:
    """The rate of bare durable writes under a log, from several short rounds."""

    writes_per_s: float
    """The median of the rounds."""
    lowest: float
    highest: float
    rounds: int
    """0: nothing was measured, it follows from a model."""
    block_bytes: int
    threads: int
    mode: str

    def __str__(self) -> str:
        """Return the method of the measurement, in words that fit below a figure."""
        what = f"{self.block_bytes:,} B, {self.mode}"
        if self.threads > 1:
            what += f", {self.threads} at a time"
        if not self.rounds:
            return f"{self.writes_per_s:,.0f} writes/s of {what}: calculated from the model"
        spread = f"{self.lowest:,.0f} to {self.highest:,.0f}"
        return f"{self.writes_per_s:,.0f} writes/s of {what}: median of {self.rounds}, {spread}"


def raw_rates(
    directory: str | os.PathLike[str],
    *,
    block_bytes: int,
    threads: int = 1,
    direct: bool = False,
    seconds: float = 0.06,
) -> Iterator[RawRate]:
    """Yield, after each baseline of `seconds`, the median and spread of the newest five.

    A load may take turns with it, so that both meet the device as it is then. Blocks; raises as `raw_baseline` does.
    """
    newest = deque[float](maxlen=ROUNDS)
    while True:
        found = raw_baseline(
            directory, block_bytes=block_bytes, seconds=seconds, threads=threads, direct=direct
        )
        newest.append(found.writes_per_s)
        yield RawRate(
            writes_per_s=float(np.median(newest)),
            lowest=min(newest),
            highest=max(newest),
            rounds=len(newest),
            block_bytes=block_bytes,
            threads=threads,
            mode=found.mode,
        )


@contextmanager
def _scratch_file(directory: str | os.PathLike[str], direct: bool) -> Iterator[tuple[int, int]]:
    """Give two descriptors of a file without a name: one through the page cache, and the one to be measured."""
    if direct and not O_DIRECT:
        raise OSError(errno.EINVAL, "this platform has no direct I/O")
    with ExitStack() as opened:
        fd, name = tempfile.mkstemp(prefix=".walkit-baseline-", dir=directory)
        try:
            os.close(fd)
            cached = fd = os.open(name, os.O_WRONLY | os.O_DSYNC | os.O_CLOEXEC)
            opened.callback(os.close, cached)
            if direct:
                fd = os.open(name, os.O_WRONLY | os.O_DSYNC | O_DIRECT | os.O_CLOEXEC)
                opened.callback(os.close, fd)
        finally:
            os.unlink(name)
        yield cached, fd


def _zero(fd: int, block_bytes: int, threads: int) -> int:
    """Write the region with zeros, durably, and return how many blocks it has."""
    step_bytes = 1024 * 1024
    blocks = max(threads, REGION_BYTES_MAX // block_bytes)
    zeros = bytes(step_bytes)
    for offset in range(0, blocks * block_bytes, step_bytes):
        size = min(step_bytes, blocks * block_bytes - offset)
        if os.pwrite(fd, zeros[:size], offset) != size:
            raise OSError("a short write while zeroing")
    os.fsync(fd)
    return blocks


def _loops(
    fd: int, block_bytes: int, offsets: Iterable[int], seconds: float | None, threads: int
) -> list[array[int]]:
    """Run as many loops as there are threads, all taking from the same offsets; the only one on the caller's thread."""
    # Memory that begins at a page, as direct writes want it; of random bytes, lest a device thinks them nothing.
    with mmap.mmap(-1, block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(os.urandom(block_bytes))
        if threads == 1:
            return [_loop(fd, block, offsets, seconds)]
        with ThreadPoolExecutor(threads, "baseline") as pool:
            running = [pool.submit(_loop, fd, block, offsets, seconds) for _ in range(threads)]
        return [found.result() for found in running]


def _loop(fd: int, block: mmap.mmap, offsets: Iterable[int], seconds: float | None) -> array[int]:
    """Write block after block; return the time before the first and after each, ns."""
    block_bytes = len(block)
    pwrite, now, stamps_ns = os.pwrite, perf_counter_ns, array("q")
    stamp = stamps_ns.append
    start = now()
    end = start + int(seconds * 1e9) if seconds is not None else 2**63 - 1
    stamp(start)
    for offset in offsets:
        if pwrite(fd, block, offset) != block_bytes:
            raise OSError("a short write in the loop")
        done = now()
        stamp(done)
        if done >= end:
            break
    return stamps_ns
