"""Runs as walkit saved them at first, to be read only: a JSON file of facts beside a Parquet file of numbers.

The Parquet file is one table: `part` is "timeline", "latency" or "baseline", `name` that of the histogram, and the
other columns are filled if they apply. The JSON file names the checksum of its Parquet file, so that halves of two
different runs are noticed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from walkit.errors import CorruptionError, FormatVersionError
from walkit.measure.histogram import LatencyHistogram
from walkit.measure.run import Run
from walkit.measure.run_facts import run_of
from walkit.measure.run_file import FORMAT
from walkit.measure.timeline import Timeline

VERSION = 1

SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("low_ns", pa.int64()),
        pa.field("high_ns", pa.int64()),
        pa.field("start_s", pa.float64()),
        pa.field("width_s", pa.float64()),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("p50_us", pa.float64()),
        pa.field("p99_us", pa.float64()),
        pa.field("max_us", pa.float64()),
    ]
)
"""low_ns, high_ns: edges of a histogram's bucket, inclusive; start_s, width_s: an interval of the timeline."""


def load_pair(facts_path: Path, numbers_path: Path) -> Run:
    """Return the Run of a pair.

    FileNotFoundError if the facts are absent, FormatVersionError if a newer walkit wrote them, CorruptionError if it is
    no pair or the two halves do not belong together.
    """
    text, body = facts_path.read_bytes(), numbers_path.read_bytes()
    try:
        facts = json.loads(text)
        found = facts["version"] if facts["format"] == FORMAT else None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{facts_path} is not a saved run: {error}") from error
    if not isinstance(found, int):
        raise CorruptionError(f"{facts_path} is not a saved run", expected=FORMAT, found=facts["format"])
    if found > VERSION:
        raise FormatVersionError(str(facts_path), found=found, supported=VERSION)
    checksum = hashlib.sha256(body).hexdigest()
    if facts.get("parquet_sha256") != checksum:
        raise CorruptionError(
            f"{numbers_path} is not the half that {facts_path.name} was saved with",
            expected=facts.get("parquet_sha256"),
            found=checksum,
        )
    try:
        return _run(facts["run"], pq.read_table(pa.BufferReader(body)))
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise CorruptionError(f"{facts_path} is not a whole saved run: {error!r}") from error


def _run(facts: dict[str, Any], numbers: pa.Table) -> Run:
    def rows(part: str, name: str | None = None) -> pa.Table:
        chosen = pc.equal(numbers["part"], part)
        return numbers.filter(chosen if name is None else pc.and_(chosen, pc.equal(numbers["name"], name)))

    def histogram(part: str, name: str) -> LatencyHistogram:
        found = rows(part, name)
        return LatencyHistogram.from_samples(found["low_ns"].to_numpy(), counts=found["records"].to_numpy())

    line, baseline = rows("timeline"), facts["baseline"]
    return run_of(
        facts,
        Timeline(**{field.name: line[field.name].to_numpy() for field in dataclasses.fields(Timeline)}),
        {name: histogram("latency", name) for name in facts["latency"]},
        histogram("baseline", baseline["mode"]) if baseline else None,
    )
