"""Locks for which no thread waits that has them, and none for which a thread waits that has others.

Foreign Python (a finaliser, a signal handler) runs between any two bytecodes, so also on a thread with locks of
walkit's, and its calls must not wait for that very thread. Each lock is an RLock, which knows its owner from the C call
on that takes it, and is entered after a mark of the thread: `with once(self._lock), self._lock:`.

A mark is an RLock, too, that only its own thread takes: whether the thread has locks, and of which rank, is asked of
the mark. Marks are given back in C, so nothing that fails can leave one.
"""

from __future__ import annotations

import os
from _thread import RLock, get_ident
from typing import Any, Final

from walkit.errors import CallbackError

WORK: Final = 0
"""Rank of long work that makes callbacks: a compaction."""
STATE: Final = 1
"""Rank of work that waits for the commit path: checkpoints, cursors, the state that is applied."""
STEP: Final = 2
"""Rank of a step that the commit path or the maintenance thread may wait for: it waits for neither."""

MARKS: Final[tuple[dict[int, Any], ...]] = ({}, {}, {})
"""By rank: the mark of each thread, by its number."""
_steps: Final = MARKS[STEP]


def marked(rank: int = STEP) -> Any:
    """Return the mark of this thread, to be entered before a lock of this rank."""
    marks, thread = MARKS[rank], get_ident()
    mark = marks.get(thread)
    return marks.setdefault(thread, RLock()) if mark is None else mark


def once(lock: Any) -> Any:
    """Return the mark; CallbackError if this thread has the lock already, and is in a step that it guards."""
    if lock._is_owned():
        raise CallbackError
    try:
        return _steps[get_ident()]
    except KeyError:
        return marked()


def alone(rank: int) -> Any:
    """Return the mark; CallbackError if this thread has any lock of this rank or a later one."""
    refuse_holder(rank)
    return marked(rank)


def holds(rank: int = STEP) -> bool:
    """Say whether this thread has locks of this rank or a later one."""
    thread = get_ident()
    for marks in MARKS[rank:]:
        mark = marks.get(thread)
        if mark is not None and mark._is_owned():
            return True
    return False


def refuse_holder(rank: int = STEP) -> None:
    """CallbackError if this thread has locks of this rank or a later one: it must not wait for what needs them."""
    if holds(rank):
        raise CallbackError


def _after_fork_in_child() -> None:
    thread = get_ident()
    for marks in MARKS:
        mine = marks.get(thread)
        marks.clear()
        if mine is not None:
            marks[thread] = mine


os.register_at_fork(after_in_child=_after_fork_in_child)
