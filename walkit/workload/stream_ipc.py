"""A stream of operations as bytes, for handing it to another process: one Arrow IPC stream of seven columns."""

from __future__ import annotations

from typing import IO, Any

import numpy as np
import pyarrow as pa

from walkit._internal.arrow import stream_table
from walkit.workload.operations import OperationStream

OPERATION_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("time_us", pa.int64(), nullable=False),
        pa.field("group", pa.int64(), nullable=False),
        pa.field("route", pa.uint32(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
    ]
)
ROWS_PER_BATCH = 50_000


def stream_to_ipc(stream: OperationStream) -> memoryview:
    """Return the stream as an Arrow IPC stream."""
    columns = (
        stream.kinds,
        stream.keys,
        stream.values,
        stream.times_us,
        stream.groups,
        stream.routes,
        stream.numbers,
    )
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, OPERATION_SCHEMA, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, OPERATION_SCHEMA) as writer:
        writer.write_table(pa.table(arrays, schema=OPERATION_SCHEMA), max_chunksize=ROWS_PER_BATCH)
    return memoryview(sink.getvalue())


def stream_from_ipc(source: IO[bytes]) -> OperationStream:
    """Read a stream that `stream_to_ipc` wrote, and not a byte more."""
    table = stream_table(source)

    def numbers(name: str) -> Any:
        # A copy: Arrow's memory is read-only, and would keep the whole table.
        return np.array(table.column(name).to_numpy())

    return OperationStream(
        kinds=numbers("kind"),
        keys=table.column("key").to_pylist(),
        values=table.column("value").to_pylist(),
        times_us=numbers("time_us"),
        groups=numbers("group"),
        routes=numbers("route"),
        numbers=numbers("number"),
    )
