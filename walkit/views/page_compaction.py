"""The Compaction page: a store of its own, written, held, compacted, trimmed, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from walkit.views.compaction import CompactionView
from walkit.views.demo_store import Step
from walkit.views.parts import Button, View, pn, sentence_html
from walkit.views.workspace import Workspace

STEP_BUTTONS: dict[Step, str] = {
    "write": "Write records",
    "hold": "Take or release a claim",
    "cursor": "Move the cursor",
    "checkpoint": "Checkpoint",
    "compact": "Compact",
    "trim": "Trim",
}


class CompactionPage(View):
    """A button for each step of upkeep, and the store's segments before and after it."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.session = workspace.session
        self.compaction = CompactionView()
        self.status = pn.pane.HTML("", sizing_mode="stretch_width")
        self.steps = {
            step: Button(label=label, color="primary" if step == "write" else "default")
            for step, label in STEP_BUTTONS.items()
        }
        self.new_log = Button(label="New log")
        words = (
            "A store of its own, with small segments. A claim keeps every record from its LSN on; a cursor is saved "
            "progress and keeps nothing back. Write a few times, then see what each step leaves."
        )
        self._layout = pn.Column(
            pn.pane.HTML(f"<p>{words}</p>", sizing_mode="stretch_width"),
            pn.FlexBox(*self.steps.values(), self.new_log, align_items="center"),
            self.status,
            self.compaction,
            sizing_mode="stretch_width",
            margin=0,
        )
        for step, button in self.steps.items():
            button.on_click(partial(self._step, step))
        self.new_log.on_click(self._new_log)

    def _step(self, step: Step, _: Any) -> None:
        self.session.upkeep(step)
        self.refresh()

    def _new_log(self, _: Any) -> None:
        self.session.new_store()
        self.refresh()

    def refresh(self, shown: bool = True) -> None:
        """Show what is new."""
        if not shown:
            return
        self.status.object = sentence_html(self.session.status(), problem=self.session.jobs.problem)
        self.compaction.tell(self.session.step_report)
        busy = self.session.busy
        for button in (*self.steps.values(), self.new_log):
            button.disabled = busy

    def state(self) -> dict[str, str]:
        """Return nothing: the store is the session's own."""
        return {}

    def restore(self, state: Mapping[str, str]) -> None:
        """Do nothing: nothing of this page stands in the URL."""
