"""A log read from outside its writer: any process, any time, without the lock, without a change to any byte."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from walkit._internal.arguments import as_lsn, refuse
from walkit._internal.report import report_html
from walkit._internal.threads import WakeEvent
from walkit.errors import CorruptionError, GapError, LogClosedError
from walkit.events import EventSink
from walkit.format.durable_slot import DurableSlot
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME, Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.read.cursor import CursorApi
from walkit.read.damage_seen import DamageSeen, Seen
from walkit.read.inventory import reader_html
from walkit.read.read_api import resolved
from walkit.read.view import LogView, PayloadSource, Span, View
from walkit.record import Record
from walkit.recovery.log_scan import LogFindings, read_durable_slot
from walkit.recovery.plan import plan_recovery
from walkit.segments.history import LogPoint, open_segment
from walkit.segments.manifest_store import LOCK_NAME, load_manifest
from walkit.segments.writer_lock import has_writer
from walkit.storage.address import absolute, storage_at
from walkit.storage.interface import Storage

POLL_S = 0.01
VIEW_TRIES = 3


V_co = TypeVar("V_co", bound=View, covariant=True)


@dataclass(frozen=True, slots=True)
class ReaderView(Generic[V_co]):
    """A reader's view at one moment, and its part known to be on stable storage (FORMAT.md F-17.2)."""

    view: V_co
    last_lsn: int
    """The last LSN that can be read."""
    end_position: int
    """Where the last frame that can be read ends."""
    durable_position: int
    """Every frame below it is on stable storage: as seals, the durable slot or a promise of an intact frame say."""

    def durable_lsn(self) -> int:
        """Return the last LSN that is known to be on stable storage. Reads frame headers if only they hold it."""
        if self.durable_position >= self.end_position:
            return self.last_lsn
        vouched_lsn = self.view.manifest.vouched_lsn
        return min(max(self.view.lsn_at(self.durable_position), vouched_lsn), self.last_lsn)


def view_of(storage: Storage) -> tuple[LogView, int]:
    """Return a reader's view of now, and its last LSN.

    While a writer lives: all records on stable storage by its durable slot. After its death: those that recovery would
    keep by the policy "prefix", in a log of completion order by "holes". Some may not be on stable storage: records
    that the writer had not synced are in the page cache alone, and `ReaderView.durable_lsn` is the proven end.
    """
    seen = reader_view_of(storage)
    return seen.view, seen.last_lsn


def reader_view_of(storage: Storage, *, written: bool = False) -> ReaderView[LogView]:
    """Return a reader's view of now, as `view_of`, and how much of it is on stable storage.

    With `written` as if a writer lived: only the part on stable storage by the durable slot and the manifest.
    """
    found = False
    for attempt in range(VIEW_TRIES):
        live = written or found or storage.is_locked(LOCK_NAME)
        # The slot before the manifest: every segment that the slot reaches into is then in the manifest.
        slot = read_durable_slot(storage)
        manifest = load_manifest(storage)
        found = not live and has_writer(storage, manifest)
        if found and attempt < VIEW_TRIES - 1:
            continue  # it may have started after the manifest was read
        try:
            seen = (_live_view_of if live else _settled_view_of)(storage, manifest, slot)
        except CorruptionError:
            # A writer that trims, or that began meanwhile, moves the log away from under this manifest.
            if attempt == VIEW_TRIES - 1 or load_manifest(storage).generation == manifest.generation:
                raise
            continue
        if live or not has_writer(storage, manifest):
            break
    return seen


@runtime_checkable
class EndKnown(Protocol):
    """A storage that knows the end of its log. Optional: files alone say it in any other."""

    def last_lsn(self) -> int:
        """Return the last LSN of the log that is on stable storage."""


def found_lsn(storage: Storage, wanted: int) -> int:
    """Return the last LSN of a log, or any from `wanted` on, where a consumer knows that this one was durable.

    A power cut may take the durable slot back. Then the frames alone show it, until the writer that opens the log has
    recovered it. The frames of a live writer may not be durable yet.
    """
    if isinstance(storage, EndKnown):
        return storage.last_lsn()
    seen = reader_view_of(storage)
    if seen.last_lsn >= wanted:
        return seen.last_lsn
    try:
        found = _settled_view_of(storage, load_manifest(storage), read_durable_slot(storage))
    except CorruptionError:  # the writer moved the log away from under it
        found = reader_view_of(storage)
    return max(seen.last_lsn, found.last_lsn)


def live_view(storage: Storage) -> LogView:
    """Return the end on stable storage by durable slot and manifest, whether a writer lives or not."""
    return reader_view_of(storage, written=True).view


def view_with_damage(storage: Storage, seen: Seen) -> LogView:
    """Return the view of a reader or, if it refuses the log, of every segment in the manifest; the refusal is noted."""
    try:
        return reader_view_of(storage).view
    except CorruptionError as refusal:
        from walkit.recovery.log_scan import survey_all

        at, named = refusal.position or 0, refusal.segment or MANIFEST_NAME
        seen(DamageSeen(named, at, at, refusal.first_lost_lsn, 0, str(refusal)))
        manifest = load_manifest(storage)
        found = LogFindings(manifest=manifest, slot=read_durable_slot(storage))
        survey_all(storage, found)
        spans = [Span(record, record.end_position, record.last_lsn) for record in manifest.sealed]
        for finding in found.unsealed:
            header, surveyed = finding.header, finding.span
            if header is None or surveyed is None:
                continue
            # After that nothing was promised: a torn tail, which no reader shows.
            end = max(finding.end_position, min(found.promised_position, surveyed.end_position))
            if end > header.start_position:
                spans.append(Span(record_of(finding.record, header), end, None))
        return LogView(storage, manifest, tuple(sorted(spans, key=lambda span: span.record.start_position)))


def _live_view_of(storage: Storage, manifest: Manifest, slot: DurableSlot) -> ReaderView[LogView]:
    known = {e.id for e in manifest.lineage}
    end, last_lsn = manifest.end.position, manifest.end.last_lsn
    if slot.epoch_id in known and slot.position > end:
        end, last_lsn = slot.position, slot.lsn
    spans = [Span(s, s.end_position, s.last_lsn) for s in manifest.sealed]
    started = [(r, h) for r in manifest.unsealed if (h := _started_header(storage, r)) is not None]
    for index, (record, header) in enumerate(started):
        stop = min(end, started[index + 1][1].previous_end) if index + 1 < len(started) else end
        if stop > header.start_position:
            spans.append(Span(record_of(record, header), stop, None))
    covered = max([manifest.end.position, *(s.end_position for s in spans)])
    if started and started[0][1].previous_end > manifest.end.position:
        covered = manifest.end.position  # the header of a segment before it is not there
    if covered < end:
        raise CorruptionError(
            f"{storage.location} is on stable storage up to position {end:,}, and its segments end at {covered:,}",
            position=covered,
            expected=end,
            found=covered,
        )
    return ReaderView(LogView(storage, manifest, tuple(spans)), last_lsn, end, end)


def _settled_view_of(storage: Storage, manifest: Manifest, slot: DurableSlot) -> ReaderView[LogView]:
    plan = plan_recovery(storage, manifest, slot, "prefix")
    spans = tuple(Span(s, s.end_position, s.last_lsn) for s in plan.manifest.sealed)
    view = LogView(storage, plan.manifest, spans)
    return ReaderView(view, plan.end.last_lsn, plan.end.position, plan.findings.promised_position)


def _started_header(storage: Storage, record: SegmentRecord) -> SegmentHeader | None:
    """Return the header of a segment that is in use; None if it has none yet, or its file is gone."""
    try:
        with closing(open_segment(storage, record)) as file:
            return SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
    except CorruptionError:
        return None  # the writer is just writing it; nothing in it is durable yet


def record_of(record: SegmentRecord, header: SegmentHeader) -> SegmentRecord:
    """Return the record of a segment in use with the facts that only its header has."""
    return SegmentRecord(
        number=record.number,
        state=record.state,
        epoch=record.epoch,
        start_position=header.start_position,
        first_lsn=header.first_lsn,
    )


@runtime_checkable
class ViewSource(Protocol):
    """Where a reader's views come from. Safe from any thread."""

    poll_s: float
    """How long who follows waits before the next look."""

    def folder(self) -> Storage:
        """Return the folder of the log, with its cursors; OptionsError for a log that has none."""

    @property
    def location(self) -> str:
        """Where the log is: a path or a URL."""

    def now(self) -> ReaderView[View]:
        """Return a reader's view of now."""

    def poll(self) -> ReaderView[View]:
        """Return a view of now, or an older one, as is cheaper: for who looks again after `poll_s`."""


class FolderViews:
    """The views of a log in a folder."""

    poll_s = POLL_S

    def __init__(self, storage: Storage) -> None:
        load_manifest(storage)
        self._storage, self.location = storage, storage.location

    def folder(self) -> Storage:
        """See ViewSource."""
        return self._storage

    def now(self) -> ReaderView[LogView]:
        """See ViewSource."""
        return reader_view_of(self._storage)

    poll = now


class LogReader(CursorApi):
    """A log opened with mode="r": everything but writing. A context manager; safe from any thread.

    Each call sees the log as it is then. While a writer lives, that is the log on stable storage, at any of the log's
    durability levels. After its death that is the log as recovery would keep it; records that the writer had not synced
    may be in the page cache alone, and a power cut takes them away. A reader never syncs: `durable_lsn`, `follow` and
    cursors go no further than durable slot, seals and the frames' promises, until the next opening for writing has made
    the rest durable. At level "sync" that is everything acknowledged.

    A cursor is its consumer's own file, and the one thing that is written through a reader.
    """

    def __init__(
        self,
        place: Storage | ViewSource,
        events: EventSink | None = None,
        *,
        open_payloads: Callable[[Any], PayloadSource] | None = None,
        payload_log: Any = None,
    ) -> None:
        """`open_payloads` opens payload logs, by default those in folders; `payload_log` is where to look first."""
        self._views = place if isinstance(place, ViewSource) else FolderViews(place)
        self.open_payloads, self._payload_log = open_payloads or folder_source, absolute(payload_log)
        self._events = events or EventSink()
        self._closed = False
        self._closing = WakeEvent()

    @property
    def location(self) -> str:
        """Where the log is: a path or a URL."""
        return self._views.location

    @property
    def events(self) -> EventSink:
        """Where the reader's events go; listeners can be added to it."""
        return self._events

    @property
    def closed(self) -> bool:
        """Whether this reader has been closed."""
        return self._closed

    @property
    def source(self) -> ViewSource:
        """Where its views come from; LogClosedError once closed."""
        if self.closed:
            raise LogClosedError(f"the reader of {self.location} is closed")
        return self._views

    def _now(self) -> tuple[View, int]:
        """See ReadApi."""
        seen = self.source.now()
        return seen.view, seen.last_lsn

    def _with_damage(self, seen: Seen) -> LogView:
        """See ReadApi. Without an open log a damaged tail makes a reader refuse it, and is read here."""
        folder = self.source.folder()
        if isinstance(folder, EndKnown):
            refuse("damaged", "unverified", "only for a log in a folder; walkit.verify(URL) reports damage")
        return view_with_damage(folder, seen)

    def _for_consumers(self) -> tuple[View, int]:
        """See CursorApi."""
        seen = self.source.now()
        return seen.view, seen.durable_lsn()

    def _make_durable(self, lsn: int) -> int:
        """See CursorApi. A reader makes nothing durable."""
        return self.durable_lsn

    def _cursor_storage(self) -> Storage:
        return self.source.folder()

    @property
    def last_lsn(self) -> int:
        """The last LSN that can be read now; above `durable_lsn` only if a writer died before it had synced."""
        return self._now()[1]

    @property
    def durable_lsn(self) -> int:
        """The last LSN that is known to be on stable storage, with all before it."""
        return self.source.now().durable_lsn()

    def follow(self, first_lsn: int, timeout: float | None = None) -> Iterator[Record]:
        """Yield records from `first_lsn` on, and continue as the writer makes more durable; polls its durable slot.

        Only records on stable storage are yielded, also after the writer's death: `read` also shows later ones.
        Ends when this reader is closed or, with `timeout`, after that many seconds without a new record. GapError if
        a record was trimmed or compacted away before it was yielded: never a skip. DivergenceError if another log is
        there now, or the last record that was yielded was cut.
        """
        silent_since: float | None = None
        with closing(followed_by(self, max(as_lsn(first_lsn, "first_lsn"), 1))) as steps:
            for record in steps:
                if record is not None:
                    silent_since = None
                    yield record
                    continue
                now = time.monotonic()
                silent_since = now if silent_since is None else silent_since
                if timeout is not None and now - silent_since >= timeout:
                    return
                self._closing.wait(self._views.poll_s)

    def close(self) -> None:
        """Release the log. Closing twice does nothing."""
        self._closed = True
        self._closing.set()
        if self._payloads is not None:
            self._payloads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LogReader {self.location}{' closed' if self.closed else ''}>"

    def _repr_html_(self) -> str:
        if self.closed:
            return report_html(f"reader of {self.location} (closed)", [])
        view, last_lsn = self._now()
        return reader_html(self.location, view, last_lsn)


def source_of(reader: LogReader) -> PayloadSource:
    """Return a reader as the source of a payload log."""
    return PayloadSource(reader.location, reader._now, reader.close)


def folder_source(place: Any) -> PayloadSource:
    """Open a payload log in a folder."""
    return source_of(LogReader(storage_at(place)))


def followed_by(reader: LogReader, wanted: int) -> Generator[Record | None]:
    """Yield the records of `LogReader.follow`, and None after the newest one: look again after `poll_s`."""
    reached: LogPoint | None = None
    while not reader.closed:
        seen = reader.source.poll()
        view = seen.view
        if reached is not None:
            reached.require(view.manifest, reader.location)
        if wanted < view.complete_from_lsn:
            raise GapError(wanted, view.complete_from_lsn)
        newest = seen.durable_lsn() if wanted <= seen.last_lsn else seen.last_lsn
        if wanted <= newest:
            yield from resolved(reader, view.record_batches(wanted, newest))
            wanted, reached = newest + 1, LogPoint.of(view.manifest, newest)
        else:
            yield None
