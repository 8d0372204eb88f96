"""The Run of a steady load from its lines, without a child: sums, bounds, and lines that make no Run."""

from __future__ import annotations

import pytest

from walkit.measure import LatencyHistogram, RawRate
from walkit.metrics import LogStatistics
from walkit.workload import ContinuousLoad, steady_run
from walkit.workload.steady import SteadyLine
from walkit.workload.steady_run import EVENTS_MAX, SteadyRecord

RAW = RawRate(
    writes_per_s=500.0, lowest=400.0, highest=600.0, rounds=5, block_bytes=512, threads=1, mode="O_DSYNC"
)


def line(number: int, **more: object) -> SteadyLine:
    """The line after so many quarters of a second, with ten records of 100 µs in each."""
    told = LogStatistics(
        records_acked=10 * number, frames_written=5 * number, frame_bytes=640 * number, syncs=5 * number
    )
    return SteadyLine(
        at_ns=10**12 + 250_000_000 * number,
        statistics=told,
        latency=LatencyHistogram.from_samples([100_000] * 10) if number else None,
        events=((10**12 + 250_000_000 * number, "walkit.segment.rotate", {}),),
        raw=RAW if number == 0 else None,
        **more,  # type: ignore[arg-type]
    )


def test_a_long_load_is_a_run_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as many lines as a timeline may have intervals: all records, bounded series, the raw rate."""
    most = 100
    monkeypatch.setattr(steady_run, "INTERVALS_MAX", most)
    record = SteadyRecord("nowhere", ContinuousLoad(writers=2, seed=5))
    count = 3 * most
    for number in range(count + 1):
        record.take(line(number))
    run = record.run()
    assert run is not None
    assert run.records == run.latency["total"].count == run.timeline.records.sum() == 10 * count
    assert run.duration_s == run.timeline.width_s.sum() == count / 4
    assert most / 2 <= len(run.timeline) <= most
    assert run.timeline.p99_us == pytest.approx(100, rel=0.04)
    assert len(run.events) == EVENTS_MAX and run.events[-1].time_s == count / 4
    assert (run.seed, run.syncs, run.labels["raw_writes_per_s"]) == (5, 5 * count, 500.0)
    assert run.frames is not None and run.frames.records_mean == 2
    assert run.walkit_version is not None


def test_lines_without_records_make_no_run() -> None:
    """No line, one line, and two without a record between them: None. Then a failure is in the Run's words."""
    record = SteadyRecord("nowhere", ContinuousLoad(device="gp3"))
    assert record.run() is None
    record.take(line(0))
    assert record.run() is None
    record.take(line(0))
    assert record.run() is None
    record.take(line(1))
    run = record.run(failure="disk full")
    assert run is not None and run.failure == "disk full" and run.labels["modelled"] is True
    assert run.machine.file_system is None
