"""The frame: one header, one body, zero padding (FORMAT.md F-2 to F-7). No files, no clocks.

`decode_frame` is the exact inverse of `prepare_body` with `seal_frame`; `FrameHeader.parse` alone reads header bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import zstandard

from walkit.errors import CorruptionError, FormatVersionError
from walkit.format.body import (
    ONE_KIND_TIMELESS,
    ONE_RECORD,
    ONE_RECORD_BYTES,
    ONE_RECORD_FLAGS,
    SPARSE,
    TIMESTAMPS,
    UNIFORM_TIMESTAMPS,
    Columns,
    DecodedColumns,
    decode_body,
    encode_body,
    encode_puts,
    one_record,
)
from walkit.format.checksum import crc32c, crc32c_of
from walkit.format.layout import (
    CODEC_NONE,
    CODEC_ZSTD,
    FORMAT_VERSION,
    FRAME_FLAGS_KNOWN,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_HEADER_CRC_OFFSET,
    FRAME_HEADER_FRONT,
    FRAME_MAGIC,
    LSN_MAX,
    POSITION_MAX,
    RECORDS_PER_FRAME_MAX,
    ZEROS,
    align_up,
)
from walkit.record import Buffer


class FrameFault(Enum):
    """Why bytes at a frame boundary are not the frame that belongs there. Data for recovery, not an exception."""

    END = "the bytes are zero: nothing was written here"
    SHORT = "the file ends inside the frame"
    MAGIC = "the bytes do not begin like a frame"
    HEADER = "the header's checksum is wrong"
    LENGTH = "a field of the header is outside its limits"
    FOREIGN = "the frame belongs to another log"
    EPOCH = "the frame belongs to another epoch"
    POSITION = "the frame says it belongs elsewhere"
    CHAIN = "the frame does not follow the one before it"
    LAST = "the frame is not the one that the segment was finished with"
    LSN = "the frame's first LSN does not follow the one before it"
    BODY = "the body's checksum is wrong"
    PADDING = "the padding is not zero"
    UNREADABLE = "the storage could not read it"


class FrameHeader(NamedTuple):
    """A frame's header as named fields, in the order of the bytes."""

    magic: int
    version: int
    codec: int
    flags: int
    log_id: int
    epoch: int
    epoch_id: int
    position: int
    first_lsn: int
    records: int
    span: int
    footprint: int
    body_stored_bytes: int
    body_raw_bytes: int
    body_crc: int
    durable_position: int
    sealed_us: int
    chain: int
    header_crc: int

    @property
    def last_lsn(self) -> int:
        """Last LSN covered; first_lsn - 1 for a marker frame, which has no records."""
        return self.first_lsn + self.span - 1

    @property
    def end_position(self) -> int:
        """Position of the byte after the frame."""
        return self.position + self.footprint

    @property
    def is_marker(self) -> bool:
        """A frame that covers no LSN, written only for its promise."""
        return self.span == 0

    @classmethod
    def parse(cls, buffer: Buffer, offset: int = 0) -> FrameHeader:
        """Return the header's fields without judging them; `check_header` does that."""
        return cls._make(FRAME_HEADER.unpack_from(buffer, offset))


def check_header(
    buffer: Buffer, offset: int, alignment: int, frame_bytes_max: int
) -> tuple[FrameHeader | None, FrameFault | None]:
    """Judge the header at `offset` of `buffer` by itself: (header, None) if it can be trusted, else the fault.

    `buffer` is of bytes. The checksum comes before every other field, so that no flipped bit is believed; a right
    checksum over a newer version, unknown flags or an unknown codec raises FormatVersionError.
    """
    if len(buffer) - offset < FRAME_HEADER_BYTES:
        return None, FrameFault.SHORT
    header = FrameHeader.parse(buffer, offset)
    if header.magic != FRAME_MAGIC:
        zero = memoryview(buffer)[offset : offset + FRAME_HEADER_BYTES] == ZEROS[:FRAME_HEADER_BYTES]
        return None, FrameFault.END if zero else FrameFault.MAGIC
    if crc32c(buffer[offset : offset + FRAME_HEADER_CRC_OFFSET]) != header.header_crc:
        return None, FrameFault.HEADER
    if header.version > FORMAT_VERSION:
        raise FormatVersionError(
            f"the frame at position {header.position:,}", found=header.version, supported=FORMAT_VERSION
        )
    if header.flags & ~FRAME_FLAGS_KNOWN or header.codec not in (CODEC_NONE, CODEC_ZSTD):
        raise FormatVersionError(
            f"the frame at position {header.position:,}",
            found=f"flags {header.flags:#x}, codec {header.codec}",
            supported=f"flags {FRAME_FLAGS_KNOWN:#x}, codecs 0 and 1",
        )
    if not _fields_fit(header, alignment, frame_bytes_max):
        return None, FrameFault.LENGTH
    return header, None


def _fields_fit(header: FrameHeader, alignment: int, frame_bytes_max: int) -> bool:
    """Judge every field against the limits of the format and of its segment (FORMAT.md F-7.2)."""
    stored, raw = header.body_stored_bytes, header.body_raw_bytes
    span, position = header.span, header.position
    return (
        header.footprint == align_up(FRAME_HEADER_BYTES + stored, alignment)
        and header.footprint <= frame_bytes_max
        and raw <= frame_bytes_max
        and (stored == raw if header.codec == CODEC_NONE else stored < raw)
        and header.records <= RECORDS_PER_FRAME_MAX
        and (header.records == 0) == (raw == 0)
        and (span == header.records or (span > header.records and header.flags & SPARSE != 0))
        and header.flags & (TIMESTAMPS | UNIFORM_TIMESTAMPS) != UNIFORM_TIMESTAMPS
        and 0 < header.first_lsn <= LSN_MAX - span
        and position % alignment == 0
        and header.durable_position <= position <= POSITION_MAX - header.footprint
    )


@dataclass(slots=True, eq=False)
class PreparedBody:
    """A body that is encoded, perhaps compressed, and checksummed: the work that needs no LSNs.

    Immutable.
    """

    count: int
    flags: int
    codec: int
    buffers: list[Buffer]
    stored_bytes: int
    raw_bytes: int
    crc: int

    def footprint(self, alignment: int) -> int:
        """Bytes the frame takes, header and padding included."""
        return align_up(FRAME_HEADER_BYTES + self.stored_bytes, alignment)


NO_COLUMNS = DecodedColumns(0, 0, 0, 0, None, None, memoryview(b""), memoryview(b""))
MARKER_BODY = PreparedBody(0, 0, CODEC_NONE, [], 0, 0, 0)

ONE_BUFFER_BYTES = 16384
"""Up to this size the buffers of a body, and of a frame, are joined: copying them is cheaper than handling each."""


class _Zstd(threading.local):
    """One compressor and one decompressor for each thread: making them costs more than a small body does."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def prepare_body(columns: Columns, codec: str | None = None) -> PreparedBody:
    """Encode, compress if that is smaller, and checksum. May run in parallel with anything."""
    flags, buffers = encode_body(columns)
    return prepare_encoded(columns.count, flags, buffers, codec)


def prepare_encoded(count: int, flags: int, buffers: list[Buffer], codec: str | None = None) -> PreparedBody:
    """Return the body of encoded records, from `encode_body` or `encode_puts`. See `prepare_body`."""
    raw_bytes = stored_bytes = sum(map(len, buffers))
    codec_number = CODEC_NONE
    if codec == "zstd" and raw_bytes > FRAME_HEADER_BYTES:
        packed = _zstd.compressor.compress(b"".join(buffers))
        if len(packed) < raw_bytes:
            codec_number, buffers, stored_bytes = CODEC_ZSTD, [packed], len(packed)
    if 0 < stored_bytes <= ONE_BUFFER_BYTES:
        buffers = [b"".join(buffers)]
    crc = crc32c(buffers[0]) if len(buffers) == 1 else crc32c_of(buffers)
    return PreparedBody(count, flags, codec_number, buffers, stored_bytes, raw_bytes, crc)


def prepare_puts(
    kind: int, keys: Sequence[bytes], values: Sequence[bytes], codec: str | None = None
) -> PreparedBody:
    """Return the body of one value or more of one kind byte, with as many keys or none: see `encode_puts`.

    Values of one length without keys, which most batches are, are encoded here, by the rules of `encode_puts` and
    `prepare_encoded`: three calls less after a blocking write, when the caches hold none of their code.
    """
    count, length = len(values), len(values[0])
    stored_bytes = ONE_RECORD_BYTES + count * length
    if not keys and codec is None and kind in ONE_KIND_TIMELESS and stored_bytes <= ONE_BUFFER_BYTES:
        data = ONE_RECORD.pack(0, length, kind) + b"".join(values)
        if len(data) == stored_bytes and list(map(len, values)).count(length) == count:
            crc = crc32c(data)
            return PreparedBody(count, ONE_RECORD_FLAGS, CODEC_NONE, [data], stored_bytes, stored_bytes, crc)
    flags, buffers = encode_puts(kind, keys, values)
    return prepare_encoded(count, flags, buffers, codec)


def prepare_one(
    kind: int, key: bytes, value: bytes, timestamp: int, codec: str | None = None
) -> PreparedBody:
    """As `prepare_body` for one record; `kind` is the kind byte. Most frames of a lone writer."""
    stored_bytes = ONE_RECORD_BYTES + len(key) + len(value)
    if codec is not None or stored_bytes > ONE_BUFFER_BYTES or kind not in ONE_KIND_TIMELESS:
        return prepare_body(one_record(kind, key, value, timestamp), codec)
    data = ONE_RECORD.pack(len(key), len(value), kind) + key + value
    return PreparedBody(1, ONE_RECORD_FLAGS, CODEC_NONE, [data], stored_bytes, stored_bytes, crc32c(data))


class FrameIdentity(NamedTuple):
    """The identity that every frame of one epoch carries."""

    log_id: int
    epoch: int
    epoch_id: int


def seal_frame(
    body: PreparedBody,
    identity: FrameIdentity,
    *,
    position: int,
    first_lsn: int,
    durable_position: int,
    chain: int,
    sealed_us: int,
    alignment: int,
    span: int | None = None,
) -> tuple[list[Buffer], int, int]:
    """Give a body its place: return (buffers to write, footprint, header checksum).

    The first buffer starts with the header. The header checksum is the `chain` of the frame that follows. `span`, the
    number of LSNs covered, is given for sparse frames only; ValueError if it cannot be.
    """
    if span is not None and (span < body.count or not body.flags & SPARSE):
        raise ValueError(f"a frame of {body.count:,} records cannot cover {span:,} LSNs, or is not sparse")
    stored_bytes, count = body.stored_bytes, body.count
    footprint = (FRAME_HEADER_BYTES + stored_bytes + alignment - 1) & -alignment
    head = FRAME_HEADER_FRONT.pack(
        FRAME_MAGIC,
        FORMAT_VERSION,
        body.codec,
        body.flags,
        *identity,
        position,
        first_lsn,
        count,
        count if span is None else span,
        footprint,
        stored_bytes,
        body.raw_bytes,
        body.crc,
        durable_position,
        sealed_us,
        chain,
    )
    header_crc = crc32c(head)
    buffers: list[Buffer] = [head + header_crc.to_bytes(4, "little"), *body.buffers]
    padding = footprint - FRAME_HEADER_BYTES - stored_bytes
    if padding:
        buffers.append(ZEROS[:padding])
    if stored_bytes <= ONE_BUFFER_BYTES:
        return [b"".join(buffers)], footprint, header_crc
    return buffers, footprint, header_crc


def check_body(header: FrameHeader, frame: memoryview) -> FrameFault | None:
    """Judge body and padding of a frame whose header can be trusted; `frame` starts with the header."""
    if len(frame) < header.footprint:
        return FrameFault.SHORT
    end = FRAME_HEADER_BYTES + header.body_stored_bytes
    if crc32c(frame[FRAME_HEADER_BYTES:end]) != header.body_crc:
        return FrameFault.BODY
    if frame[end : header.footprint] != ZEROS[: header.footprint - end]:
        return FrameFault.PADDING
    return None


def decode_frame(header: FrameHeader, frame: memoryview) -> DecodedColumns:
    """Return the columns of a frame that `check_header` and `check_body` found right.

    CorruptionError if the body contradicts the header: a writer's mistake, as the checksums are right.
    """
    if header.records == 0:
        return NO_COLUMNS
    body = frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + header.body_stored_bytes]
    try:
        if header.codec == CODEC_ZSTD:
            body = memoryview(decompress(body, header.body_raw_bytes))
        return decode_body(body, header.records, header.flags, header.span)
    except CorruptionError as error:
        error.position, error.first_lost_lsn = header.position, header.first_lsn
        raise


def decompress(body: memoryview, raw_bytes: int) -> bytes:
    """Return the body of a compressed frame; CorruptionError if it is not one of `raw_bytes` bytes."""
    try:
        size = zstandard.frame_content_size(body)
        if size != raw_bytes:
            raise CorruptionError(
                "the compressed body has another size than its header says", expected=raw_bytes, found=size
            )
        raw = _zstd.decompressor.decompress(body, max_output_size=raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptionError(f"the body cannot be decompressed: {error}") from error
    if len(raw) != raw_bytes:
        raise CorruptionError("the body's length contradicts its header", expected=raw_bytes, found=len(raw))
    return raw
