"""The arguments of `walkit bench recovery`, and its handler."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from walkit.cli import values
from walkit.cli.benchout import OUT_HELP
from walkit.cli.parsers import add_command, add_report_options

CACHES = ("warm", "cold")


def add_bench_recovery(kinds: Any) -> None:
    """Add `recovery` to the kinds of `walkit bench`."""
    recovery = add_command(
        kinds,
        "recovery",
        "measure opening after a kill: verify, log, Store",
        ", for every combination, beside plainly reading the same bytes; exit code 1 where something is missing. "
        "The full size: --operations 10000000 --keys 1000000 --frame-records 10000 --checkpoint-age 1",
        "walkit bench recovery --operations 100000 --frame-records 300 --json",
        bench_recovery,
    )
    recovery.add_argument(
        "--operations", type=values.counts, default=[100_000], metavar="N,N", help="puts (default: 100000)"
    )
    recovery.add_argument(
        "--keys",
        type=values.count,
        metavar="N",
        help="keys that they are on (default: a tenth of the operations)",
    )
    recovery.add_argument(
        "--record-bytes", type=values.count, default=100, metavar="N", help="bytes of a value (default: 100)"
    )
    recovery.add_argument(
        "--frame-records",
        type=values.counts,
        default=[1, 300],
        metavar="N,N",
        help="records of a frame, or of a peer's batch (default: 1,300)",
    )
    recovery.add_argument(
        "--checkpoint-age",
        type=_shares,
        default=[1.0, 0.1],
        metavar="A,A",
        help="share of the operations after the checkpoint; 1: there is none (default: 1,0.1)",
    )
    recovery.add_argument(
        "--cache", type=_caches, default=list(CACHES), metavar="C,C", help="warm, cold, or both (default)"
    )
    recovery.add_argument(
        "--peers",
        action="store_true",
        help="reopen LevelDB, RocksDB and SQLite after a kill, too, with the same operations",
    )
    recovery.add_argument(
        "--runs",
        type=values.count,
        default=1,
        metavar="N",
        help="open so often and show medians (default: 1)",
    )
    recovery.add_argument("--path", metavar="DIR", help="where to work (default: the temporary folder)")
    add_report_options(recovery, OUT_HELP)


def bench_recovery(args: argparse.Namespace) -> int:
    """Measure recoveries, beside plain reading; 1 where something that was written is missing."""
    from walkit.bench.recovery import bench_recovery as measure
    from walkit.cli.benchout import publish_bench

    report = measure(
        operations=args.operations,
        keys=args.keys,
        record_bytes=args.record_bytes,
        frame_records=args.frame_records,
        checkpoint_age=args.checkpoint_age,
        cache=args.cache,
        peers=args.peers,
        runs=args.runs,
        path=args.path,
        progress=sys.stderr.isatty() and not args.json,
    )
    publish_bench(report, args)
    return 0 if report.ok else 1


def _caches(text: str) -> list[str]:
    states = text.split(",")
    for state in states:
        if state not in CACHES:
            raise argparse.ArgumentTypeError(f"{state!r} is not a state of the cache: warm or cold")
    return states


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = [0.0]
    if any(not 0 < share <= 1 for share in shares):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of shares like 1,0.1: above 0, up to 1")
    return shares
