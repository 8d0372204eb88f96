"""Trimming: the low watermark moves in the manifest first, then the files below it go."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from walkit._arguments import check_number
from walkit._locks import once
from walkit._main_thread import run_uninterrupted
from walkit._text import counted
from walkit.errors import StorageError
from walkit.events import EventSink
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord, SegmentState
from walkit.log.claims import ClaimTable
from walkit.log.marks import LogMarks
from walkit.log.trim_rewrite import Rewritten, TrimRewriter
from walkit.read.view import LogView
from walkit.record import Record
from walkit.recovery.report import report_html
from walkit.segments.index_file import files_of
from walkit.segments.maintenance_worker import MaintenanceWorker
from walkit.segments.manifest_store import ManifestStore, gaps_where
from walkit.segments.orphan_files import OrphanFiles
from walkit.storage.io_errors import BACK_PRESSURE

WASTE_RATIO_DEFAULT = 0.5
_STAYED = Rewritten()


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What one trim dropped: whole segments."""

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
    """What a trim would do now, by the manifest; nothing was changed."""

    low_watermark: int
    """LSNs up to here would be dropped."""
    segments: tuple[SegmentRecord, ...]
    """Segments that would be dropped whole."""
    straddling: SegmentRecord | None
    """The segment in which the low watermark would stand: copied where enough of it is waste, else it stays."""
    limit: str
    """What keeps the low watermark from what was asked for, see `LIMITS`: "" or "claim NAME"."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the files that would be dropped."""
        return sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in self.segments)


LIMITS = {
    "": "nothing",
    "durable": "what is durable",
    "state": "the newest snapshot: a checkpoint moves it",
    "room": "the disk, which is full: a trim that drops a whole segment still works",
}
"""What limits a trim, in words; the others are the name of a claim."""


class TrimReport(int):
    """What one trim did. It is a number, the low watermark, and says what went. Bytes are those of segment files."""

    segments: int
    """Segments that were dropped whole."""
    bytes_dropped: int
    """Bytes of their files."""
    rewritten: Rewritten
    """What became of the segment that straddles the low watermark."""
    duration_s: float
    limit: str
    """What kept the low watermark from what was asked for, see `LIMITS`: "" or "claim NAME"."""

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
        """Bytes by which the log is smaller: of segments that went, and of the one that was rewritten."""
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
    """Moves the low watermark of an open log and drops what is below it. Safe from any thread."""

    def __init__(
        self,
        manifest_store: ManifestStore,
        marks: LogMarks,
        maintenance: MaintenanceWorker,
        claims: ClaimTable,
        orphan_files: OrphanFiles,
        rewriter: TrimRewriter,
        events: EventSink,
    ) -> None:
        self.rewriter = rewriter
        self.state_lock = threading.Lock()
        """Held while a state that is made of this log is saved: one at a time."""
        self.state_lsn: int | None = None
        """LSN of the newest durable snapshot of a state that is made of this log; None where none is kept."""
        self._manifest_store = manifest_store
        self._marks = marks
        self._maintenance = maintenance
        self.claims = claims
        """To be shut while the low watermark moves."""
        self._orphan_files = orphan_files
        self._events = events

    def bound_lsn(self, checkpoint_lsn: int) -> int:
        """Return the LSN above which nothing may go: what is not durable, or is in no snapshot of a state kept.

        `checkpoint_lsn` is that of the newest checkpoint.
        """
        bound = self._marks.durable_lsn
        if checkpoint_lsn or self.state_lsn is not None:
            bound = min(bound, max(checkpoint_lsn, self.state_lsn or 0))
        return bound

    def move_watermark(self, up_to_lsn: int, checkpoint_lsn: int = 0) -> Trimmed:
        """Drop records at or below `up_to_lsn` from the manifest; the files go when the orphan files are removed.

        Never past a claim, never what is not durable, and where there is a state, never past its newest
        snapshot: what would then be needed to tell the state would be gone. `checkpoint_lsn` says that a durable
        snapshot stands there from now on. Needs the claims shut, the lock of the orphan files held, and events.
        """
        assert self.claims.are_shut, "a claim could come now"
        self.claims.save_below(min(up_to_lsn, self._marks.durable_lsn))
        dropped: list[SegmentRecord] = []
        limit = ""

        def change(manifest: Manifest) -> Manifest:
            nonlocal limit
            checkpoint = max(checkpoint_lsn, manifest.checkpoint_lsn)
            limit, bound = self._limit(manifest, up_to_lsn, checkpoint)
            low = max(bound, manifest.low_watermark)
            # Also what was sealed since the last trim.
            dropped[:] = [s for s in manifest.sealed if s.last_lsn <= low]
            same = (low, checkpoint) == (manifest.low_watermark, manifest.checkpoint_lsn)
            if same and not dropped:
                return manifest
            left = tuple(s for s in manifest.segments if s not in dropped)
            begins = [s.start_position for s in left if s.state is SegmentState.SEALED][:1]
            begin = begins[0] if begins else manifest.end.position
            return manifest.next(
                segments=left,
                # One within a segment that stays is needed to walk to the frames after it.
                **gaps_where(manifest, lambda gap: gap.end_position > begin),
                low_watermark=low,
                checkpoint_lsn=checkpoint,
                exact_from_lsn=max(manifest.exact_from_lsn, low + 1) if low else manifest.exact_from_lsn,
            )

        try:
            manifest = self._manifest_store.update(change)
        except StorageError as error:
            if dropped or checkpoint_lsn or error.errno not in BACK_PRESSURE:
                raise
            return Trimmed(self._manifest_store.current.low_watermark, (), "room")
        self._orphan_files.add(files_of(dropped))
        return Trimmed(manifest.low_watermark, tuple(dropped), limit)

    def _limit(self, manifest: Manifest, up_to_lsn: int, checkpoint_lsn: int) -> tuple[str, int]:
        """Return what limits a trim, as `TrimPreview.limit` says it, and the LSN up to which records may be dropped."""
        limits = {"": up_to_lsn, "durable": self._marks.durable_lsn}
        limits["state"] = self.bound_lsn(checkpoint_lsn)
        limits |= {f"claim {c.name}": c.needed_lsn - 1 for c in self.claims.live(manifest)}
        return min(limits.items(), key=lambda item: item[1])

    def preview(self, up_to_lsn: int) -> TrimPreview:
        """Return what `trim(up_to_lsn)` would do by the manifest as it is now. Changes nothing."""
        manifest = self._manifest_store.current
        limit, bound = self._limit(manifest, up_to_lsn, manifest.checkpoint_lsn)
        low = max(bound, manifest.low_watermark)
        within = (s for s in manifest.sealed if s.first_lsn <= low < s.last_lsn)
        return TrimPreview(
            low, tuple(s for s in manifest.sealed if s.last_lsn <= low), next(within, None), limit
        )

    def trim(self, up_to_lsn: int, waste_ratio: float = WASTE_RATIO_DEFAULT) -> TrimReport:
        """Move the low watermark, remove the segments wholly below it, rewrite the one that straddles it.

        See `move_watermark` and `TrimRewriter.rewrite`.
        """
        check_number(waste_ratio, "waste_ratio", 0, 1)
        return run_uninterrupted(lambda: self._trim(up_to_lsn, waste_ratio), "trim", events=self._events)

    def _trim(self, up_to_lsn: int, waste_ratio: float) -> TrimReport:
        began = time.perf_counter()
        self._maintenance.drain()  # what the maintenance thread is about to seal can be dropped, too
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
        rewritten = self.rewriter.rewrite(waste_ratio)
        return TrimReport(
            trimmed.low_watermark,
            len(trimmed.segments),
            trimmed.size_bytes,
            rewritten,
            time.perf_counter() - began,
            trimmed.limit,
        )

    def emit_trim(self, trimmed: Trimmed) -> None:
        """Send the event of a trim, where any segment went."""
        if trimmed.segments:
            self._events.emit(
                "walkit.segment.trim",
                segments=len(trimmed.segments),
                bytes=trimmed.size_bytes,
                low_watermark=trimmed.low_watermark,
            )

    def drain(self, view: LogView, last_lsn: int) -> Iterator[Record]:
        """Yield the records of a view up to `last_lsn`; when the last has been taken, trim up to there."""
        yield from view.records(view.first_lsn, last_lsn)
        self.trim(last_lsn)
