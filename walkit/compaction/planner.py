"""Which segments are rewritten together. Facts in, groups out; and the sizes of a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from walkit.format.layout import IN_BULKS, SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import SegmentRecord

Group = tuple[SegmentRecord, ...]


def frame_bytes(records: Sequence[SegmentRecord]) -> int:
    """Return the bytes of the frames of segments."""
    return sum(s.size_bytes for s in records)


def file_bytes(records: Sequence[SegmentRecord]) -> int:
    """Return the bytes of segment files."""
    return sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in records)


@dataclass(frozen=True, slots=True)
class SegmentLoad:
    """A sealed segment, and how many of its records need not be kept."""

    record: SegmentRecord
    droppable: int

    @property
    def waste(self) -> float:
        """Share of its records that need not be kept, 0 to 1: about that of its bytes."""
        return self.droppable / max(self.record.records, 1)

    def is_worth(self, waste_ratio: float) -> bool:
        """Say whether enough of it can be dropped to rewrite it for that; bulks become a file anyway."""
        return bool(self.record.flags & IN_BULKS) or (self.droppable > 0 and self.waste >= waste_ratio)

    @property
    def bytes_left(self) -> float:
        """About how many bytes of frames its other records take."""
        kept = self.record.records - self.droppable
        return self.record.size_bytes * kept / max(self.record.records, 1)


def candidates(sealed: Sequence[SegmentRecord], exact_lsn: int) -> tuple[SegmentRecord, ...]:
    """Return the oldest segments, up to those that end at or below `exact_lsn`; never the newest sealed one.

    They are a prefix of the log, so the rest, which a claim needs, is never among them. The newest
    one stays as it was written: the durable slot may name a frame in it.
    """
    return tuple(takewhile(lambda record: record.last_lsn <= exact_lsn, sealed[:-1]))


def plan_groups(
    loads: Iterable[SegmentLoad], goal_bytes: int, waste_ratio: float = 0.0
) -> list[tuple[SegmentRecord, ...]]:
    """Return the groups to rewrite, oldest first, each into one segment.

    A segment is left alone unless enough of it can be dropped (`waste_ratio`, 0 for anything at all), or it has been
    compacted before and has such a neighbour: a frame that is rewritten is no longer the one that replicas have.
    A group has one epoch, and leaves about `goal_bytes` of frames at most, so segments keep one size.
    """
    groups: list[list[SegmentLoad]] = []
    for load in loads:
        worth_it = load.is_worth(waste_ratio)
        if not worth_it and (load.droppable or not load.record.flags & SegmentFlag.COMPACTED):
            groups.append([])
            continue
        if not groups or not _joins(groups[-1], load, goal_bytes):
            groups.append([])
        groups[-1].append(load)
    worth = [g for g in groups if len(g) > 1 or any(load.is_worth(waste_ratio) for load in g)]
    return [tuple(load.record for load in group) for group in worth]


def _joins(group: list[SegmentLoad], load: SegmentLoad, goal_bytes: int) -> bool:
    size = sum(g.bytes_left for g in group) + load.bytes_left
    return bool(group) and _kind_of(group[-1].record) == _kind_of(load.record) and size <= goal_bytes


def _kind_of(record: SegmentRecord) -> tuple[int, int]:
    return record.epoch, record.flags & IN_BULKS
