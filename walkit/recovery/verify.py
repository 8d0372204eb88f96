"""Tools without a writer: `scan` and `verify`. They read any log, in any state, and never change a byte of it.

They take no lock and disturb no writer. Damage ends in the report, not in an error. Only a path without a log, a
manifest of a newer format, or a place that cannot be listed raises.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from errno import ENOENT
from itertools import pairwise
from typing import Literal

from walkit._internal.arguments import check_progress
from walkit._internal.text import counted
from walkit.errors import (
    CorruptionError,
    FormatVersionError,
    HistoryTrimmedError,
    NotALogError,
    SegmentMissingError,
    StorageError,
    WalkitError,
)
from walkit.format.durable_slot import decode_slots
from walkit.format.file_names import claim_of_name, cursor_of_name, is_temporary_name, lsn_of_name
from walkit.format.frame import FrameIdentity
from walkit.format.layout import (
    ALIGNMENT_DIRECT,
    DURABLE_SLOT_STRIDE,
    DURABLE_SLOTS_BYTES,
    FORMAT_VERSION,
    SEGMENT_HEADER_BYTES,
    SegmentFlag,
    align_up,
)
from walkit.format.manifest import MANIFEST_NAME, LogEnd, Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.recovery.apply import is_kept
from walkit.recovery.judge import Judge
from walkit.recovery.log_scan import (
    Progress,
    SegmentFinding,
    read_durable_slot,
    refuse_broken_promise,
    region_within,
    scan_folder,
    start_of,
)
from walkit.recovery.rebuild import manifest_of
from walkit.recovery.scan_report import (
    FrameRows,
    Problem,
    RangeVerdict,
    ScanReport,
    SegmentFacts,
    SegmentUse,
    Verdict,
    worst,
)
from walkit.recovery.snapshot_reader import read_frames, read_header
from walkit.recovery.survey import FrameSpan, SegmentSurvey, nonzero_until
from walkit.segments.consumer_files import claim_facts, cursor_facts
from walkit.segments.history import identity_at, whole_header
from walkit.segments.manifest_store import (
    DURABLE_NAME,
    LOCK_NAME,
    LOST_FOLDER,
    OWN_NAMES,
    REPLICATION_NAMES,
    load_manifest,
)
from walkit.segments.orphan_files import orphaned_by, staged_in
from walkit.segments.writer_lock import has_writer
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import Storage

NAMES_SHOWN_MAX = 5
ATTEMPTS = 4
"""How often a log is read that a writer opens, closes or trims while it is read."""
_OF_ALL = {"prepared": Verdict.UNUSED, "stray": Verdict.STALE}
"""The verdict of segments in which nothing is judged."""


class ScanResults:
    """Ranges, segments, problems and notes of one pass over a log."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.storage, self.manifest, self.live = judge.storage, judge.manifest, judge.live
        self.ranges: list[RangeVerdict] = []
        self.segments: list[SegmentFacts] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.snapshots_not_read = False
        self.findings: list[SegmentFinding] = []
        """The segments that were surveyed, in the order of the log."""
        self.newest_manifest = (0, "")
        """The newest manifest that a segment's header promises, and the segment's name."""

    def take_segments(self) -> None:
        """Read and judge all segments, and note the rows."""
        for finding, rows in self.judge.segments():
            first_range = len(self.ranges)
            for row in rows:
                if isinstance(row, RangeVerdict):
                    self.ranges.append(row)
                elif isinstance(row, Problem):
                    self.problems.append(row)
                else:
                    self.notes.append(row)
            if finding is None:
                continue
            header = finding.header
            if header is not None:
                self.newest_manifest = max(self.newest_manifest, (header.manifest_generation, finding.name))
                self.findings.append(finding)
            used = header is not None or finding.error is not None
            use: SegmentUse = "sealed" if finding.sealed else "open" if used else "prepared"
            self.add_segment(finding.record, use, self.ranges[first_range:], finding.file_bytes, header)

    def problem(self, error: WalkitError, *, segment: str | None = None, position: int | None = None) -> None:
        """Note a fault."""
        self.problems.append(Problem.of(error, segment=segment, position=position))

    def add_segment(
        self,
        record: SegmentRecord,
        use: SegmentUse,
        ranges: list[RangeVerdict],
        file_bytes: int,
        header: SegmentHeader | None,
        name: str = "",
    ) -> None:
        """Note the facts of a segment, from its ranges. `name` is that of its file if the record's is not."""
        held = [r for r in ranges if r.frames]
        lsns = [lsn for r in held for lsn in (r.first_lsn, r.last_lsn) if lsn is not None]
        start = record.start_position if header is None else header.start_position
        self.segments.append(
            SegmentFacts(
                name=name or record.name,
                state=use,
                epoch=record.epoch,
                start_position=start,
                end_position=record.end_position or max((r.end_position for r in held), default=start),
                first_lsn=record.first_lsn or min(lsns, default=None),
                last_lsn=record.last_lsn or max(lsns, default=None),
                frames=sum(r.frames for r in held),
                records=sum(r.records for r in held),
                file_bytes=file_bytes,
                created_us=record.created_us or (0 if header is None else header.created_us),
                verdict=_OF_ALL.get(use) or worst(ranges),
            )
        )


def check_manifest(results: ScanResults) -> None:
    """Hold the manifest's facts against each other: a right checksum over wrong facts is a fault too."""
    for what, expected, found, record in _manifest_facts(results.manifest):
        if expected != found:
            where = "" if record is None else f" at segment {record.name}"
            results.problem(
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
        is_lost = any(before.end_position <= g.start_position < record.start_position for g in manifest.lost)
        if epoch is not None and record.epoch != before.epoch and not is_lost:
            placed = align_up(epoch.position, ALIGNMENT_DIRECT) == record.start_position
            position = record.start_position if placed or _has_moved(record) else epoch.position
            began = LogEnd(last_lsn=epoch.first_lsn - 1, position=position, chain=epoch.chain)
            yield f"epoch {epoch.number} starts with it", began, wanted, record
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


def check_durable_file(results: ScanResults) -> None:
    """Hold the durable slot against the frames. It is never synced, so an old or empty one is not a fault."""
    manifest, slot = results.manifest, results.judge.slot
    cell = results.storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=False)
    if cell is None:
        if manifest.lineage:
            results.notes.append("no durable slot: promises come from frames and the manifest alone")
        return
    try:
        block = cell.read()
    finally:
        cell.close()
    halves = (block[:DURABLE_SLOT_STRIDE], bytes(DURABLE_SLOT_STRIDE) + block[DURABLE_SLOT_STRIDE:])
    torn = [half for half in halves if any(half) and not decode_slots(half).generation]
    if slot.generation and torn and not results.live:
        results.notes.append("one copy of the durable slot is damaged; the other one is used")
    if not slot.generation:
        if any(block):
            results.notes.append(
                "no copy of the durable slot is whole, as after a power cut; nothing rests on it"
            )
        return
    if not results.judge.slot_known:
        results.notes.append(
            f"the durable slot is of epoch {slot.epoch}, which is not in the lineage; it was not used"
        )
        return
    sealed = manifest.sealed
    begins = sealed[0].start_position if sealed else manifest.end.position
    as_written = max([begins, *(s.end_position for s in sealed if _has_moved(s))])
    if any(g.start_position < slot.position <= g.end_position for g in manifest.lost):
        return  # its records have been given up
    if not as_written < slot.position <= results.judge.end.position:
        return  # before the frames that are still as written, or after the intact log, which has a problem of its own
    if results.problems:
        return
    try:
        found = _lsn_at(results, slot.position)
    except SegmentMissingError:
        return  # a trim has removed it since it was judged
    if found != slot.lsn:
        results.problem(
            CorruptionError(
                f"the durable slot names position {slot.position:,} and LSN {slot.lsn:,}; "
                f"the frame that ends there has LSN {found}",
                segment=DURABLE_NAME,
                position=slot.position,
                expected=slot.lsn,
                found=found,
            )
        )


def _lsn_at(results: ScanResults, position: int) -> int | None:
    """Return the last LSN of the intact frame that ends at `position`; None without one."""
    for finding in results.findings:
        for region in finding.regions:
            if region.intact and region.start_position < position <= region.end_position:
                within = region_within(results.storage, finding, region, position)
                if within is not None and within.end_position == position:
                    return within.after.last_lsn
    return None


def note_orphans(results: ScanResults) -> None:
    """Note segment files that the manifest does not name. One that promises more than the log holds is a problem."""
    storage = results.storage
    named = {s.name for s in results.manifest.segments}
    orphans = [n for n in storage.names() if n.endswith(".segment") and n not in named]
    if orphans and results.live:
        named = {s.name for s in load_manifest(storage).segments}  # a writer makes a file before it names it
        orphans = [n for n in orphans if n not in named]
    for name in orphans:
        try:
            _note_orphan(results, name)
        except StorageError as error:
            results.notes.append(f"{name} is not named in the manifest, and could not be read: {error}")


def _note_orphan(results: ScanResults, name: str) -> None:
    file = results.storage.open(name, "read")
    try:
        size, block = file.size(), file.read(0, SEGMENT_HEADER_BYTES)
        try:
            header = SegmentHeader.decode(block, name)
            other = None
        except WalkitError:
            header, other = None, whole_header(block)
        if header is None or header.log_id != results.manifest.log_id:
            what = _what(block, header or other, results.manifest)
            results.notes.append(f"{name} is not named in the manifest: {what}")
            if nonzero_until(file, 0, size) or not results.live:
                _add_orphan(results, name, header or other, size, [])
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
        kept = [n for n in results.storage.names(LOST_FOLDER) if n.startswith(rewound)]
        end = (
            header.offset_of(ranges[-1].end_position) if ranges else size
        )  # it may have its reserved space again
        was_rewound = any(is_kept(results.storage, n, file, 0, stop) for n in kept for stop in (end, size))
    finally:
        file.close()
    results.ranges += ranges
    _add_orphan(results, name, header, size, ranges)
    if staged_in(results.storage, results.manifest).has(name, header):
        results.notes.append(
            f"{name} belongs to a log that a replica gathered to replace this one: the next opening as a "
            "replica does the rest"
        )
        return
    if was_rewound:
        results.notes.append(
            f"{name} was cut off by a rewind, which has kept it under {LOST_FOLDER}: the next opening removes it"
        )
        return
    promised = 0 if header.flags & SegmentFlag.IMPORTED else survey.promised_position
    if promised > results.judge.end.position:
        results.problem(
            CorruptionError(
                f"segment {name} is not named in the manifest, and its frames promise the log up to "
                f"position {promised:,}, but it ends at {results.judge.end.position:,}: "
                "the manifest is older than the log",
                segment=name,
                position=header.start_position,
                expected=promised,
                found=results.judge.end.position,
                first_lost_lsn=max(header.first_lsn, results.judge.end.last_lsn + 1),
            )
        )
        return
    work = orphaned_by(header, results.manifest)
    what = f"a leftover of {work}" if work else "a leftover that nothing promised"
    results.notes.append(f"{name} is not named in the manifest: {what}; the next opening takes it away")


def _what(block: bytes, header: SegmentHeader | None, manifest: Manifest) -> str:
    if header is None:
        return "it has no header" if not any(block) else "its header is damaged"
    if header.log_id != manifest.log_id:
        return f"it is segment {header.number} of another log"
    return f"it holds segment {header.number} of this log under another name"


def _add_orphan(
    results: ScanResults, name: str, header: SegmentHeader | None, size: int, ranges: list[RangeVerdict]
) -> None:
    record = SegmentRecord(number=0, state=SegmentState.PREPARED, epoch=0 if header is None else header.epoch)
    results.add_segment(record, "stray", ranges, size, header, name)


def check_snapshots(storage: Storage, manifest: Manifest, notes: list[str]) -> list[Problem]:
    """Read each snapshot of this history whole, and return a problem for each damaged one.

    After a checkpoint's trim, which `manifest` has, the state rests on one: it is a problem if none is whole. One of
    another history is never used, which is noted.
    """
    listed = {name: lsn for name in storage.names() if (lsn := lsn_of_name(name)) is not None}
    now = manifest_of(storage)[0]  # read afterwards, it has the history of each that is listed
    newest, was_replaced, faults = 0, False, dict[str, WalkitError]()
    for name, lsn in listed.items():
        try:
            found = _read_snapshot(storage, name, identity_at(now, lsn))
        except (StorageError, CorruptionError, FormatVersionError) as error:
            faults[name] = error
            continue
        newest = max(newest, lsn if found == "whole" else 0)
        was_replaced |= found == "replaced"
        if found == "foreign":
            notes.append(f"{name} belongs to another history: not read, and never used")
    needed_lsn = manifest.low_watermark if manifest.checkpoint_lsn else 0
    if newest < needed_lsn and not was_replaced and not faults:
        faults[MANIFEST_NAME] = HistoryTrimmedError(1, needed_lsn + 1)
    return [Problem.of(error, segment=name) for name, error in faults.items()]


def _read_snapshot(
    storage: Storage, name: str, history: FrameIdentity
) -> Literal["whole", "foreign", "replaced"]:
    """Read a snapshot whole, or the header of a foreign one; "replaced" if a writer replaced it each time."""
    missing = ""
    for _ in range(ATTEMPTS):
        try:
            file = storage.open(name, "read")
            try:
                info = read_header(file)
                if info.identity != history:
                    return "foreign"
                for _ in read_frames(file, info):
                    pass
                return "whole"
            finally:
                file.close()
        except StorageError as error:
            # The same object is missing again, though it is the snapshot.
            if error.errno != ENOENT or (f"{error}" == missing and name in storage.names()):
                raise
            missing = f"{error}"
    return "replaced"


def note_other_files(results: ScanResults) -> None:
    """Note the other files in the folder: those that earlier openings set aside, snapshots, and foreign files."""
    own = (*OWN_NAMES, *REPLICATION_NAMES, f"{LOST_FOLDER}/")
    names = [
        n for n in results.storage.names() if n not in own and not n.endswith((".segment", ".segment.index"))
    ]
    try:
        kept = results.storage.names(LOST_FOLDER)
    except StorageError as error:
        kept = []
        results.notes.append(f"{LOST_FOLDER} could not be listed: {error}")
    if kept:
        what = counted(len(kept), "file")
        hold = "holds" if len(kept) == 1 else "hold"
        results.notes.append(f"{what} in {LOST_FOLDER} {hold} what earlier openings set aside")
    states = [lsn for n in names if (lsn := lsn_of_name(n)) is not None]
    if states:
        at = ", ".join(f"{lsn:,}" for lsn in states)
        results.notes.append(f"snapshots of the state are beside the log, at LSN {at}")
    for fact in cursor_facts(results.storage):
        stands = f"is at LSN {fact.lsn:,}" if fact.fault is None else f"cannot be used: {fact.fault}"
        results.notes.append(f"the cursor {fact.name!r} {stands}")
    for claim in claim_facts(results.storage, results.manifest):
        needs = f"needs LSN {claim.first_lsn:,} and what follows" if claim.fault is None else claim.fault
        results.notes.append(f"the claim {claim.name!r} ({claim.state}) {needs}")
    temporary = [n for n in names if is_temporary_name(n)]
    if not results.live:
        results.notes += [f"{n} is left of work that was cut short; it is never read" for n in temporary]
    sidecars = (lsn_of_name, cursor_of_name, claim_of_name)
    names = [n for n in names if all(of(n) is None for of in sidecars) and n not in temporary]
    if names:
        shown = ", ".join(names[:NAMES_SHOWN_MAX]) + (", ..." if len(names) > NAMES_SHOWN_MAX else "")
        are = "is" if len(names) == 1 else "are"
        results.notes.append(f"{counted(len(names), 'file')} {are} not the log's: {shown}")


def scan(path: Place, *, bodies: bool = True, progress: Progress | None = None) -> ScanReport:
    """Return the content of a log in a folder: see `walkit.scan`."""
    return _examine(storage_at(path), "scan", bodies=bodies, progress=progress)


def verify(path: Place, *, progress: Progress | None = None) -> ScanReport:
    """Check a log in a folder: see `walkit.verify`."""
    return _examine(storage_at(path), "verify", bodies=True, progress=progress)


def _examine(
    storage: Storage, tool: Literal["scan", "verify"], *, bodies: bool, progress: Progress | None
) -> ScanReport:
    check_progress(progress, "(bytes read, bytes to read)")
    began = time.perf_counter()
    decode = tool == "verify"
    for attempt in range(ATTEMPTS):
        live = storage.is_locked(LOCK_NAME)
        # Before the manifest, so that it names every segment that the slot covers.
        slot = read_durable_slot(storage)
        manifest, _, damage = manifest_of(storage)
        live = live or has_writer(storage, manifest)
        results = ScanResults(
            Judge(storage, manifest, slot, live=live, bodies=bodies, decode=decode, progress=progress)
        )
        if damage is not None:
            results.problem(_damage_of(manifest, damage), segment=MANIFEST_NAME)
        results.take_segments()
        note_orphans(results)
        if damage is None and not live:
            _note_refusal(results)
        if decode:
            if damage is None:
                check_manifest(results)
            check_durable_file(results)
            note_other_files(results)
        if bodies:
            results.problems += check_snapshots(storage, manifest, results.notes)
        else:
            results.snapshots_not_read = any(lsn_of_name(name) is not None for name in storage.names())
        if not results.problems or attempt == ATTEMPTS - 1 or not _has_changed(storage, live, manifest):
            break
    return _report(results, tool, began)


def _note_refusal(results: ScanResults) -> None:
    """Add why the next opening refuses the log, if no range has the reason."""
    refusal: CorruptionError | StorageError | None = results.judge.refusal
    try:
        scan_folder(results.storage, results.manifest, results.judge.slot)
        refuse_broken_promise(results.storage, results.manifest, *results.newest_manifest)
    except (CorruptionError, StorageError) as error:
        refusal = error
    if refusal is None:
        return
    segment = refusal.name if isinstance(refusal, StorageError) else refusal.segment
    position = None if isinstance(refusal, StorageError) else refusal.position
    reported = {place for problem in results.problems for place in (problem.segment, problem.position)}
    if segment not in reported and position not in reported:
        results.problem(refusal, segment=segment)


def _has_changed(storage: Storage, live: bool, manifest: Manifest) -> bool:
    """Say whether a writer has come, gone, or changed the manifest since: apparent damage may be its work."""
    try:
        return (
            has_writer(storage, manifest) != live or load_manifest(storage).generation != manifest.generation
        )
    except WalkitError:
        return False


def _damage_of(manifest: Manifest, error: CorruptionError | NotALogError) -> CorruptionError:
    """Return the problem of a damaged manifest, which a rebuilt one replaces here."""
    if isinstance(error, CorruptionError):
        return error
    return CorruptionError(
        f"the manifest does not begin like one, beside {counted(len(manifest.segments), 'segment')}",
        segment=MANIFEST_NAME,
        expected="a manifest",
        found=error.reason,
    )


def _report(results: ScanResults, tool: Literal["scan", "verify"], began: float) -> ScanReport:
    storage, manifest, decode = results.storage, results.manifest, results.judge.decode
    spans = tuple(f.span for f in results.findings if f.span is not None)
    intact = [r for r in results.ranges if r.verdict is Verdict.INTACT]
    held = [r for r in results.ranges if r.verdict in (Verdict.INTACT, Verdict.NOT_READ)]
    lsns = [r.last_lsn for r in held if r.last_lsn is not None]
    firsts = [r.first_lsn for r in held if r.first_lsn is not None]
    last_lsn = max(lsns, default=manifest.end.last_lsn)
    unsealed = bool(manifest.unsealed)
    return ScanReport(
        location=storage.location,
        tool=tool,
        state="live" if results.live else "unclosed" if unsealed else "closed",
        bodies_read=results.judge.bodies,
        snapshots_not_read=results.snapshots_not_read,
        format_version=FORMAT_VERSION,
        log_id=manifest.log_id,
        generation=manifest.generation,
        epochs=len(manifest.lineage),
        low_watermark=manifest.low_watermark,
        first_lsn=max(min(firsts, default=last_lsn + 1), manifest.low_watermark + 1),
        last_lsn=last_lsn,
        end_position=results.judge.end.position,
        promised_position=results.judge.promised,
        frames_checked=sum(r.frames for r in intact),
        records_checked=sum(r.records for r in intact),
        bytes_checked=sum(r.size_bytes for r in intact),
        duration_s=time.perf_counter() - began,
        verdict=tuple(results.ranges),
        segments=tuple(results.segments),
        problems=tuple(_worst_first(results.problems)),
        notes=tuple(results.notes),
        frame_rows=FrameRows(storage, spans, decode=decode),
    )


def _worst_first(problems: list[Problem]) -> list[Problem]:
    """Missing segments before damage within them; otherwise in the order of the log."""
    return sorted(problems, key=lambda p: not isinstance(p.error, SegmentMissingError))
