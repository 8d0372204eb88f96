"""`walkit demo` and `walkit bench`: the handlers; the work is in the rooms they name."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from walkit.cli.benchout import publish_bench
from walkit.cli.output import bar, say
from walkit.errors import MissingExtraError


def demo(args: argparse.Namespace) -> int:
    """Run the main job; 0 only if every check held and compared something."""
    try:
        from walkit.demo import run_demo
    except MissingExtraError as error:  # of the rooms that the demo needs: its extra brings all of them
        raise MissingExtraError("demo", error.package) from error

    given = {"operations": args.operations, "writers": args.writers}
    options = {name: value for name, value in given.items() if value is not None}
    return run_demo(None if args.out is None else Path(args.out), **options)


def bench_replication(args: argparse.Namespace) -> int:
    """Measure appending with a replica beside appending alone, and a replica that catches up beside plain reading."""
    from walkit.bench.replication import bench_replication as measure

    report = measure(
        writers=args.writers,
        record_bytes=args.record_bytes,
        seconds=args.seconds,
        path=args.path,
        progress=lambda what: say(f"bench replication: {what}") if sys.stderr.isatty() else None,
    )
    publish_bench(report, args)
    return 0


def bench_spark(args: argparse.Namespace) -> int:
    """Measure a log in Spark, beside Parquet and one process."""
    from walkit.bench.spark import GROUPS
    from walkit.bench.spark import bench_spark as measure

    with bar("bench spark", " queries") as progress:
        report = measure(
            records=args.records,
            record_bytes=args.record_bytes,
            queries=args.queries or GROUPS,
            runs=args.runs,
            master=args.master,
            path=args.path,
            progress=progress,
        )
    publish_bench(report, args)
    return 0
