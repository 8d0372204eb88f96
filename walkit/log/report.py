"""The report of an opening: what recovery found in a log, and what its plan did."""

from __future__ import annotations

from walkit.config import LogOptions
from walkit.recovery.plan import RecoveryPlan
from walkit.recovery.report import PhaseClock, RecoveryReport
from walkit.storage.interface import Storage


def recovery_report(
    storage: Storage, options: LogOptions, clock: PhaseClock, plan: RecoveryPlan, created: bool
) -> RecoveryReport:
    """Return what an opening found, and what its plan did."""
    findings = plan.findings
    scanned = [f for f in (*findings.sealed, *findings.unsealed) if f.bytes_scanned]
    clean = not findings.unsealed and not plan.cuts and not plan.steps
    with clock.phase("ready"):
        pass  # it only tells when the log was ready
    return RecoveryReport(
        **plan.outcome(storage),
        verdict="created" if created else "clean" if clean else "recovered",
        phases=tuple(clock.phases),
        segments=len(plan.manifest.segments),
        segments_scanned=len(scanned),
        frames_scanned=sum(f.frames for f in scanned),
        records_scanned=sum(f.records for f in scanned),
        bytes_scanned=sum(f.bytes_scanned for f in scanned),
        promised_position=findings.promised_position,
    )
