"""Patches: the changes of a diff, made in another store whose state is the diff's left side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from walkit._internal.arguments import refuse
from walkit._internal.arrow import validated
from walkit.state.diff import CHANGED, DELETED, INSERTED, UNCHANGED

COLUMNS = ("key", "change", "left_value", "right_value")


class Change(NamedTuple):
    """What one key becomes: `value`, or nothing at all where it is deleted."""

    key: bytes
    deleted: bool
    value: bytes | None


def changes_of(diff: Any, get: Callable[[bytes, Any], Any]) -> list[Change]:
    """Return what a diff changes, in its order; `get(key, default)` gives the value of a key here.

    OptionsError where it is no diff, or where a key differs from the diff's left side: then nothing is changed.
    """
    try:
        table = diff if isinstance(diff, pa.Table) else pa.table(diff)
        columns = (validated(table.column(name)).to_pylist() for name in COLUMNS)
        rows = list(zip(*columns, strict=True))
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        refuse("diff", diff, f"a table of {', '.join(COLUMNS)}, as walkit.diff returns: {error}", cause=error)
    changes = []
    absent = object()
    for key, change, left, right in rows:
        if change not in (INSERTED, DELETED, CHANGED, UNCHANGED) or not isinstance(key, bytes):
            refuse("diff", change, f"a change is I, D, C or N, of a key of bytes; this key is {key!r}")
        here, wanted = get(key, absent), absent if change == INSERTED else left
        if here is not wanted and here != wanted:
            text = f"key {key!r} differs from the diff's left side; nothing was changed"
            refuse("diff", None if wanted is absent else wanted, text, None if here is absent else here)
        if change != UNCHANGED:
            changes.append(Change(key, change == DELETED, right))
    return changes
