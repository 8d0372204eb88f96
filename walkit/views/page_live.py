"""The Live page: a load on a scratch log, a modelled volume or both, and its effects as they happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from walkit.errors import OptionsError
from walkit.views.live_load import WINDOWS, LoadView
from walkit.views.load_controls import PRESETS, LoadControls
from walkit.views.parts import FOCUS_CSS, Button, Select, View, pn
from walkit.views.workspace import Workspace

FRAMES = {"of the newest interval": "newest", "around the slowest in view": "slowest"}

CHOSEN_CSS = """
.bk-btn.bk-active { background-color: var(--accent) !important; color: var(--on-accent) !important; box-shadow: none; }
"""
"""The chosen button is visible in either theme."""


class LivePage(View):
    """Start and stop writers; throughput, latency, single frames and queue move while they write."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.session = workspace.session
        self._go = go
        self.controls = LoadControls()
        self.live = LoadView(self.session, self._inspect)
        button: Any = Button
        choice: Any = Select
        group: Any = pn.widgets.RadioButtonGroup
        toggle: Any = pn.widgets.Toggle
        near: dict[str, Any] = {"margin": (0, 4)}
        self.start = button(label="Start", color="primary", width=80, **near)
        self.stop = button(label="Stop", width=70, disabled=True, **near)
        self.new_log = button(label="New log", width=80, **near)
        self.presets = {name: button(label=name, variant="outline", **near) for name in PRESETS}
        self.window = group(
            label="window of the figures",
            options=list(WINDOWS),
            value="1 min",
            width=150,
            stylesheets=[CHOSEN_CSS, FOCUS_CSS],
            **near,
        )
        self.frames = choice(label="frames drawn", options=FRAMES, width=190, **near)
        self.pause = toggle(label="Pause", width=70, stylesheets=[CHOSEN_CSS, FOCUS_CSS], **near)
        self.inspect = button(label="Inspect the slowest frame", disabled=True, **near)
        self._layout = pn.Column(
            self._bar(self.start, self.stop, self.new_log, *self.presets.values()),
            self.controls,
            self._bar(self.window, self.pause, self.frames, self.inspect),
            self.live,
            sizing_mode="stretch_width",
            margin=0,
        )
        self.start.on_click(self._start)
        self.stop.on_click(lambda _: self.session.stop())
        self.new_log.on_click(self._new_log)
        self.inspect.on_click(lambda _: self._inspect_slowest())
        for name, preset in self.presets.items():
            preset.on_click(partial(self._preset_pressed, name))
        for widget in (self.window, self.frames, self.pause):
            widget.param.watch(lambda _: self._look(), "value")

    @staticmethod
    def _bar(*parts: pn.viewable.Viewable) -> pn.viewable.Viewable:
        return pn.FlexBox(
            *parts, align_items="end", gap="4px 0", margin=(0, 0, 4, 0), sizing_mode="stretch_width"
        )

    def _preset_pressed(self, name: str, _: Any) -> None:
        self.choose(name)

    def choose(self, preset: str) -> None:
        """Set the controls as a preset has them; writers that are at work go on as they are."""
        self.controls.choose(PRESETS[preset])

    def _start(self, _: Any) -> None:
        try:
            self.session.start(*self.controls.loads)
        except OptionsError as error:
            self.session.refuse(f"{error}.")
        self.refresh()

    def _new_log(self, _: Any) -> None:
        self.session.new_log()
        self.refresh()

    def _look(self) -> None:
        self.live.window = self.window.value
        self.live.slowest = self.frames.value == "slowest"
        self.live.paused = bool(self.pause.value)
        self.refresh()

    def _inspect_slowest(self) -> None:
        found = self.live.slowest_frame()
        if found is not None:
            self._inspect(*found)

    def _inspect(self, place: str, position: int) -> None:
        if place != "this disk":
            self.session.refuse(f"A log on {place} is in its writers' memory, without a file to inspect.")
            self.refresh()
            return
        self._go("inspector", {"log": "scratch", "position": str(position)})

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""
        self.live.refresh(shown)
        if not shown:
            return
        busy, writing = self.session.busy, self.session.writing
        for button, disabled in (
            (self.start, busy or writing),
            (self.stop, busy or not writing),
            (self.new_log, busy or writing),
            (self.inspect, self.live.slowest_frame() is None),
        ):
            button.disabled = disabled

    def state(self) -> dict[str, str]:
        """Return the chosen load, and the chosen view."""
        return {**self.controls.state(), "window": self.window.value, "frames": self.frames.value}

    def restore(self, state: Mapping[str, str]) -> None:
        """Set the controls from a URL."""
        self.controls.restore(state)
        if state.get("window") in WINDOWS:
            self.window.value = state["window"]
        if state.get("frames") in FRAMES.values():
            self.frames.value = state["frames"]
