"""Reading records back: from spans of segments to frames, Arrow batches and records. Every frame is verified."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from walkit._internal.arguments import refuse
from walkit._internal.arrow import pa
from walkit.errors import CorruptionError, GapError, SegmentMissingError, WalkitError
from walkit.format.batch_builder import BatchBuilder
from walkit.format.frame import FrameFault, FrameHeader, decode_frame
from walkit.format.index import SegmentIndex
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.record import Batch, Record
from walkit.segments.frame_walk import HOP_BYTES, READ_BYTES, FrameWalk, RowSeen, last_chain_of, walk_segment
from walkit.segments.history import check_identity, open_segment
from walkit.segments.index_file import frame_at, read_index
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import ReadableFiles, Storage, StorageFile

BATCH_RECORDS = 64 * 1024
BATCH_BYTES = 16 << 20


class View(ABC):
    """The readable part of a log at one moment, wherever the log is. Immutable; later appends are not in it."""

    __slots__ = ()
    manifest: Manifest
    storage: ReadableFiles
    """Where the log is, and the snapshots beside it."""

    @property
    @abstractmethod
    def first_lsn(self) -> int:
        """The oldest LSN in the view; one more than the last if it is empty."""

    @property
    def complete_from_lsn(self) -> int:
        """From here on every record is there."""
        return max(self.first_lsn, self.manifest.complete_from_lsn)

    @abstractmethod
    def frames(
        self, first_lsn: int, last_lsn: int | None = None, *, body: bool = True
    ) -> Iterator[tuple[FrameHeader, memoryview, str]]:
        """Yield (header, frame bytes, file name) of every frame that holds an LSN from `first_lsn` to `last_lsn`.

        CorruptionError or SegmentMissingError if a frame within the view is not intact.
        """

    @abstractmethod
    def parts(self) -> tuple[Span, ...]:
        """Return the segments of the view, in position order."""

    @abstractmethod
    def segment_header(self, record: SegmentRecord) -> SegmentHeader:
        """Return the header of a segment of the view."""

    @abstractmethod
    def lsn_at(self, position: int) -> int:
        """Return the last LSN of the frames that end at or below a position; 0 if the view has none of them."""

    def batches(
        self,
        first_lsn: int,
        last_lsn: int | None = None,
        *,
        records: int = BATCH_RECORDS,
        whole_bytes: int = BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of RECORD_SCHEMA in LSN order, of about `records` records or `whole_bytes` bytes each."""
        frames = ((header, frame) for header, frame, _ in self.frames(first_lsn, last_lsn))
        return frames_to_batches(frames, first_lsn, last_lsn, records=records, whole_bytes=whole_bytes)

    def records(self, first_lsn: int, last_lsn: int | None = None) -> Iterator[Record]:
        """Yield records in LSN order; those of kind link with their links."""
        for batch in self.record_batches(first_lsn, last_lsn):
            yield from Batch.from_arrow(batch)

    def record_batches(self, first_lsn: int, last_lsn: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield batches of a size for records as objects."""
        return self.batches(first_lsn, last_lsn, records=4096)


class PayloadSource(NamedTuple):
    """An open payload log, for reading."""

    location: str
    now: Callable[[], tuple[View, int]]
    """Returns what can be read at this moment, and its last LSN."""
    close: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a segment that may be read: frames from its start up to `end_position`."""

    record: SegmentRecord
    end_position: int
    last_lsn: int | None
    """Last LSN in it; None if only its frames say."""


@dataclass(frozen=True, slots=True)
class LogView(View):
    """The `View` of a log in segments: spans in position order."""

    storage: Storage
    manifest: Manifest
    spans: tuple[Span, ...]

    @property
    def first_lsn(self) -> int:
        """See View."""
        oldest = self.spans[0].record.first_lsn if self.spans else self.manifest.end.last_lsn + 1
        return max(oldest, self.manifest.low_watermark + 1)

    def frames(
        self, first_lsn: int, last_lsn: int | None = None, *, body: bool = True
    ) -> Iterator[tuple[FrameHeader, memoryview, str]]:
        """See View."""
        for span in self.spans:
            if span.last_lsn is not None and span.last_lsn < first_lsn:
                continue
            if last_lsn is not None and span.record.first_lsn > last_lsn:
                return
            # One that is dropped open closes its file where a Ctrl-C could not be raised.
            with closing(self.span_frames(span, first_lsn, last_lsn, body=body)) as frames:
                for found in frames:
                    if found is None:
                        continue
                    header, frame = found
                    if last_lsn is not None and header.first_lsn > last_lsn:
                        return
                    if header.records and header.last_lsn >= first_lsn:
                        yield header, frame, span.record.name
                    if last_lsn is not None and header.last_lsn >= last_lsn:
                        return

    def span_frames(
        self,
        span: Span,
        first_lsn: int,
        last_lsn: int | None,
        *,
        body: bool = True,
        row_seen: RowSeen | None = None,
    ) -> Generator[tuple[FrameHeader, memoryview] | None, None, None]:
        """Yield the frames of one span from about `first_lsn` on; with `row_seen` as the steps of a `FrameWalk`."""
        file, segment = self.opened(span, first_lsn)
        with closing(file):
            if first_lsn < segment.first_lsn > span.record.first_lsn:
                raise self._gap(max(first_lsn, span.record.first_lsn), load_manifest(self.storage))
            gaps = self.manifest.gaps_of(span.record)
            start, lsn, chain = segment.start_position, segment.first_lsn, segment.chain
            walk_from = partial(
                FrameWalk,
                file,
                segment,
                end_position=span.end_position,
                last_chain=last_chain_of(span.record, segment, span.end_position),
                gaps=gaps,
            )
            read_bytes = None
            if first_lsn > lsn:
                index = read_index(self.storage, self.manifest.log_id, span.record)
                if index is not None:
                    start, lsn, chain = _nearest(file, segment, index, first_lsn) or (start, lsn, chain)
                    after = None if last_lsn is None else index.position_after(last_lsn)
                    read_bytes = None if after is None else min(max(after - start, HOP_BYTES), READ_BYTES)
                hop = walk_from(position=start, next_lsn=lsn, chain=chain, body=False)
                for header, _ in hop:
                    if header.last_lsn >= first_lsn and header.records:
                        start, lsn, chain = header.position, header.first_lsn, header.chain
                        break
                else:
                    self.refuse(hop, span)
                    return
            walk = walk_from(
                position=start,
                next_lsn=lsn,
                chain=chain,
                body=body,
                read_bytes=read_bytes if body else None,
                row_seen=row_seen,
            )
            yield from walk.steps()
            self.refuse(walk, span)

    def opened(self, span: Span, wanted_lsn: int = 0) -> tuple[StorageFile, SegmentHeader]:
        """Open a segment of the view, and read its header. The caller closes the file.

        If a trim has replaced it since the view by a copy of its end, that is opened: the same frames at the same
        positions, from a later one on. GapError if it was trimmed altogether, or compacted; it names the segment's
        first LSN, or `wanted_lsn` if that is after it.
        """
        record = span.record
        while True:
            try:
                file = open_segment(self.storage, record)
                break
            except SegmentMissingError:
                manifest = load_manifest(self.storage)
                if any(s.number == record.number for s in manifest.segments):
                    raise
                copy = manifest.uncompacted_at(span.end_position)
                if copy is None or copy.epoch != record.epoch:
                    raise self._gap(max(wanted_lsn, span.record.first_lsn), manifest) from None
                record = copy
        try:
            segment = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
            self.check(record, segment)
            assert segment is not None
        except BaseException:
            file.close()
            raise
        return file, segment

    def parts(self) -> tuple[Span, ...]:
        """See View."""
        return self.spans

    def segment_header(self, record: SegmentRecord) -> SegmentHeader:
        """See View. Refuses a segment that is not the one that the manifest means."""
        file, header = self.opened(Span(record, record.end_position, record.last_lsn))
        file.close()
        return header

    @staticmethod
    def _gap(wanted: int, manifest: Manifest) -> GapError:
        return GapError(wanted, max(manifest.complete_from_lsn, manifest.first_lsn))

    def lsn_at(self, position: int) -> int:
        """See View. Reads the frame headers of the segment that the position is in.

        CorruptionError if one before is damaged.
        """
        found = 0
        for span in self.spans:
            record = span.record
            if record.start_position >= position:
                break
            if span.end_position <= position and span.last_lsn is not None:
                found = span.last_lsn
                continue
            file, segment = self.opened(span)
            with closing(file):
                end, gaps = min(position, span.end_position), self.manifest.gaps_of(record)
                walk = walk_segment(file, segment, record, end, gaps=gaps, body=False)
                for _ in walk:
                    pass
            if walk.fault is not FrameFault.SHORT:  # a frame that ends after the position is not below it
                self.refuse(walk, span)
            found = (walk.next_lsn or 1) - 1
        return found

    def check(self, record: SegmentRecord, segment: SegmentHeader | None) -> None:
        """Refuse a segment file that is not the one the manifest means."""
        check_identity(self.manifest, record, segment)

    def refuse(self, walk: FrameWalk, span: Span) -> None:
        """Raise a walk's error, if it did not reach the end of its span."""
        if walk.fault is None:
            return
        if walk.fault is FrameFault.UNREADABLE and walk.error is not None:
            raise walk.error
        raise CorruptionError(
            f"segment {span.record.name} is damaged at position {walk.position:,}: {walk.fault.value}; "
            f"its frames are vouched for up to position {span.end_position:,}",
            segment=span.record.name,
            position=walk.position,
            expected=f"an intact frame with LSN {walk.next_lsn}",
            found=walk.fault.name,
            first_lost_lsn=walk.next_lsn,
        )


def segments_of(view: View, needs: str) -> LogView:
    """Return a view that is one of segments; OptionsError if the log has none, where `needs` says who reads them."""
    if not isinstance(view, LogView):
        refuse("log", view.storage.location, f"a log in segments: {needs}")
    return view


def _nearest(
    file: StorageFile, segment: SegmentHeader, index: SegmentIndex, first_lsn: int
) -> tuple[int, int, int] | None:
    """Return (position, LSN, chain) of a noted frame at or before an LSN; None if the index is wrong about it."""
    entry = index.before(first_lsn)
    header = None if entry is None else frame_at(file, segment, entry)
    return None if header is None else (header.position, header.first_lsn, header.chain)


def frames_to_batches(
    frames: Iterator[tuple[FrameHeader, memoryview]],
    first_lsn: int,
    last_lsn: int | None,
    *,
    records: int = BATCH_RECORDS,
    whole_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Decode verified frames into batches of RECORD_SCHEMA, cut to the LSN bounds (inclusive).

    Each has about `records` records or `whole_bytes` bytes, and always fewer than twice `records`: a larger frame comes
    in several. Records before a damage are yielded before the damage is raised.
    """
    builder = BatchBuilder(first_lsn, last_lsn, records=records, whole_bytes=whole_bytes)
    try:
        for header, frame in frames:
            builder.add(header.first_lsn, decode_frame(header, frame), header.body_raw_bytes)
            if builder.full:
                yield from builder.batches()
    except WalkitError:
        yield from builder.batches()
        raise
    yield from builder.batches()
