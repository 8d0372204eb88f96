"""`walkit promote`: a replica becomes a log of its own."""

from __future__ import annotations

import argparse
from typing import Any

from walkit.cli.output import publish
from walkit.cli.parsers import add_command, add_report_options
from walkit.cli.quiet import quiet_grpc
from walkit.events import EventSink


def add_promote(commands: Any) -> None:
    """Add `promote` to the commands."""
    parser = add_command(
        commands,
        "promote",
        "make a replica a primary of its own",
        ", with a new epoch; the old primary is not fenced: stop it first, or its records from here on are in no log "
        "but its own. Refused while the replica runs",
        "walkit promote replica.log",
        promote,
    )
    parser.add_argument("log", metavar="DIR", help="the replica's folder")
    add_report_options(parser)


def promote(args: argparse.Namespace) -> int:
    """Promote a replica, and print what it is now."""
    with quiet_grpc():
        from walkit.replication.replica.promote import promote as promote_replica

    others = EventSink()

    def on_event(name: str, attributes: dict[str, Any]) -> None:
        if name != "walkit.replica.promote":  # what is printed below says it
            others.pass_on(name, attributes)

    report = promote_replica(args.log, on_event)
    publish("promote", report.lines, report.to_dict, as_json=args.json, out=args.out)
    return 0
