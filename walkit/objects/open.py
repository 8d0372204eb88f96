"""Opening a log on object storage for writing, and the parts of an open one, as `log.parts` has those of a folder.

The commit path is the same: core, driver, policies, tickets, delivery. Frames go to an `ObjectSink`, the manifest is a
`VouchedEnd`, the files beside the log are an `ObjectFolder`. Claims, trims and retention are those of every log.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from walkit._internal.arguments import check_choice, check_kind, check_progress, refuse
from walkit._internal.locks import once
from walkit._internal.report import PhaseClock
from walkit._main_thread import ending_early, run_uninterrupted
from walkit.commit.policy import Adaptive
from walkit.commit.ports import LogPorts
from walkit.config import Following, LogOptions
from walkit.errors import (
    CorruptionError,
    DivergenceError,
    LogFencedError,
    LogNotFoundError,
    ObjectDeniedError,
    WalkitError,
)
from walkit.events import EventCallback, EventSink
from walkit.format.frame import FrameIdentity
from walkit.format.layout import ALIGNMENT_BUFFERED
from walkit.format.manifest import LogEnd
from walkit.log.live_log import Lifetime
from walkit.log.log_parts import LogParts, core_of, driver_of, maintenance_parts, parts_of
from walkit.log.resources import LogResources
from walkit.log.wal import WriteAheadLog
from walkit.objects.claims_object import ClaimsObject
from walkit.objects.folder import ObjectFolder
from walkit.objects.layout import LogPlace, as_manifest
from walkit.objects.object_sink import ObjectSink
from walkit.objects.opening import Opening, Progress
from walkit.objects.requests import Patience, PatientReads
from walkit.objects.sweeper import Sweeper
from walkit.objects.view import ObjectEnd, ObjectView
from walkit.objects.vouched import VouchedEnd
from walkit.read.inventory import SegmentShown
from walkit.recovery.plan import emit_recovery
from walkit.recovery.report import RecoveryReport
from walkit.segments.active_segment import OpenSegment
from walkit.segments.consumer_files import LOCK_WAIT_S
from walkit.segments.maintenance_worker import MaintenanceWorker
from walkit.segments.segment_set import PassedTime
from walkit.storage.conditional_puts import prove_conditional_writes
from walkit.storage.object_store import ObjectStore

OPENING_S: Final = 30.0
"""How long one request of an opening is repeated."""
IN_FLIGHT: Final = 16
IN_FLIGHT_MAX: Final = 128
SAVE_S: Final = 60.0
"""The vouched end of a log that is written is saved this often, in seconds."""


def object_options(options: LogOptions) -> LogOptions:
    """Return the options of a log on object storage: with its defaults; OptionsError for one that it cannot have."""
    if options.ack_order == "completion":
        reason = "a log on object storage acknowledges in append order: one fence cannot end several frames"
        refuse("ack_order", options.ack_order, reason, "append")
    for name, wanted in (("durability", "sync"), ("direct_io", False), ("recovery", "prefix")):
        if getattr(options, name) != wanted:
            refuse(name, getattr(options, name), f"{wanted!r} for a log on object storage", wanted)
    in_flight = IN_FLIGHT if type(options.in_flight) is Following else options.in_flight
    if in_flight > IN_FLIGHT_MAX:
        refuse("in_flight", in_flight, f"at most {IN_FLIGHT_MAX} for a log on object storage", IN_FLIGHT_MAX)
    # Without markers an idle log makes no request.
    return replace(options, in_flight=in_flight, policy=options.policy or Adaptive(), idle_marker_ms=0)


def window_of(options: LogOptions) -> int:
    """Return how many frames may be after the oldest that is being put, that one included."""
    return 2 * options.in_flight


class ObjectContents:
    """The frames of an open log: see `Contents`. All that is acknowledged is durable."""

    def __init__(self, vouched: VouchedEnd) -> None:
        self._vouched = vouched
        self._source: ObjectEnd | None = None
        self.folder = ObjectFolder(
            vouched.claims_object,
            lambda: as_manifest(vouched.stored, vouched.claims_object.read()),
            lambda: vouched.acked.lsn,
        )
        """The files beside the log."""

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can be read."""
        return self._vouched.current.low_watermark + 1

    def view(self, end: LogPlace | None = None) -> ObjectView:
        """Return what can be read now: all that is acknowledged, or as far as `end`."""
        if self._source is None:
            self._source = ObjectEnd(self._vouched.reads.store)
            self._source.writer = self._vouched.claims_object.epoch
        # The manifest first: its segments end before what is acknowledged after that.
        vouched, manifest = self._vouched, self._vouched.current
        end = end or vouched.acked
        return ObjectView(self.folder, replace(manifest, end=end.end), vouched.floor, end, self._source)

    durable_view = view

    def place_at(self, lsn: int) -> LogPlace:
        """Return the end of the last bulk that ends at or below an LSN below the vouched end's; else the floor."""
        view = self.view(self._vouched.saved)
        source = view.source
        number = source.number_where(view, lambda end: end.lsn > lsn) - 1
        return view.floor if number <= view.floor.number else source.header(number, lsn).end

    def segments(self) -> list[SegmentShown]:
        """Return the stretches that are the log now, and the bulks after the newest one."""
        manifest, end, floor = self._vouched.current, self._vouched.acked, self._vouched.floor
        shown = [
            SegmentShown(s.number, s.start_position, s.end_position, s.first_lsn, s.last_lsn, True)
            for s in manifest.sealed
        ]
        start, first = (
            (shown[-1].end_position, shown[-1].last_lsn + 1) if shown else (floor.position, floor.lsn + 1)
        )
        if end.position > start or not shown:
            shown.append(SegmentShown(manifest.next_segment, start, end.position, first, end.lsn, False))
        return shown

    def used_bytes(self) -> int:
        """Return the bytes of frames that are not dropped."""
        return self._vouched.acked.position - self._vouched.floor.position


@dataclass(kw_only=True)
class ObjectFiles:
    """The part of a log on object storage that stands for the set of segments."""

    storage: ObjectFolder
    vouched: VouchedEnd
    maintenance: MaintenanceWorker
    events: EventSink
    epoch_began: LogEnd
    rotations: int = 0
    open_segments: tuple[OpenSegment, ...] = ()
    time: PassedTime = field(default_factory=PassedTime)
    on_seal: Callable[[], object] | None = None

    def count_segment(self) -> None:
        """Count a stretch that is full."""
        self.rotations += 1
        if self.on_seal is not None:
            self.on_seal()

    def settle(self) -> None:
        """See Segments."""
        self.maintenance.drain()
        self.vouched.save()

    def close(self, *, poisoned: bool, hung: bool) -> None:
        """Save the vouched end, so that the next opening reads nothing; not of a log that has failed.

        Nothing is lost without it, so an error is an event, also where another writer has the log by now.
        """
        self.maintenance.close()
        if not poisoned and not hung:
            try:
                self.vouched.save()
                self.vouched.claims_object.flush()
            except WalkitError as error:
                self.events.emit("walkit.maintenance.fail", job="vouched end", error=str(error))

    def forget(self) -> None:
        """In a forked child: the objects are the parent's to write."""


class StoreHandle:
    """The hold of an open log on its store; released at the end, as the lock of a folder is."""

    def __init__(self, store: ObjectStore, *, is_owned: bool) -> None:
        self._store, self._is_owned = store, is_owned

    def release(self) -> None:
        """See StorageLock."""
        if self._is_owned:
            self._store.close()

    def forget(self) -> None:
        """See StorageLock."""


def compose(opening: Opening, options: LogOptions, events: EventSink, ports: LogPorts) -> LogParts:
    """Return the parts of a log that an opening has recovered. Makes no request, starts no thread."""
    store, place, manifest = opening.reads.store, opening.place, opening.manifest
    limit_s = None if options.write_timeout_ms is None else options.write_timeout_ms / 1000

    reads = PatientReads(store, lambda: Patience(limit_s, also=(ObjectDeniedError,)))
    # Claims are renewed within their leases, so a change of them is given up, and made again later.
    turns = PatientReads(store, lambda: Patience(LOCK_WAIT_S))
    claims_object = ClaimsObject(turns, manifest.log_id, opening.epoch)
    claims_object.known = opening.claims
    vouched = VouchedEnd(reads, manifest, opening.manifest_tag, opening.epoch_id, claims_object=claims_object)
    core = core_of(
        options,
        FrameIdentity(manifest.log_id, opening.epoch, opening.epoch_id),
        place.end,
        ALIGNMENT_BUFFERED,
        ports,
        completion_order=False,
        window_frames=window_of(options),
    )
    sink = ObjectSink(vouched, opening.refuse_newer, options, window_of(options))
    name = os.path.basename(store.location.rstrip("/")) or "log"
    maintenance = MaintenanceWorker(name, events, options.write_timeout_ms)
    contents, lifetime = ObjectContents(vouched), Lifetime()
    vouched.place_at = contents.place_at
    folder, sweeper = contents.folder, Sweeper(vouched)
    files = ObjectFiles(
        storage=folder, vouched=vouched, maintenance=maintenance, events=events, epoch_began=place.end
    )
    parts = maintenance_parts(folder, options, vouched, files, contents, core, sweeper, lifetime, events)
    driver = driver_of(parts, core, sink, name)
    save = _saver(vouched, driver.poison)
    maintenance.every(SAVE_S, save, "seal")
    sink.save_soon = lambda: maintenance.submit("seal", save)
    sink.begin_saving = lambda: maintenance.submit("seal", lambda: None)  # its thread does the periodic saves
    sink.segment_begun = files.count_segment
    if sweeper.is_behind:
        maintenance.submit("retain", partial(sweep, sweeper))
    return parts_of(parts, core, driver, ports)


def sweep(sweeper: Sweeper) -> None:
    """Delete what a trim of an earlier writer has left below the floor."""
    with once(sweeper.lock), sweeper.lock:
        sweeper.remove()


def _saver(vouched: VouchedEnd, poison: Callable[[BaseException], object]) -> Callable[[], None]:
    """Return the job that saves the vouched end; a log that was taken over, removed or replaced fails at once."""

    def save() -> None:
        try:
            vouched.save()
        except (LogFencedError, LogNotFoundError, CorruptionError, DivergenceError) as error:
            poison(error)

    return save


def open_object_writer(
    store: ObjectStore,
    mode: str = "a",
    options: LogOptions | None = None,
    events: EventCallback | None = None,
    progress: Progress | None = None,
    ports: LogPorts | None = None,
    *,
    is_url: bool = False,
) -> WriteAheadLog:
    """Open a log in an object store for writing, as `open_writer` opens one in a folder.

    An opening fences every earlier writer: those acknowledge nothing more, and fail with LogFencedError. With `is_url`
    the store is not the caller's: it is tried whether it keeps the conditions of puts, and closed with the log.
    """
    check_choice(mode, ("a", "x"), "mode", " or 'r'")
    check_progress(progress, "(bytes scanned, bytes to scan)")
    check_kind(options, LogOptions, "options")
    sink, given = EventSink(events), object_options(options or LogOptions())

    def work() -> WriteAheadLog:
        clock = PhaseClock()
        opening = Opening(
            PatientReads(store, lambda: Patience(OPENING_S)),
            mode=mode,
            window=window_of(given),
            progress=ending_early(progress),
            owner=None if ports is None else ports.owner,
        )
        if is_url:
            opening.look()  # a probe is put only where objects can be, and are this log's
            opening.reads.repeat(lambda: prove_conditional_writes(store, "probe"))
        with clock.phase("scan") as detail:
            opening.run()
            detail["bulks"] = opening.read
        with clock.phase("apply"):
            handle = StoreHandle(store, is_owned=is_url)
            resources = LogResources(compose(opening, given, sink, ports or LogPorts()), handle)
        with clock.phase("ready"):
            pass  # it only shows when the log was ready
        report = _report(opening, clock)
        emit_recovery(sink, report)
        sink.emit("walkit.log.open", location=store.location, verdict=report.verdict)
        return WriteAheadLog(resources, report)

    return run_uninterrupted(work, "open", events=sink, undo=WriteAheadLog.close)


def _report(opening: Opening, clock: PhaseClock) -> RecoveryReport:
    """Return what an opening found: bulks count as segments, and each has one frame."""
    place = opening.place
    clean = "recovered" if opening.read else "clean"
    return RecoveryReport(
        location=opening.location,
        policy="prefix",
        cuts=(),
        holes=(),
        lost=(),
        decisions=(),
        last_lsn=place.lsn,
        end_position=place.position,
        verdict="created" if opening.created else clean,
        phases=tuple(clock.phases),
        segments=place.number - opening.floor.number,
        segments_scanned=opening.read,
        frames_scanned=opening.frames,
        records_scanned=opening.records,
        bytes_scanned=opening.bytes,
        promised_position=place.position,
    )
