"""`walkit dump`: every format round trips to the same records; ranges, damage and large logs."""

from __future__ import annotations

import base64
import csv
import io
import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import walkit
from tests.support.damaged import DAMAGES, RECORDS, Copy, Damage, contents, key_of, value_of
from walkit.cli.dump import WRITERS
from walkit.record import Batch, Kind, Record

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def _bytes(text: str | None, encoding: str) -> bytes | None:
    if text is None or not encoding:
        return None
    return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def from_json(out: str) -> list[Record]:
    """Read JSON lines back without walkit."""
    records = []
    for line in out.split("\n")[:-1]:
        plain: dict[str, Any] = json.loads(line)
        cells = []
        for name in ("key", "value"):
            encoding = "text" if name in plain else "base64"
            cells.append(_bytes(plain.get(name, plain.get(f"{name}_base64")), encoding))
        kind = Kind[plain["kind"].upper()]
        records.append(Record(plain["lsn"], kind, cells[0], cells[1], _time(plain["timestamp"])))
    return records


def from_csv(out: str) -> list[Record]:
    """Read CSV back without walkit."""
    return [
        Record(
            int(row["lsn"]),
            Kind[row["kind"].upper()],
            _bytes(row["key"], row["key_encoding"]),
            _bytes(row["value"], row["value_encoding"]),
            _time(row["timestamp"]),
        )
        for row in csv.DictReader(io.StringIO(out, newline=""))
    ]


def from_parquet(path: Path) -> list[Record]:
    """Read Parquet back."""
    return [record for batch in pq.read_table(path).to_batches() for record in Batch.from_arrow(batch)]


@pytest.fixture(scope="module")
def odd_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Absent and empty keys and values, tombstones, text of every sort, bytes that are not text, timestamps."""
    path = tmp_path_factory.mktemp("odd") / "log"
    with walkit.open(path) as log:
        log.append(b"")
        log.append(b"value", b"")
        log.append(b"\xff\xfe", b"\x80key")
        log.append('a "quoted", line\r\nand \0 another\u2028'.encode(), "schlüssel €".encode())
        log.append(b"===base64===", b"text", timestamp=1_357_016_400_123_456)
        log.append(b"before", b"k", timestamp=-1)
        log.delete(b"k", timestamp=0)
        with log.transaction() as tx:
            tx.put(b"a", b"1")
            tx.delete(b"b")
            tx.append(b"event")
    return path


def test_every_format_round_trips_to_equal_records(odd_log: Path, tmp_path: Path, run: Run) -> None:
    """Dump records with every oddity as JSON, CSV and Parquet and read them back: equal to the log's own records."""
    with walkit.open(odd_log, mode="r") as log:
        records = list(log.read())
    assert len(records) == 10
    assert from_json(run("dump", odd_log).out) == records
    assert from_json(run("dump", odd_log, "--json").out) == records
    assert from_csv(run("dump", odd_log, "--format", "csv").out) == records
    ran = run("dump", odd_log, "--format", "parquet", "--out", tmp_path / "records.parquet")
    assert (ran.code, ran.out) == (0, "") and "10 records" in ran.err
    assert from_parquet(tmp_path / "records.parquet") == records
    assert pq.read_schema(tmp_path / "records.parquet").equals(walkit.RECORD_SCHEMA)
    for form in ("json", "csv"):
        run("dump", odd_log, "--format", form, "--out", tmp_path / form)
        assert (tmp_path / form).read_bytes().decode() == run("dump", odd_log, "--format", form).out


def test_bytes_that_are_not_text_are_marked(odd_log: Path, run: Run) -> None:
    """Look at the third record: base64 under a marked name, and no plain name beside it."""
    plain = json.loads(run("dump", odd_log, "--from", 3, "--to", 3).out)
    assert plain == {
        "lsn": 3,
        "kind": "put",
        "key_base64": "gGtleQ==",
        "value_base64": "//4=",
        "timestamp": None,
    }


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_time_that_no_calendar_has_stays_a_number(form: str) -> None:
    """Write a timestamp far outside the years 1 to 9999, as a foreign writer may: microseconds instead of an error."""
    batch = Batch([1], 1, None, [b"far"], [2**62]).to_arrow()
    sink = io.BytesIO()
    assert WRITERS[form](sink, iter([batch])) == 1
    last = sink.getvalue().decode().splitlines()[-1]
    assert json.loads(last)["timestamp"] == 2**62 if form == "json" else last.endswith(f",{2**62}")


@pytest.mark.parametrize(
    ("bounds", "first", "last"),
    [
        ((), 1, RECORDS),
        (("--from", 20), 20, RECORDS),
        (("--to", 20), 1, 20),
        (("--from", 19, "--to", 21), 19, 21),
        (("--from", RECORDS, "--to", RECORDS), RECORDS, RECORDS),
        (("--from", 1, "--to", RECORDS), 1, RECORDS),
    ],
)
def test_ranges_are_inclusive(
    bounds: tuple[object, ...], first: int, last: int, originals: Path, run: Run
) -> None:
    """Dump parts of a log: exactly the LSNs asked for, of a closed log and of one whose writer was killed."""
    for base in ("closed", "killed"):
        records = from_json(run("dump", originals / base, *bounds).out)
        assert [r.lsn for r in records] == list(range(first, last + 1))
        assert [(r.key, r.value) for r in records] == [
            (key_of(i), value_of(i)) for i in range(first - 1, last)
        ]


def test_a_trimmed_log_names_what_it_holds(tmp_path: Path, run: Run) -> None:
    """Trim half a log: the dump begins at the oldest record; asking for less is exit 2 with the range there is."""
    with walkit.open(tmp_path / "log") as log:
        for i in range(10):
            log.append(b"%d" % i)
        log.trim(5)
    assert [r.lsn for r in from_json(run("dump", tmp_path / "log").out)] == [6, 7, 8, 9, 10]
    ran = run("dump", tmp_path / "log", "--from", 5)
    assert ran.code == 2 and "LSN 6 to 10" in ran.err


def test_an_empty_log_dumps_nothing(tmp_path: Path, run: Run) -> None:
    """Dump a log without records: nothing, a CSV heading, an empty Parquet file; bounds are exit 2."""
    walkit.open(tmp_path / "log").close()
    assert run("dump", tmp_path / "log").out == ""
    assert run("dump", tmp_path / "log", "--format", "csv").out.count("\n") == 1
    run("dump", tmp_path / "log", "--format", "parquet", "--out", tmp_path / "empty")
    assert pq.read_table(tmp_path / "empty").num_rows == 0
    assert run("dump", tmp_path / "log", "--from", 1).code == 2


SEEN = {(damage.base, damage.verdicts, damage.codes, damage.only_bodies): damage for damage in DAMAGES}
"""A damage of each sort; `walkit verify` is asked about each by default, and about the others a dump by a release."""


@pytest.mark.parametrize(
    "damage",
    [pytest.param(d, id=d.name, marks=[] if d in SEEN.values() else pytest.mark.slow) for d in DAMAGES],
)
def test_damage_never_invents_a_record(damage: Damage, originals: Path, tmp_path: Path, run: Run) -> None:
    """Dump damaged copies: what is printed is the log's true beginning; exit 0 only where all of it was readable."""
    shutil.copytree(originals / damage.base, tmp_path / "log")
    copy = Copy(tmp_path / "log")
    damage.do(copy)
    before = contents(copy.path)
    ran = run("dump", copy.path)
    marked = run("dump", copy.path, "--damaged")
    assert contents(copy.path) == before
    records = from_json(ran.out)
    for record, line in zip(from_json(marked.out), marked.out.splitlines(), strict=True):
        assert not json.loads(line)["verified"] or record[2:4] == (
            key_of(record.lsn - 1),
            value_of(record.lsn - 1),
        )
    assert marked.out.count("\n") >= len(records) and marked.code in (ran.code, 1), marked.err
    assert [(r.lsn, r.key, r.value) for r in records] == [
        (i + 1, key_of(i), value_of(i)) for i in range(len(records))
    ]
    if ran.code == 0:
        torn = damage.base == "power cut"
        assert len(records) >= RECORDS - torn and ran.err == ""
    else:
        assert not damage.ok
        no_log = "is not a walkit log" in ran.err  # a manifest that does not begin like one
        assert ran.code == (3 if damage.codes == ("format-version",) or no_log else 1)
        assert ran.err.startswith("walkit dump: ") and ran.err.count("\n") == 1


def test_damage_in_the_middle_keeps_what_was_saved(originals: Path, tmp_path: Path, run: Run) -> None:
    """Save a dump of a damaged log: exit 1, and the file holds every record before the damage, as does Parquet."""
    shutil.copytree(originals / "closed", tmp_path / "log")
    copy = Copy(tmp_path / "log")
    _, header = copy.frames(1)[4]
    copy.flip_in_frame(1, 4, "body")
    for form in ("json", "parquet"):
        ran = run("dump", copy.path, "--format", form, "--out", tmp_path / form)
        assert ran.code == 1 and "damaged" in ran.err
    assert len(from_json((tmp_path / "json").read_text())) == header.first_lsn - 1
    assert len(from_parquet(tmp_path / "parquet")) == header.first_lsn - 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["json", "log", "parquet"]


def test_damaged_frames_are_dumped_with_a_mark(originals: Path, tmp_path: Path, run: Run) -> None:
    """Flip a bit in a body and dump with --damaged: every record in every format, the one of the frame not verified."""
    shutil.copytree(originals / "closed", tmp_path / "log")
    copy = Copy(tmp_path / "log")
    copy.flip_in_frame(1, 4, "body")
    lsn = copy.frames(1)[4][1].first_lsn
    plain = run("dump", copy.path, "--damaged")
    rows = [json.loads(line) for line in plain.out.splitlines()]
    assert (plain.code, len(rows)) == (1, RECORDS) and copy.used(1) in plain.err
    assert "1 unverified record" in plain.err
    table = run("dump", copy.path, "--damaged", "--format", "csv")
    cells = list(csv.DictReader(io.StringIO(table.out)))
    run("dump", copy.path, "--damaged", "--format", "parquet", "--out", tmp_path / "dump")
    columns = pq.read_table(tmp_path / "dump")
    for marks in (
        {row["lsn"]: row["verified"] for row in rows},
        {int(row["lsn"]): row["verified"] == "true" for row in cells},
        dict(zip(columns["lsn"].to_pylist(), columns["verified"].to_pylist(), strict=True)),
    ):
        assert len(marks) == RECORDS and [at for at, verified in marks.items() if not verified] == [lsn]
    part = run("dump", copy.path, "--damaged", "--from", lsn, "--to", lsn)
    assert (part.code, json.loads(part.out)["lsn"]) == (1, lsn)
    assert run("dump", originals / "closed", "--damaged").code == 0
    assert run("dump", copy.path, "--damaged", "--from", 3, "--to", 2).code == 2
