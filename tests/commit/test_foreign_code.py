"""Foreign Python (a finaliser, a signal handler) that runs between two bytecodes of the log's own: no call hangs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import walkit
from tests.commit.fake_segments import GUARD_S, Task
from tests.log.logs import tiny
from walkit.errors import CallbackError, WalkitError

STEP, SLOW_STEP = 331, 7
"""One in so many bytecodes of a call is struck; the first of them moves on with each foreign call."""


class RunAt:
    """Makes a call in this thread at the n-th bytecode of walkit's code; `reached` says whether there was one."""

    def __init__(self, nth: int, call: Callable[[], object]) -> None:
        self.left, self.call = nth, call
        self.reached = False
        self.error: BaseException | None = None
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if "/walkit/" not in frame.f_code.co_filename or "/walkit/storage/" in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.left -= 1
            if not self.left:
                self.reached, self.where = True, f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                try:
                    self.call()
                except BaseException as error:
                    self.error = error
        return self


def run_at(nth: int, call: Callable[[], object], foreign: Callable[[], object]) -> RunAt:
    """Make `call` with `foreign` at its n-th bytecode, in this thread."""
    at, before = RunAt(nth, foreign), sys.gettrace()
    sys.settrace(at)
    try:
        call()
    except WalkitError:
        pass
    finally:
        sys.settrace(before)
    return at


CALLS: dict[str, Callable[[Any], object]] = {
    "append": lambda log: log.append(b"own"),
    "append by key": lambda log: log.append(b"own", key=b"k", timeout=GUARD_S),
    "append many": lambda log: log.append_many([b"own"] * 3),
    "submit": lambda log: [log.submit(b"own") for _ in range(3)][-1].result(GUARD_S),
    "sync": lambda log: log.sync(),
    "trim": lambda log: log.trim(log.acked_lsn - 10),
    "hold": lambda log: log.hold("one", log.first_lsn).release(),
    "close": lambda log: log.close(),
}
FOREIGN: dict[str, Callable[[Any], object]] = {
    "append": lambda log: log.append(b"foreign"),
    "submit": lambda log: log.submit(b"foreign"),
    "submit text": lambda log: log.submit(bytearray(b"foreign")),
    "sync": lambda log: log.sync(),
}


def opened(folder: Path, in_flight: int) -> walkit.WriteAheadLog:
    """Return a new log with a few records."""
    log = walkit.open(folder / str(len(list(folder.iterdir()))), options=tiny(in_flight=in_flight))
    log.append_many([b"before"] * 20)
    return log


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize(
    "step",
    [STEP, pytest.param(SLOW_STEP, marks=pytest.mark.slow)],  # some 30,000 points, for minutes
)
def test_foreign_code_at_each_bytecode_hangs_no_call(
    call: str, foreign: str, in_flight: int, step: int, tmp_path: Path
) -> None:
    """Append, submit or sync at bytecodes of each call: it ends, or is refused; what is submitted is acknowledged."""
    log, reached = opened(tmp_path, in_flight), 0
    for nth in range(1 + list(FOREIGN).index(foreign), 100_000, step):
        if log.closed:
            log = opened(tmp_path, in_flight)
        tickets: list[Any] = []
        current = log

        def strike(log: walkit.WriteAheadLog = current, tickets: list[Any] = tickets) -> None:
            tickets.append(FOREIGN[foreign](log))

        at = Task(run_at, nth, lambda log=current: CALLS[call](log), strike).result()
        if not at.reached:
            break
        reached += 1
        assert at.error is None or isinstance(at.error, WalkitError), (at.where, at.error)
        if foreign.startswith("submit"):
            assert not isinstance(at.error, CallbackError), at.where
            for ticket in tickets:
                assert ticket.exception(GUARD_S) is None or log.closed, at.where
        assert log.closed or Task(log.append, b"after").result().last_lsn == log.acked_lsn, at.where
    Task(log.close).result()
    assert reached
