"""The state of a delta reader, which anyone may read, and the figures of how it came to be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from walkit._internal.locks import STATE, alone, marked
from walkit._internal.report import report_html
from walkit._internal.text import counted
from walkit.commit.latches import CommitSignal
from walkit.errors import DivergenceError, GapError
from walkit.format.frame import FrameHeader
from walkit.read.reader import LogReader
from walkit.read.view import frames_to_batches
from walkit.replication.delta.loader import Frames, Reached
from walkit.replication.protocol.failures import ReplicaFailedError
from walkit.state.applier import Follower
from walkit.state.machine import StateImage
from walkit.state.mapping_api import MappingApi
from walkit.state.table import KeyedTable

SAMPLES_MAX = 1 << 16
"""The newest latencies of each kind that are kept."""
PART_BYTES = 4 << 20
"""About the unpacked bytes of frames applied at a time: a range may be packed a thousandfold."""
LATENCIES = {
    "poll": "from a poll to its answer",
    "answer": "from an answer with a delta until its records are in the state",
    "read": "reading one range of the log from the storage",
    "decode": "taking the frames of one range apart",
    "insert": "putting the records of one range into the state",
    "replay": "from the answer that named a range until its records are in the state",
}
"""The latencies of a delta reader, in nanoseconds, with their meanings."""


class ReaderState(MappingApi):
    """Keys to values, as the log has them up to `applied_lsn`; a Mapping. Safe from any thread.

    A frame is applied whole, so a transaction is seen all or not at all. It stays readable after the reader is stopped;
    ReplicaFailedError if a frame was applied in part.
    """

    def __init__(self, log: LogReader | None = None) -> None:
        """`log` has the values of links."""
        self.log = log
        self._table = KeyedTable()
        self._follower = Follower(self._table, 0)
        self._changed = CommitSignal()
        self.reached = Reached(0, 0)
        self._epoch = (0, 0)
        """Number and id of the epoch of the last frame; 0 if none was applied yet."""
        self._torn = ""
        """Why frames came to the table in part, which then matches the log at no LSN."""

    @property
    def table(self) -> KeyedTable:
        """The table itself: to restore it before anything is applied."""
        return self._table

    @property
    def is_whole(self) -> bool:
        """Whether the table is the state at `applied_lsn`; false once frames came to it in part."""
        return not self._torn

    @property
    def applied_lsn(self) -> int:
        """LSN of the last record in the state, with all before it."""
        return self._follower.applied_lsn

    def begin(self, reached: Reached) -> None:
        """Set the end of the restored table."""
        self.reached, self._follower.applied_lsn = reached, reached.lsn

    def keys(self) -> list[bytes]:
        """Return the live keys of one moment, in order."""
        return list(self)

    def values(self) -> list[bytes | None]:
        """Return the values of one moment, in order of keys."""
        return [value for _, value in self.items()]

    def __eq__(self, other: object) -> bool:
        return dict(self.items()) == (dict(other.items()) if isinstance(other, Mapping) else other)

    __hash__ = None  # type: ignore[assignment]

    def apply(self, frames: Iterable[tuple[FrameHeader, memoryview]], last_lsn: int) -> tuple[int, int, int]:
        """Apply the frames that end at or before this LSN and are not in the state; return (records, decode, insert).

        Times in ns. A frame that ends after it comes whole with the next range. GapError if a record between the state
        and the frames is missing, DivergenceError if they belong to another history. One caller at a time.
        """
        first = self.applied_lsn + 1
        whole = [
            (header, frame)
            for header, frame in frames
            if header.records and first <= header.last_lsn <= last_lsn
        ]
        records = decode_ns = insert_ns = 0
        for part in _parts_of(whole):
            took = self._apply_part(part)
            records, decode_ns, insert_ns = records + took[0], decode_ns + took[1], insert_ns + took[2]
            self.wake()
        return records, decode_ns, insert_ns

    def _apply_part(self, whole: Frames) -> tuple[int, int, int]:
        first = self.applied_lsn + 1
        if whole[0][0].first_lsn > first:
            raise GapError(first, whole[0][0].first_lsn)
        epoch = self._epoch_after(whole)
        began = perf_counter_ns()
        batches = list(frames_to_batches(iter(whole), first, None))
        decoded = perf_counter_ns()
        with alone(STATE), self._follower.lock:
            try:
                for batch in batches:
                    self._table.apply_arrow(batch)
                newest = whole[-1][0]
            except BaseException as error:
                self._torn = f"{type(error).__name__}: {error}"
                raise
            self.reached, self._epoch = Reached(newest.last_lsn, newest.epoch_id), epoch
            self._follower.applied_lsn = newest.last_lsn
        inserted = perf_counter_ns()
        return newest.last_lsn - first + 1, decoded - began, inserted - decoded

    def _epoch_after(self, frames: Frames) -> tuple[int, int]:
        """Return number and id of the last frame's epoch; DivergenceError for one that does not follow.

        Numbers of epochs grow along a log, so frames of two histories are never in one state, whatever their way.
        """
        number, epoch_id = self._epoch
        for header, _ in frames:
            if header.epoch < number or (header.epoch == number and header.epoch_id != epoch_id):
                raise DivergenceError(
                    f"record {header.first_lsn:,} is of epoch {header.epoch_id:#018x}, number {header.epoch:,}, and "
                    f"the one before it of {epoch_id:#018x}, number {number:,}: they are of two histories",
                    first_lsn=header.first_lsn,
                )
            number, epoch_id = header.epoch, header.epoch_id
        return number, epoch_id

    def image(self) -> tuple[StateImage, Reached] | None:
        """Return the state of one moment as a snapshot has it, and how far it is; None if it is not whole."""
        with alone(STATE), self._follower.lock:
            reached = self.reached
            if self._torn:
                return None
            return StateImage(reached.lsn, self._table.snapshot_format, self._table.snapshot()), reached

    def wait_until(self, holds: Callable[[], bool], timeout: float | None) -> None:
        """Wait until this holds, or the time is over; it is checked at each `wake`, and under a lock."""
        self._changed.wait_for(holds, timeout)

    def wake(self) -> None:
        """Wake the waiting threads, to look again."""
        with marked(), self._changed.lock:
            self._changed.notify_locked()

    def _see_acknowledged(self) -> None:
        """See MappingApi: the applied records are the whole state; ReplicaFailedError after a partial one."""
        if self._torn:
            raise ReplicaFailedError(
                f"the records after LSN {self.applied_lsn:,} are in this state in part: {self._torn}",
                cause=self._torn,
            )

    def __repr__(self) -> str:
        return f"<ReaderState of {counted(len(self._table), 'key')} at LSN {self.applied_lsn}>"

    def _repr_html_(self) -> str:
        facts = [("live keys", f"{len(self._table):,}"), ("applied LSN", f"{self.applied_lsn:,}")]
        return report_html("state of a delta reader", facts)


Mapping.register(ReaderState)


class ReaderFigures:
    """The newest latencies, in bounded memory. Written by the reader's own threads."""

    def __init__(self) -> None:
        self._ns: dict[str, deque[int]] = {name: deque(maxlen=SAMPLES_MAX) for name in LATENCIES}

    def time(self, name: str, ns: int) -> None:
        """Note one latency."""
        self._ns[name].append(ns)

    def applied(self, *, by_delta: bool, named_ns: int, done_ns: int) -> None:
        """Note one range that was applied: when it was named (0: unknown), and when it was done."""
        if named_ns:
            self.time("replay", done_ns - named_ns)
            if by_delta:
                self.time("answer", done_ns - named_ns)

    def latencies(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the newest latencies of each kind of `LATENCIES`, ns, the oldest first."""
        return {name: np.array(list(kept.copy()), np.int64) for name, kept in self._ns.items()}


def _parts_of(frames: Frames) -> Iterator[Frames]:
    """Yield the frames in order, so many at a time that their bodies have about `PART_BYTES` once they are unpacked."""
    part: Frames = []
    size = 0
    for header, frame in frames:
        part.append((header, frame))
        size += header.body_raw_bytes
        if size >= PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
