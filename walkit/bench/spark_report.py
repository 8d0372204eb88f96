"""The report of `walkit bench spark`, as text, HTML and plain values."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from walkit._internal.report import Cells, TableReport
from walkit.bench.runner import plain_row
from walkit.bench.spark_load import RECORDS_PER_KEY


@dataclass(frozen=True, kw_only=True)
class SparkBenchRow:
    """A query and its comparison, timed in the same rounds. Times in seconds, of each round that counts."""

    group: str
    """The name by which `queries` chooses it."""
    query: str
    against: str | None
    """Its comparison; None if the time itself counts."""
    records: int
    """Records of the log."""
    answer_rows: int
    """Rows that the query aggregated: the first of its answers."""
    times_s: tuple[float, ...]
    against_s: tuple[float, ...] = ()
    bar: float | None = None
    """The aim: at most this multiple of `against`, or at most these seconds."""

    @property
    def median_s(self) -> float:
        """Median time of the query."""
        return statistics.median(self.times_s)

    @property
    def against_median_s(self) -> float | None:
        """Median time of its comparison."""
        return statistics.median(self.against_s) if self.against_s else None

    @property
    def ratios(self) -> tuple[float, ...]:
        """How many times as long as `against` it took, round by round."""
        if not self.against_s:
            return ()
        return tuple(a / b for a, b in zip(self.times_s, self.against_s, strict=True))

    @property
    def ratio(self) -> float | None:
        """Median of the rounds' ratios."""
        return statistics.median(self.ratios) if self.against_s else None

    @property
    def reached(self) -> bool | None:
        """Whether the bar is reached by the median; None without a bar."""
        if self.bar is None:
            return None
        ratio = self.ratio
        return (self.median_s if ratio is None else ratio) <= self.bar

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        ratios = self.ratios
        known = plain_row(
            self, {"times_s": 4, "against_s": 4, "median_s": 4, "against_median_s": 4, "ratio": 3}
        )
        return known | {
            "n": len(self.times_s),
            "ratio_least": round(min(ratios), 3) if ratios else None,
            "ratio_most": round(max(ratios), 3) if ratios else None,
            "reached": self.reached,
        }


@dataclass(frozen=True, kw_only=True)
class SparkBenchReport(TableReport):
    """The result of one `walkit bench spark`."""

    bench = "spark"
    left_columns = 2

    records: tuple[int, ...]
    record_bytes: int
    log_bytes: tuple[int, ...]
    """Of the log of each size."""
    parquet_bytes: tuple[int, ...]
    runs: int
    master: str
    spark: str
    location: str
    rows: tuple[SparkBenchRow, ...]

    @property
    def notes(self) -> list[str]:
        """The machine of the numbers."""
        what = f"logs of {_listed(self.records)} records, a tenth deletes, {RECORDS_PER_KEY} to a key"
        where = f"Spark {self.spark}, {self.master}, in {self.location}"
        sizes = (
            f"log {_listed(self.log_bytes)} bytes, not compressed; "
            f"Parquet {_listed(self.parquet_bytes)} bytes, snappy, written by pyarrow"
        )
        how = (
            f"medians of n = {self.runs} warm rounds, from load() to the answer, with the least and the most; "
            "x: within the rounds; every frame of the log that is read is verified"
        )
        return [
            f"{what}, random values of {self.record_bytes:,} bytes; {where}",
            sizes,
            how,
        ]

    def _facts(self) -> dict[str, Any]:
        facts = plain_row(self, {}) | {"rows": [row.to_dict() for row in self.rows]}
        return {name: value for name, value in facts.items() if name != "location"}

    def _head(self) -> Cells:
        return ("query", "against", "records", "rows", "s", "s", "against s", "x", "x", "aim", "reached")

    def _cells(self) -> list[Cells]:
        return [
            (
                row.query,
                row.against or "",
                f"{row.records:,}",
                f"{row.answer_rows:,}",
                f"{row.median_s:,.2f}",
                _spread(row.times_s),
                "" if row.against_median_s is None else f"{row.against_median_s:,.2f}",
                "" if row.ratio is None else f"{row.ratio:,.2f}",
                _spread(row.ratios),
                "" if row.bar is None else f"<= {row.bar:,.2f}{' s' if row.against is None else ''}",
                {None: "", True: "yes", False: "no"}[row.reached],
            )
            for row in self.rows
        ]


def _listed(numbers: Sequence[int]) -> str:
    return " and ".join(f"{number:,}" for number in numbers)


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):,.2f}-{max(values):,.2f}" if values else ""
