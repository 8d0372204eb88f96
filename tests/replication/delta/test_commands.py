"""`walkit follow --delta` and `walkit bench delta`: what they say, and that a short run measures both paths."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import walkit
from tests.replication.blocking_callers import until
from tests.replication.test_kill import Process
from walkit.bench.delta import bench_delta
from walkit.errors import OptionsError
from walkit.models.remote_storage import REMOTE
from walkit.replication import Primary
from walkit.state.snapshot import snapshot_lsns
from walkit.storage import FileStorage


def test_follow_keeps_the_state_of_a_log_by_delta_and_ends_on_a_signal(tmp_path: Path) -> None:
    """Follow a log with the command and end it: it reports its work, and its checkpoint is at the log's end."""
    log, own = tmp_path / "log", tmp_path / "own"
    with walkit.open(log) as opened, Primary(opened) as primary:
        opened.append(b"1", key=b"k")
        child = Process("-m", "walkit", "follow", primary.address, str(own), "--delta", str(log))
        assert child.first == f"following {log} by polls of {primary.address}, checkpoints in {own}\n"
        until(lambda: bool(primary.status().delta_readers), "a session")
        lsn = opened.append(b"2", key=b"k").last_lsn
        until(lambda: any(r.applied_lsn >= lsn for r in primary.status().delta_readers), "the record")
        assert child.end(signal.SIGINT) == 0
    assert snapshot_lsns(FileStorage(str(own))) == [lsn]


@pytest.mark.slow
def test_a_short_run_measures_both_paths(tmp_path: Path) -> None:
    """Measure for a moment: the log alone has no hits, a large buffer has them, and remote reading lags by its wait."""
    told: list[str] = []
    report = bench_delta(
        mb_per_s=2, seconds=0.15, rounds=2, buffers=[1 << 20], path=tmp_path, progress=told.append
    )
    assert len(told) == 16 and len(report.rows) == 10
    for load in ("light", "steady"):
        for storage in ("folder", REMOTE.name):
            alone, delta = report.row(load, storage, 0), report.row(load, storage, 1 << 20)
            assert alone.hit_rate == 0 < alone.loads
            assert alone.answer_p50_ms is None and delta.lag_p50_ms >= 0 == alone.answers < delta.answers
            for row in (alone, delta):
                assert row.rounds == 2 and row.lags > 0
                assert row.lag_p50_low_ms <= row.lag_p50_ms <= row.lag_p50_high_ms
    assert report.row("light", REMOTE.name, 0).lag_p50_ms > 10  # the first byte takes no less
    assert "the log alone" in report.text() and "buffer 1,048,576 B" in report._repr_html_()
    assert json.loads(json.dumps(report.to_dict()))["bench"] == "delta"
    assert (
        "least to most" in report.text()
        and f"light, {REMOTE.name}, buffer 1,048,576 B: by delta" in report.text()
    )
    with pytest.raises(KeyError):
        report.row("light", "nowhere", 0)
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_cannot_be_measured_with_are_refused(tmp_path: Path) -> None:
    """No rate, records beyond a frame, a buffer of nothing: OptionsError before a folder is made."""
    for arguments in (
        {"mb_per_s": 0.0},
        {"record_bytes": 1 << 20},
        {"buffers": [0]},
        {"seconds": 0.0},
        {"rounds": 0},
    ):
        with pytest.raises(OptionsError):
            bench_delta(path=tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []
