"""A workload as columns of sizes and times, for runs without bytes, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from walkit.errors import OptionsError
from walkit.simulate.drive import CallColumns
from walkit.workload.distributions import Int64s
from walkit.workload.operations import READ
from walkit.workload.spec import OpenLoop, Workload


def call_columns(workload: Workload) -> list[CallColumns]:
    """Return the calls of each writer or task, in order; OptionsError where the workload reads.

    The same calls that `OperationStream.route` and `due_times` give a driver of real logs, without a list for each.
    """
    operations = workload.stream()
    if bool((operations.kinds == READ).any()):
        raise OptionsError("a log looks no key up: virtual time drives no reads", option="mix", wanted="read")
    edges = np.flatnonzero(np.diff(operations.groups, prepend=-1, append=-1))
    first, end = edges[:-1], edges[1:]
    keys, values = _ends_of(operations.keys), _ends_of(operations.values)
    columns = [end - first, keys[end] - keys[first], values[end] - values[first]]
    if isinstance(workload.arrival, OpenLoop):
        columns.append(workload.arrival.due_ns(len(first), workload.seed))
    owner = operations.routes[first] % np.uint32(workload.callers)
    order = np.argsort(owner, kind="stable")
    splits = np.searchsorted(owner[order], np.arange(1, workload.callers))
    parts = [np.split(column[order], splits) for column in columns]
    due: Sequence[Int64s | None] = parts[3] if len(parts) > 3 else [None] * workload.callers
    return [CallColumns(*sizes) for sizes in zip(*parts[:3], due, strict=True)]


def _ends_of(items: Sequence[bytes | None]) -> Int64s:
    """Return where each item begins and ends if all are concatenated: one number more than items."""
    sizes = np.fromiter((0 if item is None else len(item) for item in items), np.int64, len(items))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
