"""Locks for which no thread waits that has them, and none for which a thread waits that has others.

Foreign Python (a finaliser, a signal handler) runs between any two bytecodes, so also on a thread with locks of
walkit's, and its calls must not wait for that very thread. Each lock is an RLock, which knows its owner from the C call
on that takes it, and is entered after a mark of the thread: `with once(self._lock), self._lock:`.

A mark is an RLock, too, that only its own thread takes: whether the thread has locks, and of which rank, is asked of
the mark. Marks end with their thread: CPython's exit of a `with` over a lock needs memory for its arguments, and a mark
that it leaves taken must not pass to a later thread with the same number.
"""

from __future__ import annotations

from _thread import RLock, _local
from typing import Any, Final

from walkit.errors import CallbackError

WORK: Final = 0
"""Rank of long work that makes callbacks: a compaction."""
STATE: Final = 1
"""Rank of work that waits for the commit path: checkpoints, cursors, the state that is applied."""
STEP: Final = 2
"""Rank of a step that the commit path or the maintenance thread may wait for: it waits for neither."""

HERE: Final[Any] = _local()
"""In its `__dict__`: the marks of the calling thread, by rank."""


def marked(rank: int = STEP) -> Any:
    """Return the mark of this thread, to be entered before a lock of this rank."""
    marks = HERE.__dict__
    try:
        return marks.get(rank) or marks.setdefault(rank, RLock())
    except RuntimeError as error:
        raise MemoryError from error  # for a lock that finds no memory CPython raises a RuntimeError


def once(lock: Any) -> Any:
    """Return the mark; CallbackError if this thread has the lock already, and is in a step that it guards."""
    if lock._is_owned():
        raise CallbackError
    try:
        return HERE.__dict__[STEP]
    except KeyError:
        return marked()


def alone(rank: int) -> Any:
    """Return the mark; CallbackError if this thread has any lock of this rank or a later one."""
    refuse_holder(rank)
    return marked(rank)


def holds(rank: int = STEP) -> bool:
    """Say whether this thread has locks of this rank or a later one."""
    marks = HERE.__dict__
    for each in range(rank, STEP + 1):
        mark = marks.get(each)
        if mark is not None and mark._is_owned():
            return True
    return False


def refuse_holder(rank: int = STEP) -> None:
    """CallbackError if this thread has locks of this rank or a later one: it must not wait for what needs them."""
    if holds(rank):
        raise CallbackError
