"""From a log's bytes to a recovery plan, by any policy, for opening, reading and `walkit.repair`; its events."""

from __future__ import annotations

from walkit.events import EventSink
from walkit.format.durable_slot import DurableSlot
from walkit.format.manifest import Manifest
from walkit.recovery.log_scan import Progress, scan_folder, scan_log
from walkit.recovery.plan import RecoveryPlan, make_plan
from walkit.recovery.report import RecoveryReport
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
