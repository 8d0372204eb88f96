"""Measure the figures that a release of walkit's Spark has to reach, in one run, each beside its rival in turns.

    python scripts/spark_figures.py [--records 5000000] [--runs 5] [--segments 100 1000 100000] [--dir DIR]

Reading, replay and the history of one key are asked of a log and of Parquet of the same rows, round after round, and
with `--objects` the reading of a log in a folder of objects, alone. A
first round warms session and page cache, and does not count. A cold replay has a session of its own, from whose
start to the load nothing is read, and files that the page cache does not hold. A row has medians with the least and
the most, and processor seconds of the driver, the JVM and the Python workers.

Planning and tasks are compared with reading by the processor time of this process. Planning is a load and its pickled
partitions. Tasks unpickle the reader and their partitions, and prove each segment by its header. Their segments are
made up: files with a right header and size, and nothing in them. Reading is all rows of the log, scaled to their bytes.

Exit 1 if a figure is not reached, 2 if log and Parquet give different answers.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import walkit
import walkit.spark
from walkit.bench.spark_load import BenchLogs
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd, Manifest
from walkit.format.segment import SegmentHeader
from walkit.read.view import LogView, Span
from walkit.segments.manifest_store import load_manifest, write_manifest
from walkit.spark.columns import RECORD_STRUCT
from walkit.spark.replay import with_next
from walkit.spark.source import plan_load
from walkit.storage.address import storage_at

MIB = 1 << 20
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


def made_up(path: Path, like: Path, segments: int) -> None:
    """Make a log of so many sealed segments, after the first of another: headers, sizes, and no frames."""
    path.mkdir()
    manifest = load_manifest(storage_at(like))
    first = manifest.sealed[0]
    header = SegmentHeader.decode((like / first.name).read_bytes()[:SEGMENT_HEADER_BYTES], first.name)
    assert header is not None
    many = SEGMENT_MIB * MIB // (first.end_position - first.start_position)
    made, end = [], LogEnd(position=first.start_position)
    for number in range(1, segments + 1):
        at, lsn = end.position, end.last_lsn
        own = replace(header, number=number, start_position=at, previous_end=at, first_lsn=lsn + 1)
        end = LogEnd(last_lsn=lsn + many * first.records, position=at + SEGMENT_MIB * MIB)
        made.append(
            first._replace(
                number=number,
                start_position=at,
                end_position=end.position,
                first_lsn=lsn + 1,
                last_lsn=end.last_lsn,
                end_chain=first.start_chain,
                records=many * first.records,
                frames=many * first.frames,
            )
        )
        with (path / own.name).open("wb") as file:
            file.write(own.encode())
            file.truncate(SEGMENT_HEADER_BYTES + SEGMENT_MIB * MIB)
    changes: dict[str, Any] = {"segments": tuple(made), "end": end, "next_segment": segments + 1}
    write_manifest(storage_at(path), manifest.next(**changes))


def planned(path: Path) -> tuple[bytes, list[bytes]]:
    """Return what Spark sends for a load: the reader, and each partition."""
    reader = plan_load({"path": str(path)}).reader(RECORD_STRUCT)
    return pickle.dumps(reader), [pickle.dumps(partition) for partition in reader.partitions()]


def begin_tasks(path: Path, reader: bytes, partitions: list[bytes]) -> None:
    """Do what each task does before its first row, and at each further segment before the segment's first."""
    storage = storage_at(path)
    for partition in partitions:
        pickle.loads(reader)
        manifest: Manifest = pickle.loads(partition).value.planned.manifest
        view = LogView(storage, manifest, ())
        for record in manifest.segments:
            view.opened(Span(record, record.end_position, record.last_lsn))[0].close()


def read_rows(path: Path) -> None:
    """Read all rows, in this process, as tasks do."""
    reader, partitions = planned(path)
    task = pickle.loads(reader)
    for partition in partitions:
        for _ in task.read(pickle.loads(partition)):
            pass


def of_segments(folder: str, log: str, counts: Sequence[int], runs: int) -> list[Figure]:
    """Return planning and tasks beside the reading for each number of segments, all as processor time of Python."""
    end, found = load_manifest(storage_at(log)).end, []
    for segments in counts:
        made_up(path := Path(folder, str(segments)), Path(log), segments)
        name = f"planning and tasks at {segments:,} segments of {SEGMENT_MIB} MiB"
        figure = Figure(name, "reading them", "<= 0.1 of the CPU", 0.1, lambda a, b: a.cpu / b.cpu, False)
        scale = segments * SEGMENT_MIB * MIB / end.position
        for _ in range(runs):
            began = time.process_time()
            reader, partitions = planned(path)
            planning = time.process_time()
            begin_tasks(path, reader, partitions)
            tasks = time.process_time()
            read_rows(Path(log))
            reading = (time.process_time() - tasks) * scale
            figure.ours.append(Cost(tasks - began, driver=planning - began, workers=tasks - planning))
            figure.theirs.append(Cost(reading, workers=reading))
        found.append(figure)
    return found


def of_objects(logs: BenchLogs, runs: int) -> list[Figure]:
    """Return the figure of a log on object storage, in a folder of objects beside the Parquet of its rows."""
    url = f"objects:{logs.folder}/objects"
    with walkit.open(logs.log, mode="r") as log, walkit.open(url) as copy:
        for batch in log.read_batches():
            copy.append_arrow(batch.select(["kind", "key", "value", "timestamp"]))
    name = f"reading {logs.records:,} records of an object log"
    read = Figure(name, "Parquet", ">= 0.6 of the rate", 0.6, lambda a, b: b.seconds / a.seconds, True)
    spark = begun()
    rows = lambda: summed(spark.read.parquet(logs.parquet))  # noqa: E731
    in_turns(read, lambda: summed(walkit.spark.load(url)), rows, runs)
    spark.stop()
    return [read]


def of_records(logs: BenchLogs, runs: int) -> list[Figure]:
    """Return the figures of one log and of Parquet of its rows."""
    by_time: Callable[[Cost, Cost], float] = lambda ours, theirs: theirs.seconds / ours.seconds  # noqa: E731
    by_cpu: Callable[[Cost, Cost], float] = lambda ours, theirs: ours.cpu / theirs.cpu  # noqa: E731
    rate, words = "of the rate", f"of {logs.records:,} records"
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
    parser.add_argument("--records", type=int, default=5_000_000, help="more than one segment has")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--segments", type=int, nargs="+", default=[100, 1_000, 100_000])
    parser.add_argument("--dir", help="where the logs are made")
    parser.add_argument("--objects", action="store_true", help="measure a log on object storage alone")
    parser.add_argument("--cold", nargs=2, metavar=("SIDE", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cold:
        return cold(*arguments.cold)
    with tempfile.TemporaryDirectory(prefix="walkit-figures-", dir=arguments.dir) as folder:
        logs = BenchLogs(folder=f"{folder}/logs", records=arguments.records, record_bytes=64)
        logs.write(copy=False, skewed=False)
        if arguments.objects:
            figures = of_objects(logs, arguments.runs)
        else:
            figures = of_records(logs, arguments.runs)
            figures += of_segments(folder, logs.log, arguments.segments, arguments.runs)
    head = ["figure", "n", "walkit, s", "beside it, s", "ratio", "wanted", "reached"]
    for cells in (head, ["---"] * len(head), *(figure.cells() for figure in figures)):
        print(f"| {' | '.join(cells)} |")
    print("\nCPU: driver + JVM + workers.")
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
