"""Which snapshot the state of a log begins with: for one LSN, or for every LSN whose state the log still holds.

From a snapshot on the log has to be there, with the tombstones: where compaction has dropped one since, a key that was
deleted would live again (FORMAT.md F-16.7).
"""

from __future__ import annotations

from collections.abc import Iterable

from walkit.errors import FormatVersionError, HistoryTrimmedError, SnapshotError
from walkit.read.view import LogView
from walkit.state.snapshot import identity_at, snapshot_lsns, verify_snapshot
from walkit.state.table import KeyedTable


def base_at(view: LogView, wanted: int) -> int:
    """Return the LSN of the snapshot with which the state at `wanted` begins; 0 for the log's beginning.

    A snapshot at the very LSN needs no history. From any other base on the log has to be there, and the state has to be
    one that the log still holds: from the manifest's `exact_from_lsn` on, which trimming and compaction move. Of
    several snapshots it is the newest. HistoryTrimmedError where none will do; the newest one's own error where every
    one that would do is damaged.
    """
    exact = wanted >= view.manifest.exact_from_lsn
    if exact and view.first_lsn == 1:
        return 0
    reached = _reached(view)
    found = [
        lsn for lsn in snapshot_lsns(view.storage) if lsn == wanted or (exact and reached <= lsn < wanted)
    ]
    base = _first_good(view, reversed(found))
    if base is not None:
        return base
    if exact:
        raise HistoryTrimmedError(1, view.first_lsn)
    raise HistoryTrimmedError(wanted, view.manifest.exact_from_lsn)


def base_of_all(view: LogView, newest: int) -> int:
    """Return the LSN of the snapshot with which every state begins that the log still holds; 0 for the log's beginning.

    It is the oldest one from which the log continues. `newest` is the view's last LSN. HistoryTrimmedError where there
    is none; the oldest one's own error where every one is damaged.
    """
    if view.first_lsn == 1:
        return 0
    reached = _reached(view)
    base = _first_good(view, (lsn for lsn in snapshot_lsns(view.storage) if reached <= lsn <= newest))
    return base_at(view, newest) if base is None else base


def _reached(view: LogView) -> int:
    """Return the LSN of the oldest state that could be brought on from this log."""
    return max(view.first_lsn, view.manifest.tombstones_from_lsn) - 1


def _first_good(view: LogView, lsns: Iterable[int]) -> int | None:
    """Return the first LSN whose snapshot of a keyed table can be used; None where there is none to be looked at."""
    refused: list[SnapshotError | FormatVersionError] = []
    for lsn in lsns:
        try:
            info = verify_snapshot(view.storage, lsn, identity=identity_at(view.manifest, lsn))
        except (SnapshotError, FormatVersionError) as error:
            refused.append(error)
            continue
        if info.snapshot_format == KeyedTable.snapshot_format:
            return lsn
    if refused:
        raise refused[0]
    return None
