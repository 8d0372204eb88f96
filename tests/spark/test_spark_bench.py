"""`walkit bench spark` on small logs: it measures what it says, on equal answers, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import walkit
from walkit.bench import spark as bench
from walkit.bench import spark_load
from walkit.bench.spark_floor import ParquetFloor
from walkit.bench.spark_load import BenchLogs, write_log, write_parquet
from walkit.bench.spark_report import SparkBenchReport, SparkBenchRow
from walkit.cli import main
from walkit.errors import OptionsError, WalkitError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

AIMS = {
    ("read all columns", "Parquet, all columns"): 1 / 0.6,
    ("replay", "Parquet, the same joins"): 1 / 0.75,
    ("replay", "Parquet, values not shuffled"): 1 / 0.75,
    ("count by headers", "Parquet, count(*)"): 2.0,
    ("changes of the last 1 %", "read all columns"): 2.0,
    ("verify_pair of equal logs", "diff of two logs"): 0.5,
    ("replay, 90 % on one key", "replay"): 1.3,
    ("a stream's batch of 100,000", None): 1.6,
    ("a stream's tail, 1,000 records", None): 1.0,
}


def test_the_command_prints_one_report(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run a group on 500 records: JSON alone on standard output, and its aim."""
    arguments = ["--records", "500", "--record-bytes", "10", "--runs", "1", "--path", str(tmp_path)]
    assert main(["bench", "spark", *arguments, "--queries", "count", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {(row["query"], row["against"]): row for row in report["rows"]}
    asked = ("count by headers", "Parquet, count(*)")
    bars = {pair: row["bar"] for pair, row in rows.items() if row["bar"] is not None}
    assert bars == {asked: AIMS[asked]}
    assert {row["group"] for row in report["rows"]} == {"count"} and rows[asked]["answer_rows"] == 500
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_command_measures_every_aim(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run every query on 5,000 records: a row for each aim, right answers, and ratios of its times."""
    arguments = ["--records", "5000", "--record-bytes", "10", "--runs", "1", "--path", str(tmp_path)]
    assert main(["bench", "spark", *arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["records"] == [5000] and report["log_bytes"][0] > 5000 * 10 < report["parquet_bytes"][0]
    rows = {(row["query"], row["against"]): row for row in report["rows"]}
    assert {pair: row["bar"] for pair, row in rows.items() if row["bar"] is not None} == AIMS
    assert {row["group"] for row in report["rows"]} == set(bench.GROUPS)
    wanted = {"read all columns": 5000, "read by Arrow in one process": 5000, "count by headers": 5000}
    wanted |= {"verify_pair of equal logs": 0, "1 % of the LSNs, firstLsn, lastLsn": 50, "count(*)": 5000}
    for (query, _), row in rows.items():
        assert row["answer_rows"] == wanted.get(query, row["answer_rows"])
        assert row["n"] == 1 == len(row["times_s"])
        if row["against"] is None:
            assert row["ratio"] is None and row["against_s"] == []
            continue
        ratios = [a / b for a, b in zip(row["times_s"], row["against_s"], strict=True)]
        assert row["ratio_least"] == pytest.approx(min(ratios), rel=0.05, abs=0.1)
        assert row["reached"] is None or row["reached"] == (row["ratio"] <= row["bar"])
    live = rows["replay", "Parquet, the same joins"]["answer_rows"]
    assert 500 < live < 5000 / 3
    assert rows["replay, 90 % on one key", "replay"]["answer_rows"] < live / 2
    assert list(tmp_path.iterdir()) == []


def test_the_report_in_words() -> None:
    """The table as text and HTML: a line a row with medians and spreads, what it was taken on above."""
    row = SparkBenchRow(
        group="replay",
        query="replay",
        against="Parquet",
        records=9000,
        answer_rows=1234,
        times_s=(3.0, 1.0, 2.0),
        against_s=(1.0, 1.0, 4.0),
        bar=1.5,
    )
    alone = SparkBenchRow(
        group="stream",
        query="tail",
        against=None,
        records=9000,
        answer_rows=5,
        times_s=(0.25, 0.5, 2.0),
        bar=1.0,
    )
    report = SparkBenchReport(
        records=(9000,),
        record_bytes=64,
        log_bytes=(1_000_000,),
        parquet_bytes=(900_000,),
        runs=3,
        master="local[2]",
        spark="4.3.0",
        location="<here>",
        rows=(row, alone),
    )
    lines = report.text().splitlines()
    told = " ".join(lines[-2].split())
    assert told == "replay Parquet 9,000 1,234 2.00 1.00-3.00 1.00 1.00 0.50-3.00 <= 1.50 yes"
    assert lines[-1].split() == ["tail", "9,000", "5", "0.50", "0.25-2.00", "<=", "1.00", "s", "yes"]
    assert "9,000 records" in lines[0] and "log 1,000,000 bytes" in lines[1] and "n = 3" in lines[2]
    assert (row.reached, alone.reached) == (True, True)
    html = report._repr_html_()
    assert "&lt;here&gt;" in html and ">1,234</td>" in html


def test_different_answers_are_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave half of the Parquet file out: no times are reported, and nothing is left in the folder."""

    def half(log: str, path: str) -> None:
        write_parquet(log, path)
        pq.write_table(pq.read_table(path).slice(0, 500), path)

    monkeypatch.setattr(spark_load, "write_parquet", half)
    with pytest.raises(WalkitError, match="read all columns: the log and Parquet, all columns differ"):
        bench.bench_spark(records=1000, record_bytes=10, queries="read", runs=1, path=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"records": 0},
        {"records": (5, 0)},
        {"records": ()},
        {"record_bytes": 0},
        {"record_bytes": 1 << 22},
        {"queries": ["reads"]},
        {"queries": []},
        {"runs": -1},
        {"path": "/nothing/there"},
        {"progress": 3},
    ],
)
def test_bad_arguments_are_refused_first(options: dict[str, object]) -> None:
    """Numbers below 1, values that fit no frame, unknown queries, no folder: OptionsError that names the option."""
    with pytest.raises(OptionsError) as caught:
        bench.bench_spark(**options)  # type: ignore[arg-type]
    assert caught.value.option == next(iter(options))


def test_logs_are_what_they_are_called(spark: SparkSession, tmp_path: Path) -> None:
    """Write the logs of one size: Parquet and its Python source have the log's rows, one key has 90 % of the skewed."""
    logs = BenchLogs(folder=str(tmp_path / "logs"), records=3000, record_bytes=10)
    logs.write(copy=True, skewed=True)
    with walkit.open(logs.log, mode="r") as reader:
        rows = reader.to_arrow()
    assert pq.read_table(logs.parquet).equals(rows) and walkit.verify(logs.copy).ok
    spark.dataSource.register(ParquetFloor)
    floor = spark.read.format(ParquetFloor.name()).load(logs.parquet).toArrow()
    assert floor.sort_by("lsn").cast(rows.schema).equals(rows)
    with walkit.open(logs.skewed, mode="r") as reader:
        keys = reader.to_arrow()["key"].to_pylist()
    assert 0.85 < keys.count(b"key-%012d" % 0) / len(keys) < 0.95 and len(keys) == 3000


def test_large_values_are_written_in_small_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write records of which only three go into a call: all are there, and no call held more bytes at a time."""
    monkeypatch.setattr(spark_load, "CALL_BYTES_MAX", 3000)
    write_log(str(tmp_path / "log"), 10, 1000)
    with walkit.open(tmp_path / "log", mode="r") as reader:
        frames = walkit.scan(tmp_path / "log").frames
        assert [len(record.value or b"") for record in reader.read()] == [1000] * 10
    assert frames.records.tolist() == [3, 3, 3, 1]
