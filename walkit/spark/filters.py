"""Conditions on the LSN, taken over from Spark: which of its filters a log can apply exactly, and to what.

Spark offers its AND-ed conditions one by one (an OR never) and applies those again that are handed back. So a
condition is taken only where a log applies it to the row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from walkit.read.ranges import FrameRange

COLUMN = ("lsn",)
LSN_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LsnFilter:
    """The LSNs that are wanted: from `first_lsn` to `last_lsn`, inclusive, and of these only those in `among`.

    None is no condition. Picklable.
    """

    first_lsn: int | None = None
    last_lsn: int | None = None
    among: tuple[int, ...] | None = None
    """In ascending order."""

    def meets(self, frames: FrameRange) -> bool:
        """Whether a range of frames may hold a record that is wanted."""
        return self.overlaps(frames.first_lsn, frames.last_lsn)

    def overlaps(self, first: int, last: int) -> bool:
        """Whether an LSN of [first, last] may be wanted."""
        first = max(first, self.first_lsn or 0)
        last = last if self.last_lsn is None else min(last, self.last_lsn)
        if self.among is None:
            return first <= last
        found = bisect_left(self.among, first)
        return found < len(self.among) and self.among[found] <= last

    def bounds(self) -> tuple[int | None, int | None]:
        """Return the first and the last LSN that can be wanted; (1, 0) where none can."""
        if self.among is None:
            return self.first_lsn, self.last_lsn
        if not self.among:
            return 1, 0
        last = self.among[-1] if self.last_lsn is None else min(self.among[-1], self.last_lsn)
        return max(self.among[0], self.first_lsn or 0), last

    def pick(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch whose LSN is in `among`; what the bounds leave out is not looked for."""
        if self.among is None:
            return batch
        return batch.filter(pc.is_in(batch.column("lsn"), pa.array(self.among, pa.int64())))

    def pick_within(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch whose LSN is wanted, in any order."""
        first, last = self.bounds()
        lsns = batch.column("lsn")
        for compare, bound in ((pc.greater_equal, first), (pc.less_equal, last)):
            if bound is not None:
                # A condition of Spark's may be any number of 64 bits, and its bound one off.
                batch = batch.filter(compare(lsns, max(0, min(bound, LSN_MAX))))
                lsns = batch.column("lsn")
        return self.pick(batch)

    def and_from(self, lsn: int) -> LsnFilter:
        """Return this and `lsn >= ...`."""
        return replace(self, first_lsn=max(lsn, self.first_lsn or 0))

    def and_to(self, lsn: int) -> LsnFilter:
        """Return this and `lsn <= ...`."""
        return replace(self, last_lsn=lsn if self.last_lsn is None else min(lsn, self.last_lsn))

    def and_among(self, lsns: Iterable[int]) -> LsnFilter:
        """Return this and `lsn in (...)`."""
        wanted = set(lsns) if self.among is None else set(lsns).intersection(self.among)
        return replace(self, among=tuple(sorted(wanted)))


def take_filters(filters: Iterable[Filter], wanted: LsnFilter) -> tuple[LsnFilter, list[Filter]]:
    """Return `wanted` with every condition that a log applies exactly, and the filters that Spark has to apply."""
    handed_back: list[Filter] = []
    for given in filters:
        narrowed = _and(wanted, given)
        if narrowed is None:
            handed_back.append(given)
        else:
            wanted = narrowed
    return wanted, handed_back


def _and(wanted: LsnFilter, given: Filter) -> LsnFilter | None:
    """Return `wanted` and the filter; None for one that is not about the LSN alone, or compares it to no number."""
    if getattr(given, "attribute", None) != COLUMN:
        return None
    if isinstance(given, IsNotNull):
        return wanted  # no record is without an LSN
    value = getattr(given, "value", None)
    if isinstance(given, In):
        # A null among the values is Spark's business: it is neither found nor not found.
        whole = all(type(item) is int for item in given.value)
        return wanted.and_among(given.value) if whole else None
    if type(value) is not int:
        return None
    match given:
        case EqualTo() | EqualNullSafe():
            return wanted.and_from(value).and_to(value)
        case GreaterThan():
            return wanted.and_from(value + 1)
        case GreaterThanOrEqual():
            return wanted.and_from(value)
        case LessThan():
            return wanted.and_to(value - 1)
        case LessThanOrEqual():
            return wanted.and_to(value)
    return None
