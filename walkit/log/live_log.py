"""An open log at this moment: which frames it has, and how far its life has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.read.inventory import SegmentShown
from walkit.read.view import LogView, Span, View
from walkit.segments.active_segment import OpenSegment
from walkit.segments.maintenance_worker import MaintenanceWorker
from walkit.segments.manifest_store import Manifests, ManifestStore
from walkit.segments.segment_set import PassedTime, SegmentSet
from walkit.storage.interface import Storage


class LogMarks(Protocol):
    """How far an open log has come. Safe from any thread; each value only grows while the log is open."""

    @property
    def acked_lsn(self) -> int:
        """The last LSN acknowledged, with everything before it."""

    @property
    def durable_lsn(self) -> int:
        """The last LSN on stable storage, with everything before it."""

    @property
    def written_position(self) -> int:
        """Where the frames end that can be read."""

    @property
    def durable_position(self) -> int:
        """Where the frames end that are on stable storage."""


def segments_now(
    manifest_store: Manifests, segments: Segments
) -> tuple[Manifest, list[tuple[OpenSegment, SegmentHeader]]]:
    """Return the manifest, and the open segments that it does not seal: each segment with frames once. Any thread."""
    # The open ones first: one that is sealed meanwhile is in the manifest then, and not in neither.
    open_segments = list(segments.open_segments)
    manifest = manifest_store.current
    sealed = {record.number for record in manifest.sealed}
    begun = [(s, s.header) for s in open_segments if s.header is not None and s.number not in sealed]
    return manifest, begun


class Contents(Protocol):
    """The frames of an open log, wherever they are. Safe from any thread."""

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can still be read."""

    def view(self) -> View:
        """Return all that can be read now: the written frames, acknowledged or not yet."""

    def durable_view(self) -> View:
        """Return the frames that are on stable storage now."""

    def segments(self) -> list[SegmentShown]:
        """Return the segments that are the log now, in order."""

    def used_bytes(self) -> int:
        """Return the bytes that the log takes, as far as its capacity limits them."""


class Segments(Protocol):
    """The segments of an open log, wherever they are: the calls of maintenance and closing."""

    epoch_began: LogEnd
    rotations: int
    on_seal: Callable[[], object] | None
    """Called when a segment is full."""

    @property
    def storage(self) -> Storage:
        """Where the files beside the log are."""

    @property
    def maintenance(self) -> MaintenanceWorker:
        """The thread that does upkeep."""

    @property
    def time(self) -> PassedTime:
        """The clock that segments are stamped by."""

    @property
    def open_segments(self) -> Sequence[OpenSegment]:
        """Those with frames that no manifest has yet."""

    def settle(self) -> None:
        """Have the manifest say how far the segments go that can be dropped. StorageError."""

    def close(self, *, poisoned: bool, hung: bool) -> None:
        """Seal every segment that can be sealed; nothing is written afterwards."""

    def forget(self) -> None:
        """In a forked child: the files are the parent's."""


class LogContents:
    """The frames of an open log. Safe from any thread."""

    def __init__(
        self,
        storage: Storage,
        manifest_store: ManifestStore,
        segments: SegmentSet,
        marks: LogMarks,
    ) -> None:
        self._storage = storage
        self._manifest_store = manifest_store
        self._segments = segments
        self._marks = marks

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can still be read."""
        manifest, begun = segments_now(self._manifest_store, self._segments)
        oldest = manifest.first_lsn if manifest.sealed or not begun else begun[0][1].first_lsn
        return max(oldest, manifest.low_watermark + 1)

    def view(self) -> LogView:
        """Return all that can be read now: the written frames, acknowledged or not yet."""
        return self._view_to(self._marks.written_position)

    def durable_view(self) -> LogView:
        """Return the frames that are on stable storage now."""
        return self._view_to(self._marks.durable_position)

    def _view_to(self, end_position: int) -> LogView:
        """Return the view of all frames below `end_position`, which the caller knows to be written."""
        manifest, begun = segments_now(self._manifest_store, self._segments)
        spans = [Span(s, s.end_position, s.last_lsn) for s in manifest.sealed]
        for segment, header in begun:
            record = SegmentRecord(
                number=segment.number,
                state=SegmentState.PREPARED,
                epoch=header.epoch,
                start_position=header.start_position,
                first_lsn=header.first_lsn,
                flags=int(header.flags),
            )
            spans.append(Span(record, min(segment.end_position, end_position), None))
        within = tuple(s for s in spans if s.end_position > s.record.start_position)
        return LogView(self._storage, manifest, within)

    def segments(self) -> list[SegmentShown]:
        """Return the segments that are the log now, in order."""
        manifest, begun = segments_now(self._manifest_store, self._segments)
        sealed = [
            SegmentShown(s.number, s.start_position, s.end_position, s.first_lsn, s.last_lsn, True)
            for s in manifest.sealed
        ]
        return sealed + [
            SegmentShown(s.number, header.start_position, s.end_position, header.first_lsn, s.last_lsn, False)
            for s, header in begun
        ]

    def used_bytes(self) -> int:
        """Return the bytes of the segment files, headers included, as far as they are used."""
        manifest, begun = segments_now(self._manifest_store, self._segments)
        return sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in manifest.sealed) + sum(
            header.offset_of(segment.end_position) for segment, header in begun
        )


class EndWatcher(Protocol):
    """Woken when a log ends: a WakeEvent in most cases."""

    def set(self) -> None:
        """Look again. Called on any thread; returns at once."""


class Lifetime:
    """Whether a log is open, being closed, or closed; with the calls that closing makes first. Safe from any thread."""

    def __init__(self) -> None:
        self._closers: list[Callable[[], object]] = []
        self.end_watchers: set[EndWatcher] = set()
        """Woken when the log ends or fails: its followers look again then."""
        self.closed = False
        """Whether it takes no more work. A closing that cannot be done makes it False again."""
        self.ended = False
        """Whether nothing of it is written from now on."""

    def on_close(self, closer: Callable[[], object], *, first: bool = False) -> None:
        """Call back at the beginning of a closing, on its thread, to end the work on the log's files.

        `first`: before all that were added until now.
        """
        if first:
            self._closers.insert(0, closer)
        else:
            self._closers.append(closer)

    def off_close(self, closer: Callable[[], object]) -> None:
        """Call `closer` back no more."""
        with suppress(ValueError):
            self._closers.remove(closer)

    def end_work(self) -> None:
        """Call back all that `on_close` has noted."""
        for closer in tuple(self._closers):
            closer()

    def end(self) -> None:
        """Note that nothing more of the log is written, and wake those that follow it."""
        self.ended = True
        self._check()
        self.wake_end_watchers()

    def _check(self) -> None:
        """Assert that an ended log takes no more work, either."""
        assert self.closed or not self.ended

    def wake_end_watchers(self) -> None:
        """Wake those that follow the log: they look again."""
        for watcher in list(self.end_watchers):
            watcher.set()

    def forget(self) -> None:
        """In a forked child: this copy of the log is over, and the parent has the objects that closing would end."""
        self.closed = self.ended = True
        self._closers.clear()
