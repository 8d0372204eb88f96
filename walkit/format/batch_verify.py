"""Many frames in a row, checked at once, with the verdicts of `check_header`, `check_body` and `decode_body`.

A frame that is not as expected is not described: the row ends before it, and a caller that needs the reason checks it
alone. A row takes every frame that is right by itself: a kind of frames that only ended rows would have all bytes
after each of them checked again. A frame costs two checksums and some slices here, no objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from walkit.errors import CorruptionError
from walkit.format.body import (
    KIND_BYTES_TIMELESS,
    TIMESTAMPS,
    UNIFORM_TIMESTAMPS,
    DecodedColumns,
    decode_body,
)
from walkit.format.checksum import crc32c
from walkit.format.frame import decompress
from walkit.format.layout import (
    CODEC_NONE,
    CODEC_ZSTD,
    FORMAT_VERSION,
    FRAME_FLAGS_KNOWN,
    FRAME_HEADER_BYTES,
    FRAME_HEADER_CRC_OFFSET,
    FRAME_MAGIC,
    JOINED,
    LSN_MAX,
    POSITION_MAX,
    RECORDS_PER_FRAME_MAX,
    FrameFlag,
)
from walkit.format.segment import SegmentHeader

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

HEADER = np.dtype(
    [
        *(("magic", "<u4"), ("version", "u1"), ("codec", "u1"), ("flags", "<u2"), ("log_id", "<u8")),
        *(("epoch", "<u8"), ("epoch_id", "<u8"), ("position", "<u8"), ("first_lsn", "<u8")),
        *(("records", "<u4"), ("span", "<u4"), ("footprint", "<u4"), ("stored", "<u4"), ("raw", "<u4")),
        *(("body_crc", "<u4"), ("durable_position", "<u8"), ("sealed_us", "<u8"), ("chain", "<u4")),
        ("header_crc", "<u4"),
    ]
)
"""A frame's header, as `FrameHeader` has it."""

FOOTPRINT = struct.Struct("<I")
SIZES_AND_CHECKSUMS = struct.Struct("<IIII20xI")
"""The fields of a header from its footprint on: footprint, stored bytes, raw bytes, checksum of body and of header."""
FOOTPRINT_OFFSET: int = HEADER.fields["footprint"][1]  # type: ignore[index]  # it has fields
KEEP_GIL, RELEASE_GIL = 0, 1
CRC_ALONE_BYTES = 1 << 20
"""From this size on a checksum releases the interpreter's lock. Taking the lock again takes longer than a checksum of
32 KiB, where the library would begin to; then two threads that check are slower than one."""
RECORDS_JOINED_MAX = RECORDS_PER_FRAME_MAX
"""Frames of a row become one only up to so many records: memory for more than one frame may hold is not taken."""
UNPACKED_BYTES_MAX = 1 << 20
"""The bodies of a row of several frames have at most so many bytes more than are stored.

A few compressed frames may be many times the size of one read. Up to about here they stay in the processor's caches.
"""
_UNIFORM = FrameFlag.UNIFORM_KINDS | FrameFlag.UNIFORM_KEY_LENGTHS | FrameFlag.UNIFORM_VALUE_LENGTHS
_UNIFORM_HEAD = np.dtype([("key", "<u4"), ("value", "<u4"), ("kind", "u1")])
_LEGAL = np.zeros(256, np.bool_)
_LEGAL[[kind for kind in KIND_BYTES_TIMELESS if not kind & JOINED]] = True

_FIXED = np.uint64(FRAME_MAGIC | FORMAT_VERSION << 32)
_FIXED_MASK = np.uint64((1 << 40) - 1)
"""Magic and version: the first bytes of a header. Version 0 is the oldest."""
_STAMPS = TIMESTAMPS | UNIFORM_TIMESTAMPS
_flags = np.arange(1 << 16, dtype=np.uint16)
_LEGAL_FLAGS = ((_flags & ~np.uint16(FRAME_FLAGS_KNOWN)) == 0) & (
    (_flags & np.uint16(_STAMPS)) != UNIFORM_TIMESTAMPS
)

assert FORMAT_VERSION == 0, "a row takes the frames of every version that a log can have"
assert (CODEC_NONE, CODEC_ZSTD) == (0, 1), "`_headers_fit` compares the codec with a truth value"
assert HEADER.itemsize == FRAME_HEADER_BYTES and HEADER.itemsize % 8 == 0
assert [HEADER.fields[name][1] for name in ("log_id", "epoch", "epoch_id")] == [8, 16, 24]  # type: ignore[index]


class Predecessor(NamedTuple):
    """The place that the first frame of a row has to follow; None if it is unknown."""

    position: int
    next_lsn: int | None
    chain: int | None


@dataclass(frozen=True, slots=True)
class VerifiedFrames:
    """Intact frames that each follow the one before: at least one."""

    ends: Int64s
    """Position after each frame."""
    last_lsns: Int64s
    """The last LSN covered when it ends, of each."""
    records: int
    first_lsn: int | None
    """LSN of the first record; None if all are marker frames."""
    chain: int
    """Header checksum of the last one."""
    promised_position: int
    buffer: bytes | bytearray
    """The bytes that hold them."""
    starts: Int64s
    """Offset in the buffer, of each."""
    heads: npt.NDArray[Any]
    """Header of each, as `HEADER`."""

    def columns(self, last_lsn: int = LSN_MAX) -> Iterator[tuple[int, DecodedColumns]]:
        """Yield (first LSN, columns) of the frames with records that begin up to `last_lsn`: no views on the buffer.

        Frames of uniform columns come as one with the records of all, if those are not too many for the columns that
        this needs; else each keeps its columns of one value. CorruptionError if a body contradicts its header, after
        the columns before it.
        """
        filled = np.flatnonzero(
            (self.heads["records"] > 0) & (self.heads["first_lsn"] <= np.uint64(last_lsn))
        )
        if not len(filled):
            return
        bodies = _unpacked(self.buffer, self.starts[filled], self.heads[filled])
        heads, starts = bodies.heads, bodies.starts
        view = memoryview(bodies.block)
        if bodies.error is None:
            counts = heads["records"].astype(np.int64)
            uniform, columns, right = _uniform_bodies(bodies)
            first_lsn = int(heads["first_lsn"][0])
            # A sparse frame without records between them takes LSNs, too.
            in_a_row = int(heads["first_lsn"][-1]) + int(counts[-1]) - first_lsn == int(counts.sum())
            if uniform.all() and right.all() and in_a_row and self.records <= RECORDS_JOINED_MAX:
                yield first_lsn, _as_one(view, starts, counts, columns)
                return
        for start, head in zip(starts.tolist(), heads, strict=True):
            body = view[start : start + int(head["raw"])]
            if bodies.block is self.buffer:
                body = memoryview(bytes(body))
            try:
                decoded = decode_body(body, int(head["records"]), int(head["flags"]), int(head["span"]))
            except CorruptionError as error:
                error.position, error.first_lost_lsn = int(head["position"]), int(head["first_lsn"])
                raise
            yield int(head["first_lsn"]), decoded
        if bodies.error is not None:
            raise bodies.error


@dataclass(frozen=True, slots=True)
class _Bodies:
    """The bodies of frames as they were before they were compressed, up to the first that cannot be decompressed."""

    block: bytes | bytearray
    """The bytes that hold them."""
    starts: Int64s
    """Offset there, of each."""
    heads: npt.NDArray[Any]
    error: CorruptionError | None
    """The fault of the body after the last one."""


def frames_in_a_row(
    buffer: bytes | bytearray,
    at: int,
    segment: SegmentHeader,
    follows: Predecessor,
    end_position: int,
    *,
    decode: bool,
) -> VerifiedFrames | None:
    """Return the whole frames of `buffer` from offset `at` on, up to the first that is not as expected.

    None where that is the first. `follows.position` is the position of offset `at`, no frame reaches beyond
    `end_position`. With `decode` every body is taken apart, too.
    """
    limit = min(len(buffer), at + end_position - follows.position)
    offsets, parts = _whole_frames(buffer, at, limit)
    if not offsets:
        return None
    starts = np.array(offsets, np.int64)
    heads = np.frombuffer(b"".join(parts), HEADER)
    count = _leading(_headers_fit(heads, starts - at, segment, follows))
    if decode and count:
        count = _leading(_bodies_decode(_unpacked(buffer, starts[:count], heads[:count])))
    if not count:
        return None
    heads = heads[:count]
    with_records = np.flatnonzero(heads["records"])
    firsts = heads["first_lsn"].astype(np.int64)
    return VerifiedFrames(
        ends=follows.position + starts[:count] - at + heads["footprint"].astype(np.int64),
        last_lsns=firsts + heads["span"] - 1,
        records=int(heads["records"].sum(dtype=np.int64)),
        first_lsn=int(firsts[with_records[0]]) if len(with_records) else None,
        chain=int(heads["header_crc"][-1]),
        promised_position=int(heads["durable_position"].max()),
        buffer=buffer,
        starts=starts[:count],
        heads=heads,
    )


def _whole_frames(buffer: bytes | bytearray, at: int, limit: int) -> tuple[list[int], list[memoryview]]:
    """Return where frames begin, by the footprints that they name, and their headers: both checksums are right.

    Others judge a header's fields; here they only count as far as they stay within the buffer. The row ends
    before its bodies need more than `UNPACKED_BYTES_MAX`: frames that are checked are taken, not checked again.
    """
    offsets: list[int] = []
    headers: list[memoryview] = []
    view, sizes_at = memoryview(buffer), SIZES_AND_CHECKSUMS.unpack_from
    body = at + FRAME_HEADER_BYTES
    unpacked = 0
    while body <= limit:
        footprint, stored, raw, body_crc, header_crc = sizes_at(buffer, at + FOOTPRINT_OFFSET)
        end, following = body + stored, at + footprint
        unpacked += raw - stored
        if not end <= following <= limit or (unpacked > UNPACKED_BYTES_MAX and offsets):
            break
        header = view[at:body]
        if crc32c(header[:FRAME_HEADER_CRC_OFFSET]) != header_crc:
            break
        if crc32c(view[body:end], 0, KEEP_GIL if stored < CRC_ALONE_BYTES else RELEASE_GIL) != body_crc:
            break
        if following != end and buffer.count(0, end, following) != following - end:
            break
        offsets.append(at)
        headers.append(header)
        at, body = following, following + FRAME_HEADER_BYTES
    return offsets, headers


def _leading(right: Bools) -> int:
    """Return how many are right before the first that is not."""
    wrong = np.flatnonzero(~right)
    return int(wrong[0]) if len(wrong) else len(right)


def _headers_fit(
    heads: npt.NDArray[Any], offsets: Int64s, segment: SegmentHeader, follows: Predecessor
) -> Bools:
    """Judge every field (FORMAT.md F-7.2), and that each frame follows the one before it.

    As few calls of numpy as possible: a row of large frames is short. So implied facts are not checked: that
    a position is on the alignment, from one that is and whole footprints; bounds of positions and LSNs, from the last.
    """
    next_lsn = int(heads["first_lsn"][0]) if follows.next_lsn is None else follows.next_lsn
    chain = heads["chain"][0] if follows.chain is None else follows.chain
    span, records, position = heads["span"], heads["records"], heads["position"]
    stored, raw, flags = heads["stored"], heads["raw"], heads["flags"]
    before = np.cumsum(span, dtype=np.uint64) - span
    if (
        follows.position % segment.alignment
        or follows.position + int(offsets[-1]) + int(heads["footprint"][-1]) > POSITION_MAX
        or not 0 < next_lsn <= LSN_MAX - int(before[-1]) - int(span[-1])
    ):
        return np.zeros(len(heads), np.bool_)
    words = heads.view("<u8").reshape(len(heads), -1)
    footprint = heads["footprint"].astype(np.int64)
    whole = stored + np.int64(FRAME_HEADER_BYTES + segment.alignment - 1)
    right: Bools = (words[:, 0] & _FIXED_MASK) == _FIXED
    right &= (words[:, 1:4] == np.array([segment.log_id, segment.epoch, segment.epoch_id], "<u8")).all(axis=1)
    right &= _LEGAL_FLAGS[flags]
    right &= position == np.uint64(follows.position) + offsets.astype(np.uint64)
    right &= heads["durable_position"] <= position
    right &= heads["first_lsn"] == np.uint64(next_lsn) + before
    right[0] &= chain == heads["chain"][0]
    right[1:] &= heads["header_crc"][:-1] == heads["chain"][1:]
    right &= footprint == whole & -segment.alignment
    right &= footprint <= segment.frame_bytes_max
    right &= raw <= segment.frame_bytes_max
    right &= stored <= raw
    right &= (stored < raw) == heads["codec"]  # CODEC_NONE or CODEC_ZSTD: no other number is a truth value
    right &= records <= span
    right &= (records == span) | (flags & np.uint16(FrameFlag.SPARSE) != 0)
    right &= records <= RECORDS_PER_FRAME_MAX
    right &= (records == 0) == (raw == 0)
    return right


def _unpacked(buffer: bytes | bytearray, starts: Int64s, heads: npt.NDArray[Any]) -> _Bodies:
    """Return the bodies of frames that begin at `starts` of `buffer`; they stay there if none is compressed."""
    starts = starts + FRAME_HEADER_BYTES
    if not heads["codec"].any():
        return _Bodies(buffer, starts, heads, None)
    view, failure = memoryview(buffer), None
    parts: list[memoryview | bytes] = []
    packed, stored, raw = (heads[name].tolist() for name in ("codec", "stored", "raw"))
    for index, start in enumerate(starts.tolist()):
        body = view[start : start + stored[index]]
        if not packed[index]:
            parts.append(body)
            continue
        try:
            parts.append(decompress(body, raw[index]))
        except CorruptionError as error:
            error.position = int(heads["position"][index])
            error.first_lost_lsn = int(heads["first_lsn"][index])
            failure = error
            break
    heads = heads[: len(parts)]
    sizes = heads["raw"].astype(np.int64)
    return _Bodies(b"".join(parts), np.cumsum(sizes) - sizes, heads, failure)


def _bodies_decode(bodies: _Bodies) -> Bools:
    """Judge the bodies: those of uniform columns together, the others by taking them apart."""
    heads, starts = bodies.heads, bodies.starts
    records = heads["records"]
    uniform, _, fill = _uniform_bodies(bodies)
    right: Bools = records == 0
    right[uniform] = fill
    view = memoryview(bodies.block)
    for index in np.flatnonzero(~uniform & (records > 0)).tolist():
        head, begin = heads[index], int(starts[index])
        try:
            body = view[begin : begin + int(head["raw"])]
            decode_body(body, int(head["records"]), int(head["flags"]), int(head["span"]))
        except CorruptionError:
            break
        right[index] = True
    return right


def _uniform_bodies(bodies: _Bodies) -> tuple[Bools, npt.NDArray[Any], Bools]:
    """Return which bodies have columns of one value only; of these the columns, and whether they fill the body."""
    heads, raw = bodies.heads, bodies.heads["raw"].astype(np.int64)
    uniform = (heads["flags"] & np.uint16(_UNIFORM | TIMESTAMPS | FrameFlag.SPARSE)) == np.uint16(_UNIFORM)
    uniform &= raw >= _UNIFORM_HEAD.itemsize
    at = bodies.starts[uniform]
    block = np.frombuffer(bodies.block, np.uint8)
    bytes_of_heads = block[at[:, None] + np.arange(_UNIFORM_HEAD.itemsize)]
    columns: npt.NDArray[Any] = bytes_of_heads.view(_UNIFORM_HEAD)[:, 0]
    lengths = columns["key"].astype(np.int64) + columns["value"]
    sizes = _UNIFORM_HEAD.itemsize + heads["records"][uniform].astype(np.int64) * lengths
    return uniform, columns, _LEGAL[columns["kind"]] & (sizes == raw[uniform])


def _as_one(view: memoryview, starts: Int64s, counts: Int64s, columns: npt.NDArray[Any]) -> DecodedColumns:
    """Return the records of uniform bodies as if of one frame."""
    keys_at = starts + _UNIFORM_HEAD.itemsize
    values_at = keys_at + counts * columns["key"]
    ends = (values_at + counts * columns["value"]).tolist()
    begins, middles = keys_at.tolist(), values_at.tolist()
    return DecodedColumns(
        int(counts.sum()),
        _spread(columns["kind"], counts),
        _spread(columns["key"], counts),
        _spread(columns["value"], counts),
        None,
        None,
        memoryview(b"".join([view[a:b] for a, b in zip(begins, middles, strict=True)])),
        memoryview(b"".join([view[a:b] for a, b in zip(middles, ends, strict=True)])),
    )


def _spread(column: npt.NDArray[Any], counts: Int64s) -> int | npt.NDArray[Any]:
    return int(column[0]) if (column == column[0]).all() else np.repeat(column, counts)
