"""`walkit inspect`, `walkit verify` and `walkit repair`: a report on a log, and an exit code."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from walkit._internal.text import aligned, bounds, counted
from walkit.cli.compare import cell
from walkit.cli.output import bar, echo, publish
from walkit.cli.usage import UsageError
from walkit.errors import CorruptionError, PayloadUnreachableError
from walkit.objects.entrance import reader_at
from walkit.objects.payload_check import check_payloads
from walkit.objects.salvage import salvage as salvage_log
from walkit.objects.verify import scan
from walkit.objects.verify import verify as verify_log
from walkit.read.payloads import LINK_HEAD, LinkFacts
from walkit.recovery.repair import repair as repair_log
from walkit.recovery.scan_report import (
    FrameRow,
    RangeVerdict,
    ScanReport,
    SegmentFacts,
    Verdict,
    frame_time,
    lsn_text,
)

ROWS_SHOWN_MAX = 60
"""Most segments and ranges in a printed report; `--json` lists all."""
FRAME_HEAD = (
    *("segment", "position", "LSN", "records", "bytes", "raw bytes", "codec"),
    *("promise", "sealed", "intact"),
)
IN_ORDER = (Verdict.INTACT, Verdict.NOT_READ, Verdict.UNUSED, Verdict.IN_PROGRESS)


def inspect(args: argparse.Namespace) -> int:
    """Show marks and segments, and the frames and links on request. Returns 1 for a problem."""
    with bar(f"inspect {args.log}") as progress:
        report = scan(args.log, bodies=args.frames, progress=progress)

    def lines() -> Iterator[str]:
        yield from (*_facts(report), "", *_segments(report.segments))
        if args.frames:
            yield ""
            yield from aligned(
                FRAME_HEAD, [_frame_cells(row) for row in report.frame_rows()], right=range(10)
            )
        if args.links:
            yield ""
            yield from aligned(LINK_HEAD, [link.cells(cell) for link in _links(args)], right=range(7))
        yield from (*_ranges(report), *_summary_lines(report))

    def plain() -> dict[str, Any]:
        frames = {"frames": [row._asdict() for row in report.frame_rows()]} if args.frames else {}
        found = {"links": [_plain_link(link) for link in _links(args)]} if args.links else {}
        return report.to_dict() | frames | found

    publish("inspect", args, lines, plain)
    return 1 if report.problems else 0


def verify(args: argparse.Namespace) -> int:
    """Check everything. Returns 1 if something promised is not in order, 3 if only payload logs cannot be reached."""
    if args.payload_log is not None and not args.payloads:
        raise UsageError("--payload-log is for --payloads")
    with bar(f"verify {args.log}") as progress:
        report = verify_log(args.log, progress=progress)
    if args.payloads:
        with bar(f"payloads of {args.log}", " LSNs") as progress:
            report = check_payloads(report, args.log, progress, payload_log=args.payload_log)

    def lines() -> list[str]:
        return [f"verify of {report.location} ({report.state})", *_ranges(report), *_summary_lines(report)]

    publish("verify", args, lines, report.to_dict)
    is_damaged = any(not isinstance(problem.error, PayloadUnreachableError) for problem in report.problems)
    return 0 if report.ok else 1 if is_damaged else 3


def _links(args: argparse.Namespace) -> Iterator[LinkFacts]:
    """Yield the links of a log, as far as it can be read: its damage is in the report."""
    with suppress(CorruptionError), reader_at(args.log, payload_log=args.payload_log) as reader:
        yield from LinkFacts.all_of(reader.read())


def _plain_link(facts: LinkFacts) -> dict[str, Any]:
    log_id, epoch_id, lsn, length, crc32c, kind = facts.link
    return {
        "lsn": facts.lsn,
        "kind": str(kind),
        "payload_log_id": log_id,
        "epoch_id": epoch_id,
        "payload_lsn": lsn,
        "length": length,
        "crc32c": crc32c,
        "error": facts.error or None,
    }


WAYS_ON = (
    "A replica or a copy can return damaged frames: walkit repair LOG --from HOST:PORT. Without one, "
    "--policy salvage keeps all intact frames and gives the rest up: copy the folder first"
)
"""The next step of a person whose repair is refused."""


def repair(args: argparse.Namespace) -> int:
    """Repair a log. Returns 1 if something that was promised had to be given up; a refusal exits with 1, too."""
    if args.source is not None:
        from walkit.cli.network import heal

        return heal(args)
    try:
        with bar(f"repair {args.log}") as progress:
            report = repair_log(
                args.log, policy=args.policy or "prefix", dry_run=args.dry_run, progress=progress
            )
    except CorruptionError as error:
        if args.debug or args.policy == "salvage":
            raise
        echo(f"walkit repair: {error}. {WAYS_ON}")
        return 1
    publish("repair", args, report.lines, report.to_dict)
    return 1 if report.ok is False else 0


def salvage(args: argparse.Namespace) -> int:
    """Salvage a log on object storage. Returns 1 if something that was promised had to be given up."""
    with bar(f"salvage {args.url}") as progress:
        report = salvage_log(args.url, args.target, progress)
    publish("repair", args, report.lines, report.to_dict)
    return 1 if report.ok is False else 0


def _facts(report: ScanReport) -> list[str]:
    held = [r for r in report.verdict if r.verdict in (Verdict.INTACT, Verdict.NOT_READ)]
    records, frames = sum(r.records for r in held), sum(r.frames for r in held)
    facts = {
        "state": f"{report.state}, format {report.format_version}, log id {report.log_id:016x}",
        "LSN": bounds(report.first_lsn, report.last_lsn) if records else "no records",
        "records": f"{records:,} in {counted(frames, 'frame')} of {counted(sum(r.size_bytes for r in held), 'byte')}",
        "position": f"ends at {report.end_position:,}, promised up to {report.promised_position:,}",
        "epochs": f"{report.epochs:,}",
        "low watermark": f"LSN {report.low_watermark:,}",
        "manifest": f"generation {report.generation:,}",
    }
    width = max(map(len, facts))
    return [report.location, *(f"  {name.ljust(width)}  {fact}" for name, fact in facts.items())]


def _segments(segments: tuple[SegmentFacts, ...]) -> list[str]:
    rows = [
        (
            _short(s.name),
            s.state,
            lsn_text(s.first_lsn, s.last_lsn),
            f"{s.records:,}",
            f"{s.frames:,}",
            f"{s.size_bytes:,}",
            f"{s.file_bytes:,}",
            f"{s.epoch:,}",
            s.verdict.value,
        )
        for s in segments
    ]
    headers = ("segment", "state", "LSN", "records", "frames", "bytes", "file bytes", "epoch", "verdict")
    return _shortened(aligned(headers, rows, right=(0, 2, 3, 4, 5, 6, 7))) if rows else ["no segments"]


def _ranges(report: ScanReport) -> list[str]:
    """List the ranges that are not in order."""
    rows = [_range_row(r) for r in report.verdict if r.verdict not in IN_ORDER]
    if not rows:
        return []
    headers = ("verdict", "segment", "from position", "to position", "LSN", "reason")
    return ["", *_shortened(aligned(headers, rows, right=(1, 2, 3, 4)))]


def _range_row(r: RangeVerdict) -> tuple[str, ...]:
    reason = r.reason if len(r.reason) <= 80 else r.reason[:79] + "…"
    lsns = lsn_text(r.first_lsn, r.last_lsn)
    return r.verdict.value, _short(r.segment), f"{r.start_position:,}", f"{r.end_position:,}", lsns, reason


def _summary_lines(report: ScanReport) -> list[str]:
    problems = [f"problem: {problem}" for problem in report.problems]
    notes = [f"note: {note}" for note in report.notes]
    return ["", *_shortened(problems), *_shortened(notes), f"{report.summary()}; {report.duration_s:,.2f} s"]


def _frame_cells(row: FrameRow) -> tuple[str, ...]:
    return (
        _short(row.segment),
        f"{row.position:,}",
        "mark" if row.mark else lsn_text(row.first_lsn, row.last_lsn),
        f"{row.records:,}",
        f"{row.footprint:,}",
        f"{row.raw_bytes:,}",
        row.codec or "",
        f"{row.durable_position:,}",
        frame_time(row.sealed_us),
        "" if row.intact is None else "yes" if row.intact else "NO",
    )


def _short(name: str) -> str:
    """Return a segment's number; other names as they are."""
    digits = name.removesuffix(".segment")
    return f"{int(digits)}" if digits.isdecimal() else name


def _shortened(lines: list[str]) -> list[str]:
    left = len(lines) - ROWS_SHOWN_MAX
    if left <= 1:
        return lines
    half = ROWS_SHOWN_MAX // 2
    return [*lines[:half], f"... and {left:,} more (--json lists all) ...", *lines[-half:]]
