"""The contents of a damaged frame, as far as its bytes still hold them. Nothing that comes from here is evidence.

A CRC-32C says more than right or wrong: if one byte differs from the bytes that were checksummed, the difference of the
checksums tells which byte and how. So a flipped bit in a column of lengths costs no record. If more differs, columns
are taken as they are: lengths that do not add up to the body place no record, and a record of an unknown kind is left
out. Lengths are bounded as for any frame, so hostile bytes cost no more memory than an intact frame of that header.
"""

from __future__ import annotations

from functools import cache

from walkit._internal.arrow import pa
from walkit.errors import CorruptionError, WalkitError
from walkit.format.body import decode_body, to_arrow
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameHeader, check_header, decompress
from walkit.format.layout import (
    CODEC_ZSTD,
    FRAME_HEADER_BYTES,
    FRAME_HEADER_CRC_OFFSET,
)
from walkit.format.segment import SegmentHeader
from walkit.record import Kind

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
    why = ""
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
            why = str(error)
            continue
        known = _known(rows, header)
        left = header.records - len(known)
        return known, f"{left:,} of its records have an unknown kind or LSN" if left else ""
    return none, why


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
