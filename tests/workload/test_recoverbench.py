"""`walkit bench recovery`: writers that are really killed, and the records that each way of opening recovers."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from walkit.bench.recovery import _Walkit, bench_recovery, drop_cached, read_plainly
from walkit.bench.recovery_load import LAST_KEY, RecoveryLoad, fill_walkit
from walkit.bench.recovery_report import RecoveryBenchReport
from walkit.errors import OptionsError
from walkit.measure import MachineFacts

LOAD = RecoveryLoad(operations=120, keys=30, record_bytes=20, frame_records=40)
WAYS = ["verify", "log", "clean", "store"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> RecoveryBenchReport:
    """One run with peers and a checkpoint; its folder is empty afterwards."""
    folder = tmp_path_factory.mktemp("recovery")
    found = bench_recovery(
        operations=[200],
        record_bytes=20,
        frame_records=[50],
        checkpoint_age=[1.0, 0.25],
        cache=["cold"],
        peers=True,
        path=folder,
        progress=False,
    )
    assert list(folder.iterdir()) == []
    return found


def test_every_way_is_opened_after_a_kill(report: RecoveryBenchReport) -> None:
    """Log, Store and three peers of killed writers: all is there, also after a checkpoint, with less replayed."""
    assert [row.way for row in report.rows] == [*WAYS, "leveldb", "rocksdb", "sqlite", *WAYS]
    assert report.ok and all(row.complete and row.open_ms > 0 for row in report.rows)
    rows = {(row.way, row.checkpoint_age): row for row in report.rows}
    assert rows["verify", 1.0].records == rows["log", 1.0].records == rows["store", 1.0].records == 200
    assert rows["store", 0.25].records == 50
    assert rows["verify", 1.0].frames in (4, 5)  # with a mark, if the writer was idle for long enough
    assert rows["clean", 1.0].frames == 0
    assert {"scan", "apply", "replay", "ready"} <= set(rows["store", 1.0].phases)
    assert set(rows["log", 1.0].all_ms) == {rows["log", 1.0].open_ms}


def test_peers_are_compared_with_a_store_of_the_same_operations(report: RecoveryBenchReport) -> None:
    """A ratio for each peer, from rows without a checkpoint alone; the same in text, JSON and HTML."""
    rows = {row.way: row for row in report.rows if row.checkpoint_age == 1}
    expected = {
        p: rows["store"].records_per_s / rows[p].records_per_s for p in ("leveldb", "rocksdb", "sqlite")
    }
    assert {peer: ratio for _, peer, ratio in report.ratios()} == expected
    plain = json.loads(json.dumps(report.to_dict()))
    assert [row["way"] for row in plain["rows"]] == [row.way for row in report.rows]
    assert {row["peer"] for row in plain["ratios"]} == set(expected)
    assert plain["ok"] is True and plain["bench"] == "recovery"
    for way in {row.way for row in report.rows}:
        assert f"\n{way} " in report.text() and f">{way}</td>" in report._repr_html_()
    frame = report.to_pandas()
    assert len(frame) == len(report.rows) and "replay_ms" in frame.columns


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    """A log of fewer operations than were to be there: no row is complete, and the report is not ok."""
    image = tmp_path / "image"
    fill_walkit(str(image), LOAD)()
    rows = _Walkit(replace(LOAD, operations=121), "warm").measure(image, str(tmp_path))
    assert [row.complete for row in rows] == [False] * 4
    found = RecoveryBenchReport(
        keys=(30,), record_bytes=20, machine=MachineFacts.here(None), rows=tuple(rows)
    )
    assert not found.ok and "MISSING" in found.text()


def test_the_operations_repeat() -> None:
    """The same batches for the same seed, whole, with the last key at the end; others for another seed."""
    batches = list(LOAD.batches())
    assert batches == list(LOAD.batches()) != list(replace(LOAD, seed=1).batches())
    assert [len(keys) for keys, _ in batches] == [40, 40, 40]
    assert (batches[-1][0][-1], batches[-1][1][-1]) == (LAST_KEY, LOAD.last_value)
    assert {len(value) for _, values in batches for value in values} == {20}


def test_files_are_read_whole_and_dropped(tmp_path: Path) -> None:
    """Reading plainly and dropping pages leaves the bytes of files as they are."""
    file = tmp_path / "file"
    file.write_bytes(os.urandom(3 << 20))
    before = file.read_bytes()
    assert read_plainly({file: 3 << 20}) > 0
    drop_cached({file: 3 << 20})
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("operations", [0]),
        ("operations", []),
        ("keys", 0.5),
        ("frame_records", [1, -1]),
        ("checkpoint_age", [0.0]),
        ("checkpoint_age", [1.5]),
        ("cache", ["lukewarm"]),
        ("record_bytes", 0),
        ("runs", 0),
    ],
)
def test_arguments_that_cannot_be_are_refused(option: str, value: Any) -> None:
    """Each is an OptionsError that names the option, before anything is written."""
    given: dict[str, Any] = {option: value}
    with pytest.raises(OptionsError) as found:
        bench_recovery(**given, progress=False)
    assert found.value.option == option
