"""The segments of a log, their contents, and its LSN marks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from walkit._internal.text import counted, lsn_range
from walkit.plots.facts import drawn_by, short_name
from walkit.plots.lanes import Box, Look, Mark, RowPanel, draw_rows
from walkit.plots.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, SKY, VERMILION, WINE, Figure
from walkit.recovery.scan_report import FAULTS, RangeVerdict, ScanReport, SegmentFacts, Verdict, lsn_text

ROWS = ("segments", "found")
_STATES = {"sealed": Look(BLUE, 0), "open": Look(ORANGE, 5), "stray": Look(PURPLE, 4)}
_VERDICTS = {
    Verdict.INTACT: Look(GREEN, 0),
    Verdict.NOT_READ: Look(NEUTRAL, 0),
    Verdict.IN_PROGRESS: Look(SKY, 5),
    Verdict.TORN: Look(WINE, 1),
    Verdict.STALE: Look(PURPLE, 4),
    Verdict.HOLE: Look(NEUTRAL, 3),
    Verdict.LOST: Look(VERMILION, 6),
    **dict.fromkeys(FAULTS, Look(VERMILION, 2)),
}
_NOT_USED = (Verdict.UNUSED, Verdict.IN_PROGRESS)


def segments(report: ScanReport) -> Figure:
    """Draw a log by its bytes: the segments, the findings in them, and below them the LSN marks.

    `report` is of `walkit.scan` or `walkit.verify`. The marks are the first and last LSN that it can read and the
    promised position, a row each. The axis spans the used part; preallocated space extends beyond it. A mark within a
    frame is drawn in proportion to the LSNs of its segment. Prepared segments hold no frame and are not drawn.
    TypeError for anything but a report.
    """
    if not isinstance(report, ScanReport):
        raise TypeError(
            f"a figure is made of a report: give walkit.scan(log.location), not {type(report).__name__}"
        )
    panel = _panel(report)
    low, high = _used(report)
    return draw_rows(
        f"{escape(short_name(report.location))} ({report.state}): {_summary(report)}",
        [panel],
        low,
        high,
        "position in the log",
        subtitle=[lsn_range(report.first_lsn, report.last_lsn), f"{report.tool} of its files", drawn_by()],
        warnings=[f"{counted(len(report.problems), 'problem')}: {report.problems[0]}"]
        if report.problems
        else (),
        alt=f"Segments of {report.location} by position: {report.summary()}. Marks: "
        + "; ".join(mark.text for mark in panel.marks),
    )


def _summary(report: ScanReport) -> str:
    problems = f", {counted(len(report.problems), 'problem')}" if report.problems else ""
    return f"{counted(len(_in_log(report)), 'segment')}, {report.outcome}{problems}"


def _in_log(report: ScanReport) -> list[SegmentFacts]:
    return [s for s in report.segments if s.state in ("sealed", "open") and s.size_bytes]


def _used(report: ScanReport) -> tuple[float, float]:
    """Return the range of positions that are used, without preallocated space."""
    ranges = [r for r in report.verdict if r.verdict not in _NOT_USED and r.size_bytes]
    starts = [r.start_position for r in ranges] or [s.start_position for s in _in_log(report)]
    ends = [report.end_position, report.promised_position, *(r.start_position + r.size_bytes for r in ranges)]
    low = min(starts, default=0)
    return low, max(*ends, low + 1)


def _panel(report: ScanReport) -> RowPanel:
    panel = RowPanel(_summary(report))
    for row in ROWS:
        panel.row(row)
    for state, look in _STATES.items():
        chosen = [s for s in report.segments if s.state == state and s.size_bytes]
        panel.add(ROWS[0], state, look, [_segment_box(s) for s in chosen])
    for verdict, look in _VERDICTS.items():
        found = [r for r in report.verdict if r.verdict is verdict]
        panel.add(ROWS[1], verdict.value, look, [_range_box(r) for r in found])
    panel.marks = _marks(report, _in_log(report))
    return panel


def _segment_box(segment: SegmentFacts) -> Box:
    lsns = lsn_text(segment.first_lsn, segment.last_lsn)
    return Box(
        segment.start_position,
        segment.size_bytes,
        f"<b>{escape(segment.name)}</b> ({segment.state}, epoch {segment.epoch})<br>LSN {lsns or 'none'}<br>"
        f"{counted(segment.frames, 'frame')}, {counted(segment.records, 'record')}, "
        f"{counted(segment.size_bytes, 'byte')}",
    )


def _range_box(found: RangeVerdict) -> Box:
    reason = f"<br>{escape(found.reason)}" if found.reason else ""
    lsns = lsn_text(found.first_lsn, found.last_lsn)
    return Box(
        found.start_position,
        found.size_bytes,
        f"<b>{found.verdict.value}</b> in {escape(found.segment)}<br>positions {found.start_position:,} to "
        f"{found.end_position:,}{f'<br>LSN {lsns}' if lsns else ''}{reason}",
    )


def _marks(report: ScanReport, in_log: Sequence[SegmentFacts]) -> list[Mark]:
    """Return the marks; LSNs that are equal share one."""
    names: dict[int, list[str]] = {}
    for name, lsn in (("first", report.first_lsn), ("last", report.last_lsn)):
        names.setdefault(lsn, []).append(name)
    found = []
    for lsn, called in names.items():
        at = position_of(lsn, in_log, after=called != ["first"])
        if at is not None:
            found.append(Mark(at, f"{', '.join(called)} {lsn:,}", f"LSN {lsn:,}, position {at:,.0f}"))
    promised = report.promised_position
    return [
        *found,
        Mark(promised, "promised", f"everything before position {promised:,} is on stable storage"),
    ]


def position_of(lsn: int, in_log: Sequence[SegmentFacts], *, after: bool) -> float | None:
    """Return about where a record begins, or with `after` ends; None if no segment has it."""
    for segment in in_log:
        if segment.first_lsn is None or segment.last_lsn is None:
            continue
        if segment.first_lsn <= lsn <= segment.last_lsn:
            share = (lsn - segment.first_lsn + after) / (segment.last_lsn - segment.first_lsn + 1)
            return segment.start_position + share * segment.size_bytes
    return None
