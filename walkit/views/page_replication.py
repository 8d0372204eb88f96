"""The Replication page: a primary and its replicas as processes, whose links are cut and which are killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, cast

from walkit._internal.html import Markup, table, tag
from walkit.models.tcp_link import LinkState
from walkit.plots import LagUnit, lag_over_time, sent_by_codec, state_lanes
from walkit.plots.units import bytes_text, duration_text
from walkit.views.parts import (
    Button,
    Select,
    View,
    example_html,
    figure_pane,
    html_pane,
    pn,
    sentence_html,
)
from walkit.views.replication_lab import (
    PRIMARY,
    READERS_MAX,
    REPLICAS_MAX,
    WINDOW_S,
    Member,
    Picture,
    ReplicationLab,
)
from walkit.views.workspace import Workspace
from walkit.workload.replicated import PacedLoad

UNKNOWN = "unknown"
MEMBERS_CSS = """
.members { overflow-x: auto; margin-bottom: 0.8em; }
.members td, .members th { padding: 1px 10px 1px 0; white-space: nowrap; }
.members th { white-space: normal !important; vertical-align: bottom; }
.members td:last-child { white-space: normal; min-width: 11em; }
"""


NOTHING_YET = example_html(
    "a primary and two replicas; the link of the second one is cut for a while.",
    {"primary": (20,), "replica 1": (20,), "replica 2": (8, 6, 6)},
)


class ReplicationView(View):
    """Shows a Picture. Used by one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.unit: LagUnit = "records"
        self.members = html_pane(NOTHING_YET)
        self.lag, self.states, self.sent = (figure_pane(link_figure=False) for _ in range(3))
        self._layout = pn.Column(
            self.members, self.lag, self.states, self.sent, sizing_mode="stretch_width", margin=0
        )

    def tell(self, picture: Picture) -> None:
        """Show a moment; figures without data are hidden."""
        self.members.object = members_html(picture.members)
        drawn = bool(picture.bars)
        if drawn:
            end_s = max(bar.end_s for bar in picture.bars)
            span_s = (max(end_s - WINDOW_S, 0.0), max(end_s, 1.0))
            for pane, drawing in (
                (self.lag, lag_over_time(picture.lag, unit=self.unit, span_s=span_s)),
                (self.states, state_lanes(picture.bars, span_s=span_s)),
                (self.sent, sent_by_codec(picture.traffic)),
            ):
                drawing.layout.uirevision = "replication"  # the zoom stays
                pane.object = drawing
        for pane in (self.lag, self.states, self.sent):
            pane.visible = drawn


def members_html(members: tuple[Member, ...]) -> str:
    """Return the processes as a table; unknown values are marked."""
    if not members:
        return NOTHING_YET
    rows = []
    for one in members:
        primary = not one.link
        rows.append(
            (
                one.name,
                one.state,
                one.link or "-",
                "-" if one.pid is None else str(one.pid),
                UNKNOWN if one.lsn is None else f"{one.lsn:,}",
                "-" if primary else UNKNOWN if one.lag_records is None else f"{one.lag_records:,}",
                "-" if primary else UNKNOWN if one.lag_bytes is None else bytes_text(one.lag_bytes),
                "-" if primary else UNKNOWN if one.lag_ms is None else duration_text(one.lag_ms / 1000),
                *_by_path(one),
                one.error or "-",
            )
        )
    head = (
        "process",
        "state",
        "link",
        "pid",
        "LSN reached",
        "lag, records",
        "lag, bytes",
        "lag, time",
        "by delta",
        "from the log",
        "hit rate",
        "error, or why it waits",
    )
    return tag("style", Markup(MEMBERS_CSS)) + tag(
        "div",
        table(rows, head, right=(3, 4, 5, 6, 7, 8, 9, 10)),
        class_="members",
        tabindex="0",
        role="region",
        aria_label="processes",
    )


def _by_path(one: Member) -> tuple[str, str, str]:
    """Return bytes by delta, bytes from the log, and the delta's part of them; "-" if it is not a delta reader."""
    taken, loaded = one.delta_bytes, one.loaded_bytes
    if taken is None or loaded is None:
        return "-", "-", "-"
    rate = f"{taken / (taken + loaded):.1%}" if taken + loaded else UNKNOWN
    return bytes_text(taken), bytes_text(loaded), rate


RATES = {"100 records/s": 100, "500 records/s": 500, "2,000 records/s": 2_000, "5,000 records/s": 5_000}
CODECS = {"zstd": "zstd", "snappy": "snappy", "none": ""}
UNITS: dict[str, LagUnit] = {"in records": "records", "in bytes": "bytes", "in time": "ms"}
LINKS: dict[str, LinkState] = {"Cut": "cut", "Slow": "slow", "Heal": "open"}
DRAW_S = 1.0
"""Seconds between two drawings of the figures."""
RESTING = "The log has its size: nothing more is appended."
ABOUT = (
    "Each is a process of its own: Kill is SIGKILL, and Restart recovers the files that are left. A slow link carries "
    "64 KiB per second. A delta reader shares the primary's folder; if its link is cut, it reads the log alone. "
    "The LSN reached is durable at a primary and at a replica, and applied at a delta reader."
)


class ReplicationPage(View):
    """Start a primary with replicas, disturb them, and see lag, states and bytes."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.lab = ReplicationLab()
        workspace.on_close(self.lab.close)
        self.view = ReplicationView()
        self._drawn_at, self._resting = 0.0, False
        button: Any = Button
        choice: Any = Select
        near: dict[str, Any] = {"margin": (0, 4)}
        self.start = button(label="Start", color="primary", width=80, **near)
        self.stop = button(label="Stop", width=70, disabled=True, **near)
        self.add = button(label="Add a replica", width=130, disabled=True, **near)
        self.add_reader = button(label="Add a delta reader", width=150, disabled=True, **near)
        self.cancel = button(label="Cancel", width=80, disabled=True, **near)
        self.rate = choice(label="load", options=RATES, value=500, width=150, **near)
        self.codec = choice(label="codec", options=CODECS, value="zstd", width=100, **near)
        self.count = choice(
            label="replicas", options=list(range(1, REPLICAS_MAX + 1)), value=2, width=80, **near
        )
        self.which = choice(label="process", options=[PRIMARY], value=PRIMARY, width=130, **near)
        self.unit = choice(label="lag", options=UNITS, value="records", width=120, **near)
        self.kill = button(label="Kill", width=70, disabled=True, **near)
        self.restart = button(label="Restart", width=90, disabled=True, **near)
        self.links = {name: button(label=name, width=70, disabled=True, **near) for name in LINKS}
        self.status = pn.pane.HTML("", sizing_mode="stretch_width")
        self.disturbing = self._bar(
            self.which, *self.links.values(), self.kill, self.restart, self.unit, self.add, self.add_reader
        )
        self.disturbing.visible = False
        self._layout = pn.Column(
            self._bar(self.rate, self.codec, self.count, self.start, self.stop, self.cancel),
            self.disturbing,
            self.status,
            self.view,
            html_pane(tag("p", ABOUT)),
            sizing_mode="stretch_width",
            margin=0,
        )
        self._listen()

    @staticmethod
    def _bar(*parts: pn.viewable.Viewable) -> pn.viewable.Viewable:
        return pn.FlexBox(
            *parts, align_items="end", gap="4px 0", margin=(0, 0, 4, 0), sizing_mode="stretch_width"
        )

    def _listen(self) -> None:
        lab = self.lab
        self.start.on_click(lambda _: self._ask(self._start))
        self.stop.on_click(lambda _: self._ask(lab.stop))
        self.add.on_click(lambda _: self._ask(lab.add))
        self.add_reader.on_click(lambda _: self._ask(lab.add_reader))
        self.cancel.on_click(lambda _: self._ask(lab.jobs.cancel))
        self.kill.on_click(lambda _: self._ask(lambda: lab.kill(self.which.value)))
        self.restart.on_click(lambda _: self._ask(lambda: lab.restart(self.which.value)))
        for name, each in self.links.items():
            each.on_click(lambda _, name=name: self._ask(lambda: lab.link(self.which.value, LINKS[name])))
        for widget in (self.unit, self.which):
            widget.param.watch(lambda _: self._look(), "value")

    def _start(self) -> None:
        self.lab.start(PacedLoad(records_per_s=self.rate.value), self.codec.value, self.count.value)

    def _ask(self, wish: Callable[[], object]) -> None:
        wish()
        self.refresh()

    def _look(self) -> None:
        self.view.unit = cast("LagUnit", self.unit.value)
        self._drawn_at = 0.0
        self.refresh()

    def refresh(self, shown: bool = True) -> None:
        """Show new data; the figures at most once per second."""
        if not shown:
            return
        lab, now = self.lab, monotonic()
        busy, running = lab.jobs.current is not None, lab.running
        names = [PRIMARY, *lab.replicas, *lab.readers]
        if self.which.options != names:
            self.which.options = names
        self.disturbing.visible = running
        on_replica = self.which.value != PRIMARY
        for button, disabled in (
            (self.start, busy),
            (self.stop, busy or not running),
            (self.add, busy or not running or len(lab.replicas) >= REPLICAS_MAX),
            (self.add_reader, busy or not running or len(lab.readers) >= READERS_MAX),
            (self.cancel, not busy),
            (self.kill, busy or not running),
            (self.restart, busy or not running),
            *((each, busy or not running or not on_replica) for each in self.links.values()),
        ):
            button.disabled = disabled
        if now - self._drawn_at >= DRAW_S:
            self._drawn_at = now
            picture = lab.picture()
            self.view.tell(picture)
            self._resting = picture.resting
        words = sentence_html(
            lab.status(), warnings=[RESTING] if self._resting else [], problem=lab.jobs.problem
        )
        self.status.object = words

    def code(self) -> str:
        """Return Python for a primary with one replica in this process."""
        return f"""import walkit
from walkit.replication import Primary, Replica

with walkit.open("orders") as log:
    primary = Primary(log, "127.0.0.1:0").start()
    replica = Replica("orders-replica", primary.address, codec={self.codec.value!r}).start()
    replica.wait_for(log.append(b"paid", key=b"order-7"), timeout=30)
    print(replica.status().state)
    replica.stop()
    primary.stop()"""

    def state(self) -> dict[str, str]:
        """Return the choices."""
        return {"rate": str(self.rate.value), "codec": self.codec.value or "none", "unit": self.unit.value}

    def restore(self, state: Mapping[str, str]) -> None:
        """Choose the state of the URL."""
        rate, codec = state.get("rate", ""), state.get("codec")
        if rate.isdecimal() and int(rate) in RATES.values():
            self.rate.value = int(rate)
        if codec in CODECS:
            self.codec.value = CODECS[codec]
        if state.get("unit") in UNITS.values():
            self.unit.value = state["unit"]
