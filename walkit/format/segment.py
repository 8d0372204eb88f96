"""The segment header: 4096 bytes that say what a file of frames is (FORMAT.md F-1, F-2, F-11)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

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


@lru_cache(maxsize=16)
def segment_name(number: int) -> str:
    """Return the file name of a segment: twenty digits, so that names sort as numbers."""
    return f"{number:020d}.segment"


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentHeader:
    """What a segment says of itself. Positions are of the log, sizes are bytes.

    `previous_end` is where the frames before this segment ended: the only legal gap in positions is
    [previous_end, start_position). `chain` is the header checksum of the last frame before, `first_lsn` the LSN that
    the first frame must have. Of a compacted segment, `end_chain` is what the frames it was made of ended with, and
    `own_end_chain` what its own end with. `manifest_generation` promises: the manifest of this generation was on stable
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
        """Return the 4096 bytes of the header; ValueError where `decode` would refuse them."""
        wrong = self._outside_limits()
        if wrong:
            raise ValueError(f"no segment has such a header: {wrong}")
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
            self.reorder_window_bytes,
            self.created_us,
            self.end_chain,
            self.own_end_chain,
            self.manifest_generation,
            FORMAT_DRAFT,
            len(self.extension),
        )
        block = (head + self.extension).ljust(_CRC_OFFSET, b"\0")
        return block + SEGMENT_HEADER_CRC.pack(crc32c(block))

    @classmethod
    def decode(cls, block: bytes, name: str) -> SegmentHeader | None:
        """Return the header of file `name`; None where the block is all zero (a prepared segment, never used).

        Raises CorruptionError for a damaged or misplaced header, FormatVersionError for a newer one or another draft.
        The checksum is at the end of the block in every version, so that it is judged before the version is believed.
        """
        if len(block) < SEGMENT_HEADER_BYTES:
            raise _damaged(name, "is cut short", SEGMENT_HEADER_BYTES, len(block))
        block = bytes(block[:SEGMENT_HEADER_BYTES])
        if block == ZEROS[:SEGMENT_HEADER_BYTES]:
            return None
        magic, version, header_bytes, critical, optional, alignment, *rest = SEGMENT_HEADER.unpack_from(block)
        if magic != SEGMENT_MAGIC:
            raise _damaged(name, "has the wrong magic", SEGMENT_MAGIC, magic)
        (expected,) = SEGMENT_HEADER_CRC.unpack_from(block, _CRC_OFFSET)
        found = crc32c(block[:_CRC_OFFSET])
        if found != expected:
            raise _damaged(name, "has a wrong checksum", f"{expected:#010x}", f"{found:#010x}")
        refuse_newer(f"segment {name}", version, header_bytes, SEGMENT_HEADER_BYTES, critical)
        flags, draft, extension_bytes = rest[8], rest[15], rest[16]
        if draft != FORMAT_DRAFT:
            raise FormatVersionError(
                f"segment {name}", found=f"0, draft {draft}", supported=f"0, draft {FORMAT_DRAFT}"
            )
        if flags & ~SEGMENT_FLAGS_KNOWN:
            raise FormatVersionError(f"segment {name}", found=f"with flags {flags:#x}", supported="flags 0x7")
        if extension_bytes > EXTENSION_BYTES_MAX:
            raise _damaged(
                name, "has an impossible extension", f"at most {EXTENSION_BYTES_MAX}", extension_bytes
            )
        header = cls(
            log_id=rest[0],
            epoch=rest[1],
            epoch_id=rest[2],
            number=rest[3],
            start_position=rest[4],
            previous_end=rest[5],
            first_lsn=rest[6],
            chain=rest[7],
            flags=SegmentFlag(flags),
            frame_bytes_max=rest[9],
            reorder_window_bytes=rest[10],
            created_us=rest[11],
            end_chain=rest[12],
            own_end_chain=rest[13],
            manifest_generation=rest[14],
            alignment=alignment,
            critical_features=critical,
            optional_features=optional,
            extension=block[SEGMENT_EXTENSION_OFFSET : SEGMENT_EXTENSION_OFFSET + extension_bytes],
        )
        wrong = header._outside_limits()
        if wrong:
            raise _damaged(name, "is outside the limits of the format", "a header that can be", wrong)
        if header.name != name:
            raise _damaged(name, "says it is another segment", name, header.name)
        return header

    def _outside_limits(self) -> str:
        """Return what no segment header says, or "" (FORMAT.md F-7.1)."""
        power = self.alignment & (self.alignment - 1) == 0
        if not power or not ALIGNMENT_BUFFERED <= self.alignment <= ALIGNMENT_DIRECT:
            return f"alignment {self.alignment}"
        if not FRAME_HEADER_BYTES <= self.frame_bytes_max <= FRAME_BYTES_LIMIT:
            return f"frame_bytes_max {self.frame_bytes_max}"
        if (
            not self.previous_end <= self.start_position <= POSITION_MAX
            or self.start_position % self.alignment
        ):
            return f"start position {self.start_position}, previous end {self.previous_end}"
        if not 0 < self.first_lsn <= LSN_MAX:
            return f"first LSN {self.first_lsn}"
        if len(self.extension) > EXTENSION_BYTES_MAX:
            return f"an extension of {len(self.extension)} bytes"
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
