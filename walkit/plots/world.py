"""One schedule of a seeded world: cuts, crashes and stalls, and the LSN of each process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from walkit._internal.arguments import refuse
from walkit.plots.facts import drawn_by
from walkit.plots.style import NEUTRAL, Figure, colour, curve, dress, hatch, lane_bars, subplots
from walkit.plots.units import CLOCK, COUNTS

if TYPE_CHECKING:
    from walkit.simulate.world import Outcome

_GROUPS = (
    ("crash", ("crash",)),
    ("stall", ("stall",)),
    ("cut or clog", ("cut", "clog")),
    ("loss, repeats, damage", ("lose", "repeat", "damage")),
    ("delay, reorder", ("delay", "reorder")),
    ("disk", ("write", "storage", "requests", "away", "back", "another", "skew")),
    ("promotion", ("promote",)),
)
"""Names of faults in the legend, and their kinds."""


def world_schedule(outcome: Outcome) -> Figure:
    """Draw how far everyone was, and below it the faults, in a lane for each process and each direction of a link.

    `outcome` is of `run_schedule(schedule, sample_ms=...)`; OptionsError for one without samples.
    """
    samples, faults = outcome.samples, outcome.schedule.faults()
    if not samples:
        refuse("outcome", outcome, "an outcome with samples: run_schedule(..., sample_ms=10)")
    lanes = list(
        dict.fromkeys(fault.target for fault in sorted(faults, key=lambda f: (">" in f.target, f.target)))
    )
    what = f"breaks {outcome.rule!r}" if outcome.failed else "every rule holds"
    names = list(dict.fromkeys(name for sample in samples for name in sample.lsns))
    last = ", ".join(f"{name} {lsn:,}" for name, lsn in samples[-1].lsns.items())
    panels = subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.07, row_heights=[0.55, 0.45])
    drawing = dress(
        panels,
        f"Seeded world, seed {outcome.schedule.seed}: {what}",
        subtitle=[
            outcome.text or f"{outcome.events:,} events, {outcome.records:,} records",
            "after the dotted line no fault begins and no client appends",
            drawn_by(),
        ],
        alt=f"LSNs over virtual time of primary, replicas and readers, at the end {last}; below them "
        f"{len(faults)} faults: {'; '.join(map(str, faults))}",
        height=420 + 24 * max(len(lanes), 1),
        barmode="overlay",
    )
    at_s = [sample.at_ms / 1000 for sample in samples]
    for number, name in enumerate(names):
        lsns = [None if name in sample.down else sample.lsns.get(name) for sample in samples]
        line = {"shape": "hv", "dash": "dot" if name.startswith("reader") else "solid"}
        drawing.add_trace(curve(at_s, lsns, name, colour(number), line=line), row=1, col=1)
    for number, (label, kinds) in enumerate(_GROUPS):
        mine = [fault for fault in faults if fault.kind in kinds]
        if not mine:
            continue
        rows = [(fault.target, fault.at_ms / 1000, fault.for_ms / 1000, str(fault)) for fault in mine]
        look = {"opacity": 0.75, "pattern": hatch(number)}
        bars = lane_bars(rows, label, colour(number), marker=look)
        drawing.add_trace(bars, row=2, col=1)
    drawing.add_vline(x=outcome.schedule.chaos_ms / 1000, line={"color": NEUTRAL, "dash": "dot", "width": 1})
    drawing.update_yaxes(title_text="LSN", rangemode="tozero", **COUNTS, row=1, col=1)
    drawing.update_yaxes(categoryorder="array", categoryarray=lanes[::-1], row=2, col=1)
    drawing.update_xaxes(range=[0, max(outcome.at_ms / 1000, 1e-3)], **CLOCK)
    return drawing
