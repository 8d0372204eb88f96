"""A log that refuses at its capacity, in place of dropping its oldest records (`Retention.at_capacity`).

It is looked at when a segment is full and the next one is begun: a frame that fits the segment in use costs nothing.
"""

from __future__ import annotations

from walkit.config import LogOptions, Retention
from walkit.errors import LogFullError
from walkit.events import EventSink
from walkit.log.contents import LogContents
from walkit.log.retention import Retainer
from walkit.segments.segment_set import SegmentSet


class BoundedSink:
    """The segments of a log, of which the next one is begun only where it fits the capacity. A FrameSink."""

    def __init__(
        self,
        segments: SegmentSet,
        contents: LogContents,
        options: LogOptions,
        retention: Retainer,
        events: EventSink,
    ) -> None:
        self._segments = segments
        self._contents = contents
        self._options = options
        self._retention = retention
        self._events = events
        self._refusing = self._retaining = False
        self.assign, self.write, self.passed = segments.assign, segments.write, segments.passed
        self.sync, self.publish = segments.sync, segments.publish

    def begin_segment(self, *, position: int, first_lsn: int, chain: int) -> int:
        """See FrameSink. LogFullError (reason "retention") where it does not fit; nothing has changed then."""
        self._require_room()
        return self._segments.begin_segment(position=position, first_lsn=first_lsn, chain=chain)

    def _require_room(self) -> None:
        limit, size = self._options.retention.bytes_max, self._options.segment_bytes
        assert limit is not None
        used = self._contents.used_bytes()
        if used + size <= limit:
            self._refusing = False
            return
        self._retain()
        location = self._segments.storage.location
        if not self._refusing:  # reported once, and again after there was room
            self._refusing = True
            self._events.emit("walkit.retention.refuse", location=location, bytes=used, limit=limit)
        raise LogFullError(
            f"the log at {location} is at its capacity: its files have {used:,} bytes, a new segment needs {size:,} "
            f"and bytes_max is {limit:,}; nothing was written. Trim what is not needed any more and append again",
            reason="retention",
            limit_bytes=limit,
        )

    def _retain(self) -> None:
        """Let the other limits be looked at, on the maintenance thread: no seal comes that would make them be."""
        if self._retaining or not drops_by_itself(self._options.retention):
            return
        self._retaining = True

        def retain() -> None:
            try:
                self._retention.enforce_beside_frames()
            finally:
                self._retaining = False

        self._segments.maintenance.submit("retain", retain)


def drops_by_itself(limits: Retention) -> bool:
    """Return whether anything may go without being asked for."""
    return limits.age_s is not None or limits.records_max is not None or limits.below_claims
