"""`walkit.spark.diff_report`: a diff summed up in the workers, in one job; only counts and samples reach the driver."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from walkit._internal.arrow import stream_table
from walkit.spark.diff import Side, Sides, SideSpec, states_of
from walkit.spark.errors import errors
from walkit.spark.provenance import SideLog, with_causes
from walkit.state.diff import diff_states
from walkit.state.diff_report import DiffReport, DiffSums, counted, first, first_rows, report_columns
from walkit.state.value_decoder import Columns, Decoder

PART_STRUCT = StructType([StructField("counts", StringType()), StructField("samples", BinaryType())])


@errors()
def diff_report(
    left: Side,
    right: Side,
    *,
    decoder: Decoder | None = None,
    ignore: Collection[str] = (),
    tolerance: float = 0.0,
    samples: int = 5,
) -> DiffReport:
    """Return the counts, samples and most changed columns of `diff(left, right)`, by one Spark job that runs now.

    With a `decoder` (json, arrow, or a function of bytes that returns a mapping, which workers can be sent) changed
    values are compared by column: without the columns in `ignore`, and numbers that differ by at most `tolerance` are
    equal, infinities and NaN only to themselves. A key whose columns are all equal counts as unchanged, and as
    tolerated. One that cannot be decoded on either side stays changed, and is counted; so is one whose
    columns cannot be compared. The failure at the lowest LSN is in the report, with the decoder's error, and is the
    event `walkit.diff.undecoded`. Arrays of numpy are compared by their elements.

    `samples` is how many rows of each change the report has, with at most 4,096 bytes of each value. Raises what `diff`
    raises, and OptionsError for an invalid decoder, tolerance or number of samples.
    """
    columns = report_columns(decoder, ignore, tolerance, samples)
    started = time.perf_counter()
    sides = Sides.of(left, right)
    work = partial(sum_up, sides=sides.spec, columns=columns, samples=samples)
    parts = sides.apart_by_key(work, PART_STRUCT).toArrow().to_pylist()
    total = DiffSums()
    for part in parts:
        total.add(json.loads(part["counts"]))
    rows = first_rows([stream_table(part["samples"]) for part in parts], samples)
    return total.report(_named(sides.spec.left), _named(sides.spec.right), rows, started)


def sum_up(
    batches: Iterable[pa.RecordBatch], *, sides: SideSpec, columns: Columns | None, samples: int
) -> Iterator[pa.RecordBatch]:
    """Yield one row for the keys whose records are in `batches`, all of them: counts as JSON, samples as Arrow."""
    left, right = states_of(batches, sides)
    found, sums = counted(left, right, diff_states(left, right, unchanged=True), columns)
    sink = pa.BufferOutputStream()
    table = with_causes(first(found, samples), sides.left, sides.right)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    yield pa.RecordBatch.from_pydict(
        {"counts": [json.dumps(sums.to_dict())], "samples": [sink.getvalue().to_pybytes()]},
        pa.schema([("counts", pa.string()), ("samples", pa.binary())]),
    )


def _named(side: SideLog) -> str:
    return f"{side.facts.path} at LSN {side.at_lsn:,}"
