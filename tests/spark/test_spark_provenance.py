"""The records that a diff names: their frames, what compaction and snapshots made of them, and the report."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import walkit
from tests.spark.loading import load
from tests.spark.trimmed import OPTIONS
from tests.support.histories import diff_of, newest_of, random_rows, write
from walkit.cli import main
from walkit.errors import HistoryTrimmedError, OptionsError
from walkit.spark import diff, diff_report
from walkit.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def rows_of(df: DataFrame) -> dict[bytes, dict[str, Any]]:
    """The rows of a diff by key."""
    return {row["key"]: row for row in df.toArrow().to_pylist()}


def frames_of(path: Path) -> list[tuple[int, int, int, int]]:
    """First and last LSN, position and segment of each frame of a log, as `walkit.scan` has them."""
    frames = walkit.scan(path).frames
    return [
        (int(first), int(last), int(position), int(str(segment).split(".")[0]))
        for first, last, position, segment in frames[frames.records > 0][
            ["first_lsn", "last_lsn", "position", "segment"]
        ].to_numpy()
    ]


def assert_in_frames(row: dict[str, Any], side: str, frames: list[tuple[int, int, int, int]]) -> None:
    """One side of a row names the frame that its LSN is in."""
    lsn = row[f"{side}_lsn"]
    (found,) = [frame for frame in frames if frame[0] <= lsn <= frame[1]]
    named = tuple(row[f"{side}_{name}"] for name in ("frame_lsn", "position", "segment"))
    assert named == (found[0], found[2], found[3])


def test_each_record_is_found_in_its_frame(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One log at two LSNs: one scan, the process's rows, and frames, of tombstones too, as `walkit.scan` has them."""
    rows = random_rows(9, 400, keys=60)
    write(str(tmp_path / "log"), rows, 2)
    df = load(spark, tmp_path / "log")
    found = diff((df, 150), df)
    found.explain()
    assert capsys.readouterr().out.count("BatchScan") == 1
    by_key = rows_of(found)
    expected = diff_of(newest_of(rows, 150), newest_of(rows))
    assert sorted(tuple(row.values())[:6] for row in by_key.values()) == expected
    assert {row[1] for row in expected} == {"I", "D", "C"}
    frames = frames_of(tmp_path / "log")
    for row in by_key.values():
        for side in ("left", "right"):
            assert row[f"{side}_source"] == (None if row[f"{side}_lsn"] is None else "frame")
            if row[f"{side}_lsn"] is not None:
                assert_in_frames(row, side, frames)
    assert rows_of(diff(df, (df, 150))).keys() == by_key.keys()
    assert not rows_of(diff((df, 150), (df, 150)))


def test_what_compaction_and_a_snapshot_have_made_of_them(spark: SparkSession, tmp_path: Path) -> None:
    """A log before and after trimming: snapshot, compacted frames, and a dropped tombstone with its range of LSNs."""
    before, after = tmp_path / "before", tmp_path / "after"
    with Store.open(before, options=OPTIONS) as store:
        for n in range(300):
            store.put(b"%d" % (n % 20), b"%d" % n * 500)
        store.put(b"gone", b"1")
    shutil.copytree(before, after)
    with Store.open(after, options=OPTIONS) as store:
        store.delete(b"gone")
        for n in range(300):
            store.put(b"%d" % (n % 10), b"%d" % n * 500)
        store.compact()
        store.checkpoint()
    left, right = load(spark, before), load(spark, after, snapshot=True)
    by_key = rows_of(diff(left, right))
    gone, newest = by_key[b"gone"], right.schema["lsn"].metadata["walkit"]["last_lsn"]
    assert (gone["change"], gone["left_source"], gone["right_source"]) == ("D", "frame", "dropped")
    assert gone["right_lsn"] is None and gone["right_position"] is None
    assert gone["right_from_lsn"] == 302 <= gone["right_to_lsn"] <= newest
    others = {row["right_source"] for key, row in by_key.items() if key != b"gone"}
    assert others and others <= {"snapshot", "compacted", "frame"}
    turned = rows_of(diff(right, left))[b"gone"]
    assert (turned["change"], turned["left_source"], turned["left_from_lsn"]) == ("I", "dropped", 302)
    with pytest.raises(HistoryTrimmedError):
        diff((right, 5), right)


def test_compacted_frames_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """A compacted store against an empty log: each record is in a compacted frame or a later one, at its place."""
    with Store.open(tmp_path / "s", options=OPTIONS) as store:
        for n in range(600):
            store.put(b"hot" if n % 10 else b"%d" % n, b"%d" % n * 200)
        store.compact()
    write(str(tmp_path / "empty"), [])
    by_key = rows_of(diff(load(spark, tmp_path / "s"), load(spark, tmp_path / "empty")))
    frames = frames_of(tmp_path / "s")
    assert {row["left_source"] for row in by_key.values()} == {"frame", "compacted"}
    for row in by_key.values():
        assert_in_frames(row, "left", frames)
        assert row["right_source"] is None


def json_of(**values: object) -> bytes:
    """A value that is a JSON object."""
    return json.dumps(values).encode()


def test_a_report_by_column_reconciles(spark: SparkSession, tmp_path: Path) -> None:
    """JSON values of two logs: counts, the columns that differ, tolerance and ignored columns, samples and forms."""
    left, right = tmp_path / "a", tmp_path / "b"
    with walkit.open(left) as log:
        for n in range(30):
            log.append(json_of(price=n, at="now", name="x"), b"%02d" % n)
    with walkit.open(right) as log:
        for n in range(5, 33):
            price = n + 0.001 if n < 10 else n + 2 if n < 15 else n
            log.append(json_of(price=price, at="later", name="y" if n == 12 else "x"), b"%02d" % n)
        log.append(b"no JSON", b"29")
    dfs = load(spark, left), load(spark, right)
    report = diff_report(*dfs, decoder="json", ignore=["at"], tolerance=0.01, samples=2)
    assert report.reconciles and not report.equal
    assert (report.left_keys, report.right_keys) == (30, 28)
    assert (report.inserted, report.deleted, report.changed, report.unchanged) == (3, 5, 6, 19)
    assert (report.tolerated, report.undecoded) == (19, 1)
    assert [(c.name, c.keys, c.largest) for c in report.columns] == [("price", 5, 2.0), ("name", 1, None)]
    assert [(row["change"], row["key"]) for row in report.samples] == [
        *(("I", b"30"), ("I", b"31"), ("D", b"00"), ("D", b"01"), ("C", b"10"), ("C", b"11"))
    ]
    alone = walkit.state.diff_report(left, right, decoder="json", ignore=["at"], tolerance=0.01, samples=2)
    bare = [replace(one, left="", right="", seconds=0.0, samples=()) for one in (alone, report)]
    assert bare[0] == bare[1]
    assert list(alone.samples) == [
        {n: row[n] for n in walkit.state.DIFF_SCHEMA.names} for row in report.samples
    ]
    plain = json.loads(report.to_json())
    assert plain["reconciles"] and plain["samples"][0]["key"] == b"30".hex()
    assert "30 left + 3 inserted - 5 deleted = 28 right" in report.text()
    for page in (report.to_html(), report._repr_html_()):
        assert "price" in page and "3 inserted" in page
    assert pickle.loads(pickle.dumps(report)) == report
    bytewise = diff_report(*dfs)
    assert (bytewise.changed, bytewise.unchanged, bytewise.columns) == (25, 0, ())
    assert diff_report(dfs[0], dfs[0]).equal


def test_a_diff_of_spark_is_a_patch(spark: SparkSession, tmp_path: Path) -> None:
    """Apply the rows of Spark's diff of two states to a store in the first: it is in the second."""
    rows = random_rows(2, 200)
    write(str(tmp_path / "log"), rows)
    df = load(spark, tmp_path / "log")
    with Store.open(tmp_path / "store") as store:
        for start, end in ((0, 90), (90, 200)):
            store.apply_patch(diff((df, start), (df, end)).toArrow())
            state = {key: value for key, (value, _, live) in newest_of(rows, end).items() if live}
            assert dict(store.items()) == state


def test_the_command_compares_states(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`walkit diff --spark`: exit code 0 for equal states and 1 for different ones, JSON, and a page of HTML."""
    log = tmp_path / "log"
    write(str(log), random_rows(4, 60))
    assert main(["diff", "--spark", str(log), str(log)]) == 0
    assert "equal" in capsys.readouterr().out
    assert main(["diff", "--spark", "--json", f"{log}@30", str(log)]) == 1
    plain = json.loads(capsys.readouterr().out)
    assert plain["reconciles"] and plain["left"].endswith("at LSN 30") and not plain["equal"]
    assert main(["diff", "--spark", f"{log}@30", str(log), "--out", str(tmp_path / "r.html")]) == 1
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["diff", "--spark", f"{log}@30", str(log), "--out", str(tmp_path / "r.parquet")]) == 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"decoder": "xml"}, "decoder='xml'"),
        ({"ignore": ["a"]}, "need a decoder"),
        ({"decoder": "json", "ignore": "a"}, "collection of names"),
        ({"decoder": "json", "tolerance": -1}, "tolerance=-1"),
        ({"decoder": "json", "tolerance": float("nan")}, "tolerance=nan"),
        ({"samples": -1}, "samples=-1"),
    ],
)
def test_misuse_of_a_report_is_refused(given: dict[str, Any], text: str) -> None:
    """An invalid decoder, tolerance, name or number of samples: an error before Spark does anything."""
    with pytest.raises(OptionsError, match=text):
        diff_report("nothing", "nothing", **given)


class StrictDecodeError(Exception):
    """The error of a user's decoder."""


def strict(value: bytes) -> dict[str, str]:
    """A user's decoder, which refuses some values."""
    if b"bad" in value:
        raise StrictDecodeError(f"cannot read {value!r}")
    return {"text": value.decode()}


def test_a_decoders_own_error_is_shown(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A user's function raises in the workers: its type and message, the side and the lowest LSN are shown."""
    left, right = tmp_path / "a", tmp_path / "b"
    with walkit.open(left) as log, walkit.open(right) as other:
        for n in range(20):
            log.append(b"left %d" % n, b"%02d" % n)
            other.append(b"bad %d" % n if n in {7, 12, 16} else b"right %d" % n, b"%02d" % n)
    report = diff_report(load(spark, left), load(spark, right), decoder=strict)
    assert (report.changed, report.undecoded, report.columns[0].keys) == (20, 3, 17)
    failed = report.failed_decode
    assert failed is not None and (failed.side, failed.lsn) == ("right", 8)
    assert failed.error.endswith("StrictDecodeError: cannot read b'bad 7'")
    line = (
        f"3 changed keys have a value that the decoder fails on; first at LSN 8 (right side): {failed.error}"
    )
    assert line in report.text()
    assert "StrictDecodeError: cannot read" in report.to_html()
    assert json.loads(report.to_json())["failed_decode"]["lsn"] == 8
    assert pickle.loads(pickle.dumps(report)) == report
    (event,) = [record for record in caplog.records if "walkit.diff.undecoded" in record.getMessage()]
    assert event.levelname == "WARNING" and "cannot read" in event.getMessage()
    quiet = diff_report(load(spark, left), load(spark, right))
    assert quiet.failed_decode is None and "decoder fails" not in quiet.text()
