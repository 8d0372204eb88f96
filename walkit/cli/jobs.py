"""`walkit demo` and `walkit bench`: the handlers; the work is in the rooms they name."""

from __future__ import annotations

import argparse
from pathlib import Path

from walkit.cli.output import bar, publish


def demo(args: argparse.Namespace) -> int:
    """Run the main job; 0 only if every check held and compared something."""
    from walkit.demo import run_demo

    given = {"operations": args.operations, "writers": args.writers}
    options = {name: value for name, value in given.items() if value is not None}
    return run_demo(None if args.out is None else Path(args.out), **options)


def bench_spark(args: argparse.Namespace) -> int:
    """Measure a log read by Spark, beside Parquet."""
    from walkit.spark.bench import bench_spark as measure

    with bar("bench spark", " queries") as progress:
        report = measure(
            records=args.records,
            record_bytes=args.record_bytes,
            runs=args.runs,
            path=args.path,
            progress=progress,
        )
    publish(lambda: [report.text()], report.to_dict, as_json=args.json, out=args.out)
    return 0
