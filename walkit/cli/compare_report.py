"""`walkit diff` with counts, samples and a page: of Spark, or of this process."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from walkit._internal.arguments import refuse
from walkit.cli.output import bar, note, publish, saved
from walkit.objects.entrance import log_at
from walkit.read.reader import LogReader
from walkit.state.diff_report import DiffReport, diff_report

DIFFERENT = 1
PAGES = (".html", ".htm")


def wants_report(args: argparse.Namespace) -> bool:
    """Return whether the arguments select counts and samples instead of rows."""
    is_page = args.out is not None and args.out.endswith(PAGES)
    return bool(args.spark or args.decoder or args.ignore or args.tolerance or is_page)


def compare_in_report(args: argparse.Namespace) -> int:
    """Print what differs, as `diff_report` says it. Returns 0 for equal states, 1 for different ones."""
    if args.out is not None and args.out.endswith((".csv", ".parquet")):
        text = "not with --spark or --decoder, which report counts and samples"
        refuse("out", args.out, f"{text}; walkit.spark.diff(left, right) gives all rows to a program")
    given = {"decoder": args.decoder, "ignore": args.ignore or [], "tolerance": args.tolerance}
    report = (_by_spark if args.spark else _in_process)(args, given)
    as_page = args.out is not None and args.out.endswith(PAGES)
    if as_page:
        with saved(args.out) as sink:
            sink.write(report.to_html().encode())
        note(f"saved as {args.out}")
    publish(
        "diff.report",
        lambda: [report.text()],
        report.to_dict,
        as_json=args.json,
        out=None if as_page else args.out,
    )
    return 0 if report.equal else DIFFERENT


def _by_spark(args: argparse.Namespace, given: dict[str, Any]) -> DiffReport:
    from walkit import spark

    spark.session()
    with ExitStack() as stack:
        shown = stack.enter_context(bar(f"diff {args.left.path} {args.right.path}", " tasks"))
        if shown is not None:
            stack.enter_context(spark.progress(shown))
        left, right = (
            place.path if place.lsn is None else (place.path, place.lsn) for place in (args.left, args.right)
        )
        return spark.diff_report(left, right, **given)


def _in_process(args: argparse.Namespace, given: dict[str, Any]) -> DiffReport:
    with ExitStack() as stack:
        sides = []
        for place in (args.left, args.right):
            reader = stack.enter_context(LogReader(log_at(place.path)))
            sides.append((reader, reader.last_lsn if place.lsn is None else place.lsn))
        shown = stack.enter_context(bar(f"diff {args.left.path} {args.right.path}", " records"))
        return diff_report(*sides, progress=shown, **given)
