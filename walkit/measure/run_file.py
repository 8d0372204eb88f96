"""Runs on disk: a Parquet file each. Its columns are the series, and the metadata of its schema is all the rest.

`walkit.run` in the metadata is JSON with a version: every fact of the Run, and its histograms as HdrHistogram's V2
payloads in base64. `walkit.run.sha256` is the checksum of that JSON, which holds the checksum of the columns.
pandas gives `PANDAS_ATTRS` back as `attrs` of the DataFrame. So pandas, or anything else that reads Parquet, reads the
series without walkit, and `walkit.measure.load` gives back the Run itself.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from walkit._internal.arguments import refuse

FORMAT = "walkit-run"
VERSION = 3
"""2 is the same without `walkit_version` in the facts."""
RUN_KEY, CHECKSUM_KEY, ATTRS_KEY = b"walkit.run", b"walkit.run.sha256", b"PANDAS_ATTRS"
BYTES_MAX = 256 * 1024 * 1024
"""A saved Run is not larger, on disk or in memory; a larger file is not read."""
ENDING = ".parquet"


def write_file(path: str | os.PathLike[str], body: bytes) -> None:
    """Replace a Run's file."""
    target = parquet_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".tmp")
    temporary.write_bytes(body)
    temporary.replace(target)


def encode(name: str, facts: Mapping[str, Any], series: pa.Table, attributes: Mapping[str, Any]) -> bytes:
    """Return the bytes of the file of the Run of this name. OptionsError if a number is one that JSON lacks."""
    whole = {"format": FORMAT, "version": VERSION, "series_sha256": checksum_of(series), "run": facts}
    try:
        text = json.dumps(whole, allow_nan=False).encode()
        attrs = json.dumps(attributes, allow_nan=False).encode()
    except ValueError as error:
        refuse("run", name, f"a number in it is not finite: {error}", cause=error)
    known = {RUN_KEY: text, CHECKSUM_KEY: hashlib.sha256(text).hexdigest(), ATTRS_KEY: attrs}
    sink = pa.BufferOutputStream()
    pq.write_table(series.replace_schema_metadata(known), sink, compression="zstd")
    body: bytes = sink.getvalue().to_pybytes()
    return body


def checksum_of(series: pa.Table) -> str:
    """Return the checksum of all columns: names, types and values."""
    digest = hashlib.sha256()
    for name, column in zip(series.column_names, series.columns, strict=True):
        digest.update(f"{name} {column.type} {len(column)}\n".encode())
        digest.update(column.to_numpy().tobytes())
    return digest.hexdigest()


def parquet_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a Run's file: with the ending, which may be there."""
    return Path(os.fspath(path).removesuffix(ENDING) + ENDING)
