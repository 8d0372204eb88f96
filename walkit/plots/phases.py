"""The phases of one recovery, or of several, and the ranges that it gave up."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape, unescape
from typing import NamedTuple

from walkit._internal.report import Phase
from walkit._internal.text import counted, lsn_range
from walkit.format.manifest import HoleRecord, LostRecord
from walkit.plots import style
from walkit.plots.facts import drawn_by
from walkit.plots.style import (
    Figure,
    dress,
    figure,
    go,
    lane_bars,
    order_lanes,
    phase_colour,
    phase_hatch,
    subplots,
)
from walkit.plots.units import SECONDS, bytes_axis, duration_text
from walkit.recovery.report import RecoveryReport


def recoveries(reports: Sequence[tuple[str, RecoveryReport]], *, subtitle: Sequence[str] = ()) -> Figure:
    """Draw one bar for each (name, report), its phases one after the other in seconds; the last one on top.

    Names that are there twice are named apart by a number. ValueError without a report.
    """
    if not reports:
        raise ValueError("no report to draw")
    names: dict[str, RecoveryReport] = {}
    for name, report in reports:
        free = next(
            n for n in (name, *(f"{name} ({i})" for i in range(2, len(reports) + 1))) if n not in names
        )
        names[free] = report
    taken = {n: max((p.started_s + p.duration_s for p in r.phases), default=0.0) for n, r in names.items()}
    drawing = figure(
        "Phases of recovery",
        subtitle=[*subtitle, "the newest on top", drawn_by()],
        alt="Bars of phases, newest first. "
        + "; ".join(
            f"{name}, {duration_text(taken[name])}: "
            + ", ".join(f"{p.name} {duration_text(p.duration_s)}" for p in names[name].phases)
            for name in reversed(names)
        ),
        height=170 + 34 * len(names),
        barmode="overlay",
        bargap=0.3,
    )
    for phase in dict.fromkeys(p.name for report in names.values() for p in report.phases):
        found = [(name, p) for name, report in names.items() for p in report.phases if p.name == phase]
        drawing.add_trace(
            lane_bars(
                [
                    (
                        escape(name),
                        p.started_s,
                        p.duration_s,
                        "<br>".join([duration_text(p.duration_s), *_detail(p)]),
                    )
                    for name, p in found
                ],
                phase,
                phase_colour(phase),
                marker={"pattern": phase_hatch(phase)},
                hovertemplate=f"<b>%{{y}}: {escape(phase)}</b><br>%{{customdata}}<extra></extra>",
            )
        )
    drawing.update_xaxes(rangemode="tozero", range=[0, max(*taken.values(), 1e-6) * 1.05], **SECONDS)
    order_lanes(drawing, map(escape, names))
    return drawing


GIVEN_UP = {"lost": style.VERMILION, "hole": style.ORANGE, "cut": style.PURPLE}


class _Given(NamedTuple):
    """A range of positions that the log no longer has, or never had."""

    kind: str
    start: int
    end: int
    hover: str


def recovery_timeline(report: RecoveryReport, *, title: str = "", total_s: float | None = None) -> Figure:
    """Draw one horizontal bar per phase of a recovery, on its clock, in seconds; first phase on top.

    Where it lost, cut, or went over a hole, a second panel below draws that by its positions, up to the end of the log;
    each range has a mark at its beginning, so that the smallest is seen. The title says the verdict and how many there
    were; hovering shows the details of a phase, and LSNs, segment and reason of a range. `title` takes the place of
    that title; `total_s` is how long the clock is drawn at least, so that two recoveries have one scale.
    """
    phases = list(report.phases)
    took_s = max((phase.started_s + phase.duration_s for phase in phases), default=0.0)
    given = _given_up(report)
    lsns = sum(g.lsns for g in report.lost)
    said = [counted(len(report.cuts), "cut")]
    said += [counted(len(report.holes), "hole")] if report.holes else []
    outcome = f"Recovery: {escape(report.verdict)}, {', '.join(said)}, {duration_text(took_s)}"
    lost = (f"lost: {counted(lsns, 'LSN')} in {counted(len(report.lost), 'range')}",) if report.lost else ()
    kinds = [kind for kind in GIVEN_UP if any(g.kind == kind for g in given)]
    heights = [40 * max(1, len(phases)), *([30 * len(kinds)] if given else [])]
    panels = subplots(
        rows=len(heights),
        cols=1,
        row_heights=heights,
        vertical_spacing=60 / (sum(heights) + 60) if given else None,
    )
    drawing = dress(
        panels,
        escape(title) or outcome,
        subtitle=["one opening", drawn_by()],
        warnings=lost,
        alt=f"{unescape(outcome)}. Phases: "
        + ", ".join(f"{phase.name} {duration_text(phase.duration_s)}" for phase in phases),
        height=120 + sum(heights) + 60 * bool(given),
        bargap=0.35,
        showlegend=False,
    )
    drawing.add_trace(_bars(phases), row=1, col=1)
    drawing.update_xaxes(
        rangemode="tozero", range=[0, max(took_s, total_s or 0.0, 1e-6) * 1.15], **SECONDS, row=1, col=1
    )
    drawing.update_yaxes(autorange="reversed", type="category", row=1, col=1)
    if given:
        for trace in _ranges(given):
            drawing.add_trace(trace, row=2, col=1)
        drawing.add_vline(report.end_position, line={"color": style.NEUTRAL, "dash": "dot"}, row=2, col=1)
        ends = [report.end_position, *(g.end for g in given)]
        starts = [0, *ends] if max(ends) < 64 * 1024 else [report.end_position, *(g.start for g in given)]
        margin = (max(ends) - min(starts)) * 0.03 + 1
        drawing.update_xaxes(
            title_text="position (dotted: the end of the log)",
            **bytes_axis(min(starts) - margin, max(ends) + margin),
            row=2,
            col=1,
        )
        order_lanes(drawing, kinds[::-1], row=2, col=1)
    return drawing


def _bars(phases: Sequence[Phase]) -> go.Bar:
    return go.Bar(
        orientation="h",
        y=[phase.name for phase in phases],
        base=[phase.started_s for phase in phases],
        x=[phase.duration_s for phase in phases],
        marker={
            "color": [phase_colour(phase.name) for phase in phases],
            "pattern": phase_hatch([phase.name for phase in phases]),
        },
        text=[duration_text(phase.duration_s) for phase in phases],
        textposition="outside",
        cliponaxis=False,
        hovertext=["<br>".join(_detail(phase)) for phase in phases],
        hovertemplate="<b>%{y}</b> %{text}<br>%{hovertext}<extra></extra>",
    )


def _detail(phase: Phase) -> list[str]:
    return [f"{escape(str(name))}: {escape(str(value))}" for name, value in phase.detail.items()]


def _given_up(report: RecoveryReport) -> list[_Given]:
    found = [
        _Given(
            "lost",
            g.start_position,
            g.end_position,
            f"{_lsns(g)}<br>{escape(g.reason)}<br>{escape(g.segment)}",
        )
        for g in report.lost
    ]
    found += [
        _Given("hole", h.start_position, h.end_position, f"{_lsns(h)}<br>never acknowledged")
        for h in report.holes
    ]
    found += [
        _Given(
            "cut",
            c.position,
            c.position + c.bytes,
            f"from LSN {c.first_lsn:,}<br>{escape(c.reason)}<br>{escape(c.segment)}, "
            f"kept as {escape(c.kept_as or 'nothing: it was all zero')}",
        )
        for c in report.cuts
    ]
    return found


def _lsns(gap: HoleRecord | LostRecord) -> str:
    return lsn_range(gap.first_lsn, gap.last_lsn)


def _ranges(given: Sequence[_Given]) -> list[go.Bar | go.Scatter]:
    traces: list[go.Bar | go.Scatter] = []
    for kind, paint in GIVEN_UP.items():
        ranges = [g for g in given if g.kind == kind]
        if not ranges:
            continue
        about = [
            f"<b>{kind}</b>: positions {g.start:,} to {g.end:,}, {g.end - g.start:,} bytes<br>{g.hover}"
            for g in ranges
        ]
        rows = [(kind, g.start, g.end - g.start, words) for g, words in zip(ranges, about, strict=True)]
        mark = go.Scatter(
            x=[g.start for g in ranges],
            y=[kind] * len(ranges),
            mode="markers",
            marker={"symbol": "line-ns-open", "size": 18, "color": paint, "line": {"width": 2}},
            customdata=about,
            hovertemplate="%{customdata}<extra></extra>",
            name=kind,
        )
        traces += [lane_bars(rows, kind, paint), mark]
    return traces
