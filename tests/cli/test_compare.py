"""`walkit diff`: exit codes, the printed rows, JSON, files, and refusals."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import walkit
from tests.support.damaged import contents
from tests.support.histories import write
from walkit.state import DIFF_SCHEMA

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two logs "a" and "b" that differ in four keys; "b" ends as it was at LSN 6, except for one key."""
    write(
        str(tmp_path / "a"),
        [(1, b"same", b"1"), (1, b"changed", b"1"), (1, b"deleted", b"\xff"), (1, b"none", None)],
    )
    changed = [(1, b"same", b"0"), (1, b"same", b"1"), (1, b"changed", b"2"), (1, b"deleted", b"1")]
    write(
        str(tmp_path / "b"), [*changed, (2, b"deleted", None), (1, b"none", b""), (1, b"long" * 30, b"x\ny")]
    )
    return tmp_path


def test_different_and_equal(logs: Path, run: Run) -> None:
    """Different states: 1, counts and a line for each key; equal ones: 0 and a word; nothing of the logs changes."""
    before = contents(logs / "a"), contents(logs / "b")
    ran = run("diff", logs / "a", logs / "b")
    assert (ran.code, ran.err) == (1, "")
    lines = ran.out.splitlines()
    assert lines[:3] == [
        f"left   {logs}/a at LSN 4",
        f"right  {logs}/b at LSN 7",
        "different: 1 inserted, 1 deleted, 2 changed",
    ]
    assert lines[3] == "" and lines[4].split()[0] == "change"
    assert [line.split() for line in lines[5:]] == [
        ["C", "changed", "1", "2", "2", "3"],
        ["D", "deleted", "0xff", "3", "5"],
        ["I", ("long" * 30)[:39] + "…", "0x780a79", "7"],
        ["C", "none", "(no", "value)", "4", "6"],
    ]
    same = run("diff", logs / "a", logs / "a")
    assert (same.code, same.err) == (0, "")
    assert same.out.splitlines()[2:] == ["equal"]
    assert (contents(logs / "a"), contents(logs / "b")) == before


def test_at_an_lsn(logs: Path, run: Run) -> None:
    """One log at two LSNs, at 0, and at its end by number."""
    ran = run("diff", f"{logs}/b@6", logs / "b")
    assert (ran.code, ran.out.splitlines()[2]) == (1, "different: 1 inserted, 0 deleted, 0 changed")
    assert run("diff", f"{logs}/b@7", logs / "b").code == 0
    assert "different: 0 inserted, 3 deleted, 0 changed" in run("diff", f"{logs}/b@6", f"{logs}/b@0").out


def test_json(logs: Path, run: Run) -> None:
    """JSON on standard output: sides, counts, every row; bytes that are not text under a marked name."""
    ran = run("diff", f"{logs}/a@3", logs / "b", "--json")
    report = json.loads(ran.out)
    assert (ran.code, ran.err) == (1, "")
    rows = report.pop("rows")
    assert report == {
        "schema": "walkit.diff/1",
        "left": {"log": str(logs / "a"), "lsn": 3},
        "right": {"log": str(logs / "b"), "lsn": 7},
        "equal": False,
        "inserted": 2,
        "deleted": 1,
        "changed": 1,
    }
    assert rows[1] == {
        "key": "deleted",
        "change": "D",
        "left_value_base64": "/w==",
        "right_value": None,
        "left_lsn": 3,
        "right_lsn": 5,
    }
    assert len(rows) == 4


def test_rows_saved(logs: Path, run: Run) -> None:
    """--out with .parquet and .csv: all rows; with any other name the report; printed all the same, or as JSON."""
    wanted = walkit.diff(logs / "a", logs / "b")
    ran = run("diff", logs / "a", logs / "b", "--out", logs / "rows.parquet")
    assert (ran.code, ran.err) == (1, f"4 rows saved as {logs}/rows.parquet\n")
    assert "different" in ran.out
    saved = pq.read_table(logs / "rows.parquet")
    assert saved.equals(wanted) and saved.schema.equals(DIFF_SCHEMA)
    ran = run("diff", logs / "a", logs / "b", "--out", logs / "rows.csv", "--json")
    assert len(json.loads(ran.out)["rows"]) == 4
    with open(logs / "rows.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows] == [key.decode() for key in wanted["key"].to_pylist()]
    assert list(rows[1].values()) == ["deleted", "text", "D", "/w==", "base64", "", "", "3", "5"]
    assert list(rows[2].values())[2:] == ["I", "", "", "x\ny", "text", "", "7"]
    run("diff", logs / "a", logs / "b", "--out", logs / "report.txt")
    assert "different: 1 inserted" in (logs / "report.txt").read_text()


def test_a_report_without_spark(tmp_path: Path, run: Run) -> None:
    """JSON values with --decoder, --ignore and --tolerance: counts by column, as text, as JSON, and as a page."""
    for name, price, at in (("a", 1.0, "now"), ("b", 1.001, "later")):
        rows = [b'{"price": %g, "at": "%s"}' % (price * (n + 1), at.encode()) for n in range(3)]
        write(str(tmp_path / name), [(1, b"%d" % n, row) for n, row in enumerate(rows)])
    words = (
        "diff",
        tmp_path / "a",
        tmp_path / "b",
        "--decoder",
        "json",
        "--ignore",
        "at",
        "--tolerance",
        "0.0015",
    )
    ran = run(*words)
    assert ran.code == 1 and "different: 0 inserted, 0 deleted, 2 changed, 1 unchanged" in ran.out
    plain = json.loads(run(*words, "--json").out)
    assert (plain["changed"], plain["tolerated"], plain["columns"][0]["keys"]) == (2, 1, 2)
    assert plain["left"] == f"{tmp_path}/a at LSN 3"
    page = run("diff", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "r.html")
    assert page.code == 1 and (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert run(*words[:3], "--ignore", "at").code == 2
    assert run(*words, "--out", tmp_path / "r.csv").code == 2


def test_many_rows_are_cut_in_print_only(tmp_path: Path, run: Run) -> None:
    """A hundred keys: twenty are printed, and how many more there are; JSON has all."""
    write(str(tmp_path / "none"), [])
    write(str(tmp_path / "many"), [(1, b"%03d" % n, b"v") for n in range(100)])
    lines = run("diff", tmp_path / "none", tmp_path / "many").out.splitlines()
    assert len(lines) == 5 + 20 + 1
    assert lines[-1].startswith("... and 80 more")
    assert len(json.loads(run("diff", tmp_path / "none", tmp_path / "many", "--json").out)["rows"]) == 100


def test_refusals(logs: Path, run: Run) -> None:
    """An LSN past the end, a file inside a log: 2; no log there, trimmed history, damage: 3, each with a reason."""
    past = run("diff", f"{logs}/a@5", logs / "b")
    assert (past.code, past.err) == (2, f"walkit diff: lsn=5: the log {logs}/a ends at LSN 4\n")
    inside = run("diff", logs / "a", logs / "b", "--out", logs / "b" / "x.csv")
    assert inside.code == 2 and "is in the log's own folder" in inside.err
    assert run("diff", logs / "a").code == 2
    missing = run("diff", logs / "a", logs / "none")
    assert missing.code == 3 and "no log at" in missing.err
    with walkit.open(str(logs / "b")) as log:
        log.trim(3)
    trimmed = run("diff", f"{logs}/b@2", logs / "a")
    assert trimmed.code == 3 and "history is exact from LSN 4; 2 is below it" in trimmed.err
    segment = min((logs / "a").glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"changed")] ^= 1
    segment.write_bytes(data)
    damaged = run("diff", logs / "a", logs / "a")
    assert damaged.code == 3 and "is damaged at position" in damaged.err
    assert damaged.out == ""


@pytest.mark.parametrize(
    ("place", "detail"),
    [
        ("a@x", "'x' in 'LOGS/a@x' is not an LSN"),
        ("a@-1", "'-1' in 'LOGS/a@-1' is not an LSN"),
        ("a@1.5", "'1.5' in 'LOGS/a@1.5' is not an LSN"),
        ("a@", "'' in 'LOGS/a@' is not an LSN"),
        ("a@\u0661", "'\u0661' in 'LOGS/a@\u0661' is not an LSN"),
        (f"a@{1 << 63}", f"'{1 << 63}' in 'LOGS/a@{1 << 63}' is not an LSN"),
        ("none@x", "'x' in 'LOGS/none@x' is not an LSN"),
    ],
)
def test_text_that_is_not_an_lsn_is_refused_as_such(place: str, detail: str, logs: Path, run: Run) -> None:
    """Give something else after the @: exit 2, and a sentence with the given text, not about a missing log."""
    for places in ((f"{logs}/{place}", logs / "b"), (logs / "b", f"{logs}/{place}")):
        ran = run("diff", *places)
        assert (ran.code, ran.out) == (2, "")
        assert detail.replace("LOGS", str(logs)) in ran.err and "no log at" not in ran.err


@pytest.mark.parametrize("place", ["", "@", "@1"])
def test_no_path_at_all_is_refused(place: str, logs: Path, run: Run) -> None:
    """Give an empty path, with and without an LSN: exit 2, and the working folder is not taken for a log."""
    ran = run("diff", place, logs / "b")
    assert (ran.code, ran.out) == (2, "") and f"{place!r} names no log" in ran.err


def test_an_at_in_a_folder_above_is_part_of_the_path(logs: Path, run: Run) -> None:
    """Rename the folder above the logs to one with an @: the logs in it are found, with and without an LSN."""
    os.mkdir(logs / "at@home")
    os.rename(logs / "a", logs / "at@home" / "a")
    assert run("diff", logs / "at@home" / "a", f"{logs}/at@home/a@4").code == 0


def test_a_folder_with_an_at_in_its_name(logs: Path, run: Run) -> None:
    """A folder that is really named so is that folder; with another @LSN after it, at this LSN."""
    os.rename(logs / "a", logs / "a@2")
    assert run("diff", logs / "a@2", f"{logs}/a@2@4").code == 0
    assert run("diff", logs / "a@2", f"{logs}/a@2@3").code == 1
