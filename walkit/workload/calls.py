"""A workload as columns of sizes and times, for runs without bytes, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from walkit._internal.arguments import refuse
from walkit.simulate.drive import CallColumns
from walkit.workload.distributions import Int64s
from walkit.workload.operations import READ, OperationStream


def call_columns(
    operations: OperationStream, callers: int, due_ns: Callable[[int], Int64s] | None
) -> list[CallColumns]:
    """Return the calls of each writer or task, in order; OptionsError if the operations read.

    `due_ns` returns when each of so many calls is due, in an open loop; None in a closed one.
    The same calls that `OperationStream.route` and `due_times` give a driver of real logs, without a list for each.
    """
    if bool((operations.kinds == READ).any()):
        refuse("mix", "read", "virtual time drives no reads, as a log looks up no keys")
    edges = np.flatnonzero(np.diff(operations.groups, prepend=-1, append=-1))
    first, end = edges[:-1], edges[1:]
    keys, values = _ends_of(operations.keys), _ends_of(operations.values)
    columns = [end - first, keys[end] - keys[first], values[end] - values[first]]
    if due_ns is not None:
        columns.append(due_ns(len(first)))
    owner = operations.routes[first] % np.uint32(callers)
    order = np.argsort(owner, kind="stable")
    splits = np.searchsorted(owner[order], np.arange(1, callers))
    parts = [np.split(column[order], splits) for column in columns]
    due: Sequence[Int64s | None] = parts[3] if len(parts) > 3 else [None] * callers
    return [CallColumns(*sizes) for sizes in zip(*parts[:3], due, strict=True)]


def _ends_of(items: Sequence[bytes | None]) -> Int64s:
    """Return where each item begins and ends if all are concatenated: one number more than items."""
    sizes = np.fromiter((0 if item is None else len(item) for item in items), np.int64, len(items))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
