"""From a log's bytes to a recovery plan, by any policy: what opening and `walkit.repair` begin with, and end with."""

from __future__ import annotations

from walkit.errors import LogExhaustedError
from walkit.events import EventSink
from walkit.format.durable_slot import DurableSlot
from walkit.format.layout import EPOCH_MAX
from walkit.format.manifest import Manifest
from walkit.recovery.plan import RecoveryPlan, make_plan
from walkit.recovery.report import RecoveryReport
from walkit.recovery.scan import Progress, look_around, scan_log
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
        # What looks at wrecks is half of what an opening would have to load.
        from walkit.recovery.salvage import make_salvage_plan

        return make_salvage_plan(storage, look_around(storage, manifest, slot, salvage=True), progress)
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


def next_epoch(manifest: Manifest) -> int:
    """Return the number of the epoch that an opening for writing begins; LogExhaustedError where none is left."""
    number = max((e.number for e in manifest.lineage), default=0) + 1
    if number > EPOCH_MAX:
        raise LogExhaustedError("epoch", number, EPOCH_MAX)
    return number
