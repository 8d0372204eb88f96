"""The newest record of each key within a part of a log, found where the part is read, before anything is shuffled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from walkit._arrow import numbers_of
from walkit.state.reduce import FinalState

COMBINED_SCHEMA = "lsn bigint, kind tinyint, key binary, value binary"
"""The columns of what is found, as Spark spells them."""


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
