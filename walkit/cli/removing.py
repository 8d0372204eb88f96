"""`walkit remove`: delete a log on object storage, after a question."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from walkit._internal.text import counted
from walkit.cli.output import say
from walkit.cli.usage import UsageError
from walkit.objects.entrance import object_store_of
from walkit.objects.remove import remove_log


def remove(args: argparse.Namespace) -> int:
    """Ask, and remove the log. Returns 1 if the answer is not yes."""
    store = object_store_of(args.url)
    if store is None:
        raise UsageError("a log in a folder is removed with its folder; this removes one on object storage")
    with closing(store):
        if not args.yes:
            print(f"Delete the log at {store.location}, with all its records? [yes/no] ", end="", flush=True)
            if sys.stdin.readline().strip().lower() != "yes":
                say("nothing was deleted")
                return 1
        print(f"deleted {counted(remove_log(store), 'object')} of {store.location}")
    return 0
