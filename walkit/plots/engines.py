"""How long engines take for the same work, by its size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from walkit.plots.facts import Spread, drawn_by, spread_curve, spread_words
from walkit.plots.style import Figure, figure, label_ends
from walkit.plots.units import count_text, duration_text, log_seconds, sizes_axis


def engine_times(
    seconds: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    title: str = "How long each engine takes",
    subtitle: Sequence[str] = (),
    unit: str = "records",
) -> Figure:
    """Draw the median seconds of each engine over the number of records, with the spread; both axes are logarithmic.

    `seconds` are those of each round, by engine and by records, or by another `unit`. `title` is HTML.
    ValueError if an engine has none.
    """
    if not seconds or any(not sizes or not all(map(len, sizes.values())) for sizes in seconds.values()):
        raise ValueError("give the seconds of at least one round for each engine and size")
    spreads = {
        name: {size: Spread.of(list(sizes[size])) for size in sorted(sizes)}
        for name, sizes in seconds.items()
    }
    found = [one for sizes in spreads.values() for one in sizes.values()]
    rounds = [one.number for one in found]
    words = "; ".join(
        f"{name}: " + ", ".join(f"{count_text(size)} {duration_text(s.median)}" for size, s in sizes.items())
        for name, sizes in spreads.items()
    )
    drawing = figure(
        title,
        subtitle=[spread_words(min(rounds), max(rounds)), *subtitle, drawn_by()],
        alt=f"Median seconds over {unit}, a line for each engine; {words}; n {min(rounds)} to {max(rounds)}",
        height=380,
        xaxis={
            "type": "log",
            "title": {"text": unit},
            **sizes_axis(size for s in seconds.values() for size in s),
        },
        yaxis={
            "type": "log",
            "title": {"text": "median time"},
            **log_seconds(min(one.low for one in found), max(one.high for one in found)),
        },
    )
    for index, (name, sizes) in enumerate(spreads.items()):
        told = [
            f"{duration_text(s.median)} ({duration_text(s.low)} to {duration_text(s.high)}, n {s.number})"
            for s in sizes.values()
        ]
        look = {"customdata": told, "hovertemplate": "%{customdata}"}
        drawing.add_trace(spread_curve(sizes, list(sizes.values()), escape(name), index, **look))
    if len(spreads) > 1:
        label_ends(drawing, {n: trace.name for n, trace in enumerate(drawing.data)})
    return drawing
