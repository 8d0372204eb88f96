"""Examining sealed segments: everything between the start and the end that the manifest names is promised."""

from __future__ import annotations

from walkit.config import ALIGNMENT_BUFFERED, FRAME_BYTES_MAX_MAX
from walkit.errors import CorruptionError, FormatVersionError, SegmentMissingError, StorageError
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import Gap, HoleRecord, LogEnd, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.recovery.examine.report import Verdict
from walkit.recovery.examine.scan_context import FrameSpan, Ledger, whole_header
from walkit.recovery.scan import check_identity, open_segment
from walkit.segments.frame_walk import last_chain_of
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import StorageFile

_HOLE = "frames that were in flight never came to the disk, and later ones did; none of them was acknowledged"


def examine_sealed(ledger: Ledger, record: SegmentRecord) -> None:
    """Examine one sealed segment. Of a live log, one that was trimmed meanwhile is left out."""
    tell_gaps(ledger, record.name, record.start_position)
    begun = len(ledger.ranges)
    size = 0
    try:
        file = open_segment(ledger.storage, record)
    except SegmentMissingError as error:
        if ledger.live and _was_trimmed(ledger, record):
            ledger.notes.append(f"segment {record.name} was trimmed while the log was read")
            return
        ledger.lose(record, Verdict.MISSING, error)
    except StorageError as error:
        ledger.lose(record, Verdict.UNKNOWN, error)
    else:
        try:
            size = file.size()
            _examine_file(ledger, file, record, size)
        except StorageError as error:
            ledger.lose(record, Verdict.UNKNOWN, error)
        finally:
            file.close()
    ledger.add_segment(record, "sealed", ledger.ranges[begun:], file_bytes=size)


def tell_gaps(ledger: Ledger, name: str, until: int) -> None:
    """Note the holes and lost ranges between the sealed segments before position `until`, behind those told already."""
    manifest = ledger.manifest
    if not manifest.gaps:
        return
    begin = max((s.end_position for s in manifest.sealed if s.end_position <= until), default=0)
    for gap in manifest.gaps:
        if begin <= gap.start_position < until:
            tell_gap(ledger, name, gap)


def tell_gap(ledger: Ledger, name: str, gap: Gap) -> None:
    """Note a hole or a lost range that the manifest records."""
    lsns = gap.first_lsn, gap.last_lsn
    if isinstance(gap, HoleRecord):
        ledger.add(name, gap.start_position, gap.end_position, Verdict.HOLE, _HOLE, lsns)
        return
    ledger.add(gap.segment or name, gap.start_position, gap.end_position, Verdict.LOST, gap.reason, lsns)
    what = f"LSN {gap.first_lsn:,} to {gap.last_lsn:,}" if gap.lsns else "no record"
    ledger.notes.append(
        f"positions {gap.start_position:,} to {gap.end_position:,} were given up by recovery='salvage', "
        f"and {what} with them: {gap.reason}"
    )


def _was_trimmed(ledger: Ledger, record: SegmentRecord) -> bool:
    return all(s.number != record.number for s in load_manifest(ledger.storage).segments)


def _examine_file(ledger: Ledger, file: StorageFile, record: SegmentRecord, size: int) -> None:
    header = _header_of(ledger, file, record)
    if header is None:
        return
    file_end = header.start_position + size - SEGMENT_HEADER_BYTES
    whole = file_end >= ledger.manifest.frames_end_of(record)
    stop = record.end_position if whole else min(record.end_position, file_end)
    own_chain = last_chain_of(record, header, stop) if header.flags & SegmentFlag.COMPACTED else None
    manifest = ledger.manifest
    span = FrameSpan(
        name=record.name,
        header=header,
        end_position=stop,
        bodies=ledger.bodies,
        last_chain=own_chain,
        gaps=manifest.gaps_of(record),
    )
    end = LogEnd(last_lsn=record.first_lsn - 1, position=record.start_position, chain=header.chain)
    frames = records = 0
    damaged = False
    for stretch in ledger.survey(file, span):
        if stretch.intact:
            ledger.add_stretch(record.name, stretch, Verdict.INTACT)
            frames, records = frames + stretch.frames, records + stretch.records
            last = end.last_lsn if stretch.last_lsn is None else stretch.last_lsn
            end = LogEnd(last_lsn=last, position=stretch.end_position, chain=stretch.chain)
            continue
        if stretch.gap is not None:
            tell_gap(ledger, record.name, stretch.gap)
            end = LogEnd(
                last_lsn=stretch.gap.last_lsn, position=stretch.end_position, chain=stretch.gap.chain
            )
            continue
        damaged = True
        if stretch.end_position < stop or stop == record.end_position:
            ledger.fault(record.name, stretch, record.last_lsn)
            end = LogEnd(last_lsn=stretch.last_lsn or end.last_lsn, position=stretch.end_position)
    if not whole:
        error = _cut_short(record, size, end.position, end.last_lsn + 1)
        ledger.problem(error)
        lost = end.last_lsn + 1, record.last_lsn
        ledger.add(record.name, end.position, record.end_position, Verdict.MISSING, str(error), lost)
        return
    ledger.add_behind(file, header, record.end_position)
    if not damaged:
        _compare(ledger, record, header, end, frames, records)


def _header_of(ledger: Ledger, file: StorageFile, record: SegmentRecord) -> SegmentHeader | None:
    """Return the header to survey with; None where the file is not this segment at all.

    A damaged header is a problem, and the frames behind it can still be told: the manifest knows where they begin.
    """
    block = file.read(0, SEGMENT_HEADER_BYTES)
    if len(block) < SEGMENT_HEADER_BYTES:
        ledger.lose(
            record, Verdict.MISSING, _cut_short(record, len(block), record.start_position, record.first_lsn)
        )
        return None
    try:
        header = SegmentHeader.decode(block, record.name)
        check_identity(ledger.manifest, record, header)
    except FormatVersionError as newer:
        ledger.lose(record, Verdict.UNKNOWN, newer)
        return None
    except CorruptionError as damaged:
        if whole_header(block) is not None:
            ledger.lose(record, Verdict.FOREIGN, damaged)
            return None
        ledger.problem(damaged, segment=record.name, position=record.start_position)
        return _stand_in(ledger, record)
    return header


def _stand_in(ledger: Ledger, record: SegmentRecord) -> SegmentHeader:
    epoch = ledger.manifest.epoch_of(record.epoch)
    return SegmentHeader(
        log_id=ledger.manifest.log_id,
        epoch=record.epoch,
        epoch_id=0 if epoch is None else epoch.id,
        number=record.number,
        start_position=record.start_position,
        previous_end=record.start_position,
        first_lsn=record.first_lsn,
        chain=record.start_chain,
        end_chain=record.end_chain,
        alignment=ALIGNMENT_BUFFERED,
        frame_bytes_max=FRAME_BYTES_MAX_MAX,
        created_us=record.created_us,
        flags=SegmentFlag(record.flags),
    )


def _cut_short(record: SegmentRecord, size: int, position: int, first_lost_lsn: int) -> SegmentMissingError:
    wanted = SEGMENT_HEADER_BYTES + record.size_bytes
    return SegmentMissingError(
        f"segment {record.name} is shorter than the manifest says: {size:,} bytes instead of {wanted:,}; "
        f"LSN {first_lost_lsn:,} to {record.last_lsn:,} are missing",
        segment=record.name,
        position=position,
        expected=wanted,
        found=size,
        first_lost_lsn=first_lost_lsn,
    )


def _compare(
    ledger: Ledger, record: SegmentRecord, header: SegmentHeader, end: LogEnd, frames: int, records: int
) -> None:
    """Hold what the manifest says of a segment against its frames, which are all intact."""
    compacted = bool(header.flags & SegmentFlag.COMPACTED)
    facts = {
        "flags": (record.flags, int(header.flags)),
        "start chain": (record.start_chain, header.chain),
        "end chain": (record.end_chain, header.end_chain if compacted else end.chain),
        "last LSN": (record.last_lsn, end.last_lsn),
        "number of frames": (record.frames, frames),
        "number of records": (record.records, records),
    }
    for what, (expected, found) in facts.items():
        if expected != found:
            ledger.problem(
                CorruptionError(
                    f"the manifest and segment {record.name} differ in the {what}: "
                    f"the manifest says {expected:,}, the frames {found:,}",
                    segment=record.name,
                    position=record.start_position,
                    expected=expected,
                    found=found,
                )
            )
