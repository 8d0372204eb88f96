"""A keyed table that stays Arrow: an example of a state machine whose state is columns.

The same state as `walkit.state.KeyedTable` by the same rule, with the same snapshots, so that one can be restored from
the other's. No record becomes an object, and the state is ready for a query. It has no quick `get`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from walkit._text import counted
from walkit.record import Batch
from walkit.state.machine import check_follows
from walkit.state.reduce import FinalState
from walkit.state.table import IMAGE_RECORDS, PUT, TABLE_SCHEMA, checksum_of


class ArrowTable:
    """Key to value with the LSN of the record that set it, as columns. Takes Arrow, and gathers. Not thread-safe."""

    snapshot_format = "keyed-table/1"

    def __init__(self) -> None:
        self.applied_lsn = 0
        self._state = FinalState(tombstones=False)

    def apply(self, batch: Batch) -> None:
        """See `StateMachine.apply`."""
        if len(batch):
            self.apply_arrow(batch.to_arrow())

    def apply_arrow(self, batch: pa.RecordBatch) -> None:
        """See `ArrowStateMachine.apply_arrow`."""
        self.gather(batch)
        self.reduce()

    def gather(self, batch: pa.RecordBatch) -> None:
        """See `GatheringStateMachine`."""
        if not len(batch):
            return
        lsns = batch.column("lsn")
        check_follows(self.applied_lsn, lsns[0].as_py())
        self._state.take(batch)
        self.applied_lsn = lsns[-1].as_py()

    def reduce(self) -> None:
        """See `GatheringStateMachine`."""
        self._state.reduce()

    def settle(self) -> None:
        """See `GatheringStateMachine`: reduce what is gathered to the state."""
        self._state.newest()

    def __len__(self) -> int:
        """Return the number of live keys."""
        return len(self._state.newest())

    def to_arrow(self) -> pa.Table:
        """Return the state as a table of `walkit.state.table.TABLE_SCHEMA`, in order of keys. Sorts."""
        return self._state.newest().sort_by("key").select(TABLE_SCHEMA.names).cast(TABLE_SCHEMA)

    def snapshot(self) -> Iterator[Batch]:
        """See `StateMachine.snapshot`. Copies nothing at the call, as columns do not change; sorts later."""
        return _image(self._state.newest())

    def restore(self, batches: Iterable[Batch], lsn: int) -> None:
        """See `StateMachine.restore`."""
        self._state = FinalState(tombstones=False)
        for batch in batches:
            self._state.add(_unordered(batch))
        self._state.newest()
        self.applied_lsn = lsn

    def checksum(self) -> int:
        """Return a hash of live keys and values in order of keys: that of `KeyedTable`. Sorts the keys."""
        return checksum_of(self.snapshot())

    def __repr__(self) -> str:
        return f"<ArrowTable of {counted(len(self), 'key')} at LSN {self.applied_lsn}>"


def _image(newest: pa.Table) -> Iterator[Batch]:
    for part in newest.sort_by("key").to_batches(max_chunksize=IMAGE_RECORDS):
        if len(part):
            columns = (part.column(name).to_pylist() for name in ("lsn", "key", "value"))
            lsns, keys, values = columns
            yield Batch(lsns, PUT, keys, values)


def _unordered(batch: Batch) -> pa.RecordBatch:
    """Return records of a snapshot as columns: their LSNs do not grow, which `Batch.to_arrow` would ask for."""
    count = len(batch)
    return pa.record_batch(
        {
            "lsn": pa.array(batch.lsns, pa.int64()),
            "kind": pa.array([PUT] * count, pa.int8()),
            "key": pa.array(batch.keys, pa.binary()),
            "value": pa.array(batch.values, pa.binary()),
        }
    )
