"""`walkit bench spark` on a small log: it measures what it says, on equal answers, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import walkit
from walkit.bench import spark as bench
from walkit.cli import main
from walkit.errors import OptionsError, WalkitError
from walkit.spark.session import PUSHDOWN_SWITCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_command_prints_one_report(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the command on 5,000 records: JSON alone on standard output; rows, ratios and sizes belong together."""
    spark.conf.set(PUSHDOWN_SWITCH, "false")
    arguments = ["--records", "5000", "--record-bytes", "10", "--runs", "1", "--path", str(tmp_path)]
    assert main(["bench", "spark", *arguments, "--json"]) == 0
    assert spark.conf.get(PUSHDOWN_SWITCH) == "false"
    spark.conf.set(PUSHDOWN_SWITCH, "true")
    report = json.loads(capsys.readouterr().out)
    assert report["records"] == 5000 and report["log_bytes"] > 5000 * 10 < report["parquet_bytes"]
    rows = {row["query"]: row for row in report["rows"]}
    assert [row["answer_rows"] for row in rows.values()][:3] == [5000, 50, 50]
    for name in ("replay", "replay at half of the LSNs"):
        assert 500 < rows[name]["answer_rows"] < 5000 / 3
    for row in rows.values():
        assert len(row["log_s"]) == len(row["parquet_s"]) == 1
        assert row["times_parquet"] == pytest.approx(row["log_s"][0] / row["parquet_s"][0], abs=0.01)
    assert list(tmp_path.iterdir()) == []


def test_the_report_in_words() -> None:
    """The table as text and HTML: a line a query with medians, what it was taken on above."""
    row = bench.SparkBenchRow(
        query="replay", answer_rows=1234, log_s=(3.0, 1.0, 2.0), parquet_s=(1.0, 1.0, 9.0)
    )
    report = bench.SparkBenchReport(
        records=9000,
        record_bytes=64,
        log_bytes=1_000_000,
        parquet_bytes=900_000,
        master="local[2]",
        location="<here>",
        rows=(row,),
    )
    lines = report.text().splitlines()
    assert lines[-1].split() == ["replay", "1,234", "2.00", "1.00", "2.00"]
    assert "9,000 records" in lines[0] and "log 1,000,000 bytes" in lines[1]
    html = report._repr_html_()
    assert "&lt;here&gt;" in html and ">1,234</td>" in html


def test_different_answers_are_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave a batch out of the Parquet file: no times are reported, and nothing is left in the folder."""
    write = bench._write_parquet

    def half(log: str, path: str) -> None:
        write(log, path)
        pq.write_table(pq.read_table(path).slice(0, 500), path)

    monkeypatch.setattr(bench, "_write_parquet", half)
    with pytest.raises(WalkitError, match="read and aggregate all columns: the log and Parquet differ"):
        bench.bench_spark(records=1000, record_bytes=10, runs=1, path=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"records": 0},
        {"record_bytes": 0},
        {"record_bytes": 1 << 22},
        {"runs": -1},
        {"path": "/nothing/there"},
    ],
)
def test_bad_arguments_are_refused_first(options: dict[str, object]) -> None:
    """Numbers below 1, values that fit no frame, a folder that is none: OptionsError that names the option."""
    with pytest.raises(OptionsError) as caught:
        bench.bench_spark(**options)  # type: ignore[arg-type]
    assert caught.value.option == next(iter(options))


def test_large_values_are_written_in_small_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write records of which only three go into a call: all are there, and no call held more bytes at a time."""
    monkeypatch.setattr(bench, "CALL_BYTES_MAX", 3000)
    assert bench._write_log(str(tmp_path / "log"), 10, 1000) == 10
    with walkit.open(tmp_path / "log", mode="r") as reader:
        frames = walkit.scan(tmp_path / "log").frames
        assert [len(record.value or b"") for record in reader.read()] == [1000] * 10
    assert frames.records.tolist() == [3, 3, 3, 1]
