"""The writer in a child process: whenever it is killed, all that was acknowledged is there, and nothing unannounced."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import walkit
from tests.workload.streams import SMALL, prefixes, records_of, seeded_stream, state_of, table_of
from walkit._internal.threads import EndingThread
from walkit.errors import LogLockedError, OptionsError
from walkit.record import Kind
from walkit.workload import (
    ChildWriter,
    ChildWriterError,
    KeyChoice,
    Mix,
    OpenLoop,
    OperationStream,
    Workload,
)
from walkit.workload.child_process import (
    drive_reported,
    options_from,
    plain_options,
)
from walkit.workload.expected_state import check_recovered
from walkit.workload.process import TalkingChild
from walkit.workload.role import ORPHANED, LineReporter
from walkit.workload.stream_ipc import stream_from_ipc, stream_to_ipc

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = 12_000
WRITERS = 6
PUT, DELETE = int(Kind.PUT), int(Kind.DELETE)


@pytest.fixture(scope="module")
def stream() -> OperationStream:
    return seeded_stream(OPERATIONS)


def writer(path: Path, stream: OperationStream, **options: Any) -> ChildWriter:
    workload = Workload(source=stream, writers=WRITERS)
    return ChildWriter(path, workload, stream=stream, options=options.pop("options", SMALL), **options)


def test_a_generated_workload_in_an_open_loop_is_driven_in_a_child(tmp_path: Path) -> None:
    """Preload, puts, deletes and transactions at a rate: all acknowledged, all keys there, none too soon."""
    mix = Mix(put=0.6, delete=0.2, transaction=0.2)
    keys = KeyChoice(count=300)
    workload = Workload(
        operations=400, writers=3, mix=mix, keys=keys, preload=True, seed=5, arrival=OpenLoop(rate=2_000)
    )
    with ChildWriter(tmp_path / "log", workload, options=SMALL) as child:
        outcome, run = child.outcome(), child.run()
    assert outcome.acknowledged.all() and not outcome.killed
    assert (run.records, run.arrival, run.seed) == (len(child.stream), "open", 5)
    assert run.operations == {
        "put": int((child.stream.kinds == PUT).sum()),
        "delete": int((child.stream.kinds == DELETE).sum()),
    }
    due = workload.arrival.due_ns(child.stream.group_count, 5) if workload.arrival != "closed" else None
    assert due is not None and run.duration_s >= due[-1] / 1e9
    with walkit.Store.open(tmp_path / "log") as store:
        assert store.log.acked_lsn == 300 + len(child.stream)
        untouched = (
            {b for b in child._preload.keys if b not in set(child.stream.keys)} if child._preload else set()
        )
        assert untouched and all(key in store for key in untouched)


@pytest.mark.parametrize(
    ("workload", "option"),
    [
        (Workload(operations=10, mix=Mix(put=0.5, read=0.5)), "mix"),
        (Workload(operations=10, tasks=3, keys=KeyChoice(count=5)), "tasks"),
    ],
)
def test_what_a_child_does_not_drive_is_refused_by_name(
    tmp_path: Path, workload: Workload, option: str
) -> None:
    """Reads and tasks are OptionsErrors that name the option, before a child is started."""
    with pytest.raises(OptionsError) as refused:
        ChildWriter(tmp_path / "log", workload)
    assert refused.value.option == option
    assert list(tmp_path.iterdir()) == []


# Slow: the same kill at the first record.
@pytest.mark.parametrize("records", [2_500, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_loses_nothing_and_invents_nothing(
    tmp_path: Path, stream: OperationStream, records: int
) -> None:
    """SIGKILL in mid-stream: acknowledged within recovered within submitted, groups whole, the state right."""
    with writer(tmp_path / "log", stream) as child:
        assert child.wait_for(records)
        child.kill()
        outcome, run = child.outcome(), child.run()
    assert outcome.killed
    assert outcome.returncode == -signal.SIGKILL
    assert records <= outcome.acknowledged.sum() <= outcome.submitted.sum() < OPERATIONS
    with walkit.Store.open(tmp_path / "log", options=SMALL) as store:
        state, found = dict(store.items()), records_of(store.log)
        assert store.recovery.last_lsn == len(found)
    done = prefixes(child.parts, found)
    for part, count in zip(child.parts, done, strict=True):
        acked, sent = (int(mask[part.numbers].sum()) for mask in (outcome.acknowledged, outcome.submitted))
        assert acked <= count <= sent
        assert count in {0, *(end for _, end in part.bounds())}, "a group was torn"
    numbers = [
        n for part, count in zip(child.parts, done, strict=True) for n in part.numbers[:count].tolist()
    ]
    assert state == state_of(stream, numbers)
    assert check_recovered(
        table_of(stream), outcome.acknowledged, outcome.submitted, cast("dict[bytes, bytes]", state)
    ).ok
    assert run.records == outcome.acknowledged.sum() == sum(run.operations.values())
    assert run.interrupted
    assert run.events[-1].name == "SIGKILL"
    assert {e.name for e in run.events[:-1]} <= {
        f"walkit.segment.{verb}" for verb in ("prepare", "rotate", "seal")
    }
    assert outcome.killed_after_s is not None
    assert 0 < outcome.killed_after_s <= run.duration_s


def test_a_child_that_is_left_alone_comes_to_its_end(tmp_path: Path) -> None:
    """Not killed, it drives everything and closes the log; its Run equals its log's metrics."""
    stream = seeded_stream(1_500, seed=1)
    shown: list[int] = []
    with writer(tmp_path / "log", stream) as child:
        assert child.wait_for(1_500, shown.append)
        outcome, run = child.outcome(), child.run()
        assert not child.wait_for(1_501), "more than there are"
    assert (outcome.returncode, outcome.killed, outcome.killed_after_s) == (0, False, None)
    assert outcome.acknowledged.all()
    assert outcome.submitted.all()
    assert run.records == 1_500
    assert not run.interrupted
    assert run.frames is not None and run.frames.records == 1_500
    assert run.bytes_user == sum(map(len, stream.keys)) + sum(len(v) for v in stream.values if v)
    assert run.options["segment_bytes"] == SMALL.segment_bytes
    assert "walkit.segment.rotate" in {e.name for e in run.events}
    assert shown[-1] == 1_500
    assert shown == sorted(shown)
    with walkit.Store.open(tmp_path / "log", options=SMALL) as store:
        assert store.recovery.verdict == "clean"
        assert dict(store.items()) == state_of(stream)


class Pipe(io.StringIO):
    """Stands where the child's pipe stands, and asks at each line how far the log is."""

    def __init__(self, store: walkit.Store, parts: list[OperationStream]) -> None:
        super().__init__()
        self.announced = [0] * len(parts)
        self.acked = [0] * len(parts)
        self.lines = 0
        self._store, self._parts = store, parts

    def write(self, text: str) -> int:
        # Before this line can be read, no writer may have passed what the lines before it announced.
        appended = prefixes(self._parts, self._store.log.read())
        for part, bound, count in zip(self._parts, self.announced, appended, strict=True):
            assert count <= len(part.numbers_of(min(bound, part.group_count)))
        said = json.loads(text)
        self.lines += 1
        if "acked" in said:
            assert all(known <= acked for known, acked in zip(self.acked, said["acked"], strict=True))
            assert all(acked <= bound for acked, bound in zip(said["acked"], self.announced, strict=True))
            rows = np.frombuffer(base64.b64decode(said["samples"]), "<i8").reshape(3, -1)
            assert rows.shape[1] == sum(said["acked"]) - sum(self.acked)
            self.acked, self.announced = said["acked"], said["announced"]
            for part, acked, count in zip(
                self._parts, self.acked, prefixes(self._parts, self._store.log.read()), strict=True
            ):
                assert len(part.numbers_of(acked)) <= count, "acknowledged and not there"
        return super().write(text)


def test_no_writer_passes_what_was_announced() -> None:
    """At every line of the child, its log has nothing beyond the lines before, and all that it calls acknowledged."""
    stream = seeded_stream(2_500)
    with walkit.Store.open("memory://announced", mode="x") as store:
        pipe = Pipe(store, stream.route(WRITERS))
        drive_reported(store, stream, WRITERS, LineReporter(pipe))
        assert dict(store.items()) == state_of(stream)
    assert pipe.acked == [part.group_count for part in stream.route(WRITERS)]
    assert pipe.lines > 8


def test_a_stream_is_handed_over_byte_for_byte(stream: OperationStream) -> None:
    """Reading the bytes gives the written stream, routes and numbers too, and takes not one byte more."""
    part = stream.route(3)[1]
    for given in (part, part.select(np.zeros(0, dtype=np.int64))):
        source = io.BytesIO(bytes(stream_to_ipc(given)) + b"what follows")
        found = stream_from_ipc(source)
        assert found.digest() == given.digest()
        assert found.numbers.tolist() == given.numbers.tolist()
        assert found.routes.tolist() == given.routes.tolist()
        assert source.read() == b"what follows"


@pytest.mark.parametrize(
    "options",
    [walkit.LogOptions(), SMALL, walkit.LogOptions(durability="interval", interval_ms=5, codec="zstd")],
    ids=["default", "small", "interval"],
)
def test_options_go_through_the_command_line(options: walkit.LogOptions) -> None:
    """Options made text and read again are equal."""
    assert options_from(json.loads(json.dumps(plain_options(options)))) == options


def fail(child: ChildWriter) -> ChildWriterError:
    with child:
        assert not child.wait_for(1)
        with pytest.raises(ChildWriterError) as found:
            child.outcome()
    return found.value


def test_a_child_that_breaks_says_its_last_words(
    tmp_path: Path, stream: OperationStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that ends by a traceback gives its exit status and its standard error."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("raise SystemExit('no customs here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    error = fail(writer(tmp_path / "log", stream))
    assert error.returncode == 1
    assert "no customs here" in error.output


def test_a_program_that_is_not_there_is_one_error(
    tmp_path: Path, stream: OperationStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Python itself cannot be started, start() raises."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(ChildWriterError, match="did not start"):
        writer(tmp_path / "log", stream).start()


def test_a_child_that_somebody_else_killed_is_an_error(tmp_path: Path, stream: OperationStream) -> None:
    """A SIGKILL from elsewhere (the kernel short of memory) is told, and not taken for our own."""
    with writer(tmp_path / "log", stream) as child:
        assert child.wait_for(100)
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ChildWriterError, match="signal 9, which this process did not send"):
            child.outcome()


def test_a_child_that_talks_nonsense_is_ended(
    tmp_path: Path, stream: OperationStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that is not the child's kind of line ends the child with an error, instead of waiting for more."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('hello', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    error = fail(writer(tmp_path / "log", stream))
    assert "makes no sense" in str(error)
    assert isinstance(error.__cause__, json.JSONDecodeError) and error.__cause__.__traceback__ is not None


def opened_within(path: Path, seconds: float) -> bool:
    """Say whether the log gets free within this time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            walkit.open(path, options=SMALL).close()
        except LogLockedError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def test_no_child_is_left_when_the_block_is_left(tmp_path: Path, stream: OperationStream) -> None:
    """An exception in the `with` block, a Ctrl-C say, ends the child before it goes on."""
    child = writer(tmp_path / "log", stream)

    def interrupted() -> None:
        with child:
            assert child.wait_for(10)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    assert opened_within(tmp_path / "log", 0)


PARENT = """
    import sys
    from tests.workload.streams import SMALL, seeded_stream
    from walkit.workload import ChildWriter, Workload

    stream = seeded_stream(20_000, value_bytes=10)
    with ChildWriter(sys.argv[1], Workload(source=stream, writers=4), stream=stream, options=SMALL) as child:
        child.wait_for(100)
        print(child.pid, flush=True)
        child.wait_for(20_000)
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a child that writes."""
    command = [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path / "log")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        yield process
        process.kill()


def test_the_child_ends_with_its_parent(tmp_path: Path, parent: subprocess.Popen[str]) -> None:
    """A parent that is killed leaves no child: its log is free at once, and recoverable."""
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) > 0
    with pytest.raises(LogLockedError):
        walkit.open(tmp_path / "log", options=SMALL)
    parent.kill()
    parent.wait()
    assert opened_within(tmp_path / "log", 20)
    with walkit.open(tmp_path / "log", options=SMALL) as log:
        assert 100 <= log.acked_lsn < 20_000


def test_a_child_without_a_reader_ends(tmp_path: Path, stream: OperationStream) -> None:
    """When only the pipe of its lines is closed, the child ends by itself with the status for it."""
    given = {
        "path": str(tmp_path / "log"),
        "writers": 64,
        "options": {},
        "arrival": None,
        "seed": 0,
        "preloaded": False,
    }
    command = [
        sys.executable,
        "-m",
        "walkit.workload",
        "walkit.workload.child_process:drive",
        json.dumps(given),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(stream_to_ipc(stream))
        process.stdin.flush()
        assert b"statistics" in process.stdout.readline()
        process.stdout.close()
        assert process.wait() == ORPHANED
        assert process.stderr.read() == b""
    assert opened_within(tmp_path / "log", 0)


def test_a_child_whose_lines_get_no_thread_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the thread that reads a child's lines: the error comes out, and no process and no descriptor is left."""

    def none_left(_: EndingThread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(EndingThread, "start", none_left)
    child, before = TalkingChild("timeit:main", {}, lambda line: None), set(os.listdir("/dev/fd"))
    with pytest.raises(RuntimeError, match="can't start"):
        child.start()
    assert not child.talking and child.returncode == -signal.SIGKILL
    assert set(os.listdir("/dev/fd")) == before
