"""The manifest: which segments are the log, in which state (FORMAT.md F-9, F-12).

A small file that is replaced atomically. Its header is binary and checksummed; its payload is JSON, so that a person
can read it with `tail -c +29`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from walkit.errors import CorruptionError, FormatVersionError, NotALogError
from walkit.format.checksum import crc32c
from walkit.format.layout import (
    FORMAT_VERSION,
    LSN_MAX,
    MANIFEST_BYTES_MAX,
    MANIFEST_HEADER,
    MANIFEST_MAGIC,
    MANIFEST_VERSION,
    POSITION_MAX,
    SegmentFlag,
)
from walkit.format.segment import SegmentHeader, refuse_newer, segment_name

MANIFEST_NAME = "manifest"
_CRC_OFFSET = MANIFEST_HEADER.size - 4


class SegmentState(Enum):
    """State of a segment; prepared: made ahead, maybe in use (see its header); sealed: its end is in the manifest."""

    PREPARED = "prepared"
    SEALED = "sealed"


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentRecord:
    """One segment of the log. The fields after `state` are known once it is sealed."""

    number: int
    state: SegmentState
    epoch: int = 0
    start_position: int = 0
    end_position: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    start_chain: int = 0
    end_chain: int = 0
    records: int = 0
    frames: int = 0
    created_us: int = 0
    flags: int = 0
    reserved_bytes: int = 0
    """The size that the file of a prepared one had on stable storage before it was named; 0 where it is not known."""

    @property
    def name(self) -> str:
        """The segment's file name."""
        return segment_name(self.number)

    @property
    def size_bytes(self) -> int:
        """Bytes of frames between start and end."""
        return self.end_position - self.start_position


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """One epoch of the lineage: its identity, and the LSN, position and chain where it began."""

    number: int
    id: int
    first_lsn: int
    position: int
    chain: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HoleRecord:
    """Frames that never came to the disk while later ones did: positions [start_position, end_position).

    None of them was acknowledged, so nothing is lost, and their LSNs, `first_lsn` to `last_lsn`, are not given again;
    `last_lsn` is `first_lsn - 1` where they were marker frames. The frame after the hole follows `chain`.
    """

    start_position: int
    end_position: int
    first_lsn: int
    last_lsn: int
    chain: int

    @property
    def lsns(self) -> int:
        """How many LSNs were given to what is missing."""
        return self.last_lsn - self.first_lsn + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LostRecord:
    """A range that policy "salvage" gave up: positions [start_position, end_position), whose frames cannot be read.

    Records may have been acknowledged there: LSN `first_lsn` to `last_lsn`, which are not given again (`last_lsn` is
    `first_lsn - 1` where only marker frames are lost). The frame after the range follows `chain`. `segment` is the file
    that held it, `reason` says what was found there.
    """

    start_position: int
    end_position: int
    first_lsn: int
    last_lsn: int
    chain: int
    segment: str
    reason: str

    @property
    def lsns(self) -> int:
        """How many LSNs were given to what is lost."""
        return self.last_lsn - self.first_lsn + 1


Gap = HoleRecord | LostRecord
"""Positions without frames that a reader skips, because the manifest says what they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEnd:
    """Where the sealed log ends: what the next frame must follow. Survives the deletion of every segment."""

    last_lsn: int = 0
    position: int = 0
    chain: int = 0


def prepared_record(number: int, epoch: int, reserved_bytes: int) -> SegmentRecord:
    """Return what the manifest says of a segment that is made, with this size on stable storage."""
    return SegmentRecord(
        number=number, state=SegmentState.PREPARED, epoch=epoch, reserved_bytes=reserved_bytes
    )


def sealed_record(header: SegmentHeader, end: LogEnd, *, records: int, frames: int) -> SegmentRecord:
    """Return what the manifest says of a segment with this header that is sealed where `end` is."""
    return SegmentRecord(
        number=header.number,
        state=SegmentState.SEALED,
        epoch=header.epoch,
        start_position=header.start_position,
        end_position=end.position,
        first_lsn=header.first_lsn,
        last_lsn=end.last_lsn,
        start_chain=header.chain,
        end_chain=end.chain,
        records=records,
        frames=frames,
        created_us=header.created_us,
        flags=int(header.flags),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What the log is. Replaced as a whole; `generation` grows by one each time."""

    log_id: int
    generation: int = 0
    created_us: int = 0
    ack_order: str = "append"
    lineage: tuple[EpochRecord, ...] = ()
    segments: tuple[SegmentRecord, ...] = ()
    next_segment: int = 1
    end: LogEnd = field(default_factory=LogEnd)
    low_watermark: int = 0
    checkpoint_lsn: int = 0
    exact_from_lsn: int = 1
    tombstones_from_lsn: int = 1
    holes: tuple[HoleRecord, ...] = ()
    lost: tuple[LostRecord, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sealed(self) -> tuple[SegmentRecord, ...]:
        """The sealed segments, in position order."""
        return tuple(s for s in self.segments if s.state is SegmentState.SEALED)

    @property
    def unsealed(self) -> tuple[SegmentRecord, ...]:
        """The segments that may be in use, in the order of their numbers."""
        return tuple(s for s in self.segments if s.state is SegmentState.PREPARED)

    @property
    def first_lsn(self) -> int:
        """Oldest LSN that sealed segments hold or, when there is none, the next one after the end."""
        return self.sealed[0].first_lsn if self.sealed else self.end.last_lsn + 1

    @property
    def vouched_lsn(self) -> int:
        """The log was on stable storage up to here, whatever its segments hold: a trim or a checkpoint says so."""
        return max(self.low_watermark, self.checkpoint_lsn)

    @property
    def complete_from_lsn(self) -> int:
        """From here on no record is missing: neither dropped, nor superseded and compacted away, nor lost.

        The LSNs of a hole are no missing records: none was ever acknowledged.
        """
        thinned = [
            s.last_lsn
            for s in self.sealed
            if s.records < s.last_lsn - s.first_lsn + 1 - self._lsns_in_gaps(s)
        ]
        return max([self.low_watermark, *thinned, *(lost.last_lsn for lost in self.lost)]) + 1

    def _lsns_in_gaps(self, segment: SegmentRecord) -> int:
        """Return how many LSNs between the first and the last of a segment belong to holes or are lost."""
        return sum(gap.lsns for gap in self.gaps_of(segment))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The holes and the lost ranges, in position order."""
        both: list[Gap] = [*self.holes, *self.lost]
        return tuple(sorted(both, key=lambda g: g.start_position))

    def gaps_of(self, segment: SegmentRecord) -> tuple[Gap, ...]:
        """Return the holes and the lost ranges among the frames of a sealed segment, in position order.

        A lost range may reach to the end of its segment, which stays where it was.
        """
        if not self.holes and not self.lost:
            return ()
        start, end = segment.start_position, segment.end_position
        compacted = bool(segment.flags & SegmentFlag.COMPACTED)
        within = [g for g in self.gaps if start <= g.start_position and g.end_position <= end]
        return tuple(
            g for g in within if isinstance(g, LostRecord) or (g.end_position < end and not compacted)
        )

    def gap_after(self, position: int) -> int:
        """Return where the holes and lost ranges that begin at `position` end; `position` where none does."""
        ends = {g.start_position: g.end_position for g in self.gaps}
        while position in ends:
            position = ends[position]
        return position

    def frames_end_of(self, segment: SegmentRecord) -> int:
        """Return where the last frame of a sealed segment ends: before its end where the rest of it is lost."""
        starts = {g.end_position: g.start_position for g in self.gaps_of(segment)}
        position = segment.end_position
        while position in starts:
            position = starts[position]
        return position

    def uncompacted_at(self, end_position: int) -> SegmentRecord | None:
        """Return the sealed segment with the original frame that ends at `end_position`; None where there is none."""
        for s in self.sealed:
            if s.start_position < end_position <= s.end_position:
                return None if s.flags & SegmentFlag.COMPACTED else s
        return None

    def epoch_of(self, number: int) -> EpochRecord | None:
        """Return the epoch of this number."""
        return next((e for e in self.lineage if e.number == number), None)

    def next(self, **changes: Any) -> Manifest:
        """Return the following generation with these changes."""
        return replace(self, generation=self.generation + 1, **changes)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest file's bytes.

    ValueError or TypeError where they are too many, `extra` is not JSON, or where `decode_manifest` would refuse them:
    a manifest that cannot be read again would take the whole log with it.
    """
    plain = asdict(manifest)
    for segment in plain["segments"]:
        segment["state"] = segment["state"].value
    _from_plain(plain)
    payload = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    if MANIFEST_HEADER.size + len(payload) > MANIFEST_BYTES_MAX:
        raise ValueError(f"a manifest of {len(payload):,} bytes is over the limit of {MANIFEST_BYTES_MAX:,}")
    head = MANIFEST_HEADER.pack(MANIFEST_MAGIC, MANIFEST_VERSION, MANIFEST_HEADER.size, 0, 0, len(payload), 0)
    crc = crc32c(payload, crc32c(head[:_CRC_OFFSET]))
    return head[:_CRC_OFFSET] + crc.to_bytes(4, "little") + payload


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Return the manifest; NotALogError, FormatVersionError or CorruptionError where it is not one."""
    if data[: len(MANIFEST_MAGIC)] != MANIFEST_MAGIC:
        raise NotALogError(path, "its manifest does not begin with walkit's magic")
    if len(data) < MANIFEST_HEADER.size:
        raise _damaged("is cut short", MANIFEST_HEADER.size, len(data))
    _, version, header_bytes, critical, _optional, length, crc = MANIFEST_HEADER.unpack_from(data)
    if len(data) > MANIFEST_BYTES_MAX:
        raise _damaged("is over the limit", f"at most {MANIFEST_BYTES_MAX} bytes", len(data))
    if len(data) != MANIFEST_HEADER.size + length:
        raise _damaged("has another length than it says", MANIFEST_HEADER.size + length, len(data))
    found = crc32c(data[MANIFEST_HEADER.size :], crc32c(data[:_CRC_OFFSET]))
    if found != crc:
        raise _damaged("has a wrong checksum", f"{crc:#010x}", f"{found:#010x}")
    if version != MANIFEST_VERSION:
        raise FormatVersionError(f"the manifest of {path}", found=version, supported=MANIFEST_VERSION)
    refuse_newer(f"the manifest of {path}", FORMAT_VERSION, header_bytes, MANIFEST_HEADER.size, critical)
    try:
        return _from_plain(json.loads(data[MANIFEST_HEADER.size :]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(f"cannot be understood ({error})", "the fields of format 0", "others") from error


T = TypeVar("T")
_INT_MAX = (1 << 64) - 1


def _from_plain(plain: dict[str, Any]) -> Manifest:
    parts = {
        "lineage": tuple(_checked(EpochRecord, e) for e in plain["lineage"]),
        "segments": tuple(_checked(SegmentRecord, s) for s in plain["segments"]),
        "end": _checked(LogEnd, plain["end"]),
        "holes": tuple(_checked(HoleRecord, h) for h in plain["holes"]),
        "lost": tuple(_checked(LostRecord, g) for g in plain["lost"]),
    }
    manifest = _checked(Manifest, {**plain, **parts})
    if manifest.ack_order not in ("append", "completion"):
        raise ValueError(f"ack_order is {manifest.ack_order!r}")
    position = 0
    for gap in manifest.gaps:
        if not position <= gap.start_position < gap.end_position or gap.lsns < 0 or not gap.first_lsn:
            what = "a hole" if isinstance(gap, HoleRecord) else "a lost range"
            raise ValueError(
                f"{what} from position {gap.start_position} to {gap.end_position} cannot be there"
            )
        position = gap.end_position
    _check_numbers(manifest)
    for what, numbers in (
        ("segment", [s.number for s in manifest.segments]),
        ("epoch", [e.number for e in manifest.lineage]),
    ):
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"a number of a {what} is given twice")
    return manifest


def _check_numbers(manifest: Manifest) -> None:
    """Raise ValueError where the numbers of segments and end are beyond 63 bits, or cannot be of one log."""
    end = manifest.end
    for s in manifest.sealed:
        framed = s.start_position < s.end_position and 0 < s.first_lsn <= s.last_lsn + 1
        if not framed or s.end_position > end.position or s.last_lsn > end.last_lsn:
            raise ValueError(f"segment {s.number} is sealed without a frame, at LSN 0 or after the log's end")
    sizes = [end.position, *(s.reserved_bytes for s in manifest.segments)]
    if max(sizes) > POSITION_MAX or end.last_lsn > LSN_MAX:
        raise ValueError("a position, an LSN or a size is beyond 63 bits")


def _checked(cls: type[T], plain: Any) -> T:
    """Return a `cls` of exactly these fields; KeyError, TypeError or ValueError where one is not as it should be."""
    if not isinstance(plain, dict):
        raise TypeError(f"a {type(plain).__name__} is where the fields of a {cls.__name__} belong")
    for name, wanted in _plain_types(cls):  # type: ignore[arg-type]  # a class is hashable
        value = plain[name]
        if wanted is None:
            continue
        if type(value) is not wanted or (wanted is int and not 0 <= value <= _INT_MAX):
            raise TypeError(f"{name} is a {type(value).__name__}, or a number that is not in 64 bits")
    if "state" in plain:
        plain = {**plain, "state": SegmentState(plain["state"])}
    return cls(**plain)


@cache
def _plain_types(cls: type[Any]) -> tuple[tuple[str, type[Any] | None], ...]:
    """Return the fields of a class of the manifest and what JSON gives for each; None where others look at it.

    Kept: a manifest has thousands of segments, and every reader decodes it.
    """
    plain = {"int": int, "str": str, "Mapping[str, Any]": dict}
    return tuple((f.name, plain.get(str(f.type))) for f in fields(cls))


def _damaged(what: str, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"the manifest {what}: expected {expected}, found {found}. The log was not opened and nothing was changed",
        segment=MANIFEST_NAME,
        expected=expected,
        found=found,
    )
