"""Runs on disk: a JSON file of facts and a Parquet file of numbers, side by side.

The Parquet file is one tidy table that pandas or Spark can read without walkit: `part` is "timeline",
"latency" or "baseline", `name` that of the histogram, and the other columns are filled where they apply. The
JSON file names the checksum of its Parquet file, so that halves of two different runs are noticed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from walkit.errors import CorruptionError, FormatVersionError
from walkit.measure.baseline import Baseline
from walkit.measure.histogram import LatencyHistogram
from walkit.measure.machine import FileSystemFacts, MachineFacts
from walkit.measure.run import FrameSummary, Run, RunEvent
from walkit.measure.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = "walkit-run"
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
"""low_ns, high_ns: edges of a histogram's bucket, inclusive; start_s, width_s: a bucket of the timeline."""


def save(run: Run, path: str | os.PathLike[str]) -> None:
    """See Run.save."""
    facts_path, numbers_path = _pair(path)
    numbers = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(_numbers(run)), numbers, compression="zstd")
    body = numbers.getvalue().to_pybytes()
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "parquet_sha256": hashlib.sha256(body).hexdigest(),
        **_facts(run),
    }
    facts_path.parent.mkdir(parents=True, exist_ok=True)
    _replace(numbers_path, body)
    _replace(facts_path, (json.dumps(facts, indent=1, allow_nan=False) + "\n").encode())


def load(path: str | os.PathLike[str]) -> Run:
    """Return the Run saved at `path` (with either suffix, or none).

    FileNotFoundError if half of the pair is absent, FormatVersionError if a newer walkit wrote it,
    CorruptionError if it is not a Run or the two halves do not belong together.
    """
    facts_path, numbers_path = _pair(path)
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


def _pair(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    base = os.fspath(path)
    stem = base.removesuffix(".json").removesuffix(".parquet")
    return Path(stem + ".json"), Path(stem + ".parquet")


def _replace(path: Path, body: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(body)
    temporary.replace(path)


def _facts(run: Run) -> dict[str, Any]:
    facts = {f.name: getattr(run, f.name) for f in dataclasses.fields(run)}
    del facts["timeline"]
    facts |= {
        "started_at": run.started_at.isoformat(),
        "machine": dataclasses.asdict(run.machine),
        "latency": list(run.latency),
        "frames": run.frames and dataclasses.asdict(run.frames),
        "baseline": run.baseline and {k: v for k, v in vars(run.baseline).items() if k != "latencies"},
    }
    return {"run": facts}


def _numbers(run: Run) -> Iterator[pa.Table]:
    # Arrow keeps nan apart from null, so that empty buckets of the timeline come back as they were.
    yield _table("timeline", None, dict(run.timeline.columns()))
    histograms = [("latency", name, histogram) for name, histogram in run.latency.items()]
    if run.baseline:
        histograms.append(("baseline", run.baseline.mode, run.baseline.latencies))
    for part, name, histogram in histograms:
        low, high, counts = histogram.buckets()
        yield _table(part, name, {"low_ns": low, "high_ns": high, "records": counts})


def _table(part: str, name: str | None, columns: dict[str, Any]) -> pa.Table:
    rows = len(columns["records"])
    filled = {"part": np.full(rows, part), "name": None if name is None else np.full(rows, name), **columns}
    arrays = (filled.get(field.name) for field in SCHEMA)
    return pa.table(
        [
            pa.nulls(rows, f.type) if a is None else pa.array(a, f.type)
            for a, f in zip(arrays, SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )


def _run(facts: dict[str, Any], numbers: pa.Table) -> Run:
    def rows(part: str, name: str | None = None) -> pa.Table:
        chosen = pc.equal(numbers["part"], part)
        return numbers.filter(chosen if name is None else pc.and_(chosen, pc.equal(numbers["name"], name)))

    def histogram(part: str, name: str) -> LatencyHistogram:
        found = rows(part, name)
        return LatencyHistogram.from_samples(found["low_ns"].to_numpy(), counts=found["records"].to_numpy())

    line = rows("timeline")
    machine, baseline = dict(facts["machine"]), facts["baseline"]
    if machine["file_system"]:
        machine["file_system"] = FileSystemFacts(**machine["file_system"])
    return Run(
        **{
            **facts,
            "started_at": datetime.fromisoformat(facts["started_at"]),
            "machine": MachineFacts(**machine),
            "latency": {name: histogram("latency", name) for name in facts["latency"]},
            "timeline": Timeline(
                **{field.name: line[field.name].to_numpy() for field in dataclasses.fields(Timeline)}
            ),
            "frames": FrameSummary(**facts["frames"]) if facts["frames"] else None,
            "events": tuple(RunEvent(*event) for event in facts["events"]),
            "baseline": Baseline(**baseline, latencies=histogram("baseline", baseline["mode"]))
            if baseline
            else None,
        }
    )
