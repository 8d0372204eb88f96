"""Examining what stands around the segments: the manifest's own facts, the durable slot, and stray files."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from walkit._internal.text import counted
from walkit.errors import CorruptionError, FormatVersionError, StorageError, WalkitError
from walkit.format.durable_slot import decode_slots
from walkit.format.layout import (
    ALIGNMENT_DIRECT,
    DURABLE_SLOT_STRIDE,
    DURABLE_SLOTS_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentFlag,
    align_up,
)
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, SegmentState
from walkit.format.names import claim_of_name, cursor_of_name, is_unfinished_name, lsn_of_name
from walkit.format.segment import SegmentHeader
from walkit.recovery.examine.report import RangeVerdict, Verdict
from walkit.recovery.examine.segments import ScanContext
from walkit.recovery.findings import region_within, start_of
from walkit.recovery.lost_found import is_kept
from walkit.recovery.probe import nonzero_until
from walkit.recovery.snapshot_reader import read_frames, read_header
from walkit.recovery.survey import FrameSpan, SegmentSurvey
from walkit.segments.claim_files import claim_facts
from walkit.segments.cursor_files import cursor_facts
from walkit.segments.gathered import gathered_in
from walkit.segments.identity import identity_at, whole_header
from walkit.segments.manifest_store import (
    DURABLE_NAME,
    LOST_FOLDER,
    OWN_NAMES,
    REPLICATION_NAMES,
    load_manifest,
)
from walkit.segments.orphan_files import leftover_of

NAMES_SHOWN_MAX = 5


def check_manifest(context: ScanContext) -> None:
    """Hold the manifest's facts against each other: a right checksum over wrong facts is a fault too."""
    for what, expected, found, record in _manifest_facts(context.manifest):
        if expected != found:
            where = "" if record is None else f" at segment {record.name}"
            context.problem(
                CorruptionError(
                    f"the manifest contradicts itself{where}: {what}: expected {expected}, found {found}",
                    segment=None if record is None else record.name,
                    position=None if record is None else record.start_position,
                    expected=expected,
                    found=found,
                )
            )


def _manifest_facts(manifest: Manifest) -> Iterator[tuple[str, object, object, SegmentRecord | None]]:
    """Yield (what, expected, found, segment) of every fact that the manifest states twice."""
    sealed, gaps = manifest.sealed, manifest.gaps
    for record in manifest.segments:
        known = manifest.epoch_of(record.epoch) is not None
        yield f"epoch {record.epoch} is in the lineage", True, known, record
        yield (
            "the next segment's number is above all numbers",
            True,
            record.number < manifest.next_segment,
            record,
        )
    for before, record in pairwise(sealed):
        wanted = LogEnd(
            last_lsn=record.first_lsn - 1, position=record.start_position, chain=record.start_chain
        )
        there = LogEnd(last_lsn=before.last_lsn, position=_end_before(before, record), chain=before.end_chain)
        for gap in gaps:
            if before.end_position <= gap.start_position and gap.end_position <= record.start_position:
                there = LogEnd(last_lsn=gap.last_lsn, position=gap.end_position, chain=gap.chain)
                if _has_moved(record) or record.start_position == align_up(
                    gap.end_position, ALIGNMENT_DIRECT
                ):
                    there = replace(there, position=record.start_position)
        yield f"it follows segment {before.name}", there, wanted, record
        epoch = manifest.epoch_of(record.epoch)
        given_up = any(before.end_position <= g.start_position < record.start_position for g in manifest.lost)
        if epoch is not None and record.epoch != before.epoch and not given_up:
            placed = align_up(epoch.position, ALIGNMENT_DIRECT) == record.start_position
            position = record.start_position if placed or _has_moved(record) else epoch.position
            began = LogEnd(last_lsn=epoch.first_lsn - 1, position=position, chain=epoch.chain)
            yield f"epoch {epoch.number} begins with it", began, wanted, record
    if sealed:
        last = sealed[-1]
        there = LogEnd(last_lsn=last.last_lsn, position=last.end_position, chain=last.end_chain)
        for lost in manifest.lost:
            if lost.start_position >= last.end_position:
                there = LogEnd(last_lsn=lost.last_lsn, position=lost.end_position, chain=lost.chain)
        yield "the log ends with its last sealed segment", there, manifest.end, None
    numbers = [e.number for e in manifest.lineage]
    yield "the epochs' numbers grow", sorted(set(numbers)), numbers, None


def _has_moved(record: SegmentRecord) -> bool:
    """Say whether a segment begins after a gap: a compacted one ends where the log did, and is shorter (F-6.3)."""
    return bool(record.flags & SegmentFlag.COMPACTED)


def _end_before(before: SegmentRecord, record: SegmentRecord) -> int:
    """Return the position at which `record` has to begin."""
    after = record.start_position >= before.end_position
    if record.epoch != before.epoch and record.start_position == align_up(
        before.end_position, ALIGNMENT_DIRECT
    ):
        return record.start_position  # an epoch of direct I/O begins on its own alignment
    return record.start_position if _has_moved(record) and after else before.end_position


def check_durable_file(context: ScanContext) -> None:
    """Hold the durable slot against the frames. It is never synced, so that an old or empty one is no fault."""
    manifest, slot = context.manifest, context.slot
    cell = context.storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=False)
    if cell is None:
        if manifest.lineage:
            context.notes.append("there is no durable slot: promises come from frames and the manifest alone")
        return
    try:
        block = cell.read()
    finally:
        cell.close()
    halves = (block[:DURABLE_SLOT_STRIDE], bytes(DURABLE_SLOT_STRIDE) + block[DURABLE_SLOT_STRIDE:])
    torn = [half for half in halves if any(half) and not decode_slots(half).generation]
    if slot.generation and torn and not context.live:
        context.notes.append("one copy of the durable slot is damaged; the other one is used")
    if not slot.generation:
        if any(block):
            context.notes.append(
                "no copy of the durable slot is whole, as after a power cut; nothing rests on it"
            )
        return
    if not context.judge.slot_known:
        context.notes.append(
            f"the durable slot is of epoch {slot.epoch}, which is not in the lineage; it was not used"
        )
        return
    sealed = manifest.sealed
    begins = sealed[0].start_position if sealed else manifest.end.position
    as_written = max([begins, *(s.end_position for s in sealed if _has_moved(s))])
    if any(g.start_position < slot.position <= g.end_position for g in manifest.lost):
        return  # what it spoke of has been given up
    if not as_written < slot.position <= context.end.position:
        return  # before what is still as it was written, or after the intact log, which has a problem of its own
    if context.problems:
        return
    found = _lsn_at(context, slot.position)
    if found != slot.lsn:
        context.problem(
            CorruptionError(
                f"the durable slot names position {slot.position:,} and LSN {slot.lsn:,}; "
                f"the frame that ends there has LSN {found}",
                segment=DURABLE_NAME,
                position=slot.position,
                expected=slot.lsn,
                found=found,
            )
        )


def _lsn_at(context: ScanContext, position: int) -> int | None:
    """Return the last LSN of the intact frame that ends at `position`; None where none does."""
    for finding in context.findings:
        for region in finding.regions:
            if region.intact and region.start_position < position <= region.end_position:
                within = region_within(context.storage, finding, region, position)
                if within is not None and within.end_position == position:
                    return within.after.last_lsn
    return None


def note_strays(context: ScanContext) -> None:
    """Note segment files that the manifest does not name. One that promises more than the log holds is a problem."""
    storage = context.storage
    named = {s.name for s in context.manifest.segments}
    strays = [n for n in storage.names() if n.endswith(".segment") and n not in named]
    if strays and context.live:
        named = {s.name for s in load_manifest(storage).segments}  # a writer makes a file before it names it
        strays = [n for n in strays if n not in named]
    for name in strays:
        try:
            _note_stray(context, name)
        except StorageError as error:
            context.notes.append(f"{name} is not named in the manifest, and could not be read: {error}")


def _note_stray(context: ScanContext, name: str) -> None:
    file = context.storage.open(name, "read")
    try:
        size, block = file.size(), file.read(0, SEGMENT_HEADER_BYTES)
        try:
            header = SegmentHeader.decode(block, name)
            other = None
        except WalkitError:
            header, other = None, whole_header(block)
        if header is None or header.log_id != context.manifest.log_id:
            what = _what(block, header or other, context.manifest)
            context.notes.append(f"{name} is not named in the manifest: {what}")
            if nonzero_until(file, 0, size) or not context.live:
                _add_stray(context, name, header or other, size, [])
            return
        stop = header.start_position + size - SEGMENT_HEADER_BYTES
        begin = start_of(header)
        survey = SegmentSurvey(
            file, FrameSpan(name=name, header=header, begin=begin, end_position=stop, bodies=False)
        )
        ranges = [
            RangeVerdict(
                segment=name, start_position=s.start_position, end_position=s.end_position, verdict=Verdict.STALE,
                first_lsn=s.first_lsn, last_lsn=s.last_lsn, frames=s.frames, records=s.records,
                reason="intact frames of a segment that the manifest does not name",
            )
            for s in survey if s.intact
        ]  # fmt: skip
        rewound = f"{LOST_FOLDER}/{name}.rewound"
        kept = [n for n in context.storage.names(LOST_FOLDER) if n.startswith(rewound)]
        end = (
            header.offset_of(ranges[-1].end_position) if ranges else size
        )  # it may have its reserved space again
        was_rewound = any(is_kept(context.storage, n, file, 0, stop) for n in kept for stop in (end, size))
    finally:
        file.close()
    context.ranges += ranges
    _add_stray(context, name, header, size, ranges)
    if gathered_in(context.storage, context.manifest).has(name, header):
        context.notes.append(
            f"{name} is of a log that a replica gathered, to put it in the place of this one: the next opening as a "
            "replica does the rest"
        )
        return
    if was_rewound:
        context.notes.append(
            f"{name} was cut off by a rewind, which has kept it under {LOST_FOLDER}: the next opening removes it"
        )
        return
    promised = 0 if header.flags & SegmentFlag.IMPORTED else survey.promised_position
    if promised > context.end.position:
        context.problem(
            CorruptionError(
                f"segment {name} is not named in the manifest, and its frames promise the log up to "
                f"position {promised:,}, where it ends at {context.end.position:,}: "
                "the manifest is older than the log",
                segment=name,
                position=header.start_position,
                expected=promised,
                found=context.end.position,
                first_lost_lsn=max(header.first_lsn, context.end.last_lsn + 1),
            )
        )
        return
    work = leftover_of(header, context.manifest)
    what = f"a leftover of {work}" if work else "a leftover that nothing promised"
    context.notes.append(f"{name} is not named in the manifest: {what}; the next opening takes it away")


def _what(block: bytes, header: SegmentHeader | None, manifest: Manifest) -> str:
    if header is None:
        return "it has no header" if not any(block) else "its header is damaged"
    if header.log_id != manifest.log_id:
        return f"it is segment {header.number} of another log"
    return f"it holds segment {header.number} of this log under another name"


def _add_stray(
    context: ScanContext, name: str, header: SegmentHeader | None, size: int, ranges: list[RangeVerdict]
) -> None:
    digits = name.removesuffix(".segment")
    record = SegmentRecord(
        number=int(digits) if digits.isdecimal() else 0,
        state=SegmentState.PREPARED,
        epoch=0 if header is None else header.epoch,
    )
    context.add_segment(
        record, "stray", ranges, file_bytes=size, header=header, verdict=Verdict.STALE, name=name
    )


def check_snapshots(context: ScanContext) -> None:
    """Read each snapshot of this history whole; without `bodies` only note that there are some.

    A damaged one is a problem: after a trim the state may rest on it. One of another history is never used.
    """
    for name in context.storage.names():
        lsn = lsn_of_name(name)
        if lsn is None:
            continue
        if not context.bodies:
            context.snapshots_not_read = True
            return
        try:
            file = context.storage.open(name, "read")
            try:
                info = read_header(file)
                if info.identity != identity_at(context.manifest, lsn):
                    context.notes.append(f"{name} belongs to another history: not read, and never used")
                    continue
                for _ in read_frames(file, info):
                    pass
            finally:
                file.close()
        except StorageError as error:
            if error.errno != errno.ENOENT:  # a checkpoint may have removed it since
                context.problem(error, segment=name)
        except (CorruptionError, FormatVersionError) as error:
            context.problem(error, segment=name)


def note_other_files(context: ScanContext) -> None:
    """Note what else is in the folder: what earlier openings set aside, snapshots, and files that are not the log's."""
    own = (*OWN_NAMES, *REPLICATION_NAMES, f"{LOST_FOLDER}/")
    names = [
        n for n in context.storage.names() if n not in own and not n.endswith((".segment", ".segment.index"))
    ]
    try:
        kept = context.storage.names(LOST_FOLDER)
    except StorageError as error:
        kept = []
        context.notes.append(f"{LOST_FOLDER} could not be listed: {error}")
    if kept:
        what = counted(len(kept), "file")
        hold = "holds" if len(kept) == 1 else "hold"
        context.notes.append(f"{what} in {LOST_FOLDER} {hold} what earlier openings set aside")
    states = [lsn for n in names if (lsn := lsn_of_name(n)) is not None]
    if states:
        at = ", ".join(f"{lsn:,}" for lsn in states)
        context.notes.append(f"snapshots of the state stand beside the log, at LSN {at}")
    for fact in cursor_facts(context.storage):
        stands = f"stands at LSN {fact.lsn:,}" if fact.fault is None else f"cannot be used: {fact.fault}"
        context.notes.append(f"the cursor {fact.name!r} {stands}")
    for claim in claim_facts(context.storage, context.manifest):
        needs = f"needs LSN {claim.first_lsn:,} and what follows" if claim.fault is None else claim.fault
        context.notes.append(f"the claim {claim.name!r} ({claim.state}) {needs}")
    unfinished = [n for n in names if is_unfinished_name(n)]
    if not context.live:
        context.notes += [f"{n} is left of work that was cut short; it is never read" for n in unfinished]
    sidecars = (lsn_of_name, cursor_of_name, claim_of_name)
    names = [n for n in names if all(of(n) is None for of in sidecars) and n not in unfinished]
    if names:
        shown = ", ".join(names[:NAMES_SHOWN_MAX]) + (", ..." if len(names) > NAMES_SHOWN_MAX else "")
        are = "is" if len(names) == 1 else "are"
        context.notes.append(f"{counted(len(names), 'file')} {are} not the log's: {shown}")
