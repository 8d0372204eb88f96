"""Where a publisher's frames come from: a log that is open here, or one that another process may be writing.

Only durable frames are given out. Of an open log that is what its commit path knows to be on stable storage; of a
stored one what its durable cell and its manifest say, whether a writer lives or not: what a killed writer left in the
page cache is nobody's to replicate before an opening has made it durable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn, Protocol

from walkit.errors import CorruptionError, GapError, OptionsError
from walkit.format.frame import FrameFault, FrameHeader, FrameIdentity
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import EpochRecord, LogEnd, Manifest
from walkit.format.segment import SegmentHeader
from walkit.log.holds import live_holds
from walkit.log.logreader import LogReader, live_view, view_of
from walkit.log.manifest_store import load_manifest
from walkit.log.observe import Observation
from walkit.log.opening import Place, storage_at
from walkit.log.openview import view_of_open
from walkit.log.reader import LogView, Span
from walkit.log.run import FrameLimits, FrameRun
from walkit.log.scan import read_mark
from walkit.log.wal import WriteAheadLog
from walkit.log.walk import FrameWalk, last_chain_of
from walkit.replication.judge import Standing
from walkit.replication.messages import Hello
from walkit.storage.base import Storage, StorageFile
from walkit.store import Store

HOLD_PREFIX = "replica "
MANIFEST_S = 0.2
"""An opening can make more durable without moving the cell, so the manifest is read again after this time."""


def hold_name(replica: str) -> str:
    """Return the name of the hold that a log has for a replica."""
    return HOLD_PREFIX + replica


class Source(Protocol):
    """What a publisher reads from. Safe from any thread."""

    def durable(self) -> tuple[int, int]:
        """Return (LSN, position) up to which the log is on stable storage."""

    def view(self) -> LogView:
        """Return the durable frames of this moment."""

    def widest_view(self) -> tuple[LogView, int]:
        """Return all that can be seen, durable or not yet, and its last LSN: to compare histories, not to be sent."""

    def manifest(self) -> Manifest:
        """Return the manifest of this moment."""

    def held(self) -> frozenset[str]:
        """Return the names of the replicas that have a hold now, connected or not."""

    def watch(self, news: Callable[[], object]) -> Callable[[], object]:
        """Call `news` when there may be more durable frames, where that is known; returns what ends it."""

    @property
    def log(self) -> WriteAheadLog | None:
        """The open log, which can hold records back from trimming; None where another process writes."""


class OpenSource:
    """A log that is open for writing in this process."""

    def __init__(self, log: WriteAheadLog) -> None:
        if log.options.durability == "none":
            raise OptionsError(
                "the log's durability is 'none': what it acknowledges may be lost and numbered again, so a replica "
                "could be ahead of its primary. Replication needs 'sync' or 'interval'",
                option="durability",
                stored="none",
            )
        self.log: WriteAheadLog | None = log
        self._engine = log._engine

    def durable(self) -> tuple[int, int]:
        """See Source."""
        core = self._engine.core
        position = core.durable_position
        return core.durable_lsn, position

    def view(self) -> LogView:
        """See Source."""
        engine = self._engine
        return view_of_open(engine.storage, engine.store, engine.segments, engine.core.durable_position)

    def widest_view(self) -> tuple[LogView, int]:
        """See Source."""
        newest = self._engine.core.acked_lsn
        return self._engine.view(), newest

    def manifest(self) -> Manifest:
        """See Source."""
        return self._engine.store.current

    def held(self) -> frozenset[str]:
        """See Source."""
        holds = live_holds(self._engine, self._engine.store.current, tell=False)
        return frozenset(h.name.removeprefix(HOLD_PREFIX) for h in holds if h.name.startswith(HOLD_PREFIX))

    def watch(self, news: Callable[[], object]) -> Callable[[], object]:
        """See Source."""
        return Observation(self._engine, lambda _: news(), news=True).close


class StoredSource:
    """A log in its place, read without its lock."""

    log: WriteAheadLog | None = None

    def __init__(self, storage: Storage) -> None:
        load_manifest(storage)
        self._storage = storage
        self._lock = threading.Lock()
        self._turn = -1
        self._manifest_until = 0.0
        self._durable = (0, 0)

    def durable(self) -> tuple[int, int]:
        """See Source. Reads the durable cell; the manifest only when the cell has moved, or now and then."""
        mark = read_mark(self._storage)
        with self._lock:
            now = time.monotonic()
            if mark.turn == self._turn and now < self._manifest_until:
                return self._durable
            self._manifest_until = now + MANIFEST_S
            manifest = load_manifest(self._storage)
            lsn, position = manifest.end.last_lsn, manifest.end.position
            if mark.epoch_id in {e.id for e in manifest.lineage} and mark.position > position:
                lsn, position = mark.lsn, mark.position
            self._turn = mark.turn
            self._durable = max(self._durable, (lsn, position), key=lambda end: end[1])
            return self._durable

    def view(self) -> LogView:
        """See Source."""
        return live_view(self._storage)

    def widest_view(self) -> tuple[LogView, int]:
        """See Source."""
        return view_of(self._storage)

    def manifest(self) -> Manifest:
        """See Source."""
        return load_manifest(self._storage)

    def held(self) -> frozenset[str]:
        """See Source. What is not open here has no holds of this process."""
        return frozenset()

    def watch(self, news: Callable[[], object]) -> Callable[[], object]:
        """See Source. Another process's news are not told: whoever serves it polls."""
        return lambda: None


def source_of(what: WriteAheadLog | Store | LogReader | Place) -> Source:
    """Return the source that a log, a Store, a LogReader, a path, a URL or a storage means."""
    if isinstance(what, Store):
        what = what.log
    if isinstance(what, WriteAheadLog):
        return OpenSource(what)
    if isinstance(what, LogReader):
        return StoredSource(what._storage)
    return StoredSource(storage_at(what))


def standing_of(source: Source, hello: Hello) -> Standing:
    """Return what the source has, as far as it matters to this hello."""
    lsn, position = source.durable()
    # The histories are compared first: what is trimmed or compacted meanwhile is gone from what can be sent, too, and
    # then the answer is a gap.
    wide, visible_lsn = source.widest_view()
    try:
        there, gone = end_at(wide, hello.end), False
    except GapError:
        there, gone = None, True
    served = sendable(source.view())
    manifest = source.manifest()
    low = served[0] if served else None
    return Standing(
        log_id=manifest.log_id,
        created_us=manifest.created_us,
        ack_order=manifest.ack_order,
        lineage=manifest.lineage,
        durable_lsn=lsn,
        durable_position=position,
        oldest_lsn=max(lsn + 1 if low is None else low.record.first_lsn, manifest.low_watermark + 1),
        oldest_position=position if low is None else low.record.start_position,
        there=there,
        gone=gone,
        visible_lsn=max(visible_lsn, lsn),
    )


def sendable(view: LogView) -> tuple[Span, ...]:
    """Return the spans that can be sent verbatim: those behind the last compacted one, whose frames are others."""
    spans = view.spans
    for index in range(len(spans), 0, -1):
        if spans[index - 1].record.flags & SegmentFlag.COMPACTED:
            return spans[index:]
    return spans


def end_at(view: LogView, end: LogEnd) -> LogEnd | None:
    """Return what ends at the position of `end` in this view; None where no frame ends there.

    GapError where the frames that stood there are gone, so that nothing can be said: they were trimmed, or compacted,
    and the frames of a compacted segment end wherever they happen to. CorruptionError where a frame before is damaged.
    """
    if not end.position:
        return LogEnd()
    there = view.manifest.end
    if there.position == end.position:
        return there
    for span in view.spans:
        record = span.record
        if record.end_position == end.position:
            return LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
        if end.position <= span.end_position:
            if record.flags & SegmentFlag.COMPACTED:
                raise GapError(end.last_lsn + 1, view.complete_from_lsn)
            return _end_within(view, span, end)
    if end.position < there.position:
        raise GapError(end.last_lsn + 1, view.complete_from_lsn)
    return None


def _end_within(view: LogView, span: Span, end: LogEnd) -> LogEnd | None:
    """Return what ends at the position of `end`, which is at most that of the span's end; see `end_at`."""
    file, segment = view.opened(span)
    try:
        if end.position in (segment.previous_end, segment.start_position):
            return LogEnd(last_lsn=segment.first_lsn - 1, position=end.position, chain=segment.chain)
        if end.position < segment.start_position:
            if span is view.spans[0] and end.position < segment.previous_end:
                raise GapError(end.last_lsn + 1, view.complete_from_lsn)
            return None
        walk = FrameWalk(
            file,
            segment,
            position=segment.start_position,
            end_position=min(end.position, span.end_position),
            next_lsn=segment.first_lsn,
            chain=segment.chain,
            body=False,
            gaps=view.manifest.gaps_of(span.record),
        )
        for _ in walk:
            pass
    finally:
        file.close()
    if walk.fault is None:
        return LogEnd(last_lsn=(walk.next_lsn or 1) - 1, position=walk.position, chain=walk.chain or 0)
    if walk.fault is not FrameFault.SHORT:
        _refuse(walk, segment)
    return None


def _refuse(walk: FrameWalk, segment: SegmentHeader) -> NoReturn:
    """Raise what a walk ended with before it came to the end of what is durable."""
    if walk.error is not None:
        raise walk.error
    fault = walk.fault
    assert fault is not None
    raise CorruptionError(
        f"segment {segment.name} of the source is damaged at position {walk.position:,}: {fault.value}",
        segment=segment.name,
        position=walk.position,
        found=fault.name,
        first_lost_lsn=walk.next_lsn,
    )


class FrameReader:
    """Reads the durable frames of a source in runs, each behind the one before. Used by one thread."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._file: StorageFile | None = None
        self._segment: SegmentHeader | None = None
        self._number = 0
        self._lineage: tuple[EpochRecord, ...] = ()
        self._walk: FrameWalk | None = None
        self._frames: list[tuple[FrameHeader, memoryview]] = []
        self._iterator: Iterator[tuple[FrameHeader, memoryview]] = iter(())

    def read(self, after: LogEnd, limit_bytes: int) -> FrameRun | None:
        """Return whole frames that follow `after`: up to `limit_bytes`, or one that is larger; None if there is none.

        GapError where they have been trimmed, or where a hole or a loss begins at `after`, over which nothing is sent;
        CorruptionError where one of them is not intact.
        """
        if not self._goes_on(after) and not self._begin(after):
            return None
        walk, segment = self._walk, self._segment
        assert walk is not None and segment is not None
        headers: list[FrameHeader] = []
        parts: list[memoryview] = []
        size = 0
        while True:
            if self._frames:
                header, frame = self._frames.pop()
            else:
                try:
                    header, frame = next(self._iterator)
                except StopIteration:
                    break
            if headers and size + header.footprint > limit_bytes:
                self._frames.append((header, frame))
                break
            headers.append(header)
            parts.append(frame)
            size += header.footprint
        if not headers:
            if walk.fault is not None:
                _refuse(walk, segment)
            return None
        return FrameRun(
            identity=FrameIdentity(segment.log_id, segment.epoch, segment.epoch_id),
            limits=FrameLimits(segment.alignment, segment.frame_bytes_max),
            after=after,
            start_position=headers[0].position,
            headers=tuple(headers),
            data=b"".join(parts),
        )

    def lineage(self) -> tuple[EpochRecord, ...]:
        """Return the source's epochs, at least up to the one of the frames that were read last."""
        segment = self._segment
        if segment is None or segment.epoch_id not in {e.id for e in self._lineage}:
            self._lineage = self.source.manifest().lineage
        return self._lineage

    def _goes_on(self, after: LogEnd) -> bool:
        """Say whether the walk under way stands at `after`, with frames left."""
        walk = self._walk
        if walk is None or walk.fault is not None:
            return False
        at = self._frames[-1][0].position if self._frames else walk.position
        chain = self._frames[-1][0].chain if self._frames else walk.chain
        return at == after.position and chain == after.chain and at < walk.end_position

    def _begin(self, after: LogEnd) -> bool:
        """Begin a walk behind `after`; False where the source has nothing durable there yet."""
        self._walk = None
        self._frames.clear()
        _, position = self.source.durable()
        if position <= after.position:
            return False
        view = self.source.view()
        spans = sendable(view)
        span = next((s for s in spans if s.end_position > after.position), None)
        if span is None:
            if after.last_lsn < view.manifest.low_watermark:
                raise GapError(after.last_lsn + 1, view.manifest.low_watermark + 1)
            return False
        record = span.record
        if record.number != self._number or self._file is None:
            self.close()
            self._file, self._segment = view.opened(span)
            self._number = record.number
        segment = self._segment
        assert segment is not None
        start = max(after.position, segment.start_position)
        if start > after.position and segment.previous_end != after.position:
            raise GapError(after.last_lsn + 1, record.first_lsn)
        gaps = [g for g in view.manifest.gaps_of(record) if g.start_position >= start]
        if gaps and gaps[0].start_position == start:
            raise GapError(gaps[0].first_lsn, gaps[0].last_lsn + 1)
        end_position = min([span.end_position, position, *(g.start_position for g in gaps)])
        self._walk = FrameWalk(
            self._file,
            segment,
            position=start,
            end_position=end_position,
            next_lsn=after.last_lsn + 1,
            chain=after.chain,
            last_chain=last_chain_of(record, segment, end_position),
        )
        self._iterator = iter(self._walk)
        return True

    def close(self) -> None:
        """Let go of the segment that is open."""
        if self._file is not None:
            self._file.close()
        self._file = self._segment = self._walk = None
        self._number = 0
