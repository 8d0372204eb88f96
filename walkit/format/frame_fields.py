"""Frames to look at: the meaning of each byte, and the contents of a damaged one. Nothing here is evidence.

A CRC-32C says more than right or wrong: if one byte differs from the bytes that were checksummed, the difference of the
checksums tells which byte and how. So a flipped bit in a column of lengths costs no record. If more differs, columns
are taken as they are: lengths that do not add up to the body place no record, and a record of an unknown kind is left
out. Lengths are bounded as for any frame, so hostile bytes cost no more memory than an intact frame of that header.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from walkit._internal.arrow import pa
from walkit.errors import CorruptionError, WalkitError
from walkit.format.body import Column, decode_body, to_arrow
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameHeader, check_header, decompress
from walkit.format.layout import (
    CODEC_NAMES,
    CODEC_NONE,
    CODEC_ZSTD,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_HEADER_CRC_OFFSET,
    FRAME_MAGIC,
    FrameFlag,
)
from walkit.format.segment import SegmentHeader
from walkit.record import Buffer, Kind, to_datetime

ITEMS_SHOWN_MAX = 6
"""Most items of a column that its value names."""
_HEXADECIMAL = ("log_id", "epoch_id", "chain")


class FrameField(NamedTuple):
    """Bytes [offset, offset + size) of a frame: the field's name, and its value as people read it."""

    name: str
    offset: int
    size: int
    value: str

    @property
    def end(self) -> int:
        """Offset of the byte after the field."""
        return self.offset + self.size


def header_layout() -> Iterator[tuple[str, int, int]]:
    """Yield (name, offset, size) of each field of a frame header, from the codec's own struct."""
    at = 0
    for name, code in zip(FrameHeader._fields, re.findall(r"\d*[a-zA-Z]", FRAME_HEADER.format), strict=True):
        size = struct.calcsize(f"<{code}")
        yield name, at, size
        at += size


def frame_fields(data: Buffer) -> tuple[FrameField, ...]:
    """Name every byte of the first frame in `data`: header, columns of the body, padding; without gaps.

    The header's fields are named whether they can be trusted or not, and a checksum's value shows whether it is right.
    Where the header does not say how far the frame reaches, or its body is compressed, damaged or cut short, what
    follows is one field. ValueError for less than a header.
    """
    view = memoryview(data).cast("B")
    if len(view) < FRAME_HEADER_BYTES:
        raise ValueError(f"a frame starts with {FRAME_HEADER_BYTES} bytes of header; these are {len(view):,}")
    header = FrameHeader.parse(view)
    head = tuple(
        FrameField(name, at, size, _value(name, getattr(header, name), header, view))
        for name, at, size in header_layout()
    )
    body_end = FRAME_HEADER_BYTES + header.body_stored_bytes
    if header.magic != FRAME_MAGIC or not body_end <= header.footprint <= len(view):
        rest = len(view) - FRAME_HEADER_BYTES
        unknown = FrameField("unknown", FRAME_HEADER_BYTES, rest, "the header does not describe these bytes")
        return (*head, unknown) if rest else head
    fields = [*head, *_body_fields(header, view[FRAME_HEADER_BYTES:body_end])]
    if header.footprint > body_end:
        zero = not any(view[body_end : header.footprint])
        fields.append(
            FrameField(
                "padding", body_end, header.footprint - body_end, "zeros" if zero else "not zero: damaged"
            )
        )
    return tuple(fields)


def _value(name: str, number: int, header: FrameHeader, view: memoryview) -> str:
    if name == "magic":
        text = number.to_bytes(4, "little")
        return text.decode() if number == FRAME_MAGIC else f"{text!r}: no frame begins so"
    if name == "codec":
        return f"{number} ({CODEC_NAMES.get(number, 'not known') or 'none'})"
    if name == "flags":
        return f"{number} ({', '.join(flag.name or '' for flag in FrameFlag if flag & number) or 'none'})"
    if name == "sealed_us":
        stamp = to_datetime(number)
        return f"{number:,}" if stamp is None else f"{number:,} ({stamp.isoformat()})"
    if name == "header_crc":
        return _checksum(number, crc32c(view[:FRAME_HEADER_CRC_OFFSET]))
    if name == "body_crc":
        end = FRAME_HEADER_BYTES + header.body_stored_bytes
        return (
            _checksum(number, crc32c(view[FRAME_HEADER_BYTES:end])) if end <= len(view) else f"{number:#010x}"
        )
    return f"{number:#x}" if name in _HEXADECIMAL else f"{number:,}"


def _checksum(stored: int, computed: int) -> str:
    return (
        f"{stored:#010x} (right)"
        if stored == computed
        else f"{stored:#010x}, but the bytes give {computed:#010x}"
    )


def _body_fields(header: FrameHeader, body: memoryview) -> list[FrameField]:
    start = FRAME_HEADER_BYTES
    if not body:
        return []
    if header.codec != CODEC_NONE:
        what = f"{header.body_raw_bytes:,} bytes, compressed ({CODEC_NAMES.get(header.codec)})"
        return [FrameField("body", start, len(body), what)]
    try:
        columns = decode_body(body, header.records, header.flags, header.span)
    except CorruptionError as error:
        return [FrameField("body", start, len(body), str(error))]
    fields: list[FrameField] = []
    for name, column, one in (
        ("key lengths", columns.key_lengths, 4),
        ("value lengths", columns.value_lengths, 4),
        ("timestamps", columns.timestamps, 8),
        ("LSN offsets", columns.lsn_offsets, 4),
        ("kind bytes", columns.kinds, 1),
    ):
        if column is not None:
            size = one if isinstance(column, int) else column.nbytes
            fields.append(FrameField(name, start, size, _column(column, hexadecimal=name == "kind bytes")))
            start += size
    for name, data in (("keys", columns.key_bytes), ("values", columns.value_bytes)):
        if data:
            fields.append(
                FrameField(name, start, len(data), repr(bytes(data[:64])) + "..." * (len(data) > 64))
            )
            start += len(data)
    return fields


def _column(column: Column, *, hexadecimal: bool) -> str:
    form = "{:#04x}" if hexadecimal else "{:,}"
    if isinstance(column, int):
        return f"{form.format(column)} for every record"
    shown = ", ".join(form.format(item) for item in column[:ITEMS_SHOWN_MAX].tolist())
    return shown + ", ..." * (len(column) > ITEMS_SHOWN_MAX)


CRC_32C = 0x82F63B78
ONE_BIT_BYTES_MAX = 4 << 20
"""Above this size no flipped bit is sought: a chance fit of other damage would no longer be rare (1 in 128 here)."""
ONE_BYTE_BYTES_MAX = 64 << 10
"""Above this size no changed byte of several bits is sought, for the same reason (1 in 257 here)."""


@cache
def _tables() -> tuple[list[int], list[int]]:
    """Return the table of CRC-32C, and the index of each entry by its highest byte."""
    table = []
    for first in range(256):
        value = first
        for _ in range(8):
            value = value >> 1 ^ (CRC_32C if value & 1 else 0)
        table.append(value)
    return table, [index for _, index in sorted((entry >> 24, index) for index, entry in enumerate(table))]


def with_one_byte_changed(data: bytes, wanted_crc: int) -> bytes | None:
    """Return `data` with the one byte changed that gives it this checksum; None if no byte or more than one does.

    The register of a CRC is linear: run backwards from the difference of the checksums, it holds less than 256 exactly
    where one changed byte explains the difference. A change of one bit is preferred.
    """
    if len(data) > ONE_BIT_BYTES_MAX:
        return None
    table, by_highest = _tables()
    register = crc32c(data) ^ wanted_crc
    fits: list[tuple[int, int]] = []
    for at in range(len(data) - 1, -1, -1):
        index = by_highest[register >> 24]
        register = (register ^ table[index]) << 8 & 0xFFFFFFFF | index
        if register < 256:
            fits.append((at, register))
    bits = [fit for fit in fits if fit[1].bit_count() == 1]
    found = bits or (fits if len(data) <= ONE_BYTE_BYTES_MAX else [])
    if len(found) != 1:
        return None
    ((at, change),) = found
    return data[:at] + bytes((data[at] ^ change,)) + data[at + 1 :]


def header_left(block: bytes, segment: SegmentHeader, position: int) -> FrameHeader | None:
    """Return the header of the frame that a segment has at `position`, with one byte changed if it needs that.

    None if there is no such header: it has to name this log, epoch and position, and lengths within the limits.
    """
    head, stored = block[:FRAME_HEADER_CRC_OFFSET], block[FRAME_HEADER_CRC_OFFSET:FRAME_HEADER_BYTES]
    if len(block) < FRAME_HEADER_BYTES:
        return None
    crc = crc32c(head)
    wanted = int.from_bytes(stored, "little")
    in_checksum = any((crc ^ wanted) & ~(0xFF << shift) == 0 for shift in (0, 8, 16, 24))
    right = head if in_checksum else with_one_byte_changed(head, wanted)
    if right is None:
        return None
    try:
        checked = right + crc32c(right).to_bytes(4, "little")
        header, fault = check_header(checked, 0, segment.alignment, segment.frame_bytes_max)
    except WalkitError:  # a newer format
        return None
    ours = (segment.log_id, segment.epoch, segment.epoch_id, position)
    if header is None or fault is not None:
        return None
    return header if (header.log_id, header.epoch, header.epoch_id, header.position) == ours else None


def records_left(header: FrameHeader, frame: bytes) -> tuple[pa.RecordBatch, str]:
    """Return the records that the columns of a frame still hold, and why there are fewer than it had ("" if not).

    `frame` starts with the header. Without all of its bytes nothing is given.
    """
    body = frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + header.body_stored_bytes]
    none = to_arrow([])
    if not header.records:
        return none, ""
    if len(body) < header.body_stored_bytes:
        return none, "the file ends inside the frame"
    fits = crc32c(body) == header.body_crc
    changed = None if fits else with_one_byte_changed(body, header.body_crc)
    reason = ""
    for candidate, strict in ((changed, True), (body, True), (body, False)):
        if candidate is None:
            continue
        try:
            raw = (
                decompress(memoryview(candidate), header.body_raw_bytes)
                if header.codec == CODEC_ZSTD
                else candidate
            )
            columns = decode_body(memoryview(raw), header.records, header.flags, header.span, strict=strict)
            rows = to_arrow([(header.first_lsn, columns)])
        except (CorruptionError, ValueError) as error:
            reason = str(error)
            continue
        known = _known(rows, header)
        left = header.records - len(known)
        return known, f"{left:,} of its records have an unknown kind or LSN" if left else ""
    return none, reason


def _known(rows: pa.RecordBatch, header: FrameHeader) -> pa.RecordBatch:
    """Return the rows whose kind is known and whose LSN the frame covers."""
    import pyarrow.compute as pc

    kinds = pa.array([int(kind) for kind in Kind], pa.int8())
    known = pc.and_(
        pc.is_in(rows.column("kind"), value_set=kinds),
        pc.and_(
            pc.greater_equal(rows.column("lsn"), header.first_lsn),
            pc.less_equal(rows.column("lsn"), header.last_lsn),
        ),
    )
    return rows.filter(known)
