"""Where a publisher's frames come from: a log or a replica's log that is open here, or one that another process writes.

Only durable frames are given out. For an open log, its commit path knows which frames are on stable storage; for a
stored one, its durable slot and manifest do, with or without a writer: frames that a killed writer left in the page
cache are replicated only after an opening has made them durable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, Protocol, TypeAlias, cast, runtime_checkable

from walkit._internal.arguments import refuse
from walkit._internal.locks import once
from walkit.errors import CorruptionError, GapError, LogNotFoundError
from walkit.events import EventSink
from walkit.format.frame import FrameFault, FrameHeader
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import LogEnd, Manifest
from walkit.format.segment import SegmentHeader
from walkit.log.wal import WriteAheadLog
from walkit.objects.entrance import log_at, payload_source
from walkit.objects.folder import ObjectFolder
from walkit.objects.segments_folder import files_of, segments_folder
from walkit.objects.view import ObjectEnd, ObjectView
from walkit.read.reader import LogReader, ViewSource, live_view, view_of
from walkit.read.view import LogView, Span, View, segments_of
from walkit.recovery.log_scan import read_durable_slot
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.logs.tail_watch import TailWatch
from walkit.replication.protocol.lineage import PrimaryState
from walkit.replication.protocol.messages import Hello
from walkit.segments.frame_walk import FrameWalk, walk_segment
from walkit.segments.manifest_store import level_of, load_manifest
from walkit.storage.address import AnyPlace
from walkit.storage.interface import Storage
from walkit.store import Store

MANIFEST_S = 0.2
"""An opening can make more durable without moving the slot, so the manifest is read again after this time."""


def require_promises(durability: str) -> None:
    """OptionsError for the level "none": no replica can follow a log without promises."""
    if durability == "none":
        text = "replication needs 'sync' or 'interval'; a closed log needs one more opening with either"
        refuse("durability", durability, text, durability)


def require_newest(storage: Storage) -> None:
    """LogFencedError if the open log at this place has a newer writer. Any other error: that cannot be read."""
    if isinstance(storage, ObjectFolder):
        storage.claims_object.read()


class Source(Protocol):
    """A log that a publisher reads from. Safe from any thread."""

    def durable(self) -> tuple[int, int]:
        """Return (LSN, position) up to which the log is on stable storage."""

    def ended(self) -> str:
        """Return why nothing will ever follow the durable end; "" while more may come."""

    def view(self) -> LogView:
        """Return the durable frames of this moment."""

    def widest_view(self) -> tuple[LogView, int]:
        """Return all that can be seen, durable or not yet, and its last LSN: to compare histories, not to be sent."""

    def manifest(self) -> Manifest:
        """Return the manifest of this moment."""

    def watch(self, notify: Callable[[], object]) -> Callable[[], object]:
        """Call `notify` when there may be more durable frames, or the source has ended; returns a function to stop."""

    @property
    def storage(self) -> Storage:
        """The log's place: the primary's files about its replicas are beside it."""

    @property
    def events(self) -> EventSink:
        """Where events about the source go."""


@runtime_checkable
class ImportingReplica(Protocol):
    """A replica, as far as it is served: it may have several logs in turn."""

    @property
    def log(self) -> ImportedLog:
        """Its log of this moment."""

    def is_over(self) -> bool:
        """Whether it has no log after this one."""


class ImportedSource:
    """A replica's log that is open for importing in this process: the replica serves replicas of its own.

    Of a replica that is the log of each moment, also after a rewind; before the first contact it is absent.
    """

    def __init__(self, what: ImportedLog | ImportingReplica) -> None:
        log = what if isinstance(what, ImportedLog) else what.log
        self.storage: Storage = files_of(log.storage)
        self.events: EventSink = log.events
        self._what = what
        if what is log:
            log.require_log()
            self.durable()

    @property
    def _imported(self) -> ImportedLog:
        return self._what if isinstance(self._what, ImportedLog) else self._what.log

    def durable(self) -> tuple[int, int]:
        """See Source. LogNotFoundError before the first contact."""
        log = self._imported
        if not log.adopted:
            raise LogNotFoundError(log.location)
        require_promises(level_of(log.manifest))
        end = log.end
        return end.last_lsn, end.position

    def ended(self) -> str:
        """See Source."""
        if not self._imported.closed or not (isinstance(self._what, ImportedLog) or self._what.is_over()):
            return ""
        return (
            f"the replica's log at {self._imported.location} was closed, and another opening may write it now: "
            "make a new Primary of that"
        )

    def view(self) -> LogView:
        """See Source."""
        return self._imported.view()

    def widest_view(self) -> tuple[LogView, int]:
        """See Source. Nothing is imported that is not durable."""
        newest = self._imported.end.last_lsn
        return self._imported.view(), newest

    def manifest(self) -> Manifest:
        """See Source."""
        return self._imported.manifest

    def watch(self, notify: Callable[[], object]) -> Callable[[], object]:
        """See Source."""
        return self._imported.watch(notify)


class OpenSource:
    """A log that is open for writing in this process."""

    def __init__(self, log: WriteAheadLog) -> None:
        require_promises(log.options.durability)
        parts, self._location = log.parts, log.location
        self.storage: Storage = parts.storage
        self._core, self._contents, self._lifetime = parts.core, parts.contents, parts.lifetime
        self._manifest_store, self._delivery = parts.manifest_store, parts.driver.delivery
        self.events: EventSink = parts.events

    def durable(self) -> tuple[int, int]:
        """See Source."""
        core = self._core
        position = core.durable_position
        return core.durable_lsn, position

    def ended(self) -> str:
        """See Source."""
        if not self._lifetime.ended:
            return ""
        return (
            f"the log at {self._location} was closed, and another opening may write it now: "
            "make a new Primary of that"
        )

    def view(self) -> LogView:
        """See Source."""
        return segments_of(self._contents.durable_view(), "replicas and copies take them")

    def widest_view(self) -> tuple[LogView, int]:
        """See Source."""
        newest = self._core.written_lsn
        return segments_of(self._contents.view(), "replicas and copies take them"), newest

    def manifest(self) -> Manifest:
        """See Source."""
        return self._manifest_store.current

    def watch(self, notify: Callable[[], object]) -> Callable[[], object]:
        """See Source. `notify` is also called after a sync without a frame, and at the end of the log."""
        self._delivery.add_waker(notify)
        synced: Callable[[int], object] = lambda _: notify()  # noqa: E731 - it is left by its identity
        ended = _EndCallback(notify)
        self._delivery.add_durable_listener(synced)
        self._lifetime.end_watchers.add(ended)

        def unwatch() -> None:
            self._lifetime.end_watchers.discard(ended)
            self._delivery.remove_durable_listener(synced)
            self._delivery.remove_waker(notify)

        return unwatch


class OpenObjectSource(OpenSource):
    """A log on object storage that is open for writing in this process: its frames are read back from the store."""

    def __init__(self, log: WriteAheadLog) -> None:
        super().__init__(log)
        self._current_view: Callable[[], ObjectView] = cast(Any, self._contents).view
        self._segments = segments_folder(self._current_view)

    def durable(self) -> tuple[int, int]:
        """See Source. Never more than the view of the next moment has."""
        end = self._current_view().end
        return end.lsn, end.position

    def view(self) -> LogView:
        """See Source."""
        return live_view(self._segments)

    def widest_view(self) -> tuple[LogView, int]:
        """See Source. Only durable frames can be seen. LogFencedError if another writer has the log: it has more."""
        require_newest(self.storage)
        view = self.view()
        return view, view.manifest.end.last_lsn


class _EndCallback:
    """Is woken when a log ends or fails."""

    def __init__(self, notify: Callable[[], object]) -> None:
        self._notify = notify

    def set(self) -> None:
        """Pass it on."""
        self._notify()


class StoredSource:
    """A log in its place, read without its lock."""

    def __init__(self, storage: Storage) -> None:
        require_promises(level_of(load_manifest(storage)))
        self._shown, self.storage = storage, files_of(storage)
        self.location = storage.location
        self.events = EventSink()
        self._lock = threading.RLock()
        self._generation = -1
        self._log_id = 0
        self._manifest_until = 0.0
        self._manifest: Manifest | None = None
        self._durable = (0, 0)
        self._epoch_id = 0
        """The epoch of the frame before this end; 0 if unknown."""
        self._watch = TailWatch(storage, self.durable)

    def durable(self) -> tuple[int, int]:
        """See Source. Reads the durable slot; the manifest only when the slot has moved, or now and then."""
        slot = read_durable_slot(self._shown)
        with once(self._lock), self._lock:
            now = time.monotonic()
            if slot.generation == self._generation and now < self._manifest_until:
                return self._durable
            manifest = load_manifest(self._shown)
            require_promises(level_of(manifest))  # another opening may have followed since the last look
            self._manifest, self._manifest_until = manifest, now + MANIFEST_S
            # Another log, or one that was cut and written on: the old durable end does not apply to it.
            if manifest.log_id != self._log_id or not _has_end(manifest, self._durable[1], self._epoch_id):
                self._log_id, self._durable = manifest.log_id, (0, 0)
            lsn, position = manifest.end.last_lsn, manifest.end.position
            epochs = [epoch.id for epoch in manifest.lineage if epoch.position < position]
            found = (lsn, position, epochs[-1] if epochs else 0)
            if slot.position > position and _has_end(manifest, slot.position, slot.epoch_id):
                found = (slot.lsn, slot.position, slot.epoch_id)
            self._generation = slot.generation
            if found[1] >= self._durable[1]:
                self._durable, self._epoch_id = found[:2], found[2]
            self._check()
            return self._durable

    def _check(self) -> None:
        """Assert that an end is one of the log whose manifest was read last; needs the lock held."""
        known = self._manifest is not None and self._manifest.log_id == self._log_id
        assert known or self._durable == (0, 0), "the end belongs to another log"

    def end_and_manifest(self) -> tuple[tuple[int, int], Manifest]:
        """Return the result of `durable`, and the manifest that it used, without another read."""
        end = self.durable()
        with once(self._lock), self._lock:
            assert self._manifest is not None, "an end that was given out was found by a manifest"
            return end, self._manifest

    def expect(self, frame: FrameHeader) -> None:
        """Nothing is read faster by a frame that came another way."""

    def ended(self) -> str:
        """See Source. Another opening may always follow, and is served."""
        return ""

    def view(self) -> LogView:
        """See Source."""
        return live_view(self._shown)

    def widest_view(self) -> tuple[LogView, int]:
        """See Source."""
        return view_of(self._shown)

    def manifest(self) -> Manifest:
        """See Source."""
        return load_manifest(self._shown)

    def reader(self, events: EventSink, payload_log: AnyPlace | None = None) -> LogReader:
        """See StoredSource."""
        return LogReader(self._shown, events, open_payloads=payload_source, payload_log=payload_log)

    def close(self) -> None:
        """Release the files that claims on a log on object storage have opened; the next one opens them again."""
        if self.storage is not self._shown:
            self._shown.close()

    def watch(self, notify: Callable[[], object]) -> Callable[[], object]:
        """See Source. Another process's progress is not signalled: one thread polls for all that watch."""
        return self._watch.add(notify)


class SharedObjects:
    """A log on object storage."""

    def __init__(self, end: ObjectEnd) -> None:
        self._end, self.location = end, end.location
        self.storage: Storage = end.folder()

    def manifest(self) -> Manifest:
        """See StoredSource."""
        return self.view().manifest

    def view(self) -> View:
        """See StoredSource."""
        return self._end.now().view

    def end_and_manifest(self) -> tuple[tuple[int, int], Manifest]:
        """See StoredSource."""
        seen = self._end.poll()
        return (seen.last_lsn, seen.end_position), seen.view.manifest

    def expect(self, frame: FrameHeader) -> None:
        """Note a verified frame that came another way: the next look begins after it."""
        self._end.expect(frame)

    def reader(self, events: EventSink, payload_log: AnyPlace | None = None) -> LogReader:
        """See StoredSource."""
        return LogReader(self._end, events, open_payloads=payload_source, payload_log=payload_log)

    def close(self) -> None:
        """See StoredSource."""
        self._end.reads.store.close()


SharedLog: TypeAlias = StoredSource | SharedObjects
"""A log that a delta reader shares with its writer, wherever it is. Safe from any thread."""


def shared_log(what: AnyPlace) -> SharedLog:
    """Return the log at a place, as a delta reader reads it."""
    found = log_at(what)
    return SharedObjects(found) if isinstance(found, ObjectEnd) else StoredSource(found)


def _has_end(manifest: Manifest, position: int, epoch_id: int) -> bool:
    """Return whether this epoch's frames up to this position are in the log's history: no later epoch began before."""
    epoch = next((each for each in manifest.lineage if each.id == epoch_id), None)
    if epoch is None:
        return False
    return all(each.position >= position for each in manifest.lineage if each.number > epoch.number)


def source_of(
    what: WriteAheadLog | Store | ImportedLog | ImportingReplica | LogReader | AnyPlace,
) -> Source:
    """Return the source that a log, a Store, a replica or its log, a LogReader, a path, a URL or a storage means.

    LogNotFoundError for the log of a replica that had no contact with its primary yet.
    """
    if isinstance(what, ImportedLog | ImportingReplica):
        return ImportedSource(what)
    if isinstance(what, Store):
        what = what.log
    if isinstance(what, WriteAheadLog):
        view: View = what.parts.contents.view()
        return OpenObjectSource(what) if isinstance(view, ObjectView) else OpenSource(what)
    place = what.source if isinstance(what, LogReader) else log_at(what)
    if isinstance(place, ObjectEnd):
        return StoredSource(segments_folder(lambda: place.poll().view))
    return StoredSource(place.folder() if isinstance(place, ViewSource) else place)


def primary_state_of(source: Source, hello: Hello) -> PrimaryState:
    """Return the source's state, as far as this hello needs it."""
    lsn, position = source.durable()
    # The histories are compared first: frames trimmed or compacted meanwhile can no longer be sent, too, and then the
    # answer is a gap.
    wide, visible_lsn = source.widest_view()
    begin, newest = _newest_frame(wide, hello.end) if hello.end.position == position else (None, None)
    try:
        there, gone = newest if newest == hello.end else end_at(wide, hello.end), False
    except GapError:
        there, gone = None, True
    served = verbatim_spans(source.view())
    manifest = source.manifest()
    low = served[0] if served else None
    gone |= manifest.gap_after(hello.end.position) != hello.end.position and hello.end.position < position
    return PrimaryState(
        before_newest=begin if served and there == hello.end else None,
        log_id=manifest.log_id,
        created_us=manifest.created_us,
        ack_order=manifest.ack_order,
        lineage=manifest.lineage,
        durable_lsn=lsn,
        durable_position=position,
        oldest_lsn=max(lsn + 1 if low is None else low.record.first_lsn, manifest.low_watermark + 1),
        oldest_position=position if low is None else low.record.start_position,
        there=there,
        gone=gone,
        visible_lsn=max(visible_lsn, lsn),
    )


def _newest_frame(view: LogView, end: LogEnd) -> tuple[LogEnd | None, LogEnd | None]:
    """Return where the last frame with records begins and ends, of a view that ends there; an index saves the walk."""
    with suppress(GapError, CorruptionError):  # trimmed meanwhile, or damaged: it is not sent again
        for header, _, _ in view.frames(max(end.last_lsn, 1), body=False):
            begin = LogEnd(last_lsn=header.first_lsn - 1, position=header.position, chain=header.chain)
            last = LogEnd(last_lsn=header.last_lsn, position=header.end_position, chain=header.header_crc)
            return begin, last
    return None, None


def verbatim_spans(view: LogView) -> tuple[Span, ...]:
    """Return the spans that can be sent verbatim: those after the last compacted one, whose frames are others."""
    spans = view.spans
    for index in range(len(spans), 0, -1):
        if spans[index - 1].record.flags & SegmentFlag.COMPACTED:
            return spans[index:]
    return spans


def end_at(view: LogView, end: LogEnd) -> LogEnd | None:
    """Return the end at the position of `end` in this view; None if no frame ends there.

    GapError if the frames there are gone, so that nothing can be said: they were trimmed, or compacted,
    and the frames of a compacted segment end at other positions. CorruptionError if a frame before is damaged.
    """
    if not end.position:
        return LogEnd()
    there = view.manifest.end
    if there.position == end.position:
        return there
    for span in view.spans:
        record = span.record
        if record.end_position == end.position:
            return LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
        if end.position <= span.end_position:
            if record.flags & SegmentFlag.COMPACTED:
                raise GapError(end.last_lsn + 1, view.complete_from_lsn)
            return _end_within(view, span, end)
    if end.position < there.position:
        raise GapError(end.last_lsn + 1, view.complete_from_lsn)
    return None


def _end_within(view: LogView, span: Span, end: LogEnd) -> LogEnd | None:
    """Return the end at the position of `end`, which is at most that of the span's end; see `end_at`."""
    file, segment = view.opened(span)
    try:
        if end.position in (segment.previous_end, segment.start_position):
            return LogEnd(last_lsn=segment.first_lsn - 1, position=end.position, chain=segment.chain)
        if end.position < segment.start_position:
            if span is view.spans[0] and end.position < segment.previous_end:
                raise GapError(end.last_lsn + 1, view.complete_from_lsn)
            return None
        gaps = view.manifest.gaps_of(span.record)
        stop = min(end.position, span.end_position)
        walk = walk_segment(file, segment, span.record, stop, gaps=gaps, body=False)
        for _ in walk:
            pass
    finally:
        file.close()
    if walk.fault is None:
        return LogEnd(last_lsn=(walk.next_lsn or 1) - 1, position=walk.position, chain=walk.chain or 0)
    if walk.fault is not FrameFault.SHORT:
        refuse_walk(walk, segment)
    return None


def refuse_walk(walk: FrameWalk, segment: SegmentHeader) -> NoReturn:
    """Raise the error that ended a walk before the durable end."""
    if walk.error is not None:
        raise walk.error
    fault = walk.fault
    assert fault is not None
    raise CorruptionError(
        f"segment {segment.name} of the source is damaged at position {walk.position:,}: {fault.value}",
        segment=segment.name,
        position=walk.position,
        found=fault.name,
        first_lost_lsn=walk.next_lsn,
    )
