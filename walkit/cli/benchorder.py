"""The arguments of `walkit bench order`, and its handler."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from walkit.cli import values
from walkit.cli.benchout import OUT_HELP
from walkit.cli.benchwrite import _policies
from walkit.cli.parsers import add_command, add_report_options


def add_bench_order(kinds: Any) -> None:
    """Add `order` to the kinds of `walkit bench`."""
    order = add_command(
        kinds,
        "order",
        "measure what append order costs against completion order",
        ": ratios of throughput and p99, with the mean number of frames in flight beside each, on the disk, on one "
        "as slow as a modelled device, and in virtual time",
        "walkit bench order --writers 8,64 --runs 3 --json",
        bench_order,
    )
    order.add_argument(
        "--writers",
        type=values.counts,
        default=[8, 16, 32, 64],
        metavar="N,N",
        help="threads (default: 8,16,32,64)",
    )
    order.add_argument(
        "--in-flight",
        type=values.count,
        default=8,
        metavar="N",
        help="frames written at the same time (default: 8)",
    )
    order.add_argument(
        "--policy",
        type=_policies,
        default=["one-record", "capped:4", "take-all"],
        metavar="NAME,NAME",
        help="when frames are sealed (default: one-record,capped:4,take-all)",
    )
    order.add_argument(
        "--models",
        type=lambda text: text.split(",") if text else [],
        default=["essd-pl1-20g"],
        metavar="NAME,NAME",
        help="modelled devices, in real time and in virtual time (default: essd-pl1-20g; '' for none)",
    )
    order.add_argument(
        "--record-bytes",
        type=values.count,
        default=1024,
        metavar="N",
        help="bytes of a value (default: 1024)",
    )
    order.add_argument(
        "--seconds",
        type=values.seconds,
        default=0.6,
        metavar="S",
        help="time of a measurement (default: 0.6)",
    )
    order.add_argument(
        "--runs",
        type=values.count,
        default=5,
        metavar="N",
        help="rounds, of which ratios are medians (default: 5)",
    )
    order.add_argument(
        "--buffered", action="store_true", help="write through the page cache, not past it (O_DIRECT)"
    )
    order.add_argument("--path", metavar="DIR", help="where to measure (default: the temporary folder)")
    order.add_argument("--save-runs", metavar="DIR", help="save every measurement there as a Run")
    add_report_options(order, OUT_HELP)


def bench_order(args: argparse.Namespace) -> int:
    """Measure both orders, round after round."""
    from walkit.bench.order import bench_order as measure
    from walkit.cli.benchout import publish_bench

    report = measure(
        writers=args.writers,
        in_flight=args.in_flight,
        policies=args.policy,
        models=args.models,
        value_bytes=args.record_bytes,
        seconds=args.seconds,
        rounds=args.runs,
        path=args.path,
        direct_io=not args.buffered,
        progress=sys.stderr.isatty() and not args.json,
    )
    if args.save_runs:
        report.save(args.save_runs)
    publish_bench(report, args)
    return 0
