"""Many frames in a row, checked at once: what `check_header`, `check_body` and `decode_body` say of them one by one.

Nothing is told of a frame that is not as expected: the row ends before it, and whoever wants to know why looks at it
alone. So is what is seldom: compressed and sparse frames. A frame costs two checksums and some slices here, no objects.
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
from walkit.format.layout import (
    CODEC_NONE,
    FORMAT_VERSION,
    FRAME_FLAGS_KNOWN,
    FRAME_HEADER_BYTES,
    FRAME_HEADER_CRC_OFFSET,
    FRAME_MAGIC,
    JOINED,
    LSN_MAX,
    POSITION_MAX,
    RECORDS_PER_FRAME_MAX,
    ZEROS,
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
FOOTPRINT_OFFSET: int = HEADER.fields["footprint"][1]  # type: ignore[index]  # it has fields
_UNIFORM = FrameFlag.UNIFORM_KINDS | FrameFlag.UNIFORM_KEY_LENGTHS | FrameFlag.UNIFORM_VALUE_LENGTHS
_UNIFORM_HEAD = np.dtype([("key", "<u4"), ("value", "<u4"), ("kind", "u1")])
_LEGAL = np.zeros(256, np.bool_)
_LEGAL[[kind for kind in KIND_BYTES_TIMELESS if not kind & JOINED]] = True

assert HEADER.itemsize == FRAME_HEADER_BYTES


class Follows(NamedTuple):
    """What the first frame of a row has to follow; None where nothing says so."""

    position: int
    next_lsn: int | None
    chain: int | None


@dataclass(frozen=True, slots=True)
class FrameRow:
    """Intact frames that each follow the one before: at least one."""

    ends: Int64s
    """Position behind each frame."""
    last_lsns: Int64s
    """The last LSN covered when it ends, of each."""
    records: int
    first_lsn: int | None
    """LSN of the first record; None where all are marks."""
    chain: int
    """Header checksum of the last one."""
    promised_position: int
    buffer: bytes | bytearray
    """Where they stand."""
    starts: Int64s
    """Offset in the buffer, of each."""
    heads: npt.NDArray[Any]
    """Header of each, as `HEADER`."""

    def columns(self) -> Iterator[tuple[int, DecodedColumns]]:
        """Yield (first LSN, columns) of the frames that have records; nothing of it is a view on the buffer.

        Frames of uniform columns come as one, which holds the records of all. CorruptionError where a body is not what
        its header says, behind what stands before it.
        """
        filled = np.flatnonzero(self.heads["records"])
        if not len(filled):
            return
        heads, starts = self.heads[filled], self.starts[filled] + FRAME_HEADER_BYTES
        uniform = _uniform_heads(np.frombuffer(self.buffer, np.uint8), starts, heads)
        view = memoryview(self.buffer)
        if uniform is not None:
            yield (
                int(heads["first_lsn"][0]),
                _as_one(view, starts, heads["records"].astype(np.int64), uniform),
            )
            return
        for start, head in zip(starts.tolist(), heads, strict=True):
            body = memoryview(bytes(view[start : start + int(head["stored"])]))
            try:
                decoded = decode_body(body, int(head["records"]), int(head["flags"]))
            except CorruptionError as error:
                error.position, error.first_lost_lsn = int(head["position"]), int(head["first_lsn"])
                raise
            yield int(head["first_lsn"]), decoded


def frames_in_a_row(
    buffer: bytes | bytearray,
    at: int,
    segment: SegmentHeader,
    follows: Follows,
    end_position: int,
    *,
    decode: bool,
) -> FrameRow | None:
    """Return the frames that stand whole in `buffer` from offset `at` on, up to the first that is not as expected.

    None where that is the first. `follows.position` is the position of offset `at`, no frame reaches beyond
    `end_position`. With `decode` every body is taken apart, too.
    """
    limit = min(len(buffer), at + end_position - follows.position)
    offsets = _offsets(buffer, at, limit)
    if not offsets:
        return None
    starts = np.array(offsets, np.int64)
    block = np.frombuffer(buffer, np.uint8)
    heads = block[starts[:, None] + np.arange(FRAME_HEADER_BYTES)].view(HEADER)[:, 0]
    count = _leading(_headers_fit(heads, starts - at, segment, follows))
    count = _leading(_checksums_fit(buffer, offsets[:count], heads[:count]))
    if decode and count:
        count = _leading(_bodies_decode(buffer, block, starts[:count], heads[:count]))
    if not count:
        return None
    heads = heads[:count]
    with_records = np.flatnonzero(heads["records"])
    firsts = heads["first_lsn"].astype(np.int64)
    return FrameRow(
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


def _offsets(buffer: bytes | bytearray, at: int, limit: int) -> list[int]:
    """Return where frames begin, by the footprints that they claim."""
    offsets = []
    footprint_at = FOOTPRINT.unpack_from
    while at + FRAME_HEADER_BYTES <= limit:
        (footprint,) = footprint_at(buffer, at + FOOTPRINT_OFFSET)
        if footprint < FRAME_HEADER_BYTES or at + footprint > limit:
            break
        offsets.append(at)
        at += footprint
    return offsets


def _leading(right: Bools) -> int:
    """Return how many are right before the first that is not."""
    wrong = np.flatnonzero(~right)
    return int(wrong[0]) if len(wrong) else len(right)


def _headers_fit(heads: npt.NDArray[Any], offsets: Int64s, segment: SegmentHeader, follows: Follows) -> Bools:
    """Judge every field (FORMAT.md F-7.2), and that each frame follows the one before it."""
    records, span, raw, flags = heads["records"], heads["span"], heads["raw"], heads["flags"]
    footprint, position = heads["footprint"].astype(np.int64), heads["position"]
    whole = FRAME_HEADER_BYTES + heads["stored"].astype(np.int64)
    stamps = FrameFlag(TIMESTAMPS | UNIFORM_TIMESTAMPS)
    next_lsn = int(heads["first_lsn"][0]) if follows.next_lsn is None else follows.next_lsn
    chain = heads["chain"][0] if follows.chain is None else follows.chain
    before = np.cumsum(span, dtype=np.uint64) - span
    right: Bools = (
        (heads["magic"] == FRAME_MAGIC)
        & (heads["version"] <= FORMAT_VERSION)
        & (heads["codec"] == CODEC_NONE)
        & ((flags & ~np.uint16(FRAME_FLAGS_KNOWN & ~FrameFlag.SPARSE)) == 0)
        & (heads["log_id"] == np.uint64(segment.log_id))
        & (heads["epoch"] == np.uint64(segment.epoch))
        & (heads["epoch_id"] == np.uint64(segment.epoch_id))
        & (position == np.uint64(follows.position) + offsets.astype(np.uint64))
        & (position % np.uint64(segment.alignment) == 0)
        & (heads["durable_position"] <= position)
        & (position <= np.uint64(POSITION_MAX) - footprint.astype(np.uint64))
        & (heads["first_lsn"] == np.uint64(next_lsn) + before)
        & (heads["first_lsn"] > 0)
        & (heads["first_lsn"] <= np.uint64(LSN_MAX) - span)
        & (np.concatenate([[chain], heads["header_crc"][:-1]]) == heads["chain"])
        & (footprint == (whole + segment.alignment - 1) & -segment.alignment)
        & (footprint <= segment.frame_bytes_max)
        & (raw <= segment.frame_bytes_max)
        & (heads["stored"] == raw)
        & (records <= RECORDS_PER_FRAME_MAX)
        & ((records == 0) == (raw == 0))
        & (span == records)
        & ((flags & np.uint16(stamps)) != np.uint16(UNIFORM_TIMESTAMPS))
    )
    return right


def _checksums_fit(buffer: bytes | bytearray, offsets: list[int], heads: npt.NDArray[Any]) -> Bools:
    """Judge both checksums and the padding of each frame."""
    view = memoryview(buffer)
    ends = (np.array(offsets, np.int64) + FRAME_HEADER_BYTES + heads["stored"]).tolist()
    nexts = (np.array(offsets, np.int64) + heads["footprint"]).tolist()
    head_crcs = [crc32c(view[at : at + FRAME_HEADER_CRC_OFFSET]) for at in offsets]
    body_crcs = [crc32c(view[at + FRAME_HEADER_BYTES : end]) for at, end in zip(offsets, ends, strict=True)]
    padded = [
        bytes(view[end:following]) == ZEROS[: following - end]
        for end, following in zip(ends, nexts, strict=True)
    ]
    return np.asarray(
        (np.array(head_crcs, np.int64) == heads["header_crc"])
        & (np.array(body_crcs, np.int64) == heads["body_crc"])
        & np.array(padded, np.bool_)
    )


def _bodies_decode(
    buffer: bytes | bytearray, block: npt.NDArray[np.uint8], starts: Int64s, heads: npt.NDArray[Any]
) -> Bools:
    """Judge the bodies: those of uniform columns together, the others by taking them apart."""
    flags, stored, records = heads["flags"], heads["stored"].astype(np.int64), heads["records"]
    uniform = ((flags & np.uint16(_UNIFORM | TIMESTAMPS)) == np.uint16(_UNIFORM)) & (
        stored >= _UNIFORM_HEAD.itemsize
    )
    right: Bools = records == 0
    if uniform.any():
        at = starts[uniform] + FRAME_HEADER_BYTES
        columns = block[at[:, None] + np.arange(_UNIFORM_HEAD.itemsize)].view(_UNIFORM_HEAD)[:, 0]
        lengths = columns["key"].astype(np.int64) + columns["value"]
        sizes = _UNIFORM_HEAD.itemsize + records[uniform].astype(np.int64) * lengths
        right[uniform] = _LEGAL[columns["kind"]] & (sizes == stored[uniform])
    view = memoryview(buffer)
    for index in np.flatnonzero(~uniform & (records > 0)).tolist():
        begin = int(starts[index]) + FRAME_HEADER_BYTES
        try:
            decode_body(view[begin : begin + int(stored[index])], int(records[index]), int(flags[index]))
        except CorruptionError:
            break
        right[index] = True
    return right


def _uniform_heads(
    block: npt.NDArray[np.uint8], starts: Int64s, heads: npt.NDArray[Any]
) -> npt.NDArray[Any] | None:
    """Return the columns of bodies that are uniform, every one, and right; None where one is not."""
    flags, stored = heads["flags"], heads["stored"].astype(np.int64)
    if ((flags & np.uint16(_UNIFORM | TIMESTAMPS)) != np.uint16(_UNIFORM)).any():
        return None
    if stored.min() < _UNIFORM_HEAD.itemsize:
        return None
    columns: npt.NDArray[Any] = block[starts[:, None] + np.arange(_UNIFORM_HEAD.itemsize)].view(
        _UNIFORM_HEAD
    )[:, 0]
    lengths = columns["key"].astype(np.int64) + columns["value"]
    sizes = _UNIFORM_HEAD.itemsize + heads["records"].astype(np.int64) * lengths
    return columns if (_LEGAL[columns["kind"]] & (sizes == stored)).all() else None


def _as_one(view: memoryview, starts: Int64s, counts: Int64s, columns: npt.NDArray[Any]) -> DecodedColumns:
    """Return the records of uniform bodies as if they stood in one frame."""
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
