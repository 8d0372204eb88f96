"""The dashboard: one page with a Live, a Recovery and a Compaction part over the scratch logs of one session."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, cast

from walkit.config import MIB
from walkit.errors import OptionsError
from walkit.views.compaction import CompactionView
from walkit.views.demo_store import Step
from walkit.views.live import LiveView
from walkit.views.parts import View, pn, tick
from walkit.views.recovery import RecoveryView
from walkit.views.session import Session
from walkit.workload.steady import SteadyLoad, Style

STYLES = {"writer threads": "threads", "asyncio tasks": "tasks"}
STEP_BUTTONS: dict[Step, str] = {
    "write": "Write records",
    "hold": "Take or release a hold",
    "cursor": "Move the cursor",
    "checkpoint": "Checkpoint",
    "compact": "Compact",
    "trim": "Trim",
}
DURABILITIES = ["sync", "interval", "none"]
ORDERS = {"append order": "append", "completion order": "completion"}
POLICIES = ["take-all", "one-record", "adaptive", "capped:4", "linger:1000"]


class Controls(View):
    """The load that is asked for, and the two buttons of the Live part."""

    def __init__(self) -> None:
        super().__init__()
        self.style = pn.widgets.RadioButtonGroup(
            label="style", options=list(STYLES), value="writer threads", width=240
        )
        self.writers = pn.widgets.IntInput(label="writers or tasks", value=8, start=1, end=1024, width=130)
        self.record_bytes = pn.widgets.IntInput(
            label="bytes a record", value=100, start=1, end=MIB, width=130
        )
        self.durability = pn.widgets.Select(label="durability", options=DURABILITIES, value="sync", width=130)
        self.in_flight = pn.widgets.IntInput(label="frames in flight", value=1, start=1, end=64, width=120)
        self.order = pn.widgets.Select(label="acknowledged in", options=ORDERS, value="append", width=150)
        self.policy = pn.widgets.Select(label="frames sealed by", options=POLICIES, width=150)
        self.start = pn.widgets.Button(label="Start", color="primary", width=90)
        self.stop = pn.widgets.Button(label="Stop", width=90, disabled=True)
        self._layout = pn.FlexBox(
            pn.Column("<b>who appends</b>", self.style, margin=0),
            self.writers,
            self.record_bytes,
            self.durability,
            self.in_flight,
            self.order,
            self.policy,
            self.start,
            self.stop,
            align_items="end",
        )

    def __panel__(self) -> pn.viewable.Viewable:
        """Return what is shown."""
        return self._layout

    @property
    def load(self) -> SteadyLoad:
        """What is asked for. OptionsError: it cannot be."""
        return SteadyLoad(
            writers=self.writers.value or 0,
            style=cast("Style", STYLES[self.style.value]),
            record_bytes=self.record_bytes.value or 0,
            durability=self.durability.value,
            in_flight=self.in_flight.value or 0,
            ack_order=self.order.value,
            policy=self.policy.value,
        )


class Dashboard(View):
    """The whole page. Each has a Session of its own, which `close` ends; a served one is closed with its session."""

    def __init__(self, session: Session | None = None) -> None:
        super().__init__()
        self.session = Session() if session is None else session
        self.controls = Controls()
        self.live = LiveView(self.session)
        self.recovery = RecoveryView()
        self.compaction = CompactionView()
        self.steps = {
            step: pn.widgets.Button(label=label, color="primary" if step == "write" else "default")
            for step, label in STEP_BUTTONS.items()
        }
        self.kill = pn.widgets.Button(label="Kill and recover", color="danger", width=160)
        self.torn = pn.widgets.Checkbox(
            label="leave half a frame behind the log, as a power cut would", value=True, align="center"
        )
        self.measure = pn.widgets.Button(label="Measure recovery times", width=190)
        self.tabs = pn.Tabs(
            ("Live", pn.Column(self.controls, self.live, sizing_mode="stretch_width")),
            ("Recovery", self._recovery_part()),
            ("Compaction", self._compaction_part()),
            sizing_mode="stretch_width",
        )
        self.controls.start.on_click(self._start)
        self.controls.stop.on_click(lambda _: self.session.stop())
        self.kill.on_click(self._kill)
        self.measure.on_click(self._measure)
        for step, button in self.steps.items():
            button.on_click(partial(self._step, step))
        self.refresh()

    def _recovery_part(self) -> pn.viewable.Viewable:
        words = (
            "The writers are one child process. It is killed with SIGKILL, and its log is opened again. Where none is "
            "at work, one with the settings of the Live page is started first."
        )
        return pn.Column(
            pn.pane.HTML(f"<p>{words}</p>", sizing_mode="stretch_width"),
            pn.FlexBox(self.kill, self.torn, self.measure, align_items="center"),
            self.live.status,
            self.recovery,
            sizing_mode="stretch_width",
        )

    def _compaction_part(self) -> pn.viewable.Viewable:
        words = (
            "A store of its own, with small segments. A hold is a claim that nothing from there on may go; a cursor is "
            "saved progress and keeps nothing back. Write a few times, then see what each step leaves."
        )
        return pn.Column(
            pn.pane.HTML(f"<p>{words}</p>", sizing_mode="stretch_width"),
            pn.FlexBox(*self.steps.values(), align_items="center"),
            self.live.status,
            self.compaction,
            sizing_mode="stretch_width",
        )

    def __panel__(self) -> pn.viewable.Viewable:
        """Return what is shown."""
        return self.tabs

    def _step(self, step: Step, _: Any) -> None:
        self.session.upkeep(step)
        self.refresh()

    def _measure(self, _: Any) -> None:
        self.session.measure_recovery()
        self.refresh()

    def _start(self, _: Any) -> None:
        self._with_load(self.session.start)

    def _kill(self, _: Any) -> None:
        self._with_load(lambda load: self.session.kill_and_recover(load, torn=self.torn.value))

    def _with_load(self, do: Any) -> None:
        try:
            do(self.controls.load)
        except OptionsError as error:
            self.session.refuse(f"{error}.")
        self.refresh()

    def refresh(self) -> bool:
        """Show what is new."""
        self.live.shown = self.tabs.active == 0
        self.live.refresh()
        self.recovery.tell(self.session.kill_report)
        self.recovery.tell_times(self.session.recovery_rows)
        self.compaction.tell(self.session.step_report)
        busy, writing = self.session.busy, self.session.writing
        self.controls.start.disabled = busy or writing
        self.controls.stop.disabled = busy or not writing
        self.kill.disabled = self.measure.disabled = busy
        for button in self.steps.values():
            button.disabled = busy
        return True

    def close(self) -> None:
        """End the session: its writers are killed, its log is removed. Closing twice does nothing."""
        self.session.close()


def served() -> Dashboard:
    """Return a Dashboard for the session that is being served, refreshed while it lives and closed with it."""
    page = Dashboard()
    pn.state.onload(lambda: tick(page))

    def ended(_: Any) -> None:
        # Ending a session waits for what is under way; the server's loop does not.
        threading.Thread(target=page.close, name="walkit-session-end").start()

    pn.state.on_session_destroyed(ended)
    return page
