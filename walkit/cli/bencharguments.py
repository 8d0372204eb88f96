"""The arguments of `walkit bench`: each option has the name of the parameter that it becomes. Handlers: `bench`."""

from __future__ import annotations

import argparse
from typing import Any

from walkit.cli import values
from walkit.cli.parsers import add_command, add_kinds, add_option, add_report_options

OUT_HELP = "save it there: FILE.parquet gets the rows, for pandas; with --json, any other gets JSON"
CACHES = ("warm", "cold")
ORDERS = ("append", "completion")
BYTES_OF_A_VALUE = "bytes of a value"
MEASURE_THERE = "the folder to measure in (default: the temporary folder)"
WORK_THERE = "the folder to work in (default: the temporary folder)"


def add_bench(commands: Any) -> None:
    """Add `bench` with its kinds to the commands."""
    kinds = add_kinds(
        commands,
        "bench",
        "measure this machine",
        "walkit bench write --writers 1,8,64",
        "what to measure",
    )
    for add_kind in (_add_write, _add_order, _add_recovery, _add_spark, _add_replication, _add_delta):
        add_report_options(add_kind(kinds), OUT_HELP)


def _add_write(kinds: Any) -> argparse.ArgumentParser:
    parser = add_command(
        kinds,
        "write",
        "measure appending: records per second and latencies",
        ", for every combination, beside a raw loop of synced writes in the same run",
        "walkit bench write --writers 1,8,64 --tasks 64 --peers --json",
        "walkit.cli.bench:bench_write",
    )
    add_option(
        parser,
        "--writers",
        values.counts,
        None,
        "threads (default: 1,8,64; those of --outstanding if it is given)",
    )
    add_option(
        parser,
        "--tasks",
        values.counts,
        None,
        "asyncio tasks (default: 64; none with --model; those of --outstanding if it is given)",
    )
    parser.add_argument(
        "--outstanding",
        type=values.counts,
        default=[],
        metavar="N,N",
        help="records on their way at a time, with tickets from one thread, instead of submit and the bulk calls; "
        "every way is then followed by raw parallel writes of equal frames",
    )
    add_option(parser, "--record-bytes", values.counts, [100], BYTES_OF_A_VALUE)
    _add_log_options(parser)
    add_option(parser, "--seconds", values.seconds, 2.0, "time of each way in")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--path", "--device", metavar="DIR|URL", help=MEASURE_THERE)
    place.add_argument("--model", metavar="NAME", help="a modelled device instead of a real one")
    parser.add_argument(
        "--peers",
        action="store_true",
        help="measure SQLite, LevelDB, RocksDB and LMDB too, with as many threads",
    )
    add_option(
        parser,
        "--runs",
        values.count,
        None,
        "repeat everything N times and show medians (default: 1; 5 with --peers or a URL)",
    )
    add_option(
        parser,
        "--crash-states",
        values.number,
        0,
        "also judge this many crash states of logs written this way: see walkit crashtest",
    )
    return parser


def _add_log_options(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--in-flight", values.counts, None, "frames in flight (default: 1; with a URL 16)")
    parser.add_argument(
        "--ack-order",
        type=_orders,
        default=[None],
        metavar="ORDER,ORDER",
        help="append, completion, or both (default: append)",
    )
    parser.add_argument(
        "--durability",
        choices=("sync", "interval", "none"),
        default="sync",
        help="promise of an acknowledgement (default: sync)",
    )
    add_option(
        parser,
        "--policy",
        _policies,
        None,
        "when frames are sealed: take-all (default), one-record, adaptive (default with a URL), capped:RECORDS, "
        "linger:MICROSECONDS",
        metavar="NAME,NAME",
    )
    parser.add_argument(
        "--direct-io", action="store_true", help="write past the page cache (O_DIRECT), aligned to 4096 bytes"
    )


def _add_order(kinds: Any) -> argparse.ArgumentParser:
    parser = add_command(
        kinds,
        "order",
        "measure the cost of append order against completion order",
        ": ratios of throughput and p99, with the mean number of frames in flight beside each, on the disk, on one "
        "as slow as a modelled device, and in virtual time",
        "walkit bench order --writers 8,64 --runs 3 --json",
        "walkit.cli.bench:bench_order",
    )
    add_option(parser, "--writers", values.counts, [8, 16, 32, 64], "threads")
    add_option(parser, "--in-flight", values.count, 8, "frames written at the same time")
    add_option(
        parser,
        "--policy",
        _policies,
        ["one-record", "capped:4", "take-all"],
        "when frames are sealed",
        dest="policies",
        metavar="NAME,NAME",
    )
    parser.add_argument(
        "--models",
        type=lambda text: text.split(",") if text else [],
        default=["essd-pl1-20g"],
        metavar="NAME,NAME",
        help="modelled devices, in real time and in virtual time (default: essd-pl1-20g; '' for none)",
    )
    add_option(parser, "--record-bytes", values.count, 1024, BYTES_OF_A_VALUE, dest="value_bytes")
    add_option(parser, "--seconds", values.seconds, 0.6, "time of a measurement")
    add_option(parser, "--runs", values.count, 5, "rounds, of which ratios are medians", dest="rounds")
    parser.add_argument(
        "--buffered",
        action="store_false",
        dest="direct_io",
        help="write through the page cache, not past it (O_DIRECT)",
    )
    parser.add_argument("--path", metavar="DIR", help=MEASURE_THERE)
    parser.add_argument("--save-runs", metavar="DIR", help="save every measurement there as a Run")
    return parser


def _add_recovery(kinds: Any) -> argparse.ArgumentParser:
    parser = add_command(
        kinds,
        "recovery",
        "measure opening after a kill: verify, log, Store",
        ", for every combination, beside plainly reading the same bytes; exit code 1 if something is missing. "
        "The full size: --operations 10000000 --keys 1000000 --frame-records 10000 --checkpoint-age 1",
        "walkit bench recovery --operations 100000 --frame-records 300 --json",
        "walkit.cli.bench:bench_recovery",
    )
    add_option(parser, "--operations", values.counts, [100_000], "puts")
    add_option(parser, "--keys", values.count, None, "number of keys (default: a tenth of the operations)")
    add_option(parser, "--record-bytes", values.count, 100, BYTES_OF_A_VALUE)
    add_option(parser, "--frame-records", values.counts, [1, 300], "records of a frame, or of a peer's batch")
    add_option(
        parser,
        "--checkpoint-age",
        _shares,
        [1.0, 0.1],
        "share of the operations after the checkpoint; 1 means no checkpoint",
        metavar="A,A",
    )
    parser.add_argument(
        "--cache", type=_caches, default=list(CACHES), metavar="C,C", help="warm, cold, or both (default)"
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="reopen LevelDB, RocksDB and SQLite after a kill, too, with the same operations",
    )
    add_option(parser, "--runs", values.count, 1, "repeat each opening N times and show medians")
    parser.add_argument("--path", metavar="DIR", help=WORK_THERE)
    return parser


def _add_spark(kinds: Any) -> argparse.ArgumentParser:
    parser = add_command(
        kinds,
        "spark",
        "measure a log in Spark: reads, replays, changes, diffs, streams",
        ", beside Parquet of the same rows and one process, in the same rounds",
        "walkit bench spark --records 1000000 --queries read,replay --json",
        "walkit.cli.bench:bench_spark",
    )
    add_option(parser, "--records", values.counts, [1_000_000], "records of a log, or of several")
    parser.add_argument(
        "--queries",
        type=lambda text: text.split(","),
        metavar="Q,Q",
        help="of read, filter, replay, past, count, changes, diff, verify, skew, stream (default: all)",
    )
    add_option(parser, "--record-bytes", values.count, 64, BYTES_OF_A_VALUE)
    add_option(parser, "--runs", values.count, 3, "rounds that count")
    parser.add_argument("--master", default="local[2]", help="Spark's master (default: local[2])")
    parser.add_argument("--path", metavar="DIR", help=WORK_THERE)
    return parser


def _add_replication(kinds: Any) -> argparse.ArgumentParser:
    parser = add_command(
        kinds,
        "replication",
        "measure appending with a replica, the replica's lag, and how fast a new one catches up",
        ", beside appending alone and plain reading in the same run",
        "walkit bench replication --writers 16 --seconds 3 --json",
        "walkit.cli.bench:bench_replication",
    )
    add_option(parser, "--writers", values.count, 16, "threads")
    add_option(parser, "--record-bytes", values.count, 512, BYTES_OF_A_VALUE)
    add_option(parser, "--seconds", values.seconds, 3.0, "time with a replica, and time alone")
    parser.add_argument("--path", metavar="DIR", help=MEASURE_THERE)
    return parser


def _add_delta(kinds: Any) -> argparse.ArgumentParser:
    parser = add_command(
        kinds,
        "delta",
        "measure how far a delta reader lags, beside one that reads the log alone",
        ": on the folder, on a modelled remote storage, and there in virtual time too",
        "walkit bench delta --mb-per-s 20 --record-bytes 1024 --json",
        "walkit.cli.bench:bench_delta",
    )
    add_option(parser, "--mb-per-s", float, 20.0, "rate of the steady load", metavar="R")
    add_option(parser, "--record-bytes", values.count, 1024, BYTES_OF_A_VALUE)
    add_option(parser, "--frame-bytes", values.count, 16384, "bytes of a frame")
    add_option(parser, "--buffers", values.counts, [32768, 262144], "bytes that a primary keeps for a reader")
    add_option(parser, "--seconds", values.seconds, 3.0, "time for each reader")
    add_option(parser, "--rounds", values.count, 3, "how often each reader is measured, in turns")
    parser.add_argument("--path", metavar="DIR", help=MEASURE_THERE)
    return parser


def _caches(text: str) -> list[str]:
    return _named(text, CACHES, "a state of the cache")


def _orders(text: str) -> list[str]:
    return _named(text, ORDERS, "an order")


def _named(text: str, allowed: tuple[str, ...], what: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in allowed:
            raise argparse.ArgumentTypeError(f"{name!r} is not {what}: {' or '.join(allowed)}")
    return names


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = [0.0]
    if any(not 0 < share <= 1 for share in shares):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of shares like 1,0.1: above 0, up to 1")
    return shares


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
