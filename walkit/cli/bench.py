"""`walkit bench`: the handlers, and results as text, JSON or Parquet."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from walkit._internal.report import TableReport
from walkit.cli.output import bar, echo, json_text, note, progress_shown, publish, saved

OF_THE_COMMAND = {
    *("command", "kind", "run", "parser", "debug", "quiet", "verbose"),
    *("json", "out", "save_runs"),
}
"""Arguments that are not of the measurement."""


def bench_write(args: argparse.Namespace) -> int:
    """Measure appending, beside the raw device."""
    from walkit.bench.matrix import bench_write as measure

    options = _options(args)
    options["outstanding"] = outstanding = args.outstanding or []
    options["ack_order"] = args.ack_order or [None]
    options["writers"] = args.writers or outstanding or [1, 8, 64]
    options["tasks"] = args.tasks or outstanding or ([] if args.model else [64])
    return _publish(measure(**options, progress=_shows_bar(args)), args)


def bench_order(args: argparse.Namespace) -> int:
    """Measure both orders, round after round."""
    from walkit.bench.order import bench_order as measure

    options = _options(args)
    buffered = options.pop("buffered")
    report = measure(**options, direct_io=not buffered, progress=_shows_bar(args))
    if args.save_runs:
        report.save(args.save_runs)
    return _publish(report, args)


def bench_recovery(args: argparse.Namespace) -> int:
    """Measure recoveries, beside plain reading; 1 if something that was written is missing."""
    from walkit.bench.recovery import bench_recovery as measure

    report = measure(**_options(args), progress=_shows_bar(args))
    _publish(report, args)
    return 0 if report.ok else 1


def bench_spark(args: argparse.Namespace) -> int:
    """Measure a log in Spark, beside Parquet and one process."""
    from walkit.bench.spark import GROUPS
    from walkit.bench.spark import bench_spark as measure

    with bar("bench spark", " queries") as progress:
        report = measure(**_options(args) | {"queries": args.queries or GROUPS}, progress=progress)
    return _publish(report, args)


def bench_replication(args: argparse.Namespace) -> int:
    """Measure appending with a replica beside appending alone, and a replica that catches up beside plain reading."""
    from walkit.bench.replication import bench_replication as measure

    return _publish(measure(**_options(args), progress=_step_printer(args)), args)


def bench_delta(args: argparse.Namespace) -> int:
    """Measure delta readers beside readers of the log alone."""
    from walkit.bench.delta import bench_delta as measure

    return _publish(measure(**_options(args), progress=_step_printer(args)), args)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of this benchmark, by the names of its parameters."""
    return {name: value for name, value in vars(args).items() if name not in OF_THE_COMMAND}


def _shows_bar(args: argparse.Namespace) -> bool:
    return progress_shown() and not args.json


def _step_printer(args: argparse.Namespace) -> Callable[[str], None] | None:
    """Return a function that prints the step of a benchmark; None without a terminal."""
    return (lambda what: echo(f"bench {args.kind}: {what}")) if progress_shown() else None


def _publish(report: TableReport, args: argparse.Namespace) -> int:
    """Print a report or save it, by `--json` and `--out`. With `--out FILE.parquet` it is printed, too."""
    if args.out is not None and args.out.endswith(".parquet"):
        _save_rows(report.to_dict(), args.out)
        args.out = None
    publish(f"bench.{args.kind}", args, lambda: [report.text()], report.to_dict)
    return 0


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
    note(f"{len(rows):,} rows saved as {path}")


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
