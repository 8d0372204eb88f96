"""How long opening takes, over how much of the log follows the last checkpoint, and over the size of segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from walkit.plots.facts import Spread, drawn_by, error_bars, spread_words
from walkit.plots.style import NEUTRAL, Figure, figure, go, phase_colour, phase_hatch
from walkit.plots.units import SECONDS, bytes_text, duration_text
from walkit.recovery.report import RecoveryReport


def recovery_over_checkpoint(
    reports: Mapping[int, RecoveryReport | Sequence[RecoveryReport]],
    *,
    subtitle: Sequence[str] = (),
) -> Figure:
    """Draw the time of each opening of a store, phase on phase, over the records after its last checkpoint.

    `reports` has `store.recovery` by that number of records, or several of them from repeated openings: then the phases
    are those of the opening that took the median, and a whisker spans the totals. Phases of less than a thousandth of
    the longest opening are left out. `subtitle` are more facts, such as the machine. ValueError without a report.
    """
    return _phases_over(
        "Opening a store, over the records after its last checkpoint",
        "records after the last checkpoint",
        {f"{after:,}": found for after, found in sorted(reports.items())},
        subtitle,
    )


def recovery_over_segment_size(
    reports: Mapping[int, RecoveryReport | Sequence[RecoveryReport]],
    *,
    subtitle: Sequence[str] = (),
) -> Figure:
    """Draw the time of each opening of a log, phase on phase, over `segment_bytes`; see `recovery_over_checkpoint`."""
    return _phases_over(
        "Opening a log after a kill, over the size of its segments",
        "bytes of a segment",
        {bytes_text(size): found for size, found in sorted(reports.items())},
        subtitle,
    )


def _phases_over(
    title: str,
    axis: str,
    reports: Mapping[str, RecoveryReport | Sequence[RecoveryReport]],
    subtitle: Sequence[str],
) -> Figure:
    repeated = {
        at: [found] if isinstance(found, RecoveryReport) else list(found) for at, found in reports.items()
    }
    if not repeated or not all(repeated.values()):
        raise ValueError("no report to draw")
    totals = [Spread.of([r.duration_s for r in found]) for found in repeated.values()]
    shown = [_middle(found) for found in repeated.values()]
    longest = max(total.median for total in totals)
    least, most = (pick(total.number for total in totals) for pick in (min, max))
    words = spread_words(least, most)
    drawing = figure(
        title,
        subtitle=[*subtitle, *([words] if words else []), drawn_by()],
        warnings=[] if words else ["n = 1 each: no spread is known"],
        alt=f"Stacked bars: time to open by phase. {title}. "
        + "; ".join(
            f"{duration_text(total.median)} with {at} {axis}"
            for at, total in zip(repeated, totals, strict=True)
        ),
        barmode="stack",
        bargap=0.4,
    )
    names = dict.fromkeys(p.name for found in repeated.values() for r in found for p in r.phases)
    labels = list(repeated)
    for name in names:
        seconds = [sum(p.duration_s for p in report.phases if p.name == name) for report in shown]
        if max(seconds) < longest / 1000:
            continue
        drawing.add_trace(
            go.Bar(
                x=labels,
                y=seconds,
                text=[duration_text(s) for s in seconds],
                textposition="none",
                name=name,
                marker={"color": phase_colour(name), "pattern": phase_hatch(name)},
                hovertemplate=f"{name}: %{{text}}<extra></extra>",
            )
        )
    if words:
        drawing.add_trace(
            go.Scatter(
                x=labels,
                y=[total.median for total in totals],
                error_y=error_bars(totals),
                mode="markers",
                marker={"symbol": "line-ew-open", "size": 18, "color": NEUTRAL, "line": {"width": 2}},
                name=words,
                hovertemplate="all phases: %{y:.3s}s<extra></extra>",
            )
        )
    drawing.update_xaxes(title_text=axis, type="category")
    drawing.update_yaxes(title_text="time to open", rangemode="tozero", **SECONDS)
    return drawing


def _middle(reports: Sequence[RecoveryReport]) -> RecoveryReport:
    """Return the report of the median duration; of an even number, the shorter one of the two."""
    return sorted(reports, key=lambda report: report.duration_s)[(len(reports) - 1) // 2]
