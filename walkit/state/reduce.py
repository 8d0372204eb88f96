"""Records reduced to the newest of each key while they come, as columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walkit.state.newest import newest_of
from walkit.state.reconcile import DELETE

REDUCE_BYTES = 64 << 20
"""Records gathered before they are reduced to the newest of each key; more where the state itself is larger."""

NARROW_BYTES_MAX = (1 << 31) - 1
"""What the 32-bit offsets of one Arrow array can count."""

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

    Batches are kept as they come, and reduced together once they hold `REDUCE_BYTES`, or thrice what the state holds:
    only what wins is copied. Batches in LSN order, as a log gives them, need no sorting. Not thread-safe.

    Without `tombstones` a delete that wins goes, too, whenever they are reduced: for records in LSN order that are all
    there are, so that nothing older comes that it would suppress.
    """

    def __init__(self, *, tombstones: bool = True) -> None:
        self._tombstones = tombstones
        self._waiting: list[pa.RecordBatch] = []
        self._size = 0
        self._goal = REDUCE_BYTES
        self._ordered, self._last_lsn = True, -1

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch with columns `lsn`, `kind`, `key`, `value` (more do no harm), and reduce if that is due."""
        self.take(batch)
        self.reduce()

    def take(self, batch: pa.RecordBatch) -> None:
        """Take a batch, and leave the rest to `reduce`. An LSN names one record."""
        columns = [batch.column(field.name).cast(field.type) for field in RECORDS_SCHEMA]
        batch = pa.RecordBatch.from_arrays(columns, schema=RECORDS_SCHEMA)
        if batch.column("key").null_count:
            batch = batch.filter(pc.is_valid(batch.column("key")))
        if not len(batch):
            return
        lsns = batch.column("lsn").to_numpy()
        self._ordered = self._ordered and lsns[0] > self._last_lsn and bool((lsns[1:] > lsns[:-1]).all())
        self._last_lsn = int(lsns[-1])
        self._waiting.append(batch)
        self._size += batch.nbytes

    def reduce(self) -> None:
        """Reduce what was taken if it is much. An interrupt leaves all of it there."""
        if self._size > self._goal:
            self.newest()

    def newest(self) -> pa.Table:
        """Return the newest record of each key, in LSN order, as a table of `RECORDS_SCHEMA`."""
        waiting = self._waiting
        if not self._ordered:
            table = pa.Table.from_batches(waiting).sort_by("lsn")
            waiting = table.to_batches()
        newest = _newest_in(waiting)
        if newest is not None:
            waiting = newest
        if not self._tombstones:
            waiting = [live for batch in waiting if len(live := _live(batch))]
        if waiting:
            self._last_lsn = waiting[-1].column("lsn")[-1].as_py()
        self._waiting, self._ordered = waiting, True
        self._size = sum(batch.nbytes for batch in waiting)
        self._goal = max(REDUCE_BYTES, 3 * self._size)
        return pa.Table.from_batches(waiting, RECORDS_SCHEMA)

    def live(self) -> pa.Table:
        """Return key, value and LSN of each live key, in no order, as one chunk with 64-bit offsets."""
        live = pa.Table.from_batches([_live(batch) for batch in self.newest().to_batches()], RECORDS_SCHEMA)
        return live.select(STATE_SCHEMA.names).cast(STATE_SCHEMA).combine_chunks()


def _live(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without its tombstones; itself where there are none."""
    live = pc.not_equal(batch.column("kind"), DELETE)
    return batch if pc.all(live).as_py() else batch.filter(live)


def _newest_in(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
    """Return what wins among records in LSN order, copied together; None where all of them do."""
    if not batches:
        return None
    keys = pa.chunked_array([batch.column("key") for batch in batches])
    if keys.nbytes > NARROW_BYTES_MAX:
        keys = keys.cast(pa.large_binary())
    mask = newest_of(keys.combine_chunks())
    if mask.all():
        return None
    ends = np.cumsum([len(batch) for batch in batches]).tolist()
    parts = [
        batch.filter(pa.array(mask[end - len(batch) : end])) for batch, end in zip(batches, ends, strict=True)
    ]
    table = pa.Table.from_batches(parts).combine_chunks()
    return [batch for batch in table.to_batches() if len(batch)]
