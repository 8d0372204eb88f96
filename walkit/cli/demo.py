"""`walkit demo`: the handler; the work is in the room of that name."""

from __future__ import annotations

import argparse
from pathlib import Path

from walkit.errors import MissingExtraError


def demo(args: argparse.Namespace) -> int:
    """Run the main job; 0 only if every check held and compared something."""
    try:
        from walkit.demo import run_demo
    except MissingExtraError as error:  # of the rooms that the demo needs: its extra brings all of them
        raise MissingExtraError("demo", error.package) from error

    given = {"operations": args.operations, "writers": args.writers}
    options = {name: value for name, value in given.items() if value is not None}
    return run_demo(None if args.out is None else Path(args.out), **options)
