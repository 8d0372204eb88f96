"""Throughput and latency over the time of a run, in buckets of one width."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from walkit._internal.html import Markup, column_chart, tag, titled

if TYPE_CHECKING:
    import pandas as pd

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

BUCKETS_WANTED = 200
"""A timeline that may choose its width has at most this many buckets."""
PICTURE_COLUMNS = 60


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """Acknowledged records over time. Arrays of one length, one element per bucket, read-only.

    Buckets touch each other and cover the run from 0 to its end. The last one takes the remainder, so that it is
    between half and one and a half widths long and its rate means something.
    """

    start_s: Float64Array
    """Where the bucket begins, seconds from the start of the run."""
    width_s: Float64Array
    """How long it is, seconds."""
    records: Int64Array
    """Records acknowledged in it."""
    p50_us: Float64Array
    """Median latency of those records, microseconds; nan without records."""
    p99_us: Float64Array
    """99th percentile of their latency, microseconds; nan without records."""
    max_us: Float64Array
    """Their longest latency, microseconds; nan without records."""

    def __repr__(self) -> str:
        return f"Timeline({len(self.records):,} buckets, {int(self.records.sum()):,} records)"

    def __post_init__(self) -> None:
        for field in fields(self):
            column = np.asarray(
                getattr(self, field.name), dtype=np.int64 if field.name == "records" else np.float64
            )
            column = column.copy() if column.flags.writeable else column
            column.setflags(write=False)
            object.__setattr__(self, field.name, column)
        if len({len(column) for column in self.columns().values()}) != 1:
            raise ValueError("the columns of a timeline have one length")

    @classmethod
    def from_samples(
        cls,
        completed_ns: npt.ArrayLike,
        latency_ns: npt.ArrayLike,
        *,
        duration_s: float,
        records: npt.ArrayLike | None = None,
        bucket_s: float | None = None,
    ) -> Timeline:
        """Cut samples into buckets.

        `completed_ns` (nanoseconds from the start of the run, any order) and `latency_ns` are 1-d of one
        length; `records` says how many records per sample, None one. Records that completed after
        `duration_s` count in the last bucket. `bucket_s` None takes a round width that gives at most
        BUCKETS_WANTED buckets. Percentiles are by nearest rank, as those of the histograms, and exact.
        ValueError for negative times, counts below 1, and shapes that differ.
        """
        completed = np.asarray(completed_ns, dtype=np.int64)
        latency = np.asarray(latency_ns, dtype=np.int64)
        weight = np.ones_like(completed) if records is None else np.asarray(records, dtype=np.int64)
        if completed.ndim != 1 or not completed.shape == latency.shape == weight.shape:
            raise ValueError("completed_ns, latency_ns and records must be 1-d and of one length")
        if completed.size and (completed.min() < 0 or latency.min() < 0 or weight.min() < 1):
            raise ValueError("times must not be negative, and counts must be at least 1")
        if duration_s < 0 or (bucket_s is not None and bucket_s <= 0):
            raise ValueError("duration_s must not be negative, and bucket_s must be positive")
        width_s = bucket_s or round_width(duration_s)
        size = max(1, round(duration_s / width_s))
        start_s: Float64Array = np.arange(size, dtype=np.float64) * width_s
        ends_s = np.append(start_s[1:], max(duration_s, start_s[-1]))
        # A sample belongs to the last bucket that begins at or before it.
        starts_ns = np.rint(start_s * 1e9).astype(np.int64)
        bucket = np.searchsorted(starts_ns, completed, side="right") - 1
        counts, p50, p99, longest = _bucket_statistics(bucket, latency, weight, size)
        return cls(
            start_s=start_s,
            width_s=ends_s - start_s,
            records=counts,
            p50_us=p50 / 1_000,
            p99_us=p99 / 1_000,
            max_us=longest / 1_000,
        )

    @property
    def records_per_s(self) -> Float64Array:
        """Throughput of each bucket; 0 for a bucket without length."""
        rate: Float64Array = np.divide(
            self.records, self.width_s, out=np.zeros(len(self.records)), where=self.width_s > 0
        )
        return rate

    @property
    def middle_s(self) -> Float64Array:
        """The middle of each bucket, where a plot puts its value."""
        return self.start_s + self.width_s / 2

    def picture(self) -> Markup:
        """Return the throughput over time as HTML: at most 60 columns, each the mean of a part of the time."""
        shown = []
        for part in np.array_split(np.arange(len(self)), max(min(len(self), PICTURE_COLUMNS), 1)):
            width_s = float(self.width_s[part].sum())
            rate = float(self.records[part].sum()) / width_s if width_s else 0.0
            shown.append((rate, f"{rate:,.0f} records/s for {width_s:,.2g} s"))
        most = max(rate for rate, _ in shown)
        return column_chart(shown, label=f"records/s over {self.width_s.sum():,.3g} s, at most {most:,.0f}")

    def columns(self) -> dict[str, npt.NDArray[np.int64] | Float64Array]:
        """Return the arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with one row per bucket, and records_per_s."""
        import pandas as pd

        return pd.DataFrame({**self.columns(), "records_per_s": self.records_per_s})

    def __len__(self) -> int:
        """Return the number of buckets."""
        return len(self.start_s)

    def __eq__(self, other: object) -> bool:
        """Compare column by column; nan equals nan."""
        if not isinstance(other, Timeline):
            return NotImplemented
        theirs = other.columns()
        return all(
            np.array_equal(column, theirs[name], equal_nan=True) for name, column in self.columns().items()
        )

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        length_s, records = float(self.width_s.sum()), int(self.records.sum())
        facts = [
            ("buckets", f"{len(self):,} of {float(self.width_s[0]):g} s" if len(self) else "none"),
            ("time", f"{length_s:,.6g} s"),
            ("records", f"{records:,}"),
        ]
        if records:
            facts.append(("longest latency", f"{np.nanmax(self.max_us):,.1f} µs"))
        return tag("div", self.picture(), titled("Timeline", facts))


def round_width(duration_s: float, buckets: int = BUCKETS_WANTED) -> float:
    """Return the smallest width of 1, 2 or 5 times a power of ten seconds, at least 1 ms, that fits."""
    smallest = max(duration_s / buckets, 1e-3)
    power = 10.0 ** np.floor(np.log10(smallest))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= smallest * (1 - 1e-9)))


def _bucket_statistics(
    bucket: Int64Array, latency_ns: Int64Array, weight: Int64Array, size: int
) -> tuple[Int64Array, Float64Array, Float64Array, Float64Array]:
    """Return records, p50, p99 and maximum (ns; nan if empty) of each of `size` buckets."""
    order = np.lexsort((latency_ns, bucket))
    bucket, latency_ns, weight = bucket[order], latency_ns[order], weight[order]
    reached = np.cumsum(weight)
    edges = np.searchsorted(bucket, np.arange(size + 1), side="left")
    before = np.concatenate(([0], reached))[edges]
    counts = np.diff(before)
    full = np.flatnonzero(counts)

    def at_rank(rank: Int64Array) -> Float64Array:
        values = np.full(size, np.nan)
        values[full] = latency_ns[np.searchsorted(reached, before[full] + rank, side="left")]
        return values

    def percentile(p: float) -> Float64Array:
        return at_rank(np.maximum((counts[full] * p / 100 + 0.5).astype(np.int64), 1))

    return counts, percentile(50.0), percentile(99.0), at_rank(counts[full])
