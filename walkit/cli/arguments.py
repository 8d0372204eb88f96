"""The arguments of the command line. Handlers are in the other modules, and are imported when they run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from walkit.cli import network, values
from walkit.cli.bencharguments import add_bench
from walkit.cli.copying import add_copy
from walkit.cli.crashtest import add_crashtest
from walkit.cli.dashboard import add_dashboard
from walkit.cli.doctor import add_doctor
from walkit.cli.parsers import (
    EXIT_CODES,
    LOG_HELP,
    HelpLines,
    Parser,
    add_command,
    add_option,
    add_report_options,
)
from walkit.cli.places import PlaceAt, place_at
from walkit.cli.promoting import add_promote
from walkit.cli.world import add_simulate

URL_HELP = "s3://, gs://, az:// or objects: URL of the log"


def make_parser() -> tuple[Parser, Any]:
    """Return the parser of the command line, and its commands."""
    parser = Parser(
        prog="walkit",
        description="Look into write-ahead logs, check them, measure them.",
        epilog=f"{EXIT_CODES}\nexample: walkit demo --out report",
        formatter_class=HelpLines,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"walkit {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    for add in (
        *(_add_inspect, _add_dump, _add_verify, _add_repair, _add_claims, add_copy, _add_diff, _add_serve),
        *(_add_follow, _add_status, add_promote, _add_demo, add_bench, add_simulate, add_crashtest),
        *(add_dashboard, add_doctor, _add_remove, _add_salvage, _add_completion),
    ):
        add(commands)
    parser.kinds = commands
    return parser, commands


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of one command; `run` is its handler. SystemExit after help, version or a complaint."""
    parser, commands = make_parser()
    given = sys.argv[1:] if argv is None else list(argv)
    if not given or given in (["bench"], ["simulate"]):
        asked = commands.choices[given[0]] if given else parser
        asked.print_help(sys.stderr)
        raise SystemExit(2)  # nothing was done: a script that lost its arguments has to notice
    args, unknown = parser.parse_known_args(given)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    out = getattr(args, "out", None)
    if out is not None and any(_is_inside(out, log) for log in _logs_of(args)):
        parser.error(f"--out {out} is in the log's own folder; give a place outside it")
    return args


def _logs_of(args: argparse.Namespace) -> list[str]:
    """Return the folders of the logs that the arguments name."""
    named = [getattr(args, name, None) for name in ("log", "left", "right")]
    return [log.path if isinstance(log, PlaceAt) else log for log in named if log is not None]


def _version() -> str:
    import walkit

    return walkit.__version__


def _is_inside(path: str, folder: str) -> bool:
    if "://" in folder:
        folder = folder.removeprefix("file://")
    inner, outer = os.path.realpath(path), os.path.realpath(folder)
    return inner == outer or inner.startswith(outer.rstrip(os.sep) + os.sep)


def _add_inspect(commands: Any) -> None:
    parser = add_command(
        commands,
        "inspect",
        "show the marks, segments and frames of a log",
        "; frame bodies of sealed segments and snapshots are read only with --frames, else marked as not read",
        "walkit inspect orders.log --frames",
        "walkit.cli.look:inspect",
    )
    parser.add_argument("log", metavar="LOG", help=LOG_HELP)
    parser.add_argument("--frames", action="store_true", help="also list every frame, read whole")
    add_report_options(parser)


def _add_verify(commands: Any) -> None:
    parser = add_command(
        commands,
        "verify",
        "check every byte of a log that was promised",
        "; changes nothing and disturbs no writer",
        "walkit verify orders.log --json",
        "walkit.cli.look:verify",
    )
    parser.add_argument("log", metavar="LOG", help=LOG_HELP)
    add_report_options(parser)


def _add_repair(commands: Any) -> None:
    def run(args: argparse.Namespace) -> int:
        if args.source is not None:
            return network.heal(args)
        from walkit.cli.look import repair

        return repair(args)

    parser = add_command(
        commands,
        "repair",
        "repair a damaged log",
        "; keeps what it removes in lost+found; exits 1 if promised records are given up, or the policy refuses. "
        "With --from, damaged ranges get a peer's frames, and nothing else is changed; exits 1 if damage is left",
        "walkit repair orders.log --policy salvage --dry-run",
        run,
    )
    parser.add_argument("log", metavar="LOG", help=LOG_HELP)
    parser.add_argument(
        "--policy",
        choices=("prefix", "holes", "absolute", "salvage"),
        default=None,
        help="treatment of damage; only salvage gives up promised records (default: prefix)",
    )
    network.add_heal_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the changes, and make none")
    add_report_options(parser)


def _add_claims(commands: Any) -> None:
    parser = add_command(
        commands,
        "claims",
        "list the claims of consumers in other processes on a log",
        "; a claim keeps records from being dropped until its lease is over; exits 1 if one cannot be read",
        "walkit claims orders.log --drop old-reader",
        "walkit.cli.claims:claims",
    )
    parser.add_argument("log", metavar="LOG", help=LOG_HELP)
    parser.add_argument("--drop", metavar="NAME", help="first remove this claim, whose consumer is gone")
    add_report_options(parser)


def _add_remove(commands: Any) -> None:
    parser = add_command(
        commands,
        "remove",
        "delete a log on object storage",
        "; asks first, and refuses while a claim lives; close the writer first",
        "walkit remove s3://bucket/orders --yes",
        "walkit.cli.removing:remove",
    )
    parser.add_argument("url", metavar="URL", help=URL_HELP)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _add_salvage(commands: Any) -> None:
    parser = add_command(
        commands,
        "salvage",
        "make a folder of a damaged log on object storage",
        "; it has every intact frame, and the objects stay as they are; exits 1 if promised records are given up",
        "walkit salvage s3://bucket/orders orders.log",
        "walkit.cli.look:salvage",
    )
    parser.add_argument("url", metavar="URL", help=URL_HELP)
    parser.add_argument("target", metavar="DIR", help="folder of the new log, which must not be there")
    add_report_options(parser)


def _add_completion(commands: Any) -> None:
    add_command(
        commands,
        "completion",
        "print a script that completes commands and options",
        ", for bash and zsh: source <(walkit completion)",
        "walkit completion --quiet",
        "walkit.cli.completion:completion",
    )


def _add_dump(commands: Any) -> None:
    parser = add_command(
        commands,
        "dump",
        "print the records of a log, one per line",
        "; bytes that are not UTF-8 become base64 under a name that shows it",
        "walkit dump orders.log --from 1000 --format csv --out part.csv",
        "walkit.cli.dump:dump",
    )
    parser.add_argument("log", metavar="LOG", help=LOG_HELP)
    parser.add_argument(
        "--format",
        choices=("json", "csv", "parquet"),
        help="json: one object per line (default); parquet needs --out",
    )
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument(
        "--damaged",
        action="store_true",
        help="also print the records that damaged frames still hold, with a column for verified ones",
    )
    add_option(parser, "--from", values.lsn, None, "first record (default: the oldest)", dest="first_lsn")
    add_option(parser, "--to", values.lsn, None, "last record (default: the newest)", dest="last_lsn")
    parser.add_argument("--out", metavar="FILE", help="save the records there instead of printing them")


def _add_serve(commands: Any) -> None:
    parser = add_command(
        commands,
        "serve",
        "let replicas follow a log that another process may be writing",
        "; only durable records are sent; runs until it is interrupted",
        "walkit serve orders.log --listen 127.0.0.1:7070",
        network.serve,
    )
    parser.add_argument("log", metavar="LOG", help=LOG_HELP)
    network.add_serve_options(parser)


def _add_follow(commands: Any) -> None:
    parser = add_command(
        commands,
        "follow",
        "keep a replica of a served log in a folder",
        ": its frames, verbatim, at the same LSNs and positions; or, with --delta, the state of a log on this machine. "
        "Runs until it is interrupted",
        "walkit follow 127.0.0.1:7070 replica.log",
        network.follow,
    )
    parser.add_argument("address", metavar="HOST:PORT", help="address of the primary")
    parser.add_argument("folder", metavar="DIR", help="the replica's folder; made if it is missing")
    network.add_follow_options(parser)


def _add_status(commands: Any) -> None:
    parser = add_command(
        commands,
        "status",
        "show the replicas and delta readers of a served log",
        ", with states, lags, claims and the last trouble; exits with 1 unless it serves",
        "walkit status 127.0.0.1:7070",
        network.status,
    )
    parser.add_argument("address", metavar="HOST:PORT", help="the address of the primary")
    network.add_client_options(parser)
    add_report_options(parser)


def _add_diff(commands: Any) -> None:
    parser = add_command(
        commands,
        "diff",
        "compare two states, key by key",
        ": those of two logs, or one log at two LSNs; exit code 1 if they differ, and 3 if a log "
        "is damaged. I is only right, D only left, C has another value; the LSNs name the records that set it",
        "walkit diff orders.log@1000 orders.log --out changes.csv",
        "walkit.cli.compare:compare",
    )
    for name in ("left", "right"):
        parser.add_argument(
            name,
            type=place_at,
            metavar="LOG[@LSN]",
            help=f"{LOG_HELP}; with @LSN as it was after that record",
        )
    parser.add_argument(
        "--spark",
        action="store_true",
        help="compare with Spark and print counts and samples",
    )
    parser.add_argument(
        "--decoder",
        choices=("json", "arrow"),
        help="print counts and samples, of changed values by column: of JSON objects or Arrow streams",
    )
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="COLUMN", help="leave this column out"
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="numbers that differ by at most this are equal"
    )
    add_report_options(
        parser,
        "save it there: FILE.csv or FILE.parquet gets all rows, FILE.html a page with counts and samples, any other "
        "file the report",
    )


def _add_demo(commands: Any) -> None:
    parser = add_command(
        commands,
        "demo",
        "run the main job on real input, with a report",
        ": flights through a Store, a kill, a recovery, a replica, compaction, replay and diff with Spark, all "
        "checked; the report is HTML",
        "walkit demo --out report",
        "walkit.cli.demo:demo",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="folder of the report and its logs (default: walkit-demo)"
    )
    add_option(
        parser,
        "--operations",
        values.count,
        None,
        "operations to take, 5000 or more (default: the demo's own)",
    )
    add_option(parser, "--writers", values.count, None, "threads that write (default: the demo's own)")
