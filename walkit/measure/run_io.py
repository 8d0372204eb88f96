"""Saved Runs, read again: see `run_file` for the file. Pairs of an earlier walkit are read too."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from walkit.errors import CorruptionError, FormatVersionError
from walkit.measure.histogram import LatencyHistogram
from walkit.measure.run import Run
from walkit.measure.run_facts import run_of
from walkit.measure.run_file import (
    BYTES_MAX,
    CHECKSUM_KEY,
    FORMAT,
    RUN_KEY,
    VERSION,
    checksum_of,
    is_facts,
    parquet_path,
)
from walkit.measure.run_pair import SCHEMA as PAIR_SCHEMA
from walkit.measure.run_pair import load_pair
from walkit.measure.timeline import Timeline


def load(path: str | os.PathLike[str]) -> Run:
    """Return the Run saved at `path` (with the ending .parquet, or without it); pairs of an earlier walkit load too.

    FileNotFoundError if it is missing, or half of a pair is; FormatVersionError if a newer walkit wrote it,
    CorruptionError if it is damaged or something else. Nothing larger than a Run can be is read.
    """
    target, asked = parquet_path(path), Path(path)
    if asked.suffix == ".json" and asked.is_file() and not target.exists() and not is_facts(asked):
        raise CorruptionError(f"{asked} is not a saved run", expected=FORMAT)
    with open(target, "rb") as file:
        try:
            found = _opened(file, target)
            metadata = found.schema_arrow.metadata or {}
            if RUN_KEY in metadata:
                return _read(found, metadata, target)
            is_pair = found.schema_arrow.equals(PAIR_SCHEMA)
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            raise CorruptionError(f"{target} is not a whole saved run: {error!r}") from error
    if not is_pair:
        raise CorruptionError(
            f"{target} is not a saved run: its metadata has no {RUN_KEY.decode()}", expected=FORMAT
        )
    return load_pair(target.with_suffix(".json"), target)


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
    told, baseline = facts["run"], facts["run"]["baseline"]
    columns = (field.name for field in dataclasses.fields(Timeline))
    return run_of(
        told,
        Timeline(**{name: series[name].to_numpy() for name in columns}),
        {name: LatencyHistogram.decode(payload) for name, payload in told["latency"].items()},
        LatencyHistogram.decode(baseline["latencies"]) if baseline else None,
    )
