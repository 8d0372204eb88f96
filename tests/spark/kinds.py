"""Kinds of DataFrames that come from a load: `walkit.spark` gives the right answer of each, or NotALoadError.

A load is known by the root of its plan, so that there is a kind for each root.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import walkit
import walkit.spark

RECORDS, KEYS, EARLY = 60, 6, 30
PUTS = "kind = 1"

Change = Callable[[DataFrame], DataFrame]


def fill(path: Path) -> None:
    """Write a log in which every step below but the harmless ones changes the state: a key is deleted at the end."""
    with walkit.open(path, options=walkit.LogOptions(durability="none")) as log:
        for n in range(RECORDS - 1):
            log.submit(b"value %d" % n, key=b"key %d" % (n % KEYS))
        log.delete(b"key 0")
        log.sync()


def _puts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.equal(batch.column("kind"), 1))


def _anew(df: DataFrame) -> DataFrame:
    return df.sparkSession.createDataFrame([tuple(row) for row in df.where(PUTS).collect()], df.schema)


def _from_parquet(df: DataFrame) -> DataFrame:
    path = tempfile.mkdtemp() + "/rows"  # below pytest's own folder, where that is set
    df.where(PUTS).write.parquet(path)
    return df.sparkSession.read.parquet(path)


def _view(df: DataFrame) -> DataFrame:
    df.where(PUTS).createOrReplaceTempView("kinds_puts")
    return df.sparkSession.table("kinds_puts")


def _query(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("kinds_whole")
    return df.sparkSession.sql("with x as (select * from kinds_whole limit 20) select * from x")


KINDS: dict[str, Change] = {
    "a condition": lambda df: df.where(PUTS),
    "twice": lambda df: df.union(df),
    "a join of many rows": lambda df: df.join(df.sparkSession.range(2)),
    "values computed": lambda df: df.withColumn("value", F.lit(b"x")),
    "aggregated": lambda df: df.groupBy("key").agg(*(F.min(n).alias(n) for n in ("lsn", "kind", "value"))),
    "Python code": lambda df: df.mapInArrow(_puts, df.schema),
    "a checkpoint": lambda df: df.where(PUTS).localCheckpoint(),
    "rows made anew": _anew,
    "a file": _from_parquet,
    "a temporary view": _view,
    "a query": _query,
    "a cached condition": lambda df: df.where(PUTS).cache(),
    "cached": lambda df: df.cache(),
}
TAKEN = ("cached",)
"""Those that are the load still."""


def both_loads(path: str) -> dict[str, DataFrame]:
    """Return the log at a path by both ways to load it."""
    loaded = walkit.spark.load(path)
    return {"load": loaded, "read": loaded.sparkSession.read.format("walkit").load(path)}


def wrong_answers(loads: Mapping[str, DataFrame], kinds: Iterable[str]) -> list[str]:
    """Return each kind that is neither answered rightly nor a NotALoadError."""
    asked: dict[str, Callable[[DataFrame], DataFrame]] = {
        "replay": lambda df: walkit.spark.replay(df).select("key", "value"),
        "replay at": lambda df: walkit.spark.replay(df, EARLY).select("key", "value"),
        "diff": lambda df: walkit.spark.diff((df, EARLY), df).select("key", "change"),
        "changes": lambda df: walkit.spark.changes(df, EARLY + 1, net=True).select("key", "change"),
        "history": lambda df: walkit.spark.history(df, b"key 0").select("value", "valid_to_lsn"),
    }
    wrong = []
    for kind in kinds:
        for way, loaded in loads.items():
            df = KINDS[kind](loaded)
            for name, ask in asked.items():
                try:
                    right = _rows(ask(df)) == _expected(name) and kind in TAKEN
                except walkit.NotALoadError:
                    right = kind not in TAKEN
                if not right:
                    wrong.append(f"{kind}, {way}, {name}")
            df.unpersist()
    return wrong


def _rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in df.collect())


def _expected(name: str) -> list[tuple[Any, ...]]:
    def state(last: int) -> list[tuple[Any, ...]]:
        return [
            (b"key %d" % (n % KEYS), b"value %d" % n)
            for n in sorted(range(last - KEYS, last), key=lambda n: n % KEYS)
        ]

    early, late = state(EARLY), state(RECORDS - 1)
    changed = [(key, "D" if key == b"key 0" else "C") for key, _ in early]
    held = sorted((b"value %d" % n, n + KEYS) for n in range(0, RECORDS - 1, KEYS))
    held = [(value, min(to, RECORDS - 1)) for value, to in held]
    answers = {"replay at": early, "diff": changed, "changes": changed, "history": held}
    return answers.get(name, [row for row in late if row[0] != b"key 0"])
