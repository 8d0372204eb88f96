"""What the Inspector knows of a log before it reads a frame: state, marks, segments. Never a lock, never a change.

A live log of another process is seen as its readers see it. Of a damaged one it is what can be known, and `problem`
says why a reader refuses it. No panel in here.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from walkit._internal.arguments import refuse
from walkit.errors import CorruptionError, NotALogError, WalkitError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.objects.view import ObjectView
from walkit.read.reader import ReaderView, reader_view_of
from walkit.read.view import LogView
from walkit.recovery.rebuild import manifest_from_headers
from walkit.segments.history import open_segment
from walkit.segments.manifest_store import load_manifest
from walkit.segments.writer_lock import has_writer
from walkit.storage.address import storage_at
from walkit.storage.interface import Storage

SegmentUse = Literal["sealed", "open", "prepared", "unreadable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentLine:
    """One segment, as far as it is known without reading its frames. What is not known is None."""

    record: SegmentRecord
    state: SegmentUse
    start_position: int = 0
    end_position: int = 0
    """Where its frames end; of an open segment without a writer, where its file ends."""
    first_lsn: int | None = None
    last_lsn: int | None = None
    records: int | None = None
    frames: int | None = None
    problem: str = ""

    @property
    def number(self) -> int:
        """The segment's number, which its file is named after."""
        return self.record.number


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A log at one moment. Immutable; memory grows with the number of segments, not of frames."""

    storage: Storage
    manifest: Manifest
    state: Literal["live", "closed", "unclosed"]
    """live: a writer holds the log. closed: everything is sealed. unclosed: its writer ended without close()."""
    first_lsn: int
    """Oldest LSN that can be read; one more than the last where there is none."""
    last_lsn: int | None
    """Newest LSN that a reader sees now; None where it refuses the log."""
    end_position: int | None
    segments: tuple[SegmentLine, ...]
    problem: str | None
    """Why a reader refuses the log, as a sentence."""
    objects: ObjectView | None = None
    """Of a log on object storage: its bulks. Each of its segments is an epoch."""

    @property
    def location(self) -> str:
        """Where the log is."""
        return self.storage.location

    def segment(self, number: int) -> SegmentLine:
        """Return the segment of this number. OptionsError where there is none."""
        found = next((line for line in self.segments if line.number == number), None)
        if found is None:
            refuse("segment", number, "the log has no such segment")
        return found

    def segment_at(self, position: int) -> SegmentLine:
        """Return the segment that holds a position. OptionsError where none does."""
        used = [line for line in self.segments if line.end_position > line.start_position]
        at = bisect_right([line.start_position for line in used], position) - 1
        if at < 0 or position >= used[at].end_position:
            reach = f"they reach from {used[0].start_position:,} to {used[-1].end_position:,}" if used else ""
            refuse("position", position, f"no segment has it{'; ' * bool(reach)}{reach}")
        return used[at]


def folder_outline(path: Path) -> Outline:
    """Return the outline of the log in a folder. Reads the manifest, and of a log without a writer what is not sealed.

    LogNotFoundError, NotALogError, FormatVersionError or StorageError where there is nothing to look at.
    """
    storage = storage_at(path)
    manifest, problem = _manifest_of(storage)
    live = has_writer(storage, manifest if problem is None else None)
    seen: ReaderView[LogView] | None = None
    if problem is None:
        try:
            seen = reader_view_of(storage)
            manifest = load_manifest(storage) if live else manifest
        except WalkitError as error:
            problem = f"A reader refuses this log: {str(error).rstrip('.')}."
    lines = [_sealed(record) for record in manifest.sealed]
    lines += [_unsealed(storage, record, seen, live) for record in manifest.unsealed]
    unsealed = any(line.state == "open" for line in lines)
    return Outline(
        storage=storage,
        manifest=manifest,
        state="live" if live else "unclosed" if unsealed else "closed",
        first_lsn=manifest.first_lsn if seen is None else seen.view.first_lsn,
        last_lsn=None if seen is None else seen.last_lsn,
        end_position=None if seen is None else seen.end_position,
        segments=tuple(lines),
        problem=problem,
    )


def _manifest_of(storage: Storage) -> tuple[Manifest, str | None]:
    """Return the manifest; where it is damaged, one made of the segments' headers, and a sentence that says so."""
    try:
        return load_manifest(storage), None
    except (CorruptionError, NotALogError) as error:
        rebuilt = manifest_from_headers(storage)
        if rebuilt is None:
            raise
        words = "What is shown is made of the segments' headers, as `walkit repair` would make it."
        return rebuilt.manifest, f"The manifest is damaged: {str(error).rstrip('.')}. {words}"


def _sealed(record: SegmentRecord) -> SegmentLine:
    return SegmentLine(
        record=record,
        state="sealed",
        start_position=record.start_position,
        end_position=record.end_position,
        first_lsn=record.first_lsn,
        last_lsn=record.last_lsn,
        records=record.records,
        frames=record.frames,
    )


def _unsealed(
    storage: Storage, record: SegmentRecord, seen: ReaderView[LogView] | None, live: bool
) -> SegmentLine:
    """Return what is known of a segment that may be in use: its header, and as far as it goes the reader's view."""
    try:
        file = open_segment(storage, record)
        try:
            header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
            size = file.size()
        finally:
            file.close()
    except WalkitError as error:
        return SegmentLine(record=record, state="unreadable", problem=str(error))
    if header is None:
        return SegmentLine(record=record, state="prepared")
    span = next((s for s in seen.view.spans if s.record.number == record.number), None) if seen else None
    planned = span.record if span is not None and span.record.state is SegmentState.SEALED else None
    durable = header.start_position if span is None else span.end_position
    return SegmentLine(
        record=record,
        state="open",
        start_position=header.start_position,
        # Beyond the durable position of a living writer bytes change while they are read.
        end_position=durable if live else header.start_position + max(size - SEGMENT_HEADER_BYTES, 0),
        first_lsn=header.first_lsn,
        last_lsn=None if planned is None else planned.last_lsn,
        records=None if planned is None else planned.records,
        frames=None if planned is None else planned.frames,
    )
