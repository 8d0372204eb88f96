"""Faults, salvage and sweeps of recovery as a session does them: one at a time, off the page's thread. No panel."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from walkit._internal.arguments import refuse
from walkit.bench.recovery_sweep import RecoverySweep, sweep_points, sweep_recovery
from walkit.config import DURABILITY_PROMISES
from walkit.events import EventCallback
from walkit.storage.file import FileStorage
from walkit.views.fault_lab import FaultLab, cut_frame, opened
from walkit.views.fault_reports import FAULTS, FaultName, FaultReport
from walkit.views.jobs import Job, Jobs
from walkit.workload.inject_damage import leave_half_a_frame
from walkit.workload.steady import ContinuousLoad

REPORTS_MAX = 8
"""Recoveries of a session that are kept to be compared with."""
OPERATIONS_MEASURED = 60_000
FRAME_RECORDS_MEASURED = 200
CHECKPOINT_AGES = (0.02, 0.1, 0.25, 0.5, 1.0)
"""Shares of the operations after the checkpoint; 1 means no checkpoint."""
SEGMENT_BYTES_MEASURED = (256 << 10, 1 << 20, 4 << 20, 16 << 20)
ROUNDS = 5
SWEEP_S_MAX = 90.0
"""No round of openings begins later than this after the first."""
OF_THE_SCRATCH_LOG: tuple[FaultName, ...] = ("sigkill", "half-frame")


class Killed(NamedTuple):
    """Writers of the scratch log that were killed."""

    path: str
    load: ContinuousLoad
    acked_lsn: int
    """Last LSN that they had told to be acknowledged."""


class RecoveryLab:
    """The faults and reopenings of a session. Any thread requests and reads; the session's jobs do the work."""

    def __init__(
        self, folder: str, jobs: Jobs, kill: Callable[[ContinuousLoad], Killed], events: EventCallback
    ) -> None:
        """`kill` kills the writers of the scratch log; `events` takes the events of its opening."""
        self.reports: tuple[FaultReport, ...] = ()
        """The newest last; at most REPORTS_MAX."""
        self.sweep: RecoverySweep | None = None
        """The newest measurement."""
        self._folder = folder
        self._jobs = jobs
        self._kill = kill
        self._events = events
        self._faults = FaultLab(folder)

    @property
    def newest(self) -> FaultReport | None:
        """The report of the last fault; None before the first."""
        return self.reports[-1] if self.reports else None

    @property
    def has_refused_log(self) -> bool:
        """Whether the log of the last fault could not be opened, and copies of it can be."""
        newest = self.newest
        return newest is not None and self._faults.refused_log(newest) is not None

    def do(self, fault: FaultName, load: ContinuousLoad | None = None) -> None:
        """Do a fault and open the log again; `load` is used to start writers if none run."""
        self._jobs.start(FAULTS[fault].job, lambda job: self._do(fault, load or ContinuousLoad(), job))

    def salvage(self) -> None:
        """Open a copy of the log that the newest report could not open, with policy "salvage"."""
        self._jobs.start("salvaging a copy", self._salvage)

    def heal(self) -> None:
        """Heal a copy of the log that the newest report could not open, from a peer that has the same frames."""
        self._jobs.start("healing a copy from a peer", self._heal)

    def measure(self) -> None:
        """Measure recovery over the checkpoint interval and over the segment size; see `sweep_recovery`."""
        self._jobs.start("measuring recovery times", self._measure)

    def _do(self, fault: FaultName, load: ContinuousLoad, job: Job) -> None:
        made = self._scratch(fault, load) if fault in OF_THE_SCRATCH_LOG else self._faults.do(fault, job)
        self.reports = (*self.reports, made)[-REPORTS_MAX:]
        self._check()

    def _scratch(self, fault: FaultName, load: ContinuousLoad) -> FaultReport:
        killed = self._kill(load)
        storage = FileStorage(killed.path)
        torn = leave_half_a_frame(killed.path) if fault == "half-frame" else 0
        outcome = opened(storage, killed.load.options, events=self._events)
        kill, power, _, _ = DURABILITY_PROMISES[killed.load.durability]
        steps = [f"The writers ({killed.load}) were killed with SIGKILL."]
        if torn:
            steps.append(f"Half a frame ({torn:,} bytes) was written after the end of the log.")
        elif fault == "half-frame":
            steps.append(
                "No half frame was written: no room after the end of the log, or one was there already."
            )
        return FaultReport(
            fault=fault,
            number=self._faults.begin(),
            place="the scratch log on this disk",
            steps=tuple(steps),
            acked_lsn=killed.acked_lsn,
            promise=f"SIGKILL shows the crash of a process only: the page cache survives it. With durability "
            f"{killed.load.durability} a killed process loses {kill} of the acknowledged records, a power cut {power}.",
            outcome=outcome,
            frame=cut_frame(storage, outcome.recovery),
        )

    def _salvage(self, job: Job) -> None:
        self._complete(lambda newest: self._faults.salvage(newest, job), "salvage", "policy", "salvage")

    def _heal(self, job: Job) -> None:
        self._complete(lambda newest: self._faults.heal(newest, job), "heal", "source", "a peer")

    def _complete(
        self, more: Callable[[FaultReport], FaultReport], what: str, option: str, wanted: str
    ) -> None:
        """Replace the newest report by one with more in it. OptionsError without a report."""
        if not self.reports:
            refuse(option, wanted, f"no refused log to {what}")
        *earlier, newest = self.reports
        self.reports = (*earlier, more(newest))
        self._check()

    def _check(self) -> None:
        """Assert the invariants between two jobs, on their thread: reports are in order, and few are kept."""
        numbers = [report.number for report in self.reports]
        assert len(numbers) <= REPORTS_MAX and numbers == sorted(set(numbers))
        opened = [report for report in self.reports if report.outcome.refusal is None]
        assert all(report.salvage is None and report.healing is None for report in opened)
        assert all((r.healing is None) == (r.mended is None) for r in self.reports)
        self._faults._check()

    def _measure(self, job: Job) -> None:
        points = sweep_points(
            OPERATIONS_MEASURED, FRAME_RECORDS_MEASURED, CHECKPOINT_AGES, SEGMENT_BYTES_MEASURED
        )
        self.sweep = sweep_recovery(
            points, rounds=ROUNDS, seconds_max=SWEEP_S_MAX, path=self._folder, step=job.step
        )
