"""The segment header: 4096 bytes that say what a file of frames is (FORMAT.md F-1, F-2, F-11)."""

from __future__ import annotations

from dataclasses import dataclass

from walkit.errors import CorruptionError, FormatVersionError
from walkit.format.checksum import crc32c
from walkit.format.layout import (
    CRITICAL_FEATURES_KNOWN,
    FORMAT_VERSION,
    FRAME_HEADER_BYTES,
    SEGMENT_EXTENSION_OFFSET,
    SEGMENT_HEADER,
    SEGMENT_HEADER_BYTES,
    SEGMENT_HEADER_CRC,
    SEGMENT_MAGIC,
    SegmentFlag,
)

_CRC_OFFSET = SEGMENT_HEADER_BYTES - 4


def segment_name(number: int) -> str:
    """Return the file name of a segment: twenty digits, so that names sort as numbers."""
    return f"{number:020d}.segment"


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentHeader:
    """What a segment says of itself. Positions are of the log, sizes are bytes.

    `previous_end` is where the frames before this segment ended: the only legal gap in positions is
    [previous_end, start_position). `chain` is the header checksum of the last frame before, `first_lsn` the LSN that
    the first frame must have.
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
    window_bytes: int = 0
    end_chain: int = 0
    flags: SegmentFlag = SegmentFlag(0)
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
        """Return the 4096 bytes of the header."""
        if len(self.extension) > _CRC_OFFSET - SEGMENT_EXTENSION_OFFSET:
            raise ValueError(f"the extension area holds {_CRC_OFFSET - SEGMENT_EXTENSION_OFFSET} bytes")
        head = SEGMENT_HEADER.pack(
            SEGMENT_MAGIC,
            FORMAT_VERSION,
            SEGMENT_HEADER_BYTES,
            self.critical_features,
            self.optional_features,
            self.alignment,
            self.log_id,
            self.epoch,
            self.epoch_id,
            self.number,
            self.start_position,
            self.previous_end,
            self.first_lsn,
            self.chain,
            int(self.flags),
            self.frame_bytes_max,
            self.window_bytes,
            self.created_us,
            self.end_chain,
            len(self.extension),
        )
        block = (head + self.extension).ljust(_CRC_OFFSET, b"\0")
        return block + SEGMENT_HEADER_CRC.pack(crc32c(block))

    @classmethod
    def decode(cls, block: bytes, name: str) -> SegmentHeader | None:
        """Return the header of file `name`; None where the block is all zero (a prepared segment, never used).

        Raises CorruptionError for a damaged or misplaced header, FormatVersionError for a newer one. The checksum has
        its place at the end of the block in every version, so that it is judged before the version is believed.
        """
        if len(block) < SEGMENT_HEADER_BYTES:
            raise _damaged(name, "is cut short", SEGMENT_HEADER_BYTES, len(block))
        block = block[:SEGMENT_HEADER_BYTES]
        if not any(block):
            return None
        magic, version, header_bytes, critical, optional, alignment, *rest = SEGMENT_HEADER.unpack_from(block)
        if magic != SEGMENT_MAGIC:
            raise _damaged(name, "has the wrong magic", SEGMENT_MAGIC, magic)
        (expected,) = SEGMENT_HEADER_CRC.unpack_from(block, _CRC_OFFSET)
        found = crc32c(block[:_CRC_OFFSET])
        if found != expected:
            raise _damaged(name, "has a wrong checksum", f"{expected:#010x}", f"{found:#010x}")
        if version > FORMAT_VERSION or header_bytes != SEGMENT_HEADER_BYTES:
            raise FormatVersionError(f"segment {name}", found=version, supported=FORMAT_VERSION)
        unknown = critical & ~CRITICAL_FEATURES_KNOWN
        if unknown:
            raise FormatVersionError(f"segment {name}", found=f"with critical features {unknown:#x}", supported="none")
        extension_bytes = rest[-1]
        if extension_bytes > _CRC_OFFSET - SEGMENT_EXTENSION_OFFSET or alignment & (alignment - 1) or not alignment:
            raise _damaged(name, "has impossible lengths", "a power of two, an extension that fits", alignment)
        header = cls(
            log_id=rest[0],
            epoch=rest[1],
            epoch_id=rest[2],
            number=rest[3],
            start_position=rest[4],
            previous_end=rest[5],
            first_lsn=rest[6],
            chain=rest[7],
            flags=SegmentFlag(rest[8]),
            frame_bytes_max=rest[9],
            window_bytes=rest[10],
            created_us=rest[11],
            end_chain=rest[12],
            alignment=alignment,
            critical_features=critical,
            optional_features=optional,
            extension=block[SEGMENT_EXTENSION_OFFSET : SEGMENT_EXTENSION_OFFSET + extension_bytes],
        )
        if header.name != name or header.frame_bytes_max < FRAME_HEADER_BYTES:
            raise _damaged(name, "says it is another segment", name, header.name)
        return header


def _damaged(name: str, what: str, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"the header of segment {name} {what}: expected {expected!r}, found {found!r}",
        segment=name,
        expected=expected,
        found=found,
    )
