"""Saved Runs, read again: see `run_file` for the file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from walkit.errors import CorruptionError, FormatVersionError
from walkit.measure.baseline import Baseline
from walkit.measure.histogram import LatencyHistogram
from walkit.measure.machine import FileSystemFacts, MachineFacts
from walkit.measure.run import FrameSummary, Run, RunEvent
from walkit.measure.run_file import (
    BYTES_MAX,
    CHECKSUM_KEY,
    FORMAT,
    RUN_KEY,
    VERSION,
    checksum_of,
    parquet_path,
)
from walkit.measure.timeline import Timeline


def load(path: str | os.PathLike[str]) -> Run:
    """Return the Run saved at `path` (with the ending .parquet, or without it).

    FileNotFoundError if it is missing; FormatVersionError if a newer walkit wrote it, CorruptionError if it is damaged
    or something else. Nothing larger than a Run can be is read.
    """
    target = parquet_path(path)
    with open(target, "rb") as file:
        try:
            found = _opened(file, target)
            metadata = found.schema_arrow.metadata or {}
            if RUN_KEY in metadata:
                return _read(found, metadata, target)
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            raise CorruptionError(f"{target} is not a whole saved run: {error!r}") from error
    raise CorruptionError(
        f"{target} is not a saved run: its metadata has no {RUN_KEY.decode()}", expected=FORMAT
    )


def _opened(file: BinaryIO, path: Path) -> pq.ParquetFile:
    size = os.fstat(file.fileno()).st_size
    if size > BYTES_MAX:
        raise CorruptionError(f"{path} is too large to be a saved run", expected=BYTES_MAX, found=size)
    found = pq.ParquetFile(file)
    groups = range(found.metadata.num_row_groups)
    unpacked = sum(found.metadata.row_group(number).total_byte_size for number in groups)
    if not 0 <= unpacked <= BYTES_MAX or not 0 <= found.metadata.num_rows <= BYTES_MAX:
        raise CorruptionError(f"{path} is too large to be a saved run", expected=BYTES_MAX, found=unpacked)
    return found


def _read(found: pq.ParquetFile, metadata: Mapping[bytes, bytes], path: Path) -> Run:
    text = metadata[RUN_KEY]
    checksum = hashlib.sha256(text).hexdigest()
    if metadata.get(CHECKSUM_KEY) != checksum.encode():
        raise CorruptionError(
            f"{path} is damaged: the checksum of its facts differs",
            expected=metadata.get(CHECKSUM_KEY, b"").decode("ascii", "replace"),
            found=checksum,
        )
    facts = json.loads(text)
    if facts["format"] != FORMAT or not isinstance(facts["version"], int):
        raise CorruptionError(f"{path} is not a saved run", expected=FORMAT, found=facts["format"])
    if facts["version"] > VERSION:
        raise FormatVersionError(str(path), found=facts["version"], supported=VERSION)
    series = found.read()
    checksum = checksum_of(series)
    if facts["series_sha256"] != checksum:
        raise CorruptionError(
            f"{path} is damaged: the checksum of its columns differs",
            expected=facts["series_sha256"],
            found=checksum,
        )
    return _run_of(facts["run"], series)


def _run_of(facts: Mapping[str, Any], series: pa.Table) -> Run:
    """Return the Run of its facts (`Run.facts`) and its columns. KeyError, TypeError or ValueError for wrong facts."""
    machine, baseline = dict(facts["machine"]), facts["baseline"]
    if machine["file_system"]:
        machine["file_system"] = FileSystemFacts(**machine["file_system"])
    if baseline:
        baseline = Baseline(**{**baseline, "latencies": LatencyHistogram.decode(baseline["latencies"])})
    events: Iterable[Any] = facts["events"]
    columns = {field.name: series[field.name].to_numpy() for field in dataclasses.fields(Timeline)}
    return Run(
        **{
            **facts,
            "started_at": datetime.fromisoformat(facts["started_at"]),
            "machine": MachineFacts(**machine),
            "latency": {name: LatencyHistogram.decode(told) for name, told in facts["latency"].items()},
            "timeline": Timeline(**columns),
            "frames": FrameSummary(**facts["frames"]) if facts["frames"] else None,
            "events": tuple(RunEvent(*event) for event in events),
            "baseline": baseline,
        }
    )
