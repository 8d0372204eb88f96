"""The segments of a log, what is in them, and where its LSN marks stand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from walkit.log.examine.verdicts import FAULTS, RangeVerdict, ScanReport, SegmentFacts, Verdict, lsn_text
from walkit.log.report import RecoveryReport
from walkit.metrics import LogStatistics
from walkit.plots.style import BLUE, GREEN, ORANGE, PURPLE, SKY, TEXT, VERMILION, figure, go
from walkit.text import counted

ROWS = ("segments", "found", "LSN marks")
_STATES = {"sealed": BLUE, "open": ORANGE, "stray": PURPLE}
_VERDICTS = {
    Verdict.INTACT: GREEN,
    Verdict.IN_PROGRESS: SKY,
    Verdict.TORN: ORANGE,
    Verdict.STALE: PURPLE,
    **dict.fromkeys(FAULTS, VERMILION),
}
MARKS_OF_STATISTICS = ("first_lsn", "durable_lsn", "acked_lsn", "appended_lsn")


class _Box(NamedTuple):
    start: int
    size: int
    hover: str


def segments(
    report: ScanReport, *, statistics: LogStatistics | None = None, recovery: RecoveryReport | None = None
) -> go.Figure:
    """Draw a log over its positions: the segments, what was found in them, and below where the LSN marks stand.

    `report` is of `walkit.scan` or `walkit.verify`. The marks are the first and last LSN that it can read and the
    promised position; with `statistics` (of `log.statistics()`) the four marks of the live log instead of the LSNs;
    with `recovery` (`log.recovery`) also what that opening cut. A mark within a frame is drawn in proportion to the
    LSNs of its segment. Prepared segments hold no frame and are not drawn. TypeError for anything but a report.
    """
    if not isinstance(report, ScanReport):
        raise TypeError(
            f"a figure is made of a report: give walkit.scan(log.location), not {type(report).__name__}"
        )
    in_log = [s for s in report.segments if s.state in ("sealed", "open") and s.size_bytes]
    state = "ok" if report.ok else f"NOT OK, {counted(len(report.problems), 'problem')}"
    cuts = () if recovery is None else recovery.cuts
    drawing = figure(
        f"{escape(report.location)} ({report.state}): {counted(len(in_log), 'segment')}, {state}",
        height=340,
        barmode="overlay",
        bargap=0.3,
    )
    for name, paint in _STATES.items():
        chosen = [s for s in report.segments if s.state == name and s.size_bytes]
        _bars(drawing, ROWS[0], name, paint, (_segment_box(s) for s in chosen))
    for verdict, paint in _VERDICTS.items():
        found = [r for r in report.verdict if r.verdict is verdict and r.size_bytes]
        _bars(drawing, ROWS[1], verdict.value, paint, (_range_box(r) for r in found))
    marks = _marks(report, statistics, in_log)
    marks += [(c.position, f"cut {counted(c.bytes, 'byte')}", f"{c.reason} ({c.segment})") for c in cuts]
    drawing.add_trace(
        go.Scatter(
            x=[at for at, _, _ in marks],
            y=[ROWS[2]] * len(marks),
            text=[escape(name) for _, name, _ in marks],
            customdata=[escape(more) for _, _, more in marks],
            mode="markers+text",
            textposition=[_beside(i, at, marks) for i, (at, _, _) in enumerate(marks)],
            marker={"symbol": "line-ns-open", "size": 18, "color": TEXT, "line": {"width": 2}},
            hovertemplate="<b>%{text}</b><br>%{customdata}<br>position %{x:,}<extra></extra>",
            showlegend=False,
            cliponaxis=False,
            name="marks",
        )
    )
    drawing.update_xaxes(title_text="position, bytes", separatethousands=True, exponentformat="none")
    drawing.update_yaxes(categoryorder="array", categoryarray=list(reversed(ROWS)), type="category")
    return drawing


def _beside(index: int, at: float, marks: Sequence[tuple[float, str, str]]) -> str:
    # Marks often stand close together: every other text goes below. And each goes to where there is room.
    side = "left" if at > max(other for other, _, _ in marks) / 2 else "right"
    return f"{'top' if index % 2 == 0 else 'bottom'} {side}"


def _bars(drawing: go.Figure, row: str, name: str, paint: str, boxes: Iterable[_Box]) -> None:
    found = list(boxes)
    if not found:
        return
    drawing.add_trace(
        go.Bar(
            orientation="h",
            y=[row] * len(found),
            base=[box.start for box in found],
            x=[box.size for box in found],
            customdata=[box.hover for box in found],
            hovertemplate="%{customdata}<extra></extra>",
            # The page shows between two boxes, whatever its colour.
            marker={"color": paint, "line": {"width": 1, "color": TEXT}},
            name=name,
        )
    )


def _segment_box(segment: SegmentFacts) -> _Box:
    lsns = lsn_text(segment.first_lsn, segment.last_lsn)
    return _Box(
        segment.start_position,
        segment.size_bytes,
        f"<b>{escape(segment.name)}</b> ({segment.state}, epoch {segment.epoch})<br>LSN {lsns or 'none'}<br>"
        f"{counted(segment.frames, 'frame')}, {counted(segment.records, 'record')}, "
        f"{counted(segment.size_bytes, 'byte')}",
    )


def _range_box(found: RangeVerdict) -> _Box:
    reason = f"<br>{escape(found.reason)}" if found.reason else ""
    lsns = lsn_text(found.first_lsn, found.last_lsn)
    return _Box(
        found.start_position,
        found.size_bytes,
        f"<b>{found.verdict.value}</b> in {escape(found.segment)}<br>positions {found.start_position:,} to "
        f"{found.end_position:,}{f'<br>LSN {lsns}' if lsns else ''}{reason}",
    )


def _marks(
    report: ScanReport, statistics: LogStatistics | None, in_log: Sequence[SegmentFacts]
) -> list[tuple[float, str, str]]:
    """Return (position, text, more) of each mark; LSNs that are equal share one."""
    if statistics is None:
        lsns = {"first": report.first_lsn, "last": report.last_lsn}
    else:
        lsns = {name.removesuffix("_lsn"): getattr(statistics, name) for name in MARKS_OF_STATISTICS}
    names: dict[int, list[str]] = {}
    for name, lsn in lsns.items():
        names.setdefault(lsn, []).append(name)
    found: list[tuple[float, str, str]] = []
    for lsn, called in names.items():
        at = position_of(lsn, in_log, behind=called != ["first"])
        if at is not None:
            found.append((at, f"{', '.join(called)} {lsn:,}", f"LSN {lsn:,}"))
    return [*found, (report.promised_position, "promised", "everything before it is on stable storage")]


def position_of(lsn: int, in_log: Sequence[SegmentFacts], *, behind: bool) -> float | None:
    """Return about where a record begins, or with `behind` ends; None where it is in no segment."""
    for segment in in_log:
        if segment.first_lsn is None or segment.last_lsn is None:
            continue
        if segment.first_lsn <= lsn <= segment.last_lsn:
            share = (lsn - segment.first_lsn + behind) / (segment.last_lsn - segment.first_lsn + 1)
            return segment.start_position + share * segment.size_bytes
    return None
