"""Verification in Spark: many logs at once, and whether two logs hold the same records."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, StructField, StructType

from walkit._internal.arguments import refuse
from walkit._internal.report import Cells, TableReport
from walkit.errors import GapError, WalkitError
from walkit.objects.verify import verify as verify_log
from walkit.spark.errors import errors
from walkit.spark.facts import SOURCE_NAME
from walkit.spark.object_log import seen_at
from walkit.spark.options import read_options
from walkit.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERIFY_STRUCT = StructType(
    [
        StructField("log", StringType(), nullable=False),
        StructField("log_id", StringType()),
        StructField("ok", BooleanType(), nullable=False),
        StructField("state", StringType()),
        StructField("first_lsn", LongType()),
        StructField("last_lsn", LongType()),
        StructField("frames", LongType()),
        StructField("records", LongType()),
        StructField("bytes", LongType()),
        StructField("problems", LongType(), nullable=False),
        StructField("problem", StringType()),
        StructField("seconds", DoubleType()),
    ]
)
"""A log that was verified, as `walkit.verify` judges it; `problem` is the first. Null is what could not be known."""


def verify(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> DataFrame:
    """Return a row for each log, with whether everything in it is as it was written (`VERIFY_STRUCT`).

    `paths` is what `load()` takes: a path, a list, a pattern. Each log is one task: `walkit.verify`, which reads and
    decodes every frame. A log that cannot be verified at all (none there, a manifest of a newer format) is a row too,
    with the error as its problem. Lazy, as any DataFrame: each action verifies again. LogNotFoundError for a pattern
    that no path matches.
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    option = {"paths": json.dumps([os.fspath(path) for path in named])}
    logs = read_options(option).paths
    spark = session()
    table = spark.createDataFrame([(path,) for path in logs], "log string")
    found: DataFrame = table.repartition(len(logs), "log").mapInArrow(_verified, VERIFY_STRUCT)
    return found


def _verified(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(VERIFY_STRUCT, timezone="UTC")
    for batch in batches:
        for path in batch.column("log").to_pylist():
            yield pa.RecordBatch.from_pylist([_verify_one(path)], schema=schema)


def _verify_one(path: str) -> dict[str, Any]:
    try:
        report = verify_log(path)
    except WalkitError as error:
        return {"log": path, "ok": False, "problems": 1, "problem": f"{type(error).__name__}: {error}"}
    return {
        "log": path,
        "log_id": f"{report.log_id:016x}",
        "ok": not report.problems,
        "state": report.state,
        "first_lsn": report.first_lsn,
        "last_lsn": report.last_lsn,
        "frames": report.frames_checked,
        "records": report.records_checked,
        "bytes": report.bytes_checked,
        "problems": len(report.problems),
        "problem": str(report.problems[0]) if report.problems else None,
        "seconds": report.duration_s,
    }


@dataclass(frozen=True, kw_only=True)
class PairReport(TableReport):
    """What `verify_pair` found. Picklable; a table in a notebook, `text()` and `to_dict()` elsewhere."""

    title = "Two logs"
    left_columns = 2

    left: str
    right: str
    first_lsn: int
    last_lsn: int
    """The LSNs that were compared: those that both logs have. Inclusive; `last_lsn` is `first_lsn - 1` for none."""
    left_last_lsn: int
    right_last_lsn: int
    frames: int
    """How many frames of the left log hold those LSNs."""
    equal_frames: int
    """How many of them the right log has at the same position with the same checksum."""
    differing_lsns: int
    """How many LSNs have a record on one side only, or another one on each."""
    first_difference: int | None
    """The first of them."""

    @property
    def equal(self) -> bool:
        """Whether both logs have the same records at every LSN that was compared."""
        return self.differing_lsns == 0

    def __str__(self) -> str:
        """Return the result in one line."""
        ends = f"{self.left} ends at {self.left_last_lsn:,}, {self.right} at {self.right_last_lsn:,}"
        return f"{self._verdict()}; {ends}"

    def _verdict(self) -> str:
        span = f"LSN {self.first_lsn:,} to {self.last_lsn:,}"
        if self.equal:
            return f"equal at {span} ({self.equal_frames:,} of {self.frames:,} frames byte for byte)"
        return f"{self.differing_lsns:,} of {span} differ, first {self.first_difference:,}"

    @property
    def notes(self) -> list[str]:
        """Whether the logs are equal at the LSNs that both have; red if they differ."""
        return [self._verdict()]

    def _plain_notes(self) -> int:
        return int(self.equal)

    def _head(self) -> Cells:
        return ("", "log", "ends at LSN")

    def _cells(self) -> list[Cells]:
        return [
            ("left", self.left, f"{self.left_last_lsn:,}"),
            ("right", self.right, f"{self.right_last_lsn:,}"),
        ]

    def _facts(self) -> dict[str, Any]:
        return {"equal": self.equal, **asdict(self)}


FRAME_KEY = ("position", "first_lsn", "last_lsn", "records", "codec", "raw_bytes", "checksum")


@errors()
def verify_pair(left: str | os.PathLike[str], right: str | os.PathLike[str]) -> PairReport:
    """Return whether two logs, such as a primary and its replica, hold the same records where both have them.

    Every frame's body is read and verified by its checksum, on both sides, and compared by it. Records are decoded
    only between the first and the last LSN of the frames that do not agree, as where one side was compacted: there they
    are compared one by one. Raises CorruptionError for a damaged frame; LogNotFoundError, NotALogError at once.
    """
    spark = session()
    paths = [_one_log(path) for path in (left, right)]
    views = [(seen.view, seen.last_lsn) for seen in map(seen_at, paths)]
    first = max(view.first_lsn for view, _ in views)
    last = min(newest for _, newest in views)
    facts: dict[str, Any] = {
        "left": paths[0],
        "right": paths[1],
        "first_lsn": first,
        "left_last_lsn": views[0][1],
        "right_last_lsn": views[1][1],
    }
    if last < first:
        return _nothing_compared(facts, first)
    within = {"firstLsn": first, "lastLsn": last}

    def load(path: str, **options: str | int) -> DataFrame:
        return spark.read.format(SOURCE_NAME).options(**options).load(path)

    sides = [load(path, view="frames", bodies="true", **within) for path in paths]
    lefts, rights = (
        side.select(*FRAME_KEY).withColumn(name, F.lit(1)) for side, name in zip(sides, "lr", strict=True)
    )
    keys = [lefts[name].eqNullSafe(rights[name]) for name in FRAME_KEY]
    both = lefts.join(rights, keys, "full_outer")
    apart = F.col("l").isNull() | F.col("r").isNull()
    lowest, highest = (
        F.coalesce(lefts.first_lsn, rights.first_lsn),
        F.coalesce(lefts.last_lsn, rights.last_lsn),
    )
    frames, equal, low, high = both.agg(
        F.count("l"), F.count(F.when(~apart, 1)), F.min(F.when(apart, lowest)), F.max(F.when(apart, highest))
    ).collect()[0]
    counts: dict[str, Any] = {"frames": frames, "equal_frames": equal, "last_lsn": last}
    if low is None:
        return PairReport(**facts, **counts, differing_lsns=0, first_difference=None)
    bounds = {"firstLsn": max(low, first), "lastLsn": min(high, last)}
    columns = ("lsn", "kind", "key", "value", "timestamp")
    ours, theirs = (load(path, **bounds).withMetadata("lsn", {}).select(*columns) for path in paths)
    rows = ours.withColumn("l", F.lit(1)).join(
        theirs.withColumn("r", F.lit(1)), [ours[c].eqNullSafe(theirs[c]) for c in columns], "full_outer"
    )
    lsn = F.coalesce(ours.lsn, theirs.lsn)
    unequal, at = rows.where(apart).agg(F.count_distinct(lsn), F.min(lsn)).collect()[0]
    return PairReport(**facts, **counts, differing_lsns=unequal, first_difference=at)


def _one_log(path: str | os.PathLike[str]) -> str:
    """Return the path of the one log that is named; OptionsError for a pattern."""
    found = read_options({"path": os.fspath(path)})
    if found.many:
        refuse("path", os.fspath(path), "it is a pattern; name one log")
    return found.paths[0]


def _nothing_compared(facts: dict[str, Any], first: int) -> PairReport:
    """Return the report of two logs without a common LSN; GapError if a trim has parted them.

    Two that end at the same LSN, all of it trimmed, are not parted.
    """
    if (
        facts["left_last_lsn"] != facts["right_last_lsn"]
        and facts["left_last_lsn"]
        and facts["right_last_lsn"]
    ):
        raise GapError(min(facts["left_last_lsn"], facts["right_last_lsn"]), first)
    return PairReport(
        **facts, last_lsn=first - 1, frames=0, equal_frames=0, differing_lsns=0, first_difference=None
    )
