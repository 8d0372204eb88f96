"""The handlers of short commands: each calls one room, prints its report, and returns the exit code."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkit._internal.text import aligned, counted
from walkit.cli.output import bar, echo, note, print_lines, progress_shown, publish
from walkit.cli.usage import UsageError
from walkit.errors import MissingExtraError

if TYPE_CHECKING:
    from walkit.segments.consumer_files import ClaimFact

PROGRESS_EVERY = 100


def claims(args: argparse.Namespace) -> int:
    """List the claims on a log, after dropping one on request. Returns 1 for one that is not there or not readable."""
    from walkit.objects.entrance import folder_at
    from walkit.segments.consumer_files import claim_facts, drop_claim
    from walkit.segments.manifest_store import load_manifest

    storage = folder_at(args.log)
    dropped = None if args.drop is None else drop_claim(storage, args.drop)
    found = claim_facts(storage, load_manifest(storage))

    def lines() -> list[str]:
        said = [] if dropped is None else [f"{'dropped' if dropped else 'there is no'} claim {args.drop!r}"]
        headers = ("claim", "state", "first LSN needed", "lease until", "owner", "label")
        listed = aligned(headers, [_row(fact) for fact in found], right=(2,)) if found else []
        faults = [f"problem: {fact.fault}" for fact in found if fact.fault is not None]
        return [f"{counted(len(found), 'claim')} on {storage.location}", *said, *listed, *faults]

    def plain() -> dict[str, Any]:
        known = [asdict(replace(fact, mark=None)) for fact in found]
        facts = [{name: value for name, value in fact.items() if name != "mark"} for fact in known]
        return {"log": storage.location, "dropped": dropped, "claims": facts}

    publish("claims", args, lines, plain)
    return 1 if dropped is False or any(fact.fault is not None for fact in found) else 0


def _row(fact: ClaimFact) -> tuple[str, ...]:
    first = "?" if fact.first_lsn is None else f"{fact.first_lsn:,}"
    return fact.name, fact.state, first, fact.lease_until, fact.owner or "?", fact.label


def copy(args: argparse.Namespace) -> int:
    """Copy a log, and print what was copied."""
    from walkit.copier.log_copy import copy as copy_log

    with bar(f"copy {args.log}") as progress:
        report = copy_log(args.log, args.target, progress, payloads=args.payloads_to or args.payloads)
    publish("copy", args, report.lines, report.to_dict)
    return 0


def remove(args: argparse.Namespace) -> int:
    """Ask, and remove the log. Returns 1 if the answer is not yes."""
    from walkit.objects.entrance import object_store_of
    from walkit.objects.remove import remove_log

    store = object_store_of(args.url)
    if store is None:
        raise UsageError("a log in a folder is removed with its folder; this removes one on object storage")
    with closing(store):
        if not args.yes:
            print(f"Delete the log at {store.location}, with all its records? [yes/no] ", end="", flush=True)
            if sys.stdin.readline().strip().lower() != "yes":
                echo("nothing was deleted")
                return 1
        print(f"deleted {counted(remove_log(store), 'object')} of {store.location}")
    return 0


def demo(args: argparse.Namespace) -> int:
    """Run the main job; 0 only if every check held and compared something."""
    try:
        from walkit.demo import run
    except MissingExtraError as error:  # of the rooms that the demo needs: its extra brings all of them
        raise MissingExtraError("demo", error.package) from error

    given = {"operations": args.operations, "writers": args.writers}
    options = {name: value for name, value in given.items() if value is not None}
    return 0 if run(None if args.out is None else Path(args.out), **options).ok else 1


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


def doctor(args: argparse.Namespace) -> int:
    """Check the machine, and print the findings; 1 if something is wrong."""
    from walkit.measure.health import doctor as look

    progress = (lambda what: echo(f"doctor: {what}")) if progress_shown() else None
    report = look(args.path, spark=args.spark, progress=progress)
    publish("doctor", args, lambda: report.text().splitlines(), report.to_dict)
    return 0 if report.ok else 1


def simulate_world(args: argparse.Namespace) -> int:
    """Run the schedules, and print what came of them; 1 if one broke a rule, or something never happened."""
    from walkit.simulate.world_faults import CHAOS_MS
    from walkit.simulate.world_report import explore

    shown = progress_shown() and not args.json

    def progress(done: int) -> None:
        if shown and done % PROGRESS_EVERY == 0:
            echo(f"simulate world: {done:,} schedules")

    report = explore(
        args.seed,
        (args.schedules or 100) if args.keep is None else 1,
        keep=None if args.keep is None else tuple(args.keep),
        chaos_ms=args.chaos_ms or CHAOS_MS,
        on_progress=progress,
    )
    publish("simulate.world", args, lambda: report.text().splitlines(), report.to_dict)
    return 1 if report.failed else 0
