"""Traces: operations that somebody recorded, from a CSV or Parquet file."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from walkit._internal.arguments import refuse
from walkit.errors import MissingExtraError, StorageError
from walkit.record import Kind
from walkit.workload.operations import READ, OperationStream

if TYPE_CHECKING:
    import pandas as pd

KINDS = {
    **dict.fromkeys(("put", "set", "insert", "update"), int(Kind.PUT)),
    **dict.fromkeys(("delete", "del", "remove"), int(Kind.DELETE)),
    **dict.fromkeys(("read", "get"), READ),
}
"""The values of column `kind`, in any case, and their meaning."""

COLUMNS = ("key", "kind", "value", "value_bytes", "time_us", "group")


def trace_operations(path: str | os.PathLike[str], *, seed: int = 0) -> OperationStream:
    """Read a trace: a file *.csv or *.parquet with a row for each operation, in their order.

    Columns: `key` (text or bytes), and perhaps `kind` (put, set, insert, update, delete, del, remove, read, get;
    default put), `value` (text or bytes) or `value_bytes` (its size: random bytes of that many, by `seed`), `time_us`
    (microseconds, never falling) and `group` (equal for neighbours that are one transaction). Without values a put has
    100 bytes. Every operation of a key goes to one writer, in its order; a group goes with its first key, so two groups
    that share a later key may go to two writers.

    OptionsError for other columns and for rows that are not an operation; StorageError if the file cannot be read.
    """
    frame = _read(Path(path))
    other = sorted(set(frame.columns) - set(COLUMNS))
    if "key" not in frame or other or {"value", "value_bytes"} <= set(frame.columns):
        text = "key and, perhaps, kind, value or value_bytes, time_us, group"
        refuse("columns", list(frame.columns), text)
    kinds = _kinds(frame)
    keys = [_bytes(key, "key", row) for row, key in enumerate(frame["key"].tolist())]
    groups = np.arange(len(keys))
    if "group" in frame:
        labels = frame["group"].to_numpy()
        groups = np.cumsum(np.append(False, labels[1:] != labels[:-1])) if keys else groups
    first = np.searchsorted(groups, groups)
    times = frame["time_us"].to_numpy(np.int64)[first] if "time_us" in frame else groups
    routes = np.array([zlib.crc32(key) for key in keys], np.uint32)[first]
    return OperationStream(
        kinds=kinds,
        keys=keys,
        values=_values(frame, kinds == Kind.PUT, seed),
        times_us=times.astype(np.int64),
        groups=groups.astype(np.int64),
        routes=routes,
        numbers=np.arange(len(keys)),
    )


def _read(path: Path) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("demo", "pandas") from error
    readers: dict[str, Any] = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    reader = readers.get(path.suffix)
    if reader is None:
        refuse("path", str(path), "*.csv or *.parquet")
    # Text stays text: a key 007 is not a number, and a value NA is not missing.
    text = {"dtype": {"key": str, "value": str}, "keep_default_na": False} if path.suffix == ".csv" else {}
    try:
        frame: pd.DataFrame = reader(path, **text)
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read as a trace: {error}", name=str(path)) from error
    return frame


def _kinds(frame: pd.DataFrame) -> Any:
    if "kind" not in frame:
        return np.full(len(frame), Kind.PUT, np.int8)
    named = [str(kind).lower() for kind in frame["kind"].tolist()]
    unknown = sorted(set(named) - set(KINDS))
    if unknown:
        refuse("kind", unknown, f"one of {', '.join(KINDS)}")
    return np.array([KINDS[kind] for kind in named], np.int8)


def _values(frame: pd.DataFrame, puts: Any, seed: int) -> list[bytes | None]:
    if "value" in frame:
        rows = enumerate(zip(frame["value"].tolist(), puts.tolist(), strict=True))
        return [_bytes(value, "value", row) if put else None for row, (value, put) in rows]
    sizes = np.full(len(frame), 100, np.int64)
    if "value_bytes" in frame:
        given = np.where(puts, frame["value_bytes"].to_numpy(np.float64, na_value=-1), 0)
        if (given < 0).any() or (given != np.floor(given)).any():
            refuse("value_bytes", given.min(), "a whole number from 0 for every put")
        sizes = given.astype(np.int64)
    rng = np.random.default_rng(seed)
    return [rng.bytes(size) if put else None for size, put in zip(sizes.tolist(), puts.tolist(), strict=True)]


def _bytes(item: object, what: str, row: int) -> bytes:
    if not isinstance(item, str | bytes):
        refuse(what, item, f"text or bytes, in row {row}")
    return item.encode() if isinstance(item, str) else item
