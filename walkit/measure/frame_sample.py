"""Single frames of a log that is at work, as a watcher can draw them: a bounded number, around the slowest one.

`FrameSampler` observes the commit path and keeps its frames since the last read; `FrameSample` is the result.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from walkit.commit.frame import SealedFrame

Int64Array = npt.NDArray[np.int64]

FRAMES_KEPT_MAX = 8192
"""Frames, and syncs, that a sampler keeps between two questions; older ones are forgotten."""
SAMPLE_FRAMES_MAX = 32
"""Frames of one sample."""
NEVER = -1


class FrameSample(NamedTuple):
    """Consecutive frames in LSN order: arrays of one length. Times are nanoseconds of `time.perf_counter_ns`."""

    first_lsn: Int64Array
    records: Int64Array
    frame_bytes: Int64Array
    position: Int64Array
    sealed_ns: Int64Array
    """When the frame had its LSNs, position and chain."""
    began_ns: Int64Array
    """When its write began."""
    written_ns: Int64Array
    """When its write had ended; with its sync, if each write is synced."""
    synced_ns: Int64Array
    """When it was on stable storage; -1: not yet when the sample was taken."""
    acked_ns: Int64Array
    """When its last predecessor was written too, if order requires that; -1: not yet when the sample was taken."""
    lane: Int64Array
    """Which slot in flight it took, from 0."""
    seen: int
    """Frames that were written since the sample before, of the newest FRAMES_KEPT_MAX."""
    slowest: int
    """Index of the slowest frame since the sample before."""

    def __repr__(self) -> str:
        return f"FrameSample({len(self.lane)} of {self.seen} frames from LSN {self.first_lsn[0]})"

    def as_plain(self) -> dict[str, Any]:
        """Return it as lists of whole numbers for a JSON line; times count from the first sealing."""
        origin = int(self.sealed_ns.min())
        columns: dict[str, Any] = {"origin_ns": origin, "seen": self.seen, "slowest": self.slowest}
        for name in self._fields[:-2]:
            values = getattr(self, name)
            if name.endswith("_ns"):
                values = np.where(values == NEVER, NEVER, values - origin)
            columns[name] = values.tolist()
        return columns

    @classmethod
    def of_plain(cls, columns: Mapping[str, Any]) -> FrameSample:
        """Return the sample that `as_plain` was called on."""
        origin = int(columns["origin_ns"])
        arrays = {name: np.array(columns[name], np.int64) for name in cls._fields[:-2]}
        times = {
            name: np.where(values == NEVER, NEVER, values + origin)
            for name, values in arrays.items()
            if name.endswith("_ns")
        }
        return cls(**{**arrays, **times}, seen=int(columns["seen"]), slowest=int(columns["slowest"]))


class FrameNotes:
    """Notes the frames written and the syncs made in a log: a FrameObserver. Costs a tuple a frame."""

    def __init__(self, kept_max: int | None = None) -> None:
        """`kept_max`: frames, and syncs, that are kept, the newest ones; None: all."""
        self._frames: deque[tuple[int, int, int, int, int, int, int]] = deque(maxlen=kept_max)
        self._syncs: deque[tuple[int, int]] = deque(maxlen=kept_max)

    def writing(self, frame: SealedFrame) -> None:
        """See FrameObserver."""

    def wrote(self, frame: SealedFrame, began_ns: int, ended_ns: int) -> None:
        """See FrameObserver."""
        sealed = frame.position, frame.sealed_us
        self._frames.append((frame.first_lsn, frame.count, frame.footprint, began_ns, ended_ns, *sealed))

    def synced(self, began_ns: int, ended_ns: int) -> None:
        """See FrameObserver."""
        self._syncs.append((began_ns, ended_ns))


def in_lsn_order(frames: Iterable[tuple[int, ...]]) -> Int64Array:
    """Return notes of frames as rows; marks, which have no records, are left out."""
    table = np.array(list(frames), np.int64).reshape(-1, 7)
    table = table[table[:, 1] > 0]
    return table[np.argsort(table[:, 0], kind="stable")]


class FrameSampler(FrameNotes):
    """Keeps the frames of a log since the last read: a FrameObserver, added by `log.observe_writes`.

    Costs a tuple a frame. Memory is bounded by `FRAMES_KEPT_MAX`. `take` is for one thread.
    """

    def __init__(self, *, in_order: bool = True, synced: bool = True) -> None:
        """`in_order`: frames are acknowledged in append order; `synced`: each write is synced before it ends."""
        super().__init__(FRAMES_KEPT_MAX)
        self._in_order, self._synced = in_order, synced
        # A frame's time of sealing is on the wall clock of its log, which follows the monotonic one from the opening.
        self._wall_offset_ns = time.time_ns() - time.perf_counter_ns()

    def take(self, frames_max: int = SAMPLE_FRAMES_MAX) -> FrameSample | None:
        """Return the frames around the slowest one since the last call, from sealing to acknowledgement.

        Frames without records are left out. None if nothing remains.
        """
        rows = [self._frames.popleft() for _ in range(len(self._frames))]
        syncs = [self._syncs.popleft() for _ in range(len(self._syncs))]
        table = in_lsn_order(rows)
        if not len(table):
            return None
        first_lsn, records, size, began, ended, position, sealed_us = table.T
        sealed = np.minimum(sealed_us * 1000 - self._wall_offset_ns, began)
        acked = np.maximum.accumulate(ended) if self._in_order else ended
        slowest = int(np.argmax(acked - sealed))
        first = max(min(slowest - frames_max // 2, len(table) - frames_max), 0)
        part = slice(first, first + frames_max)
        lanes = lanes_of(began[part], ended[part])
        return FrameSample(
            *(first_lsn[part], records[part], size[part], position[part]),
            *(sealed[part], began[part], ended[part]),
            ended[part] if self._synced else _synced_at(ended[part], syncs),
            acked[part],
            lanes,
            seen=len(table),
            slowest=slowest - first,
        )


def lanes_of(began_ns: Int64Array, ended_ns: Int64Array) -> Int64Array:
    """Return a lane for each span, the lowest that is free when it begins: as many lanes as ever overlap."""
    lanes = np.zeros(len(began_ns), np.int64)
    free_from: list[int] = []
    for index in np.argsort(began_ns, kind="stable"):
        begins, ends = int(began_ns[index]), int(ended_ns[index])
        lane = next((n for n, free in enumerate(free_from) if free <= begins), len(free_from))
        if lane == len(free_from):
            free_from.append(ends)
        free_from[lane] = ends
        lanes[index] = lane
    return lanes


def _synced_at(written_ns: Int64Array, syncs: list[tuple[int, int]]) -> Int64Array:
    """Return when each frame was on stable storage: the end of the first sync that began after its write."""
    table = np.array(sorted(syncs), np.int64).reshape(-1, 2)
    at = np.searchsorted(table[:, 0], written_ns)
    ends = np.append(table[:, 1], NEVER)
    return np.asarray(ends[at], np.int64)
