"""The changes of records in the state before them, in one process: rows of `walkit.spark.changes`, in order of LSNs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from walkit.errors import SnapshotError
from walkit.record import Kind
from walkit.segments.history import LogPoint
from walkit.spark.linked import with_values
from walkit.spark.object_log import seen_at, source_at
from walkit.spark.options import read_options
from walkit.spark.scan import Scan, parts_of, plan_log
from walkit.state.latest_reducer import FinalState
from walkit.state.snapshot import snapshot_batches
from walkit.storage.address import StorageOptions

CHANGES_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("change", pa.string(), nullable=False),
        pa.field("pre_value", pa.binary()),
        pa.field("post_value", pa.binary()),
        pa.field("lsn", pa.int64(), nullable=False),
    ]
)
"""The columns of the rows."""
ROWS_MAX = 10_000
"""Most rows in a batch."""


def changes_of(
    path: str,
    first_lsn: int,
    records: Iterable[pa.RecordBatch],
    end: LogPoint,
    storage_options: StorageOptions | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of `records`, all from `first_lsn` on, in the state before them; of the log that has `end`.

    In memory are the records, and the state before them of the keys that they have. For it the log is read up to there,
    without the batches that have no such key. HistoryTrimmedError if that state or a record is no longer known.
    """
    options = read_options({"path": path, "snapshot": "true", "lastLsn": first_lsn - 1, "partitions": 1})
    options = replace(options, storage_options=storage_options)
    late: list[pa.RecordBatch] = []
    while True:
        scan = plan_log(path, options)
        end.require(scan.manifest, path)
        scan.facts.require_records(first_lsn)
        late = late or [batch.filter(batch.column("key").is_valid()) for batch in records]
        keys = pa.chunked_array([batch.column("key") for batch in late], pa.binary()).unique()
        try:
            before = state_of(scan, keys)
            break
        except SnapshotError:  # unless a checkpoint has removed it since, for a newer one
            if seen_at(path, storage_options).view.manifest.generation == scan.manifest.generation:
                raise
    rows = changed(before, late)
    while some := list(islice(rows, ROWS_MAX)):
        yield pa.RecordBatch.from_pylist(some, CHANGES_SCHEMA)


def state_of(scan: Scan, keys: pa.Array) -> FinalState:
    """Return the state of some keys at the end of a load of a snapshot and the records after it."""
    found = FinalState()
    if scan.snapshot is not None:
        files = source_at(scan.path, scan.storage_options).folder()
        rows = snapshot_batches(files, scan.snapshot.lsn, scan.snapshot.identity)
        wanted = (batch.filter(pc.is_in(batch.column("key"), keys)) for batch in rows)
        for batch in with_values(scan.path, scan.storage_options, wanted):
            found.add(batch)
    (part,) = parts_of(scan.manifest, scan.last_lsn, [scan.ranges], scan.bulks)
    for batch in part.batches(scan.path, first_lsn=scan.frames_from, last_lsn=scan.last_lsn, keys=keys):
        found.add(batch.filter(pc.is_in(batch.column("key"), keys)))
    return found


def changed(before: FinalState, late: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield the changes of records with keys, in order of LSNs, in the state before them."""
    live = {row["key"]: row["value"] for row in before.live().to_pylist()}
    for batch in late:
        for row in batch.to_pylist():
            key, is_put = row["key"], row["kind"] != Kind.DELETE
            if is_put or key in live:
                yield {
                    "key": key,
                    "change": ("C" if key in live else "I") if is_put else "D",
                    "pre_value": live.get(key),
                    "post_value": row["value"] if is_put else None,
                    "lsn": row["lsn"],
                }
            if is_put:
                live[key] = row["value"]
            else:
                live.pop(key, None)
