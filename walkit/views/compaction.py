"""The compaction view: what a store's log holds, who needs it, and what the last step did. It renders, nothing else."""

from __future__ import annotations

from html import escape

from walkit._html import table, tag
from walkit.plots import upkeep
from walkit.views.demo_store import StepReport
from walkit.views.parts import ReportView, pn

NOTHING_YET = "There is no store yet: write some records."


class CompactionView(ReportView):
    """Shows the newest StepReport. Used by one thread."""

    def __init__(self) -> None:
        self.numbers = pn.pane.HTML("", sizing_mode="stretch_width")
        super().__init__(NOTHING_YET, self.numbers)

    def tell(self, report: StepReport | None) -> None:
        """Show a report, unless it is the one that is shown already."""
        if report is None or not self._is_new(report):
            return
        self.text.object = f"<p><b>{escape(report.words)}</b></p>"
        self._draw(upkeep(report.after))
        self.numbers.object = numbers_html(report)


def numbers_html(report: StepReport) -> str:
    """Return before and after as a table, and the report of the step where it has one."""
    before, after = report.before, report.after
    rows = [
        (name, f"{one:,}", f"{other:,}")
        for name, one, other in (
            ("bytes of the segments", before.size_bytes, after.size_bytes),
            ("segments", len(before.segments), len(after.segments)),
            ("oldest LSN that can be read", before.first_lsn, after.first_lsn),
            ("low watermark", before.low_watermark, after.low_watermark),
            ("snapshot at LSN", before.checkpoint_lsn, after.checkpoint_lsn),
            ("records are complete from LSN", before.complete_from_lsn, after.complete_from_lsn),
            ("states are exact from LSN", before.exact_from_lsn, after.exact_from_lsn),
            ("bytes that a hold keeps", before.held_bytes, after.held_bytes),
        )
    ]
    shown = tag("div", table(rows, ("", "before", "after"), right=(1, 2)), class_="steps")
    return shown + ("" if report.report is None else report.report._repr_html_())
