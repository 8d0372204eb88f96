"""Scanning: what stands in the files of a log, said as facts. Never changes a byte, never judges.

The scan looks at sealed segments as the manifest vouches for them (presence, size, header; every frame with `deep`),
and at every frame of the unsealed ones (`walkit.log.behind`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from time import perf_counter_ns

from walkit.errors import CorruptionError, SegmentMissingError, StorageError
from walkit.format.durable import NOTHING_DURABLE, DurableMark, decode_cell
from walkit.format.frame import FrameFault
from walkit.format.layout import DURABLE_CELL_BYTES, SEGMENT_HEADER_BYTES
from walkit.format.manifest import Gap, LogEnd, Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.log.behind import nonzero_until, promise_without_header, walk_unsealed
from walkit.log.findings import LogFindings, SegmentFinding
from walkit.log.leftover import leftover_of, unfinished_in
from walkit.log.manifest_store import DURABLE_NAME
from walkit.log.sidecar import orphans
from walkit.log.walk import FrameWalk, last_chain_of
from walkit.storage.base import Storage, StorageFile

Progress = Callable[[int, int], None]
"""Called with (bytes scanned, bytes to scan)."""
Reached = Callable[[int], object]
"""Called with the bytes of a segment that were looked at."""

MARK_TRIES = 8


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
    findings = look_around(storage, manifest, mark)
    total = sum(s.size_bytes for s in manifest.sealed) if deep else 0
    done = 0
    for record in manifest.sealed:
        finding = _look_at_sealed(storage, manifest, record, deep, _further(progress, done, total))
        findings.sealed.append(finding)
        done += finding.bytes_scanned
        if progress is not None:
            progress(done, total)
    end = manifest.end
    hole: int | None = None
    for record in manifest.unsealed:
        finding = _look_at_unsealed(storage, manifest, record, end, hole, _further(progress, done, total))
        findings.unsealed.append(finding)
        if finding.header is not None and hole is None:
            if finding.follows:
                end = LogEnd(last_lsn=finding.last_lsn, position=finding.end_position, chain=finding.chain)
            if not finding.follows or finding.nonzero_until > finding.end_offset:
                hole = end.position
        done += finding.bytes_scanned
        if progress is not None:
            progress(done, max(total, done))
    return findings


def _further(progress: Progress | None, done: int, total: int) -> Reached | None:
    """Return what tells the progress within a segment, by its bytes."""
    return None if progress is None else lambda more: progress(done + more, max(total, done + more))


def look_around(
    storage: Storage, manifest: Manifest, mark: DurableMark, *, salvage: bool = False
) -> LogFindings:
    """Return the facts about what stands beside the segments. CorruptionError for a manifest of an earlier time.

    With `salvage` a file beside them that the storage does not read is passed over.
    """
    findings = LogFindings(manifest=manifest, mark=mark)
    named = {s.name for s in manifest.segments}
    names = storage.names()
    findings.strays = [n for n in names if n.endswith(".segment") and n not in named]
    findings.orphans = orphans(names, manifest)
    findings.unfinished = unfinished_in(storage, names)
    _refuse_an_older_manifest(storage, findings, salvage)
    return findings


def _refuse_an_older_manifest(storage: Storage, findings: LogFindings, salvage: bool) -> None:
    """Refuse a manifest that was put back from an earlier time: what came after it would be forgotten silently.

    The manifest names a segment before its header is written, and an epoch before the durable cell speaks of it; so a
    used segment with a number that the manifest has not given yet, or a cell of an unknown epoch, is newer than it.
    """
    manifest, mark = findings.manifest, findings.mark
    if mark.turn and mark.epoch_id not in {e.id for e in manifest.lineage}:
        raise _older_manifest(DURABLE_NAME, f"epoch {mark.epoch}, durable up to position {mark.position:,}")
    for name in findings.strays:
        try:
            header = header_of(storage, name)
        except CorruptionError:
            continue
        except StorageError:
            if not salvage:
                raise
            continue
        if header is None or header.log_id != manifest.log_id:
            continue
        if header.number >= manifest.next_segment and leftover_of(header, manifest) is None:
            raise _older_manifest(name, f"segment {header.number} from LSN {header.first_lsn:,} on")


def header_of(storage: Storage, name: str) -> SegmentHeader | None:
    """Return the header of a segment file; None where it is all zero."""
    file = storage.open(name, "read")
    try:
        return SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), name)
    finally:
        file.close()


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
    storage: Storage,
    manifest: Manifest,
    record: SegmentRecord,
    deep: bool,
    reached: Reached | None,
) -> SegmentFinding:
    file = open_segment(storage, record)
    try:
        size = file.size()
        wanted = SEGMENT_HEADER_BYTES + manifest.frames_end_of(record) - record.start_position
        if size < wanted:
            raise SegmentMissingError(
                f"segment {record.name} is shorter than the manifest says: {size:,} bytes instead of {wanted:,}",
                segment=record.name,
                position=record.start_position + max(size - SEGMENT_HEADER_BYTES, 0),
                expected=wanted,
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
            _verify_sealed(file, finding, manifest.gaps_of(record), reached)
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


def _verify_sealed(
    file: StorageFile,
    finding: SegmentFinding,
    gaps: tuple[Gap, ...],
    reached: Reached | None,
) -> None:
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
        gaps=gaps,
        row_seen=lambda row: None if reached is None else reached(int(row.ends[-1]) - record.start_position),
    )
    began = perf_counter_ns()
    for _ in walk:
        pass
    finding.verify_ns = perf_counter_ns() - began - walk.read_ns
    finding.frames, finding.records = walk.frames, walk.records
    finding.bytes_scanned = walk.position - record.start_position
    if walk.fault is None and walk.end_chain != record.end_chain:
        walk.fault = FrameFault.CHAIN
    if walk.fault is not None:
        finding.fault, finding.at_fault = walk.fault, walk.at_fault
        finding.end_position, finding.last_lsn = walk.position, (walk.next_lsn or 1) - 1


def _look_at_unsealed(
    storage: Storage,
    manifest: Manifest,
    record: SegmentRecord,
    end: LogEnd,
    hole: int | None,
    reached: Reached | None,
) -> SegmentFinding:
    finding = SegmentFinding(record=record, end_position=end.position, last_lsn=end.last_lsn, chain=end.chain)
    try:
        file = storage.open(record.name, "read")
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        finding.present = False
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
        if finding.header is not None:
            walk_unsealed(file, finding, end, hole, reached)
        elif finding.nonzero_until:
            until = finding.nonzero_until
            finding.promised_position = promise_without_header(file, manifest, record, until)
        return finding
    finally:
        file.close()
