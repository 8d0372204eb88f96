"""The arguments of `walkit bench write`, and its handler."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from walkit.cli import values
from walkit.cli.benchout import OUT_HELP
from walkit.cli.parsers import add_command, add_report_options

ORDERS = ("append", "completion")


def add_bench_write(kinds: Any) -> None:
    """Add `write` to the kinds of `walkit bench`."""
    write = add_command(
        kinds,
        "write",
        "measure appending: records a second and latencies",
        ", for every combination, beside a raw loop of synced writes in the same run",
        "walkit bench write --writers 1,8,64 --tasks 64 --peers --json",
        bench_write,
    )
    write.add_argument(
        "--writers",
        type=values.counts,
        metavar="N,N",
        help="threads (default: 1,8,64; those of --outstanding where it is given)",
    )
    write.add_argument(
        "--tasks",
        type=values.counts,
        metavar="N,N",
        help="asyncio tasks (default: 64; none with --model; those of --outstanding where it is given)",
    )
    write.add_argument(
        "--outstanding",
        type=values.counts,
        default=[],
        metavar="N,N",
        help="records on their way at a time, with tickets from one thread, in place of submit and the bulk calls; "
        "every way is then followed by raw parallel writes of equal frames",
    )
    write.add_argument(
        "--record-bytes",
        type=values.counts,
        default=[100],
        metavar="N,N",
        help="bytes of a value (default: 100)",
    )
    _add_log_options(write)
    write.add_argument(
        "--seconds", type=values.seconds, default=2.0, metavar="S", help="time of each way in (default: 2)"
    )
    place = write.add_mutually_exclusive_group()
    place.add_argument(
        "--path", "--device", metavar="DIR", help="where to measure (default: the temporary folder)"
    )
    place.add_argument("--model", metavar="NAME", help="a modelled device in place of a real one")
    write.add_argument(
        "--peers",
        action="store_true",
        help="measure SQLite, LevelDB, RocksDB and LMDB too, with as many threads",
    )
    write.add_argument(
        "--runs",
        type=values.count,
        metavar="N",
        help="measure everything so often and show medians (default: 1; 5 with --peers)",
    )
    add_report_options(write, OUT_HELP)


def _add_log_options(write: argparse.ArgumentParser) -> None:
    write.add_argument(
        "--in-flight",
        type=values.counts,
        default=[1],
        metavar="N,N",
        help="frames written at the same time (default: 1)",
    )
    write.add_argument(
        "--ack-order",
        type=_orders,
        default=[None],
        metavar="ORDER,ORDER",
        help="append, completion, or both (default: append)",
    )
    write.add_argument(
        "--durability",
        choices=("sync", "interval", "none"),
        default="sync",
        help="what an acknowledgement promises (default: sync)",
    )
    write.add_argument(
        "--policy",
        type=_policies,
        default=["take-all"],
        metavar="NAME,NAME",
        help="when frames are sealed: take-all, one-record, adaptive, capped:RECORDS, linger:MICROSECONDS "
        "(default: take-all)",
    )
    write.add_argument(
        "--direct-io", action="store_true", help="write past the page cache (O_DIRECT), aligned to 4096 bytes"
    )


def bench_write(args: argparse.Namespace) -> int:
    """Measure appending, beside the raw device."""
    from walkit.bench.matrix import bench_write as measure
    from walkit.cli.benchout import publish_bench

    outstanding = args.outstanding
    tasks = args.tasks or outstanding or ([] if args.model else [64])
    report = measure(
        writers=args.writers or outstanding or [1, 8, 64],
        tasks=tasks,
        record_bytes=args.record_bytes,
        in_flight=args.in_flight,
        ack_order=args.ack_order,
        seconds=args.seconds,
        path=args.path,
        model=args.model,
        durability=args.durability,
        direct_io=args.direct_io,
        policy=args.policy,
        outstanding=outstanding,
        peers=args.peers,
        runs=args.runs,
        progress=sys.stderr.isatty() and not args.json,
    )
    publish_bench(report, args)
    return 0


def _orders(text: str) -> list[str]:
    orders = text.split(",")
    for order in orders:
        if order not in ORDERS:
            raise argparse.ArgumentTypeError(f"{order!r} is not an order: append or completion")
    return orders


def _policies(text: str) -> list[str]:
    from walkit.errors import OptionsError
    from walkit.workload.policies import policy_named

    names = text.split(",")
    for name in names:
        try:
            policy_named(name)
        except OptionsError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return names
