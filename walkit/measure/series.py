"""A Run as tables: its series over time, its distributions of latency, and what it was, as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from walkit.errors import MissingExtraError, OptionsError
from walkit.measure.histogram import LatencyHistogram

if TYPE_CHECKING:
    import pandas as pd

    from walkit.measure.run import Plain, Run

SERIES_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("start_s", pa.float64(), nullable=False),
        pa.field("width_s", pa.float64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("records_per_s", pa.float64(), nullable=False),
        pa.field("user_bytes_per_s", pa.float64(), nullable=False),
        pa.field("p50_us", pa.float64(), nullable=False),
        pa.field("p99_us", pa.float64(), nullable=False),
        pa.field("max_us", pa.float64(), nullable=False),
    ]
)
"""The series of a Run, a row for each interval of its timeline. What is not known is nan.

`time` is the wall clock at the beginning of the interval, `start_s` the same in seconds from the start of the run,
`width_s` its length; `records` were acknowledged in it, with latencies of `p50_us`, `p99_us`, `max_us` (microseconds).
`user_bytes_per_s` takes each record to have the mean bytes of key and value of the whole run.
"""

Part = Literal["series", "latency"]
PARTS = ("series", "latency")
LATENCY_COLUMNS = ("name", "low_us", "high_us", "records", "share")


def series_table(run: Run) -> pa.Table:
    """Return the series of a Run as SERIES_SCHEMA says."""
    line = run.timeline
    started_us = round(run.started_at.timestamp() * 1_000_000)
    record_bytes = run.bytes_user / run.records if run.bytes_user is not None and run.records else np.nan
    columns = {
        **line.columns(),
        "time": started_us + np.rint(line.start_s * 1e6).astype(np.int64),
        "records_per_s": line.records_per_s,
        "user_bytes_per_s": line.records_per_s * record_bytes,
    }
    return pa.table([pa.array(columns[f.name], f.type) for f in SERIES_SCHEMA], schema=SERIES_SCHEMA)


def attributes(run: Run) -> dict[str, Plain]:
    """Return what a table of a Run carries beside its rows, as JSON gives it back equal: settings and results.

    It is what `summary()` holds, with the start, machine, options, labels, operations, and for each histogram its
    count and percentiles in microseconds.
    """
    from walkit.measure.run import plain

    return {
        **{name: plain(value) for name, value in run.summary().items()},
        "started_at": run.started_at.isoformat(),
        "machine": plain(run.machine),
        "options": run.options,
        "labels": run.labels,
        "operations": plain(run.operations),
        "latency_us": {name: _percentiles(histogram) for name, histogram in run.latency.items()},
    }


def _percentiles(histogram: LatencyHistogram) -> dict[str, Plain]:
    known = histogram.percentiles_us() if histogram.count else {}
    return {"records": histogram.count, **known}


def to_pandas(run: Run, part: Part = "series") -> pd.DataFrame:
    """See Run.to_pandas."""
    if part not in PARTS:
        raise OptionsError(f"part={part!r}: series or latency", option="part", wanted=part)
    pandas = require_pandas()
    frame: pd.DataFrame
    if part == "series":
        frame = series_table(run).to_pandas()
    else:
        # An empty histogram first, so that a Run without latencies has the columns too.
        found = [("", LatencyHistogram()), *run.latency.items()]
        frames = [histogram.to_pandas().assign(name=name) for name, histogram in found]
        frame = pandas.concat(frames, ignore_index=True)[list(LATENCY_COLUMNS)]
    frame.attrs.update(attributes(run))
    return frame


def require_pandas() -> Any:
    """Return pandas. MissingExtraError where it is not installed."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError(extra="dashboard", package="pandas") from error
    return pd
