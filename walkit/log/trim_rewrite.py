"""What is left of the segment that straddles the low watermark, copied into a segment that begins there.

Trimming drops whole segments; of the oldest one that stays, the frames wholly below the low watermark are waste. Above
a waste ratio the others are copied byte for byte: frames, positions, LSNs and chain are those they were, so replicas,
cursors and indexes of what follows notice nothing. Compaction's order of steps is followed.
"""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from dataclasses import dataclass, replace

from walkit._arguments import refuse
from walkit._locks import marked, once
from walkit.errors import LogClosedError, StorageError, WalkitError
from walkit.events import EventSink
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, sealed_record
from walkit.format.names import TRIM_NEW_NAME
from walkit.format.segment import SegmentHeader, segment_name
from walkit.log.lifetime import Lifetime
from walkit.log.orphan_files import OrphanFiles
from walkit.read.readback import read_back, unlike
from walkit.segments.frame_walk import FrameWalk
from walkit.segments.identity import check_identity, open_segment
from walkit.segments.index_file import files_of, index_segment
from walkit.segments.manifest_edits import gaps_where
from walkit.segments.manifest_store import ManifestStore
from walkit.storage.interface import Storage, StorageFile, remove_if_there

COPY_BYTES = 1 << 20


def check_waste_ratio(waste_ratio: float) -> None:
    """OptionsError for a waste ratio that cannot be."""
    if type(waste_ratio) not in (int, float) or not 0 <= waste_ratio <= 1:
        refuse("waste_ratio", waste_ratio, "a share from 0 to 1")


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
        self._needless: list[str] = []
        """Copies whose publishing failed: the manifest on stable storage may name them until the next is written."""
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
            self._remove_failed()
            new_header = replace(
                header,
                number=free_number(self._storage, self._manifest_store),
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
            self._copy(source, header, new_header, new)
        finally:
            source.close()
        if not self._publish(record, new):
            return Rewritten(waste=waste, bytes_written=SEGMENT_HEADER_BYTES + new.size_bytes)
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

    def _remove_failed(self) -> None:
        """Remove what a rewriting that failed has left."""
        remove_if_there(self._storage, TRIM_NEW_NAME)
        self._orphan_files.give_up(self._needless)
        with once(self._orphan_files.lock), self._orphan_files.lock:
            self._orphan_files.remove()

    def _copy(
        self, source: StorageFile, header: SegmentHeader, new_header: SegmentHeader, new: SegmentRecord
    ) -> None:
        """Write the copy under its temporary name, synced and read back; nothing is left of one that fails."""
        manifest = self._manifest_store.current
        offset, end = header.offset_of(new.start_position), header.offset_of(manifest.frames_end_of(new))
        file = self._storage.open(TRIM_NEW_NAME, "create")
        whole = False
        try:
            file.write(0, [new_header.encode()])
            for at in range(offset, end, COPY_BYTES):
                if self._ended:
                    raise LogClosedError(f"the log at {self._storage.location} is closed")
                block = source.read(at, min(COPY_BYTES, end - at))
                file.write(at - offset + SEGMENT_HEADER_BYTES, [block])
            file.sync()
            read_back(file, new_header, new, manifest.gaps_of(new))
            whole = True
        finally:
            file.close()
            if not whole:
                with suppress(StorageError):
                    self._storage.remove(TRIM_NEW_NAME)

    def _publish(self, record: SegmentRecord, new: SegmentRecord) -> bool:
        """Put the copy in the segment's place; False where that is gone by now.

        The manifest knows the number before the file has its name: a segment that it does not know would say that the
        manifest is older than the log. Holds and claims need no look, nor the claims' lock: what the copy lacks is
        below the low watermark, which was durable before the copy was made, and neither is given below that.
        """
        published = False

        def change(manifest: Manifest) -> Manifest:
            nonlocal published
            published = record in manifest.segments
            if not published:
                return manifest
            return manifest.next(
                segments=tuple(new if s == record else s for s in manifest.segments),
                **gaps_where(manifest, lambda gap: gap.end_position > new.start_position),
            )

        self._manifest_store.update(lambda m: m.next(next_segment=max(m.next_segment, new.number + 1)))
        with once(self._orphan_files.lock), self._orphan_files.lock:
            self._needless.append(new.name)
            self._storage.replace(TRIM_NEW_NAME, new.name)
            self._storage.sync_directory()
            self._manifest_store.update(change)
            self._needless.remove(new.name)
            self._orphan_files.add(files_of([record if published else new]))
            self._orphan_files.remove()
        if published:
            index_segment(self._storage, self._manifest_store.current, new)
        return published


def straddling(manifest: Manifest) -> SegmentRecord | None:
    """Return the segment that is partly below the low watermark, where a trim may rewrite it."""
    sealed, low = manifest.sealed, manifest.low_watermark
    if len(sealed) < 2 or sealed[0].first_lsn > low or sealed[0].flags & SegmentFlag.COMPACTED:
        return None
    return sealed[0]


def free_number(storage: Storage, manifest_store: ManifestStore) -> int:
    """Return the number of a new segment; one whose file name is taken is passed over."""
    while True:
        number = manifest_store.take_number()
        try:
            storage.open(segment_name(number), "read").close()
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return number
            raise
