"""Ties: records that are the newest of their key together with another one, with the same LSN.

In one log there is none. Rows that come from elsewhere may hold a log twice, or several logs.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from walkit._internal.arrow import numbers_of
from walkit.state.latest_per_key import Mask


def with_ties(batches: list[pa.RecordBatch], newest: Mask) -> tuple[Mask, tuple[bytes, int] | None]:
    """Return which rows win or tie with one that wins, and key and LSN of such a tie; None where there is none.

    `batches` have columns `lsn` and `key` and are in LSN order, `newest` says which of their rows is the last of its
    key. Rows are compared only where an LSN comes more than once.
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
