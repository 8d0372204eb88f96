"""Spark over a log whose large values are in a payload log: tasks fetch them, or fail with walkit's error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit
from tests.spark.loading import load
from tests.support.logs import tiny
from walkit.errors import PayloadUnreachableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", ["", "objects:"])
def test_values_of_links_are_fetched_by_tasks(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Load, replay and compare a log with links in records and in a snapshot; then take its payload log away."""
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
    assert walkit.spark.diff(str(path), str(path)).count() == 0
    payloads.rename(tmp_path / "away")
    with pytest.raises(PayloadUnreachableError, match="payload"), walkit.spark.errors():
        load(spark, path).collect()
