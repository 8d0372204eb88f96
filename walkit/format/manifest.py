"""The manifest: which segments are the log, in which state (FORMAT.md F-9, F-12), and its file. Pure.

The file is a base, and edits after it in space that was zeroed with it. The base is the whole manifest as JSON, so that
a person can read it with `head -1`. An edit is the difference of two manifests. Edits begin at multiples of 64 bytes,
so that an intact one is found after a damaged one, and promises it. Every field of the JSON is checked (F-12.2).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

import numpy as np

from walkit.errors import CorruptionError, FormatVersionError, NotALogError
from walkit.format.checksum import crc32c
from walkit.format.layout import (
    EDIT_ALIGNMENT,
    EDIT_HEADER,
    FORMAT_DRAFT,
    FORMAT_VERSION,
    LSN_MAX,
    MANIFEST_BYTES_MAX,
    MANIFEST_HEADER,
    MANIFEST_MAGIC,
    POSITION_MAX,
    SegmentFlag,
    align_up,
)
from walkit.format.segment import SegmentHeader, refuse_newer, segment_name

MANIFEST_NAME = "manifest"


class SegmentState(Enum):
    """State of a segment; prepared: made ahead, maybe in use (see its header); sealed: its end is in the manifest."""

    PREPARED = "prepared"
    SEALED = "sealed"


class SegmentRecord(NamedTuple):
    """One segment of the log. The fields after `state` are known once it is sealed.

    A tuple, since there are thousands: each opening makes all of them.
    """

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
    """The size that the file of a prepared one had on stable storage before it was named; 0 if it is not known."""

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
    """One epoch of the lineage: its identity, and the LSN, position and chain of its start."""

    number: int
    id: int
    first_lsn: int
    position: int
    chain: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HoleRecord:
    """Frames that never came to the disk while later ones did: positions [start_position, end_position).

    None of them was acknowledged, so nothing is lost, and their LSNs, `first_lsn` to `last_lsn`, are not given again;
    `last_lsn` is `first_lsn - 1` if they were marker frames. The frame after the hole follows `chain`.
    """

    start_position: int
    end_position: int
    first_lsn: int
    last_lsn: int
    chain: int

    @property
    def lsns(self) -> int:
        """The number of LSNs of the missing records."""
        return self.last_lsn - self.first_lsn + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LostRecord:
    """A range that policy "salvage" gave up: positions [start_position, end_position), whose frames cannot be read.

    Records may have been acknowledged there: LSN `first_lsn` to `last_lsn`, which are not given again (`last_lsn` is
    `first_lsn - 1` if only marker frames are lost). The frame after the range follows `chain`. `segment` is the file
    that held it, `reason` the damage found there.
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
        """The number of LSNs of the lost records."""
        return self.last_lsn - self.first_lsn + 1


Gap = HoleRecord | LostRecord
"""Positions without frames that a reader skips, as the manifest explains them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEnd:
    """The end of the sealed log, which the next frame must follow. Survives the deletion of every segment."""

    last_lsn: int = 0
    position: int = 0
    chain: int = 0


def prepared_record(number: int, epoch: int, reserved_bytes: int) -> SegmentRecord:
    """Return the manifest's record of a new segment, with this size on stable storage."""
    return SegmentRecord(
        number=number, state=SegmentState.PREPARED, epoch=epoch, reserved_bytes=reserved_bytes
    )


def sealed_record(header: SegmentHeader, end: LogEnd, *, records: int, frames: int) -> SegmentRecord:
    """Return the manifest's record of a segment with this header that is sealed at `end`."""
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
    """The description of a log. `generation` grows with each change."""

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
        sealed = SegmentState.SEALED  # looked up once: there are thousands
        return tuple([s for s in self.segments if s.state is sealed])

    @property
    def unsealed(self) -> tuple[SegmentRecord, ...]:
        """The segments that may be in use, in the order of their numbers."""
        return tuple(s for s in self.segments if s.state is SegmentState.PREPARED)

    @property
    def first_lsn(self) -> int:
        """Oldest LSN in sealed segments or, without any, the next one after the end."""
        return self.sealed[0].first_lsn if self.sealed else self.end.last_lsn + 1

    @property
    def vouched_lsn(self) -> int:
        """A trim or a checkpoint proves that the log was on stable storage up to here, whatever its segments hold."""
        return max(self.low_watermark, self.checkpoint_lsn)

    @property
    def complete_from_lsn(self) -> int:
        """From here on no record is missing: neither dropped, nor superseded and compacted away, nor lost.

        The LSNs of a hole do not count as missing records: none was ever acknowledged.
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

        A lost range may reach to the end of its segment, which keeps its place.
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
        """Return the end of the holes and lost ranges that begin at `position`; `position` without any."""
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
        """Return the sealed segment with the original frame ending at `end_position`; None if compacted or absent."""
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


def segment_order(record: SegmentRecord) -> tuple[bool, int, int]:
    """Sealed segments by position, then unsealed ones by number."""
    return record.state is not SegmentState.SEALED, record.start_position, record.number


TUPLES: Final[dict[str, type[Any]]] = {
    "lineage": EpochRecord,
    "holes": HoleRecord,
    "lost": LostRecord,
}


def plain_of(record: Any) -> dict[str, Any]:
    """Return the values of a record by the names of its fields."""
    return {name: getattr(record, name) for name, _ in types_of(type(record))}


def row_of(record: Any) -> list[Any]:
    """Return the values of a record in the order of its fields, as JSON has them."""
    values = [getattr(record, name) for name, _ in types_of(type(record))]
    return [value.value if isinstance(value, SegmentState) else value for value in values]


T = TypeVar("T")
_INT_MAX: Final = (1 << 64) - 1


def from_plain(plain: dict[str, Any]) -> Manifest:
    """Return the manifest of the JSON of a base; KeyError, TypeError or ValueError if it is invalid."""
    parts: dict[str, Any] = {name: tuple(_checked(c, e) for e in plain[name]) for name, c in TUPLES.items()}
    names = [name for name, _ in types_of(SegmentRecord)]
    if {*map(len, plain["segments"])} - {len(names)}:
        raise TypeError("a segment has other fields")
    parts["segments"] = segments_of(map(itemgetter(*names), plain["segments"]))
    return checked_whole(_checked(Manifest, {**plain, **parts, "end": _checked(LogEnd, plain["end"])}))


def checked_whole(manifest: Manifest) -> Manifest:
    """Return the manifest; ValueError if its parts cannot be of one log."""
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
    check_numbers(manifest.segments, manifest.end)
    for what, numbers in (
        ("segment", [s.number for s in manifest.segments]),
        ("epoch", [e.number for e in manifest.lineage]),
    ):
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"a number of a {what} is given twice")
    return manifest


def check_numbers(segments: Iterable[SegmentRecord], end: LogEnd) -> None:
    """Raise ValueError if numbers of segments and end are beyond 63 bits, or cannot be of one log."""
    sealed = SegmentState.SEALED
    for s in segments:
        if s.reserved_bytes > POSITION_MAX:
            raise ValueError("a position, an LSN or a size is beyond 63 bits")
        if s.state is not sealed:
            continue
        framed = s.start_position < s.end_position and 0 < s.first_lsn <= s.last_lsn + 1
        if not framed or s.end_position > end.position or s.last_lsn > end.last_lsn:
            raise ValueError(f"segment {s.number} is sealed without a frame, at LSN 0 or after the log's end")
    if end.position > POSITION_MAX or end.last_lsn > LSN_MAX:
        raise ValueError("a position, an LSN or a size is beyond 63 bits")


def segments_of(rows: Iterable[Sequence[Any]]) -> tuple[SegmentRecord, ...]:
    """Return segments of rows of values, in the order of their fields; TypeError or ValueError as `of_row`.

    Checked by columns: there are thousands of rows.
    """
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    if not columns:
        return ()
    types = types_of(SegmentRecord)
    for i, ((name, wanted), column) in enumerate(zip(types, columns, strict=True)):
        if name == "state":
            states = {value: SegmentState(value) for value in {*column}}
            columns[i] = [states[value] for value in column]
        elif {*map(type, column)} != {wanted} or min(column) < 0 or max(column) > _INT_MAX:
            for value in column:
                check_value(name, wanted, value)
    return tuple(map(SegmentRecord._make, zip(*columns, strict=True)))


def of_row(cls: type[T], row: Any) -> T:
    """Return a `cls` of these values, in the order of its fields."""
    names = [name for name, _ in types_of(cls)]
    return _checked(cls, dict(zip(names, row, strict=True)))


def _checked(cls: type[T], plain: Any) -> T:
    """Return a `cls` of exactly these fields; KeyError, TypeError or ValueError if one is not as it should be."""
    if not isinstance(plain, dict):
        raise TypeError(f"a {type(plain).__name__} is where the fields of a {cls.__name__} belong")
    for name, wanted in types_of(cls):
        check_value(name, wanted, plain[name])
    return cls(**plain)


def check_value(name: str, wanted: type[Any] | None, value: Any) -> None:
    """Raise TypeError for a value of another type, or for a number that 64 bits do not hold."""
    if wanted is None:
        return
    if type(value) is not wanted or (wanted is int and not 0 <= value <= _INT_MAX):
        raise TypeError(f"{name} is a {type(value).__name__}, or a number that is not in 64 bits")


def types_of(cls: type[Any]) -> tuple[tuple[str, type[Any] | None], ...]:
    """Return the fields of a class of the manifest with the JSON type of each; None if others look at it."""
    return _plain_types(cls)  # type: ignore[arg-type]  # a class is hashable


@cache
def _plain_types(cls: type[Any]) -> tuple[tuple[str, type[Any] | None], ...]:
    plain: Mapping[Any, type[Any]] = {int: int, str: str, Mapping[str, Any]: dict}
    return tuple((name, plain.get(kind)) for name, kind in get_type_hints(cls).items())


_CRC_OFFSET: Final = 24
_CHECKED_FROM: Final = _CRC_OFFSET + 4
_EDIT_CRC_OFFSET: Final = EDIT_HEADER.size - 4
_SCALARS: Final = (
    *("next_segment", "low_watermark", "checkpoint_lsn", "exact_from_lsn", "tombstones_from_lsn", "extra"),
)
_FIXED: Final = ("log_id", "created_us", "ack_order")


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A manifest, and the state of the file that holds it."""

    manifest: Manifest
    base_crc: int
    crc: int
    """Checksum of the newest edit, or of the base before the first edit."""
    offset: int
    """Where the next edit begins."""
    end: int
    """Where the space for edits ends, and the file."""
    torn_until: int = 0
    """Where the last nonzero byte of an edit that was never finished ends; 0 without such an edit."""
    data: bytes = field(default=b"", compare=False, repr=False)
    """The bytes of the file, if it was read."""


class _Edit(NamedTuple):
    previous: int
    generation: int
    crc: int
    payload: bytes


# -- writing


def encode_base(manifest: Manifest, edit_bytes: int = 0) -> bytes:
    """Return a file of this manifest, with zeroed space for edits.

    ValueError or TypeError if the base is too large, `extra` is not JSON, or if `read_manifest` would refuse it: a
    manifest that cannot be read again would take the whole log with it.
    """
    plain = plain_of(manifest)
    for name in (*TUPLES, "segments"):
        plain[name] = [plain_of(record) for record in plain[name]]
    for segment in plain["segments"]:
        segment["state"] = segment["state"].value
    plain["end"] = plain_of(manifest.end)
    from_plain(plain)
    text = _json(plain)
    size = align_up(MANIFEST_HEADER.size + len(text) + 1, EDIT_ALIGNMENT)
    if size > MANIFEST_BYTES_MAX:
        raise ValueError(f"a manifest of {size:,} bytes is over the limit of {MANIFEST_BYTES_MAX:,}")
    payload = text.ljust(size - MANIFEST_HEADER.size - 1) + b"\n"
    head = MANIFEST_HEADER.pack(
        *(MANIFEST_MAGIC, FORMAT_VERSION, MANIFEST_HEADER.size, 0, 0, len(payload), 0),
        *(FORMAT_DRAFT, align_up(edit_bytes, EDIT_ALIGNMENT)),
    )
    crc = crc32c(payload, crc32c(head[_CHECKED_FROM:], crc32c(head[:_CRC_OFFSET])))
    whole = (head[:_CRC_OFFSET], crc.to_bytes(4, "little"), head[_CHECKED_FROM:], payload)
    return b"".join((*whole, bytes(align_up(edit_bytes, EDIT_ALIGNMENT))))


def new_file(manifest: Manifest, data: bytes) -> ManifestFile:
    """Return the file that `encode_base` made of a manifest."""
    *_, crc, _draft, edit_bytes = MANIFEST_HEADER.unpack_from(data)
    return ManifestFile(manifest, crc, crc, len(data) - edit_bytes, len(data))


def encode_edit(file: ManifestFile, after: Manifest) -> tuple[bytes, ManifestFile] | None:
    """Return an edit that makes the manifest of a file this one, and the file with it.

    None if no edit can say the difference, or if the file has no space for it: then a new base can. ValueError or
    TypeError if `read_manifest` would refuse it.
    """
    plain = _difference(file.manifest, after)
    if plain is None:
        return None
    payload = _json(plain)
    size = align_up(EDIT_HEADER.size + len(payload), EDIT_ALIGNMENT)
    if file.offset + size > file.end:
        return None
    head = EDIT_HEADER.pack(len(payload), file.crc, after.generation, 0)[:_EDIT_CRC_OFFSET]
    crc = crc32c(payload, crc32c(head, file.base_crc))
    data = (head + crc.to_bytes(4, "little") + payload).ljust(size, b"\0")
    return data, replace(file, manifest=after, crc=crc, offset=file.offset + size, data=b"")


def _difference(before: Manifest, after: Manifest) -> dict[str, Any] | None:
    if any(getattr(before, name) != getattr(after, name) for name in _FIXED):
        return None
    known = len(before.lineage)
    if after.lineage[:known] != before.lineage or after.generation <= before.generation:
        return None
    plain: dict[str, Any] = {
        name: value for name in _SCALARS if (value := getattr(after, name)) != getattr(before, name)
    }
    if len(after.lineage) > known:
        plain["epochs"] = [row_of(epoch) for epoch in after.lineage[known:]]
    if after.end != before.end:
        plain["end"] = row_of(after.end)
    for name in ("holes", "lost"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            gone = len(old) - len(new)
            plain[name] = gone if gone > 0 and old[gone:] == new else [row_of(gap) for gap in new]
    old_part, new_part = _changed_part(before.segments, after.segments)
    olds = {segment.number: segment for segment in old_part}
    put = [segment for segment in new_part if olds.pop(segment.number, None) != segment]
    if olds:
        plain["drop"] = _ranges(olds)
    if put:
        plain["put"] = [row_of(segment) for segment in put]
        check_numbers(put, after.end)
    return plain


def _changed_part(
    before: tuple[SegmentRecord, ...], after: tuple[SegmentRecord, ...]
) -> tuple[tuple[SegmentRecord, ...], tuple[SegmentRecord, ...]]:
    """Return both without their common front and end, or nearly all of it.

    Slices are compared, which costs little for records that are the same objects: no loop over thousands of them.
    """
    if before is after:
        return (), ()
    shorter = min(len(before), len(after))
    front = back = 0
    # A rotation changes one of the last two: no second look at thousands of records.
    ending = range(max(shorter - 2, 0), shorter)
    guess = next((shorter - i for i in ending if before[i] is not after[i]), 0)
    for left_out in (guess, *_steps(shorter)):
        front = shorter - left_out
        if before[:front] == after[:front]:
            break
    for left_out in _steps(shorter - front):
        back = shorter - front - left_out
        if before[len(before) - back :] == after[len(after) - back :]:
            break
    return before[front : len(before) - back], after[front : len(after) - back]


def _steps(size: int) -> Iterable[int]:
    """Yield how much of `size` to leave out: nothing, then more and more, and all of it."""
    left_out = 0
    while left_out < size:
        yield left_out
        left_out = 2 * left_out + 1
    yield size


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return the numbers as ranges, first and last, in ascending order."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _json(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


# -- reading


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Return the manifest of a file; see `read_manifest`."""
    return read_manifest(data, path).manifest


def read_manifest(data: bytes, path: str) -> ManifestFile:
    """Return a file's manifest: its base with each intact edit. Bytes after them are an edit that was never finished.

    CorruptionError also for an intact edit after a damaged one: it promises those before it. NotALogError or
    FormatVersionError for a file that is something else.
    """
    plain, crc, start, end = _read_base(data, path)
    try:
        manifest = from_plain(plain)
        edits: list[dict[str, Any]] = []
        base_crc, offset, generation = crc, start, manifest.generation
        while (edit := _edit_at(data, offset, end, base_crc)) is not None:
            if edit.previous != crc or edit.generation <= generation:
                break
            edits.append(json.loads(edit.payload))
            crc, generation = edit.crc, edit.generation
            offset = align_up(offset + EDIT_HEADER.size + len(edit.payload), EDIT_ALIGNMENT)
        if edits:
            manifest = _with_edits(manifest, edits, generation)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(f"cannot be understood ({error})", "the fields of format 0", "others") from error
    is_torn = np.frombuffer(data, np.uint8)[offset:].max(initial=0)  # a hundredth of the time of rstrip
    torn_until = offset + len(data[offset:].rstrip(b"\0")) if is_torn else offset
    for probed in range(offset, torn_until, EDIT_ALIGNMENT):
        if _edit_at(data, probed, end, base_crc) is not None:
            raise _damaged(
                f"is damaged at byte {offset}, before an intact edit",
                f"the edit after generation {generation}",
                f"an edit at byte {probed}",
            )
    return ManifestFile(manifest, base_crc, crc, offset, end, torn_until if torn_until > offset else 0, data)


def _read_base(data: bytes, path: str) -> tuple[dict[str, Any], int, int, int]:
    """Return the JSON of the base, its checksum, and where the space for edits begins and ends."""
    if data[: len(MANIFEST_MAGIC)] != MANIFEST_MAGIC:
        raise NotALogError(path, "its manifest has another magic than walkit's")
    if len(data) < MANIFEST_HEADER.size:
        raise _damaged("is cut short", MANIFEST_HEADER.size, len(data))
    _, version, header_bytes, critical, _optional, length, crc, draft, edit_bytes = (
        MANIFEST_HEADER.unpack_from(data)
    )
    start = header_bytes + length
    if start > min(len(data), MANIFEST_BYTES_MAX):
        raise _damaged("has another length than it says", start, len(data))
    with memoryview(data) as view:
        found = crc32c(view[_CHECKED_FROM:start], crc32c(view[:_CRC_OFFSET]))
    if found != crc:
        raise _damaged("has a wrong checksum", f"{crc:#010x}", f"{found:#010x}")
    where = f"the manifest of {path}"
    refuse_newer(where, version, header_bytes, MANIFEST_HEADER.size, critical)
    if draft != FORMAT_DRAFT:
        raise FormatVersionError(where, found=f"0, draft {draft}", supported=f"0, draft {FORMAT_DRAFT}")
    if len(data) != start + edit_bytes or (edit_bytes and start % EDIT_ALIGNMENT):
        raise _damaged("has another length than it says", start + edit_bytes, len(data))
    try:
        return json.loads(data[header_bytes:start]), crc, start, len(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"cannot be understood ({error})", "JSON", "something else") from error


def _edit_at(data: bytes, offset: int, end: int, base_crc: int) -> _Edit | None:
    """Return the intact edit that begins there, or None."""
    if offset + EDIT_HEADER.size > end:
        return None
    length, previous, generation, crc = EDIT_HEADER.unpack_from(data, offset)
    start = offset + EDIT_HEADER.size
    if not length or start + length > end:
        return None
    payload = data[start : start + length]
    if crc32c(payload, crc32c(data[offset : offset + _EDIT_CRC_OFFSET], base_crc)) != crc:
        return None
    if any(data[start + length : align_up(start + length, EDIT_ALIGNMENT)]):
        return None
    return _Edit(previous, generation, crc, payload)


def _with_edits(manifest: Manifest, edits: Iterable[dict[str, Any]], generation: int) -> Manifest:
    """Return a manifest after these edits: each is applied as it is, and the result is checked once."""
    values: dict[str, Any] = {"generation": generation, "lineage": manifest.lineage}
    gaps: dict[str, Any] = {"holes": manifest.holes, "lost": manifest.lost}
    segments = {segment.number: segment for segment in manifest.segments}
    types = dict(types_of(Manifest))
    for edit in edits:
        if not isinstance(edit, dict):
            raise TypeError("an edit is JSON of another type")
        for name, value in edit.items():
            if name == "drop":
                for first, last in value:
                    for number in range(first, min(last, first + len(segments)) + 1):
                        del segments[number]
            elif name == "put":
                segments.update((segment.number, segment) for segment in segments_of(value))
            elif name == "epochs":
                values["lineage"] += tuple(of_row(EpochRecord, row) for row in value)
            elif name == "end":
                values["end"] = of_row(LogEnd, value)
            elif name in gaps:
                dropped = type(value) is int and 0 < value <= len(gaps[name])
                gaps[name] = (
                    gaps[name][value:] if dropped else tuple(of_row(TUPLES[name], row) for row in value)
                )
            elif name in _SCALARS:
                check_value(name, types[name], value)
                values[name] = value
            else:
                raise ValueError(f"an edit with the field {name!r}")
    ordered = tuple(sorted(segments.values(), key=segment_order))
    return checked_whole(replace(manifest, **values, **gaps, segments=ordered))


def _damaged(what: str, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"the manifest {what}: expected {expected}, found {found}. The log was not opened and nothing was changed",
        segment=MANIFEST_NAME,
        expected=expected,
        found=found,
    )
