"""`walkit dump`: the records of a log as JSON lines, CSV or Parquet, streamed: memory does not grow with the log."""

from __future__ import annotations

import argparse
import base64
import codecs
import contextlib
import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa

from walkit._internal.text import counted, lsn_range
from walkit.cli.output import Bar, bar, echo, note, saved, standard_output
from walkit.cli.usage import UsageError
from walkit.errors import CorruptionError, PayloadError
from walkit.objects.entrance import reader_at
from walkit.read.damage_seen import DamageSeen, Seen
from walkit.read.damaged import batches_with_damage
from walkit.read.read_api import with_values
from walkit.read.reader import view_with_damage
from walkit.read.view import View
from walkit.record import RECORD_SCHEMA, Batch, Kind, to_datetime
from walkit.storage.address import storage_at

BATCH_RECORDS = 4096
BATCH_BYTES = 4 << 20
VERIFIED = "verified"
"""The column that --damaged adds."""
DAMAGE_SHOWN_MAX = 20
_Row: TypeAlias = tuple[int, str, bytes | None, bytes | None, str | int | None]
CSV_COLUMNS = ("lsn", "kind", "key", "key_encoding", "value", "value_encoding", "timestamp")

_KIND_NAMES = {kind.value: str(kind) for kind in Kind}
as_utf8 = codecs.getwriter("utf-8")
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dump(args: argparse.Namespace) -> int:
    """Write the records of [--from, --to] as they are now: of a live log what is on stable storage.

    Damage in the middle ends the dump with exit code 1; what is before it has been written, also to --out. With
    --damaged it continues, with the records that damaged frames still hold, and returns 1 at its end. Values in payload
    logs are fetched; one that is gone ends the dump as damage does. With --damaged links stay links.
    """
    form = args.format or "json"
    if args.json and form != "json":
        raise UsageError(f"--json and --format {form} contradict each other")
    if form == "parquet" and args.out is None:
        raise UsageError("--format parquet needs --out FILE")
    if args.first_lsn is not None and args.last_lsn is not None and args.first_lsn > args.last_lsn:
        raise UsageError(f"--from {args.first_lsn} is above --to {args.last_lsn}")
    damage: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        if args.damaged:
            batches, total = _with_damage(args, lambda one: _note(damage, one))
        else:
            reader = stack.enter_context(reader_at(args.log, payload_log=args.payload_log))
            seen = reader.source.now()
            view, newest = seen.view, seen.last_lsn
            first, last = _bounds(view, newest, args.first_lsn, args.last_lsn)
            found = view.batches(first, last, records=BATCH_RECORDS, whole_bytes=BATCH_BYTES)
            batches = with_values(reader, found if first <= last else ())
            total = last - first + 1
        progress = stack.enter_context(bar(f"dump {args.log}", " records")) if args.out else None
        sink = stack.enter_context(
            _stdout() if args.out is None else saved(args.out, keep=(CorruptionError, PayloadError))
        )
        written = WRITERS[form](sink, _counted(batches, progress, total), args.damaged)
    if args.out is not None:
        note(f"{counted(written, 'record')} saved as {args.out}")
    for text, times in damage.items():
        echo(f"damaged: {text}" if text else f"damaged: {counted(times, 'place')} more")
    return 1 if damage else 0


def _note(damage: Counter[str], one: DamageSeen) -> None:
    """Count a damage under its text, and under "" after the first ones."""
    damage[str(one) if len(damage) < DAMAGE_SHOWN_MAX else ""] += 1


def _with_damage(args: argparse.Namespace, seen: Seen) -> tuple[Iterator[pa.RecordBatch], int]:
    """Return the records of a damaged log as batches with a column `verified`, and about how many there are."""
    view = view_with_damage(storage_at(args.log), seen)
    first = max(args.first_lsn or 1, view.manifest.low_watermark + 1)
    ends = [span.last_lsn for span in view.spans if span.last_lsn is not None]
    last = args.last_lsn or max([*ends, view.manifest.end.last_lsn])
    batches = (
        rows.append_column(VERIFIED, pa.repeat(verified, len(rows)))
        for rows, verified in batches_with_damage(view, first, args.last_lsn, seen)
    )
    return batches, max(last - first + 1, 0)


def _marked(batch: pa.RecordBatch, marked: bool) -> Iterator[tuple[_Row, bool | None]]:
    """Yield each row, and whether it is verified; None if the batch does not say it."""
    marks = batch.column(VERIFIED).to_pylist() if marked else [None] * len(batch)
    return zip(_rows(batch), marks, strict=True)


@contextlib.contextmanager
def _stdout() -> Iterator[BinaryIO]:
    sink = standard_output()
    try:
        yield sink
    except (CorruptionError, PayloadError):
        sink.flush()
        raise
    sink.flush()


def _bounds(view: View, newest: int, first: int | None, last: int | None) -> tuple[int, int]:
    oldest = view.first_lsn
    for name, lsn in (("--from", first), ("--to", last)):
        if lsn is not None and not oldest <= lsn <= newest:
            there = lsn_range(oldest, newest)
            raise UsageError(f"{name} {lsn}: the log holds {there}")
    return first or oldest, last or newest


def _counted(batches: Iterator[pa.RecordBatch], progress: Bar | None, total: int) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in batches:
        yield batch
        done += batch.num_rows
        if progress is not None:
            progress(done, total)


def _rows(batch: pa.RecordBatch) -> Iterator[_Row]:
    """Yield (LSN, kind, key, value, timestamp); a timestamp is ISO 8601, or microseconds if no calendar has it."""
    columns = Batch.from_arrow(batch)
    stamps = columns.timestamps or [None] * len(columns)
    lsns = batch.column("lsn").to_pylist()  # damaged ones need not grow, as a Batch takes for granted
    for lsn, (_, kind, key, value), stamp in zip(lsns, columns.rows(), stamps, strict=True):
        yield lsn, _KIND_NAMES[kind], key, value, None if stamp is None else _time(stamp)


def _time(microseconds: int) -> str | int:
    moment = to_datetime(microseconds)
    return (
        microseconds if moment is None else moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def as_text(data: bytes) -> tuple[str, str]:
    """Return (text, "text") if the bytes are UTF-8, else (base64, "base64")."""
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def plain_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes for JSON, under a name that says whether they are base64."""
    text, encoding = (None, "text") if data is None else as_text(data)
    return {name if encoding == "text" else f"{name}_base64": text}


def _write_json(sink: BinaryIO, batches: Iterator[pa.RecordBatch], marked: bool = False) -> int:
    count = 0
    for batch in batches:
        lines = []
        for (lsn, kind, key, value, stamp), verified in _marked(batch, marked):
            plain: dict[str, Any] = {"lsn": lsn, "kind": kind}
            if verified is not None:
                plain[VERIFIED] = verified
            plain |= plain_bytes("key", key) | plain_bytes("value", value) | {"timestamp": stamp}
            lines.append(_to_json(plain))
        sink.write(("\n".join(lines) + "\n").encode())
        count += batch.num_rows
    return count


def _write_csv(sink: BinaryIO, batches: Iterator[pa.RecordBatch], marked: bool = False) -> int:
    count = 0
    writer = csv.writer(as_utf8(sink), lineterminator="\n")
    writer.writerow((*CSV_COLUMNS, *([VERIFIED] if marked else [])))
    for batch in batches:
        for (lsn, kind, key, value, stamp), verified in _marked(batch, marked):
            cells = [("", "") if data is None else as_text(data) for data in (key, value)]
            row = (lsn, kind, *cells[0], *cells[1], "" if stamp is None else stamp)
            writer.writerow(row if verified is None else (*row, str(verified).lower()))
        count += batch.num_rows
    return count


def _write_parquet(sink: BinaryIO, batches: Iterator[pa.RecordBatch], marked: bool = False) -> int:
    import pyarrow.parquet as pq

    count = 0
    schema = RECORD_SCHEMA.append(pa.field(VERIFIED, pa.bool_())) if marked else RECORD_SCHEMA
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


WRITERS: dict[str, Callable[..., int]] = {
    "json": _write_json,
    "csv": _write_csv,
    "parquet": _write_parquet,
}
"""By format: each writes batches of records, marked if they have a column for that, and returns how many records."""
