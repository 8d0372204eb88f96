"""`walkit dashboard`: its arguments, and its handler."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from typing import Any

from walkit.cli.output import note, print_lines
from walkit.cli.parsers import add_command


def add_dashboard(commands: Any) -> None:
    """Add `dashboard` to the commands."""
    parser = add_command(
        commands,
        "dashboard",
        "serve the dashboard on this machine, and print its address",
        ": a scratch log for each browser window, and each argument on a part of the page; a log is only read, and "
        "nothing on the page changes it. Runs until it is interrupted",
        "walkit dashboard orders.log run.parquet",
        dashboard,
    )
    parser.add_argument(
        "paths", nargs="*", metavar="LOG | RUN", help="folder or URL of a log, or file of a saved Run"
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--port", type=_port, default=0, metavar="N", help="port on loopback (default: 0, a free one)"
    )
    place.add_argument(
        "--socket", metavar="FILE", help="a Unix socket instead, for a proxy that controls access"
    )
    parser.add_argument("--show", action="store_true", help="open it in the browser")


def dashboard(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    note("walkit dashboard: loading")
    from walkit.views import serve

    def ready(address: str) -> None:
        print_lines([address])
        note("ends with Ctrl-C")
        if args.show and args.socket is None:
            webbrowser.open(address)

    serve(args.paths, port=args.port, socket=args.socket, ready=ready)
    sys.stdout.flush()
    return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)
