"""Which byte of a frame is what: to look at bytes, whether the frame is intact or damaged."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from walkit.errors import CorruptionError
from walkit.format.body import Column, decode_body
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameHeader
from walkit.format.layout import (
    CODEC_NAMES,
    CODEC_NONE,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_HEADER_CRC_OFFSET,
    FRAME_MAGIC,
    FrameFlag,
)
from walkit.record import Buffer, to_datetime

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
    """Name every byte of the frame that `data` begins with: header, columns of the body, padding; without gaps.

    The header's fields are named whether they can be trusted or not, and a checksum's value says whether it is right.
    Where the header does not say how far the frame reaches, or its body is compressed, damaged or cut short, what
    follows is one field. ValueError for less than a header.
    """
    view = memoryview(data).cast("B")
    if len(view) < FRAME_HEADER_BYTES:
        raise ValueError(f"a frame begins with {FRAME_HEADER_BYTES} bytes of header; these are {len(view):,}")
    header = FrameHeader.parse(view)
    head = tuple(
        FrameField(name, at, size, _value(name, getattr(header, name), header, view))
        for name, at, size in header_layout()
    )
    body_end = FRAME_HEADER_BYTES + header.body_stored_bytes
    if header.magic != FRAME_MAGIC or not body_end <= header.footprint <= len(view):
        rest = len(view) - FRAME_HEADER_BYTES
        unknown = FrameField("unknown", FRAME_HEADER_BYTES, rest, "the header does not say what this is")
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
