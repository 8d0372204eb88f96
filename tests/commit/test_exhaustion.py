"""No stack or no memory is left during a call: it ends, others continue or get an error, the log closes."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.commit.starving_calls import CALLS, STORE_CALLS, prepared
from tests.support.fake_segments import DriverHarness, GatedSink, io_error
from tests.support.logs import run_python
from tests.support.threads import Task, wait_until
from walkit._internal.threads import STACK_FRAMES
from walkit.commit.policy import OneRecordPerFrame
from walkit.errors import LogClosedError, WalkitError
from walkit.segments.writer_lock import take_writer_lock
from walkit.storage import FileStorage

ENDLESS = """
import threading, walkit, sys
log = walkit.open(sys.argv[1])

def recurse():
    log.append(b"once more")
    recurse()

sys.setrecursionlimit(400)
for _ in range(2):
    try:
        recurse()
    except RecursionError:
        pass
other = threading.Thread(target=log.append, args=(b"other",))
other.start()
other.join(20)
assert not other.is_alive()
log.sync()
print(log.acked_lsn > 100)
"""

# An allocation that CPython itself makes may fail where it can raise nothing: it reports that, and continues.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. None:pytest.PytestUnraisableExceptionWarning"
)


def levels() -> int:
    """Return how many calls deep this thread can still go."""
    try:
        return 1 + levels()
    except RecursionError:
        return 0


def make_deep(call: Callable[[], object], left: int) -> None:
    """Make a call so many levels down."""
    if left:
        make_deep(call, left - 1)
    else:
        call()


def with_room(call: Callable[[], object], frames: int) -> type[BaseException] | None:
    """Make a call with room for so many frames on the stack; return its error."""
    try:
        make_deep(call, levels() - frames)
    except BaseException as error:  # the test asks for its kind
        return type(error)
    return None


@pytest.mark.parametrize(
    ("call", "on_main", "in_flight"),
    # Slow: half of all triples. The others have each pair.
    [
        pytest.param(call, on_main, in_flight, marks=[pytest.mark.slow] * ((at + on_main + in_flight) % 2))
        for at, call in enumerate((*CALLS, *STORE_CALLS))
        for on_main in (True, False)
        for in_flight in (1, 4)
    ],
)
def test_a_call_at_each_depth_of_the_stack_harms_no_other(
    call: str, on_main: bool, in_flight: int, tmp_path: Path
) -> None:
    """Make each call with ever more room on the stack until it does its work: before that, nothing was taken."""
    log, act = prepared(call, tmp_path / "log", in_flight)
    frames = 0
    error: type[BaseException] | None = RecursionError
    while error is not None:
        frames += 1
        assert issubclass(error, RecursionError) and frames < STACK_FRAMES + 60
        error = with_room(act, frames) if on_main else Task(with_room, act, frames).result()
        assert log.closed or Task(log.append, b"after").result().last_lsn == log.acked_lsn
    assert frames > 3
    Task(log.close).result()


def test_a_recursion_that_logs_at_each_level_leaves_a_whole_log(tmp_path: Path) -> None:
    """Append at each level of an endless recursion, then on another thread, and let the process end by itself."""
    assert run_python(ENDLESS, tmp_path / "log").stdout.strip() == "True"


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """No collection while memory is missing: it would call the callbacks of others, such as Hypothesis'."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(not find_spec("_testcapi"), reason="the interpreter has no _testcapi.set_nomemory")
@pytest.mark.parametrize(
    ("step", "in_flight"),
    # Slow: a thousand logs for each. By default some allocations of each call fail, with all threads of a log.
    [(149, 4), *(pytest.param(3, n, marks=pytest.mark.slow) for n in (1, 4))],
)
def test_an_allocation_that_fails_harms_no_other(step: int, in_flight: int, tmp_path: Path) -> None:
    """Let one allocation of a call fail, for many of them: others append or get an error, the log and process end."""
    command = [sys.executable, "-m", "tests.commit.starved", str(tmp_path), str(in_flight), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    found = json.loads(done.stdout)
    assert found.pop("others end", 0) > 30
    of_others = {"SystemError", "hang of CPython"}  # numpy's C code returns an error and names none
    assert not found.keys() - of_others - {"ended", "typed", "MemoryError", "RuntimeError"}, found


@pytest.mark.skipif(not find_spec("_testcapi"), reason="the interpreter has no _testcapi.set_nomemory")
def test_a_lead_is_given_back_though_its_first_allocation_fails(tmp_path: Path) -> None:
    """Take a lead and let the next allocation fail: it is given back, and another thread appends."""
    import _testcapi  # type: ignore[import-not-found]

    with walkit.open(tmp_path / "log") as log:
        election = log.parts.driver.election
        election.leading[get_ident()] = True
        _testcapi.set_nomemory(0, 1)
        try:
            election.hand_over()
        finally:
            _testcapi.remove_mem_hooks()
        assert not election.leading
        Task(log.append, b"other").result()


@pytest.mark.skipif(not find_spec("_testcapi"), reason="the interpreter has no _testcapi.set_nomemory")
def test_a_failure_that_finds_no_memory_fails_all_the_same() -> None:
    """Fail a log with frames in flight and in the queue, and each allocation of that in turn: every ticket fails."""
    import _testcapi

    for nth in range(1, 80):
        harness = DriverHarness(place=GatedSink(), in_flight_max=2, policy=OneRecordPerFrame())
        harness.in_flight(2)
        tickets: list[Any] = [frame.submissions[0] for frame in harness.core.in_flight]
        tickets += [harness.queued(b"waits") for _ in range(3)]
        woken: list[int] = []
        with harness.driver.lock:
            harness.driver.signal.call_next_locked(partial(woken.append, 1))
        waiting = [Task(ticket.result) for ticket in tickets]
        wait_until(lambda tickets=tickets: all(t.latch is not None for t in tickets))  # type: ignore[misc]
        failure, cause = harness.driver.failure, io_error()
        _testcapi.set_nomemory(nth, nth + 1)
        try:
            failure.fail(cause)
        finally:
            _testcapi.remove_mem_hooks()
        for task in waiting:
            assert isinstance(task.join().error, WalkitError), nth
        assert harness.driver.refusal is failure.poisoned is not None and woken == [1], nth
        assert not (harness.core.in_flight or harness.core.pending or harness.core.lost), nth
        harness.place.release()
        Task(harness.driver.stop, LogClosedError()).result()


@pytest.mark.skipif(not find_spec("_testcapi"), reason="the interpreter has no _testcapi.set_nomemory")
def test_a_release_that_finds_no_memory_can_be_repeated(tmp_path: Path) -> None:
    """Let each allocation of giving a log's locks up fail once, and repeat it: another writer gets them."""
    import _testcapi

    walkit.open(tmp_path / "log").close()
    storage, failed = FileStorage(tmp_path / "log"), 0
    for nth in range(1, 40):
        lock = take_writer_lock(storage)
        _testcapi.set_nomemory(nth, nth + 1)
        try:
            lock.release()
        except MemoryError:
            failed += 1
        finally:
            _testcapi.remove_mem_hooks()
        lock.release()
        take_writer_lock(FileStorage(tmp_path / "log")).release()
    assert failed > 5
