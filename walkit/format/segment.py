"""The segment header: 4096 bytes that describe a file of frames (FORMAT.md F-1, F-2, F-11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from walkit.errors import CorruptionError, FormatVersionError
from walkit.format.checksum import crc32c
from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    ALIGNMENT_DIRECT,
    CRITICAL_FEATURES_KNOWN,
    FORMAT_DRAFT,
    FORMAT_VERSION,
    FRAME_BYTES_LIMIT,
    FRAME_HEADER_BYTES,
    GENERATION_MAX,
    LSN_MAX,
    POSITION_MAX,
    SEGMENT_EXTENSION_OFFSET,
    SEGMENT_FLAGS_KNOWN,
    SEGMENT_HEADER,
    SEGMENT_HEADER_BYTES,
    SEGMENT_HEADER_CRC,
    SEGMENT_MAGIC,
    ZEROS,
    SegmentFlag,
)

_CRC_OFFSET = SEGMENT_HEADER_BYTES - 4
EXTENSION_BYTES_MAX = _CRC_OFFSET - SEGMENT_EXTENSION_OFFSET
_NO_FLAGS = SegmentFlag(0)


def segment_name(number: int) -> str:
    """Return the file name of a segment: twenty digits, so that names sort as numbers."""
    return str(number).zfill(20) + ".segment"


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentHeader:
    """The header of a segment. Positions count in the log, sizes are bytes.

    `previous_end` is where the frames before this segment ended: the only legal gap in positions is
    [previous_end, start_position). `chain` is the header checksum of the last frame before, `first_lsn` the LSN that
    the first frame must have. In a compacted segment `end_chain` is the last chain of its source frames, and
    `own_end_chain` that of its own. `manifest_generation` promises: the manifest of this generation was on stable
    storage; 0 promises nothing.
    """

    log_id: int
    epoch: int
    epoch_id: int
    number: int
    start_position: int
    previous_end: int
    first_lsn: int
    chain: int
    alignment: int
    frame_bytes_max: int
    created_us: int
    reorder_window_bytes: int = 0
    end_chain: int = 0
    own_end_chain: int = 0
    manifest_generation: int = 0
    flags: SegmentFlag = _NO_FLAGS
    critical_features: int = 0
    optional_features: int = 0
    extension: bytes = b""

    @property
    def name(self) -> str:
        """The file name that this segment has."""
        return segment_name(self.number)

    def offset_of(self, position: int) -> int:
        """Return the file offset of a log position; the header does not count as position."""
        return SEGMENT_HEADER_BYTES + position - self.start_position

    def encode(self) -> bytes:
        """Return the 4096 bytes of the header; ValueError if `decode` would refuse them."""
        wrong = _outside_limits(self)
        if len(self.extension) > EXTENSION_BYTES_MAX:
            wrong = f"an extension of {len(self.extension)} bytes"
        if wrong:
            raise ValueError(f"no segment has such a header: {wrong}")
        values = [getattr(self, key) for key in _OF_THE_SEGMENT]
        front = (SEGMENT_MAGIC, FORMAT_VERSION, SEGMENT_HEADER_BYTES)
        head = SEGMENT_HEADER.pack(*front, *values, FORMAT_DRAFT, len(self.extension))
        block = (head + self.extension).ljust(_CRC_OFFSET, b"\0")
        return block + SEGMENT_HEADER_CRC.pack(crc32c(block))

    @classmethod
    def decode(cls, block: bytes, name: str = "") -> SegmentHeader | None:
        """Return the header of file `name`; None if the block is all zero (a prepared segment, never used).

        Without a name it may be that of any file. Raises CorruptionError for a damaged or misplaced header,
        FormatVersionError for a newer one or another draft.
        """
        fields = checked_fields(block, name)
        if fields is None:
            return None
        extension = bytes(block[SEGMENT_EXTENSION_OFFSET : SEGMENT_EXTENSION_OFFSET + fields.extension_bytes])
        plain: dict[str, Any] = {key: getattr(fields, key) for key in _OF_THE_SEGMENT}
        return cls(**{**plain, "flags": SegmentFlag(fields.flags), "extension": extension})


class HeaderFields(NamedTuple):
    """The fixed part of a header, in the order of the file."""

    magic: bytes
    version: int
    header_bytes: int
    critical_features: int
    optional_features: int
    alignment: int
    log_id: int
    epoch: int
    epoch_id: int
    number: int
    start_position: int
    previous_end: int
    first_lsn: int
    chain: int
    flags: int
    frame_bytes_max: int
    reorder_window_bytes: int
    created_us: int
    end_chain: int
    own_end_chain: int
    manifest_generation: int
    draft: int
    extension_bytes: int


_OF_THE_SEGMENT = HeaderFields._fields[3:-2]
"""All fields but those of the block itself: magic, version, size, draft and the size of the extension."""


def checked_fields(block: bytes, name: str = "") -> HeaderFields | None:
    """Return the fields of the header of file `name`, or raise, as `SegmentHeader.decode` does.

    The checksum is at the end of the block in every version, so that it is judged before the version is believed.
    """
    if len(block) < SEGMENT_HEADER_BYTES:
        raise _damaged(name, "is cut short", SEGMENT_HEADER_BYTES, len(block))
    block = bytes(block[:SEGMENT_HEADER_BYTES])
    fields = HeaderFields._make(SEGMENT_HEADER.unpack_from(block))
    if fields.magic != SEGMENT_MAGIC:
        if block == ZEROS[:SEGMENT_HEADER_BYTES]:
            return None
        raise _damaged(name, "has the wrong magic", SEGMENT_MAGIC, fields.magic)
    (expected,) = SEGMENT_HEADER_CRC.unpack_from(block, _CRC_OFFSET)
    found = crc32c(block[:_CRC_OFFSET])
    if found != expected:
        raise _damaged(name, "has a wrong checksum", f"{expected:#010x}", f"{found:#010x}")
    critical = fields.critical_features
    refuse_newer(f"segment {name}", fields.version, fields.header_bytes, SEGMENT_HEADER_BYTES, critical)
    if fields.draft != FORMAT_DRAFT:
        found_draft, supported = f"0, draft {fields.draft}", f"0, draft {FORMAT_DRAFT}"
        raise FormatVersionError(f"segment {name}", found=found_draft, supported=supported)
    if fields.flags & ~SEGMENT_FLAGS_KNOWN:
        raise FormatVersionError(
            f"segment {name}", found=f"with flags {fields.flags:#x}", supported="flags 0x7"
        )
    if fields.extension_bytes > EXTENSION_BYTES_MAX:
        most = f"at most {EXTENSION_BYTES_MAX}"
        raise _damaged(name, "has an impossible extension", most, fields.extension_bytes)
    wrong = _outside_limits(fields)
    if wrong:
        raise _damaged(name, "is outside the limits of the format", "a header that can be", wrong)
    named = segment_name(fields.number)
    if name and named != name:
        raise _damaged(name, "says it is another segment", name, named)
    return fields


def _outside_limits(header: SegmentHeader | HeaderFields) -> str:
    """Return the impossible field of a segment header, or "" (FORMAT.md F-7.1)."""
    power = header.alignment & (header.alignment - 1) == 0
    if not power or not ALIGNMENT_BUFFERED <= header.alignment <= ALIGNMENT_DIRECT:
        return f"alignment {header.alignment}"
    if not FRAME_HEADER_BYTES <= header.frame_bytes_max <= FRAME_BYTES_LIMIT:
        return f"frame_bytes_max {header.frame_bytes_max}"
    start = header.start_position
    if not header.previous_end <= start <= POSITION_MAX or start % header.alignment:
        return f"start position {start}, previous end {header.previous_end}"
    if not 0 < header.first_lsn <= LSN_MAX:
        return f"first LSN {header.first_lsn}"
    if header.manifest_generation > GENERATION_MAX:
        return f"manifest generation {header.manifest_generation}"
    return ""


def refuse_newer(where: str, version: int, header_bytes: int, header_bytes_known: int, critical: int) -> None:
    """Raise FormatVersionError for a header with a right checksum that this version cannot read (FORMAT.md F-11)."""
    if version > FORMAT_VERSION:
        raise FormatVersionError(where, found=version, supported=FORMAT_VERSION)
    if header_bytes != header_bytes_known:
        found = f"{version} with a header of {header_bytes} bytes"
        raise FormatVersionError(where, found=found, supported=f"{FORMAT_VERSION} with {header_bytes_known}")
    unknown = critical & ~CRITICAL_FEATURES_KNOWN
    if unknown:
        raise FormatVersionError(where, found=f"with critical features {unknown:#x}", supported="none")


def _damaged(name: str, what: str, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"the header of segment {name} {what}: expected {expected!r}, found {found!r}",
        segment=name,
        expected=expected,
        found=found,
    )
