"""The one reconciliation rule: which record says what a key is worth.

For each key the record with the newest LSN wins; a delete that wins (a tombstone) leaves nothing. A record without a
key is an event: it is history, and no part of keyed state. A bundle or link with a key counts as a put of its value:
what the value holds is its reader's business. Timestamps decide nothing.

`reconcile` is the rule; `reconcile_arrow` is the same on columns, and a test holds the two to each other. The keyed
table, compaction and Spark are tested against them. (Delta's "action reconciliation" is the source of having one.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from walkit._internal.arrow import array_of_mask, array_of_numbers, mask_of, numbers_of
from walkit.record import Batch, Kind
from walkit.state.latest_per_key import newest_of

DELETE = int(Kind.DELETE)


class Winner(NamedTuple):
    """The newest record of a key. `value` is None for a tombstone, and for a put without a value."""

    lsn: int
    kind: int
    value: bytes | None

    @property
    def is_live(self) -> bool:
        """Whether the key has a value in the state; False for a tombstone."""
        return self.kind != DELETE


def reconcile(batch: Batch) -> dict[bytes, Winner]:
    """Return the newest record of each key, tombstones included. The records may come in any order of LSNs."""
    winners: dict[bytes, Winner] = {}
    for lsn, kind, key, value in batch.rows():
        if key is None:
            continue
        held = winners.get(key)
        if held is None or lsn > held.lsn:
            winners[key] = Winner(lsn, kind, value)
    return winners


def reconcile_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a `walkit.RECORD_SCHEMA` batch that `reconcile` would keep, whole, in LSN order.

    The rows may come in any order. Where every row wins, the batch itself comes back and nothing is copied.
    """
    keys = batch.column("key")
    if keys.null_count:
        batch = batch.filter(array_of_mask(mask_of(keys)))
        keys = batch.column("key")
    lsns = numbers_of(batch.column("lsn"), np.int64)
    if len(lsns) and not (lsns[1:] > lsns[:-1]).all():
        batch = batch.take(array_of_numbers(np.argsort(lsns, kind="stable"), pa.int64()))
        keys = batch.column("key")
    newest = newest_of(keys)
    return batch if newest.all() else batch.filter(array_of_mask(newest))
