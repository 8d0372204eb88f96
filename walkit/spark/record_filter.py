"""Leaves records out when a part of a log is read, before Spark sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walkit._internal.arrow import numbers_of
from walkit.record import RECORD_SCHEMA
from walkit.state.latest_reducer import FinalState

COMBINED_SCHEMA = "lsn bigint, kind tinyint, key binary, value binary"
"""The columns of the remaining records, as Spark spells them."""


def newest_up_to(batches: Iterable[pa.RecordBatch], lsns: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the records that are the newest of their key up to one of `lsns`, inclusive, among those of `batches`.

    `batches` are records of a log in LSN order. A record that is the newest of its key between two of the LSNs is
    yielded, too, so that the newest up to each is among them; those after the last, and those without a key, are not.
    Deletes are records like others. In memory are the newest records between two of the LSNs.
    """
    bounds = sorted(set(lsns))
    state, at = FinalState(), 0
    for batch in batches:
        rest = batch
        while len(rest) and at < len(bounds):
            within = int(np.searchsorted(numbers_of(rest.column("lsn"), np.int64), bounds[at], side="right"))
            if within:
                state.add(rest.slice(0, within))
            if within == len(rest):
                break
            yield from state.newest().to_batches()
            state, at, rest = FinalState(), at + 1, rest.slice(within)
    yield from state.newest().to_batches()


def of_keys(batches: Iterable[pa.RecordBatch], keys: pa.Array, first_lsn: int) -> Iterator[pa.RecordBatch]:
    """Yield the records that have one of `keys`; of those before `first_lsn` only the newest of each key.

    `batches` are records of a log in LSN order, with the columns of `RECORD_SCHEMA`. Records before `first_lsn` come
    without their time. In memory are the newest of them.
    """
    state = FinalState()
    for batch in batches:
        found = batch.filter(pc.is_in(batch.column("key"), value_set=keys))
        early = int(np.searchsorted(numbers_of(found.column("lsn"), np.int64), first_lsn))
        if early:
            state.add(found.slice(0, early))
        if early < len(found):
            yield found.slice(early)
    for batch in state.newest().to_batches():
        time = RECORD_SCHEMA.field("timestamp")
        yield batch.append_column(time, pa.nulls(len(batch), time.type))
