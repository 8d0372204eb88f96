"""The frames that a publisher sends: runs of whole frames after a position, read from a source and checked."""

from __future__ import annotations

from collections.abc import Iterator

from walkit.errors import GapError
from walkit.format.frame import FrameHeader, FrameIdentity
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.format.segment import SegmentHeader
from walkit.replication.logs.source import Source, refuse_walk, verbatim_spans
from walkit.replication.protocol.frame_run import FrameLimits, FrameRun
from walkit.segments.frame_walk import FrameWalk, last_chain_of
from walkit.storage.interface import StorageFile


class FrameReader:
    """Reads the durable frames of a source in runs, each after the one before. Used by one thread."""

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
        """Return whole frames that follow `after`: up to `limit_bytes`, or one larger frame; None if nothing follows.

        GapError if they have been trimmed, or if a hole or a loss begins at `after`, over which nothing is sent;
        CorruptionError if one of them is not intact.
        """
        if not self._continues_at(after) and not self._seek(after):
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
                refuse_walk(walk, segment)
            return None
        if walk.position >= walk.end_position and not self._frames:
            self._walk, self._iterator = None, iter(())  # its memory, which is that of a large frame
        return FrameRun(
            identity=FrameIdentity(segment.log_id, segment.epoch, segment.epoch_id),
            limits=FrameLimits(segment.alignment, segment.frame_bytes_max),
            after=after,
            start_position=headers[0].position,
            headers=tuple(headers),
            data=_joined(parts),
        )

    def lineage(self) -> tuple[EpochRecord, ...]:
        """Return the source's epochs, at least up to the one of the frames that were read last."""
        segment = self._segment
        if segment is None or segment.epoch_id not in {e.id for e in self._lineage}:
            self._lineage = self.source.manifest().lineage
        return self._lineage

    def _continues_at(self, after: LogEnd) -> bool:
        """Return whether the walk under way is at `after`, with frames left."""
        walk = self._walk
        if walk is None or walk.fault is not None:
            return False
        at = self._frames[-1][0].position if self._frames else walk.position
        chain = self._frames[-1][0].chain if self._frames else walk.chain
        return at == after.position and chain == after.chain and at < walk.end_position

    def _seek(self, after: LogEnd) -> bool:
        """Begin a walk after `after`; False if the source has nothing durable there yet."""
        self._walk = None
        self._frames.clear()
        _, position = self.source.durable()
        if position <= after.position:
            return False
        view = self.source.view()
        spans = verbatim_spans(view)
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
        """Close the open segment."""
        if self._file is not None:
            self._file.close()
        self._file = self._segment = self._walk = None
        self._number = 0


def _joined(parts: list[memoryview]) -> bytes:
    """Return the bytes of all parts; of one that is a whole buffer, as a large frame is, that one without a copy."""
    whole = parts[0].obj
    if len(parts) == 1 and isinstance(whole, bytes) and len(whole) == len(parts[0]):
        return whole
    return b"".join(parts)
