"""The queries of `walkit bench spark`: on a log, and on Parquet."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from walkit.bench.spark_floor import ParquetFloor
from walkit.bench.spark_load import BenchLogs
from walkit.errors import WalkitError
from walkit.objects.entrance import open_log
from walkit.read.reader import LogReader
from walkit.spark.changes import changes
from walkit.spark.counting import count
from walkit.spark.diff import diff
from walkit.spark.replay import pick_newest, replay, replay_rows
from walkit.spark.verify import verify_pair
from walkit.state.state_at import exact_state
from walkit.storage.address import storage_at

Answer: TypeAlias = tuple[Any, ...]
Timed: TypeAlias = Callable[[], tuple[float, Answer]]
"""Asks once, and returns how many seconds it took and the answer, the number of rows first."""

GROUPS = ("read", "filter", "replay", "past", "count", "changes", "diff", "verify", "skew", "stream")
"""The names by which a caller chooses queries."""

FILTERED_SHARE = CHANGED_SHARE = 0.01
BATCH_RECORDS, BATCHES = 100_000, 5
TAIL_RECORDS, TAILS = 1_000, 5
POLL_S = 0.005
TAIL_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A row of the report: names of the timed query and of its comparison, and the aim."""

    group: str
    query: str
    against: str | None
    bar: float | None = None
    equal: bool = True
    """Whether both have to give the same answer."""


@dataclass(slots=True)
class Plan:
    """The queries on logs of one size, once per round in this order, and their comparisons."""

    logs: BenchLogs
    timed: dict[str, Timed] = field(default_factory=dict)
    compared: list[Comparison] = field(default_factory=list)


READ, READ_PARQUET = "read all columns", "Parquet, all columns"
REPLAY, REPLAY_PARQUET = "replay", "Parquet, the same joins"
BROADCAST_PARQUET = "Parquet, values not shuffled"
TWO_LOGS = "diff of two logs"


def plan_queries(spark: SparkSession, logs: BenchLogs, groups: tuple[str, ...]) -> Plan:
    """Return the timed calls of the wanted groups on these logs."""
    spark.dataSource.register(ParquetFloor)
    plan, queries = Plan(logs), _Queries(spark, logs)
    for name in GROUPS:
        if name in groups:
            getattr(queries, name)(plan)
    return plan


@dataclass(frozen=True, slots=True)
class _Queries:
    spark: SparkSession
    logs: BenchLogs

    def _log(self, path: str | None = None, **options: object) -> DataFrame:
        reader = self.spark.read.format("walkit")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load(path or self.logs.log)

    def _parquet(self) -> DataFrame:
        return self.spark.read.parquet(self.logs.parquet)

    def _floor(self) -> DataFrame:
        return self.spark.read.format(ParquetFloor.name()).load(self.logs.parquet)

    def read(self, plan: Plan) -> None:
        self._add_read(plan)
        floor, alone = "Parquet by a Python source, all columns", "read by Arrow in one process"
        plan.timed[floor] = _run(lambda: self._floor().agg(*_all_columns()))
        plan.timed[alone] = _timed(lambda: _read_alone(self.logs.log))
        plan.compared += [
            Comparison("read", READ, READ_PARQUET, 1 / 0.6),
            Comparison("read", READ, floor),
            Comparison("read", alone, READ_PARQUET),
        ]

    def _add_read(self, plan: Plan) -> None:
        plan.timed.setdefault(READ, _run(lambda: self._log().agg(*_all_columns())))
        plan.timed.setdefault(READ_PARQUET, _run(lambda: self._parquet().agg(*_all_columns())))

    def filter(self, plan: Plan) -> None:
        first = self.logs.records // 2
        last = first + max(round(self.logs.records * FILTERED_SHARE), 1) - 1
        between = F.col("lsn").between(first, last)
        bounded, parquet = (f"1 % of the LSNs, {how}" for how in ("firstLsn, lastLsn", "Parquet"))
        plan.timed[bounded] = _run(
            lambda: self._log(firstLsn=max(first, 1), lastLsn=last).agg(*_all_columns())
        )
        plan.timed[parquet] = _run(lambda: self._parquet().where(between).agg(*_all_columns()))
        plan.compared.append(Comparison("filter", bounded, parquet))

    def replay(self, plan: Plan) -> None:
        self._add_replay(plan)
        alone = "replay by Arrow in one process"
        plan.timed[REPLAY_PARQUET] = _run(lambda: replay_rows(self._parquet()).agg(*_state_columns()))
        plan.timed[BROADCAST_PARQUET] = _run(lambda: _broadcast(self._parquet()).agg(*_state_columns()))
        plan.timed[alone] = _timed(lambda: _replay_alone(self.logs.log))
        plan.compared += [
            Comparison("replay", REPLAY, REPLAY_PARQUET, 1 / 0.75),
            Comparison("replay", REPLAY, BROADCAST_PARQUET, 1 / 0.75),
            Comparison("replay", alone, REPLAY_PARQUET),
        ]

    def past(self, plan: Plan) -> None:
        half = self.logs.records // 2
        name, parquet = "replay at half of the LSNs", "Parquet, the same joins, half"
        plan.timed[name] = _run(lambda: replay(self._log(), half).agg(*_state_columns()))
        plan.timed[parquet] = _run(lambda: replay_rows(self._parquet(), half).agg(*_state_columns()))
        plan.compared.append(Comparison("past", name, parquet))

    def _add_replay(self, plan: Plan) -> None:
        plan.timed.setdefault(REPLAY, _run(lambda: replay(self._log()).agg(*_state_columns())))

    def count(self, plan: Plan) -> None:
        headers, rows, parquet = "count by headers", "count(*)", "Parquet, count(*)"
        plan.timed[headers] = _timed(lambda: (count(self.logs.log),))
        plan.timed[rows] = _run(lambda: self._log().agg(F.count("*")))
        plan.timed[parquet] = _run(lambda: self._parquet().agg(F.count("*")))
        plan.compared += [
            Comparison("count", headers, parquet, 2.0),
            Comparison("count", rows, parquet),
        ]

    def changes(self, plan: Plan) -> None:
        self._add_read(plan)
        first = self.logs.records - max(round(self.logs.records * CHANGED_SHARE), 1) + 1
        sums = (F.count("*"), F.sum("lsn"), F.sum(F.length("pre_value")), F.sum(F.length("post_value")))
        name = "changes of the last 1 %"
        plan.timed[name] = _run(lambda: changes(self._log(), first).agg(*sums))
        plan.compared.append(Comparison("changes", name, READ, 2.0, equal=False))

    def diff(self, plan: Plan) -> None:
        half = self.logs.records // 2
        one, two = "diff at two LSNs", "diff at two LSNs, of two logs"

        def at_two_lsns() -> DataFrame:
            log = self._log()
            return diff((log, half), log).agg(*_diff_columns())

        plan.timed[one] = _run(at_two_lsns)
        plan.timed[two] = _run(
            lambda: diff((self._log(self.logs.copy), half), self._log()).agg(*_diff_columns())
        )
        plan.compared.append(Comparison("diff", one, two))

    def verify(self, plan: Plan) -> None:
        logs = self.logs
        name = "verify_pair of equal logs"
        plan.timed[name] = _timed(lambda: (verify_pair(logs.log, logs.copy).differing_lsns,))
        plan.timed[TWO_LOGS] = _run(lambda: diff(self._log(), self._log(logs.copy)).agg(F.count("*")))
        plan.compared.append(Comparison("verify", name, TWO_LOGS, 0.5))

    def skew(self, plan: Plan) -> None:
        self._add_replay(plan)
        name = "replay, 90 % on one key"
        plan.timed[name] = _run(lambda: replay(self._log(self.logs.skewed)).agg(*_state_columns()))
        plan.compared.append(Comparison("skew", name, REPLAY, 1.3, equal=False))

    def stream(self, plan: Plan) -> None:
        batch, tail = f"a stream's batch of {BATCH_RECORDS:,}", f"a stream's tail, {TAIL_RECORDS:,} records"
        plan.timed[batch] = lambda: _stream_batch(self.spark, self.logs)
        plan.timed[tail] = lambda: _stream_tail(self.spark, self.logs)
        plan.compared += [
            Comparison("stream", batch, None, 1.6),
            Comparison("stream", tail, None, 1.0),
        ]


def _timed(ask: Callable[[], Answer]) -> Timed:
    def timed() -> tuple[float, Answer]:
        began = time.perf_counter()
        answer = ask()
        return time.perf_counter() - began, answer

    return timed


def _run(query: Callable[[], DataFrame]) -> Timed:
    return _timed(lambda: tuple(query().collect()[0]))


def _all_columns() -> list[Column]:
    lengths = [F.sum(F.length(name)) for name in ("key", "value")]
    return [F.count("*"), F.sum("lsn"), F.sum("kind"), *lengths, F.max("timestamp")]


def _state_columns() -> list[Column]:
    return [F.count("*"), F.sum("lsn"), F.sum(F.length("key")), F.sum(F.length("value"))]


def _diff_columns() -> list[Column]:
    sums = ("left_lsn", "right_lsn", F.length("left_value"), F.length("right_value"))
    return [F.count("*"), *(F.sum(column) for column in sums)]


def _broadcast(df: DataFrame) -> DataFrame:
    """Replay as that of a log, whose LSNs are known to be unique; Spark prunes the columns of Parquet."""
    return pick_newest(df, df)


def _read_alone(log: str) -> Answer:
    rows = lsns = kinds = keys = values = 0
    newest: Any = None
    with open_log(log, mode="r") as reader:
        for batch in reader.read_batches():
            rows += len(batch)
            lsns += pc.sum(batch.column("lsn")).as_py()
            kinds += pc.sum(batch.column("kind")).as_py()
            keys, values = keys + _bytes(batch.column("key")), values + _bytes(batch.column("value"))
            stamp = pc.max(batch.column("timestamp")).as_py()
            newest = stamp if newest is None or (stamp is not None and stamp > newest) else newest
    return rows, lsns, kinds, keys, values, newest


def _replay_alone(log: str) -> Answer:
    with LogReader(storage_at(log)) as reader:
        live = exact_state(reader).records.live()
    return len(live), pc.sum(live["lsn"]).as_py(), _bytes(live["key"]), _bytes(live["value"])


def _bytes(column: pa.Array) -> int:
    return pc.sum(pc.binary_length(column)).as_py() or 0


def _stream_batch(spark: SparkSession, logs: BenchLogs) -> tuple[float, Answer]:
    """Return the median time of a batch, from the trigger to the commit, and how many rows they had."""
    last = min(BATCH_RECORDS * (BATCHES + 1), logs.records)
    stream = spark.readStream.format("walkit").option("maxRecordsPerTrigger", str(BATCH_RECORDS))
    stream = stream.option("claim", "none").option("lastLsn", str(last))
    query = stream.load(logs.log).writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [progress for progress in map(_plain, query.recentProgress) if progress["numInputRows"]]
    times = sorted(progress["durationMs"]["triggerExecution"] for progress in batches[1:] or batches)
    return times[len(times) // 2] / 1000, (sum(progress["numInputRows"] for progress in batches),)


def _stream_tail(spark: SparkSession, logs: BenchLogs) -> tuple[float, Answer]:
    """Return the median time from the acknowledgement of records to the end of the batch that has them."""
    folder = tempfile.mkdtemp(prefix="tail-", dir=logs.folder)
    took: list[float] = []
    try:
        with open_log(folder + "/log", "x") as log:
            log.append_many([bytes(logs.record_bytes)] * TAIL_RECORDS)
            stream = spark.readStream.format("walkit").option("claim", "none").load(folder + "/log")
            query = stream.writeStream.format("noop").trigger(processingTime="0 seconds").start()
            try:
                _wait_for(query, TAIL_RECORDS)
                for number in range(TAILS):
                    log.append_many([bytes(logs.record_bytes)] * TAIL_RECORDS)
                    began = time.perf_counter()
                    _wait_for(query, TAIL_RECORDS * (number + 2))
                    took.append(time.perf_counter() - began)
            finally:
                query.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return sorted(took)[len(took) // 2], (TAIL_RECORDS * (TAILS + 1),)


def _wait_for(query: StreamingQuery, lsn: int) -> None:
    """Wait until the query has committed the batch with this LSN."""
    until = time.perf_counter() + TAIL_WAIT_S
    while time.perf_counter() < until:
        failed = query.exception()
        if failed is not None:
            raise failed
        if any(end >= lsn for end in _ends(query)):
            return
        time.sleep(POLL_S)
    raise WalkitError(f"the stream has not read LSN {lsn:,} within {TAIL_WAIT_S:.0f} s")


def _ends(query: StreamingQuery) -> Iterator[int]:
    progress = query.lastProgress
    for source in _plain(progress)["sources"] if progress else ():
        end = source["endOffset"]
        end = json.loads(end) if isinstance(end, str) else end
        yield end["lsn"] if end else 0


def _plain(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = progress if type(progress) is dict else json.loads(progress.json)
    return found
