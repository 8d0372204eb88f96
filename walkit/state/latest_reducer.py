"""Records reduced to the newest of each key while they come, as columns; and the ties among them.

Records tie if they are the newest of their key with the same LSN. One log has no ties. Rows from elsewhere may hold
a log twice, or several logs.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from walkit._internal.arrow import array_of_mask, mask_of, numbers_of
from walkit.state.reconcile import DELETE, Mask, newest_of


def with_ties(batches: list[pa.RecordBatch], newest: Mask) -> tuple[Mask, tuple[bytes, int] | None]:
    """Return the mask of rows that win or tie, and (key, LSN) of a tie; None without a tie.

    `batches` have columns `lsn` and `key` and are in LSN order, `newest` marks the last row of each
    key. Rows are compared only if an LSN comes more than once.
    """
    lsns = np.concatenate([numbers_of(batch.column("lsn"), np.int64) for batch in batches])
    again = lsns[1:] == lsns[:-1]
    shared = np.append(again, False) | np.insert(again, 0, False)
    if not shared.any():
        return newest, None
    rows = np.flatnonzero(shared)
    keys = pa.chunked_array([batch.column("key").cast(pa.large_binary()) for batch in batches])
    codes = keys.take(pa.array(rows)).combine_chunks().dictionary_encode()
    runs = np.cumsum(np.insert(~again[rows[1:] - 1], 0, True))
    pairs = runs * (len(codes.dictionary) + 1) + codes.indices.to_numpy()
    _, which, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    won = np.zeros(len(counts), np.bool_)
    won[which[newest[rows]]] = True
    tied = rows[(won & (counts > 1))[which]]
    if not len(tied):
        return newest, None
    held = newest.copy()
    held[tied] = True
    return held, (keys[int(tied[0])].as_py(), int(lsns[tied[0]]))


REDUCE_BYTES = 64 << 20
"""Records gathered before they are reduced to the newest of each key; more if the state itself is larger."""
GOAL_STATES = 3
"""Or so many times the state's size."""
GOAL_STATES_LARGE, LARGE_BYTES = 2, 512
"""So many times if a record of the state takes more than so many bytes: the choice of winners costs by the record,
memory by the byte."""

JOINED_BYTES = 8 << 20
"""Size in bytes to which the remains of several batches are joined."""

NARROW_BYTES_MAX = (1 << 31) - 1
"""The limit of the 32-bit offsets of one Arrow array."""

RECORDS_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)

STATE_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("key", pa.large_binary()),
        pa.field("value", pa.large_binary()),
        pa.field("lsn", pa.int64(), nullable=False),
    ]
)


class FinalState:
    """Takes records in any order, and holds the newest of each key: memory for the state, not for the history.

    Batches are kept as they come, and reduced together once they hold `REDUCE_BYTES`, or thrice the state's size:
    only winners are copied. Batches in LSN order, as a log gives them, need no sorting. Not thread-safe.

    Without `tombstones` a delete that wins goes, too, whenever they are reduced: for records in LSN order that are all
    there are, so that nothing older comes that it would suppress.
    """

    def __init__(self, *, tombstones: bool = True) -> None:
        self.tombstones = tombstones
        """May be set: older state exists that later deletes have to reach."""
        self.tied: tuple[bytes, int] | None = None
        """(key, LSN) with two newest records, as of the last `newest`; None without one."""
        self._waiting: list[pa.RecordBatch] = []
        self._size = 0
        self._goal = REDUCE_BYTES
        self._ordered, self._last_lsn = True, -1

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch with columns `lsn`, `kind`, `key`, `value` (more do no harm), and reduce if that is due."""
        self.take(batch)
        self.reduce()

    def take(self, batch: pa.RecordBatch) -> None:
        """Take a batch, and leave the rest to `reduce`."""
        columns = [_of_type(batch.column(field.name), field.type) for field in RECORDS_SCHEMA]
        batch = pa.RecordBatch.from_arrays(columns, schema=RECORDS_SCHEMA)
        keys = batch.column("key")
        if keys.null_count == len(keys):
            return
        if keys.null_count:
            batch = batch.filter(array_of_mask(mask_of(keys)))
        lsns = numbers_of(batch.column("lsn"), np.int64)
        self._ordered = self._ordered and lsns[0] > self._last_lsn and bool((lsns[1:] > lsns[:-1]).all())
        self._last_lsn = int(lsns[-1])
        self._waiting.append(batch)
        self._size += batch.nbytes

    def reduce(self) -> None:
        """Reduce the taken records if they are many. An interrupt leaves all of it there."""
        if self._size > self._goal:
            self.newest()

    def newest(self) -> pa.Table:
        """Return the newest record of each key, in LSN order, as a table of `RECORDS_SCHEMA`."""
        looked_for = not self._ordered or self.tied is not None
        if not self._ordered:
            self._waiting = pa.Table.from_batches(self._waiting).sort_by("lsn").to_batches()
            self._ordered = True
        newest = _newest_in(self._waiting)
        if looked_for:
            newest, self.tied = (None, None) if newest is None else with_ties(self._waiting, newest)
        if newest is not None or not self.tombstones:
            self._keep(newest)
        if self._waiting:
            self._last_lsn = self._waiting[-1].column("lsn")[-1].as_py()
        self._size = sum(batch.nbytes for batch in self._waiting)
        large = self._size > LARGE_BYTES * sum(map(len, self._waiting))
        self._goal = max(REDUCE_BYTES, (GOAL_STATES_LARGE if large else GOAL_STATES) * self._size)
        return pa.Table.from_batches(self._waiting, RECORDS_SCHEMA)

    def _keep(self, newest: Mask | None) -> None:
        """Copy the winners, the oldest first, and release each few batches before the next are copied.

        An interrupt between them leaves records that are superseded, and none whose older ones are still there.
        """
        waiting, at, row = self._waiting, 0, 0
        while at < len(waiting):
            kept, size, end = [], 0, at
            while end < len(waiting) and (not size or size + waiting[end].nbytes <= JOINED_BYTES):
                batch = waiting[end]
                part = self._wins(batch, None if newest is None else newest[row : row + len(batch)])
                row, end, size = row + len(batch), end + 1, size + part.nbytes
                if len(part):
                    kept.append(part)
            joined = kept if len(kept) < 2 else [pa.concat_batches(kept)]
            waiting[at:end] = joined
            at += len(joined)

    def _wins(self, batch: pa.RecordBatch, newest: Mask | None) -> pa.RecordBatch:
        wins = np.ones(len(batch), np.bool_) if newest is None else newest
        if not self.tombstones:
            wins = wins & (numbers_of(batch.column("kind"), np.int8) != DELETE)
        return batch if wins.all() else batch.filter(array_of_mask(wins))

    def live(self) -> pa.Table:
        """Return key, value and LSN of each live key, in no order, as one chunk with 64-bit offsets."""
        live = pa.Table.from_batches([_live(batch) for batch in self.newest().to_batches()], RECORDS_SCHEMA)
        return live.select(STATE_SCHEMA.names).cast(STATE_SCHEMA).combine_chunks()


def _of_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


def _live(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without its tombstones; itself without any."""
    live = numbers_of(batch.column("kind"), np.int8) != DELETE
    return batch if live.all() else batch.filter(array_of_mask(live))


def _newest_in(batches: list[pa.RecordBatch]) -> Mask | None:
    """Return which of the records, in LSN order, win; None if all of them do."""
    if not batches:
        return None
    keys = pa.chunked_array([batch.column("key") for batch in batches])
    if keys.nbytes > NARROW_BYTES_MAX:
        keys = keys.cast(pa.large_binary())
    mask = newest_of(keys.combine_chunks())
    return None if mask.all() else mask
