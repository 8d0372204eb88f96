"""`walkit bench replication`: a short run measures what it says."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import walkit
from tests.support.interrupts import interrupt_in
from tests.support.threads import GUARD_S, wait_until
from walkit.bench.replication import _append, bench_replication
from walkit.bench.sampling import sampled_lsns
from walkit.errors import OptionsError
from walkit.models import CrashingStorage


def test_a_short_run_measures_both_sides_and_the_lag(tmp_path: Path) -> None:
    """Two writers for a fifth of a second: rates, ratio and lag fit each other, nothing is left behind."""
    told: list[str] = []
    report = bench_replication(writers=2, record_bytes=64, seconds=0.2, path=tmp_path, progress=told.append)
    assert report.ratio == pytest.approx(report.with_replica_per_s / report.alone_per_s)
    assert report.alone_slices_per_s[0] <= report.alone_per_s <= report.alone_slices_per_s[1]
    assert min(report.replica_per_s, report.catch_up_per_s, report.drain_ms) > 0
    assert 0 <= report.lag_p50_ms <= report.lag_p99_ms <= report.lag_max_ms
    assert report.catch_up_records > 1
    assert report.catch_up_ratio == pytest.approx(report.catch_up_per_s / report.read_per_s)
    assert json.loads(json.dumps(report.to_dict()))["writers"] == 2
    for said in ("append with a replica", "with a replica / alone", "catching up / reading"):
        assert said in report.text()
    assert "records/s" in report._repr_html_()
    assert len(told) == 2
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_cannot_be_measured_with_are_refused(tmp_path: Path) -> None:
    """No writers, huge records, no time: OptionsError before a folder is made."""
    for arguments in ({"writers": 0}, {"record_bytes": 2 << 20}, {"seconds": 0.0}):
        with pytest.raises(OptionsError):
            bench_replication(path=tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_measurement_leaves_no_thread_at_work() -> None:
    """Interrupt the appending threads, and the work beside a sampler: KeyboardInterrupt, and each thread ends."""
    with walkit.open(storage=CrashingStorage()) as log:
        shooter = interrupt_in("_append", "wait")
        with pytest.raises(KeyboardInterrupt):
            _append(log, 2, 10, GUARD_S)
        shooter.result()
        wait_until(lambda: not any(thread.name.startswith("bench-") for thread in threading.enumerate()))
        with pytest.raises(KeyboardInterrupt), sampled_lsns(lambda: (log.durable_lsn, 0), 0.005):
            raise KeyboardInterrupt
        assert not any(thread.name.startswith("bench-") for thread in threading.enumerate())
