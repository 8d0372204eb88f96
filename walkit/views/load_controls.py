"""The controls of a load: those of the Live page, and of the Runs page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from walkit.config import MIB
from walkit.models.device import DISKS
from walkit.views.base import FOCUS_CSS, Form, IntInput, Select, pn
from walkit.workload.steady import ARRIVALS_PER_S_MAX, SEED_MAX, WRITERS_MAX, ContinuousLoad, Style

CHOSEN_CSS = """
.bk-btn.bk-active { background-color: var(--accent) !important; color: var(--on-accent) !important; box-shadow: none; }
"""
"""The chosen button is visible in either theme."""
IN_FLIGHT_MAX = 64
STYLES = {"writer threads": "threads", "asyncio tasks": "tasks"}
DURABILITIES = ["sync", "interval", "none"]
ORDERS = {"append order": "append", "completion order": "completion"}
POLICIES = ["take-all", "one-record", "adaptive", "capped:4", "linger:1000"]
Where = Literal["disk", "model", "both"]
WHERE = {"this disk": "disk", "a modelled volume": "model", "both, from one seed": "both"}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "One writer": {"writers": 1},
    "64 writers": {"writers": 64},
    "Open loop": {"writers": 64, "arrivals": 1_000},
    "Slow volume": {"writers": 16, "where": "model", "device": "gp3"},
    "Direct I/O": {"direct": True},
}
"""The settings of each preset; all others are set as on a new page."""


class LoadControls(Form):
    """The load that is asked for, in two drawers that are closed at first."""

    def __init__(self) -> None:
        super().__init__()
        near: dict[str, Any] = {"margin": (0, 3)}
        self.named = {
            "style": Select(label="who appends", options=list(STYLES), width=130, **near),
            "writers": IntInput(
                label="writers or tasks", value=8, start=1, end=WRITERS_MAX, width=100, **near
            ),
            "bytes": IntInput(label="bytes per record", value=100, start=1, end=MIB, width=112, **near),
            "arrivals": IntInput(label="arrivals/s", start=0, end=ARRIVALS_PER_S_MAX, width=88, **near),
            "durability": Select(label="durability", options=DURABILITIES, width=82, **near),
            "inflight": IntInput(label="in flight", value=1, start=1, end=IN_FLIGHT_MAX, width=74, **near),
            "order": Select(label="acknowledged in", options=ORDERS, width=124, **near),
            "policy": Select(label="frames sealed by", options=POLICIES, width=104, **near),
            "direct": pn.widgets.Checkbox(label="direct I/O", width=76, margin=(0, 3, 6, 3)),
            "where": Select(label="volume", options=WHERE, width=136, **near),
            "device": Select(label="modelled device", options=list(DISKS), value="gp3", width=108, **near),
            "seed": IntInput(label="seed", value=7, start=0, end=SEED_MAX, width=64, **near),
        }
        """Each control by its name in the URL."""
        self._usual = {name: widget.value for name, widget in self.named.items()}
        log = {"durability", "inflight", "order", "policy", "direct"}
        self._inside = {
            "Load": [widget for name, widget in self.named.items() if name not in log],
            "Log": [widget for name, widget in self.named.items() if name in log],
        }
        self.drawers = {
            name: pn.widgets.Toggle(label=name, stylesheets=[CHOSEN_CSS, FOCUS_CSS], **near)
            for name in self._inside
        }
        """Buttons that show the controls of the load and those of the log."""
        for drawer in self.drawers.values():
            drawer.param.watch(lambda _: self._arrange(), "value")
        self._layout: pn.FlexBox = pn.FlexBox(
            align_items="end", gap="2px 0", margin=0, sizing_mode="stretch_width"
        )

    def _arrange(self) -> None:
        self._layout[:] = [
            each for name, drawer in self.drawers.items() if drawer.value for each in self._inside[name]
        ]

    def choose(self, changes: Mapping[str, Any]) -> None:
        """Set all controls: to `changes`, by their names in the URL; all others as on a new page."""
        for name, value in {**self._usual, **changes}.items():
            self.named[name].value = value

    @property
    def loads(self) -> tuple[ContinuousLoad, ...]:
        """The chosen load, or two with one seed: on this disk and on a modelled volume. OptionsError if invalid."""
        chosen = {name: widget.value for name, widget in self.named.items()}
        disk = ContinuousLoad(
            writers=chosen["writers"] or 0,
            style=cast("Style", STYLES[chosen["style"]]),
            record_bytes=chosen["bytes"] or 0,
            arrivals_per_s=chosen["arrivals"] or 0,
            durability=chosen["durability"],
            in_flight=chosen["inflight"] or 0,
            ack_order=chosen["order"],
            policy=chosen["policy"],
            direct_io=bool(chosen["direct"]),
            seed=chosen["seed"] or 0,
            raw=True,
        )
        where: Where = chosen["where"]
        if where == "disk":
            return (disk,)
        # A log in memory has no page cache to bypass.
        model = replace(disk, device=chosen["device"], direct_io=disk.direct_io and where == "model")
        return (model,) if where == "model" else (disk, model)


def code_of(load: ContinuousLoad, operations: int) -> tuple[str, str]:
    """Return Python for the options of a log, and for a workload of so many operations, as a load has them."""
    names = ("durability", "in_flight", "ack_order", "direct_io")
    options = ", ".join(f"{name}={getattr(load, name)!r}" for name in names)
    callers = f"{'tasks' if load.style == 'tasks' else 'writers'}={load.writers}"
    loop = f", arrival=OpenLoop(rate={load.arrivals_per_s})" if load.arrivals_per_s else ""
    return options, f"Workload(operations={operations}, {callers}, value_bytes={load.record_bytes}{loop})"
