"""The recovery view: what became of a log whose writer was killed. It renders, and does nothing else."""

from __future__ import annotations

from html import escape

from walkit.config import DURABILITY_PROMISES
from walkit.html import table, tag
from walkit.log.decision import MEANINGS
from walkit.log.report import RecoveryReport
from walkit.plots import recovery_time, recovery_timeline
from walkit.text import lsn_range
from walkit.views.parts import RED, ReportView, figure_pane, numbers_html, pn
from walkit.views.session import KillReport
from walkit.workload.recoverreport import RecoveryRow

NOTHING_YET = "Nothing has been killed yet."


class RecoveryView(ReportView):
    """Shows the newest KillReport, and what was measured of recovery times. Used by one thread."""

    def __init__(self) -> None:
        self.decisions = pn.pane.HTML("", sizing_mode="stretch_width")
        self.cuts = pn.pane.HTML("", sizing_mode="stretch_width")
        self.measured = pn.pane.HTML("", sizing_mode="stretch_width")
        self.times = figure_pane()
        super().__init__(NOTHING_YET, self.decisions, self.cuts, self.measured, self.times)
        self._rows: tuple[RecoveryRow, ...] = ()

    def tell(self, report: KillReport | None) -> None:
        """Show a report, unless it is the one that is shown already."""
        if report is None or not self._is_new(report):
            return
        self.text.object = verdict_html(report)
        self._draw(recovery_timeline(report.recovery))
        self.decisions.object = decisions_html(report.recovery)
        self.cuts.object = cuts_html(report)

    def tell_times(self, rows: tuple[RecoveryRow, ...]) -> None:
        """Show how long a Store took to be there again, over what was behind its checkpoint."""
        if not rows or rows is self._rows:
            return
        self._rows = rows
        self.measured.object = times_html(rows)
        self.times.object = recovery_time(rows)
        self.times.visible = True


def verdict_html(report: KillReport) -> str:
    """Return the verdict as a sentence, and the numbers it rests on."""
    found = report.recovery
    if report.lost:
        verdict = (
            f"<b role='alert' style='color:{RED}'>{report.lost:,} acknowledged records are gone: this is a bug in "
            f"walkit.</b>"
        )
    else:
        beyond = found.last_lsn - report.acked_lsn
        verdict = (
            f"<b>Every record that was known to be acknowledged is there.</b> {beyond:,} more had been written "
            f"without that word having come."
        )
    numbers = numbers_html(
        [
            ("acked LSN before the kill", f"{report.acked_lsn:,}", "the last that the child had told of"),
            ("last LSN recovered", f"{found.last_lsn:,}", "the last record of the log now"),
            ("recovery, ms", f"{found.duration_s * 1000:,.1f}", "from the beginning of the opening to ready"),
            (
                "frames read",
                f"{found.frames_scanned:,}",
                "frames behind the last seal: they had to be checked",
            ),
            ("bytes read", f"{found.bytes_scanned:,}", "of those frames"),
            ("segments (read)", f"{found.segments:,} ({found.segments_scanned:,})", "of the log"),
        ]
    )
    durability = report.load.durability
    kill, power, _, _ = DURABILITY_PROMISES[durability]
    promise = (
        f"SIGKILL shows the crash of a process only: the page cache survives it. With durability {durability} a killed "
        f"process loses {kill} of what was acknowledged, a power cut {power}."
    )
    return f"<p>{verdict}</p>{numbers}<p style='opacity:0.8'>{escape(promise)}</p>"


def times_html(rows: tuple[RecoveryRow, ...]) -> str:
    """Return what was measured, and where, as a sentence; in red where something was not there again."""
    row = rows[0]
    wrong = sum(not r.complete for r in rows)
    red = f"<b role='alert' style='color:{RED}'>{wrong} stores were not whole: this is a bug in walkit.</b> "
    return (
        f"<p>{red if wrong else ''}Measured here just now: a child process puts {row.operations:,} records, "
        f"{row.frame_records:,} to a frame, and is killed; <code>Store.open</code> of what it left, once for each "
        f"checkpoint interval, with a warm cache. One opening each: what else the machine does is in it.</p>"
    )


def decisions_html(recovery: RecoveryReport) -> str:
    """Return the rows of the decision table that applied, the facts they matched, and what was given up."""
    if not recovery.decisions:
        return "<p>Nothing had to be decided: every segment was sealed.</p>"
    shown = table(
        (
            (
                tag("code", d.segment),
                d.row,
                d.decision,
                d.meaning,
                ", ".join(MEANINGS[name] for name, holds in d.facts.items() if holds) or "none",
            )
            for d in recovery.decisions
        ),
        ("segment", "row", "decision", "which means", "facts that held"),
    )
    lost = "".join(
        f"<p><b role='alert' style='color:{RED}'>Given up: {lsn_range(g.first_lsn, g.last_lsn)}</b>: "
        f"{escape(g.reason)} ({escape(g.segment)}).</p>"
        for g in recovery.lost
    )
    return (
        f"<p>Decided with policy {escape(recovery.policy)}, by the rows of <code>walkit.recovery_table()</code>:</p>"
        f"{tag('div', shown, class_='decisions')}{lost}"
    )


def cuts_html(report: KillReport) -> str:
    """Return what was cut and why, or why nothing was."""
    torn = (
        f"<p>Half a frame ({report.torn_bytes:,} bytes) was left behind the log after the kill, as a write that was "
        f"cut short does.</p>"
        if report.torn_bytes
        else ""
    )
    cuts = report.recovery.cuts
    if not cuts:
        return (
            f"{torn}<p>Nothing was cut: the kernel finished the write that was under way, so the log ended with a "
            f"whole frame.</p>"
        )
    shown = table(
        (
            (
                f"{cut.position:,}",
                f"{cut.bytes:,}",
                f"{cut.first_lsn:,}",
                cut.reason,
                tag("code", cut.segment),
                tag("code", cut.kept_as or ""),
            )
            for cut in cuts
        ),
        ("cut at position", "bytes", "LSN from", "why", "segment", "kept as"),
        right=(0, 1, 2),
    )
    return (
        f"{torn}{tag('div', shown, class_='cuts')}<p>Nothing promised these bytes: no later frame, no seal, and not "
        f"the durable file. So nobody was told that they are there, and they are no part of the log.</p>"
    )
