"""The objects of a log on object storage: keys, the header of a bulk, and the order of bulks (FORMAT.md F-21). Pure.

A bulk is an object of whole frames; its key is its number, and numbers are consecutive. A bulk without frames is a
fence: it starts an epoch. Two more objects have names: the manifest, and the claims with the floor.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from walkit.errors import CorruptionError, FormatVersionError
from walkit.format.checksum import crc32c
from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    ALIGNMENT_DIRECT,
    FORMAT_DRAFT,
    FORMAT_VERSION,
    FRAME_BYTES_LIMIT,
    FRAME_HEADER_BYTES,
    LSN_MAX,
    POSITION_MAX,
    SEGMENT_HEADER_BYTES,
    SEGMENT_NUMBER_MAX,
    align_up,
)
from walkit.format.manifest import LogEnd, Manifest
from walkit.format.segment import SegmentHeader, refuse_newer
from walkit.record import Buffer
from walkit.segments.frame_walk import FrameWalk

MANIFEST_KEY: Final = "manifest"
CLAIMS_KEY: Final = "claims"
LOG_PREFIX: Final = "log/"
AHEAD_MAX: Final = 1000
"""No bulk is put whose number is more than so many after that of the saved vouched end."""

BULK_MAGIC: Final = b"WALKITOB"
BULK_HEADER: Final = struct.Struct("<8sHHIIIQQQQQQQQIIIIIIHHIII")
BULK_HEADER_BYTES: Final = 128
_BULK_CRC_OFFSET: Final = BULK_HEADER_BYTES - 4
CLAIMS_MAGIC: Final = b"WALKITOC"
CLAIMS_HEADER: Final = struct.Struct("<8sHHIIII")
_CLAIMS_CRC_OFFSET: Final = CLAIMS_HEADER.size - 4
assert BULK_HEADER.size == BULK_HEADER_BYTES

_KEY = re.compile(rf"{LOG_PREFIX}(\d{{20}})", re.ASCII)


def object_key(number: int) -> str:
    """Return the key of a bulk: twenty digits, so that keys sort as numbers."""
    return f"{LOG_PREFIX}{number:020d}"


def number_of_key(key: str) -> int | None:
    """Return the number in the key of a bulk; None for any other key."""
    found = _KEY.fullmatch(key)
    return int(found[1]) if found else None


class LogPlace(NamedTuple):
    """The end of a bulk, which the next one must follow: its number, and the position, LSN, chain and epoch there."""

    number: int = 0
    position: int = 0
    lsn: int = 0
    chain: int = 0
    epoch: int = 0

    @property
    def key(self) -> str:
        """The key of the bulk that comes next."""
        return object_key(self.number + 1)

    @property
    def end(self) -> LogEnd:
        """The same place as a manifest has it."""
        return LogEnd(last_lsn=self.lsn, position=self.position, chain=self.chain)


START: Final = LogPlace()
"""The place that the first bulk of a log follows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkHeader:
    """The header of a bulk, in the order of its bytes (FORMAT.md F-21.3)."""

    log_id: int
    epoch: int
    epoch_id: int
    number: int
    start_position: int
    first_lsn: int
    promised_position: int
    sealed_us: int
    body_bytes: int
    records: int
    span: int
    chain: int
    end_chain: int
    body_crc: int
    in_flight: int = 1
    alignment: int = ALIGNMENT_BUFFERED
    frame_bytes_max: int = FRAME_HEADER_BYTES
    flags: int = 0
    critical_features: int = 0
    optional_features: int = 0

    @property
    def is_fence(self) -> bool:
        """Whether it has no frames: it starts its epoch."""
        return not self.body_bytes

    @property
    def end(self) -> LogPlace:
        """The place that the next bulk must follow."""
        return LogPlace(
            self.number,
            self.start_position + self.body_bytes,
            self.first_lsn + self.span - 1,
            self.end_chain,
            self.epoch,
        )

    def encode(self) -> bytes:
        """Return the 128 bytes; ValueError for what `decode` would refuse."""
        wrong = _outside_limits(self)
        if wrong:
            raise ValueError(f"no bulk has such a header: {wrong}")
        head = BULK_HEADER.pack(
            *(BULK_MAGIC, FORMAT_VERSION, BULK_HEADER_BYTES, self.critical_features, self.optional_features),
            *(FORMAT_DRAFT, self.log_id, self.epoch, self.epoch_id, self.number, self.start_position),
            *(
                self.first_lsn,
                self.promised_position,
                self.sealed_us,
                self.body_bytes,
                self.records,
                self.span,
            ),
            *(self.chain, self.end_chain, self.body_crc, self.in_flight, self.alignment),
            *(self.frame_bytes_max, self.flags, 0),
        )
        return head[:_BULK_CRC_OFFSET] + crc32c(head[:_BULK_CRC_OFFSET]).to_bytes(4, "little")

    @classmethod
    def decode(cls, data: Buffer, number: int | None = None) -> BulkHeader:
        """Return the header at the front of an object; CorruptionError unless it is whole, and that of `number`.

        FormatVersionError for a newer version, another draft or an unknown critical feature under a right checksum.
        """
        name = "a bulk" if number is None else object_key(number)
        if len(data) < BULK_HEADER_BYTES:
            raise damaged(name, "is cut short", f"at least {BULK_HEADER_BYTES} bytes", len(data))
        head = bytes(memoryview(data)[:BULK_HEADER_BYTES])
        magic, version, size, critical, optional, draft, *fields, crc = BULK_HEADER.unpack(head)
        if magic != BULK_MAGIC:
            raise damaged(name, "has the wrong magic", BULK_MAGIC, magic)
        found = crc32c(head[:_BULK_CRC_OFFSET])
        if found != crc:
            raise damaged(name, "has a header of a wrong checksum", f"{crc:#010x}", f"{found:#010x}")
        refuse_newer(name, version, size, BULK_HEADER_BYTES, critical)
        _refuse_draft(name, draft)
        if fields[-1]:
            raise FormatVersionError(name, found=f"with flags {fields[-1]:#x}", supported="no flags")
        header = cls(
            **dict(zip(_FIELDS, fields, strict=True)), critical_features=critical, optional_features=optional
        )
        wrong = _outside_limits(header)
        if wrong:
            raise damaged(name, "is outside the limits of the format", "a header that can be", wrong)
        if number is not None and header.number != number:
            raise damaged(name, "says it is another", object_key(number), object_key(header.number))
        return header


_FIELDS: Final = (
    *(
        "log_id",
        "epoch",
        "epoch_id",
        "number",
        "start_position",
        "first_lsn",
        "promised_position",
        "sealed_us",
    ),
    *("body_bytes", "records", "span", "chain", "end_chain", "body_crc", "in_flight", "alignment"),
    *("frame_bytes_max", "flags"),
)


def _outside_limits(header: BulkHeader) -> str:
    """Return the limit that a header of a bulk breaks, or "" (FORMAT.md F-21.4)."""
    power = header.alignment & (header.alignment - 1) == 0
    if not power or not ALIGNMENT_BUFFERED <= header.alignment <= ALIGNMENT_DIRECT:
        return f"alignment {header.alignment}"
    if not FRAME_HEADER_BYTES <= header.frame_bytes_max <= FRAME_BYTES_LIMIT:
        return f"frame_bytes_max {header.frame_bytes_max}"
    start, size = header.start_position, header.body_bytes
    if start > POSITION_MAX - size or start % ALIGNMENT_BUFFERED or size % header.alignment:
        return f"{size} bytes of frames from position {start} on"
    if header.promised_position > start + size:
        return f"a promise of position {header.promised_position}, after its end"
    if not 0 < header.first_lsn <= LSN_MAX - header.span or header.records > header.span:
        return f"{header.records} records of {header.span} LSNs from {header.first_lsn} on"
    if not 0 < header.number <= SEGMENT_NUMBER_MAX or not header.epoch or not header.in_flight:
        return f"number {header.number}, epoch {header.epoch}, {header.in_flight} in flight"
    if not size and (header.span or header.chain != header.end_chain or header.body_crc):
        return "a fence with records"
    return ""


def check_bulk(data: Buffer, number: int | None = None) -> BulkHeader:
    """Return the header of a whole bulk; CorruptionError where header, length or checksum of the body are wrong."""
    header = BulkHeader.decode(data, number)
    whole, name = BULK_HEADER_BYTES + header.body_bytes, object_key(header.number)
    if len(data) != whole:
        raise damaged(name, "has another length than it says", whole, len(data))
    found = crc32c(memoryview(data)[BULK_HEADER_BYTES:])
    if found != header.body_crc:
        raise damaged(name, "has a wrong checksum", f"{header.body_crc:#010x}", f"{found:#010x}")
    return header


class _BulkFile:
    """The bytes of a bulk as a segment's file: its frames begin where those of a segment would."""

    def __init__(self, name: str, data: Buffer) -> None:
        self.name = name
        self._frames = memoryview(data)[BULK_HEADER_BYTES:]

    def read(self, offset: int, size: int) -> bytes:
        """See Readable."""
        start = offset - SEGMENT_HEADER_BYTES
        return bytes(self._frames[start : start + size])

    def size(self) -> int:
        """See Readable."""
        return SEGMENT_HEADER_BYTES + len(self._frames)


def frames_of(header: BulkHeader, data: Buffer, **how: Any) -> FrameWalk:
    """Return the walk over the frames of a whole bulk; `how` as of FrameWalk.

    They follow what the header says. After the walk `fault` is None and `next_lsn` is that of the header's end.
    """
    segment = SegmentHeader(
        log_id=header.log_id,
        epoch=header.epoch,
        epoch_id=header.epoch_id,
        number=header.number,
        start_position=header.start_position,
        previous_end=header.start_position,
        first_lsn=header.first_lsn,
        chain=header.chain,
        alignment=header.alignment,
        frame_bytes_max=header.frame_bytes_max,
        created_us=header.sealed_us,
    )
    follows: dict[str, Any] = {
        "position": header.start_position,
        "end_position": header.end.position,
        "next_lsn": header.first_lsn,
        "chain": header.chain,
        "last_chain": header.end_chain,
    }
    return FrameWalk(_BulkFile(object_key(header.number), data), segment, **{**follows, **how})


class Fit(Enum):
    """How a bulk with right checksums stands to the place before it."""

    FITS = "it is the next part of the log"
    STALE = "an older epoch has written it and it does not follow: it was never acknowledged"
    NEWER = "its epoch is not known here"
    FOREIGN = "it belongs to another log"
    WRONG = "it does not follow, though no older epoch has written it"


def follows(header: BulkHeader, place: LogPlace, log_id: int, epochs: Mapping[int, int]) -> Fit:
    """Say how a bulk stands to `place`, which is the end of a bulk of the log or the vouched end (FORMAT.md F-21.7).

    `epochs` are the ids of all epochs by their numbers: those of the lineage and those of openings (`epochs_of`).
    """
    if header.log_id != log_id:
        return Fit.FOREIGN
    if header.epoch > max(epochs, default=0):
        return Fit.NEWER
    # The first bulk of each epoch is a fence, and no other bulk starts one. So a bulk that an older writer has put
    # after it, with the same chain as the fence or not, never follows it.
    in_epoch = header.epoch > place.epoch if header.is_fence else header.epoch == place.epoch
    if (
        in_epoch
        and epochs.get(header.epoch) == header.epoch_id
        and header.number == place.number + 1
        and header.start_position == align_up(place.position, header.alignment)
        and header.first_lsn == place.lsn + 1
        and header.chain == place.chain
    ):
        return Fit.FITS
    return Fit.STALE if header.epoch < place.epoch else Fit.WRONG


def vouched_place(manifest: Manifest) -> LogPlace:
    """Return the vouched end of a manifest: every bulk up to there was acknowledged. CorruptionError if it has none."""
    number = manifest.extra.get("object")
    if type(number) is not int or not 0 <= number <= SEGMENT_NUMBER_MAX:
        raise damaged(MANIFEST_KEY, "names no bulk as its vouched end", "a number", number)
    end, epoch = manifest.end, manifest.lineage[-1].number if manifest.lineage else 0
    return LogPlace(number, end.position, end.last_lsn, end.chain, epoch)


def epochs_of(manifest: Manifest) -> dict[int, int]:
    """Return the ids of the epochs by their numbers: those of the lineage, and of openings under way."""
    opening = manifest.extra.get("opening", [])
    try:
        return {
            **{e.number: e.id for e in manifest.lineage},
            **{int(number): int(epoch_id) for number, epoch_id in opening},
        }
    except (TypeError, ValueError) as error:
        raise damaged(
            MANIFEST_KEY, f"cannot be understood ({error})", "numbers and ids of epochs", opening
        ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    """The object of claims and floor: the newest epoch, and the end of the last bulk that a trim may have deleted.

    `nonce` is random for each writer of the object and `counter` grows with each write of one, so that a writer whose
    answer was lost finds its own content.
    """

    log_id: int
    epoch: int = 0
    epoch_id: int = 0
    floor: LogPlace = START
    claims: Mapping[str, Any] = field(default_factory=dict)
    nonce: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """Return the bytes of the object."""
        plain = {name: getattr(self, name) for name in _CLAIMS_FIELDS}
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        head = CLAIMS_HEADER.pack(
            CLAIMS_MAGIC, FORMAT_VERSION, CLAIMS_HEADER.size, 0, FORMAT_DRAFT, len(text), 0
        )[:_CLAIMS_CRC_OFFSET]
        return head + crc32c(text, crc32c(head)).to_bytes(4, "little") + text

    @classmethod
    def decode(cls, data: bytes) -> Claims:
        """Return the claims of an object; CorruptionError if it is damaged, FormatVersionError if it is newer."""
        if len(data) < CLAIMS_HEADER.size:
            raise damaged(CLAIMS_KEY, "is cut short", CLAIMS_HEADER.size, len(data))
        magic, version, size, critical, draft, length, crc = CLAIMS_HEADER.unpack_from(data)
        if magic != CLAIMS_MAGIC or len(data) != CLAIMS_HEADER.size + length:
            raise damaged(CLAIMS_KEY, "has the wrong magic or length", CLAIMS_MAGIC, magic)
        found = crc32c(data[CLAIMS_HEADER.size :], crc32c(data[:_CLAIMS_CRC_OFFSET]))
        if found != crc:
            raise damaged(CLAIMS_KEY, "has a wrong checksum", f"{crc:#010x}", f"{found:#010x}")
        refuse_newer(CLAIMS_KEY, version, size, CLAIMS_HEADER.size, critical)
        _refuse_draft(CLAIMS_KEY, draft)
        try:
            plain = json.loads(data[CLAIMS_HEADER.size :])
            values = {name: plain[name] for name in _CLAIMS_FIELDS}
            values["floor"] = LogPlace(*values["floor"])
            numbers = [values[n] for n in ("log_id", "epoch", "epoch_id", "nonce", "counter")]
            if any(type(n) is not int or n < 0 for n in (*numbers, *values["floor"])):
                raise TypeError("a number has another type, or is negative")
            return cls(**values)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise damaged(
                CLAIMS_KEY, f"cannot be understood ({error})", "epoch, floor and claims", "others"
            ) from error


_CLAIMS_FIELDS: Final = ("log_id", "epoch", "epoch_id", "floor", "claims", "nonce", "counter")


def _refuse_draft(name: str, draft: int) -> None:
    if draft != FORMAT_DRAFT:
        raise FormatVersionError(name, found=f"0, draft {draft}", supported=f"0, draft {FORMAT_DRAFT}")


def damaged(name: str, what: str, expected: object, found: object) -> CorruptionError:
    """Return the error of a damaged object of this key."""
    return CorruptionError(
        f"the object {name} {what}: expected {expected!r}, found {found!r}. No object was changed",
        segment=name,
        expected=expected,
        found=found,
    )
