"""The controls of a load on the Live page, their presets, and their form in a URL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, cast, get_args

from walkit.config import MIB
from walkit.models.device import DISKS
from walkit.views.parts import IntInput, Select, View, pn
from walkit.workload.steady import ARRIVALS_PER_S_MAX, SEED_MAX, WRITERS_MAX, ContinuousLoad, Style

IN_FLIGHT_MAX = 64
STYLES = {"writer threads": "threads", "asyncio tasks": "tasks"}
DURABILITIES = ["sync", "interval", "none"]
ORDERS = {"append order": "append", "completion order": "completion"}
POLICIES = ["take-all", "one-record", "adaptive", "capped:4", "linger:1000"]
Where = Literal["disk", "model", "both"]
WHERE = {"this disk": "disk", "a modelled volume": "model", "both, from one seed": "both"}
DEVICE_DEFAULT = "gp3"

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "One writer": {"writers": 1},
    "64 writers": {"writers": 64},
    "Open loop": {"writers": 64, "arrivals": 1_000},
    "Slow volume": {"writers": 16, "where": "model", "device": "gp3"},
    "Direct I/O": {"direct": True},
}
"""The settings of each preset; all others are set as on a new page."""
DEFAULTS: Mapping[str, Any] = {
    "style": "writer threads",
    "writers": 8,
    "bytes": 100,
    "arrivals": 0,
    "durability": "sync",
    "inflight": 1,
    "order": "append",
    "policy": "take-all",
    "direct": False,
    "where": "disk",
    "device": DEVICE_DEFAULT,
    "seed": 7,
}


class LoadControls(View):
    """The load that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        number: Any = IntInput
        choice: Any = Select
        box: Any = pn.widgets.Checkbox
        near: dict[str, Any] = {"margin": (0, 3)}
        self.style = choice(label="who appends", options=list(STYLES), width=130, **near)
        self.writers = number(label="writers or tasks", start=1, end=WRITERS_MAX, width=100, **near)
        self.record_bytes = number(label="bytes per record", start=1, end=MIB, width=92, **near)
        self.arrivals = number(label="arrivals/s", start=0, end=ARRIVALS_PER_S_MAX, width=88, **near)
        self.durability = choice(label="durability", options=DURABILITIES, width=82, **near)
        self.in_flight = number(label="in flight", start=1, end=IN_FLIGHT_MAX, width=74, **near)
        self.order = choice(label="acknowledged in", options=ORDERS, width=124, **near)
        self.policy = choice(label="frames sealed by", options=POLICIES, width=104, **near)
        self.where = choice(label="volume", options=WHERE, width=136, **near)
        self.device = choice(label="modelled device", options=list(DISKS), width=108, **near)
        self.seed = number(label="seed", start=0, end=SEED_MAX, width=64, **near)
        self.direct = box(label="direct I/O", width=76, margin=(0, 3, 6, 3))
        self.named: dict[str, Any] = {
            "style": self.style,
            "writers": self.writers,
            "bytes": self.record_bytes,
            "arrivals": self.arrivals,
            "durability": self.durability,
            "inflight": self.in_flight,
            "order": self.order,
            "policy": self.policy,
            "direct": self.direct,
            "where": self.where,
            "device": self.device,
            "seed": self.seed,
        }
        """Each control by its name in the URL."""
        self.choose({})
        self._layout = pn.FlexBox(
            *self.named.values(), align_items="end", gap="2px 0", margin=0, sizing_mode="stretch_width"
        )

    def choose(self, changes: Mapping[str, Any]) -> None:
        """Set all controls: to `changes`, by their names in the URL; all others as on a new page."""
        for name, value in {**DEFAULTS, **changes}.items():
            self.named[name].value = value

    @property
    def loads(self) -> tuple[ContinuousLoad, ...]:
        """The chosen load, or two with one seed: on this disk and on a modelled volume. OptionsError if invalid."""
        disk = ContinuousLoad(
            writers=self.writers.value or 0,
            style=cast("Style", STYLES[self.style.value]),
            record_bytes=self.record_bytes.value or 0,
            arrivals_per_s=self.arrivals.value or 0,
            durability=self.durability.value,
            in_flight=self.in_flight.value or 0,
            ack_order=self.order.value,
            policy=self.policy.value,
            direct_io=bool(self.direct.value),
            seed=self.seed.value or 0,
            raw=True,
        )
        where: Where = self.where.value
        if where == "disk":
            return (disk,)
        # A log in memory has no page cache to bypass.
        model = replace(disk, device=self.device.value, direct_io=disk.direct_io and where == "model")
        return (model,) if where == "model" else (disk, model)

    def state(self) -> dict[str, str]:
        """Return the choices, by names in the URL."""
        return {name: _text(widget.value) for name, widget in self.named.items()}

    def restore(self, state: Mapping[str, str]) -> None:
        """Set the controls from a URL; invalid choices are ignored."""
        for name, value in self._meant(state):
            self.named[name].value = value

    def _meant(self, state: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
        for name, widget in self.named.items():
            text = state.get(name, "")[:40]
            if isinstance(widget, IntInput):
                if (
                    text.isascii()
                    and text.isdigit()
                    and (widget.start or 0) <= int(text) <= (widget.end or 0)
                ):
                    yield name, int(text)
            elif isinstance(widget, pn.widgets.Checkbox):
                if text in ("yes", "no"):
                    yield name, text == "yes"
            else:
                options = widget.options
                if text in (options.values() if isinstance(options, dict) else options):
                    yield name, text


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


assert set(WHERE.values()) == set(get_args(Where))
