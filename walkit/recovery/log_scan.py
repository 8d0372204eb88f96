"""Scanning a log: its segments, and the files beside them. Never judges, changes no byte.

An opening looks at sealed segments as the manifest vouches for them (presence, size, header; every frame with `deep`),
and at every frame of the unsealed ones. The facts that the decision table asks for are made of these findings in
`walkit.recovery.plan`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from time import perf_counter_ns

from walkit.errors import CorruptionError, FormatVersionError, SegmentMissingError, StorageError, WalkitError
from walkit.format.durable_slot import NOTHING_DURABLE, DurableSlot, ManifestPromise, decode_slots
from walkit.format.frame import FrameFault
from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    ALIGNMENT_DIRECT,
    DURABLE_SLOTS_BYTES,
    FRAME_BYTES_LIMIT,
    SEGMENT_HEADER_BYTES,
    SegmentFlag,
    align_up,
)
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader, checked_fields
from walkit.recovery.survey import (
    PAGE_BYTES,
    PASSING_ERRNOS,
    FrameSpan,
    Region,
    SegmentSurvey,
    TolerantFile,
    intact_frames,
    nonzero_until,
)
from walkit.segments.frame_walk import Readable, last_chain_of
from walkit.segments.history import check_identity, header_of, missing_segment, open_segment, whole_header
from walkit.segments.manifest_store import DURABLE_NAME, load_manifest
from walkit.segments.orphan_files import NOTHING_STAGED, orphan_indexes, orphaned_by, staged_in, temporary_in
from walkit.storage.interface import Storage, StorageFile

Progress = Callable[[int, int], None]
"""Called with (bytes scanned, bytes to scan)."""

SLOT_TRIES = 8

Reached = Callable[[int], object]
"""Called with the bytes of a segment that were looked at."""


@dataclass(kw_only=True, slots=True)
class SegmentFinding:
    """The findings of one segment file."""

    record: SegmentRecord
    present: bool = True
    """Whether the file is there."""
    file_bytes: int = 0
    header: SegmentHeader | None = None
    error: WalkitError | None = None
    """Why its header cannot be trusted: damaged, that of another segment, of a newer format, or unreadable."""
    other: SegmentHeader | None = None
    """The undamaged header of another segment, if this file holds one."""
    header_rebuilt: bool = False
    """Whether its header is damaged, and `header` is one that fits its intact frames."""
    span: FrameSpan | None = None
    """The surveyed part of it."""
    regions: list[Region] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    """Pages that the storage could not read, by file offset, and why."""
    end: LogEnd = field(default_factory=LogEnd)
    """Where the intact frames at its start end; without a header, where the log before it ends."""
    frames: int = 0
    records: int = 0
    bytes_scanned: int = 0
    verify_ns: int = 0
    """Time that checking its frames took, reading them not counted."""
    follows: bool = True
    """Whether its first frame follows the segment before."""
    continued: bool = False
    """Whether the next segment in use begins at the end of its intact frames: bytes after them are outside the log."""
    nonzero_until: int = 0
    """File offset after the last nonzero byte."""
    promised_position: int = 0
    """The furthest promise of any intact frame in the file, those after damage included."""
    beyond: list[Region] = field(default_factory=list)
    """Intact frames after a hole in this segment or before it, and within the window, by position."""

    @property
    def name(self) -> str:
        """The segment's file name."""
        return self.record.name

    @property
    def end_position(self) -> int:
        """Where the intact frames at its start end."""
        return self.end.position

    @property
    def sealed(self) -> bool:
        """Whether the manifest seals it."""
        return self.record.state is SegmentState.SEALED

    @property
    def unopenable(self) -> bool:
        """Whether the file is there and the storage does not open or read it."""
        return isinstance(self.error, StorageError)

    @property
    def unused(self) -> bool:
        """Whether its header was never written, and so no frame either."""
        return self.header is None and self.error is None and self.file_bytes >= SEGMENT_HEADER_BYTES

    @property
    def cut_short(self) -> bool:
        """Whether the file is absent or shorter than the space that was reserved, which no crash leaves."""
        return not (self.unopenable or self.unused) and self.file_bytes < self.record.reserved_bytes

    @property
    def end_offset(self) -> int:
        """File offset where the intact frames at its start end."""
        return 0 if self.header is None else self.header.offset_of(self.end_position)

    @property
    def ends_in_bytes(self) -> bool:
        """Whether bytes that may have been frames of the log follow the intact frames at its start."""
        return self.nonzero_until > self.end_offset and not self.continued

    @property
    def damage(self) -> Region | None:
        """The first region that is neither intact nor recorded in the manifest: zeros are one, too."""
        return next((r for r in self.regions if not r.intact and r.gap is None), None)

    @property
    def frames_after(self) -> int:
        """How many intact frames of this log follow the damage."""
        after = [r for r in self.regions if r.start_position >= self.end_position]
        return sum(r.frames + (r.misplaced is not None) for r in after)

    @property
    def reason(self) -> str:
        """Why its header, or all of it, cannot be used; empty without a reason."""
        if not self.present:
            return "the file is missing"
        if self.error is not None:
            return str(self.error)
        return "the segment has no header" if self.header_rebuilt or self.header is None else ""

    def fault_of(self, region: Region) -> str:
        """Describe the fault of a region without intact frames."""
        header = self.header
        if header is not None:
            begin, end = header.offset_of(region.start_position), header.offset_of(region.end_position)
            for offset, message in self.unreadable.items():
                if begin < offset + PAGE_BYTES and offset < end:
                    return message
        if region.error is not None:
            return str(region.error)
        if region.intact:
            return "it holds frames of another past"
        return (region.fault or FrameFault.END).value


@dataclass(kw_only=True, slots=True)
class LogFindings:
    """The findings of a whole log."""

    manifest: Manifest
    slot: DurableSlot
    sealed: list[SegmentFinding] = field(default_factory=list)
    unsealed: list[SegmentFinding] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    """Segment files that the manifest does not name."""
    obsolete: list[str] = field(default_factory=list)
    """Files that nothing reads: indexes of segments that are not in the log, and temporary files of a dead writer."""

    @property
    def verify_s(self) -> float:
        """Seconds that checking frames took, those of several threads added up."""
        return sum(finding.verify_ns for finding in (*self.sealed, *self.unsealed)) / 1e9

    @property
    def slot_position(self) -> int:
        """The position in the durable slot file; 0 if its epoch is not in this log."""
        return self.slot.position if self.slot.epoch_id in {e.id for e in self.manifest.lineage} else 0

    @property
    def promised_position(self) -> int:
        """How far the log has been promised to be on stable storage, by anything that can be trusted."""
        known = (self.manifest.end.position, self.slot_position)
        return max([*known, *(f.promised_position for f in (*self.sealed, *self.unsealed))])


# -- one segment


def follows_exactly(header: SegmentHeader, end: LogEnd) -> bool:
    """Say whether a segment begins where the log before it ends."""
    return (header.previous_end, header.first_lsn, header.chain) == (
        end.position,
        end.last_lsn + 1,
        end.chain,
    )


def region_within(storage: Storage, finding: SegmentFinding, region: Region, position: int) -> Region | None:
    """Return the frames of an intact region that end up to `position`; None without any."""
    if region.end_position <= position or region.start_position >= position:
        return region if region.end_position <= position else None
    header, before = finding.header, region.before
    assert header is not None
    file = open_segment(storage, finding.record)
    try:
        span = FrameSpan(name=finding.name, header=header, begin=before, end_position=position, bodies=False)
        first = next(iter(SegmentSurvey(file, span)))
    finally:
        file.close()
    return first if first.intact else None


def next_start(later: list[SegmentFinding], start: int) -> int | None:
    """Return where the frames of a segment end at the latest, because one of the `later` ones begins after them."""
    ends = [f.header.previous_end for f in later if f.header is not None and not f.header_rebuilt]
    return min((e for e in ends if e >= start), default=None)


def inspect_segment(
    storage: Storage,
    manifest: Manifest,
    record: SegmentRecord,
    *,
    tolerant: bool = False,
    rebuild: bool = False,
    live: bool = False,
) -> SegmentFinding:
    """Look at a segment that the manifest names: is it there, does it open, whose header is in it. Never raises.

    With `tolerant` pages that cannot be read are zeros. With `rebuild` a header that fits the intact frames replaces a
    damaged one. If the log has a `live` writer, only the header is read.
    """
    end = LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
    finding = SegmentFinding(record=record, end=end)
    try:
        with _opened(storage, finding, tolerant) as file:
            _inspect_file(file, manifest, finding, rebuild, live)
    except SegmentMissingError:
        finding.present = False
    except StorageError as error:
        finding.error = finding.error or error
    return finding


@contextmanager
def _opened(
    storage: Storage, finding: SegmentFinding, tolerant: bool
) -> Iterator[StorageFile | TolerantFile]:
    """Open a segment for the block; SegmentMissingError. With `tolerant` its pages that cannot be read are noted."""
    file = open_segment(storage, finding.record)
    source = TolerantFile(file) if tolerant else file
    try:
        yield source
    finally:
        if isinstance(source, TolerantFile):
            finding.unreadable |= source.unreadable
        file.close()


def _inspect_file(
    file: StorageFile | TolerantFile, manifest: Manifest, finding: SegmentFinding, rebuild: bool, live: bool
) -> None:
    record, sealed = finding.record, finding.sealed
    finding.file_bytes = size = file.size()
    block = file.read(0, SEGMENT_HEADER_BYTES)
    try:
        if sealed or len(block) == SEGMENT_HEADER_BYTES:
            header = SegmentHeader.decode(block, record.name)
            if sealed or header is not None:
                check_identity(manifest, record, header)
            finding.header = header
    except (CorruptionError, FormatVersionError) as error:
        finding.error, finding.other = error, whole_header(block)
    if finding.header is not None and sealed:
        end = finding.end_offset
        finding.nonzero_until = nonzero_until(file, end, size) if size > end else 0
    elif sealed or not live:
        finding.nonzero_until = nonzero_until(file, 0, size)
    if finding.header is None and finding.nonzero_until and not isinstance(finding.error, FormatVersionError):
        fitting, promised = header_from_frames(file, manifest, record, finding.nonzero_until)
        if rebuild and fitting is not None and not _is_replaced(finding, fitting):
            finding.header, finding.header_rebuilt = fitting, True
        finding.promised_position = max(finding.promised_position, promised)


def _is_replaced(finding: SegmentFinding, fitting: SegmentHeader) -> bool:
    """Say whether the whole file may be another segment's, and not only its header.

    The manifest knows where a sealed segment begins: frames that stand from there on are its own, unless the other
    segment begins there, too.
    """
    place = attrgetter("log_id", "epoch_id", "start_position")
    return finding.other is not None and (not finding.sealed or place(finding.other) == place(fitting))


def survey_segment(
    storage: Storage,
    manifest: Manifest,
    finding: SegmentFinding,
    *,
    until: int | None = None,
    bodies: bool = True,
    decode: bool = False,
    tolerant: bool = False,
    reached: Reached | None = None,
) -> None:
    """Note every region of a segment with a header, up to position `until` if that is known, and its promises.

    Raises SegmentMissingError if the file has gone meanwhile, and StorageError if it does not open.
    """
    header, record, sealed = finding.header, finding.record, finding.sealed
    assert header is not None
    start = header.start_position
    room = max(finding.file_bytes - SEGMENT_HEADER_BYTES, 0)
    stop = start + room - room % header.alignment
    if sealed:
        whole = stop >= manifest.frames_end_of(record)
        stop = record.end_position if whole else min(stop, record.end_position)
    if until is not None:
        stop = min(stop, until)
    finding.span = FrameSpan(
        name=record.name,
        header=header,
        begin=start_of(header),
        end_position=stop,
        bodies=bodies,
        last_chain=last_chain_of(record, header, stop),
        gaps=manifest.gaps_of(record) if sealed else (),
        anywhere=finding.header_rebuilt and not sealed,
    )
    began = perf_counter_ns()
    known = not sealed and not finding.unopenable and finding.nonzero_until <= header.offset_of(stop)
    with _opened(storage, finding, tolerant) as file:
        survey = SegmentSurvey(
            file,
            finding.span,
            decode=decode,
            nonzero_until=finding.nonzero_until if known else None,
            reached=None if reached is None else lambda position: reached(position - start),
        )
        for region in survey:
            finding.regions.append(region)
            if reached is not None and not region.zeros:
                reached(region.end_position - start)
    finding.verify_ns = perf_counter_ns() - began - survey.read_ns
    held = [r for r in finding.regions if r.intact]
    if not sealed:
        held = [r for r in held[:1] if r.start_position == start]
        finding.end = held[0].after if held else start_of(header)
    finding.frames, finding.records = sum(r.frames for r in held), sum(r.records for r in held)
    finding.bytes_scanned = (stop if sealed else finding.end_position) - start
    # The promise of an imported frame is about the primary's disk (FORMAT.md F-3.6).
    if not header.flags & SegmentFlag.IMPORTED:
        finding.promised_position = max(finding.promised_position, survey.promised_position)


def start_of(header: SegmentHeader) -> LogEnd:
    """Return the predecessor of a segment's first frame, at the segment's position."""
    return LogEnd(last_lsn=header.first_lsn - 1, position=header.start_position, chain=header.chain)


# -- a header that fits the frames, if its own is damaged


def header_from_frames(
    file: Readable, manifest: Manifest, record: SegmentRecord, until: int
) -> tuple[SegmentHeader | None, int]:
    """Return a header that fits the intact frames of a file, or None, and how far they promise the log.

    `until` is the file offset after which only zeros follow. A promise is true in any place. Whether the segment was
    imported is not known, and need not be: its header was durable before its first frame, so it is damaged in any case.
    A frame has its position, so its file offset shows the beginning of the segment. Frames that disagree (a value may
    hold a frame) are outvoted; the manifest knows the beginning of a sealed segment.
    """
    sealed = record.state is SegmentState.SEALED
    best: SegmentHeader | None = None
    most = promised = 0
    for header in _stand_ins(manifest, record):
        starts: Counter[int] = Counter()
        largest = header.alignment
        for offset, frame in intact_frames(file, header, SEGMENT_HEADER_BYTES, until):
            starts[frame.position - (offset - SEGMENT_HEADER_BYTES)] += 1
            largest = max(largest, frame.footprint, frame.body_raw_bytes)
            promised = max(promised, frame.durable_position)
        start = record.start_position if sealed else next((s for s, _ in starts.most_common(1)), -1)
        if starts[start] > most and start >= 0 and start % header.alignment == 0:
            most, limit = starts[start], align_up(largest, header.alignment)
            best = replace(header, start_position=start, previous_end=start, frame_bytes_max=limit)
    return best, promised


def header_after(end: LogEnd, header: SegmentHeader, regions: list[Region]) -> SegmentHeader:
    """Return a rebuilt header for a segment with these regions, which follows `end`."""
    first = next((r.before for r in regions if r.intact), None)
    at_start = first is not None and first.position == header.start_position
    begin = replace(first if first is not None and at_start else end, position=header.start_position)
    # An epoch of direct I/O begins on the next boundary; a larger space before it is a range that is missing.
    near = header.start_position == align_up(end.position, header.alignment)
    fits = not at_start or (begin.last_lsn, begin.chain) == (end.last_lsn, end.chain)
    return replace(
        header,
        previous_end=end.position if near and fits else header.start_position,
        first_lsn=begin.last_lsn + 1,
        chain=begin.chain,
    )


def _stand_ins(manifest: Manifest, record: SegmentRecord) -> Iterator[SegmentHeader]:
    """Yield headers to find the frames of a segment whose own header is damaged: one for each alignment.

    Log, epoch and number are those of the segment, all else is as wide as possible; nothing if its epoch is unknown.
    """
    epoch = manifest.epoch_of(record.epoch)
    for alignment in () if epoch is None else (ALIGNMENT_BUFFERED, ALIGNMENT_DIRECT):
        assert epoch is not None
        yield SegmentHeader(
            log_id=manifest.log_id,
            epoch=epoch.number,
            epoch_id=epoch.id,
            number=record.number,
            start_position=0,
            previous_end=0,
            first_lsn=max(record.first_lsn, 1),
            chain=record.start_chain,
            end_chain=record.end_chain if record.flags & SegmentFlag.COMPACTED else 0,
            alignment=alignment,
            frame_bytes_max=FRAME_BYTES_LIMIT,
            created_us=record.created_us,
            flags=_flags_of(manifest, record),
        )


def _flags_of(manifest: Manifest, record: SegmentRecord) -> SegmentFlag:
    """Return the flags that a segment must have had: those in the manifest or, unsealed, those of its epoch and log."""
    if record.state is SegmentState.SEALED:
        return SegmentFlag(record.flags)
    flags = SegmentFlag.COMPLETION_ORDER if manifest.ack_order == "completion" else SegmentFlag(0)
    if any(s.flags & SegmentFlag.IMPORTED for s in manifest.sealed):
        flags |= SegmentFlag.IMPORTED
    return flags


# -- the whole log


def read_durable_slot(storage: Storage) -> DurableSlot:
    """Return the durable slot's content; NOTHING_DURABLE if it is missing."""
    cell = storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=False)
    if cell is None:
        return NOTHING_DURABLE
    try:
        # A reader that two stores overtake may find both slots half written; it looks again.
        for _ in range(SLOT_TRIES):
            data = cell.read()
            slot = decode_slots(data)
            if slot.generation or not any(data):
                break
        return slot
    finally:
        cell.close()


def scan_log(
    storage: Storage,
    manifest: Manifest,
    slot: DurableSlot,
    *,
    deep: bool = False,
    progress: Progress | None = None,
) -> LogFindings:
    """Return the findings. Raises SegmentMissingError and CorruptionError only for data that the manifest vouches for.

    StorageError if a segment cannot be read, FormatVersionError if one has a newer format.
    """
    findings = scan_folder(storage, manifest, slot)
    counter = ProgressCounter(progress, sum(s.size_bytes for s in manifest.sealed) if deep else 0)
    epochs = {epoch.number: epoch.id for epoch in manifest.lineage}
    for record in manifest.sealed:
        # Row V of the decision table. There are thousands, so that nothing is noted of one.
        if not deep and _is_as_sealed(storage, manifest, record, epochs.get(record.epoch)):
            continue
        finding = inspect_segment(storage, manifest, record)
        error = sealed_error(storage, manifest, finding)
        if isinstance(error, CorruptionError):
            error.position, error.first_lost_lsn = error.position or record.start_position, record.first_lsn
        if error is not None:
            raise error
        if finding.header is not None:
            refuse_broken_promise(storage, manifest, finding.header.manifest_generation, record.name)
        if deep:
            survey_segment(storage, manifest, finding, reached=counter.within_segment())
        findings.sealed.append(finding)
    for record in manifest.unsealed:
        finding = inspect_segment(storage, manifest, record)
        findings.unsealed.append(finding)
        if finding.header is not None:
            refuse_broken_promise(storage, manifest, finding.header.manifest_generation, record.name)
            survey_segment(storage, manifest, finding, reached=counter.within_segment())
        _refuse_unreadable(finding)
    link_unsealed(storage, findings)
    return findings


def _is_as_sealed(storage: Storage, manifest: Manifest, record: SegmentRecord, epoch_id: int | None) -> bool:
    """Return whether a segment has the size and the header that the manifest means."""
    try:
        file = storage.open(record.name, "read")
        try:
            size, block = file.size(), file.read(0, SEGMENT_HEADER_BYTES)
        finally:
            file.close()
        header = checked_fields(block)
    except WalkitError:
        return False  # a closer look finds the reason
    if header is None or header.manifest_generation > manifest.generation:
        return False
    wanted = (manifest.log_id, record.epoch, epoch_id, record.number, record.start_position, record.first_lsn)
    found = (
        header.log_id,
        header.epoch,
        header.epoch_id,
        header.number,
        header.start_position,
        header.first_lsn,
    )
    return found == wanted and size == SEGMENT_HEADER_BYTES + record.size_bytes


def _refuse_unreadable(finding: SegmentFinding) -> None:
    """Raise the error that keeps an unsealed segment from being judged: a newer format, or an unreadable place."""
    damage = finding.damage
    error = finding.error if damage is None else damage.error
    if isinstance(error, FormatVersionError):
        raise error
    for unread in (finding.error, *(region.error for region in finding.regions)):
        if isinstance(unread, StorageError):
            raise unread


def link_unsealed(storage: Storage, findings: LogFindings) -> None:
    """Note of each unsealed segment whether it follows the log before it, and its frames after a hole."""
    end, hole = findings.manifest.end, False
    for index, finding in enumerate(findings.unsealed):
        if finding.header is None:
            finding.end = end
            continue
        finding.follows = not hole and follows_exactly(finding.header, end)
        if finding.follows:
            end = finding.end
            following = next((f for f in findings.unsealed[index + 1 :] if not f.unused), None)
            header = None if following is None else following.header
            finding.continued = header is not None and follows_exactly(header, end)
        hole = hole or not finding.follows or finding.ends_in_bytes
        if hole:
            _note_beyond(storage, finding, end.position)


def sealed_error(storage: Storage, manifest: Manifest, finding: SegmentFinding) -> WalkitError | None:
    """Return why a sealed segment is not there, not whole, or not the one that the manifest means; None if it is."""
    record, error = finding.record, finding.error
    if not finding.present:
        return missing_segment(storage, record)
    wanted = SEGMENT_HEADER_BYTES + manifest.frames_end_of(record) - record.start_position
    if not finding.unopenable and finding.file_bytes < wanted:
        position = record.start_position + max(finding.file_bytes - SEGMENT_HEADER_BYTES, 0)
        return shortened(finding, wanted, position, record.first_lsn)
    return error


def shortened(
    finding: SegmentFinding, wanted: int, position: int, first_lost_lsn: int
) -> SegmentMissingError:
    """Return the error for a sealed segment whose file is shorter than the frames that it must hold."""
    record, size = finding.record, finding.file_bytes
    return SegmentMissingError(
        f"segment {record.name} is shorter than the manifest says: {size:,} bytes instead of {wanted:,}; "
        f"LSN {first_lost_lsn:,} to {record.last_lsn:,} may be missing",
        segment=record.name,
        position=position,
        expected=wanted,
        found=size,
        first_lost_lsn=first_lost_lsn,
    )


def _note_beyond(storage: Storage, finding: SegmentFinding, hole: int) -> None:
    """Note the intact frames after the hole that begins there, those that end within the window (FORMAT.md F-2.7)."""
    assert finding.header is not None
    until = hole + finding.header.reorder_window_bytes
    for region in finding.regions:
        if region.start_position < finding.end_position and finding.follows:
            continue
        if region.misplaced is not None and region.end_position <= until:
            finding.beyond.append(region)
        elif region.intact and (within := region_within(storage, finding, region, until)) is not None:
            finding.beyond.append(within)


class ProgressCounter:
    """Counts the bytes that were read of segments, one after the other, and reports them."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def within_segment(self) -> Callable[[int], None]:
        """Return the callback for the bytes read of the next segment."""
        before = self.done
        return lambda read: self.report(before + read)

    def report(self, done: int) -> None:
        """Note how many bytes were read of all segments."""
        self.done = done
        if self.progress is not None:
            self.progress(done, max(done, self.total))


def scan_folder(
    storage: Storage, manifest: Manifest, slot: DurableSlot, *, salvage: bool = False
) -> LogFindings:
    """Return findings of the files beside the segments, none of these yet. CorruptionError for an older manifest.

    With `salvage` a file beside them that the storage does not read is passed over.
    """
    findings = LogFindings(manifest=manifest, slot=slot)
    named = {s.name for s in manifest.segments}
    names = storage.names()
    findings.orphans = [n for n in names if n.endswith(".segment") and n not in named]
    findings.obsolete = [*orphan_indexes(names, manifest), *temporary_in(storage, names)]
    _refuse_an_older_manifest(storage, findings, salvage)
    return findings


def _refuse_an_older_manifest(storage: Storage, findings: LogFindings, salvage: bool) -> None:
    """Refuse a manifest that was put back from an earlier time: later records would be forgotten silently.

    The manifest names a segment before its header is written, and an epoch before the durable slot speaks of it; so a
    used segment with a number that the manifest has not given yet, or a slot of an unknown epoch, is newer than it.
    """
    manifest, slot, promise = findings.manifest, findings.slot, findings.slot.promise
    staged = staged_in(storage, manifest) if findings.orphans else NOTHING_STAGED
    if slot.generation and not is_known(manifest, slot):
        raise _older_manifest(DURABLE_NAME, f"epoch {slot.epoch}, durable up to position {slot.position:,}")
    if promise.generation and not is_known(manifest, promise):
        raise _older_manifest(DURABLE_NAME, f"epoch {promise.epoch}, manifest {promise.generation:,}")
    refuse_broken_promise(storage, manifest, promise.generation, DURABLE_NAME)
    for name in findings.orphans:
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
        if staged.has(name, header):
            continue  # a replica's new log, which no manifest has yet: this one is still the log
        refuse_broken_promise(storage, manifest, header.manifest_generation, name)
        if header.number >= manifest.next_segment and orphaned_by(header, manifest) is None:
            raise _older_manifest(name, f"segment {header.number} from LSN {header.first_lsn:,} on")


def refuse_broken_promise(storage: Storage, manifest: Manifest, generation: int, name: str) -> None:
    """Refuse a manifest if this file promises that a newer one was on stable storage (FORMAT.md F-12.9)."""
    # Where they differ, a writer changed it meanwhile.
    if generation > manifest.generation == load_manifest(storage).generation:
        raise _older_manifest(name, f"manifest {generation:,}")


def is_known(manifest: Manifest, slot: DurableSlot | ManifestPromise) -> bool:
    """Say whether a slot's epoch is in the lineage, or older than one: a rebuilt manifest may lack those."""
    epoch = manifest.epoch_of(slot.epoch)
    if epoch is not None:
        return epoch.id == slot.epoch_id
    return any(slot.epoch < later.number for later in manifest.lineage)


def _older_manifest(name: str, newer: str) -> CorruptionError:
    return CorruptionError(
        f"the manifest is older than {name} ({newer}), which it does not know: it was put back from an earlier time, "
        "its last edit is damaged, or the folder was copied file by file while a writer had it. Nothing was changed. "
        "`walkit copy LOG DIR` makes a copy beside a writer; else put the newest manifest back, or rebuild it by "
        "`walkit repair --policy salvage`",
        segment=name,
        expected="a manifest that knows it",
        found=newer,
    )


# -- everything, for a salvage


def survey_all(storage: Storage, findings: LogFindings, progress: Progress | None = None) -> None:
    """Look at everything, because a later frame may promise an earlier one."""
    manifest = findings.manifest
    found = [salvaged_segment(storage, manifest, record) for record in manifest.segments]
    refuse_misnamed(storage, findings, found)
    findings.sealed = [f for f in found if f.sealed]
    findings.unsealed = [f for f in found if not f.sealed]
    in_order = placed(findings.unsealed)
    total, done = sum(f.file_bytes for f in found), 0
    for finding in [*findings.sealed, *in_order]:
        if finding.header is not None:
            later = [] if finding.sealed else in_order[in_order.index(finding) + 1 :]
            survey_salvaged(storage, manifest, finding, next_start(later, finding.header.start_position))
        done += finding.file_bytes
        if progress is not None:
            progress(done, total)


def salvaged_segment(storage: Storage, manifest: Manifest, record: SegmentRecord) -> SegmentFinding:
    """Inspect a segment, and rebuild a damaged header. Raises an error that no repair answers, or that may pass."""
    finding = inspect_segment(storage, manifest, record, tolerant=True, rebuild=True)
    error = finding.error
    passing = isinstance(error, StorageError) and error.errno in PASSING_ERRNOS
    if error is not None and (passing or isinstance(error, FormatVersionError)):
        raise error
    return finding


def survey_salvaged(storage: Storage, manifest: Manifest, finding: SegmentFinding, until: int | None) -> None:
    """Note every region of a segment with a header. FormatVersionError if a frame has a newer format."""
    survey_segment(storage, manifest, finding, until=until, decode=True, tolerant=True)
    for region in finding.regions:
        if isinstance(region.error, FormatVersionError):
            raise region.error
    finding.frames = sum(r.frames for r in finding.regions)
    finding.records = sum(r.records for r in finding.regions)
    finding.bytes_scanned = sum(r.end_position - r.start_position for r in finding.regions)


def refuse_misnamed(storage: Storage, findings: LogFindings, found: list[SegmentFinding]) -> None:
    """Refuse where a segment stands whole under another name: nothing of it is lost, and a person can rename it."""
    manifest = findings.manifest
    whole = {f.name for f in found if f.header is not None and not f.header_rebuilt}
    absent = {f.name: f.record for f in found if f.name not in whole}
    others = [(f.name, f.other) for f in found if not f.header_rebuilt]
    others += [(name, _whole_header_in(storage, name)) for name in findings.orphans if absent]
    at = {f.name: f.record.start_position for f in found}
    for name, other in others:
        record = None if other is None or other.name == name else absent.get(other.name)
        if other is not None and record is not None and _is_ours(manifest, record, other):
            raise CorruptionError(
                f"segment {name} holds segment {other.name} of this log, which is not in its own place: "
                "nothing of it is lost. Give the files their right names; nothing was changed",
                segment=name,
                position=at.get(name, record.start_position),
                expected=name,
                found=other.name,
            )


def _whole_header_in(storage: Storage, name: str) -> SegmentHeader | None:
    try:
        with closing(storage.open(name, "read")) as file:
            return whole_header(file.read(0, SEGMENT_HEADER_BYTES))
    except StorageError as error:
        if error.errno in PASSING_ERRNOS:
            raise
        return None


def _is_ours(manifest: Manifest, record: SegmentRecord, header: SegmentHeader) -> bool:
    try:
        check_identity(manifest, record, header)
    except CorruptionError:
        return False
    return True


def placed(unsealed: list[SegmentFinding]) -> list[SegmentFinding]:
    """Return the unsealed segments with a header, in the order of the log."""
    started = [(f.header.start_position, f.record.number, f) for f in unsealed if f.header is not None]
    return [f for _, _, f in sorted(started, key=lambda b: b[:2])]
