"""Spark over a log whose large values are in a payload log: tasks fetch them, or fail with walkit's error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import walkit
from tests.spark.loading import load
from tests.spark.test_spark_stream import reader_of
from tests.support.logs import tiny
from walkit.errors import NotALoadError, OptionsError, PayloadUnreachableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


# Where a payload log is matters to tasks as to any reader; that on objects is asked by every release.
@pytest.mark.parametrize("kind", ["", pytest.param("objects:", marks=pytest.mark.slow)])
def test_values_of_links_are_fetched_by_tasks(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Load and replay a log with links in records and in a snapshot; then take its payload log away."""
    path, payloads = tmp_path / "log", tmp_path / "payloads"
    options = tiny(link_over=100, payload_log=f"{kind}{payloads}")
    values = {b"key-%d" % (number % 7): b"%06d" % number * (number % 3 * 40 + 1) for number in range(60)}
    with walkit.Store.open(path, options=options) as store:
        for number in range(60):
            store.put(b"key-%d" % (number % 7), b"%06d" % number * (number % 3 * 40 + 1))
            if number == 30:
                store.checkpoint()
        first = store.log.first_lsn
        wanted = [(record.lsn, bytes(record.value or b"")) for record in store.log.read()]
    assert first > 1 and max(len(value) for _, value in wanted) > 100
    found = load(spark, path).orderBy("lsn").collect()
    rows = [(row.lsn, bytes(row.value)) for row in found if row.lsn >= first]
    assert rows == wanted and {row.kind for row in found} == {int(walkit.Kind.PUT)}
    state = walkit.spark.replay(str(path)).collect()
    assert {bytes(row.key): bytes(row.value) for row in state} == values
    with walkit.open(path, mode="r") as log:
        links = {record.lsn: record.link for record in log.read(resolve="link") if record.link is not None}
    payloads.rename(tmp_path / "away")
    with pytest.raises(PayloadUnreachableError) as caught, walkit.spark.errors():
        load(spark, path, partitions=1).filter("lsn >= 1").collect()
    error = caught.value
    assert error.location == str(path) and error.link is not None and f"{error.link[0]:016x}" in str(error)
    assert error.lsn < first or tuple(error.link) == tuple(links[error.lsn])

    as_links = walkit.spark.load(path, resolve="link", snapshot=True)
    raw = {row.lsn: bytes(row.value) for row in as_links.filter(f"kind = {int(walkit.Kind.LINK)}").collect()}
    assert {lsn: walkit.record.Link.decode(value) for lsn, value in raw.items() if lsn >= first} == links
    assert min(raw) < first, "links of the snapshot, too"
    with pytest.raises(NotALoadError):
        walkit.spark.replay(as_links)
    with pytest.raises(OptionsError):
        walkit.spark.load(path, view="frames", resolve="link")
    reader = reader_of(path, resolve="link", claim="none")
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    streamed = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert {row["lsn"] for row in streamed if row["kind"] == walkit.Kind.LINK} == set(links)
