"""The view of a primary and its replicas: a table of members, lag, states, bytes. It renders, nothing else."""

from __future__ import annotations

from walkit._internal.html import Markup, table, tag
from walkit.plots import LagUnit, lag_over_time, sent_by_codec, state_lanes
from walkit.plots.units import bytes_text, duration_text
from walkit.views.parts import View, figure_pane, pn
from walkit.views.replication_lab import WINDOW_S, Member, Picture

UNKNOWN = "unknown"
MEMBERS_CSS = """
.members { overflow-x: auto; margin-bottom: 0.8em; }
.members td, .members th { padding: 1px 10px 1px 0; white-space: nowrap; }
.members th { white-space: normal !important; vertical-align: bottom; }
.members td:last-child { white-space: normal; min-width: 11em; }
"""


class ReplicationView(View):
    """Shows a Picture. Used by one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.unit: LagUnit = "records"
        self.members = pn.pane.HTML("", sizing_mode="stretch_width")
        self.lag, self.states, self.sent = (figure_pane(link_figure=False) for _ in range(3))
        self._layout = pn.Column(
            self.members, self.lag, self.states, self.sent, sizing_mode="stretch_width", margin=0
        )

    def tell(self, picture: Picture) -> None:
        """Show a moment; figures are hidden where there is nothing to draw."""
        shown = members_html(picture.members)
        self.members.object = shown
        drawn = bool(picture.bars)
        if drawn:
            end_s = max(bar.end_s for bar in picture.bars)
            span_s = (max(end_s - WINDOW_S, 0.0), max(end_s, 1.0))
            for pane, drawing in (
                (self.lag, lag_over_time(picture.lag, unit=self.unit, span_s=span_s)),
                (self.states, state_lanes(picture.bars, span_s=span_s)),
                (self.sent, sent_by_codec(picture.traffic)),
            ):
                drawing.layout.uirevision = "replication"  # what the reader zoomed into stays
                pane.object = drawing
        for pane in (self.lag, self.states, self.sent):
            pane.visible = drawn


def members_html(members: tuple[Member, ...]) -> str:
    """Return the processes as a table; what is not known is said so."""
    if not members:
        return Markup("")  # the page says that nothing runs, and what to press
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
    """Return bytes by delta, bytes from the log, and the delta's part of them; "-" of who is no delta reader."""
    taken, loaded = one.delta_bytes, one.loaded_bytes
    if taken is None or loaded is None:
        return "-", "-", "-"
    rate = f"{taken / (taken + loaded):.1%}" if taken + loaded else UNKNOWN
    return bytes_text(taken), bytes_text(loaded), rate
