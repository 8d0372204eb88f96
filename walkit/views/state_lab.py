"""Two states of logs compared for the States page, in this process or by Spark: counts, first rows, and the time.

A kept comparison is bounded: so many rows of each change, with the beginnings of their values. No panel in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from walkit._internal.arguments import refuse
from walkit.errors import OptionsError, WalkitError, how_to_install
from walkit.objects.entrance import reader_at
from walkit.state.diff import DiffCounts, diff
from walkit.views.frame_search import find_lsn
from walkit.views.jobs import Job
from walkit.views.log_outline import Outline, outline_of
from walkit.views.workspace import LogPath

Engine = Literal["arrow", "spark"]
ROWS_MAX = 1_000
"""Most rows of each change that are kept."""
VALUE_BYTES_MAX = 4_096
"""Most bytes of a value that are kept."""
ARROW_BYTES_MAX = 256 << 20
"""Most bytes of segments that one comparison reads into this process."""
ARROW_LSNS_MAX = 5_000_000
"""Most records that one comparison reads into this process."""


@dataclass(frozen=True, slots=True)
class StateSide:
    """One side: a log, and the last LSN that counts."""

    path: LogPath
    lsn: int


@dataclass(frozen=True, slots=True)
class DiffRow:
    """A key that differs: its value on either side, and the LSNs of the records that are responsible."""

    key: bytes
    change: str
    left_value: bytes | None
    right_value: bytes | None
    left_lsn: int | None
    right_lsn: int | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The result of a comparison, and its duration."""

    left: StateSide
    right: StateSide
    engine: Engine
    counts: DiffCounts
    rows: tuple[DiffRow, ...]
    """In order of change, then key; only the first ones of each change."""
    seconds: float
    session_s: float | None = None
    """How long Spark's session took to begin; None if it was there, or not needed."""


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where a record stands now."""

    segment: int
    position: int


def spark_missing() -> str | None:
    """Return why Spark cannot be chosen, as a sentence, or None."""
    if find_spec("pyspark") is not None:
        return None
    return f"Spark cannot be chosen: pyspark is not installed ({how_to_install('spark')})."


def compare_sides(left: StateSide, right: StateSide, engine: Engine, job: Job) -> Compared:
    """Compare two states. Raises OptionsError if the logs are too large for this process, and the errors of reading."""
    return (_by_spark if engine == "spark" else _by_arrow)(left, right, job)


def refuse_large(outlines: Iterable[Outline]) -> None:
    """Raise OptionsError if states of these logs are more than this process takes into memory."""
    size = records = 0
    for outline in outlines:
        size += sum(s.end_position - s.start_position for s in outline.segments)
        records += max((outline.last_lsn or 0) - outline.first_lsn + 1, 0)
    if size > ARROW_BYTES_MAX or records > ARROW_LSNS_MAX:
        found = f"the logs hold {size >> 20:,} MiB and {records:,} records"
        most = f"this page takes at most {ARROW_BYTES_MAX >> 20:,} MiB and {ARROW_LSNS_MAX:,} records"
        refuse("engine", "arrow", f"{found}; {most}: choose Spark, or `walkit diff`")


def _by_arrow(left: StateSide, right: StateSide, job: Job) -> Compared:
    refuse_large([outline_of(path) for path in dict.fromkeys((left.path, right.path))])
    started = perf_counter()
    with (
        reader_at(left.path) as left_log,
        reader_at(right.path) as right_log,
    ):
        found = diff(
            (left_log, left.lsn), (right_log, right.lsn), lambda done, of: job.step(done, of, "LSNs")
        )
    job.check()
    return Compared(
        left=left,
        right=right,
        engine="arrow",
        counts=DiffCounts.of(found),
        rows=_first_rows(found),
        seconds=perf_counter() - started,
    )


def _first_rows(found: pa.Table) -> tuple[DiffRow, ...]:
    rows: list[DiffRow] = []
    for letter in "IDC":
        first = found.filter(pc.equal(found["change"], letter)).slice(0, ROWS_MAX)
        for name in ("left_value", "right_value"):
            cut = pc.binary_slice(first[name], 0, VALUE_BYTES_MAX)
            first = first.set_column(first.column_names.index(name), name, cut)
        rows += (_row(each) for each in first.to_pylist())
    return tuple(rows)


def _row(row: Mapping[str, Any]) -> DiffRow:
    return DiffRow(*(row[name] for name in DiffRow.__dataclass_fields__))


def _by_spark(left: StateSide, right: StateSide, job: Job) -> Compared:
    missing = spark_missing()
    if missing is not None:
        refuse("engine", "spark", missing.rstrip("."))
    from pyspark.errors import PySparkException

    from walkit.spark import diff_report, session
    from walkit.spark.session import active_session

    job.step(0, None, "starting Spark's session")
    began, is_new = perf_counter(), active_session() is None
    session()
    session_s = perf_counter() - began if is_new else None
    job.step(0, None, "Spark compares; a cancel waits for the end of its job")
    started = perf_counter()
    try:
        report = diff_report((left.path, left.lsn), (right.path, right.lsn), samples=ROWS_MAX)
    except PySparkException as error:
        raise WalkitError(spark_words(error)) from error
    job.check()
    return Compared(
        left=left,
        right=right,
        engine="spark",
        counts=DiffCounts(inserted=report.inserted, deleted=report.deleted, changed=report.changed),
        rows=tuple(_row(each) for each in report.samples),
        seconds=perf_counter() - started,
        session_s=session_s,
    )


def spark_words(error: Exception) -> str:
    """Return the text of a Spark error in one line: walkit's own if a worker raised it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line.partition(": ")[2] for line in lines if line.startswith("walkit.") and ": " in line]
    return (own or lines or [type(error).__name__])[-1 if own else 0]


def places_of(outlines: Iterable[tuple[Outline, Iterable[int]]], job: Job) -> list[dict[int, RecordPlace]]:
    """Return the places of each log's records by LSN, without those that are no longer in a frame."""
    found = []
    for outline, lsns in outlines:
        places: dict[int, RecordPlace] = {}
        for done, lsn in enumerate(lsns):
            job.step(done, None, "records")
            try:
                position = find_lsn(outline, lsn, job)
            except OptionsError:
                continue  # in a snapshot alone, or trimmed
            line = next(s for s in outline.segments if s.start_position <= position < s.end_position)
            places[lsn] = RecordPlace(line.number, position)
        found.append(places)
    return found
