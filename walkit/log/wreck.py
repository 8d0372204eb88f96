"""One segment file as policy "salvage" looks at it: everything that can be read of it, whatever is damaged."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass, field, replace

from walkit.errors import CorruptionError, FormatVersionError, StorageError
from walkit.format.frame import FrameFault
from walkit.format.layout import (
    SEGMENT_HEADER_BYTES,
    SegmentFlag,
    align_up,
)
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.log.behind import intact_frames, nonzero_until, stand_ins
from walkit.log.examine.ledger import whole_header
from walkit.log.examine.survey import SegmentSurvey, Stretch
from walkit.log.findings import SegmentFinding
from walkit.log.patient import PAGE_BYTES, PASSING_ERRNOS, PatientFile
from walkit.log.scan import check_identity
from walkit.log.walk import last_chain_of
from walkit.storage.base import Storage


@dataclass(kw_only=True, slots=True)
class Wreck:
    """A segment file, what can be read of it, and why the rest cannot."""

    finding: SegmentFinding
    reason: str = ""
    """Why its header, or all of it, cannot be used."""
    other: SegmentHeader | None = None
    """The undamaged header of another segment of this log, where one stands in this file."""
    stretches: list[Stretch] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)

    @property
    def sealed(self) -> bool:
        """Whether the manifest seals it."""
        return self.finding.record.state is SegmentState.SEALED

    @property
    def header(self) -> SegmentHeader | None:
        """Its header, perhaps one that was made anew; None where there is no frame to make it from."""
        return self.finding.header

    @property
    def start(self) -> int:
        """Where its frames begin."""
        return 0 if self.finding.header is None else self.finding.header.start_position

    def why(self, stretch: Stretch) -> str:
        """Say what is wrong with a stretch without intact frames."""
        header = self.finding.header
        if header is not None:
            begin, end = header.offset_of(stretch.start_position), header.offset_of(stretch.end_position)
            for offset, said in self.unreadable.items():
                if begin < offset + PAGE_BYTES and offset < end:
                    return said
        if stretch.error is not None:
            return str(stretch.error)
        if stretch.intact:
            return "frames of another past stand there"
        return (stretch.fault or FrameFault.END).value

    def fitted(self, end: LogEnd) -> SegmentHeader:
        """Return the header made anew, as that of a segment which stands behind `end`."""
        header = self.finding.header
        assert header is not None
        first = next((s.first for s in self.stretches if s.first is not None), None)
        previous_end = min(end.position, header.start_position)
        if first is not None and first.position == header.start_position:
            whole = end.position <= header.start_position and (first.first_lsn, first.chain) == (
                end.last_lsn + 1, end.chain,
            )  # fmt: skip
            previous_end = previous_end if whole else header.start_position
            return replace(header, previous_end=previous_end, first_lsn=first.first_lsn, chain=first.chain)
        if header.start_position != align_up(end.position, header.alignment):
            previous_end = header.start_position  # more than an alignment is missing before it
        return replace(header, previous_end=previous_end, first_lsn=end.last_lsn + 1, chain=end.chain)


def look_at(storage: Storage, manifest: Manifest, record: SegmentRecord) -> Wreck:
    """Look at a segment that the manifest names: is it there, does it open, which header has it. Changes nothing.

    FormatVersionError where its header is of a newer format; StorageError where the error may pass.
    """
    finding = SegmentFinding(record=record, end_position=record.end_position, last_lsn=record.last_lsn)
    wreck = Wreck(finding=finding)
    try:
        opened = storage.open(record.name, "read")
    except StorageError as error:
        if error.errno in PASSING_ERRNOS:
            raise
        finding.unopenable = error.errno != errno.ENOENT
        finding.present = False
        wreck.reason = str(error) if finding.unopenable else "the file is missing"
        return wreck
    file = PatientFile(opened)
    try:
        finding.file_bytes = file.size()
        finding.nonzero_until = nonzero_until(file, 0, finding.file_bytes)
        block = file.read(0, SEGMENT_HEADER_BYTES)
        try:
            if len(block) == SEGMENT_HEADER_BYTES or record.state is SegmentState.SEALED:
                finding.header = SegmentHeader.decode(block, record.name)
            if finding.header is not None or record.state is SegmentState.SEALED:
                check_identity(manifest, record, finding.header)
        except CorruptionError as error:
            finding.header, finding.header_error, wreck.reason = None, error, str(error)
            wreck.other = whole_header(block)
        if finding.header is None and wreck.other is None and finding.nonzero_until:
            wreck.reason = wreck.reason or "the segment has no header"
            finding.header = _header_from_frames(file, manifest, finding)
            finding.mended = finding.header is not None
        return wreck
    finally:
        wreck.unreadable = file.unreadable
        file.close()


def refuse_misnamed(manifest: Manifest, wrecks: list[Wreck]) -> None:
    """Refuse where a segment stands whole under another name: nothing of it is lost, and a person can rename it."""
    whole = {w.finding.name for w in wrecks if w.finding.header is not None and not w.finding.mended}
    absent = {w.finding.name: w.finding.record for w in wrecks if w.finding.name not in whole}
    for wreck in wrecks:
        other = wreck.other
        record = None if other is None or other.name == wreck.finding.name else absent.get(other.name)
        if other is not None and record is not None and _is_ours(manifest, record, other):
            raise CorruptionError(
                f"segment {wreck.finding.name} holds segment {other.name} of this log, which is not in its own place: "
                "nothing of it is lost. Give the files their right names; nothing was changed",
                segment=wreck.finding.name,
                position=wreck.finding.record.start_position,
                expected=wreck.finding.name,
                found=other.name,
            )


def _is_ours(manifest: Manifest, record: SegmentRecord, header: SegmentHeader) -> bool:
    try:
        check_identity(manifest, record, header)
    except CorruptionError:
        return False
    return True


def survey(storage: Storage, manifest: Manifest, wreck: Wreck, next_start: int | None) -> None:
    """Note every stretch of a segment. FormatVersionError where a frame is of a newer format; changes nothing."""
    finding, header, record = wreck.finding, wreck.finding.header, wreck.finding.record
    if header is None:
        return
    file = PatientFile(storage.open(record.name, "read"))
    room = finding.file_bytes - SEGMENT_HEADER_BYTES
    stop = header.start_position + max(room - room % header.alignment, 0)
    if wreck.sealed:
        stop = (
            record.end_position if stop >= manifest.frames_end_of(record) else min(stop, record.end_position)
        )
    elif next_start is not None:
        stop = min(stop, next_start)
    found = SegmentSurvey(
        file,
        header,
        start_position=header.start_position,
        end_position=stop,
        next_lsn=None if finding.mended and not wreck.sealed else header.first_lsn,
        chain=None if finding.mended and not wreck.sealed else header.chain,
        last_chain=last_chain_of(record, header, stop),
        decode=True,
        seen=lambda _, intact: None,  # so that each stretch knows the headers of its first and last frame
        gaps=manifest.gaps_of(record) if wreck.sealed else (),
    )
    try:
        for stretch in found:
            if isinstance(stretch.error, FormatVersionError):
                raise stretch.error
            wreck.stretches.append(stretch)
            finding.frames += stretch.frames
            finding.records += stretch.records
            finding.bytes_scanned += stretch.end_position - stretch.start_position
            if not stretch.intact and stretch.gap is None and finding.fault is None:
                finding.fault, finding.at_fault = stretch.fault, stretch.at_fault
    finally:
        wreck.unreadable |= file.unreadable
        file.close()
    if not header.flags & SegmentFlag.IMPORTED:
        finding.promised_position = max(finding.promised_position, found.promised_position)


def _header_from_frames(
    file: PatientFile, manifest: Manifest, finding: SegmentFinding
) -> SegmentHeader | None:
    """Return a header that fits the intact frames of a segment whose own is damaged; None where there is none.

    A frame says at which position it stands, so the file offset at which it is found says where the segment begins.
    Frames that disagree (a value may hold a frame) are outvoted; of a sealed segment the manifest knows the beginning.
    """
    record = finding.record
    sealed = record.state is SegmentState.SEALED
    best: tuple[int, SegmentHeader | None] = (0, None)
    for stand_in in stand_ins(manifest, record):
        header = replace(
            stand_in,
            end_chain=record.end_chain if record.flags & SegmentFlag.COMPACTED else 0,
            flags=_flags_of(manifest, record),
        )
        starts: Counter[int] = Counter()
        largest = header.alignment
        for offset, frame in intact_frames(file, header, SEGMENT_HEADER_BYTES, finding.nonzero_until):
            starts[frame.position - (offset - SEGMENT_HEADER_BYTES)] += 1
            largest = max(largest, frame.footprint, frame.body_raw_bytes)
            finding.promised_position = max(finding.promised_position, frame.durable_position)
        start = record.start_position if sealed else next((s for s, _ in starts.most_common(1)), -1)
        if starts[start] > best[0] and start >= 0 and start % header.alignment == 0:
            limit = align_up(largest, header.alignment)
            header = replace(header, start_position=start, previous_end=start, frame_bytes_max=limit)
            best = starts[start], header
    return best[1]


def _flags_of(manifest: Manifest, record: SegmentRecord) -> SegmentFlag:
    """Return the flags that a segment must have had: those in the manifest or, unsealed, those of its epoch and log."""
    if record.state is SegmentState.SEALED:
        return SegmentFlag(record.flags)
    flags = SegmentFlag.COMPLETION_ORDER if manifest.ack_order == "completion" else SegmentFlag(0)
    if any(s.flags & SegmentFlag.IMPORTED for s in manifest.sealed):
        flags |= SegmentFlag.IMPORTED
    return flags
