"""The compaction view: what a store's log holds, who needs it, and what the last step did. It renders, nothing else."""

from __future__ import annotations

from html import escape

from walkit._internal.html import table, tag
from walkit._internal.text import counted
from walkit.plots import amplification, upkeep
from walkit.plots.facts import short_name
from walkit.views.demo_store import StepReport
from walkit.views.parts import ReportView, figure_pane, html_pane

NOTHING_YET = "There is no store yet: write some records."


class CompactionView(ReportView):
    """Shows the newest StepReport. Used by one thread."""

    def __init__(self) -> None:
        self.preview = html_pane()
        self.costs = figure_pane()
        self.numbers = html_pane()
        super().__init__(NOTHING_YET, self.preview, self.costs, self.numbers)

    def tell(self, report: StepReport | None) -> None:
        """Show a report, unless it is the one that is shown already; None after one means that the store is gone."""
        if report is None and self._shown is not None:
            self._shown = None
            self.text.object = tag("p", NOTHING_YET)
            self.figure.visible = self.costs.visible = False
            self.preview.object = self.numbers.object = ""
        if report is None or not self._is_new(report):
            return
        self.text.object = f"<p><b>{escape(report.words)}</b></p>"
        going = [segment.name for segment in report.preview.segments]
        drawing = upkeep(report.after, before=report.before, going=going)
        # Its folder is the session's own, and says nothing to who looks at it.
        title = drawing.layout.title.text
        drawing.layout.title.text = title.replace(escape(short_name(report.after.location)), "The store", 1)
        self._draw(drawing)
        self.preview.object = preview_html(report)
        if report.history:
            self.costs.object = amplification(report.history)
            self.costs.visible = True
        self.numbers.object = numbers_html(report)


def preview_html(report: StepReport) -> str:
    """Return what a trim would do now, and what limits it."""
    found = report.preview
    limit = {
        "": "Nothing limits it: all that is acknowledged would go.",
        "durable": "It is limited by what is durable.",
        "state": "It is limited by the newest snapshot, which the state needs: a checkpoint moves that.",
    }.get(found.limit, f"It is limited by {found.limit}.")
    if found.low_watermark == report.after.low_watermark and not found.segments:
        words = "A trim now would drop nothing."
    else:
        words = (
            f"A trim now would move the low watermark from LSN {report.after.low_watermark:,} to "
            f"{found.low_watermark:,} and drop {counted(len(found.segments), 'segment')}, "
            f"{counted(found.size_bytes, 'byte')}."
        )
    straddling = (
        ""
        if found.straddling is None
        else f" Segment {found.straddling.name} straddles it: it is copied where at least half of it is waste, unless "
        "it is compacted or the newest sealed one."
    )
    return tag(
        "section", tag("h2", "Preview of a trim"), tag("p", words, straddling, " ", limit), class_="preview"
    )


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
            ("bytes that a claim keeps", before.held_bytes, after.held_bytes),
        )
    ]
    shown = tag("div", table(rows, ("of the log", "before", "after"), right=(1, 2)), class_="steps")
    return shown + ("" if report.report is None else report.report._repr_html_())
