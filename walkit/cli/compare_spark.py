"""`walkit diff --spark`: counts and samples of a diff that Spark makes."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from walkit.cli.output import bar, publish, saved, say
from walkit.errors import OptionsError

DIFFERENT = 1


def compare_with_spark(args: argparse.Namespace) -> int:
    """Print what differs, as `walkit.spark.diff_report` says it. Returns 0 for equal states, 1 for different ones."""
    if args.out is not None and args.out.endswith((".csv", ".parquet")):
        raise OptionsError(
            f"--spark makes a report of counts and samples, and {args.out} would be all rows: leave --spark out, or "
            "write walkit.spark.diff(left, right) from a program",
            option="out",
            wanted=args.out,
        )
    from walkit.spark import diff_report, progress, session

    session()
    left, right = (
        place.path if place.lsn is None else (place.path, place.lsn) for place in (args.left, args.right)
    )
    with ExitStack() as stack:
        shown = stack.enter_context(bar(f"diff {args.left.path} {args.right.path}", " tasks"))
        if shown is not None:
            stack.enter_context(progress(shown))
        report = diff_report(left, right)
    as_page = args.out is not None and args.out.endswith((".html", ".htm"))
    if as_page:
        with saved(args.out) as sink:
            sink.write(report.to_html().encode())
        say(f"saved as {args.out}")
    publish(
        "diff.spark",
        lambda: [report.text()],
        report.to_dict,
        as_json=args.json,
        out=None if as_page else args.out,
    )
    return 0 if report.equal else DIFFERENT
