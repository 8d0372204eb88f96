"""RunRecorder and ThreadRecorder: what goes in comes out, from many threads, also while they still record."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walkit.measure import LatencyHistogram, MachineFacts, Run, RunRecorder, ThreadRecorder


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def __call__(self) -> int:
        """Return what it was set to, ns."""
        return self.now


def recorder_at(clock: Clock, **options: Any) -> RunRecorder:
    return RunRecorder("test", durability="sync", machine=MachineFacts(), clock=clock, **options)


measurements = st.lists(
    st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 3)), max_size=30
)


@settings(deadline=None)
@given(one_by_one=measurements, at_once=measurements, after=measurements)
def test_samples_are_what_was_recorded(
    one_by_one: list[tuple[int, int, int]],
    at_once: list[tuple[int, int, int]],
    after: list[tuple[int, int, int]],
) -> None:
    """Single calls, a whole array, and single calls again: start, end and records come back in order."""
    recorder = ThreadRecorder()
    for measurement in one_by_one:
        recorder.record(*measurement)
    if at_once:
        recorder.record_many(*(list(column) for column in zip(*at_once, strict=True)))
    for measurement in after:
        recorder.record(*measurement)
    everything = one_by_one + at_once + after
    assert list(zip(*(part.tolist() for part in recorder.samples()), strict=True)) == everything
    assert recorder.records == sum(records for _, _, records in everything)


@given(times=st.lists(st.integers(0, 2**40), max_size=20), seen=st.integers(0, 20))
def test_ticks_are_calls_that_follow_each_other(times: list[int], seen: int) -> None:
    """Take readings of the clock: each call lasts from one to the next, from any measurement on."""
    recorder = ThreadRecorder()
    for now in times:
        recorder.tick(now)
    calls = list(zip(times, times[1:], [1] * len(times), strict=False))
    assert list(zip(*(part.tolist() for part in recorder.samples(seen)), strict=True)) == calls[seen:]
    assert recorder.records == len(calls)


def test_threads_are_folded_into_one_run() -> None:
    """Four threads with known latencies: count, both histograms and the timeline are their sum."""
    clock = Clock(1_000)
    recorder = recorder_at(clock)

    def work(index: int) -> None:
        total, queue = recorder.thread(), recorder.thread("queue")
        for i in range(1000):
            done = 1_000 + (i + 1) * 1_000_000
            total.record(done - (index + 1) * 1_000, done)
            queue.record(done - 500, done, 2)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.now = 1_000 + 1_000_000_000
    assert recorder.records_so_far() == 4000
    run = recorder.finish(bucket_s=0.25)
    assert (run.records, run.duration_s, run.records_per_s) == (4000, 1.0, 4000.0)
    latencies = np.repeat([1_000, 2_000, 3_000, 4_000], 1000)
    assert run.latency == {
        "total": LatencyHistogram.from_samples(latencies),
        "queue": LatencyHistogram.from_samples(np.full(4000, 500), counts=np.full(4000, 2)),
    }
    # Completions are at 1 ms, 2 ms, ...: the one on an edge belongs to the bucket that begins there.
    assert run.timeline.records.tolist() == [996, 1000, 1000, 1004]
    assert run.timeline.max_us.tolist() == [4.0] * 4


def test_warm_up_and_later_records_are_left_out() -> None:
    """start() moves time 0: completions before it and after the end are left out; events keep their time."""
    clock = Clock(0)
    recorder = recorder_at(clock)
    thread = recorder.thread()
    thread.record(0, 50)
    recorder.event("walkit.segment.prepare", {"segment": 1})
    clock.now = 100
    recorder.start()
    thread.record(90, 110, 5)
    clock.now = 150
    recorder.event("checkpoint", lsn=7)
    thread.record(100, 250)
    run = recorder.finish(end_ns=200, interrupted=True)
    assert run.records == 5
    assert run.interrupted
    assert run.latency["total"].max == 20
    assert [(round(e.time_s * 1e9), e.name, e.attributes) for e in run.events] == [
        (-100, "walkit.segment.prepare", {"segment": 1}),
        (50, "checkpoint", {"lsn": 7}),
    ]


def test_a_run_may_be_made_while_threads_record() -> None:
    """Snapshots beside a thread that records: each is a whole prefix, and the thread is not disturbed."""
    recorder = RunRecorder("live", durability="sync", machine=MachineFacts())
    started, failures = threading.Event(), []

    def work() -> None:
        record, now = recorder.thread().record, recorder.start_ns
        try:
            for index in range(100_000):
                record(now, now + 1_000, 1 + index % 3)
                started.set()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(10)
    runs: list[Run] = []
    while thread.is_alive():
        runs.append(recorder.finish(bucket_s=1.0))
    thread.join()
    runs.append(recorder.finish())
    assert not failures
    counts = [run.records for run in runs]
    assert len(counts) > 1
    assert counts == sorted(counts)
    assert counts[0] > 0
    assert counts[-1] == recorder.records_so_far() == 199_999
    for run in runs:
        assert run.latency["total"].count == run.records == run.timeline.records.sum()


def test_a_run_without_records_is_still_a_run() -> None:
    """Interrupted before the first acknowledgement: empty histogram, no rate of nan in the summary's JSON."""
    run = recorder_at(Clock(5)).finish(interrupted=True)
    assert run.records == 0
    assert run.latency["total"].count == 0
    assert run.summary()["p99_us"] is None
    assert run.summary()["records_per_s"] is None


@pytest.mark.parametrize("records", [0, -1])
def test_batches_of_nothing_are_refused(records: int) -> None:
    """A measurement of no records is refused at once, alone and among others, and leaves nothing behind."""
    recorder = ThreadRecorder()
    with pytest.raises(ValueError, match="at least one"):
        recorder.record(0, 1, records)
    with pytest.raises(ValueError, match="at least one"):
        recorder.record_many([0, 0], [1, 1], [1, records])
    assert recorder.records == 0
    assert len(recorder.samples()[0]) == 0


def test_a_run_of_many_threads_folds_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record with 50 threads of one name and count the reads of their samples: one each, not one for each of all."""
    recorder, reads = recorder_at(Clock()), list[int]()
    samples = ThreadRecorder.samples

    def counted(each: ThreadRecorder, first: int = 0) -> Any:
        reads.append(first)
        return samples(each, first)

    monkeypatch.setattr(ThreadRecorder, "samples", counted)
    for _ in range(50):
        recorder.thread().record(0, 0)
    assert recorder.finish(end_ns=1).records == len(reads) == 50
