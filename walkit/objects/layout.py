"""The objects of a log on object storage: keys, the header of a bulk, and the order of bulks (FORMAT.md F-21). Pure.

A bulk is an object of whole frames; its key is its number, and numbers are consecutive. A bulk without frames is a
fence: it starts an epoch. Two more objects have names: the manifest, and the claims with the floor.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from walkit.errors import CorruptionError, DivergenceError, FormatVersionError, NotALogError
from walkit.format.checksum import crc32c
from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    ALIGNMENT_DIRECT,
    FORMAT_DRAFT,
    FORMAT_VERSION,
    FRAME_BYTES_LIMIT,
    FRAME_HEADER_BYTES,
    IN_BULKS,
    LSN_MAX,
    POSITION_MAX,
    SEGMENT_HEADER_BYTES,
    SEGMENT_NUMBER_MAX,
    align_up,
)
from walkit.format.manifest import (
    EpochRecord,
    LogEnd,
    Manifest,
    SegmentRecord,
    SegmentState,
    decode_manifest,
    encode_base,
)
from walkit.format.segment import SegmentHeader, refuse_newer
from walkit.record import Buffer
from walkit.segments.frame_walk import FrameWalk
from walkit.storage.object_store import ObjectBytes

MANIFEST_KEY: Final = "manifest"
CLAIMS_KEY: Final = "claims"
LOG_PREFIX: Final = "log/"
UNFINISHED: Final = "copy"
"""What `removed` in the manifest of an unfinished copy says. Nothing opens it before `removed` is gone."""
COMPACTED_FROM: Final = 1 << 40
"""The first number of a segment that compaction makes: those of the manifest object are below."""
SEGMENT_BYTES: Final = 64 << 20
"""A segment of bulks that were read ends with the bulk with which it has so many bytes."""
AHEAD_MAX: Final = 1000
"""No bulk is put whose number is more than so many after that of the saved vouched end."""

BULK_MAGIC: Final = b"WALKITOB"
BULK_HEADER: Final = struct.Struct("<8sHHIIIQQQQQQQQIIIIIIHHIII")
BULK_HEADER_BYTES: Final = 128
_BULK_CRC_OFFSET: Final = BULK_HEADER_BYTES - 4
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


class BulkHeader(NamedTuple):
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
        front = (BULK_MAGIC, FORMAT_VERSION, BULK_HEADER_BYTES, 0, 0, FORMAT_DRAFT)
        head = BULK_HEADER.pack(*front, *self, 0)
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
        magic, version, size, critical, _optional, draft, *fields, crc = BULK_HEADER.unpack(head)
        if magic != BULK_MAGIC:
            raise damaged(name, "has the wrong magic", BULK_MAGIC, magic)
        found = crc32c(head[:_BULK_CRC_OFFSET])
        if found != crc:
            raise damaged(name, "has a header of a wrong checksum", f"{crc:#010x}", f"{found:#010x}")
        refuse_newer(name, version, size, BULK_HEADER_BYTES, critical)
        if draft != FORMAT_DRAFT or fields[-1]:
            declared = f"0, draft {draft}, flags {fields[-1]:#x}"
            raise FormatVersionError(name, found=declared, supported=f"0, draft {FORMAT_DRAFT}, no flags")
        header = cls(*fields)
        wrong = _outside_limits(header)
        if wrong:
            raise damaged(name, "is outside the limits of the format", "a header that can be", wrong)
        if number is not None and header.number != number:
            raise damaged(name, "says it is another", object_key(number), object_key(header.number))
        return header


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
    """Return the header of a whole bulk; CorruptionError if header, length or checksum of the body are wrong."""
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


def segment_of(header: BulkHeader) -> SegmentHeader:
    """Return the header of a segment whose first frames are those of a bulk."""
    return SegmentHeader(
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


def frames_of(header: BulkHeader, data: Buffer, **how: Any) -> FrameWalk:
    """Return the walk over the frames of a whole bulk; `how` as of FrameWalk.

    They follow what the header says. After the walk `fault` is None and `next_lsn` is that of the header's end.
    """
    follows: dict[str, Any] = {
        "position": header.start_position,
        "end_position": header.end.position,
        "next_lsn": header.first_lsn,
        "chain": header.chain,
        "last_chain": header.end_chain,
    }
    file = _BulkFile(object_key(header.number), data)
    return FrameWalk(file, segment_of(header), **{**follows, **how})


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
    """The object of claims and floor: everything of the log that one swap changes together (FORMAT.md F-21.10).

    `epoch` is that of the newest opening, `floor` the end of the last bulk that a trim may have deleted, `swept` the
    number up to which bulks were deleted. The fields of `_MARKS` are those of a manifest; `segments` are files,
    by which compaction has replaced all bulks up to the floor that were not trimmed. `claims` has the marks of
    consumers by name, in hexadecimal digits; `files` the key and size of each file beside the log, by its name.

    `nonce` is random for each writer of the object and `counter` grows with each write of one, so that a writer whose
    answer was lost finds its own content.
    """

    log_id: int
    epoch: int = 0
    epoch_id: int = 0
    floor: LogPlace = START
    swept: int = 0
    low_watermark: int = 0
    checkpoint_lsn: int = 0
    exact_from_lsn: int = 1
    tombstones_from_lsn: int = 1
    next_segment: int = COMPACTED_FROM
    segments: tuple[SegmentRecord, ...] = ()
    claims: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    nonce: int = 0
    counter: int = 0

    @property
    def dropped_lsn(self) -> int:
        """LSNs up to here are dropped."""
        return self.low_watermark if self.segments else max(self.low_watermark, self.floor.lsn)

    def encode(self) -> bytes:
        """Return the bytes of the object: a manifest file, whose `extra` has the fields that a manifest lacks."""
        own = {name: getattr(self, name) for name in _MARKS}
        extra = {name: getattr(self, name) for name in _CLAIMS_FIELDS}
        last = self.segments[-1] if self.segments else SegmentRecord(0, SegmentState.SEALED)
        end = LogEnd(last_lsn=last.last_lsn, position=last.end_position)
        return encode_base(Manifest(log_id=self.log_id, end=end, extra=extra, **own))

    @classmethod
    def decode(cls, data: bytes) -> Claims:
        """Return the claims of an object; CorruptionError if it is damaged, FormatVersionError if it is newer."""
        try:
            manifest = decode_manifest(data, CLAIMS_KEY)
            values = {name: manifest.extra[name] for name in _CLAIMS_FIELDS}
            values["floor"] = LogPlace(*values["floor"])
            files = {name: (key, size) for name, (key, size) in values["files"].items()}
            numbers = (
                *values["floor"],
                *(values[n] for n in _NUMBERS),
                *(size for _, size in files.values()),
            )
            texts = (*values["claims"].values(), *(key for key, _ in files.values()))
            if any(type(n) is not int or n < 0 for n in numbers) or {*map(type, texts)} - {str}:
                raise TypeError("a value has another type, or is negative")
            own = {name: getattr(manifest, name) for name in _MARKS}
            return cls(log_id=manifest.log_id, **{**values, "files": files}, **own)
        except (AttributeError, KeyError, TypeError, ValueError, CorruptionError, NotALogError) as error:
            what = f"cannot be understood ({error})"
            raise damaged(CLAIMS_KEY, what, "epoch, floor and claims", "others") from error


def claims_of(found: ObjectBytes | None, location: str, log_id: int) -> Claims:
    """Return what the claims object of an open log has; CorruptionError, DivergenceError."""
    if found is None:
        raise damaged(CLAIMS_KEY, "is missing", "claims and floor", None)
    claims = Claims.decode(found.data)
    if claims.log_id != log_id:
        raise foreign(CLAIMS_KEY, location, 1)
    return claims


_MARKS: Final = (
    *("low_watermark", "checkpoint_lsn", "exact_from_lsn", "tombstones_from_lsn", "next_segment", "segments"),
)
_NUMBERS: Final = ("epoch", "epoch_id", "swept", "nonce", "counter")
_CLAIMS_FIELDS: Final = (*_NUMBERS, "floor", "claims", "files")


def fences_of(manifest: Manifest) -> set[int]:
    """Return the numbers of the fences that a manifest knows: all before its vouched end."""
    fences = manifest.extra.get("fences", [])
    if not isinstance(fences, list) or {*map(type, fences)} - {int}:
        raise damaged(MANIFEST_KEY, "cannot be understood", "the numbers of fences", fences)
    return set(fences)


def as_manifest(manifest: Manifest, claims: Claims) -> Manifest:
    """Return the manifest of a log as one in a folder has it: the manifest object with what trims have changed."""
    low = max(manifest.low_watermark, claims.dropped_lsn)
    return replace(
        manifest,
        generation=manifest.generation + claims.counter,
        segments=(
            *(s for s in claims.segments if s.last_lsn > low),
            *(s for s in cut_at(manifest.segments, claims.floor) if is_after(s, claims.floor)),
        ),
        low_watermark=low,
        checkpoint_lsn=claims.checkpoint_lsn,
        exact_from_lsn=max(claims.exact_from_lsn, low + 1) if low else claims.exact_from_lsn,
        tombstones_from_lsn=claims.tombstones_from_lsn,
    )


def is_after(segment: SegmentRecord, place: LogPlace) -> bool:
    """Whether bulks of a segment are after a place, which it does not begin before."""
    return segment.start_position >= place.position and segment.last_lsn > place.lsn


def cut_at(segments: Iterable[SegmentRecord], place: LogPlace) -> Iterator[SegmentRecord]:
    """Yield segments of bulks; one that a place is within as two."""
    for s in segments:
        if not s.start_position < place.position < s.end_position:
            yield s
            continue
        front = place.lsn - s.first_lsn + 1
        yield s._replace(
            end_position=place.position, last_lsn=place.lsn, end_chain=place.chain, records=front
        )
        yield s._replace(
            start_position=place.position,
            first_lsn=place.lsn + 1,
            start_chain=place.chain,
            records=s.records - front,
        )


def stretch(start: LogPlace, end: LogPlace, number: int, created_us: int) -> SegmentRecord:
    """Return the bulks of one epoch between two places as a manifest has a sealed segment of this number."""
    return SegmentRecord(
        number=number,
        state=SegmentState.SEALED,
        epoch=end.epoch,
        start_position=start.position,
        end_position=end.position,
        first_lsn=start.lsn + 1,
        last_lsn=end.lsn,
        start_chain=start.chain,
        end_chain=end.chain,
        records=end.lsn - start.lsn,
        frames=end.number - start.number,
        created_us=created_us,
        flags=IN_BULKS,
    )


class Stretches:
    """The bulks up to a place as the segments of a manifest, and the fences. Used by one thread at a time."""

    def __init__(self, manifest: Manifest, place: LogPlace, created_us: int = 0) -> None:
        """`manifest` knows all up to `place`, and the next segment begins there at this time."""
        self.place = place
        self.began: list[EpochRecord] = []
        """The epochs whose fences were taken."""
        self.sealed_us = 0
        """When the newest bulk was sealed, as its header says."""
        self._fences, self._segments = fences_of(manifest), list(manifest.segments)
        self._start, self._number, self._created_us = place, manifest.next_segment, created_us
        last = self._segments[-1] if self._segments else None
        if last is not None and (last.end_position, last.epoch) == (place.position, place.epoch):
            self._segments.pop()
            self._start = LogPlace(0, last.start_position, last.first_lsn - 1, last.start_chain, last.epoch)
            self._number, self._created_us = last.number, last.created_us

    def take(self, header: BulkHeader) -> None:
        """Go past the bulk that follows."""
        if header.is_fence or self.place.position - self._start.position >= SEGMENT_BYTES:
            self.begin(header.sealed_us)
        if header.is_fence:
            self._fences.add(header.number)
            self.began.append(epoch_record(header))
            self._start = header.end
        elif self._start == self.place:
            self._created_us = header.sealed_us
        self.place, self.sealed_us = header.end, header.sealed_us

    def begin(self, created_us: int) -> None:
        """Begin a segment after the place, unless the one before it is empty."""
        if self.place.position > self._start.position:
            self._segments, self._number = [*self.segments()], self._number + 1
        self._start, self._created_us = self.place, created_us

    def segments(self) -> tuple[SegmentRecord, ...]:
        """Return the segments up to the place."""
        if self.place.position == self._start.position:
            return tuple(self._segments)
        return (*self._segments, stretch(self._start, self.place, self._number, self._created_us))

    def fields(self, floor: LogPlace = START) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a manifest that vouches for the place says: in `extra`, and in its own fields.

        Segments up to the floor are forgotten.
        """
        self._segments = [s for s in self._segments if s.end_position > floor.position]
        own = {"segments": self.segments(), "next_segment": self._number + 1, "end": self.place.end}
        return {"object": self.place.number, "fences": sorted(self._fences)}, own


def epoch_record(fence: BulkHeader) -> EpochRecord:
    """Return the epoch that a fence begins, as the lineage has it."""
    return EpochRecord(
        number=fence.epoch,
        id=fence.epoch_id,
        first_lsn=fence.first_lsn,
        position=fence.start_position,
        chain=fence.chain,
    )


def foreign(key: str, location: str, first_lsn: int) -> DivergenceError:
    """Return the error of an object of another log."""
    return DivergenceError(
        f"the object {key} of {location} belongs to another log: two logs share a prefix, or one has taken the other's "
        "place. No object was changed",
        first_lsn=first_lsn,
    )


def damaged(name: str, what: str, expected: object, found: object) -> CorruptionError:
    """Return the error of a damaged object of this key."""
    return CorruptionError(
        f"the object {name} {what}: expected {expected!r}, found {found!r}. No object was changed",
        segment=name,
        expected=expected,
        found=found,
    )
