"""The Compaction page: a store of its own, written, held, compacted, trimmed, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from typing import Any

from walkit._internal.html import table, tag
from walkit._internal.text import counted
from walkit.plots import amplification, maintenance
from walkit.plots.facts import short_name
from walkit.views.base import (
    Button,
    Form,
    JobBar,
    ReportView,
    column,
    example_html,
    figure_pane,
    html_pane,
    pn,
    sentence_html,
)
from walkit.views.session import Step, StepReport
from walkit.views.workspace import Workspace

NOTHING_YET = example_html(
    "a store before a step, and after it.",
    {"segments before": (3, 3, 3, 1), "live keys": (-7, 2, 1), "segments after": (2, 3, 1, -4)},
)


class CompactionView(ReportView):
    """Shows the newest StepReport. Used by one thread."""

    def __init__(self) -> None:
        self.preview = html_pane()
        self.costs = figure_pane()
        self.numbers = html_pane()
        super().__init__(NOTHING_YET, self.preview, self.costs, self.numbers)

    def update(self, report: StepReport | None) -> None:
        """Show a report, unless it is the one that is shown already; None after one means that the store is gone."""
        if report is None and self._shown is not None:
            self._shown = None
            self.text.object = NOTHING_YET
            self.figure.visible = self.costs.visible = False
            self.preview.object = self.numbers.object = ""
        if report is None or not self._is_new(report):
            return
        self.text.object = f"<p><b>{escape(report.words)}</b></p>"
        going = [segment.name for segment in report.preview.segments]
        drawing = maintenance(report.after, before=report.before, going=going)
        # Its folder is the session's own, and means nothing to a viewer.
        title = drawing.layout.title.text
        drawing.layout.title.text = title.replace(escape(short_name(report.after.location)), "The store", 1)
        self._draw(drawing)
        self.preview.object = preview_html(report)
        if report.history:
            self.costs.object = amplification(report.history)
            self.costs.visible = True
        self.numbers.object = numbers_html(report)


def preview_html(report: StepReport) -> str:
    """Return the effect of a trim now, and its limit."""
    found = report.preview
    limit = {
        "": "Nothing limits it: all that is acknowledged would go.",
        "durable": "It is limited by the durable end.",
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
        else f" Segment {found.straddling.name} straddles it: it is copied if at least half of it is waste, unless "
        "it is compacted or the newest sealed one."
    )
    return tag(
        "section", tag("h2", "Preview of a trim"), tag("p", words, straddling, " ", limit), class_="preview"
    )


def numbers_html(report: StepReport) -> str:
    """Return before and after as a table, and the report of the step if it has one."""
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


STEP_BUTTONS: dict[Step, str] = {
    "write": "Write records",
    "hold": "Take or release a claim",
    "cursor": "Move the cursor",
    "checkpoint": "Checkpoint",
    "compact": "Compact",
    "trim": "Trim",
}


class CompactionPage(Form):
    """A button for each step of maintenance, and the store's segments before and after it."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.session = workspace.session
        self.compaction = CompactionView()
        self.named = {}
        self.bar, self.status = JobBar(self.session.jobs.cancel), html_pane()
        self.steps = {
            step: Button(label=label, color="primary" if step == "write" else "default")
            for step, label in STEP_BUTTONS.items()
        }
        self.new_log = Button(label="New log")
        self._layout = column(
            pn.FlexBox(*self.steps.values(), self.new_log, align_items="center"),
            self.bar,
            self.status,
            self.compaction,
        )
        for step, button in self.steps.items():
            button.on_click(partial(self._step, step))
        self.new_log.on_click(lambda _: self.request(self.session.new_store))

    def _step(self, step: Step, _: Any) -> None:
        self.request(partial(self.session.maintenance, step))

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""
        if not shown:
            return
        self.bar.update(self.session.jobs.current)
        self.status.object = sentence_html("", problem=self.session.jobs.problem)
        self.compaction.update(self.session.step_report)
        busy = self.session.busy
        for button in (*self.steps.values(), self.new_log):
            button.disabled = busy

    def code(self) -> str:
        """Return Python for the same steps."""
        return """import walkit

with walkit.Store.open("store") as store:
    store.put_many([b"key %d" % (n % 100) for n in range(6_000)], [b"%0160d" % n for n in range(6_000)])
    before = store.inventory()
    store.checkpoint()
    store.compact()
    figure = walkit.plots.maintenance(store.inventory(), before=before)"""
