"""The final state of records, as columns: what a replay into a keyed table gives, without an object for each key.

Tables here have the columns of `walkit.state.table.TABLE_SCHEMA` with 64-bit offsets, because a state may hold more
bytes than 32 bits can count.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from walkit.errors import GapError, OptionsError
from walkit.log.reader import LogView
from walkit.log.surface import ReadSurface
from walkit.state.bases import base_at
from walkit.state.reduce import FinalState
from walkit.state.snapshot import identity_at, snapshot_batches

StateProgress = Callable[[int, int], None]
"""Called after each batch with (LSNs passed, LSNs to pass). What it raises ends the work."""


def exact_state(
    log: ReadSurface, at_lsn: int | None = None, progress: StateProgress | None = None
) -> pa.Table:
    """Return the state of a log after `at_lsn` (default: its newest record; 0: before the first), in no order.

    Made of the records from the log's first one on where they are all there, else of the newest usable snapshot at or
    below `at_lsn` and the records after it. HistoryTrimmedError where neither gives it exactly; OptionsError for an
    LSN that the log has not reached; the newest snapshot's own error where every one that would do is damaged.
    """
    while True:
        view, newest = log._now()
        try:
            return _state_of(view, _wanted(view, newest, at_lsn), progress)
        except GapError:
            # A trim or a compaction has taken away what the view names. What is left tells the state, or refuses.
            if log._now()[0].manifest.generation == view.manifest.generation:
                raise


def _state_of(view: LogView, wanted: int, progress: StateProgress | None) -> pa.Table:
    state = FinalState()
    if wanted == 0:
        return state.live()
    base = base_at(view, wanted)
    if base:
        for batch in snapshot_batches(view.storage, base, identity_at(view.manifest, base)):
            state.add(batch)
    if base < wanted:
        for batch in view.batches(base + 1, wanted):
            state.add(batch)
            if progress is not None and len(batch):
                progress(batch.column("lsn")[-1].as_py() - base, wanted - base)
    return state.live()


def _wanted(view: LogView, newest: int, at_lsn: int | None) -> int:
    if at_lsn is None:
        return newest
    if isinstance(at_lsn, bool) or not isinstance(at_lsn, int) or at_lsn < 0:
        raise OptionsError(
            f"{at_lsn!r} is no LSN; give a number, or 0 for the state before the first record",
            option="at_lsn",
            wanted=at_lsn,
        )
    if at_lsn > newest:
        raise OptionsError(
            f"there is no state at LSN {at_lsn:,} yet: the log at {view.storage.location} ends at {newest:,}",
            option="at_lsn",
            wanted=at_lsn,
            stored=newest,
        )
    return at_lsn
