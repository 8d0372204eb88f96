"""`walkit diff`: two states compared, and an exit code that says whether they are equal."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from walkit._internal.arguments import refuse
from walkit._internal.text import aligned, counted
from walkit.cli.dump import as_text, as_utf8, plain_bytes
from walkit.cli.output import bar, echo, note, publish, saved
from walkit.cli.values import PlaceAt
from walkit.errors import CorruptionError
from walkit.objects.entrance import reader_at
from walkit.read.reader import LogReader
from walkit.state.diff import DELETED, INSERTED, DiffCounts, diff
from walkit.state.diff_report import DiffReport, diff_report

ROWS_SHOWN_MAX = 20
CELL_MAX = 40
CSV_COLUMNS = (
    *("key", "key_encoding", "change", "left_value", "left_encoding", "right_value", "right_encoding"),
    *("left_lsn", "right_lsn"),
)
DIFFERENT, FAILED = 1, 3
PAGES = (".html", ".htm")


class _Side(NamedTuple):
    reader: LogReader
    lsn: int

    def __str__(self) -> str:
        return f"{self.reader.location} at LSN {self.lsn:,}"

    def plain(self) -> dict[str, Any]:
        return {"log": self.reader.location, "lsn": self.lsn}


def compare(args: argparse.Namespace) -> int:
    """Print how two states differ, and save the rows on request. Returns 0 for equal states, 1 for different ones.

    A log that is damaged cannot be compared: 3, so that 1 has one meaning.
    """
    try:
        if _wants_report(args):
            return _compare_in_report(args)
        with ExitStack() as stack:
            left, right = (_side(stack, place) for place in (args.left, args.right))
            with bar(f"diff {args.left.path} {args.right.path}", " records") as progress:
                found = diff((left.reader, left.lsn), (right.reader, right.lsn), progress)
    except CorruptionError as error:
        echo(f"walkit {args.command}: {error}")
        return FAILED
    counts = DiffCounts.of(found)
    form = _form_of(args.out)
    if form is not None:
        with saved(args.out) as sink:
            form(sink, found)
        note(f"{counted(counts.total, 'row')} saved as {args.out}")
        args.out = None

    def lines() -> Iterator[str]:
        yield from (f"left   {left}", f"right  {right}", counts.text())
        if not counts.equal:
            yield from _rows(found, counts.total)

    def plain() -> dict[str, Any]:
        sides = {"left": left.plain(), "right": right.plain()}
        return sides | counts.to_dict() | {"rows": [_plain_row(row) for row in found.to_pylist()]}

    publish("diff", args, lines, plain)
    return 0 if counts.equal else DIFFERENT


def _side(stack: ExitStack, place: PlaceAt) -> _Side:
    reader = stack.enter_context(reader_at(place.path))
    newest = reader.last_lsn
    if place.lsn is not None and place.lsn > newest:
        refuse("lsn", place.lsn, f"the log {place.path} ends at LSN {newest:,}", newest)
    return _Side(reader, newest if place.lsn is None else place.lsn)


def _form_of(out: str | None) -> Callable[[BinaryIO, pa.Table], None] | None:
    """Return how the rows are saved by the name of the file; None if the report itself is saved."""
    if out is None:
        return None
    return next((form for suffix, form in FORMS.items() if out.endswith(suffix)), None)


def _write_csv(sink: BinaryIO, found: pa.Table) -> None:
    writer = csv.writer(as_utf8(sink), lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for batch in found.to_batches(max_chunksize=4096):
        for row in batch.to_pylist():
            key, left, right = (_two_cells(row[name]) for name in ("key", "left_value", "right_value"))
            lsns = ("" if lsn is None else lsn for lsn in (row["left_lsn"], row["right_lsn"]))
            writer.writerow((*key, row["change"], *left, *right, *lsns))


def _two_cells(data: bytes | None) -> tuple[str, str]:
    return ("", "") if data is None else as_text(data)


def _write_parquet(sink: BinaryIO, found: pa.Table) -> None:
    import pyarrow.parquet as pq

    pq.write_table(found, sink, compression="zstd")


FORMS: dict[str, Callable[[BinaryIO, pa.Table], None]] = {".csv": _write_csv, ".parquet": _write_parquet}


def _plain_row(row: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in row.items():
        plain |= plain_bytes(name, value) if isinstance(value, bytes) else {name: value}
    return plain


def _rows(found: pa.Table, total: int) -> Iterable[str]:
    shown = found.slice(0, ROWS_SHOWN_MAX).to_pylist()
    cells = [
        (
            row["change"],
            cell(row["key"]),
            cell(row["left_value"], live=row["change"] != INSERTED),
            cell(row["right_value"], live=row["change"] != DELETED),
            "" if row["left_lsn"] is None else f"{row['left_lsn']:,}",
            "" if row["right_lsn"] is None else f"{row['right_lsn']:,}",
        )
        for row in shown
    ]
    headers = ("change", "key", "left value", "right value", "left LSN", "right LSN")
    yield from ("", *aligned(headers, cells, right=(4, 5)))
    if total > len(shown):
        yield f"... and {total - len(shown):,} more (--json lists all, --out FILE.csv or FILE.parquet saves all)"


def cell(data: bytes | None, *, live: bool = True) -> str:
    """Return bytes as a person may read them: text if it can be printed, else hexadecimal; cut if long."""
    if data is None:
        return "(no value)" if live else ""
    text, encoding = as_text(data)
    if encoding != "text" or not text.isprintable():
        text = f"0x{data[: CELL_MAX // 2].hex()}"
    return text if len(text) <= CELL_MAX and len(data) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def _wants_report(args: argparse.Namespace) -> bool:
    """Return whether the arguments select counts and samples instead of rows."""
    is_page = args.out is not None and args.out.endswith(PAGES)
    return bool(args.spark or args.decoder or args.ignore or args.tolerance or is_page)


def _compare_in_report(args: argparse.Namespace) -> int:
    """Print what differs, as `diff_report` says it. Returns 0 for equal states, 1 for different ones."""
    if args.out is not None and args.out.endswith((".csv", ".parquet")):
        text = "not with --spark or --decoder, which report counts and samples"
        refuse("out", args.out, f"{text}; walkit.spark.diff(left, right) gives all rows to a program")
    given = {"decoder": args.decoder, "ignore": args.ignore or [], "tolerance": args.tolerance}
    report = (_by_spark if args.spark else _in_process)(args, given)
    if args.out is not None and args.out.endswith(PAGES):
        with saved(args.out) as sink:
            sink.write(report.to_html().encode())
        note(f"saved as {args.out}")
        args.out = None
    publish("diff.report", args, lambda: [report.text()], report.to_dict)
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
        sides = [_side(stack, place) for place in (args.left, args.right)]
        shown = stack.enter_context(bar(f"diff {args.left.path} {args.right.path}", " records"))
        return diff_report(*((side.reader, side.lsn) for side in sides), progress=shown, **given)
