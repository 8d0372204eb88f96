"""Reading ranges of a log that another process writes: the frames of some LSNs, from the shared storage.

A delta reader reads mostly at the end of the log. So the open segment stays open, and the ends of the ranges that came
last are kept: a range that follows one of them is one read. The frames prove themselves by log, epoch, position, LSN
and, after one that was seen, chain. Where that does not do (another segment, a new opening), a view of the whole log is
made, by its manifest.
"""

from __future__ import annotations

import queue
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from walkit._internal.locks import once
from walkit._internal.threads import LogThread
from walkit.errors import CorruptionError, DivergenceError, GapError, HistoryTrimmedError, StorageError
from walkit.format.frame import FrameHeader
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import Manifest
from walkit.format.segment import SegmentHeader
from walkit.read.view import LogView, View, frames_to_batches
from walkit.record import Batch, Record
from walkit.replication.delta.messages import DeltaEnd
from walkit.replication.logs.source import SharedLog
from walkit.segments.frame_walk import READ_BYTES, FrameWalk
from walkit.segments.history import lies_in, parted_at
from walkit.storage.interface import StorageFile

ENDS_MAX = 1024
"""The most ends of ranges that are kept; the oldest goes."""
LOAD_BYTES_MAX = 2 << 20
"""About the most bytes of a load, whatever size the named ends gave it."""
HOP_FROM_BYTES = 256 << 10
"""The most bytes before a range that are read with it, in one request; more are passed by their headers."""
TRIES = 3
"""Number of views made for one load, as the log's files may move away under each."""
STOP_S = 5.0
"""How long a stop waits for reads that are under way: a storage may hang."""

Frames = list[tuple[FrameHeader, memoryview]]


class Reached(NamedTuple):
    """A reader's position: an LSN, and the epoch of that record. Epoch 0 has no record."""

    lsn: int
    epoch_id: int


@dataclass(frozen=True, slots=True)
class LoadedRange:
    """The frames that hold the records of a range, whole; `end` is how far it was found, or loaded at once."""

    frames: Frames = field(repr=False)
    size_bytes: int
    end: DeltaEnd


def check_history(manifest: Manifest, log_id: int, reached: Reached) -> None:
    """Refuse a log that is not the one a reader has followed: DivergenceError, with the first LSN that can differ."""
    if manifest.log_id != log_id:
        raise DivergenceError(
            f"another log is there now: its id is {manifest.log_id:#018x}, the reader's is {log_id:#018x}",
            first_lsn=1,
        )
    if reached.lsn and reached.epoch_id and not lies_in(manifest, reached.lsn, reached.epoch_id):
        raise DivergenceError(
            f"the reader's record {reached.lsn:,} is of epoch {reached.epoch_id:#018x}, and the log's is not: "
            "the reader's records were cut",
            first_lsn=parted_at(manifest, reached.epoch_id),
        )


class _End(NamedTuple):
    """The end of a frame; the next one has to carry `chain`, which is None if unknown."""

    lsn: int
    position: int
    chain: int | None = None


def _end_of(header: FrameHeader) -> _End:
    return _End(header.last_lsn, header.end_position, header.header_crc)


@dataclass(slots=True)
class _Tail:
    """The open segment, and how many loads read it; a replaced one is closed by the last of them."""

    file: StorageFile
    segment: SegmentHeader
    users: int = 0
    is_replaced: bool = False


class RangeLoader:
    """Reads ranges of one log. Safe from any thread; loads run side by side."""

    def __init__(self, log: SharedLog, log_id: int, *, stop_at_bytes: int = LOAD_BYTES_MAX) -> None:
        """A load ends with the frame that reaches this many bytes, even if more was requested."""
        self._log, self._log_id, self._stop_at_bytes = log, log_id, stop_at_bytes
        self._lock = threading.RLock()
        self.tail: _Tail | None = None
        self._ends: list[_End] = []
        """Ends of the frames of ranges, by LSN."""
        self._closed = False

    def note(self, header: FrameHeader) -> None:
        """Keep the end of a frame that is verified: the next range is likely to begin there."""
        self._log.expect(header)
        self._note(_end_of(header))

    def note_end(self, end: DeltaEnd) -> None:
        """Keep an end that the primary has answered, for ranges that begin after it while others are being read."""
        if end.lsn and end.position:
            self._note(_End(end.lsn, end.position))

    def _note(self, end: _End) -> None:
        with once(self._lock), self._lock:
            at = bisect_left(self._ends, end.lsn, key=lambda each: each.lsn)
            if at < len(self._ends) and self._ends[at].lsn == end.lsn:
                if end.chain is not None:
                    self._ends[at] = end
            else:
                self._ends.insert(at, end)
                del self._ends[:-ENDS_MAX]

    def load(self, first_lsn: int, last_lsn: int, known: DeltaEnd, reached: Reached) -> LoadedRange:
        """Return the frames that hold these LSNs, or the first of them; the log is durable up to `known`, at or after.

        GapError if some of its records are gone, DivergenceError if the state at `reached` came from another log,
        CorruptionError for damage, StorageError for a failure that may pass.
        """
        frames = self._from_tail(first_lsn, last_lsn, known) or self._from_view(first_lsn, last_lsn, reached)
        expected, size = first_lsn, 0
        for header, _ in frames:
            if header.first_lsn > expected or header.records != header.last_lsn - header.first_lsn + 1:
                raise GapError(expected, max(header.first_lsn, expected + 1))
            expected, size = header.last_lsn + 1, size + header.footprint
        if frames:
            self.note(frames[-1][0])
        position = frames[-1][0].end_position if frames else 0
        return LoadedRange(frames, size, DeltaEnd(min(expected - 1, last_lsn), position))

    def records(self, first_lsn: int, last_lsn: int, known: DeltaEnd, reached: Reached) -> Iterator[Record]:
        """Yield the records of these LSNs, in bounded memory. Raises as `load` does, and after a compaction.

        HistoryTrimmedError if compaction left only the newest record of each key.
        """
        if first_lsn > last_lsn:
            return
        view = self._log.view()
        check_history(view.manifest, self._log_id, reached)
        if first_lsn < view.first_lsn:
            raise GapError(first_lsn, view.first_lsn)
        if first_lsn < view.complete_from_lsn:
            raise HistoryTrimmedError(first_lsn, view.complete_from_lsn)
        wanted = first_lsn
        for record in view.records(first_lsn, last_lsn):
            yield record
            wanted = record.lsn + 1
        # The newest are durable by the primary's answer, and not yet by the log's own files.
        while wanted <= last_lsn:
            loaded = self.load(wanted, last_lsn, known, reached)
            if loaded.end.lsn < wanted:
                raise StorageError(
                    f"the log ends with LSN {loaded.end.lsn:,} here, and LSN {last_lsn:,} is durable"
                )
            for batch in frames_to_batches(iter(loaded.frames), wanted, last_lsn):
                yield from Batch.from_arrow(batch)
            wanted = loaded.end.lsn + 1

    def _check(self) -> None:
        """Assert that the ends are in order and bounded; with the lock held."""
        assert len(self._ends) <= ENDS_MAX
        assert all(before.lsn < after.lsn for before, after in pairwise(self._ends))
        assert self.tail is None or (self.tail.users >= 0 and not self.tail.is_replaced)

    def close(self) -> None:
        """Close the open segment; a load that reads it closes it at its end."""
        with once(self._lock), self._lock:
            self._closed = True
        self._replace_tail(None)

    # -- the open segment

    def _from_tail(self, first_lsn: int, last_lsn: int, known: DeltaEnd) -> Frames | None:
        """Return the range's frames from the segment that is open here; None if it lacks some of them."""
        with self._tail_in_use() as tail:
            if tail is None or first_lsn < tail.segment.first_lsn:
                return None
            return self._read_tail(tail, first_lsn, last_lsn, known)

    def _read_tail(self, tail: _Tail, first_lsn: int, last_lsn: int, known: DeltaEnd) -> Frames | None:
        with once(self._lock), self._lock:
            at = bisect_left(self._ends, first_lsn, key=lambda each: each.lsn)
            before = self._ends[at - 1] if at else None
        segment = tail.segment
        start = _End(segment.first_lsn - 1, segment.start_position, segment.chain)
        if before is not None and before.position >= start.position:
            start = before
        ahead = (known.position - start.position) * (first_lsn - start.lsn) // max(known.lsn - start.lsn, 1)
        if ahead > HOP_FROM_BYTES:
            hop = self._walk(tail, start, known.position, body=False)
            for header, _ in hop:
                if header.last_lsn >= first_lsn:
                    break
                start = _end_of(header)
            else:
                if hop.error is not None:
                    raise hop.error
                if start.lsn + 1 < first_lsn:
                    return None
        walk = self._walk(tail, start, known.position, body=True)
        frames: Frames = []
        size = 0
        for header, frame in walk:
            if header.records and header.last_lsn >= first_lsn:
                frames.append((header, frame))
                size += header.footprint
            if header.last_lsn >= last_lsn or size >= self._stop_at_bytes:
                return frames
        if walk.error is not None:
            raise walk.error
        return None

    @staticmethod
    def _walk(tail: _Tail, start: _End, end_position: int, *, body: bool) -> FrameWalk:
        return FrameWalk(
            tail.file,
            tail.segment,
            position=start.position,
            end_position=max(end_position, start.position),
            next_lsn=start.lsn + 1,
            chain=start.chain,
            body=body,
            read_bytes=READ_BYTES,
        )

    # -- the whole log

    def _from_view(self, first_lsn: int, last_lsn: int, reached: Reached) -> Frames:
        for attempt in range(TRIES):
            generation = self._log.manifest().generation
            try:
                view = self._log.view()
                check_history(view.manifest, self._log_id, reached)
                if first_lsn < view.complete_from_lsn:
                    raise GapError(first_lsn, view.complete_from_lsn)
                frames, size = [], 0
                for header, frame, _ in view.frames(first_lsn, last_lsn):
                    if header.records:
                        frames.append((header, frame))
                        size += header.footprint
                    if size >= self._stop_at_bytes:
                        break
                self.keep_tail(view)
                return frames
            except (CorruptionError, GapError):
                # A trim, a compaction or a new segment takes files away from under a view; a new one has the others.
                if attempt == TRIES - 1 or self._log.manifest().generation == generation:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def keep_tail(self, view: View) -> None:
        """Keep the segment open that is written now, if its frames are the log's own."""
        if not isinstance(view, LogView) or not view.spans:
            return
        span = view.spans[-1]
        if span.record.flags & SegmentFlag.COMPACTED or view.manifest.gaps_of(span.record):
            return
        with suppress(StorageError, CorruptionError, GapError):  # it only makes later loads faster
            self._replace_tail(_Tail(*view.opened(span)))

    def _replace_tail(self, opened: _Tail | None) -> None:
        with once(self._lock), self._lock:
            replaced = [each for each in (self.tail, opened if self._closed else None) if each is not None]
            self.tail = None if self._closed else opened
            for tail in replaced:
                tail.is_replaced = True
            unused = [tail.file for tail in replaced if not tail.users]
            self._check()
        for file in unused:
            file.close()

    @contextmanager
    def _tail_in_use(self) -> Iterator[_Tail | None]:
        with once(self._lock), self._lock:
            tail = self.tail
            if tail is not None:
                tail.users += 1
        try:
            yield tail
        except StorageError:
            # A file that was removed while its storage was away stays unreadable: the next try opens the log again.
            self._replace_tail(None)
            raise
        finally:
            if tail is not None:
                with once(self._lock), self._lock:
                    tail.users -= 1
                    unused = tail.is_replaced and not tail.users
                if unused:
                    tail.file.close()


class Workers:
    """A few threads that do jobs in order of their coming; each starts when it is first needed."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._threads: list[LogThread] = []

    def do(self, job: Callable[[], object]) -> None:
        """Have a thread do this. Called by one thread, which bounds how many jobs there are at a time.

        RuntimeError if the system has no thread left, and none runs yet.
        """
        if len(self._threads) < self._most:
            thread = LogThread(target=self._work, name=self._name, daemon=True)
            try:
                thread.start()
                self._threads.append(thread)  # only now: `stop` cannot wait for one that never began
            except RuntimeError:  # those that there are do it
                if not self._threads:
                    raise
        self._jobs.put(job)

    def stop(self) -> None:
        """End the threads once their jobs are done, and wait for that; a read that hangs is waited for a while."""
        for _ in self._threads:
            self._jobs.put(None)
        until = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
