"""Recovery: facts in, one decision out per segment, a plan, and `apply` as the only code that changes files.

The decision is a table (TigerBeetle's journal is the model): for every combination of facts exactly one row matches,
which a test proves. Rows are about one unsealed segment, in the order of the log; what is sealed is vouched for by the
manifest, and any damage there is corruption.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from enum import Enum

from walkit.errors import CorruptionError, StorageError
from walkit.format.frame import FrameFault
from walkit.format.layout import SEGMENT_HEADER_BYTES, ZEROS
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.log.leftover import leftover_of
from walkit.log.manifest_store import LOST_FOLDER, ManifestStore
from walkit.log.report import Cut
from walkit.log.scan import LogFindings, SegmentFinding, nonzero_until
from walkit.log.segments import with_sealed
from walkit.storage.base import Storage


class Decision(Enum):
    """What to do with an unsealed segment."""

    DROP = "it was made ahead and never used: remove it"
    SEAL = "all its frames are intact and nothing stands behind them: seal it"
    CUT = (
        "what stands behind its intact frames was never promised: seal it there, keep the bytes in lost+found"
    )
    CUT_WHOLE = (
        "nothing in it follows from the log, and nothing of it was promised: keep the file in lost+found"
    )
    REFUSE = "something in it was promised and is not intact: corruption of acknowledged data"
    REFUSE_TAIL = "the policy refuses any damage, also that of a tail that was never promised"


FACT_NAMES = ("header_right", "follows", "bytes_behind", "promised_beyond", "absolute")
"""Its header is right; it follows where the log ends; nonzero bytes stand behind its intact frames; the intact log
ends in it before what was promised; the policy is absolute."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the decision table; None matches both."""

    label: str
    facts: tuple[bool | None, bool | None, bool | None, bool | None, bool | None]
    decision: Decision

    def matches(self, facts: tuple[bool, ...]) -> bool:
        """Say whether the row is for these facts."""
        return all(want is None or want == have for want, have in zip(self.facts, facts, strict=True))


DECISION_TABLE: tuple[Row, ...] = (
    #             header  follows  behind  promised absolute
    Row("A", (None, None, None, True, None), Decision.REFUSE),
    Row("B", (False, None, False, False, None), Decision.DROP),
    Row("C", (False, None, True, False, False), Decision.CUT_WHOLE),
    Row("D", (False, None, True, False, True), Decision.REFUSE_TAIL),
    Row("E", (True, True, False, False, None), Decision.SEAL),
    Row("F", (True, True, True, False, False), Decision.CUT),
    Row("G", (True, True, True, False, True), Decision.REFUSE_TAIL),
    Row("H", (True, False, None, False, False), Decision.CUT_WHOLE),
    Row("I", (True, False, None, False, True), Decision.REFUSE_TAIL),
)


def decide(facts: tuple[bool, ...]) -> Row:
    """Return the one row for these facts."""
    (row,) = [r for r in DECISION_TABLE if r.matches(facts)]
    return row


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to one unsealed segment."""

    finding: SegmentFinding
    row: Row
    facts: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What opening for writing will do, and where the log will end."""

    findings: LogFindings
    steps: tuple[Step, ...]
    manifest: Manifest
    """The manifest after the plan."""

    @property
    def end(self) -> LogEnd:
        """Where the log ends after the plan."""
        return self.manifest.end

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The tails that the plan cuts off."""
        return tuple(_cut_of(s) for s in self.steps if s.row.decision in (Decision.CUT, Decision.CUT_WHOLE))


def make_plan(findings: LogFindings, policy: str) -> RecoveryPlan:
    """Decide. Raises CorruptionError where the table refuses; changes nothing.

    Policy "prefix" cuts an unpromised tail and refuses corruption; "absolute" refuses any damage.
    """
    absolute = policy == "absolute"
    manifest = findings.manifest
    for finding in findings.sealed:
        if finding.fault is not None:
            raise corruption(finding, "a sealed segment is damaged")
    promised = findings.promised_position
    steps: list[Step] = []
    end = manifest.end
    whole = True
    broken = _first_break(findings, promised)
    for finding in findings.unsealed:
        follows = finding.header is not None and whole and finding.follows
        behind = finding.nonzero_until > (finding.end_offset if follows else 0)
        used = finding.header is not None
        facts = (used, follows, behind, finding is broken, absolute)
        row = decide(facts)
        steps.append(Step(finding, row, facts))
        if row.decision is Decision.REFUSE:
            raise corruption(finding, f"frames were promised up to position {promised:,}", promised=promised)
        if row.decision is Decision.REFUSE_TAIL:
            raise corruption(finding, "the tail is damaged, and recovery='absolute' refuses any damage")
        if row.decision in (Decision.SEAL, Decision.CUT):
            end = LogEnd(last_lsn=finding.last_lsn, position=finding.end_position, chain=finding.chain)
            manifest = with_sealed(manifest, _record_of(finding))
            whole = row.decision is Decision.SEAL
        else:
            name = finding.record.number
            manifest = manifest.next(segments=tuple(s for s in manifest.segments if s.number != name))
            whole = whole and row.decision is Decision.DROP
    if end.position < promised:
        raise CorruptionError(
            f"frames were promised up to position {promised:,}, and the log ends at {end.position:,}: "
            "acknowledged data is missing. Nothing was changed",
            position=end.position,
            expected=promised,
            found=end.position,
            first_lost_lsn=end.last_lsn + 1,
        )
    told = max(manifest.low_watermark, manifest.checkpoint_lsn)
    if end.last_lsn < told:
        raise CorruptionError(
            f"the manifest says that the log was durable up to LSN {told:,}, and the log ends at {end.last_lsn:,}: "
            "acknowledged data is missing. Nothing was changed",
            position=end.position,
            expected=f"a log that reaches LSN {told}",
            found=end.last_lsn,
            first_lost_lsn=end.last_lsn + 1,
        )
    if manifest is not findings.manifest:
        manifest = replace(manifest, generation=findings.manifest.generation + 1)
    return RecoveryPlan(findings, tuple(steps), manifest)


def _first_break(findings: LogFindings, promised: int) -> SegmentFinding | None:
    """Return the segment in which the intact log ends before what was promised; None where it does not."""
    position = findings.manifest.end.position
    last: SegmentFinding | None = None
    for finding in findings.unsealed:
        if finding.header is None or not finding.follows:
            return finding if position < promised else None
        position = finding.end_position
        last = finding
        if finding.nonzero_until > finding.end_offset:
            break
    return last if position < promised else None


def _record_of(finding: SegmentFinding) -> SegmentRecord:
    header = finding.header
    assert header is not None
    return SegmentRecord(
        number=finding.record.number,
        state=SegmentState.SEALED,
        epoch=header.epoch,
        start_position=header.start_position,
        end_position=finding.end_position,
        first_lsn=header.first_lsn,
        last_lsn=finding.last_lsn,
        start_chain=header.chain,
        end_chain=finding.chain,
        records=finding.records,
        frames=finding.frames,
        created_us=header.created_us,
        flags=int(header.flags),
    )


def _reason(finding: SegmentFinding) -> str:
    if finding.header_error is not None:
        return str(finding.header_error)
    if not finding.follows:
        return "the segment does not follow where the log ends"
    fault = finding.fault or FrameFault.END
    behind = f"; {finding.frames_behind} intact frames stand behind it" if finding.frames_behind else ""
    return f"{fault.value}{behind}"


def _cut_of(step: Step) -> Cut:
    finding = step.finding
    whole = step.row.decision is Decision.CUT_WHOLE
    offset = 0 if whole else finding.end_offset
    return Cut(
        segment=finding.name,
        position=finding.end_position,
        bytes=finding.nonzero_until - offset,
        first_lsn=finding.last_lsn + 1,
        reason=_reason(finding),
        kept_as=f"{LOST_FOLDER}/{finding.name}" + ("" if whole else f".{finding.end_position}.tail"),
    )


def corruption(finding: SegmentFinding, why: str, *, promised: int | None = None) -> CorruptionError:
    """Return the error for damage in this segment, with what was expected and found."""
    header = finding.at_fault
    return CorruptionError(
        f"segment {finding.name} is damaged at position {finding.end_position:,}: {_reason(finding)}. "
        f"{why[0].upper()}{why[1:]}. Nothing was changed",
        segment=finding.name,
        position=finding.end_position,
        expected=f"LSN {finding.last_lsn + 1}"
        if promised is None
        else f"intact frames up to position {promised}",
        found=(finding.fault or FrameFault.END).name
        + (f" (LSN {header.first_lsn}, position {header.position})" if header is not None else ""),
        first_lost_lsn=finding.last_lsn + 1,
    )


def apply_plan(storage: Storage, store: ManifestStore, plan: RecoveryPlan) -> None:
    """Make the plan true: the manifest first, then the files. Doing it again, also after a crash, changes nothing more.

    Bytes that are cut off or set aside are kept under lost+found, durably, before they go from where they were.
    """
    if plan.manifest is not plan.findings.manifest:
        store.update(lambda _: plan.manifest)
    changed = False
    for finding in plan.findings.sealed:
        changed |= _tidy_end(storage, finding)
    for step in plan.steps:
        finding = step.finding
        if step.row.decision in (Decision.SEAL, Decision.CUT) and finding.end_position > _start_of(finding):
            _tidy_end(storage, finding)
        else:
            changed |= _set_aside(storage, finding.name, keep=step.row.decision is Decision.CUT_WHOLE)
    for name in plan.findings.strays:
        changed |= _set_aside(storage, name, keep=not _is_leftover(storage, name, plan.manifest))
    if changed:
        storage.sync_directory()


def _start_of(finding: SegmentFinding) -> int:
    return 0 if finding.header is None else finding.header.start_position


def _tidy_end(storage: Storage, finding: SegmentFinding) -> bool:
    """Keep what stands behind the sealed end under lost+found, then shorten the file."""
    if finding.file_bytes <= finding.end_offset:
        return False
    file = storage.open(finding.name, "write")
    try:
        size = file.size()
        until = nonzero_until(file, finding.end_offset, size)
        if until > finding.end_offset:
            tail = file.read(finding.end_offset, until - finding.end_offset)
            _keep(storage, f"{finding.name}.{finding.end_position}.tail", tail)
        file.shorten(finding.end_offset)
        file.sync()
    finally:
        file.close()
    return True


def _set_aside(storage: Storage, name: str, *, keep: bool) -> bool:
    """Take a whole file out of the log: under lost+found where it holds anything to keep, else away."""
    try:
        file = storage.open(name, "read")
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    try:
        until = nonzero_until(file, 0, file.size()) if keep else 0
        data = file.read(0, until)
    finally:
        file.close()
    if data:
        _keep(storage, name, data)
    storage.remove(name)
    return True


def _keep(storage: Storage, name: str, data: bytes) -> None:
    number = 0
    while True:
        target = f"{LOST_FOLDER}/{name}" + (f".{number}" if number else "")
        try:
            file = storage.open(target, "create")
            break
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
            if _holds(storage, target, data):
                return
            number += 1
    try:
        for offset in range(0, len(data), len(ZEROS)):
            file.write(offset, [data[offset : offset + len(ZEROS)]])
        file.sync()
    finally:
        file.close()
    storage.sync_directory(LOST_FOLDER)
    storage.sync_directory()


def _holds(storage: Storage, name: str, data: bytes) -> bool:
    file = storage.open(name, "read")
    try:
        return file.size() == len(data) and file.read(0, len(data)) == data
    finally:
        file.close()


def _is_leftover(storage: Storage, name: str, manifest: Manifest) -> bool:
    """Say whether an unnamed segment is what trimming or compaction left: nothing in it is needed."""
    file = storage.open(name, "read")
    try:
        header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), name)
    except CorruptionError:
        return False
    finally:
        file.close()
    return header is not None and leftover_of(header, manifest) is not None


def settle_unsealed(storage: Storage, manifest: Manifest) -> None:
    """Before anything of an unsealed segment is trusted: sync it and drop its cached pages.

    What was only in the page cache, of a killed writer or behind a failed fsync, must not be sealed as if it were on
    disk: after a failed fsync the pages look clean, and only the device says what is there.
    """
    for record in manifest.unsealed:
        try:
            file = storage.open(record.name, "write")
        except StorageError as error:
            if error.errno == errno.ENOENT:
                continue
            raise
        try:
            file.sync()
            file.drop_cached()
        finally:
            file.close()
