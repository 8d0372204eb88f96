"""A signal handler that raises on the main thread, as one for SIGALRM does: its caller is told, and nobody hangs."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import pytest

import walkit
from tests.support.logs import lsns, tiny
from tests.support.threads import Task
from walkit.errors import WalkitError
from walkit.models import CrashingStorage


class AlarmError(Exception):
    """What the handler raises."""


@cache
def _points(code: CodeType) -> frozenset[int]:
    """Return where CPython handles signals in this code: at its beginning, after calls, and where it jumps back."""
    instructions = list(dis.get_instructions(code))
    found = set()
    for one, following in pairwise(instructions):
        if one.opname in ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW"):
            found.add(following.offset)
        elif one.opname == "JUMP_BACKWARD":
            found.add(one.argval)
    return frozenset(found)


class RaisedAt:
    """Raises an AlarmError in this thread at the n-th such point in walkit's code; `reached` tells whether it did."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.reached = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if "/walkit/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_lasti in _points(frame.f_code):
            self.left -= 1
            if not self.left:
                self.reached = True
                raise AlarmError
        return self


def raised_in(call: Callable[[], object], nth: int) -> bool:
    """Make a call with an AlarmError at its n-th point; False where it has fewer."""
    alarm, before = RaisedAt(nth), sys.gettrace()
    sys.settrace(alarm)
    try:
        call()
    except (AlarmError, WalkitError):
        pass
    finally:
        sys.settrace(before)
    return alarm.reached


@pytest.mark.parametrize("durability", ["sync", "none"])
@pytest.mark.parametrize("first", [False, True])
def test_a_handler_that_raises_in_an_append_leaves_nobody_waiting(durability: str, first: bool) -> None:
    """Raise at each point of an append on the main thread with 8 in flight: others go on or are told, close ends."""
    nth, went_on = 0, 0
    while True:
        nth += 1
        storage = CrashingStorage()
        log = walkit.open(storage=storage, options=tiny(in_flight=8, durability=durability))
        acked = 0 if first else log.append(b"before").last_lsn
        reached = raised_in(lambda log=log: log.append(b"struck"), nth)  # type: ignore[misc]
        others = [Task(log.append, b"other") for _ in range(3)]
        for other in others:
            if isinstance(other.join().error, WalkitError):
                continue
            acked = max(acked, other.result().last_lsn)
            went_on += 1
        Task(log.close).result()
        with walkit.open(storage=storage, options=tiny()) as again:
            assert lsns(again.read())[:acked] == list(range(1, acked + 1))
        if not reached:
            break
    assert nth > 20 and went_on > nth
