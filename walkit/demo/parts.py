"""Where the stream is cut: the two LSNs whose states are compared later.

Each part is driven to its end before the next one begins, and every operation is one record. So the LSN at the end of a
part is the number of operations until then, and the oracle knows the state there although the writers ran freely.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from walkit.record import Kind
from walkit.workload import OperationStream
from walkit.workload.operations import Int64s

FIRST_BETWEEN = (0.3, 0.5)
"""The first cut lies between these parts of the stream, the second one at SECOND_AT."""
SECOND_AT = 0.75


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A stream in three parts. `first_lsn` and `second_lsn` are the numbers of operations up to the two cuts."""

    streams: tuple[OperationStream, OperationStream, OperationStream]
    first_lsn: int
    second_lsn: int


def cut(stream: OperationStream) -> Parts:
    """Cut a stream where most is deleted from one LSN to the other.

    A flight is deleted when it is cancelled, a day after it was scheduled, which is rare: at most moments a handful
    waits for it. The first cut is where most keys are live that the second part deletes; in 300,000 operations that is
    the afternoon of 8 February 2013, when a blizzard came.
    """
    size = len(stream)
    second = _group_end(stream, int(size * SECOND_AT))
    low, high = (int(size * part) for part in FIRST_BETWEEN)
    first = _group_end(stream, low + int(_waiting(stream, second)[low:high].argmax()))
    ends = (0, first, second, size)
    one, two, three = (stream.select(np.arange(start, end)) for start, end in pairwise(ends))
    return Parts(streams=(one, two, three), first_lsn=first, second_lsn=second)


def _waiting(stream: OperationStream, end: int) -> Int64s:
    """Return for n = 0, 1, ... how many keys are live after n operations and deleted before operation `end`."""
    deleted = np.flatnonzero(stream.kinds[:end] == Kind.DELETE)
    keys = {stream.keys[at]: at for at in deleted.tolist()}
    moves = np.zeros(len(stream) + 1, dtype=np.int64)
    seen: set[bytes] = set()
    for at, key in enumerate(stream.keys[:end]):
        if key in keys and key not in seen:
            seen.add(key)
            if at < keys[key]:
                moves[at + 1] += 1
                moves[keys[key] + 1] -= 1
    return np.cumsum(moves)


def _group_end(stream: OperationStream, near: int) -> int:
    """Return the first cut from `near` on that splits no group."""
    groups = stream.groups
    return int(np.searchsorted(groups, groups[near - 1], side="right")) if near else 0
