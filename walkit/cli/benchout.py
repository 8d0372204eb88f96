"""What a benchmark measured, printed or saved: as text, as JSON, or its rows as Parquet."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Protocol

from walkit.cli.output import json_text, publish, saved, say

OUT_HELP = "save it there: FILE.parquet gets the rows, for pandas; with --json, any other gets JSON"


class Measured(Protocol):
    """The report of a benchmark."""

    def text(self) -> str:
        """Return it for a person."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values; `rows`, where it has them, are those of its table."""


def publish_bench(report: Measured, args: argparse.Namespace) -> None:
    """Print a report or save it, as `--json` and `--out` ask. With `--out FILE.parquet` it is printed, too."""
    out = args.out
    if out is not None and out.endswith(".parquet"):
        _save_rows(report.to_dict(), out)
        out = None
    publish(lambda: [report.text()], report.to_dict, as_json=args.json, out=out)


def _save_rows(plain: dict[str, Any], path: str) -> None:
    """Save the rows as a table, and all else as what pandas gives back as its `attrs`; without rows, all in one row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rest = {name: value for name, value in plain.items() if name != "rows"}
    rows = [_flat(row) for row in plain.get("rows", [rest])]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    table = table.replace_schema_metadata({"PANDAS_ATTRS": json_text(rest)})
    with saved(path) as sink:
        pq.write_table(table, sink, compression="zstd")
    say(f"{len(rows):,} rows saved as {path}")


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
