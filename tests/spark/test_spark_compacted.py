"""Spark on a log that was compacted: it reads what the process reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from walkit.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_reads_a_compacted_log_as_the_process_does(spark: SparkSession, tmp_path: Path) -> None:
    """Deletes, events, transactions, two epochs, compacted: the same records, and the replay is the store's state."""
    import walkit.spark

    path = tmp_path / "store"
    options = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, durability="none")
    for epoch in range(2):
        with Store.open(path, options=options) as store:
            for i in range(400):
                store.put(b"%02d" % (i % 30), b"%d-%d" % (epoch, i) * 100)
                if i % 13 == 5:
                    store.delete(b"%02d" % (i * 3 % 30))
                if i % 50 == 7:
                    store.log.append(b"event")
                    with store.transaction() as tx:
                        tx.put(b"left", b"%d" % i)
                        tx.put(b"right", b"%d" % i)
    with Store.open(path, options=options) as store:
        report = store.compact()
        state = dict(store.items())
    assert report.records_after < report.records_before / 2
    with walkit.open(path, mode="r") as log:
        expected = [(r.lsn, int(r.kind), r.key, r.value) for r in log.read()]
    df = spark.read.format("walkit").load(str(path))
    found = [tuple(row.values())[:4] for row in df.toArrow().sort_by("lsn").to_pylist()]
    assert found == expected and len(found) == report.records_after
    replayed = walkit.spark.replay(df).toArrow().to_pylist()
    assert {row["key"]: row["value"] for row in replayed} == state
