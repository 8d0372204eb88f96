"""Batching: latency and cost of a log over ways to batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from walkit.measure import Run
from walkit.models.object_stores import MILLION, PRICES, Price
from walkit.objects.layout import BULK_HEADER_BYTES
from walkit.plots.facts import Spread, run_facts, run_warnings, spread_curve, spread_words
from walkit.plots.style import Figure, dress, go, subplots
from walkit.plots.units import COUNTS, LOG_SECONDS, count_text, duration_text, log_counts

if TYPE_CHECKING:
    import pandas as pd


PANELS = {
    "p50_s": "latency, p50 (dotted: p99)",
    "records_per_s": "records/s",
    "requests": "requests for a million records",
    "usd": "US$ for a million records",
}
"""Titles by column; without a known price the last panel has the bytes."""
KEPT_DAYS = 30


def batching_table(
    runs: Iterable[Run], batching: str, *, prices: Mapping[str, Price] = PRICES, kept_days: float = KEPT_DAYS
) -> pd.DataFrame:
    """Return a row for each Run: its name, the label `batching`, latencies, records/s, and a million records' cost.

    Columns: `place` (the Run's name), `batching`, `p50_s`, `p99_s`, `records_per_s`; for a million records `requests`
    (a frame is a request: one object, or one write and sync), `bytes` that they send, and `usd`, for writing them and
    keeping them for `kept_days`. `usd` is missing if no price has the Run's name.
    """
    import pandas as pd

    rows = []
    for run in runs:
        if run.frames is None or not run.records:
            continue
        header = BULK_HEADER_BYTES if run.labels.get("objects") else 0
        requests = run.frames.frames * MILLION / run.records
        size = (run.frames.frame_bytes + header * run.frames.frames) * MILLION / run.records
        price = prices.get(run.name)
        rows.append(
            {
                "place": run.name,
                "batching": run.labels[batching],
                "p50_s": run.latency["total"].percentile(50) / 1e9,
                "p99_s": run.latency["total"].percentile(99) / 1e9,
                "records_per_s": run.records_per_s,
                "requests": requests,
                "bytes": size,
                "usd": price and price.usd(puts=requests, sent=size) + price.kept_usd(size, kept_days),
            }
        )
    return pd.DataFrame(rows)


def batching_cost(
    runs: Iterable[Run],
    batching: str,
    *,
    prices: Mapping[str, Price] = PRICES,
    kept_days: float = KEPT_DAYS,
) -> Figure:
    """Draw latency, records/s, requests and dollars of a million records over the label `batching`, in four panels.

    Runs of one name are a series; several of one value are a point: their median, with a whisker for their spread.
    Without a known price the last panel has bytes. All axes but that of records/s are logarithmic; a value of 0 is at
    the left edge. The dollars are those of `batching_table`. ValueError without a Run that has frames.
    """
    chosen = list(runs)
    table = batching_table(chosen, batching, prices=prices, kept_days=kept_days)
    if table.empty:
        raise ValueError("runs with frames are drawn")
    numbers = table.groupby(["place", "batching"]).size()
    words = spread_words(int(numbers.min()), int(numbers.max()))
    panels = dict(PANELS)
    if table.usd.isna().all():
        panels.pop("usd")
        panels["bytes"] = "bytes for a million records"
    drawing = subplots(
        rows=2, cols=2, subplot_titles=list(panels.values()), vertical_spacing=0.17, horizontal_spacing=0.11
    )
    places = _places(sorted(set(table.batching)))
    for index, (place, rows) in enumerate(table.groupby("place", sort=False)):
        for panel, column in enumerate(panels):
            for each in (column, *(() if panel else ("p99_s",))):
                trace = _curve(str(place), rows, each, places, index)
                drawing.add_trace(trace, row=panel // 2 + 1, col=panel % 2 + 1)
    known = [prices[name] for name in dict.fromkeys(table.place) if name in prices]
    dated = ", ".join(sorted({price.date for price in known}))
    dress(
        drawing,
        f"Batching a log: {escape(batching)}",
        subtitle=[
            *([words] if words else []),
            *([f"prices of {dated}, US East, kept for {kept_days:g} days"] if known else []),
            *run_facts(chosen),
        ],
        warnings=run_warnings(chosen, single=not words, named=False),
        alt="Four panels of lines: "
        + "; ".join(_describe(str(name), rows) for name, rows in table.groupby("place")),
        height=660,
    )
    _axes(drawing, table, panels, batching, places)
    return drawing


def _places(values: list[float]) -> dict[Any, float]:
    """Return the place of each value on a logarithmic axis; 0 is a step before the least of the others."""
    above = [value for value in values if value > 0]
    step = above[1] / above[0] if len(above) > 1 else 2.0
    return {value: value or (above[0] / step if above else 1.0) for value in values}


def _curve(
    place: str, rows: pd.DataFrame, column: str, places: Mapping[Any, float], index: int
) -> go.Scatter:
    spreads = {
        value: Spread.of([float(each) for each in found[column]])
        for value, found in rows.groupby("batching")
        if found[column].notna().all()
    }
    unit = "%{y:.3s}s" if column.endswith("_s") and column != "records_per_s" else "%{y:,.4~g}"
    return spread_curve(
        [places[value] for value in spreads],
        list(spreads.values()),
        escape(place),
        index,
        legendgroup=place,
        showlegend=column == "p50_s",
        customdata=list(spreads),
        hovertemplate=f"%{{customdata:,}}: {unit}",
        **({"mark": "", "line": {"dash": "dot"}} if column == "p99_s" else {}),
    )


def _axes(
    drawing: Figure, table: pd.DataFrame, panels: Iterable[str], batching: str, places: Mapping[Any, float]
) -> None:
    drawing.update_xaxes(
        type="log", tickvals=list(places.values()), ticktext=[count_text(value) for value in places]
    )
    drawing.update_xaxes(title_text=escape(batching), row=2)
    for number, column in enumerate(panels):
        values = table[[column, "p99_s"] if not number else column].dropna().to_numpy()
        look = LOG_SECONDS if not number else log_counts(values.min(), values.max()) if len(values) else {}
        if column == "usd":
            look = {"tickformat": "$~g", "dtick": "D2"}
        is_rate = column == "records_per_s"
        form = {"rangemode": "tozero", **COUNTS} if is_rate else {"type": "log", **look}
        drawing.update_yaxes(**form, row=number // 2 + 1, col=number % 2 + 1)
    drawing.update_annotations(font={"size": 12})


def _describe(place: str, rows: pd.DataFrame) -> str:
    priced = [] if rows.usd.isna().any() else ["usd"]
    median = rows.groupby("batching")[["p50_s", "requests", *priced]].median()
    ends = [median.iloc[0], median.iloc[-1]]
    p50, requests = (
        " to ".join(text(float(end[name])) for end in ends)
        for name, text in (("p50_s", duration_text), ("requests", count_text))
    )
    usd = ", $" + " to ".join(f"{float(end.usd):.2g}" for end in ends) if priced else ""
    return f"{place}: p50 {p50}, {requests} requests{usd} for a million records"
