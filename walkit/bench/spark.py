"""`walkit bench spark`: a log read by Spark, beside Parquet of the same rows and one process, in the same rounds.

All queries run one after the other, several rounds; a first round warms the JVM and the page cache and does not count.
A time is from `load()` to the answer. Compared queries must give the same answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import pyspark

from walkit._internal.arguments import check_progress, refuse
from walkit.bench.runner import Case, check_counts, in_turns, work_folder
from walkit.bench.spark_load import KEY_BYTES, WRITTEN_WITH, BenchLogs
from walkit.bench.spark_queries import GROUPS, READ, REPLAY, Answer, Plan, Timed, plan_queries
from walkit.bench.spark_report import SparkBenchReport, SparkBenchRow
from walkit.errors import WalkitError
from walkit.log.validate import require_fits
from walkit.spark.session import session

__all__ = ["GROUPS", "SparkBenchReport", "SparkBenchRow", "bench_spark"]

BenchProgress = Callable[[int, int], None]
"""Called after each query with (queries done, queries to do)."""

GROWTH_BAR = 1.2
"""The highest ratio of a record's cost in a larger log to that in the smallest."""


def bench_spark(
    *,
    records: int | Sequence[int] = 1_000_000,
    record_bytes: int = 64,
    queries: Sequence[str] = GROUPS,
    runs: int = 3,
    master: str = "local[2]",
    path: str | None = None,
    progress: BenchProgress | None = None,
) -> SparkBenchReport:
    """Measure Spark's work on a log, and the same on Parquet of the same rows and in one process.

    `records` is the size of a log, or several sizes: then the cost per record is compared, too. `queries` are some of
    `GROUPS`. `master` is Spark's, for a session that is started here; an active one is used as it is, and one that is
    started stays. `path` is a folder to work in (default: the folder for temporary files); nothing is left in it.
    Raises OptionsError, and the errors of starting Spark; WalkitError if the compared ways give different answers.
    """
    sizes = (records,) if isinstance(records, int) else tuple(sorted(set(records)))
    check_counts(records=sizes, record_bytes=[record_bytes], runs=[runs])
    if not sizes:
        refuse("records", records, "at least one size")
    groups = _groups(queries)
    require_fits("record_bytes", record_bytes, WRITTEN_WITH, KEY_BYTES)
    check_progress(progress, "(queries done, queries to do)")
    with work_folder(path) as folder:
        spark = session(master=master)
        plans = []
        for size in sizes:
            logs = BenchLogs(folder=os.path.join(folder, str(size)), records=size, record_bytes=record_bytes)
            logs.write(copy=bool({"diff", "verify"} & set(groups)), skewed="skew" in groups)
            plans.append(plan_queries(spark, logs, groups))
        rows = _measure(plans, runs, folder, progress)
        return SparkBenchReport(
            records=sizes,
            record_bytes=record_bytes,
            log_bytes=tuple(plan.logs.log_bytes for plan in plans),
            parquet_bytes=tuple(plan.logs.parquet_bytes for plan in plans),
            runs=runs,
            master=spark.conf.get("spark.master") or "",
            spark=pyspark.__version__,
            location=os.path.dirname(folder),
            rows=tuple(rows),
        )


def _groups(queries: Sequence[str]) -> tuple[str, ...]:
    named = (queries,) if isinstance(queries, str) else tuple(queries)
    unknown = [name for name in named if name not in GROUPS]
    if unknown or not named:
        refuse("queries", queries, f"some of {', '.join(GROUPS)}")
    return named


def _measure(
    plans: Sequence[Plan], runs: int, folder: str, progress: BenchProgress | None
) -> list[SparkBenchRow]:
    def asked(timed: Timed) -> Callable[[str], tuple[float, Answer]]:
        return lambda _: timed()

    cases = [Case(name, asked(timed)) for plan in plans for name, timed in plan.timed.items()]
    done = count(1)

    def step(name: str) -> None:
        if progress is not None:
            progress(next(done), (runs + 1) * len(cases))

    found = iter(in_turns(cases, runs + 1, folder, step))
    times: list[dict[str, list[float]]] = []
    answers: list[dict[str, Answer]] = []
    for plan in plans:
        results = {name: next(found) for name in plan.timed}
        for name, each in results.items():
            differing = [answer for _, answer in each if answer != each[0][1]]
            if differing:
                raise WalkitError(f"{name}: two rounds differ: {each[0][1]} and {differing[0]}")
        # The first round warms the JVM and the page cache.
        times.append({name: [seconds for seconds, _ in each[1:]] for name, each in results.items()})
        answers.append({name: each[0][1] for name, each in results.items()})
        _require_equal(plan, answers[-1])
    rows = [
        row
        for plan, taken, given in zip(plans, times, answers, strict=True)
        for row in _rows(plan, taken, given)
    ]
    return rows + _growth(plans, times, answers)


def _require_equal(plan: Plan, answers: dict[str, Answer]) -> None:
    for pair in plan.compared:
        if pair.against is not None and pair.equal and answers[pair.query] != answers[pair.against]:
            raise WalkitError(
                f"{pair.query}: the log and {pair.against} differ: {answers[pair.query]} and {answers[pair.against]}"
            )


def _rows(plan: Plan, times: dict[str, list[float]], answers: dict[str, Answer]) -> Iterator[SparkBenchRow]:
    for pair in plan.compared:
        yield SparkBenchRow(
            group=pair.group,
            query=pair.query,
            against=pair.against,
            records=plan.logs.records,
            answer_rows=answers[pair.query][0],
            times_s=tuple(times[pair.query]),
            against_s=() if pair.against is None else tuple(times[pair.against]),
            bar=pair.bar,
        )


def _growth(
    plans: Sequence[Plan], times: Sequence[dict[str, list[float]]], answers: Sequence[dict[str, Answer]]
) -> list[SparkBenchRow]:
    """Return the cost of a million records in each larger log, beside those of the smallest."""
    rows, least = [], plans[0].logs.records
    for group, name in (("read", READ), ("replay", REPLAY)):
        if name not in plans[0].timed:
            continue
        per_million = [
            tuple(seconds / plan.logs.records * 1e6 for seconds in taken[name])
            for plan, taken in zip(plans, times, strict=True)
        ]
        for number in range(1, len(plans)):
            rows.append(
                SparkBenchRow(
                    group=group,
                    query=f"{name}, each million records",
                    against=f"of {least:,} records",
                    records=plans[number].logs.records,
                    answer_rows=answers[number][name][0],
                    times_s=per_million[number],
                    against_s=per_million[0],
                    bar=GROWTH_BAR,
                )
            )
    return rows
