"""`python -m walkit.replication serve LOG HOST:PORT` and `... follow HOST:PORT DIR`: the commands without the rest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from walkit.replication.commands import follow, serve


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(prog="python -m walkit.replication", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serving = commands.add_parser("serve", help="serve a log that another process may be writing")
    serving.add_argument("log")
    serving.add_argument("listen", metavar="HOST:PORT")
    serving.add_argument("--insecure", action="store_true", help="let HOST be another than loopback")
    following = commands.add_parser("follow", help="follow a primary into a folder")
    following.add_argument("address", metavar="HOST:PORT")
    following.add_argument("directory", metavar="DIR")
    args = parser.parse_args(argv)
    if args.command == "serve":
        return serve(args.log, args.listen, insecure=args.insecure)
    return follow(args.address, args.directory)


if __name__ == "__main__":
    sys.exit(main())
