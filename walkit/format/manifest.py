"""The manifest: which segments are the log, in which state (FORMAT.md F-9, F-12).

`walkit.format.manifest_file` is the codec of its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from walkit.format.layout import SegmentFlag
from walkit.format.segment import SegmentHeader, segment_name

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
    """What the log is. `generation` grows with each change."""

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


def segment_order(record: SegmentRecord) -> tuple[bool, int, int]:
    """Sealed segments by position, then unsealed ones by number."""
    return record.state is not SegmentState.SEALED, record.start_position, record.number
