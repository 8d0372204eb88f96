"""The parts of an open log, and how they are put together: each is made once and handed to those that need it.

Putting them together starts no thread.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass, fields, replace

from walkit.commit.core import OrderingCore
from walkit.commit.driver import CommitDriver
from walkit.commit.ports import FrameSink, LogPorts
from walkit.commit.ticket import Submitted
from walkit.commit.timer import CommitClock
from walkit.config import ALIGNMENT_BUFFERED, ALIGNMENT_DIRECT, LogOptions
from walkit.events import EventSink
from walkit.format.frame import FrameIdentity
from walkit.format.layout import RECORDS_PER_FRAME_MAX, SegmentFlag, align_up
from walkit.format.manifest import LogEnd, ManifestFile
from walkit.log.claims import ClaimTable, OwnClaims
from walkit.log.live_log import Contents, Lifetime, LogContents, LogMarks, Segments
from walkit.log.observe import acknowledged_frames
from walkit.log.retention import BoundedSink, Retainer
from walkit.log.trim import Trimmer
from walkit.record import wall_us
from walkit.recovery.apply import apply_plan
from walkit.recovery.plan import RecoveryPlan
from walkit.segments.manifest_store import Manifests, ManifestStore, SlotStore, next_epoch, note_level
from walkit.segments.orphan_files import OrphanFiles, Orphans
from walkit.segments.segment_set import SegmentSet
from walkit.segments.writer_lock import WriterLock
from walkit.storage.interface import DirectStorage, Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class MaintenanceParts:
    """The parts of an open log beside its commit path, wherever the log is."""

    storage: Storage
    options: LogOptions
    manifest_store: Manifests
    segments: Segments
    contents: Contents
    orphan_files: Orphans
    lifetime: Lifetime
    events: EventSink
    claims: ClaimTable
    own_claims: OwnClaims
    trimmer: Trimmer
    retention: Retainer


@dataclass(frozen=True, kw_only=True, slots=True)
class LogParts(MaintenanceParts):
    """The parts of an open log. No part knows the log's public object, so that one can be dropped and collected."""

    core: OrderingCore[Submitted]
    driver: CommitDriver
    records_max: int
    """Most records of one call that stay together."""


def driver_of(
    maintenance: MaintenanceParts, core: OrderingCore[Submitted], sink: FrameSink, name: str
) -> CommitDriver:
    """Return the driver of the commit path of a log; `sink` takes its frames.

    A limited log refuses a segment that it has no room for.
    """
    options, contents = maintenance.options, maintenance.contents
    if options.retention.at_capacity == "refuse":
        sink = BoundedSink(
            sink, maintenance.segments, contents, options, maintenance.retention, maintenance.events
        )
    driver = CommitDriver(
        core,
        sink,
        events=maintenance.events,
        name=name,
        sync_writes=options.durability == "sync",
        codec=options.codec,
        queue_bytes_max=options.queue_bytes_max,
        clock=commit_clock(),
        write_timeout_us=(options.write_timeout_ms or 0) * 1000,
    )
    maintenance.segments.maintenance.on_failure = driver.poison
    driver.delivery.bytes_max = options.queue_bytes_max
    driver.delivery.reread = lambda first_lsn, last_lsn: acknowledged_frames(contents, first_lsn, last_lsn)
    driver.failure.on_poison = maintenance.lifetime.wake_end_watchers
    return driver


def parts_of(
    maintenance: MaintenanceParts, core: OrderingCore[Submitted], driver: CommitDriver, ports: LogPorts
) -> LogParts:
    """Return all parts of a log. Begins what its retention asks for."""
    maintenance.retention.begin()
    if ports.gate is not None:
        driver.guard(ports.gate)
    return LogParts(
        **{part.name: getattr(maintenance, part.name) for part in fields(maintenance)},
        core=core,
        driver=driver,
        records_max=RECORDS_PER_FRAME_MAX if ports.gate is None else ports.gate.records_max,
    )


def maintenance_parts(
    storage: Storage,
    options: LogOptions,
    manifest_store: Manifests,
    segments: Segments,
    contents: Contents,
    marks: LogMarks,
    orphan_files: Orphans,
    lifetime: Lifetime,
    events: EventSink,
) -> MaintenanceParts:
    """Return the part that keeps and drops records of this log."""
    maintenance = segments.maintenance
    claims = ClaimTable(storage, manifest_store, events)
    trimmer = Trimmer(storage, manifest_store, marks, maintenance, claims, orphan_files, lifetime, events)
    return MaintenanceParts(
        storage=storage,
        options=options,
        manifest_store=manifest_store,
        segments=segments,
        contents=contents,
        orphan_files=orphan_files,
        lifetime=lifetime,
        events=events,
        claims=claims,
        own_claims=OwnClaims(claims, contents, marks, lifetime, maintenance),
        trimmer=trimmer,
        retention=Retainer(
            options.retention, manifest_store, segments, claims, trimmer, orphan_files, events
        ),
    )


def compose(
    storage: Storage,
    options: LogOptions,
    events: EventSink,
    plan: RecoveryPlan,
    ports: LogPorts,
    lock: WriterLock,
    file: ManifestFile | None,
) -> LogParts:
    """Apply the plan and return the parts of the log, ready to be appended to. Writes no segment.

    `file` is that of the manifest that the plan was made for; None for a new log.
    """
    number = next_epoch(plan.manifest)  # before anything is changed: there may be none
    slots = SlotStore(storage, plan.findings.slot, events)
    manifest_store = ManifestStore(storage, plan.findings.manifest, lock, slots, file)
    try:
        apply_plan(storage, manifest_store, plan)
        note_level(manifest_store, options.durability)
    except BaseException:
        slots.close()
        raise
    manifest = manifest_store.current
    began = replace(
        manifest.end,
        last_lsn=max(manifest.end.last_lsn, manifest.vouched_lsn),
    )
    identity = FrameIdentity(manifest.log_id, number, secrets.randbits(64) | 1)
    alignment = _alignment(storage, options, events)
    core = core_of(
        options,
        identity,
        began,
        alignment,
        ports,
        completion_order=manifest.ack_order == "completion",
        window_frames=None,
    )
    segments = _segments(storage, manifest_store, options, events, core, began=began, slots=slots)
    contents = LogContents(storage, manifest_store, segments, core)
    lifetime, orphan_files = Lifetime(), OrphanFiles(storage, manifest_store)
    maintenance = maintenance_parts(
        storage, options, manifest_store, segments, contents, core, orphan_files, lifetime, events
    )
    driver = driver_of(maintenance, core, segments, _name(storage))
    segments.watched, segments.poison = driver.watched, driver.poison
    lock.watch(segments, driver.poison)
    return parts_of(maintenance, core, driver, ports)


def core_of(
    options: LogOptions,
    identity: FrameIdentity,
    began: LogEnd,
    alignment: int,
    ports: LogPorts,
    *,
    completion_order: bool,
    window_frames: int | None,
) -> OrderingCore[Submitted]:
    """Return the ordering core of an epoch that begins here; at most `window_frames` frames may be under way."""
    return OrderingCore(
        identity,
        last_lsn=began.last_lsn,
        position=align_up(began.position, alignment),
        chain=began.chain,
        alignment=alignment,
        frame_bytes_max=int(options.frame_bytes_max),
        in_flight_max=options.in_flight,
        completion_order=completion_order,
        reorder_window_bytes=options.reorder_window_bytes,
        reorder_window_frames=window_frames,
        policy=options.policy,
        ack_when_durable=options.durability == "sync",
        idle_marker_us=options.idle_marker_ms * 1000,
        interval_us=int(options.interval_s * 1e6) if options.durability == "interval" else 0,
        ack_sink=ports.ack_sink,
    )


def _segments(
    storage: Storage,
    manifest_store: ManifestStore,
    options: LogOptions,
    events: EventSink,
    core: OrderingCore[Submitted],
    *,
    began: LogEnd,
    slots: SlotStore,
) -> SegmentSet:
    segments = SegmentSet(
        storage,
        manifest_store,
        options,
        identity=core.identity,
        epoch_began=began,
        slots=slots,
        events=events,
        name=_name(storage),
        alignment=core.alignment,
    )
    if options.in_flight > 1:
        segments.reorder_window_bytes = core.reorder_window_bytes
    if core.completion_order:
        segments.flags |= SegmentFlag.COMPLETION_ORDER
    return segments


def commit_clock() -> CommitClock:
    """Return the clock of a commit path: monotonic, and set by the wall clock now."""
    # A thread that loses its core between the two readings finds a smaller offset: its frames would be dated back.
    return CommitClock(time.monotonic_ns, max(wall_us() * 1000 - time.monotonic_ns() for _ in range(5)))


def _name(storage: Storage) -> str:
    """Return the name that the log's threads carry."""
    return os.path.basename(storage.location.rstrip("/")) or "log"


def _alignment(storage: Storage, options: LogOptions, events: EventSink) -> int:
    """Return the alignment of the frames to come: that of direct I/O if it is wanted and the place takes it."""
    if not options.direct_io:
        return ALIGNMENT_BUFFERED
    reason = "the storage has none"
    if isinstance(storage, DirectStorage):
        reason = storage.direct_io_refusal() or ""
    if not reason:
        return ALIGNMENT_DIRECT
    events.emit("walkit.log.buffered", location=storage.location, reason=reason)
    return ALIGNMENT_BUFFERED
