"""A workload as columns of sizes and times, for those who drive no bytes: virtual time."""

from __future__ import annotations

import numpy as np

from walkit.errors import OptionsError
from walkit.simulate.drive import CallColumns
from walkit.workload.drive import due_times
from walkit.workload.operations import READ, OperationStream
from walkit.workload.spec import Workload


def call_columns(workload: Workload) -> list[CallColumns]:
    """Return the calls of each writer or task, in order; OptionsError where the workload reads."""
    operations = workload.stream()
    if bool((operations.kinds == READ).any()):
        raise OptionsError("a log looks no key up: virtual time drives no reads", option="mix", wanted="read")
    parts = operations.route(workload.callers)
    due = due_times(workload, operations, parts)
    return [
        _columns(part, None if due is None else np.asarray(due[i], np.int64)) for i, part in enumerate(parts)
    ]


def _columns(part: OperationStream, due_ns: np.ndarray[tuple[int], np.dtype[np.int64]] | None) -> CallColumns:
    bounds = np.array(list(part.bounds()), np.int64).reshape(-1, 2)
    keys, values = (
        np.concatenate([[0], np.cumsum([len(item or b"") for item in column], dtype=np.int64)])
        for column in (part.keys, part.values)
    )
    first, end = bounds[:, 0], bounds[:, 1]
    return CallColumns(end - first, keys[end] - keys[first], values[end] - values[first], due_ns)
