"""What is left of the segment that straddles the low watermark, copied into a segment that begins there.

Trimming drops whole segments; of the oldest one that stays, the frames wholly below the low watermark are waste. Above
a waste ratio the others are copied byte for byte: frames, positions, LSNs and chain are those they were, so replicas,
cursors and indexes of what follows notice nothing. Compaction's order of steps is followed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from walkit._locks import marked, once
from walkit.errors import LogClosedError, WalkitError
from walkit.events import EventSink
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, sealed_record
from walkit.format.names import TRIM_NEW_NAME
from walkit.format.segment import SegmentHeader
from walkit.log.lifetime import Lifetime
from walkit.segments.frame_walk import FrameWalk
from walkit.segments.identity import check_identity, open_segment
from walkit.segments.index_file import index_segment
from walkit.segments.manifest_store import ManifestStore
from walkit.segments.orphan_files import OrphanFiles
from walkit.segments.rewrite import NewSegment, SegmentReplacer, copy_segment, unlike
from walkit.storage.interface import Storage, StorageFile


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewritten:
    """What became of the segment that straddles the low watermark. Bytes are those of files."""

    waste: float = 0.0
    """Share of the bytes of its frames that were wholly below the low watermark; 0 where none straddles it."""
    bytes_before: int = 0
    bytes_after: int = 0
    """As before where it stayed as it was."""
    bytes_written: int = 0
    failure: str | None = None
    """Why it stayed as it was though there was waste enough; the next trim tries again."""


@dataclass(frozen=True, slots=True)
class _Border:
    """Where the frames that are left begin, and what is before them."""

    position: int
    next_lsn: int
    chain: int
    frames: int
    records: int


class TrimRewriter:
    """Rewrites the oldest segment of an open log; one rewriting at a time, from any thread.

    Closing the log ends one between two blocks, and waits for it: what it did later would be done to another writer's
    files.
    """

    def __init__(
        self,
        storage: Storage,
        manifest_store: ManifestStore,
        orphan_files: OrphanFiles,
        lifetime: Lifetime,
        events: EventSink,
    ) -> None:
        self._storage = storage
        self._manifest_store = manifest_store
        self._orphan_files = orphan_files
        self._events = events
        self._lock = threading.RLock()
        self._ended = False
        self._replacer = SegmentReplacer(storage, manifest_store, orphan_files, TRIM_NEW_NAME)
        self._known: tuple[SegmentRecord, _Border] | None = None
        """How far the headers of a segment have been looked at, so that many small trims do not begin anew."""
        lifetime.on_close(self._end)

    def _end(self) -> None:
        self._ended = True
        with marked(), self._lock:
            pass

    def rewrite(self, waste_ratio: float) -> Rewritten:
        """Copy what is left of the oldest sealed segment, if at least `waste_ratio` of its frames' bytes are waste.

        The newest sealed segment stays as it was written, and a compacted one is compaction's to rewrite. A failure is
        an event, and in the result: the log is then as it was, and what was trimmed is trimmed.
        """
        with self._events.held(), once(self._lock), self._lock:
            record = straddling(self._manifest_store.current)
            if record is None or waste_ratio == 1 or self._ended:
                return Rewritten()
            size = SEGMENT_HEADER_BYTES + record.size_bytes
            self._manifest_store.renew()
            if self._manifest_store.is_scarce:
                why = "the disk is full: what is left of the manifest's space is kept for trims"
                return Rewritten(bytes_before=size, bytes_after=size, failure=why)
            try:
                return self._rewrite(record, waste_ratio, size)
            except WalkitError as error:
                if record not in self._manifest_store.current.segments:
                    return Rewritten()  # another trim has dropped it, or a compaction rewritten it
                self._events.emit("walkit.upkeep.fail", job="rewrite", error=str(error))
                return Rewritten(bytes_before=size, bytes_after=size, failure=str(error))

    def _rewrite(self, record: SegmentRecord, waste_ratio: float, size: int) -> Rewritten:
        source = open_segment(self._storage, record)
        try:
            header = SegmentHeader.decode(source.read(0, SEGMENT_HEADER_BYTES), record.name)
            check_identity(self._manifest_store.current, record, header)
            assert header is not None
            border = self._border(source, header, record)
            dropped = border.position - record.start_position
            waste = dropped / record.size_bytes
            if not dropped or waste < waste_ratio:
                return Rewritten(waste=waste, bytes_before=size, bytes_after=size)
            self._replacer.clear()
            new_header = replace(
                header,
                number=self._replacer.number(),
                start_position=border.position,
                previous_end=border.position,
                first_lsn=border.next_lsn,
                chain=border.chain,
            )
            end = LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
            new = sealed_record(
                new_header,
                end,
                records=record.records - border.records,
                frames=record.frames - border.frames,
            )
            manifest = self._manifest_store.current
            start, until = header.offset_of(border.position), header.offset_of(manifest.frames_end_of(new))

            def write(file: StorageFile) -> NewSegment:
                copy_segment(source, file, new_header, start, until, self._refuse_ended)
                return NewSegment(new_header, new, manifest.gaps_of(new))

            written = self._replacer.write(write)
        finally:
            source.close()
        assert written is not None
        # Claims need no look, nor their lock: what the copy lacks is below the low watermark, which was durable before
        # the copy was made, and no claim is given below that.
        with once(self._orphan_files.lock), self._orphan_files.lock:
            published = self._replacer.publish([record], written)
            self._orphan_files.remove()
        if not published:
            return Rewritten(waste=waste, bytes_written=SEGMENT_HEADER_BYTES + new.size_bytes)
        index_segment(self._storage, self._manifest_store.current, new)
        after = SEGMENT_HEADER_BYTES + new.size_bytes
        self._events.emit(
            "walkit.segment.rewrite", number=new.number, bytes_before=size, bytes_after=after, waste=waste
        )
        return Rewritten(waste=waste, bytes_before=size, bytes_after=after, bytes_written=after)

    def _border(self, file: StorageFile, header: SegmentHeader, record: SegmentRecord) -> _Border:
        """Return where the last frame wholly at or below the low watermark ends; a gap after it is left where it is."""
        manifest = self._manifest_store.current
        border = _Border(record.start_position, record.first_lsn, record.start_chain, 0, 0)
        if self._known is not None and self._known[0] == record:
            border = self._known[1]
        walk = FrameWalk(
            file,
            header,
            position=border.position,
            end_position=record.end_position,
            next_lsn=border.next_lsn,
            chain=border.chain,
            body=False,
            gaps=manifest.gaps_of(record),
        )
        for frame, _ in walk:
            if frame.last_lsn > manifest.low_watermark:
                self._known = record, border
                return border
            border = _Border(
                frame.end_position,
                frame.last_lsn + 1,
                frame.header_crc,
                border.frames + 1,
                border.records + frame.records,
            )
        raise unlike(file.name, walk, "an intact frame above the low watermark")

    def _refuse_ended(self) -> None:
        if self._ended:
            raise LogClosedError(f"the log at {self._storage.location} is closed")


def straddling(manifest: Manifest) -> SegmentRecord | None:
    """Return the segment that is partly below the low watermark, where a trim may rewrite it."""
    sealed, low = manifest.sealed, manifest.low_watermark
    if len(sealed) < 2 or sealed[0].first_lsn > low or sealed[0].flags & SegmentFlag.COMPACTED:
        return None
    return sealed[0]
