"""A Run's measurements as tables: the series over time, and the distributions of latency."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from walkit.errors import MissingExtraError
from walkit.measure.histogram import LatencyHistogram
from walkit.measure.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

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
"""The series of a Run, a row for each interval of its timeline. An unknown value is nan.

`time` is the wall clock at the beginning of the interval, `start_s` the same in seconds from the start of the run,
`width_s` its length; `records` were acknowledged in it, with latencies of `p50_us`, `p99_us`, `max_us` (microseconds).
`user_bytes_per_s` takes each record to have the mean bytes of key and value of the whole run.
"""

PARTS = ("series", "latency")
LATENCY_COLUMNS = ("name", "low_us", "high_us", "records", "share")


def series_table(line: Timeline, started_at: datetime, record_bytes: float) -> pa.Table:
    """Return a timeline in SERIES_SCHEMA; `record_bytes` is the mean size of a record, or nan."""
    started_us = round(started_at.timestamp() * 1_000_000)
    columns = {
        **line.columns(),
        "time": started_us + np.rint(line.start_s * 1e6).astype(np.int64),
        "records_per_s": line.records_per_s,
        "user_bytes_per_s": line.records_per_s * record_bytes,
    }
    return pa.table([pa.array(columns[f.name], f.type) for f in SERIES_SCHEMA], schema=SERIES_SCHEMA)


def latency_frame(latency: Mapping[str, LatencyHistogram]) -> pd.DataFrame:
    """Return histograms by name as a row per bucket: LATENCY_COLUMNS. MissingExtraError without pandas."""
    # An empty histogram first, so that a Run without latencies has the columns too.
    found = [("", LatencyHistogram()), *latency.items()]
    frames = [histogram.to_pandas().assign(name=name) for name, histogram in found]
    frame: pd.DataFrame = require_pandas().concat(frames, ignore_index=True)[list(LATENCY_COLUMNS)]
    return frame


def require_pandas() -> Any:
    """Return pandas. MissingExtraError if it is not installed."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError(extra="dashboard", package="pandas") from error
    return pd
