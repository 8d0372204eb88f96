"""A log that refuses at its capacity, in place of dropping its oldest records (`Retention.at_capacity`).

It is looked at when a segment is full and the next one is begun: a frame that fits the segment in use costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from walkit.commit.place import FramePlace
from walkit.config import Retention
from walkit.errors import LogFullError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.log.retention import enforce

if TYPE_CHECKING:
    from walkit.log.engine import LogEngine


class BoundedPlace:
    """The segments of a log, of which the next one is begun only where it fits the capacity. A FramePlace."""

    def __init__(self, engine: LogEngine) -> None:
        self._engine = engine
        self._refusing = self._retaining = False
        segments = engine.segments
        self.admit, self.write, self.passed = segments.admit, segments.write, segments.passed
        self.sync, self.publish = segments.sync, segments.publish

    def begin_segment(self, *, position: int, first_lsn: int, chain: int) -> int:
        """See FramePlace. LogFullError (reason "retention") where it does not fit; nothing has changed then."""
        self._require_room()
        return self._engine.segments.begin_segment(position=position, first_lsn=first_lsn, chain=chain)

    def _require_room(self) -> None:
        options = self._engine.options
        limit, size = options.retention.bytes_max, options.segment_bytes
        assert limit is not None
        used = used_bytes(self._engine)
        if used + size <= limit:
            self._refusing = False
            return
        self._retain()
        location = self._engine.storage.location
        if not self._refusing:  # told once, and again after there was room
            self._refusing = True
            self._engine.events.emit("walkit.retention.refuse", location=location, bytes=used, limit=limit)
        raise LogFullError(
            f"the log at {location} is at its capacity: its files have {used:,} bytes, a new segment needs {size:,} "
            f"and bytes_max is {limit:,}; nothing was written. Trim what is not needed any more and append again",
            reason="retention",
            limit_bytes=limit,
        )

    def _retain(self) -> None:
        """Let the other limits be looked at, on the upkeep thread: no seal comes that would make them be."""
        engine = self._engine
        if self._retaining or not drops_by_itself(engine.options.retention):
            return
        self._retaining = True

        def retain() -> None:
            try:
                enforce(engine)
            finally:
                self._retaining = False

        engine.segments.upkeep.submit("retain", retain)


def drops_by_itself(limits: Retention) -> bool:
    """Return whether anything may go without being asked for."""
    return limits.age_s is not None or limits.records_max is not None or limits.below_holds


def place_of(engine: LogEngine) -> FramePlace:
    """Return where the frames of a log go: its segments, bounded where its options say so."""
    if engine.options.retention.at_capacity == "refuse":
        return BoundedPlace(engine)
    return engine.segments


def used_bytes(engine: LogEngine) -> int:
    """Return the bytes of the segment files, headers included, as far as they are used."""
    # The open segments first: one that is sealed meanwhile is in the manifest then, and not in neither.
    open_segments = list(engine.segments.open_segments)
    sealed = engine.store.current.sealed
    numbers = {s.number for s in sealed}
    in_use = [s for s in open_segments if s.number not in numbers and s.header is not None]
    return sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in sealed) + sum(
        s.header.offset_of(s.end_position) for s in in_use if s.header is not None
    )
