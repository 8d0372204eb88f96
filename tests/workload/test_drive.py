"""The closed-loop driver: what it drives arrives once and in order, and stopping it leaves everything in order."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import walkit
from tests.support.threads import wait_until
from tests.workload.streams import (
    SMALL,
    changes_of,
    prefixes,
    records_of,
    seeded_stream,
    state_of,
)
from walkit.errors import CommitFailedError, LogClosedError, LogPoisonedError, OptionsError
from walkit.events import EventSink
from walkit.measure import load
from walkit.models import CrashingStorage, FaultyStorage
from walkit.record import Kind
from walkit.workload import Workload, drive

ROOT = Path(__file__).resolve().parents[2]


def writer_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("writer-")]


@pytest.mark.parametrize("writers", [1, 3, 16])
def test_a_store_comes_to_the_state_of_the_stream(tmp_path: Path, writers: int) -> None:
    """However many writers share the stream, the Store ends in the state that the stream alone says, also reopened."""
    stream = seeded_stream(2_000)
    with walkit.Store.open(tmp_path / "s", options=SMALL) as store:
        run = drive(store, Workload(source=stream, writers=writers), progress=False)
        assert dict(store.items()) == state_of(stream)
        assert run.records == store.log.acked_lsn == len(stream)
    with walkit.Store.open(tmp_path / "s", options=SMALL) as store:
        assert dict(store.items()) == state_of(stream)


def test_a_log_gets_each_operation_once_in_the_order_of_its_key(tmp_path: Path) -> None:
    """The records of a log are the operations: each part in its order, the changes of each key, groups undivided."""
    stream = seeded_stream(2_000)
    with walkit.open(tmp_path / "log", options=SMALL) as log:
        drive(log, Workload(source=stream, writers=7), progress=False)
        records = records_of(log)
    parts = stream.route(7)
    assert prefixes(parts, records) == [len(part) for part in parts]
    found: dict[bytes, list[Any]] = {}
    for r in records:
        assert r.key is not None
        found.setdefault(r.key, []).append((int(r.kind), r.value))
    assert found == changes_of(stream)
    lsns: dict[int, list[int]] = {}
    for r in records:
        if r.value is not None:
            number = int(r.value.split()[0])
            lsns.setdefault(int(stream.groups[number]), []).append(r.lsn - number)
    # Within a group, LSNs are as far from each other as operation numbers are: nothing stands between.
    assert all(len(set(apart)) == 1 for apart in lsns.values())


def test_the_run_counts_what_was_driven(tmp_path: Path) -> None:
    """Kinds, bytes, frames, syncs and labels of the Run are those of the stream and of the log's own metrics."""
    stream = seeded_stream(1_500)
    deletes = int((stream.kinds == Kind.DELETE).sum())
    with walkit.open(tmp_path / "log", options=SMALL) as log:
        log.append(b"before the run")
        before = log.statistics()
        run = drive(log, Workload(source=stream, writers=4), progress=False, baseline=False)
        after = log.statistics()
    assert run.operations == {"put": len(stream) - deletes, "delete": deletes}
    assert run.latency["total"].count == run.records == int(run.timeline.records.sum()) == len(stream)
    assert run.bytes_user == sum(map(len, stream.keys)) + sum(len(v) for v in stream.values if v)
    assert run.frames is not None
    assert run.frames.records == len(stream)
    assert run.frames.frames == after.frames_written - before.frames_written - after.marker_frames
    assert run.bytes_written == after.frame_bytes - before.frame_bytes
    assert run.syncs == after.syncs - before.syncs
    assert (run.name, run.labels, run.interrupted) == (
        "operations",
        {"writers": 4, "target": "WriteAheadLog"},
        False,
    )
    assert run.machine.file_system is not None
    run.save(tmp_path / "run")
    assert load(tmp_path / "run") == run


def test_a_workload_takes_whole_groups_from_the_front(tmp_path: Path) -> None:
    """A limit inside of a group takes the group whole; a limit over the end takes all."""
    stream = seeded_stream(100)
    for limit in (1, 17, 50, 99, 100, 1_000):
        taken = Workload(source=stream, operations=limit).stream()
        assert len(taken) >= min(limit, 100)
        assert taken.groups.tolist() == [g for g in stream.groups if g <= stream.groups[min(limit, 100) - 1]]
        assert taken.digest() == stream.digest(len(taken))


def test_an_empty_stream_is_driven_at_once() -> None:
    """No operations: a Run without records, and no error."""
    empty = seeded_stream(3).select(np.zeros(0, dtype=np.int64))
    with walkit.open("memory://empty-drive", "x") as log:
        assert drive(log, Workload(source=empty, writers=2), progress=False).records == 0


@pytest.mark.parametrize("option", [{"writers": 0}, {"operations": 0}, {"writers": 1.5}, {"operations": -1}])
def test_a_workload_that_cannot_be_is_refused(option: dict[str, Any]) -> None:
    """Counts below one, and such that are not whole, are an OptionsError that names the option."""
    with pytest.raises(OptionsError) as found:
        Workload(**option)
    assert found.value.option == next(iter(option))


def test_the_run_holds_the_events_of_its_time(tmp_path: Path) -> None:
    """Rotations of the log are in the Run, on its clock and in order; the log's own callback still gets them too."""
    told: list[str] = []
    with walkit.open(tmp_path / "log", options=SMALL, events=lambda name, _: told.append(name)) as log:
        run = drive(log, Workload(source=seeded_stream(4_000), writers=4), progress=False)
        rotations = log.statistics().rotations
    assert rotations > 3
    names = [event.name for event in run.events]
    assert names.count("walkit.segment.rotate") == rotations
    # The first is the opening, which is before the run; maintenance may go on after its end.
    assert told[1 : 1 + len(names)] == names
    assert told[-1] == "walkit.log.close"
    times = [event.time_s for event in run.events]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= run.duration_s


def test_listeners_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    """A listener gets events beside the callback until it is removed; its errors and changes harm no other."""
    seen: dict[str, list[dict[str, Any]]] = {"callback": [], "one": [], "two": []}

    def keep(who: str) -> Any:
        def told(name: str, attributes: dict[str, Any]) -> None:
            seen[who].append(dict(attributes))
            attributes.clear()
            if who == "one":
                raise RuntimeError(name)

        return told

    sink, one, two = EventSink(keep("callback")), keep("one"), keep("two")
    sink.add_listener(one)
    sink.add_listener(two)
    sink.emit("walkit.segment.trim", segments=1)
    sink.remove_listener(one)
    sink.remove_listener(one)
    sink.emit("walkit.segment.trim", segments=2)
    assert seen == {
        "callback": [{"segments": 1}, {"segments": 2}],
        "one": [{"segments": 1}],
        "two": [{"segments": 1}, {"segments": 2}],
    }
    assert "raised on walkit.segment.trim" in caplog.text


def test_interrupting_keeps_the_partial_run_and_the_log() -> None:
    """A SIGINT in mid-stream: each writer's groups are there up to one point, the Run counts them, the log goes on."""
    stream = seeded_stream(20_000)
    parts = stream.route(8)
    with walkit.Store.open("memory://interrupted", mode="x") as store:
        at = 500

        def interrupt(frames: walkit.ObservedFrames) -> None:
            nonlocal at
            if frames.last_lsn >= at:
                at = len(stream) + 1
                os.kill(os.getpid(), signal.SIGINT)

        observation = store.log.observe(interrupt)
        run = drive(store, Workload(source=stream, writers=8), progress=False)
        observation.close()
        assert run.interrupted
        assert 500 <= run.records < len(stream)
        assert run.records == sum(run.operations.values()) == store.log.acked_lsn
        assert "interrupted: only the part that ran" in run.warnings
        done = prefixes(parts, records_of(store.log))
        numbers = [n for part, count in zip(parts, done, strict=True) for n in part.numbers[:count].tolist()]
        assert dict(store.items()) == state_of(stream, numbers)
        assert writer_threads() == []
        store.put(b"after", b"the interrupt")
        assert store[b"after"] == b"the interrupt"


INTERRUPTED = """
    import json, sys, time
    import walkit
    from tests.workload.streams import seeded_stream
    from walkit.workload import Workload, drive

    log = walkit.open(sys.argv[1])
    stream = seeded_stream(100_000, value_bytes=10)
    started = log.observe(lambda frames: (started.close(), print("first frame", flush=True)))
    run = drive(log, Workload(source=stream, writers=16), progress=False)
    acked = log.acked_lsn
    log.append(b"one more")
    log.close()
    print(json.dumps([run.interrupted, run.records, acked]), flush=True)
"""


def test_ctrl_c_stops_the_drive_of_another_process(tmp_path: Path) -> None:
    """A real SIGINT to a process that drives: it stops in mid-stream, closes its log, and ends as it would have."""
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(tmp_path / "log")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first frame\n"
        process.send_signal(signal.SIGINT)
        said = process.stdout.readline()
        assert process.wait() == 0
    interrupted, records, acked = json.loads(said)
    assert interrupted
    assert 0 < records == acked < 100_000
    with walkit.open(tmp_path / "log") as log:
        assert log.recovery.verdict == "clean"
        assert log.acked_lsn == records + 1


@pytest.mark.parametrize("target", ["log", "store"])
def test_an_error_of_the_log_is_raised_with_the_partial_run(tmp_path: Path, target: str) -> None:
    """When a sync fails in mid-stream, drive raises it, no writer is left, and the error carries the Run until then."""
    storage = FaultyStorage(CrashingStorage())
    storage.fail("synced_write", nth=40)
    told: list[str] = []
    opened: Any = walkit.open if target == "log" else walkit.Store.open
    log = opened(storage=storage, events=lambda name, _: told.append(name))
    with pytest.raises((CommitFailedError, LogPoisonedError)) as found:
        drive(log, Workload(source=seeded_stream(5_000), writers=8), progress=False)
    assert writer_threads() == []
    wait_until(lambda: "walkit.log.poison" in told, "the event, which a thread of its own sends")
    log.close()
    same = pickle.loads(pickle.dumps(found.value))
    failures: list[Any] = [found.value, same]
    for error in failures:
        run = error.run
        acked = (log if target == "log" else log.log).acked_lsn
        assert 0 < run.records == run.latency["total"].count == sum(run.operations.values()) <= acked < 5_000
        assert type(found.value).__name__ in run.failure and not run.interrupted
        assert run.warnings[-1].startswith("failed, only the part before")
    run.save(tmp_path / "run")
    assert load(tmp_path / "run") == run


def test_a_closed_log_is_refused_at_once() -> None:
    """Driving a log that is closed raises LogClosedError."""
    log = walkit.open("memory://closed-drive", "x")
    log.close()
    with pytest.raises(LogClosedError):
        drive(log, Workload(source=seeded_stream(10), writers=2), progress=False)
    assert writer_threads() == []


def test_the_bar_goes_to_standard_error_and_only_where_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    """With progress=False nothing is printed; an unwatched bar comes late or not at all; never on stdout."""
    with walkit.open("memory://bars", "x") as log:
        drive(log, Workload(source=seeded_stream(300), writers=2), progress=False)
        assert capfd.readouterr() == ("", "")
        drive(log, Workload(source=seeded_stream(300), writers=2), progress=True)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("target", "workload"), [(5, None), ("log", Workload(operations=1)), (None, 5)])
def test_what_cannot_be_driven_is_refused_by_name(target: Any, workload: Any) -> None:
    """Drive a number, and a wrong workload, for real and in virtual time: OptionsError."""
    with pytest.raises(OptionsError, match="target="):
        drive(target, workload, progress=False)
    with pytest.raises(OptionsError, match="workload="):
        walkit.simulate.drive(5, options=workload)  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match="options="):
        walkit.simulate.drive(Workload(operations=1), options=5)  # type: ignore[arg-type]
