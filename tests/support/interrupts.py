"""Ctrl-C for the main thread at a chosen place: shared by the tests of what waits for threads."""

from __future__ import annotations

import _thread
import dis
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType, FunctionType
from typing import Any

from tests.support.threads import GUARD_S, Task
from walkit._internal.threads import current_frames
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import Operation

LOOKS = 20
"""The main thread has stopped if it was seen this many times in one place."""


def interrupt_in(*names: str, unseen: bool = False) -> Task:
    """Send SIGINT to the main thread once it waits in functions of all these names; returns when it has left.

    A signal that comes just before a lock is waited for does not end the waiting, and is handled when another one does:
    a thread that still waits is shot at again, and gets one KeyboardInterrupt. `unseen`: each signal comes so.
    """
    main = threading.main_thread().ident
    assert main is not None

    def place() -> tuple[FrameType, int] | None:
        innermost = frame = current_frames()[main]
        entered = set[str]()
        while frame is not None:
            entered.add(frame.f_code.co_name)
            frame = frame.f_back  # type: ignore[assignment]
        return (innermost, innermost.f_lasti) if entered.issuperset(names) else None

    def shoot() -> None:
        deadline, shot, looks, before = time.monotonic() + GUARD_S, False, 0, None
        while time.monotonic() < deadline:
            now = place()
            if shot and now is None:
                return
            looks, before = (looks + 1 if now is not None and now == before else 0), now
            if looks == LOOKS:
                if unseen:
                    _thread.interrupt_main()
                else:
                    signal.pthread_kill(main, signal.SIGINT)
                shot, looks = True, 0
            time.sleep(0.0005)
        raise AssertionError(f"the main thread did not come to {names}, or did not leave it, in {GUARD_S} s")

    return Task(shoot)


# Where CPython hands signals to their handlers: at the beginning of a function, after a call, on a way back. A call of
# C that waits looks for them itself, which is as if the call had not been made.
_DELIVERING = {
    number
    for name, number in dis.opmap.items()
    if name in ("RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX")
    or ("JUMP_BACKWARD" in name and not name.endswith("NO_INTERRUPT"))
}
_WAITING = ("acquire", "get", "join", "sleep", "wait")
_STRUCK = ("walkit", "threading", "weakref", "_weakrefset", "contextlib", "queue")


@cache
def _points(code: CodeType) -> tuple[frozenset[int], frozenset[int]]:
    """Return the offsets of a function before which a signal may be delivered, and those after which it may.

    A trace function raises before an instruction. Where that one is under another handler than the call in front of it
    (a `return f()` in a `with` block), the exception comes before the call instead: under the handler that is right.
    """
    handlers = {
        offset: entry.target
        for entry in dis._parse_exception_table(code)  # type: ignore[attr-defined]
        for offset in range(entry.start, entry.end, 2)
    }
    found = list(dis.get_instructions(code))
    before, after, named = set(), set(), ""
    for instruction, following in zip(found, [*found[1:], None], strict=True):
        offset, is_call = instruction.offset, instruction.opname.startswith("CALL")
        if instruction.opname.startswith(("LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL")):
            named = str(instruction.argval)
        if instruction.opcode not in _DELIVERING:
            continue
        jump = "JUMP" in instruction.opname
        next_offset = instruction.argval if jump else None if following is None else following.offset
        if next_offset is not None and handlers.get(offset) == handlers.get(next_offset):
            after.add(offset)
        elif is_call:
            before.add(offset)
        if is_call:
            if named in _WAITING:
                before.add(offset)
            named = ""
    return frozenset(before), frozenset(after)


class Strike:
    """Calls a signal's handler at the `number`th point where CPython may deliver it to this thread, within `run`.

    More points than there are in any one version: after each call, whatever is called. `where` says at which line it
    was; it is empty if there are fewer points.
    """

    def __init__(self, number: int, signum: int = signal.SIGINT) -> None:
        self.where = ""
        self.swallowed = False
        """Whether Python has swallowed the exception: it came up in a finaliser, or a callback of a weak reference."""
        self._left, self._signum = number, signum

    def run(self, function: Callable[[], object]) -> object:
        """Call the function; returns what it returns, raises what it or the handler raises."""
        before, hook = sys.gettrace(), sys.unraisablehook

        def note(unraisable: Any) -> None:
            if unraisable.exc_type is KeyboardInterrupt:
                self.swallowed = True
            else:
                hook(unraisable)

        code = function.__code__ if isinstance(function, FunctionType) else None

        def enter(frame: FrameType, event: str, argument: object) -> Any:
            module = frame.f_globals["__name__"].partition(".")[0]
            if frame.f_code is not code and module not in _STRUCK:
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            delivered = False

            def look(frame: FrameType, event: str, argument: object) -> Any:
                nonlocal delivered
                if event == "exception":
                    delivered = False  # a call that has raised goes to its handler at once
                if event == "opcode":
                    before, after = _points(frame.f_code)
                    point, delivered = delivered or frame.f_lasti in before, frame.f_lasti in after
                    if point:
                        self._pass(frame)
                return look

            return look

        sys.unraisablehook = note
        sys.settrace(enter)
        try:
            return function()
        finally:
            sys.settrace(before)
            sys.unraisablehook = hook

    def _pass(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left == 0:
            self.where = f"{frame.f_code.co_qualname} line {frame.f_lineno} offset {frame.f_lasti}"
            sys.settrace(None)
            handler = signal.getsignal(self._signum)
            assert callable(handler)
            handler(self._signum, frame)


class ShootingStorage(FaultyStorage):
    """A storage whose `number`th operation from `armed` on is interrupted: the main thread gets SIGINT as it begins."""

    def __init__(self, inner: CrashingStorage, number: int = 0) -> None:
        super().__init__(inner)
        self.shot = False
        self._left = number

    def arm(self, number: int) -> None:
        """Count from here."""
        self._left = number

    def perform(self, operation: Operation, *arguments: Any, **named: Any) -> Any:
        """See FaultyStorage."""
        self._left -= 1
        if self._left == 0:
            self.shot = True
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
        return super().perform(operation, *arguments, **named)
