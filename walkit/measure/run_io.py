"""Runs on disk: a Parquet file each. Its columns are the series, and the metadata of its schema is all the rest.

`walkit.run` in the metadata is JSON with a version: every fact of the Run, and its histograms as HdrHistogram's V2
payloads in base64. `walkit.run.sha256` is the checksum of that JSON, which holds the checksum of the columns.
`PANDAS_ATTRS` is what pandas gives back as `attrs` of the DataFrame. So pandas, or anything else that reads Parquet,
reads the series without walkit, and `load` gives back the Run itself.
"""

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

from walkit.errors import CorruptionError, FormatVersionError, OptionsError
from walkit.measure.histogram import LatencyHistogram
from walkit.measure.run import Run
from walkit.measure.run_facts import facts_of, run_of
from walkit.measure.run_pair import SCHEMA as PAIR_SCHEMA
from walkit.measure.run_pair import is_facts, load_pair
from walkit.measure.series import attributes, series_table
from walkit.measure.timeline import Timeline

FORMAT = "walkit-run"
VERSION = 3
"""2 is the same without `walkit_version` in the facts."""
RUN_KEY, CHECKSUM_KEY, ATTRS_KEY = b"walkit.run", b"walkit.run.sha256", b"PANDAS_ATTRS"
BYTES_MAX = 256 * 1024 * 1024
"""A saved Run is not larger, on disk or in memory; what is, is not read."""
ENDINGS = (".parquet", ".json")


def save(run: Run, path: str | os.PathLike[str]) -> None:
    """See Run.save."""
    target, old_facts = _parquet(path), _parquet(path).with_suffix(".json")
    body = encoded(run)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".tmp")
    temporary.write_bytes(body)
    temporary.replace(target)
    if is_facts(old_facts):  # of a pair whose other half has just been replaced
        old_facts.unlink()


def encoded(run: Run) -> bytes:
    """Return the bytes of a Run's file. OptionsError for a Run with a number that JSON does not have."""
    series = series_table(run)
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "series_sha256": _checksum(series),
        "run": facts_of(run),
    }
    try:
        text = json.dumps(facts, allow_nan=False).encode()
        attrs = json.dumps(attributes(run), allow_nan=False).encode()
    except ValueError as error:
        raise OptionsError(
            f"the run {run.name!r} has a number that is not finite", option="run", wanted=run.name
        ) from error
    known = {RUN_KEY: text, CHECKSUM_KEY: hashlib.sha256(text).hexdigest(), ATTRS_KEY: attrs}
    sink = pa.BufferOutputStream()
    pq.write_table(series.replace_schema_metadata(known), sink, compression="zstd")
    body: bytes = sink.getvalue().to_pybytes()
    return body


def load(path: str | os.PathLike[str]) -> Run:
    """Return the Run saved at `path` (with the ending .parquet, or without it); pairs of an earlier walkit load too.

    FileNotFoundError if there is none, or only half of a pair; FormatVersionError if a newer walkit wrote it,
    CorruptionError if it is damaged or something else. Nothing larger than a Run can be is read.
    """
    target, asked = _parquet(path), Path(path)
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
    checksum = _checksum(series)
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


def _checksum(series: pa.Table) -> str:
    """Return the checksum of all columns: names, types and values."""
    digest = hashlib.sha256()
    for name, column in zip(series.column_names, series.columns, strict=True):
        digest.update(f"{name} {column.type} {len(column)}\n".encode())
        digest.update(column.to_numpy().tobytes())
    return digest.hexdigest()


def _parquet(path: str | os.PathLike[str]) -> Path:
    """Return the path of a Run's file: an ending that is there gives way to .parquet, and any other stays before it."""
    base = os.fspath(path)
    ending = next((ending for ending in ENDINGS if base.endswith(ending)), "")
    return Path(base.removesuffix(ending) + ".parquet")
