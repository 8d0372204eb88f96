"""The arguments of `walkit bench delta`, and its handler."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from walkit.cli import values
from walkit.cli.benchout import OUT_HELP, publish_bench
from walkit.cli.output import say
from walkit.cli.parsers import add_command, add_report_options


def add_bench_delta(kinds: Any) -> None:
    """Add `delta` to the kinds of `walkit bench`."""
    parser = add_command(
        kinds,
        "delta",
        "measure how far a delta reader lags, beside one that reads the log alone",
        ": on the folder, on a modelled remote storage, and there in virtual time too",
        "walkit bench delta --mb-per-s 20 --record-bytes 1024 --json",
        bench_delta,
    )
    parser.add_argument(
        "--mb-per-s", type=float, default=20.0, metavar="R", help="rate of the steady load (default: 20)"
    )
    parser.add_argument(
        "--record-bytes",
        type=values.count,
        default=1024,
        metavar="N",
        help="bytes of a value (default: 1024)",
    )
    parser.add_argument(
        "--frame-bytes",
        type=values.count,
        default=16384,
        metavar="N",
        help="bytes of a frame (default: 16384)",
    )
    parser.add_argument(
        "--buffers",
        type=values.counts,
        default=[32768, 262144],
        metavar="N,N",
        help="bytes that a primary keeps for a reader (default: 32768,262144)",
    )
    parser.add_argument(
        "--seconds", type=values.seconds, default=3.0, metavar="S", help="time for each reader (default: 3)"
    )
    parser.add_argument(
        "--rounds",
        type=values.count,
        default=3,
        metavar="N",
        help="how often each reader is measured, in turns (default: 3)",
    )
    parser.add_argument("--path", metavar="DIR", help="where to measure (default: the temporary folder)")
    add_report_options(parser, OUT_HELP)


def bench_delta(args: argparse.Namespace) -> int:
    """Measure delta readers beside readers of the log alone."""
    from walkit.bench.delta import bench_delta as measure

    report = measure(
        mb_per_s=args.mb_per_s,
        record_bytes=args.record_bytes,
        frame_bytes=args.frame_bytes,
        buffers=args.buffers,
        seconds=args.seconds,
        rounds=args.rounds,
        path=args.path,
        progress=lambda what: say(f"bench delta: {what}") if sys.stderr.isatty() else None,
    )
    publish_bench(report, args)
    return 0
