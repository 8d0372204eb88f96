"""`walkit demo` and `walkit bench`: the handlers; the work is in `walkit.demo` and `walkit.workload.bench`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from walkit.cli.output import publish


def demo(args: argparse.Namespace) -> int:
    """Run the main job; 0 only if every check held and compared something."""
    from walkit.demo import run_demo

    given = {"operations": args.operations, "writers": args.writers}
    options = {name: value for name, value in given.items() if value is not None}
    return run_demo(None if args.out is None else Path(args.out), **options)


def bench_write(args: argparse.Namespace) -> int:
    """Measure appending, beside the raw device."""
    from walkit.workload.bench import bench_write as measure

    report = measure(
        writers=args.writers,
        tasks=args.tasks,
        record_bytes=args.record_bytes,
        seconds=args.seconds,
        path=args.path,
        durability=args.durability,
        progress=sys.stderr.isatty() and not args.json,
    )
    publish(lambda: [report.text()], report.to_dict, as_json=args.json, out=args.out)
    return 0
