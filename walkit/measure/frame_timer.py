"""The times of a run's frames, without a clock reading on the path of any record: it observes the writer.

A `FrameWatch` observes the commit path for the time of a run, and notes when each frame's write began and ended. The
callers know when their call began, when it was done and which LSN it got; joined by LSN, the two give each record's
time in the queue, in the write, and from there to the caller.
"""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from walkit.log.wal import WriteAheadLog
from walkit.measure.frame_sample import FrameNotes, in_lsn_order
from walkit.measure.histogram import LatencyHistogram
from walkit.measure.run import FrameSummary

Int64Array = npt.NDArray[np.int64]


class FrameTimes(NamedTuple):
    """Frames with records, in LSN order: arrays of one length. Times are of `time.perf_counter_ns`."""

    first_lsn: Int64Array
    records: Int64Array
    frame_bytes: Int64Array
    began_ns: Int64Array
    ended_ns: Int64Array

    def __repr__(self) -> str:
        return f"FrameTimes({len(self.records):,} frames, {int(self.records.sum()):,} records)"


class FrameWatch(FrameNotes):
    """Notes the frames written and the syncs made in a log while its `with` block runs: a FrameObserver.

    Costs two clock readings a frame. Safe with several frames in flight.
    """

    def __init__(self, log: WriteAheadLog) -> None:
        super().__init__()
        self._log = log

    def __enter__(self) -> Self:
        self._log.observe_writes(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.unobserve_writes(self)

    def frames(self) -> FrameTimes:
        """Return the frames noted until now; marks, which have no records, are left out."""
        return FrameTimes(*in_lsn_order(self._frames).T[:5])

    def sync_latency(self) -> LatencyHistogram:
        """Return how long the syncs took that were made apart from a write (durability "interval", `sync()`)."""
        table = np.array(self._syncs, np.int64).reshape(-1, 2)
        return LatencyHistogram.from_samples(table[:, 1] - table[:, 0])

    def summary(self, padding_bytes: int) -> FrameSummary:
        """Return counts and sizes of the frames, with their quantiles."""
        frames = self.frames()
        return FrameSummary.from_sizes(frames.records, frames.frame_bytes, padding_bytes=padding_bytes)


def split_latency(
    frames: FrameTimes, began_ns: Int64Array, ended_ns: Int64Array, last_lsn: Int64Array, records: Int64Array
) -> dict[str, LatencyHistogram]:
    """Split calls into "queue" (begin of the call to begin of its frame's write), "write" and "callback" (the rest).

    Arrays with an item per call; a call's last record names its frame. Where a write is synced, the sync is part of it.
    Calls whose frame was not seen are left out. queue + write + callback is the whole call.
    """
    if not len(frames.first_lsn):
        return {name: LatencyHistogram() for name in ("queue", "write", "callback")}
    at = np.searchsorted(frames.first_lsn, last_lsn, side="right") - 1
    known = (at >= 0) & (last_lsn < (frames.first_lsn + frames.records)[np.maximum(at, 0)])
    at, began, ended, weight = at[known], began_ns[known], ended_ns[known], records[known]
    written_from, written_to = frames.began_ns[at], frames.ended_ns[at]
    parts = {
        # A call of several frames may start its last one late; only clock jitter makes a value negative.
        "queue": np.maximum(written_from - began, 0),
        "write": written_to - written_from,
        "callback": np.maximum(ended - written_to, 0),
    }
    return {name: LatencyHistogram.from_samples(ns, counts=weight) for name, ns in parts.items()}
