"""The data of a figure as a table, to compute with and to save."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from walkit._internal.arguments import refuse
from walkit.plots.display import go
from walkit.plots.picture_traces import whiskers

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("panel", "series", "x_title", "x", "y_title", "y", "base", "low", "high", "text")


def data(figure: go.Figure) -> pd.DataFrame:
    """Return a figure's data as a DataFrame with a row for each point, bar or cell.

    Columns: `panel` (from 1, from the top), `series` (its name in the legend), `x` and `y` with the titles of their
    axes, `base` (where a bar begins: it spans `base` to `base` + its length), `low` and `high` (the ends of a whisker),
    and `text` (what is written there). Durations are seconds, sizes bytes. A column in which words and numbers would
    meet holds words. Points without a place, such as the squares of a legend, are left out.
    """
    import pandas as pd

    rows = [row for number, trace in enumerate(figure.data) for row in _rows(figure, trace, number)]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    for name in ("x", "y", "base", "low", "high"):
        words = table[name].map(lambda value: isinstance(value, str))
        table[name] = (
            table[name]
            .map(lambda v: v if isinstance(v, str) else None if v is None else f"{v:.12g}")
            .astype("str")
            if words.any()
            else pd.to_numeric(table[name])
        )
    return table.astype({"series": "str", "x_title": "str", "y_title": "str", "text": "str"})


def save_data(figure: go.Figure, path: str | os.PathLike[str]) -> None:
    """Write the data of a figure, by the suffix of `path`: .csv or .parquet. OptionsError for another one."""
    target = Path(path)
    if target.suffix == ".csv":
        data(figure).to_csv(target, index=False)
    elif target.suffix == ".parquet":
        data(figure).to_parquet(target, index=False)
    else:
        refuse("path", target.name, "data is saved as .csv or .parquet")


def _rows(figure: go.Figure, trace: Any, number: int) -> list[dict[str, Any]]:
    x_axis, y_axis = (figure.layout[(getattr(trace, f"{n}axis") or n).replace(n, f"{n}axis")] for n in "xy")
    shared = {
        "panel": int((trace.yaxis or "y")[1:] or 1),
        "series": trace.name or f"series {number + 1}",
        "x_title": x_axis.title.text or "",
        "y_title": y_axis.title.text or "",
    }
    if trace.type == "heatmap":
        z, written = np.asarray(trace.z, dtype=float), np.asarray(trace.text, dtype=object)
        return [
            {**shared, "x": int(column), "y": int(row), "text": str(written[row, column])}
            for row, column in zip(*np.nonzero(np.isfinite(z)), strict=True)
        ]
    xs, ys = _plain(trace.x), _plain(trace.y)
    bases = _plain(trace.base) if trace.type == "bar" else []
    ends = whiskers(trace)
    texts = [] if trace.text is None else list(trace.text)
    return [
        {
            **shared,
            "x": x,
            "y": y,
            "base": bases[at] if at < len(bases) else None,
            "low": ends[at][0] if at < len(ends) else None,
            "high": ends[at][1] if at < len(ends) else None,
            "text": str(texts[at]) if at < len(texts) and texts[at] is not None else "",
        }
        for at, (x, y) in enumerate(zip(xs, ys, strict=True))
        if x is not None or y is not None
    ]


def _plain(values: Any) -> list[Any]:
    return [] if values is None else [v.item() if isinstance(v, np.generic) else v for v in values]
