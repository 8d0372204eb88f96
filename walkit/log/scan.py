"""Scanning: what stands in the files of a log, said as facts. Never changes a byte, never judges.

The scan looks at sealed segments as the manifest vouches for them (presence, size, header; every frame with `deep`),
and at every frame of the unsealed ones. Behind the first frame that does not belong it probes each alignment boundary
for intact frames of the same log: what they promise decides whether the damage is corruption or a torn tail
(pebble's sync offset is the source of the idea).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from walkit.errors import CorruptionError, FormatVersionError, SegmentMissingError, StorageError
from walkit.format.durable import NOTHING_DURABLE, DurableMark, decode_cell
from walkit.format.frame import FrameFault, FrameHeader, check_body, check_header
from walkit.format.layout import (
    DURABLE_CELL_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    SegmentFlag,
)
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.log.leftover import leftover_of
from walkit.log.manifest_store import DURABLE_NAME
from walkit.log.walk import FrameWalk, last_chain_of
from walkit.storage.base import Storage, StorageFile

Progress = Callable[[int, int], None]
"""Called with (bytes scanned, bytes to scan)."""

PROBE_BYTES = 4 << 20
MARK_TRIES = 8


@dataclass(kw_only=True, slots=True)
class SegmentFinding:
    """Facts about one segment file."""

    record: SegmentRecord
    file_bytes: int = 0
    header: SegmentHeader | None = None
    header_error: CorruptionError | None = None
    end_position: int = 0
    """Where the intact frames that follow from the log before end."""
    last_lsn: int = 0
    chain: int = 0
    frames: int = 0
    records: int = 0
    bytes_scanned: int = 0
    fault: FrameFault | None = None
    at_fault: FrameHeader | None = None
    follows: bool = True
    """Whether its first frame follows the segment before."""
    nonzero_until: int = 0
    """File offset behind the last nonzero byte."""
    promised_position: int = 0
    """The furthest promise of any intact frame in the file, those behind the damage included."""
    frames_behind: int = 0
    """Intact frames of this log behind the damage."""

    @property
    def name(self) -> str:
        """The segment's file name."""
        return self.record.name

    @property
    def end_offset(self) -> int:
        """File offset where the intact frames end."""
        return 0 if self.header is None else self.header.offset_of(self.end_position)


@dataclass(kw_only=True, slots=True)
class LogFindings:
    """Facts about a whole log."""

    manifest: Manifest
    mark: DurableMark
    sealed: list[SegmentFinding] = field(default_factory=list)
    unsealed: list[SegmentFinding] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    """Segment files that the manifest does not name."""

    @property
    def promised_position(self) -> int:
        """How far the log has been promised to be on stable storage, by anything that can be trusted."""
        known = {e.id for e in self.manifest.lineage}
        marked = self.mark.position if self.mark.epoch_id in known else 0
        return max([self.manifest.end.position, marked, *(f.promised_position for f in self.unsealed)])


def read_mark(storage: Storage) -> DurableMark:
    """Return what the durable cell says; NOTHING_DURABLE where it is missing."""
    cell = storage.cell(DURABLE_NAME, DURABLE_CELL_BYTES, writable=False)
    if cell is None:
        return NOTHING_DURABLE
    try:
        # A reader that two stores overtake may find both slots half written; it looks again.
        for _ in range(MARK_TRIES):
            data = cell.read()
            mark = decode_cell(data)
            if mark.turn or not any(data):
                break
        return mark
    finally:
        cell.close()


def scan_log(
    storage: Storage,
    manifest: Manifest,
    mark: DurableMark,
    *,
    deep: bool = False,
    progress: Progress | None = None,
) -> LogFindings:
    """Return the facts. Raises SegmentMissingError and CorruptionError only for what the manifest vouches for."""
    findings = LogFindings(manifest=manifest, mark=mark)
    named = {s.name for s in manifest.segments}
    findings.strays = [n for n in storage.names() if n.endswith(".segment") and n not in named]
    _refuse_an_older_manifest(storage, findings)
    total = sum(s.size_bytes for s in manifest.sealed) if deep else 0
    done = 0
    for record in manifest.sealed:
        finding = _look_at_sealed(storage, manifest, record, deep)
        findings.sealed.append(finding)
        done += finding.bytes_scanned
        if progress is not None:
            progress(done, total)
    end = manifest.end
    for record in manifest.unsealed:
        finding = _look_at_unsealed(storage, manifest, record, end)
        findings.unsealed.append(finding)
        if finding.header is not None and finding.follows:
            end = LogEnd(last_lsn=finding.last_lsn, position=finding.end_position, chain=finding.chain)
        done += finding.bytes_scanned
        if progress is not None:
            progress(done, max(total, done))
    return findings


def _refuse_an_older_manifest(storage: Storage, findings: LogFindings) -> None:
    """Refuse a manifest that was put back from an earlier time: what came after it would be forgotten silently.

    The manifest names a segment before its header is written, and an epoch before the durable cell speaks of it; so a
    used segment with a number that the manifest has not given yet, or a cell of an unknown epoch, is newer than it.
    """
    manifest, mark = findings.manifest, findings.mark
    if mark.turn and mark.epoch_id not in {e.id for e in manifest.lineage}:
        raise _older_manifest(DURABLE_NAME, f"epoch {mark.epoch}, durable up to position {mark.position:,}")
    for name in findings.strays:
        file = storage.open(name, "read")
        try:
            header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), name)
        except CorruptionError:
            continue
        finally:
            file.close()
        if header is None or header.log_id != manifest.log_id:
            continue
        if header.number >= manifest.next_segment and leftover_of(header, manifest) is None:
            raise _older_manifest(name, f"segment {header.number} from LSN {header.first_lsn:,} on")


def _older_manifest(name: str, newer: str) -> CorruptionError:
    return CorruptionError(
        f"the manifest is older than {name} ({newer}), which it does not know: it was put back from an earlier time. "
        "Nothing was changed; put the newest manifest back",
        segment=name,
        expected="a manifest that knows it",
        found=newer,
    )


def open_segment(storage: Storage, record: SegmentRecord) -> StorageFile:
    """Open a segment that the manifest names; SegmentMissingError where it is not there."""
    try:
        return storage.open(record.name, "read")
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        raise SegmentMissingError(
            f"segment {record.name} is missing from {storage.location}: it is named in the manifest",
            segment=record.name,
            position=record.start_position,
            expected="a file",
            found=None,
            first_lost_lsn=record.first_lsn or None,
        ) from error


def _look_at_sealed(
    storage: Storage, manifest: Manifest, record: SegmentRecord, deep: bool
) -> SegmentFinding:
    file = open_segment(storage, record)
    try:
        size = file.size()
        if size < SEGMENT_HEADER_BYTES + record.size_bytes:
            raise SegmentMissingError(
                f"segment {record.name} is shorter than the manifest says: "
                f"{size:,} bytes instead of {SEGMENT_HEADER_BYTES + record.size_bytes:,}",
                segment=record.name,
                position=record.start_position + max(size - SEGMENT_HEADER_BYTES, 0),
                expected=SEGMENT_HEADER_BYTES + record.size_bytes,
                found=size,
                first_lost_lsn=record.first_lsn,
            )
        try:
            header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
        except CorruptionError as error:
            error.position, error.first_lost_lsn = record.start_position, record.first_lsn
            raise
        check_identity(manifest, record, header)
        assert header is not None
        finding = SegmentFinding(record=record, file_bytes=size, header=header)
        finding.end_position, finding.last_lsn, finding.chain = (
            record.end_position,
            record.last_lsn,
            record.end_chain,
        )
        if size > finding.end_offset:
            finding.nonzero_until = nonzero_until(file, finding.end_offset, size)
        if deep:
            _verify_sealed(file, finding)
        return finding
    finally:
        file.close()


def check_identity(manifest: Manifest, record: SegmentRecord, header: SegmentHeader | None) -> None:
    """Refuse a segment that is not the one the manifest means: of another log, an earlier copy, or empty."""
    wanted: tuple[object, ...] = (manifest.log_id, record.epoch, record.start_position, record.first_lsn)
    if record.state is not SegmentState.SEALED:
        wanted = (manifest.log_id, record.epoch)
    found: tuple[object, ...] | None = None
    if header is not None:
        found = (header.log_id, header.epoch, header.start_position, header.first_lsn)[: len(wanted)]
        epoch = manifest.epoch_of(record.epoch)
        if found == wanted and epoch is not None and epoch.id == header.epoch_id:
            return
    raise CorruptionError(
        f"segment {record.name} is not the one that the manifest names "
        f"(log, epoch, start position, first LSN): expected {wanted}, found {found}",
        segment=record.name,
        position=record.start_position,
        expected=wanted,
        found=found,
        first_lost_lsn=record.first_lsn or None,
    )


def _verify_sealed(file: StorageFile, finding: SegmentFinding) -> None:
    assert finding.header is not None
    record = finding.record
    walk = FrameWalk(
        file,
        finding.header,
        position=record.start_position,
        end_position=record.end_position,
        next_lsn=record.first_lsn,
        chain=record.start_chain,
        last_chain=last_chain_of(record, finding.header, record.end_position),
    )
    for _ in walk:
        pass
    finding.frames, finding.records = walk.frames, walk.records
    finding.bytes_scanned = walk.position - record.start_position
    if walk.fault is None and walk.end_chain != record.end_chain:
        walk.fault = FrameFault.CHAIN
    if walk.fault is not None:
        finding.fault, finding.at_fault = walk.fault, walk.at_fault
        finding.end_position, finding.last_lsn = walk.position, (walk.next_lsn or 1) - 1


def _look_at_unsealed(
    storage: Storage, manifest: Manifest, record: SegmentRecord, end: LogEnd
) -> SegmentFinding:
    finding = SegmentFinding(record=record, end_position=end.position, last_lsn=end.last_lsn, chain=end.chain)
    try:
        file = storage.open(record.name, "read")
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return finding
    try:
        finding.file_bytes = size = file.size()
        finding.nonzero_until = nonzero_until(file, 0, size)
        if size < SEGMENT_HEADER_BYTES:
            return finding
        try:
            finding.header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
            if finding.header is not None:
                check_identity(manifest, record, finding.header)
        except CorruptionError as error:
            finding.header, finding.header_error = None, error
            return finding
        if finding.header is not None:
            _walk_unsealed(file, finding, end)
        return finding
    finally:
        file.close()


def _walk_unsealed(file: StorageFile, finding: SegmentFinding, end: LogEnd) -> None:
    header = finding.header
    assert header is not None
    follows = (header.previous_end, header.first_lsn, header.chain) == (
        end.position,
        end.last_lsn + 1,
        end.chain,
    )
    finding.follows = follows
    limit = header.start_position + finding.file_bytes - SEGMENT_HEADER_BYTES
    limit -= limit % header.alignment
    walk = FrameWalk(
        file,
        header,
        position=header.start_position,
        end_position=limit,
        next_lsn=header.first_lsn,
        chain=header.chain,
    )
    for _ in walk:
        pass
    finding.end_position, finding.last_lsn = walk.position, (walk.next_lsn or 1) - 1
    finding.chain = walk.chain or 0
    finding.frames, finding.records = walk.frames, walk.records
    finding.bytes_scanned = walk.position - header.start_position
    # What an imported frame promises is about the primary's disk (FORMAT.md F-3.6).
    if not header.flags & SegmentFlag.IMPORTED:
        finding.promised_position = walk.promised_position
    finding.fault, finding.at_fault = walk.fault, walk.at_fault
    if finding.nonzero_until > finding.end_offset:
        _probe(file, finding)


def _probe(file: StorageFile, finding: SegmentFinding) -> None:
    """Look at every alignment boundary behind the damage for intact frames of this segment, and note their promises."""
    header = finding.header
    assert header is not None
    offset = finding.end_offset
    while offset < finding.nonzero_until:
        block = file.read(offset, min(PROBE_BYTES, finding.nonzero_until - offset) + FRAME_HEADER_BYTES)
        # The block reaches one header further than the step, so that no frame is looked at twice or not at all.
        whole = min(len(block) - len(block) % header.alignment, PROBE_BYTES)
        words = np.frombuffer(block, "<u4", whole // 4)[:: header.alignment // 4]
        for index in np.flatnonzero(words == FRAME_MAGIC):
            at = int(index) * header.alignment
            found = _frame_at(block, at, header)
            stands_here = found is not None and header.offset_of(found.position) == offset + at
            if found is not None and stands_here and _is_whole(file, offset + at, found):
                finding.frames_behind += 1
                if not header.flags & SegmentFlag.IMPORTED:
                    finding.promised_position = max(finding.promised_position, found.durable_position)
        offset += PROBE_BYTES


def _frame_at(block: bytes, at: int, segment: SegmentHeader) -> FrameHeader | None:
    """Return the header of a frame of this segment that stands at `at`, or None.

    What looks like a frame of a newer format is a value that holds one: no frame is newer than its segment.
    """
    try:
        found, fault = check_header(block, at, segment.alignment, segment.frame_bytes_max)
    except FormatVersionError:
        return None
    if found is None or fault is not None:
        return None
    ours = (found.log_id, found.epoch, found.epoch_id) == (segment.log_id, segment.epoch, segment.epoch_id)
    return found if ours else None


def _is_whole(file: StorageFile, offset: int, header: FrameHeader) -> bool:
    return check_body(header, memoryview(file.read(offset, header.footprint))) is None


def nonzero_until(file: StorageFile, start: int, size: int) -> int:
    """Return the file offset behind the last nonzero byte at or after `start`; `start` where there is none."""
    end = size
    while end > start:
        begin = max(start, end - PROBE_BYTES)
        block = np.frombuffer(file.read(begin, end - begin), "u1")
        nonzero = np.flatnonzero(block)
        if len(nonzero):
            return begin + int(nonzero[-1]) + 1
        end = begin
    return start
