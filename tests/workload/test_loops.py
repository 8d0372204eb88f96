"""Open loops, tasks, reads and preloading; and where the time of a call went."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import walkit
from tests.support.threads import GUARD_S
from tests.workload.streams import SMALL, seeded_stream, state_of
from walkit._internal.threads import EndingThread
from walkit.errors import CommitFailedError, LogPoisonedError, OptionsError, StorageError
from walkit.measure import Run, compare, kept_up, knee, load, offered_per_s
from walkit.measure.frame_timer import FrameTimes, split_latency
from walkit.models import CrashingStorage, FaultyStorage
from walkit.workload import KeyChoice, Mix, OpenLoop, Workload, drive, sweep, ycsb
from walkit.workload.writers import Writers

PARTS = ("queue", "write", "callback")


def writer_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("writer-")]


def percentile_ns(run: Run, name: str, p: float = 50) -> float:
    return run.latency[name].percentile(p)


def test_the_parts_of_a_call_are_joined_by_lsn() -> None:
    """Two frames and five calls, one of an unobserved frame: queue, write and callback add up to each call's time."""
    frames = FrameTimes(*np.array([[10, 12], [2, 3], [128, 192], [100, 300], [150, 380]], np.int64))
    began, ended = np.array([40, 90, 110, 250, 5]), np.array([160, 155, 400, 385, 9])
    last_lsn, records = np.array([10, 11, 14, 13, 9]), np.array([1, 1, 2, 1, 1])
    found = split_latency(frames, began, ended, last_lsn, records)
    assert {name: h.count for name, h in found.items()} == dict.fromkeys(PARTS, 5)
    assert (found["queue"].min, found["queue"].max) == (10, 190)
    assert (found["write"].min, found["write"].max) == (50, 80)
    assert (found["callback"].min, found["callback"].max) == (5, 20)
    nothing = FrameTimes(*np.zeros((5, 0), np.int64))
    assert all(not h.count for h in split_latency(nothing, began, ended, last_lsn, records).values())


@pytest.mark.parametrize("target", ["log", "store"])
def test_a_run_says_where_the_time_went(tmp_path: Path, target: str) -> None:
    """Drive transactions and single records: each call has its three parts, frames have sizes, the place a baseline."""
    stream = seeded_stream(1_000)
    opened: Any = walkit.open if target == "log" else walkit.Store.open
    with opened(tmp_path / "it", options=SMALL) as it:
        run = drive(it, Workload(source=stream, writers=5), progress=False)
        log = it if target == "log" else it.log
        assert not log.parts.driver.writer.write_observers
        it.log.append(b"afterwards") if target == "store" else it.append(b"afterwards")
    for name in PARTS:
        assert run.latency[name].count == run.records == 1_000
    means = sum(run.latency[name].mean for name in PARTS)
    assert means == pytest.approx(run.latency["total"].mean, rel=0.01)
    assert run.frames is not None and run.frames.records == 1_000
    assert run.frames.records_p50 is not None and run.frames.records_max is not None
    assert 1 <= run.frames.records_p50 <= run.frames.records_max <= 20
    assert run.baseline is not None
    assert run.baseline.block_bytes == int(run.frames.bytes_mean)
    run.save(tmp_path / "run")
    assert load(tmp_path / "run") == run


def test_syncs_made_apart_have_their_own_histogram() -> None:
    """With durability "interval" the frames' writes are not synced: the syncs of the timer stand under "sync"."""
    options = walkit.LogOptions(durability="interval", interval_ms=1)
    with walkit.open("memory://apart", "x", options=options) as log:
        run = drive(
            log,
            Workload(value_bytes=10, operations=1500, writers=1, arrival=OpenLoop(rate=3000)),
            progress=False,
        )
    assert run.syncs and run.latency["sync"].count > 0
    assert "sync" not in run_of_memory().latency


def run_of_memory(**changes: Any) -> Run:
    given: dict[str, Any] = {"operations": 200, "writers": 2, "value_bytes": 10, **changes}
    with walkit.open(storage=CrashingStorage()) as log:
        return drive(log, Workload(**given), progress=False)


def test_an_open_loop_counts_from_the_intended_start() -> None:
    """Hang one write of a fixed-rate run of one writer: calls due meanwhile have waited, though none was started."""
    storage = FaultyStorage(CrashingStorage())
    with walkit.open(storage=storage, options=SMALL) as log:
        log.append(b"first")
        hang = storage.hang("synced_write", nth=20)

        def let_go() -> None:
            assert hang.entered.wait(30)
            threading.Event().wait(0.2)
            hang.release()

        helper = threading.Thread(target=let_go)
        helper.start()
        loop = OpenLoop(rate=1000, process="fixed")
        run = drive(
            log, Workload(value_bytes=10, operations=100, writers=1, arrival=loop, seed=3), progress=False
        )
        helper.join()
    assert run.arrival == "open"
    assert run.records == 100
    # In a closed loop one call of 100 would have seen the stall.
    assert run.latency["total"].percentile(50) > 50e6
    assert percentile_ns(run, "queue") > 50e6
    assert (run.labels["offered_per_s"], run.labels["process"], run.seed) == (1000, "fixed", 3)


def test_an_open_loop_keeps_its_rate_and_can_be_stopped() -> None:
    """A run of 300 calls at 3,000 a second takes the time of its last arrival; an error ends a slow one at once."""
    run = run_of_memory(operations=300, writers=4, arrival=OpenLoop(rate=3000, process="fixed"))
    assert run.duration_s >= 0.1
    assert run.records == 300
    storage = FaultyStorage(CrashingStorage())
    with walkit.open(storage=storage, events=lambda *_: None) as log:
        log.append(b"first")
        storage.fail("synced_write")
        slow = Workload(value_bytes=1, operations=50, writers=3, arrival=OpenLoop(rate=20))
        with pytest.raises((CommitFailedError, LogPoisonedError)):
            drive(log, slow, progress=False)
    assert writer_threads() == []


def test_key_order_is_kept_in_an_open_loop() -> None:
    """Drive a stream whose keys have one order in an open loop: the Store ends in the state of the stream."""
    stream = seeded_stream(600)
    with walkit.Store.open("memory://open-order", mode="x") as store:
        loop = OpenLoop(rate=1e6)
        drive(store, Workload(source=stream, writers=6, arrival=loop), progress=False)
        assert dict(store.items()) == state_of(stream)


@pytest.mark.parametrize("arrival", ["closed", OpenLoop(rate=20_000)])
@pytest.mark.parametrize("target", ["log", "store"])
def test_tasks_drive_as_threads_do(target: str, arrival: Any) -> None:
    """Puts (and, into a Store, reads) by 20 tasks: every operation once, the same operations as by threads."""
    mix = Mix(put=1.0) if target == "log" else Mix(put=0.7, read=0.3)
    workload = Workload(operations=500, tasks=20, keys="zipfian", mix=mix, arrival=arrival, seed=2)
    stream = workload.stream()
    opened: Any = walkit.open if target == "log" else walkit.Store.open
    with opened(storage=CrashingStorage()) as it:
        run = drive(it, workload, progress=False)
        log = it if target == "log" else it.log
        written = sorted((r.key, r.value) for r in log.read())
    puts = [(k, v) for k, v in zip(stream.keys, stream.values, strict=True) if v is not None]
    assert written == sorted(puts)
    assert run.records == len(puts) == run.operations["put"]
    assert run.operations.get("read", 0) == len(stream) - len(puts)
    assert run.labels == {"tasks": 20, "target": type(it).__name__} | (
        {} if arrival == "closed" else {"offered_per_s": 20_000, "process": "poisson"}
    )
    assert run.latency["queue"].count == len(puts)


def test_what_tasks_cannot_do_is_refused() -> None:
    """Deletes, transactions and scans by tasks, and reads of a log: refused, nothing written."""
    with walkit.open(storage=CrashingStorage()) as log:
        for mix in (Mix(delete=1.0), Mix(transaction=1.0), Mix(scan=1.0)):
            with pytest.raises(OptionsError):
                drive(log, Workload(operations=10, tasks=2, mix=mix), progress=False)
        with pytest.raises(OptionsError, match="Store"):
            drive(log, ycsb("B", key_count=10, operations=10), progress=False)
        assert log.appended_lsn == 0


def test_an_error_ends_the_tasks() -> None:
    """A failing sync under 10 tasks: what the log raised is raised, with the Run so far; no thread is left."""
    storage = FaultyStorage(CrashingStorage())
    storage.fail("synced_write", nth=30)
    with walkit.open(storage=storage, events=lambda *_: None) as log:
        with pytest.raises((CommitFailedError, LogPoisonedError)) as failed:
            drive(log, Workload(operations=5000, tasks=10, value_bytes=5), progress=False)
        assert failed.value.run.records < 5000  # type: ignore[attr-defined]
    assert writer_threads() == []


@pytest.mark.parametrize("letter", ["A", "C", "D", "E", "F"])
def test_ycsb_runs_on_a_store(letter: str) -> None:
    """Drive a preset: every key is there before, reads and writes are counted apart, and the Run has its summary."""
    workload = ycsb(letter, key_count=200, operations=600, writers=3, seed=1)
    stream = workload.stream()
    with walkit.Store.open(storage=CrashingStorage()) as store:
        run = drive(store, workload, progress=False)
        assert set(store) == set(ycsb(letter, key_count=200).preload_stream().keys) | {  # type: ignore[union-attr]
            k for k, v in zip(stream.keys, stream.values, strict=True) if v is not None
        }
    reads = run.operations["read"]
    assert run.latency["read"].count == reads
    assert run.records == len(stream) - reads == run.operations["put"]
    assert run.name == f"YCSB {letter}"
    (row,) = compare([run]).to_dict("records")
    assert row["name"] == f"YCSB {letter}"


def test_a_preloaded_log_has_every_key_before_the_run() -> None:
    """Preload a log: one put of each key, outside of the Run, then the operations."""
    with walkit.open(storage=CrashingStorage()) as log:
        keys = KeyChoice(kind="sequential", count=50)
        run = drive(
            log, Workload(operations=20, writers=2, keys=keys, preload=True, value_bytes=3), progress=False
        )
        assert (log.acked_lsn, run.records) == (70, 20)
        assert len({r.key for r in log.read(1, 50)}) == 50


def test_a_sweep_goes_up_to_the_knee(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer a call in a second, then millions a second: the sweep ends after the first rate that is not kept up."""
    # A busy machine may be seconds late with the one call; the millions take far longer than four times their time.
    monkeypatch.setattr(importlib.import_module("walkit.measure.saturation"), "KEPT_UP", 0.25)
    workload = Workload(value_bytes=10, writers=2, arrival=OpenLoop(rate=1, process="fixed"))
    runs = sweep(
        lambda: walkit.open(storage=CrashingStorage(), options=SMALL),
        workload,
        [1, 5e6, 6e6],
        seconds=4e-4,
        progress=False,
    )
    assert [offered_per_s(run) for run in runs] == [1, 5e6]
    assert [kept_up(run) for run in runs] == [True, False]
    assert [run.records for run in runs] == [1, 2000]
    assert (knee(runs), runs[0].labels["process"]) == (1, "fixed")
    for rates in ([], [2, 1], [1, 1]):
        with pytest.raises(OptionsError):
            sweep(
                lambda: walkit.open(storage=CrashingStorage(), options=SMALL), workload, rates, progress=False
            )
    with pytest.raises(OptionsError):
        sweep(
            lambda: walkit.open(storage=CrashingStorage(), options=SMALL),
            workload,
            [1],
            seconds=0,
            progress=False,
        )


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageError("full")])
def test_a_run_outlives_its_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Interrupt the baseline after a run, or let it find a full disk, which is said: the Run is there, and whole."""

    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("walkit.workload.drive"), "raw_baseline", fails)
    says = pytest.warns(RuntimeWarning, match="no raw baseline: full")
    with walkit.open(tmp_path / "log", options=SMALL) as log, says if "full" in str(error) else nullcontext():
        run = drive(log, Workload(operations=50, writers=2, value_bytes=5), progress=False)
    assert (run.records, run.baseline) == (50, None)
    assert run.interrupted is isinstance(error, KeyboardInterrupt)


def test_an_interrupted_wait_takes_no_running_writer_for_ended() -> None:
    """SIGINT while the main thread waits for a writer: the next wait still waits for the writer, as it is running."""
    entered, go_on = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        go_on.wait(GUARD_S)

    thread = EndingThread(target=work, daemon=True)
    writers = object.__new__(Writers)
    writers._threads = [thread]
    thread.start()
    assert entered.wait(GUARD_S)
    for _ in range(5):
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            writers.wait(GUARD_S)
        assert not writers.wait(0.001)
    go_on.set()
    assert writers.wait(GUARD_S)
