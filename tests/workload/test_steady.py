"""The steady load in a child process: it writes until it is stopped, reports its work, and leaves no process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import walkit
from walkit.errors import OptionsError
from walkit.workload import ChildWriterError, ContinuousLoad, SteadyWriter, steady_process
from walkit.workload.inject_damage import leave_half_a_frame
from walkit.workload.role import ORPHANED, LineReporter
from walkit.workload.steady import LINES_WAITING_MAX, SteadyLine, Style
from walkit.workload.steady_process import keep_small
from walkit.workload.steady_run import SteadyRecord

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


@pytest.mark.parametrize(
    "load",
    [
        # Slow: other children. By default threads are killed below, and tasks have an open loop.
        pytest.param(ContinuousLoad(writers=3), marks=pytest.mark.slow),
        pytest.param(
            ContinuousLoad(writers=20, style="tasks", record_bytes=3, durability="none"),
            marks=pytest.mark.slow,
        ),
        ContinuousLoad(in_flight=4, ack_order="completion", policy="capped:2"),
    ],
    ids=["threads", "tasks", "in flight"],
)
def test_a_steady_load_is_written_until_it_is_stopped(tmp_path: Path, load: ContinuousLoad) -> None:
    """Records that the lines call acknowledged are in the log, of the wanted size, each with a latency."""
    with SteadyWriter(tmp_path / "log", load) as writer:
        assert writer.wait_for(500, PATIENCE_S)
        writer.stop()
        lines, last = writer.read(), writer.statistics
        assert not writer.talking
    assert last is not None
    assert lines[-1].statistics == last
    assert [line.at_ns for line in lines] == sorted(line.at_ns for line in lines)
    assert sum(line.latency.count for line in lines if line.latency is not None) == last.records_acked
    names = [name for line in lines for _, name, _ in line.events]
    assert "walkit.segment.prepare" in names
    with walkit.open(tmp_path / "log") as log:
        assert log.recovery.verdict == "clean"
        assert log.acked_lsn == last.acked_lsn == last.records_acked >= 500
        assert {len(record.value or b"") for record in log.read(last_lsn=200)} == {load.record_bytes}


def test_a_killed_child_leaves_what_it_acknowledged(tmp_path: Path) -> None:
    """SIGKILL: all that the lines called acknowledged is recovered; half a frame left behind is cut, and why."""
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    with SteadyWriter(whole) as writer:
        assert writer.wait_for(300, PATIENCE_S)
        writer.kill()
        assert writer.wait()
        told = writer.statistics
    assert told is not None
    shutil.copytree(whole, torn)
    left = leave_half_a_frame(torn)
    assert left > 0
    held = {p: p.read_bytes() for p in torn.glob("*.segment")}
    assert leave_half_a_frame(torn) == 0, "there is half a frame already"
    assert {p: p.read_bytes() for p in torn.glob("*.segment")} == held
    for path, cuts in ((whole, []), (torn, [left])):
        before = walkit.scan(path)
        with walkit.open(path, events=lambda *_: None) as log:
            assert before.last_lsn == log.acked_lsn >= told.acked_lsn
            assert [cut.bytes for cut in log.recovery.cuts] == cuts
            assert all("checksum" in cut.reason and cut.kept_as for cut in log.recovery.cuts)
            log.append(b"goes on")
        assert walkit.verify(path).ok


def test_half_a_frame_is_left_only_behind_frames(tmp_path: Path) -> None:
    """Without a segment, and with an unused one only: 0, and nothing is written."""
    assert leave_half_a_frame(tmp_path) == 0
    with walkit.open(tmp_path / "empty"):
        pass
    assert leave_half_a_frame(tmp_path / "empty") == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"writers": 0},
        {"writers": 5_000},
        {"record_bytes": 0},
        {"record_bytes": 2.5},
        {"style": "fork"},
        {"durability": 1},
        {"in_flight": 0},
        {"ack_order": "sideways"},
        {"policy": "none"},
        {"arrivals_per_s": -1},
        {"arrivals_per_s": 0.5},
        {"device": "floppy"},
        {"direct_io": True, "device": "gp3"},
        {"seed": -1},
    ],
)
def test_a_load_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """Each field out of its range names itself and the value."""
    with pytest.raises(OptionsError) as refused:
        ContinuousLoad(**wrong)
    assert refused.value.option in wrong


def test_a_child_that_cannot_write_reports_the_error(tmp_path: Path) -> None:
    """A path that is a file ends the child with the error's name, in whatever is asked of it."""
    (tmp_path / "file").write_text("not a log")
    with SteadyWriter(tmp_path / "file") as writer:
        assert not writer.wait_for(1, PATIENCE_S)
        with pytest.raises(ChildWriterError, match="NotALogError"):
            writer.stop()
    with pytest.raises(ChildWriterError, match="not started"):
        _ = SteadyWriter(tmp_path / "log").pid


def test_the_child_ends_with_its_leash(tmp_path: Path) -> None:
    """When its standard input ends, as it does with its parent, the child ends at once and its log is recoverable."""
    command = [
        sys.executable,
        "-m",
        "walkit.workload",
        "walkit.workload.steady_process:drive",
        json.dumps({"path": str(tmp_path / "log"), "load": {"writers": 2}}),
    ]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        while json.loads(process.stdout.readline())["statistics"]["acked_lsn"] == 0:
            pass
        process.stdin.close()
        assert process.wait(PATIENCE_S) == ORPHANED
        assert process.stderr.read() == b""
    with walkit.open(tmp_path / "log") as log:
        assert log.acked_lsn > 0


def test_unread_lines_are_bounded() -> None:
    """A parent that does not read keeps the newest lines and no more."""
    writer = SteadyWriter("nowhere")
    statistics = {"acked_lsn": 0}
    for at_ns in range(LINES_WAITING_MAX + 10):
        writer._take({"at_ns": at_ns, "statistics": statistics, "latency": None, "events": []})
    lines: list[SteadyLine] = writer.read()
    assert len(lines) == LINES_WAITING_MAX
    assert lines[-1].at_ns == LINES_WAITING_MAX + 9
    assert writer.read() == []


def test_the_log_is_kept_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above its limit the older half goes, in whole segments; below it nothing does."""
    options = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024)
    with walkit.open("memory://steady-small", options=options) as log:
        for _ in range(40):
            log.append(bytes(8_000))
        deadline = time.monotonic() + PATIENCE_S
        keep_small(log)
        assert log.first_lsn == 1
        monkeypatch.setattr("walkit.workload.steady_process.KEPT_BYTES_MAX", 100_000)
        while log.first_lsn == 1:  # a segment is sealed in the background, and only then it can go
            keep_small(log)
            assert time.monotonic() < deadline
        assert 1 < log.first_lsn <= 21


# Slow: the arrivals are the same for both.
@pytest.mark.parametrize("style", ["tasks", pytest.param("threads", marks=pytest.mark.slow)])
def test_an_open_loop_brings_as_many_records_as_arrive(tmp_path: Path, style: Any) -> None:
    """200 arrivals a second: no more records than have arrived, none before its time, and every latency counts."""
    load = ContinuousLoad(writers=4, style=style, arrivals_per_s=200, durability="none")
    with SteadyWriter(tmp_path / "log", load) as writer:
        assert writer.wait_for(100, PATIENCE_S)
        writer.stop()
        lines, last = writer.read(), writer.statistics
    assert last is not None
    took_s = (lines[-1].at_ns - lines[0].at_ns) / 1e9
    assert last.records_acked <= 400 * (took_s + 1), "twice as many as arrive"
    assert sum(line.latency.count for line in lines if line.latency is not None) == last.records_acked


def test_the_raw_device_and_single_frames_are_told(tmp_path: Path) -> None:
    """The first line has the raw rate with its spread; lines have frames whose positions are in the log."""
    load = ContinuousLoad(writers=3, in_flight=2, raw=True)
    with SteadyWriter(tmp_path / "log", load) as writer:
        assert writer.wait_for(300, PATIENCE_S)
        writer.stop()
        lines = writer.read()
    raw = lines[0].raw
    assert raw is not None and [line.raw for line in lines[1:]] == [None] * (len(lines) - 1)
    assert 0 < raw.lowest <= raw.writes_per_s <= raw.highest
    assert (raw.rounds, raw.threads, raw.block_bytes) == (5, 2, load.expected_frame_bytes)
    assert "median of 5" in str(raw)
    samples = [line.frames for line in lines if line.frames is not None]
    assert samples and all(int(found.lane.max()) < 2 for found in samples)
    with walkit.open(tmp_path / "log") as log:
        for found in samples:
            lsn = int(found.first_lsn[found.slowest])
            assert next(iter(log.read(lsn, lsn))).lsn == lsn


@pytest.mark.parametrize("style", ["threads", "tasks"])
def test_the_raw_device_takes_turns_with_a_closed_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: Style
) -> None:
    """Three turns: no record between the line before and that with a rate, more after it; the Run leaves them out."""
    monkeypatch.setattr(steady_process, "TURN_S", 0.3)
    stop, load = threading.Event(), ContinuousLoad(writers=4, style=style, raw=True)
    record, lines = SteadyRecord(str(tmp_path), load), list[SteadyLine]()

    class Told(StringIO):
        def write(self, text: str) -> int:
            lines.append(SteadyLine.of_plain(json.loads(text)))
            record.take(lines[-1])
            if len([line for line in lines if line.raw]) > 3 and lines[-1].raw is None:
                stop.set()
            return len(text)

    with walkit.open(tmp_path / "log", options=load.options) as log:
        steady_process.drive_until(
            log, load, LineReporter(Told()), stop, steady_process.raws_of(str(tmp_path), load)
        )
    turns = [i for i, line in enumerate(lines) if line.raw is not None]
    acked = [line.statistics.records_acked for line in lines]
    assert len(turns) >= 4 and acked[0] == 0
    for turn in turns[1:]:
        raw = lines[turn].raw
        assert raw is not None and raw.rounds == 5 and raw.lowest <= raw.writes_per_s <= raw.highest
        assert acked[turn - 2] < acked[turn - 1] == acked[turn] < acked[turn + 1]
    run = record.run()
    assert run is not None and run.records == acked[-1] == run.timeline.records.sum()
    assert run.duration_s == pytest.approx(run.timeline.width_s.sum())


def test_a_modelled_volume_leaves_no_file(tmp_path: Path) -> None:
    """gp3 in memory: a frame takes the model's time at least, the raw rate is its arithmetic; nothing is on disk."""
    load = ContinuousLoad(writers=2, device="gp3", raw=True)
    with SteadyWriter(tmp_path / "log", load) as writer:
        assert writer.wait_for(20, PATIENCE_S)
        writer.stop()
        lines = writer.read()
    assert not (tmp_path / "log").exists()
    raw = lines[0].raw
    assert raw is not None and raw.rounds == 0 and raw.writes_per_s == pytest.approx(1_428, rel=0.02)
    assert "calculated from the model" in str(raw) and load.place == "gp3, modelled"
    writes = [found.written_ns - found.began_ns for line in lines if (found := line.frames) is not None]
    assert min(int(each.min()) for each in writes) >= 700_000
    queues = [line.queue for line in lines if line.queue is not None]
    assert all(0 <= mean <= most <= 2 for mean, most in queues)
    assert max(mean for mean, _ in queues) > 0
