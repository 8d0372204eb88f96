"""The raw device under a log: one thread that does nothing but durable writes.

A log that syncs cannot acknowledge frames one after another faster than this. Every benchmark shows it beside
the log, from the same run and the same folder (pg_test_fsync and fio's fdatasync jobs are the models).
"""

from __future__ import annotations

import os
import tempfile
from array import array
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter_ns

import numpy as np

from walkit.errors import StorageError
from walkit.html import Markup, tag
from walkit.measure.histogram import LatencyHistogram

REGION_BYTES_MAX = 16 * 1024 * 1024
"""The loop goes round and round in at most this many pre-zeroed bytes (at least one block)."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the place does with bare durable writes of one size, one after another, from one thread."""

    writes_per_s: float
    latencies: LatencyHistogram
    """Of each write: from the call to its return, which is when the bytes are on stable storage."""
    block_bytes: int
    duration_s: float
    mode: str = "O_DSYNC"

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
) -> Baseline:
    """Time pwrite on an O_DSYNC file over pre-zeroed space in `directory`, until either bound (default: 1 s).

    The scratch file has no name while the loop runs, so nothing is left behind even if the process is killed.
    Blocks the calling thread. StorageError if the place refuses or is full; ValueError for bounds below 1.
    """
    if (
        block_bytes < 1
        or (operations is not None and operations < 1)
        or (seconds is not None and seconds <= 0)
    ):
        raise ValueError("block_bytes and operations must be at least 1, and seconds positive")
    if seconds is None and operations is None:
        seconds = 1.0
    try:
        fd, name = tempfile.mkstemp(prefix=".walkit-baseline-", dir=directory)
        try:
            os.close(fd)
            fd = os.open(name, os.O_WRONLY | os.O_DSYNC | os.O_CLOEXEC)
        finally:
            os.unlink(name)
        try:
            blocks = _zero(fd, block_bytes)
            stamps_ns = _loop(fd, block_bytes, blocks, seconds, operations)
        finally:
            os.close(fd)
    except OSError as error:
        raise StorageError(f"no baseline in {directory}: {error}", errno=error.errno) from error
    elapsed_s = (stamps_ns[-1] - stamps_ns[0]) / 1e9
    latencies = LatencyHistogram.from_samples(np.diff(np.frombuffer(stamps_ns, dtype=np.int64)))
    return Baseline(
        writes_per_s=latencies.count / elapsed_s,
        latencies=latencies,
        block_bytes=block_bytes,
        duration_s=elapsed_s,
    )


def _zero(fd: int, block_bytes: int) -> int:
    """Write the region with zeros, durably, and return how many blocks it has."""
    step_bytes = 1024 * 1024
    blocks = max(1, REGION_BYTES_MAX // block_bytes)
    zeros = bytes(step_bytes)
    for offset in range(0, blocks * block_bytes, step_bytes):
        size = min(step_bytes, blocks * block_bytes - offset)
        if os.pwrite(fd, zeros[:size], offset) != size:
            raise OSError("a short write while zeroing")
    os.fsync(fd)
    return blocks


def _loop(
    fd: int, block_bytes: int, blocks: int, seconds: float | None, operations: int | None
) -> array[int]:
    """Write block after block; return the time before the first and after each, ns."""
    block = os.urandom(block_bytes)
    offsets = cycle(range(0, blocks * block_bytes, block_bytes))
    pwrite, now, stamps_ns = os.pwrite, perf_counter_ns, array("q")
    stamp = stamps_ns.append
    left = operations if operations is not None else -1
    start = now()
    end = start + int(seconds * 1e9) if seconds is not None else 2**63 - 1
    stamp(start)
    for offset in offsets:
        if pwrite(fd, block, offset) != block_bytes:
            raise OSError("a short write in the loop")
        done = now()
        stamp(done)
        left -= 1
        if left == 0 or done >= end:
            break
    return stamps_ns
