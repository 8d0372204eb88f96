"""From the bytes of a log to a recovery plan, by any policy. `walkit.recovery.apply` applies it.

The decision is a table (`walkit.recovery.decision`). Its rows are about one unsealed segment, in the order of the
log; what is sealed is vouched for by the manifest, and any damage there is corruption.

Policies: "prefix" cuts the tail that nothing promised, "holes" keeps intact frames after a hole in it, "absolute"
refuses any damage, "salvage" gives up what is damaged and says what (`walkit.recovery.salvage`). What stands after a
hole may have been acknowledged where the log acknowledges in completion order: there "prefix" means "holes".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from walkit.errors import CorruptionError
from walkit.events import EventSink
from walkit.format.durable_slot import DurableSlot
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import LogEnd, Manifest
from walkit.recovery.decision import Decision, Facts, decide
from walkit.recovery.log_builder import LogBuilder, PlanStep, RecoveryPlan, corruption, decide_and_seal
from walkit.recovery.log_scan import LogFindings, Progress, SegmentFinding, scan_folder, scan_log, start_of
from walkit.recovery.report import RecoveryReport
from walkit.recovery.survey import Region
from walkit.storage.interface import Storage


def plan_recovery(
    storage: Storage,
    manifest: Manifest,
    slot: DurableSlot,
    policy: str,
    *,
    deep: bool = False,
    progress: Progress | None = None,
) -> RecoveryPlan:
    """Look at a log and decide by this policy; `deep` reads the frames of sealed segments, too. Changes nothing.

    Raises what `scan_log`, `make_plan` and `make_salvage_plan` raise.
    """
    if policy == "salvage":
        # Imported only here: it is half of what an opening would have to load.
        from walkit.recovery.salvage import make_salvage_plan

        return make_salvage_plan(storage, scan_folder(storage, manifest, slot, salvage=True), progress)
    findings = scan_log(storage, manifest, slot, deep=deep or policy == "absolute", progress=progress)
    return make_plan(findings, policy)


def make_plan(findings: LogFindings, policy: str) -> RecoveryPlan:
    """Decide. Raises CorruptionError where the table refuses; changes nothing."""
    policy = policy_for(findings, policy)
    for finding in findings.sealed:
        _refuse_damage(finding)
    manifest, promised = findings.manifest, findings.promised_position
    log = LogBuilder(manifest, promised, manifest.end, list(manifest.sealed), list(manifest.gaps))
    broken = _first_break(findings, promised)
    short = names_cut_short(findings.unsealed)
    unlocated: SegmentFinding | None = None
    steps: list[PlanStep] = []
    whole = True
    for finding in findings.unsealed:
        if finding.other is not None and finding.other.name == finding.name:
            # Whole, and of another log or epoch: no crash leaves that, and what another writer acknowledged is not cut.
            why = "another writer made it; `walkit repair --policy salvage` makes a log of each history that is here"
            raise corruption(finding, why, end=log.end)
        follows = finding.header is not None and whole and finding.follows
        kept = _kept(log.end, finding, follows, unlocated) if policy == "holes" else []
        facts = Facts(
            header_right=finding.header is not None,
            follows=follows,
            bytes_after=finding.nonzero_until > (finding.end_offset if follows else 0),
            promised_beyond=finding is broken,
            keeps_frames=bool(kept),
            absolute=policy == "absolute",
            cut_short=finding.name in short,
        )
        own = finding.regions[:1] if follows and finding.frames else []
        step = decide_and_seal(log, finding, facts, [*own, *kept])
        if step.row.decision is Decision.CUT_WHOLE and finding.error is not None:
            unlocated = unlocated or finding
        steps.append(step)
        cut = step.row.decision is Decision.CUT and finding.continued
        whole = whole and (cut or step.row.decision in (Decision.SEAL, Decision.DROP))
    _refuse_missing(manifest, log.end, promised)
    return RecoveryPlan(findings, policy, tuple(steps), log.manifest_after())


def policy_for(findings: LogFindings, policy: str) -> str:
    """Return the policy to apply: what may have been acknowledged after a hole is never cut."""
    headers = [f.header for f in findings.unsealed if f.header is not None]
    unordered = findings.manifest.ack_order == "completion" or any(
        h.flags & SegmentFlag.COMPLETION_ORDER for h in headers
    )
    return "holes" if policy == "prefix" and unordered else policy


def _refuse_damage(finding: SegmentFinding) -> None:
    """Refuse a sealed segment whose frames were read, and are not all there and intact."""
    record, header, damage = finding.record, finding.header, finding.damage
    assert header is not None
    last = finding.regions[-1].after if finding.regions else finding.end
    chain = header.end_chain if header.flags & SegmentFlag.COMPACTED else last.chain
    broken = damage is not None or chain != record.end_chain
    facts = Facts(header_right=True, follows=True, promised_beyond=broken, not_read=finding.span is None)
    if decide(facts).decision is not Decision.REFUSE:
        return
    position = record.end_position if damage is None else damage.start_position
    before = next((r for r in finding.regions if r.end_position == position), None)
    end = LogEnd(
        last_lsn=record.first_lsn - 1 if before is None else before.after.last_lsn, position=position
    )
    raise corruption(finding, "a sealed segment is damaged", end=end)


def _kept(
    end: LogEnd, finding: SegmentFinding, follows: bool, unlocated: SegmentFinding | None
) -> list[Region]:
    """Return the intact frames that stand after a hole. CorruptionError where one does not fit what is before it.

    No crash leaves such a frame, and what was acknowledged must be neither cut nor put in the wrong place. `unlocated`
    is a used segment before it whose header is damaged, so that nothing tells where its frames belong.
    """
    header = finding.header
    if header is None or not finding.beyond:
        return []
    if unlocated is not None:
        why = "its header was on stable storage before any frame after it was written"
        raise corruption(unlocated, why, end=end)
    fits = follows or _fits(end, replace(start_of(header), position=header.previous_end))
    end = finding.end if follows else start_of(header)
    for region in finding.beyond:
        fits = fits and region.misplaced is None and _fits(end, region.before)
        if not fits:
            why = "an intact frame after a hole does not follow what is before it"
            raise corruption(finding, why, end=finding.end)
        end = region.after
    return finding.beyond


def _fits(end: LogEnd, before: LogEnd) -> bool:
    """Say whether what follows `before` follows `end`, at once or after a hole."""
    if before.position == end.position:
        return before == end
    return before.position > end.position and before.last_lsn >= end.last_lsn


def _refuse_missing(manifest: Manifest, end: LogEnd, promised: int) -> None:
    """Refuse a log that ends before what was promised, or before what its manifest says is durable."""
    if end.position < promised:
        raise CorruptionError(
            f"frames were promised up to position {promised:,}, and the log ends at {end.position:,}: "
            "acknowledged data is missing. Nothing was changed",
            position=end.position,
            expected=promised,
            found=end.position,
            first_lost_lsn=end.last_lsn + 1,
        )
    if end.last_lsn < manifest.vouched_lsn:
        raise CorruptionError(
            f"the manifest says that the log was durable up to LSN {manifest.vouched_lsn:,}, and the log ends at "
            f"{end.last_lsn:,}: "
            "acknowledged data is missing. Nothing was changed",
            position=end.position,
            expected=f"a log that reaches LSN {manifest.vouched_lsn}",
            found=end.last_lsn,
            first_lost_lsn=end.last_lsn + 1,
        )


def _first_break(findings: LogFindings, promised: int) -> SegmentFinding | None:
    """Return the segment in which the intact log ends before what was promised; None where it does not."""
    position = findings.manifest.end.position
    last: SegmentFinding | None = None
    for finding in findings.unsealed:
        if finding.header is None or not finding.follows:
            return finding if position < promised else None
        position = finding.end_position
        last = finding
        if finding.ends_in_bytes:
            break
    return last if position < promised else None


def names_cut_short(unsealed: Sequence[SegmentFinding]) -> set[str]:
    """Return the names of the segments whose file was cut short where the log does not go on after their frames.

    Of one after which the next segment follows nothing is missing but space.
    """
    going_on = max((i for i, f in enumerate(unsealed) if f.header is not None and f.follows), default=0)
    return {f.name for f in unsealed[going_on:] if f.cut_short}


def emit_recovery(events: EventSink, report: RecoveryReport) -> None:
    """Send the events of a recovery that is done: one for each cut, loss and hole, and one for the whole."""
    for cut in report.cuts:
        events.emit("walkit.recovery.cut", segment=cut.segment, position=cut.position, bytes=cut.bytes)
    for lost in report.lost:
        events.emit(
            "walkit.recovery.lost", position=lost.start_position, first_lsn=lost.first_lsn, lsns=lost.lsns
        )
    for hole in report.holes:
        events.emit(
            "walkit.recovery.hole", position=hole.start_position, first_lsn=hole.first_lsn, lsns=hole.lsns
        )
    if report.verdict != "created":
        events.emit(
            "walkit.recovery.finish",
            location=report.location,
            policy=report.policy,
            verdict=report.verdict,
            last_lsn=report.last_lsn,
            duration_s=report.duration_s,
        )
