"""Trimming: the low watermark moves in the manifest first, then the files below it go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from walkit._internal.arguments import check_number
from walkit._internal.locks import marked, once
from walkit._internal.report import report_html
from walkit._internal.text import counted
from walkit._main_thread import run_uninterrupted
from walkit.errors import LogClosedError, StorageError, WalkitError
from walkit.events import EventSink
from walkit.format.file_names import TRIM_NEW_NAME
from walkit.format.layout import IN_BULKS, SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, SegmentState, sealed_record
from walkit.format.segment import SegmentHeader
from walkit.log.claims import ClaimTable
from walkit.log.live_log import Lifetime, LogMarks
from walkit.segments.frame_walk import FrameWalk
from walkit.segments.history import check_identity, open_segment
from walkit.segments.index_file import files_of, index_segment
from walkit.segments.maintenance_worker import MaintenanceWorker
from walkit.segments.manifest_store import Manifests, gaps_where
from walkit.segments.orphan_files import Orphans
from walkit.segments.rewrite import NewSegment, SegmentReplacer, copy_segment, unlike
from walkit.storage.interface import BACK_PRESSURE, Storage, StorageFile


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewritten:
    """The outcome for the segment that straddles the low watermark. Bytes are those of files."""

    waste: float = 0.0
    """Share of the bytes of its frames that were wholly below the low watermark; 0 if none straddles it."""
    bytes_before: int = 0
    bytes_after: int = 0
    """Equal to `bytes_before` if the segment was not copied."""
    bytes_written: int = 0
    failure: str | None = None
    """The reason that it was not copied although enough of it is waste; the next trim tries again."""


@dataclass(frozen=True, slots=True)
class _Border:
    """The start of the frames that stay, and totals of the frames before it."""

    position: int
    next_lsn: int
    chain: int
    frames: int
    records: int


def straddling(manifest: Manifest) -> SegmentRecord | None:
    """Return the segment that is partly below the low watermark, if a trim may rewrite it."""
    sealed, low = manifest.sealed, manifest.low_watermark
    excluded = SegmentFlag.COMPACTED | IN_BULKS
    if len(sealed) < 2 or sealed[0].first_lsn > low or sealed[0].flags & excluded:
        return None
    return sealed[0]


WASTE_RATIO_DEFAULT = 0.5
_STAYED = Rewritten()


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result of one trim: whole segments dropped."""

    low_watermark: int
    segments: tuple[SegmentRecord, ...]
    limit: str = ""
    """As in `TrimPreview`."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the files that were dropped."""
        return sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in self.segments)


@dataclass(frozen=True, slots=True)
class TrimPreview:
    """The effect of a trim now, by the manifest; nothing was changed."""

    low_watermark: int
    """LSNs up to here would be dropped."""
    segments: tuple[SegmentRecord, ...]
    """Segments that would be dropped whole."""
    straddling: SegmentRecord | None
    """The segment with the new low watermark: copied if enough of it is waste, else it stays."""
    limit: str
    """The cause of a low watermark below the request: a key of `LIMITS`, or "claim NAME"."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the files that would be dropped."""
        return sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in self.segments)


LIMITS = {
    "": "nothing",
    "durable": "the durable end of the log",
    "state": "the newest snapshot: a checkpoint moves it",
    "room": "the disk, which is full: a trim that drops a whole segment still works",
}
"""The texts of a trim's limits; any other limit is "claim NAME"."""


class TrimReport(int):
    """One trim's result: a number, the low watermark, with the totals dropped. Bytes are of segment files."""

    segments: int
    """Segments that were dropped whole."""
    bytes_dropped: int
    """Bytes of their files."""
    rewritten: Rewritten
    """The outcome for the segment that straddles the low watermark."""
    duration_s: float
    limit: str
    """The cause of a low watermark below the request: a key of `LIMITS`, or "claim NAME"."""

    def __new__(
        cls,
        low_watermark: int,
        segments: int = 0,
        bytes_dropped: int = 0,
        rewritten: Rewritten = _STAYED,
        duration_s: float = 0.0,
        limit: str = "",
    ) -> Self:
        """Make the report of a trim that left the low watermark there."""
        self = super().__new__(cls, low_watermark)
        self.segments, self.bytes_dropped = segments, bytes_dropped
        self.rewritten, self.duration_s, self.limit = rewritten, duration_s, limit
        return self

    @property
    def low_watermark(self) -> int:
        """LSNs up to here are dropped, by this trim or an earlier one."""
        return int(self)

    @property
    def bytes_saved(self) -> int:
        """Bytes by which the log is smaller: of dropped segments, and of the rewritten one."""
        return self.bytes_dropped + self.rewritten.bytes_before - self.rewritten.bytes_after

    def _repr_html_(self) -> str:
        done = self.rewritten
        straddling = "none, or it may not be rewritten"
        if done.bytes_before:
            became = (
                f"{done.bytes_before:,} to {counted(done.bytes_after, 'byte')}"
                if done.bytes_written
                else "stayed"
            )
            straddling = f"{done.waste:.0%} waste; {done.failure or became}"
        return report_html(
            f"Trim up to LSN {int(self):,}",
            [
                ("low watermark", f"{int(self):,}"),
                ("limited by", LIMITS.get(self.limit, self.limit)),
                ("segments dropped", f"{self.segments:,}"),
                ("bytes of their files", f"{self.bytes_dropped:,}"),
                ("segment that straddles it", straddling),
                ("bytes saved", f"{self.bytes_saved:,}"),
                ("bytes written", f"{done.bytes_written:,}"),
                ("time", f"{self.duration_s * 1000:.1f} ms"),
            ],
        )


class Trimmer:
    """Moves the low watermark of an open log and drops the records below it. Safe from any thread.

    One oldest segment is rewritten at a time. Closing the log interrupts a rewrite between two blocks and waits for its
    end: later changes would hit another writer's files.
    """

    def __init__(
        self,
        storage: Storage,
        manifest_store: Manifests,
        marks: LogMarks,
        maintenance: MaintenanceWorker,
        claims: ClaimTable,
        orphan_files: Orphans,
        lifetime: Lifetime,
        events: EventSink,
    ) -> None:
        # Guards `state_lsn`. Taken before the claims' lock, that of the orphan files and the manifest's; its rank is
        # STATE.
        self.state_lock = threading.Lock()
        """Held while a state of this log is saved: one at a time."""
        # Written by the thread that has `state_lock`, once a snapshot is durable; read by trims without it: an older
        # value only keeps more.
        self.state_lsn: int | None = None
        """LSN of the newest durable snapshot of a state made from this log; None if none is kept."""
        self.on_dropped: Callable[..., object] = lambda **how: None
        """Called after records or snapshots are dropped, and does not wait: `PayloadFloor.free` of a log with links."""
        self._manifest_store = manifest_store
        self._marks = marks
        self._maintenance = maintenance
        self.claims = claims
        """Shut while the low watermark moves."""
        self._storage = storage
        self._orphan_files = orphan_files
        self._events = events
        # Held through one rewriting, with `_known`; before the locks of the orphan files and of the manifest. A closing
        # takes it to wait for the rewriting under way.
        self._rewrite_lock = threading.RLock()
        self._ended = False
        self._replacer = SegmentReplacer(storage, manifest_store, orphan_files, TRIM_NEW_NAME)
        self._known: tuple[SegmentRecord, _Border] | None = None
        """The segment that was read last, and its border, so that many small trims read each header once."""
        lifetime.on_close(self._end)

    def bound_lsn(self, checkpoint_lsn: int) -> int:
        """Return the LSN up to which records may be dropped: later ones are not durable, or not in a snapshot.

        `checkpoint_lsn` is that of the newest checkpoint.
        """
        bound = self._marks.durable_lsn
        if checkpoint_lsn or self.state_lsn is not None:
            bound = min(bound, max(checkpoint_lsn, self.state_lsn or 0))
        return bound

    def move_watermark(self, up_to_lsn: int, checkpoint_lsn: int = 0) -> Trimmed:
        """Drop records at or below `up_to_lsn` from the manifest; the files go when the orphan files are removed.

        It stays below each claim, and passes neither the durable end nor, with a state, the newest snapshot.
        `checkpoint_lsn` is the LSN of a snapshot that is durable from now on. Needs the claims shut, and the orphan
        files' lock and the events held.
        """
        assert self.claims.are_shut, "claims are open"
        dropped: list[SegmentRecord] = []
        limit = ""

        def change(manifest: Manifest) -> Manifest:
            nonlocal limit
            checkpoint = max(checkpoint_lsn, manifest.checkpoint_lsn)
            limit, bound = self._limit(manifest, up_to_lsn, checkpoint)
            low = max(bound, manifest.low_watermark)
            # Also the segments sealed since the last trim.
            dropped[:] = [s for s in manifest.sealed if s.last_lsn <= low]
            same = (low, checkpoint) == (manifest.low_watermark, manifest.checkpoint_lsn)
            if same and not dropped:
                return manifest
            left = tuple(s for s in manifest.segments if s not in dropped)
            begins = [s.start_position for s in left if s.state is SegmentState.SEALED][:1]
            begin = begins[0] if begins else manifest.end.position
            return manifest.next(
                segments=left,
                # A gap in a remaining segment is needed to reach the frames after it.
                **gaps_where(manifest, lambda gap: gap.end_position > begin),
                low_watermark=low,
                checkpoint_lsn=checkpoint,
                exact_from_lsn=max(manifest.exact_from_lsn, low + 1) if low else manifest.exact_from_lsn,
            )

        def move() -> Manifest:
            self.claims.save_below(min(up_to_lsn, self._marks.durable_lsn))
            return self._manifest_store.update(change)

        try:
            manifest = self.claims.in_turn(move)
        except StorageError as error:
            if dropped or checkpoint_lsn or error.errno not in BACK_PRESSURE:
                raise
            return Trimmed(self._manifest_store.current.low_watermark, (), "room")
        self._orphan_files.add(files_of(dropped))
        return Trimmed(manifest.low_watermark, tuple(dropped), limit)

    def _limit(self, manifest: Manifest, up_to_lsn: int, checkpoint_lsn: int) -> tuple[str, int]:
        """Return the limit of a trim, as in `TrimPreview.limit`, and the LSN up to which records may be dropped."""
        limits = {"": up_to_lsn, "durable": self._marks.durable_lsn}
        limits["state"] = self.bound_lsn(checkpoint_lsn)
        limits |= {f"claim {c.name}": c.needed_lsn - 1 for c in self.claims.live(manifest)}
        return min(limits.items(), key=lambda item: item[1])

    def preview(self, up_to_lsn: int) -> TrimPreview:
        """Return the effect of `trim(up_to_lsn)` by the manifest as it is now. Changes nothing."""
        manifest = self._manifest_store.current
        limit, bound = self._limit(manifest, up_to_lsn, manifest.checkpoint_lsn)
        low = max(bound, manifest.low_watermark)
        within = (s for s in manifest.sealed if s.first_lsn <= low < s.last_lsn)
        return TrimPreview(
            low, tuple(s for s in manifest.sealed if s.last_lsn <= low), next(within, None), limit
        )

    def trim(self, up_to_lsn: int, waste_ratio: float = WASTE_RATIO_DEFAULT) -> TrimReport:
        """Move the low watermark, remove the segments wholly below it, rewrite the one that straddles it.

        See `move_watermark` and `_rewrite_straddling`.
        """
        check_number(waste_ratio, "waste_ratio", 0, 1)
        return run_uninterrupted(lambda: self._trim(up_to_lsn, waste_ratio), "trim", events=self._events)

    def _trim(self, up_to_lsn: int, waste_ratio: float) -> TrimReport:
        began = time.perf_counter()
        self._maintenance.drain()  # segments that the maintenance thread is about to seal can be dropped, too
        with (
            self._events.held(),
            self.claims.shut() as shut,
            once(self._orphan_files.lock),
            self._orphan_files.lock,
        ):
            trimmed = self.move_watermark(up_to_lsn)
            shut.reopen()
            self._orphan_files.remove()
        self.emit_trim(trimmed)
        rewritten = self._rewrite_straddling(waste_ratio)
        self.on_dropped()
        return TrimReport(
            trimmed.low_watermark,
            len(trimmed.segments),
            trimmed.size_bytes,
            rewritten,
            time.perf_counter() - began,
            trimmed.limit,
        )

    def emit_trim(self, trimmed: Trimmed) -> None:
        """Send the event of a trim, if a segment was dropped."""
        if trimmed.segments:
            self._events.emit(
                "walkit.segment.trim",
                segments=len(trimmed.segments),
                bytes=trimmed.size_bytes,
                low_watermark=trimmed.low_watermark,
            )

    # -- the segment that straddles the low watermark

    def _end(self) -> None:
        self._ended = True

    def wait_ended(self) -> None:
        """Wait for the rewriting under way, once the log closes."""
        with marked(), self._rewrite_lock:
            pass

    def _rewrite_straddling(self, waste_ratio: float) -> Rewritten:
        """Copy the rest of the oldest sealed segment, if at least `waste_ratio` of its frames' bytes are waste.

        The newest sealed segment stays, and compacted ones are left to compaction. A failure sends an event and is in
        the result; the segment is unchanged, and the trim counts.
        """
        with self._events.held(), once(self._rewrite_lock), self._rewrite_lock:
            record = straddling(self._manifest_store.current)
            if record is None or waste_ratio == 1 or self._ended:
                return Rewritten()
            size = SEGMENT_HEADER_BYTES + record.size_bytes
            self._manifest_store.renew()
            if self._manifest_store.is_scarce:
                reason = "the disk is full: the rest of the manifest's space is kept for trims"
                return Rewritten(bytes_before=size, bytes_after=size, failure=reason)
            try:
                return self._rewrite(record, waste_ratio, size)
            except WalkitError as error:
                if record not in self._manifest_store.current.segments:
                    return Rewritten()  # another trim has dropped it, or a compaction rewritten it
                self._events.emit("walkit.maintenance.fail", job="rewrite", error=str(error))
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
        # Claims need no lock here: the copy lacks only records below the low watermark. That was durable before the
        # copy was made, and no claim is taken below it.
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
        """Return the end of the last frame wholly at or below the low watermark; a gap after it stays."""
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
