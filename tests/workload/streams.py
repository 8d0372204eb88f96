"""Shared by the tests of the drivers: a small seeded stream, and its final state, computed without walkit."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

import walkit
from walkit.record import Kind, Record
from walkit.workload import OperationStream

if TYPE_CHECKING:
    import pandas as pd

SMALL = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024)
"""Segments that a few hundred operations fill."""

Change = tuple[int, bytes | None]


def seeded_stream(
    operations: int, *, seed: int = 7, routes: int = 40, value_bytes: int = 60
) -> OperationStream:
    """Return operations in groups of one to four, each group on keys of one route; a fifth of them deletes.

    Each value starts with the operation's number, so no two records are equal.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, operations)
    groups = np.repeat(np.arange(operations), sizes)[:operations]
    route = rng.integers(0, routes, operations)[groups]
    deletes = rng.random(operations) < 0.2
    keys = [b"key/%d/%d" % (r, k) for r, k in zip(route, rng.integers(0, 5, operations), strict=True)]
    return OperationStream(
        kinds=np.where(deletes, Kind.DELETE, Kind.PUT).astype(np.int8),
        keys=keys,
        values=[None if gone else b"%d " % i + b"v" * value_bytes for i, gone in enumerate(deletes)],
        times_us=groups * 1_000_000,
        groups=groups,
        routes=np.array([zlib.crc32(b"%d" % r) for r in route], dtype=np.uint32),
        numbers=np.arange(operations),
    )


def state_of(stream: OperationStream, numbers: Iterable[int] | None = None) -> dict[bytes, bytes]:
    """Return the state after these operations (default: all), one after the other in a dict."""
    state: dict[bytes, bytes] = {}
    for i in range(len(stream)) if numbers is None else numbers:
        value = stream.values[i]
        if value is None:
            state.pop(stream.keys[i], None)
        else:
            state[stream.keys[i]] = value
    return state


def changes_of(stream: OperationStream) -> dict[bytes, list[Change]]:
    """Return what happens to each key, in order."""
    found: dict[bytes, list[Change]] = defaultdict(list)
    for kind, key, value in zip(stream.kinds.tolist(), stream.keys, stream.values, strict=True):
        found[key].append((kind, value))
    return dict(found)


def records_of(log: walkit.WriteAheadLog) -> list[Record]:
    """Return all records of a log, having checked that LSNs are dense from 1."""
    records = list(log.read())
    assert [r.lsn for r in records] == list(range(1, len(records) + 1))
    return records


def prefixes(parts: Sequence[OperationStream], records: Iterable[Record]) -> list[int]:
    """Return how many operations of each part the records are, having checked that they are exactly its first ones."""
    part_of = {key: index for index, part in enumerate(parts) for key in part.keys}
    done = [0] * len(parts)
    for record in records:
        assert record.key is not None
        index = part_of[record.key]
        part, at = parts[index], done[index]
        assert at < len(part), f"part {index} has {at} operations, and there is one more"
        assert (int(record.kind), record.key, record.value) == (
            part.kinds[at],
            part.keys[at],
            part.values[at],
        )
        done[index] += 1
    return done


def table_of(stream: OperationStream) -> pd.DataFrame:
    """Return the stream as the oracle's table."""
    import pandas as pd

    columns = {"group": stream.groups, "time_us": stream.times_us, "kind": stream.kinds}
    keys = pd.Series(stream.keys, dtype=object)
    values = pd.Series(stream.values, dtype=object)
    return pd.DataFrame({"operation": stream.numbers, **columns, "key": keys, "value": values})
