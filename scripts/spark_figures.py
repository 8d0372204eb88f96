"""Measure the figures that a release of walkit's Spark has to reach, in one run, each beside its rival in turns.

    python scripts/spark_figures.py [--records 5000000] [--runs 5] [--segments 100 1000 100000] [--dir DIR] [--json]

Reading, replay and the history of one key are asked of a log and of Parquet of the same rows, round after round, and
with `--objects` the reading of a log in a folder of objects, alone. A
first round warms session and page cache, and does not count. A cold replay has a session of its own, from whose
start to the load nothing is read, and files that the page cache does not hold. Planning, tasks and reading of many
segments are those of tests/benchmarks/bench_tasks.py. A row has medians with the least and the most, and processor
seconds of the driver, the JVM and the Python workers.

Exit 1 if a figure is not reached, 2 if log and Parquet give different answers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import walkit
import walkit.spark
from tests.benchmarks.bench_tasks import MIB, begin_tasks, cpu, made_up, planned, read_rows, real_log
from walkit.bench.spark_load import BenchLogs
from walkit.spark.replay import with_next

SEGMENT_MIB = 64
DELETE = 2


@dataclass(frozen=True)
class Cost:
    """The cost of one round: seconds, and processor seconds of the driver, the JVM and the workers."""

    seconds: float
    driver: float = 0.0
    jvm: float = 0.0
    workers: float = 0.0

    @property
    def cpu(self) -> float:
        """Processor seconds in all."""
        return self.driver + self.jvm + self.workers


@dataclass
class Figure:
    """One row: the costs of walkit and of its rival, round by round."""

    name: str
    rival: str
    wanted: str
    bar: float
    ratio_of: Callable[[Cost, Cost], float]
    at_least: bool
    ours: list[Cost] = field(default_factory=list)
    theirs: list[Cost] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """The ratio of each round."""
        return [self.ratio_of(*pair) for pair in zip(self.ours, self.theirs, strict=True)]

    @property
    def reached(self) -> bool:
        """Whether the median of the ratios reaches the bar."""
        found = median(self.ratios)
        return found >= self.bar if self.at_least else found <= self.bar

    def cells(self) -> list[str]:
        """Return the row of the table."""
        sides = [
            f"{_spread([cost.seconds for cost in costs])}, CPU {_spread([cost.cpu for cost in costs])}: "
            + " + ".join(
                f"{median(getattr(cost, part) for cost in costs):,.2f}"
                for part in ("driver", "jvm", "workers")
            )
            for costs in (self.ours, self.theirs)
        ]
        reached = "yes" if self.reached else "no"
        return [self.name, str(len(self.ours)), *sides, _spread(self.ratios), self.wanted, reached]

    def facts(self) -> dict[str, Any]:
        """Return the row as plain values."""
        costs = {"ours": list(map(asdict, self.ours)), "theirs": list(map(asdict, self.theirs))}
        ratio = {"median": median(self.ratios), "least": min(self.ratios), "most": max(self.ratios)}
        own = {"name": self.name, "rival": self.rival, "n": len(self.ours), "wanted": self.wanted}
        return {**own, **costs, "ratio": ratio, "reached": self.reached}


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):,.3g} ({min(values):,.3g} to {max(values):,.3g})"


def spent() -> tuple[float, float, float]:
    """Return the processor seconds so far of this process, of its JVM, and of the workers below that."""
    parents, times, names = dict[int, int](), dict[int, float](), dict[int, str]()
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = file.read_text().rpartition(")")
        except OSError:  # it has ended
            continue
        pid, fields = int(file.parent.name), rest.split()
        parents[pid], names[pid] = int(fields[1]), head.partition("(")[2]
        # Its own and its reaped children's, user and system.
        times[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    found = [pid for pid in parents if is_ours(pid) and pid != os.getpid()]
    jvm = sum(times[pid] for pid in found if names[pid] == "java")
    return times[os.getpid()], jvm, sum(times[pid] for pid in found if names[pid] != "java")


def timed(ask: Callable[[], DataFrame]) -> tuple[Cost, Any]:
    """Return the cost of one query, and its answer."""
    before, began = spent(), time.perf_counter()
    answer = tuple(ask().collect()[0])
    seconds = time.perf_counter() - began
    return Cost(seconds, *(after - first for after, first in zip(spent(), before, strict=True))), answer


def in_turns(
    figure: Figure, ours: Callable[[], DataFrame], theirs: Callable[[], DataFrame], runs: int
) -> None:
    """Ask both sides in turns; the first round does not count."""
    for run in range(runs + 1):
        (our_cost, our_answer), (their_cost, their_answer) = timed(ours), timed(theirs)
        require_equal(figure, our_answer, their_answer)
        if run:
            figure.ours.append(our_cost)
            figure.theirs.append(their_cost)


def require_equal(figure: Figure, ours: object, theirs: object) -> None:
    """End with 2 if the answers differ."""
    if ours != theirs:
        print(f"{figure.name}: the log gives {ours}, {figure.rival} {theirs}", file=sys.stderr)
        raise SystemExit(2)


def summed(df: DataFrame) -> DataFrame:
    """Return one row that every column of records or of a state is needed for."""
    lengths = [F.sum(F.length(name)) for name in ("key", "value")]
    more = [F.sum("kind"), F.max("timestamp")] if "kind" in df.columns else []
    return df.agg(F.count("*"), F.sum("lsn"), *lengths, *more)


def aggregated(rows: DataFrame) -> DataFrame:
    """Return the live keys as a user of Spark writes it: the record with the highest LSN of each key."""
    newest = F.max_by(F.struct("kind", "value", "lsn"), "lsn").alias("last")
    found = rows.where(F.col("key").isNotNull()).groupBy("key").agg(newest).select("key", "last.*")
    return found.where(F.col("kind") != DELETE).select("key", "value", "lsn")


def history_of(rows: DataFrame, key: bytes) -> DataFrame:
    """Return the plan of `walkit.spark.history` over other rows."""
    found, ended = with_next(rows.where(F.col("key") == F.lit(key))), F.col("next") - 1
    live = found.where(F.col("kind") != DELETE)
    return live.select("key", "value", F.col("lsn").alias("valid_from_lsn"), ended.alias("valid_to_lsn"))


def held(df: DataFrame) -> DataFrame:
    """Return one row for a history."""
    return df.agg(F.count("*"), F.sum("valid_from_lsn"), F.sum("valid_to_lsn"), F.sum(F.length("value")))


def forgotten(path: str) -> None:
    """Let the page cache drop the files of a log, or one file."""
    os.sync()
    for file in [path] if os.path.isfile(path) else [entry.path for entry in os.scandir(path)]:
        number = os.open(file, os.O_RDONLY)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(number)


def begun() -> SparkSession:
    """Begin a session whose JVM has run a job."""
    spark = walkit.spark.session(master="local[2]")
    spark.range(1).count()
    return spark


def cold(side: str, path: str) -> int:
    """Replay once in this process's own session, and print cost and answer."""
    spark = begun()
    forgotten(path)
    asked = {
        "ours": lambda: summed(walkit.spark.replay(spark.read.format("walkit").load(path))),
        "theirs": lambda: summed(aggregated(spark.read.parquet(path))),
    }
    cost, answer = timed(asked[side])
    spark.stop()
    print(json.dumps([asdict(cost), answer]))
    return 0


def of_a_cold_replay(figure: Figure, logs: BenchLogs, runs: int) -> None:
    """Replay in turns, each time in a process of its own."""
    for _ in range(runs):
        answers = []
        for costs, side, path in ((figure.ours, "ours", logs.log), (figure.theirs, "theirs", logs.parquet)):
            command = [sys.executable, __file__, "--cold", side, path]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            cost, answer = json.loads(done.stdout.splitlines()[-1])
            costs.append(Cost(**cost))
            answers.append(answer)
        require_equal(figure, *answers)


def of_segments(folder: Path, counts: Sequence[int], runs: int) -> list[Figure]:
    """Return planning and tasks beside the reading for each number of segments, all as processor time of Python."""
    read_bytes = real_log(real := folder / "real")
    reading = [cpu(read_rows, real)[0] for _ in range(runs)]
    found = []
    for count in counts:
        made_up(path := folder / str(count), real, count, SEGMENT_MIB * MIB)
        name = f"planning and tasks at {count:,} segments of {SEGMENT_MIB} MiB"
        figure = Figure(name, "reading them", "<= 0.1 of the CPU", 0.1, lambda a, b: a.cpu / b.cpu, False)
        scale = count * SEGMENT_MIB * MIB / read_bytes
        for read in reading:
            planning, (reader, partitions) = cpu(planned, path)
            tasks = cpu(begin_tasks, path, reader, partitions)[0]
            figure.ours.append(Cost(planning + tasks, driver=planning, workers=tasks))
            figure.theirs.append(Cost(read * scale, workers=read * scale))
        found.append(figure)
    return found


def of_objects(folder: str, records: int, runs: int) -> list[Figure]:
    """Return the figure of a log on object storage, in a folder of objects beside the Parquet of its rows."""
    logs = BenchLogs(folder=folder, records=records, record_bytes=64)
    logs.write(copy=False, skewed=False)
    url = f"objects:{folder}/objects"
    with walkit.open(logs.log, mode="r") as log, walkit.open(url) as copy:
        for batch in log.read_batches():
            copy.append_arrow(batch.select(["kind", "key", "value", "timestamp"]))
    name = f"reading {records:,} records of an object log"
    read = Figure(name, "Parquet", ">= 0.6 of the rate", 0.6, lambda a, b: b.seconds / a.seconds, True)
    spark = begun()
    rows = lambda: summed(spark.read.parquet(logs.parquet))  # noqa: E731
    in_turns(read, lambda: summed(walkit.spark.load(url)), rows, runs)
    spark.stop()
    return [read]


def of_records(folder: str, records: int, runs: int) -> list[Figure]:
    """Return the figures of one log and of Parquet of its rows."""
    logs = BenchLogs(folder=folder, records=records, record_bytes=64)
    logs.write(copy=False, skewed=False)
    by_time: Callable[[Cost, Cost], float] = lambda ours, theirs: theirs.seconds / ours.seconds  # noqa: E731
    by_cpu: Callable[[Cost, Cost], float] = lambda ours, theirs: ours.cpu / theirs.cpu  # noqa: E731
    rate, words = "of the rate", f"of {records:,} records"
    read = Figure(f"reading {words}", "Parquet", f">= 0.6 {rate}", 0.6, by_time, True)
    replay = Figure(f"cold replay {words}", "max_by over Parquet", f">= 1 {rate}", 1.0, by_time, True)
    history = Figure(f"history of one key {words}", "Parquet", "<= 1.2 of the CPU", 1.2, by_cpu, False)
    of_a_cold_replay(replay, logs, runs)
    spark = begun()
    with walkit.open(logs.log, mode="r") as log:
        key = next(record.key for record in log.read() if record.key is not None)

    def rows() -> DataFrame:
        return spark.read.parquet(logs.parquet)

    in_turns(read, lambda: summed(walkit.spark.load(logs.log)), lambda: summed(rows()), runs)
    one = lambda: held(walkit.spark.history(logs.log, key))  # noqa: E731
    in_turns(history, one, lambda: held(history_of(rows(), key)), runs)
    spark.stop()
    return [read, replay, history]


def main() -> int:
    """Make the logs, measure, print the table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--segments", type=int, nargs="+", default=[100, 1_000, 100_000])
    parser.add_argument("--dir", help="where the logs are made")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--objects", action="store_true", help="measure a log on object storage alone")
    parser.add_argument("--cold", nargs=2, metavar=("SIDE", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cold:
        return cold(*arguments.cold)
    with tempfile.TemporaryDirectory(prefix="walkit-figures-", dir=arguments.dir) as folder:
        ask = of_objects if arguments.objects else of_records
        figures = ask(f"{folder}/logs", arguments.records, arguments.runs)
        if not arguments.objects:
            figures += of_segments(Path(folder), arguments.segments, arguments.runs)
    if arguments.json:
        print(json.dumps([figure.facts() for figure in figures], indent=1))
    else:
        head = ["figure", "n", "walkit, s", "beside it, s", "ratio", "wanted", "reached"]
        for cells in (head, ["---"] * len(head), *(figure.cells() for figure in figures)):
            print(f"| {' | '.join(cells)} |")
        print("\nCPU: driver + JVM + workers.")
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
