"""The Recovery page: a fault that is really done, the log opened again, and what was decided about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from walkit._internal.html import tag
from walkit.views.fault_reports import FAULTS, FaultName
from walkit.views.parts import Button, Select, View, pn, sentence_html
from walkit.views.recovery import RecoveryView, SweepView
from walkit.views.recovery_lab import CHECKPOINT_AGES, ROUNDS, SEGMENT_BYTES_MEASURED
from walkit.views.workspace import Workspace

SWEEP_WORDS = (
    f"Two sweeps, over {len(CHECKPOINT_AGES)} checkpoint intervals and {len(SEGMENT_BYTES_MEASURED)} segment sizes: "
    f"medians of {ROUNDS} rounds in turns. It takes about half a minute on a quiet machine, and seldom more than two "
    "minutes on a busy one; it can be cancelled."
)


class RecoveryPage(View):
    """Pick a fault, do it, see what recovery makes of the log; measure recovery times."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.session = workspace.session
        self.recovery = RecoveryView()
        self.sweep = SweepView()
        labels = {kind.label: name for name, kind in FAULTS.items()}
        self.fault = Select(label="fault", options=labels, value="sigkill", width=260)
        self.do = Button(label="Break and recover", color="danger", width=160)
        self.salvage = Button(label="Open a copy with policy salvage", width=260, visible=False)
        self.heal = Button(label="Heal a copy from a peer", width=200, visible=False)
        self.new_log = Button(label="New log", width=100)
        self.measure = Button(label="Measure recovery times", width=190)
        self.cancel = Button(label="Cancel", width=90, disabled=True)
        self.about = pn.pane.HTML("", sizing_mode="stretch_width")
        self.status = pn.pane.HTML("", sizing_mode="stretch_width")
        self._layout = pn.Column(
            pn.FlexBox(
                self.fault, self.do, self.salvage, self.heal, self.new_log, self.cancel, align_items="end"
            ),
            self.about,
            self.status,
            self.recovery,
            pn.pane.HTML(tag("h2", "Recovery times") + tag("p", SWEEP_WORDS), sizing_mode="stretch_width"),
            self.measure,
            self.sweep,
            sizing_mode="stretch_width",
            margin=0,
        )
        self.fault.param.watch(lambda _: self._describe(), "value")
        self.do.on_click(self._do)
        self.salvage.on_click(lambda _: self._ask(self.session.recovery.salvage))
        self.heal.on_click(lambda _: self._ask(self.session.recovery.heal))
        self.new_log.on_click(lambda _: self._ask(self.session.new_log))
        self.measure.on_click(lambda _: self._ask(self.session.recovery.measure))
        self.cancel.on_click(lambda _: self._ask(self.session.jobs.cancel))
        self._describe()

    def _describe(self) -> None:
        self.about.object = tag("p", FAULTS[cast("FaultName", self.fault.value)].words)

    def _do(self, _: Any) -> None:
        self._ask(lambda: self.session.recovery.do(cast("FaultName", self.fault.value)))

    def _ask(self, wish: Callable[[], object]) -> None:
        wish()
        self.refresh()

    def refresh(self, shown: bool = True) -> None:
        """Show what is new."""
        if not shown:
            return
        session = self.session
        self.status.object = sentence_html(session.status(), problem=session.jobs.problem)
        self.recovery.tell(session.recovery.reports)
        self.sweep.tell(session.recovery.sweep)
        newest, busy = session.recovery.newest, session.busy
        is_refused = session.recovery.has_refused_log
        for button, done in (
            (self.salvage, newest is not None and newest.salvage is not None),
            (self.heal, newest is not None and newest.healing is not None),
        ):
            button.visible = is_refused and not done
        for widget, disabled in (
            (self.do, busy),
            (self.salvage, busy),
            (self.heal, busy),
            (self.measure, busy),
            (self.new_log, busy or session.writing),
            (self.cancel, not busy),
        ):
            widget.disabled = disabled

    def state(self) -> dict[str, str]:
        """Return the fault that is chosen."""
        return {"fault": str(self.fault.value)}

    def restore(self, state: Mapping[str, str]) -> None:
        """Choose the fault that stood in the URL."""
        if state.get("fault") in FAULTS:
            self.fault.value = state["fault"]
