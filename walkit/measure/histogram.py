"""Latencies as HDR histograms: every value kept to three significant digits, from a nanosecond to a day.

The counters are those of the `hdrhistogram` package (Gil Tene's HdrHistogram, V2 encoding). Samples are
folded after a run, with numpy straight into the package's counter array: its own `record_value` takes about a
microsecond a sample, which is more than many of the things that are measured here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from walkit._internal.html import table
from walkit.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

Int64Array = npt.NDArray[np.int64]

HIGHEST_NS = 24 * 3600 * 1_000_000_000
"""The longest latency a histogram holds: one day."""

SIGNIFICANT_DIGITS = 3
"""A value that is read back differs by less than one part in a thousand from the recorded one."""

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99, 100.0)
"""The percentiles that reports show; 100 is the maximum."""

_UNIT_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


class Buckets(NamedTuple):
    """The buckets of a histogram that hold something, in rising order: three arrays of one length."""

    low_ns: Int64Array
    """Lowest latency that falls into the bucket."""
    high_ns: Int64Array
    """Highest latency that falls into the bucket."""
    counts: Int64Array
    """Records in the bucket, at least 1."""

    def __repr__(self) -> str:
        return f"Buckets({len(self.counts):,} buckets, {int(self.counts.sum()):,} records)"


class LatencyHistogram:
    """How many records took how long. Immutable; every answer is in nanoseconds, within 0.1 %.

    Of an empty histogram every statistic is nan and `count` is 0. Equal if every bucket is equal. Safe to
    share between threads; picklable. Raises MissingExtraError if `hdrhistogram` is not installed.
    """

    __slots__ = ("_hdr",)

    def __init__(self) -> None:
        """Make an empty histogram; `from_samples`, `merge` and `decode` make the others."""
        self._hdr = _new_hdr()

    @classmethod
    def from_samples(
        cls,
        latencies: npt.ArrayLike,
        *,
        unit: Literal["ns", "us", "ms", "s"] = "ns",
        counts: npt.ArrayLike | None = None,
    ) -> LatencyHistogram:
        """Fold a one-dimensional array of latencies; a million take some tens of milliseconds.

        `counts`, of the same length, says how many records had each latency (records that were acknowledged
        together); None means one each. ValueError for a latency below 0, not finite or over HIGHEST_NS, and
        for a count below 1.
        """
        histogram = cls()
        values = np.asarray(latencies)
        if values.dtype.kind not in "iu" or unit != "ns":
            scaled = np.asarray(values, dtype=np.float64) * _UNIT_NS[unit]
            if not np.isfinite(scaled).all():
                raise ValueError("latencies must be finite")
            values = np.rint(scaled)
        weights = None if counts is None else np.asarray(counts, dtype=np.int64)
        if values.ndim != 1 or (weights is not None and weights.shape != values.shape):
            raise ValueError(f"latencies and counts must be 1-d and of one length, not {values.shape}")
        if values.size == 0:
            return histogram
        if values.min() < 0 or values.max() > HIGHEST_NS:
            raise ValueError(f"latencies must be in 0..{HIGHEST_NS} ns: {values.min()}..{values.max()}")
        if weights is not None and weights.min() < 1:
            raise ValueError("counts must be at least 1")
        histogram._add(_bucket_index(histogram._hdr, values.astype(np.int64, copy=False)), weights)
        return histogram

    @classmethod
    def merged(cls, histograms: Iterable[LatencyHistogram]) -> LatencyHistogram:
        """Return the histogram of all the records of `histograms`; of none, an empty one."""
        result = cls()
        total = np.zeros(result._hdr.counts_len, dtype=np.int64)
        for histogram in histograms:
            total += _counts(histogram._hdr)
        index = np.flatnonzero(total)
        if index.size:
            result._add(index, total[index])
        return result

    def _add(self, index: Int64Array, weights: Int64Array | None) -> None:
        """Fill this still private histogram; `index` is not empty."""
        folded = np.bincount(index, weights=weights).astype(np.int64)
        assert folded.size <= self._hdr.counts_len
        _counts(self._hdr)[: folded.size] += folded
        # The package keeps its own notes of the total and the ends, which its percentiles and encoder rely
        # on.
        self._hdr.set_internal_tacking_values(int(index.min()), int(index.max()), int(folded.sum()))

    @property
    def count(self) -> int:
        """How many records."""
        return int(self._hdr.total_count)

    @property
    def min(self) -> float:
        """The shortest latency, ns."""
        return float(self.buckets().low_ns[0]) if self.count else float("nan")

    @property
    def max(self) -> float:
        """The longest latency, ns (the upper edge of its bucket, as HDR histograms have it)."""
        return float(self.buckets().high_ns[-1]) if self.count else float("nan")

    @property
    def mean(self) -> float:
        """The mean latency, ns, each record counted at the middle of its bucket."""
        if not self.count:
            return float("nan")
        low, high, counts = self.buckets()
        return float(np.average((low + high) / 2, weights=counts))

    def percentile(self, p: float) -> float:
        """Return the latency, ns, that `p` percent (0..100) of the records do not exceed: nearest rank."""
        return self.percentiles((p,))[p]

    def percentiles(self, which: Iterable[float] = PERCENTILES) -> dict[float, float]:
        """Return percentile -> latency in ns, in the given order."""
        wanted = tuple(which)
        if any(not 0 <= p <= 100 for p in wanted):
            raise ValueError(f"percentiles must be in 0..100: {wanted}")
        if not self.count:
            return dict.fromkeys(wanted, float("nan"))
        found = self._hdr.get_percentile_to_value_dict(list(wanted))
        return {p: float(found[p]) for p in wanted}

    def percentiles_us(self) -> dict[str, float]:
        """Return the percentiles of reports, in microseconds: keys p50, p90, p99, p99.9, p99.99 and max."""
        return {percentile_name(p): ns / 1_000 for p, ns in self.percentiles().items()}

    def buckets(self) -> Buckets:
        """Return the buckets that hold something; from_samples(low_ns, counts=counts) is equal to this."""
        counts = _counts(self._hdr)
        index = np.flatnonzero(counts)
        low, width = _bucket_low(self._hdr, index)
        return Buckets(low, low + width - 1, counts[index])

    def counts_between(self, edges_ns: npt.ArrayLike) -> Int64Array:
        """Return how many records lie between one edge and the next, one fewer than edges; rising, in ns.

        Values outside count in the first and the last. A record counts at the middle of its bucket.
        """
        edges = np.asarray(edges_ns, dtype=np.float64)
        low_ns, high_ns, records = self.buckets()
        at = np.searchsorted(edges, (low_ns + high_ns) / 2, side="right") - 1
        at = np.clip(at, 0, len(edges) - 2)
        return np.bincount(at, weights=records, minlength=len(edges) - 1).astype(np.int64)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each bucket that holds something, in rising order.

        `low_us` and `high_us` are its edges, inclusive, in microseconds; `records` are in it; `share` of all records,
        0 to 1, took at most `high_us`.
        """
        import pandas as pd

        low_ns, high_ns, records = self.buckets()
        share = np.cumsum(records) / max(self.count, 1)
        return pd.DataFrame(
            {"low_us": low_ns / 1_000, "high_us": high_ns / 1_000, "records": records, "share": share}
        )

    def encode(self) -> str:
        """Return the V2 payload of HdrHistogram in base64, which its tools in other languages read."""
        payload: bytes = self._hdr.encode()
        return payload.decode("ascii")

    @classmethod
    def decode(cls, payload: str | bytes) -> LatencyHistogram:
        """Return a histogram that `encode` wrote; ValueError for anything else, or another range or precision."""
        histogram = cls()
        mine = histogram._hdr
        try:
            hdr = type(mine).decode(payload)
        except Exception as error:  # zlib's, struct's, ctypes': whatever the bytes bring about
            raise ValueError(f"not a V2 histogram payload: {error}") from error
        theirs = (hdr.lowest_trackable_value, hdr.highest_trackable_value, hdr.significant_figures)
        if theirs != (mine.lowest_trackable_value, mine.highest_trackable_value, mine.significant_figures):
            raise ValueError(f"a histogram of another range or precision: {theirs}")
        histogram._hdr = hdr
        return histogram

    def __eq__(self, other: object) -> bool:
        """Compare bucket by bucket."""
        if not isinstance(other, LatencyHistogram):
            return NotImplemented
        return bool(np.array_equal(_counts(self._hdr), _counts(other._hdr)))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the encoded payload."""
        return LatencyHistogram.decode, (self.encode(),)

    def __repr__(self) -> str:
        """Name the count and the percentiles that matter most."""
        shown = ", ".join(f"{name}={value:,.1f}us" for name, value in self.percentiles_us().items())
        return f"LatencyHistogram(count={self.count:,}, {shown})"

    def _repr_html_(self) -> str:
        """Render one row of percentiles for a notebook."""
        shown = self.percentiles_us()
        cells = (f"{self.count:,}", *(f"{value:,.1f}" for value in shown.values()))
        head = ("records", *(f"{name} µs" for name in shown))
        return table([cells], head, right=range(len(cells)))


def percentile_name(p: float) -> str:
    """Return the name of a percentile in tables: p50, p99.9, and max for 100."""
    return "max" if p == 100 else f"p{p:g}"


def _new_hdr() -> Any:
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError as error:
        raise MissingExtraError(extra="measure", package="hdrhistogram") from error
    return HdrHistogram(1, HIGHEST_NS, SIGNIFICANT_DIGITS)


def _counts(hdr: Any) -> Int64Array:
    """Return the package's counters as a writable view."""
    return np.frombuffer(hdr.counts, dtype=np.int64)


def _bucket_index(hdr: Any, values_ns: Int64Array) -> Int64Array:
    """Return the counter of each value: the package's `_counts_index_for`, for whole arrays."""
    # frexp gives the bit length, exactly: HIGHEST_NS is far below 2**53.
    _, bit_length = np.frexp((values_ns | hdr.sub_bucket_mask).astype(np.float64))
    bucket = bit_length.astype(np.int64) - (hdr.sub_bucket_half_count_magnitude + 1)
    sub_bucket = values_ns >> bucket
    index: Int64Array = ((bucket + 1) << hdr.sub_bucket_half_count_magnitude) + (
        sub_bucket - hdr.sub_bucket_half_count
    )
    return index


def _bucket_low(hdr: Any, index: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the lowest value and the width of each counter: the inverse of `_bucket_index`."""
    raw_bucket = (index >> hdr.sub_bucket_half_count_magnitude) - 1
    half = np.where(raw_bucket < 0, 0, hdr.sub_bucket_half_count)
    bucket = np.maximum(raw_bucket, 0)
    low: Int64Array = ((index & (hdr.sub_bucket_half_count - 1)) + half) << bucket
    return low, np.int64(1) << bucket
