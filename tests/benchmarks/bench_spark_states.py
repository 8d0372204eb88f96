"""Replay, skew, changes and a diff of one log in Spark, each as a ratio to its neighbour in time.

`python tests/benchmarks/bench_spark_states.py [--records N] [--rounds N]`: medians of rounds, on local[2]. The aims
are in `walkit bench spark`; here what is shuffled is compared with what is broadcast.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import walkit
import walkit.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VALUE_BYTES = 64
REPLAY = sys.modules["walkit.spark.replay"]
WORDS = REPLAY.BROADCAST_WORDS


def fill(path: Path, records: int, hot_share: float, keys: int) -> None:
    """Write a log whose records are of random keys, a share of them of one key."""
    rng = np.random.default_rng(7)
    with walkit.open(path, options=walkit.LogOptions(durability="none")) as log:
        for start in range(0, records, 100_000):
            count = min(100_000, records - start)
            numbers = np.where(rng.random(count) < hot_share, 0, rng.integers(0, keys, count))
            values = [b"%0*d" % (VALUE_BYTES, start + n) for n in range(count)]
            log.append_many(pa.array(values, pa.binary()), [b"%016d" % n for n in numbers])


def shuffled(df: DataFrame) -> DataFrame:
    """Return a replay that shuffles values, as that of a log with more LSNs than are broadcast."""
    REPLAY.BROADCAST_WORDS = 0  # type: ignore[attr-defined]
    try:
        return walkit.spark.replay(df)
    finally:
        REPLAY.BROADCAST_WORDS = WORDS  # type: ignore[attr-defined]


def seconds(df: DataFrame) -> float:
    """Return how long Spark takes to make all rows."""
    started = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def main() -> None:
    """Print medians, and the ratios within the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    spark = walkit.spark.session(master="local[2]", config={"spark.sql.shuffle.partitions": "4"})
    n = args.records
    with tempfile.TemporaryDirectory(prefix="walkit-states-") as folder:
        for name, share, keys in (("uniform", 0.0, n // 3), ("unique", 0.0, 10 * n), ("skewed", 0.9, n // 3)):
            fill(Path(folder) / name, n, share, keys)
        load = {
            name: spark.read.format("walkit").load(f"{folder}/{name}")
            for name in ("uniform", "unique", "skewed")
        }
        uniform, unique, skewed = load["uniform"], load["unique"], load["skewed"]
        other = spark.read.format("walkit").load(f"{folder}/uniform")
        pairs: dict[str, tuple[Callable[[], DataFrame], Callable[[], DataFrame]]] = {
            "broadcast / shuffle, n/3 keys": (
                lambda: walkit.spark.replay(uniform),
                lambda: shuffled(uniform),
            ),
            "broadcast / shuffle, about n keys": (
                lambda: walkit.spark.replay(unique),
                lambda: shuffled(unique),
            ),
            "replay, 90 % on one key / uniform": (
                lambda: walkit.spark.replay(skewed),
                lambda: walkit.spark.replay(uniform),
            ),
            "skew, shuffled": (
                lambda: shuffled(skewed),
                lambda: shuffled(uniform),
            ),
            "changes of the last 1 % / read": (
                lambda: walkit.spark.changes(uniform, n - n // 100),
                lambda: uniform,
            ),
            "diff at two LSNs, one scan / two": (
                lambda: walkit.spark.diff((uniform, n // 2), uniform),
                lambda: walkit.spark.diff((other, n // 2), uniform.hint("rebalance")),
            ),
        }
        for name, (one, two) in pairs.items():
            seconds(one())
            rounds = [(seconds(one()), seconds(two())) for _ in range(args.rounds)]
            ratios = [a / b for a, b in rounds]
            first, second = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(
                f"{name}: {first:.2f} s, {second:.2f} s, ratio {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
