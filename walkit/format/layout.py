"""Constants of the format, and proof at import that they fit together. FORMAT.md explains each."""

from __future__ import annotations

import struct
from enum import IntFlag
from typing import Final

FORMAT_VERSION: Final = 0
"""0 until the last feature that needs a field has landed; then frozen as 1."""
FORMAT_DRAFT: Final = 3
"""Grows with each change of the layout before version 1. No other draft is read."""

SEGMENT_MAGIC: Final = b"WALKITSG"
MANIFEST_MAGIC: Final = b"WALKITMF"
FRAME_MAGIC: Final = 0x464B4C57

ALIGNMENT_BUFFERED: Final = 64
ALIGNMENT_DIRECT: Final = 4096
"""Also the largest: frames begin right after the segment header, at a file offset of 4096."""

LSN_MAX: Final = (1 << 63) - 1
POSITION_MAX: Final = (1 << 63) - 1
"""Both fit a signed 64-bit integer, the integer of Arrow, pread and every other language."""
LSN_LAST: Final = LSN_MAX - 1
"""The last that a writer gives: where the next frame would begin still fits."""
EPOCH_MAX: Final = (1 << 63) - 1
GENERATION_MAX: Final = (1 << 63) - 1
"""No manifest and no durable slot reaches more: a higher number is damage or a forgery."""
SEGMENT_NUMBER_MAX: Final = (1 << 63) - 2
"""The manifest holds the number after it."""

SEGMENT_HEADER_BYTES: Final = 4096
SEGMENT_HEADER: Final = struct.Struct("<8sHHIIIQQQQQQQIIQQQIIQII")
SEGMENT_HEADER_CRC: Final = struct.Struct("<I")
SEGMENT_EXTENSION_OFFSET: Final = 136

FRAME_HEADER: Final = struct.Struct("<IBBHQQQQQIIIIIIQQII")
FRAME_HEADER_FRONT: Final = struct.Struct("<IBBHQQQQQIIIIIIQQI")
"""The header without its checksum, which is over these bytes."""
FRAME_HEADER_BYTES: Final = 96
FRAME_HEADER_CRC_OFFSET: Final = 92

RECORDS_PER_FRAME_MAX: Final = 1 << 20
"""Bounds what a frame of uniform columns can make a reader allocate."""
FRAME_BYTES_LIMIT: Final = 1 << 30
"""Bounds the `frame_bytes_max` that a segment header may set, and so every frame and every body."""

DURABLE_SLOT: Final = struct.Struct("<QQQQQI")
DURABLE_SLOT_CHECKED: Final = struct.Struct("<QQQQQ")
"""The slot without its checksum."""
DURABLE_SLOT_STRIDE: Final = 64
MANIFEST_SLOTS_OFFSET: Final = 2 * DURABLE_SLOT_STRIDE
"""Where the two places of the manifest's promise begin."""
DURABLE_SLOTS_BYTES: Final = 4 * DURABLE_SLOT_STRIDE

CURSOR_MAGIC: Final = b"WALKITCU"
CURSOR_FILE: Final = struct.Struct("<8sHHIIQQQQQI")

CLAIM_MAGIC: Final = b"WALKITCL"
CLAIM_PLACE: Final = struct.Struct("<8sHHIIQQ16sQQQQQQQI512sI")
CLAIM_PLACE_STRIDE: Final = 4096
"""No write of one place can tear the other."""
CLAIM_FILE_BYTES: Final = 2 * CLAIM_PLACE_STRIDE
CLAIM_LABEL_CHARS_MAX: Final = 128
"""Printable characters, of at most four bytes each."""
CLAIM_LEASE_US_MAX: Final = 30 * 86_400 * 1_000_000
"""Thirty days: also how long a claim that cannot be read keeps the whole log."""
CLAIMS_MAX: Final = 64
"""Claims of one log, without those of its own writer: each is read before anything is dropped."""
OWN_CLAIMS_MAX: Final = 256
"""Claims of the log's own writer, which `log.hold` takes."""

MANIFEST_HEADER: Final = struct.Struct("<8sHHIIIIII")
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of the base: some 200,000 segments."""
MANIFEST_FILE_BYTES_MAX: Final = 4 * MANIFEST_BYTES_MAX
"""Of base and edits."""
EDIT_HEADER: Final = struct.Struct("<IIQI")
EDIT_ALIGNMENT: Final = 64

INDEX_MAGIC: Final = b"WALKITIX"
INDEX_HEADER: Final = struct.Struct("<8sHHIQQQQQQQQII")
INDEX_ENTRY_BYTES: Final = 24
INDEX_STEP_BYTES: Final = 64 * 1024
"""Frames that begin closer to the one noted last are not noted; more than one seek costs anyway is not saved."""
INDEX_SEGMENT_BYTES_MIN: Final = 256 * 1024
"""Bytes of frames. A smaller segment has no index: its headers are read as fast as another file is opened."""

CODEC_NONE: Final = 0
CODEC_ZSTD: Final = 1
CODEC_NAMES: Final = {CODEC_NONE: None, CODEC_ZSTD: "zstd"}


class FrameFlag(IntFlag):
    """The shape of the body's columns. An unknown bit is a newer format."""

    UNIFORM_KINDS = 1
    UNIFORM_KEY_LENGTHS = 2
    UNIFORM_VALUE_LENGTHS = 4
    TIMESTAMPS = 8
    UNIFORM_TIMESTAMPS = 16
    SPARSE = 32


FRAME_FLAGS_KNOWN: Final = 63


class SegmentFlag(IntFlag):
    """The kind of segment."""

    IMPORTED = 1
    COMPACTED = 2
    COMPLETION_ORDER = 4


SEGMENT_FLAGS_KNOWN: Final = 7
IN_BULKS: Final = 1 << 8
"""Flag of a segment in the manifest of a log on object storage: its frames are in bulks, and it has no header."""

CRITICAL_FEATURES_KNOWN: Final = 0
"""Feature bits that a reader must know; an unknown one refuses the file."""

KIND_MASK: Final = 0x0F
HAS_KEY: Final = 0x10
HAS_VALUE: Final = 0x20
HAS_TIMESTAMP: Final = 0x40
JOINED: Final = 0x80
"""The record belongs to one transaction with the next one; the last record of a transaction has it not."""

ZEROS: Final = bytes(1 << 20)

assert SEGMENT_HEADER.size == SEGMENT_EXTENSION_OFFSET
assert FRAME_HEADER.size == FRAME_HEADER_BYTES == FRAME_HEADER_CRC_OFFSET + 4
assert FRAME_HEADER_FRONT.size == FRAME_HEADER_CRC_OFFSET
assert FRAME_HEADER.format == FRAME_HEADER_FRONT.format + "I"
assert FRAME_HEADER_BYTES % 4 == 0
assert DURABLE_SLOT_CHECKED.size + 4 == DURABLE_SLOT.size <= DURABLE_SLOT_STRIDE
assert INDEX_HEADER.size % 8 == 0 and INDEX_ENTRY_BYTES == 3 * 8
assert SEGMENT_HEADER_BYTES % ALIGNMENT_DIRECT == 0 and ALIGNMENT_DIRECT % ALIGNMENT_BUFFERED == 0
assert len(ZEROS) >= max(ALIGNMENT_DIRECT, FRAME_HEADER_BYTES)
assert sum(FrameFlag) == FRAME_FLAGS_KNOWN and sum(SegmentFlag) == SEGMENT_FLAGS_KNOWN


def align_up(size: int, alignment: int) -> int:
    """Return the smallest multiple of `alignment` (a power of two) that is not below `size`."""
    return (size + alignment - 1) & -alignment
