"""Opening logs: by path, by URL, in a storage of one's own, or as a scratch log; and the report of an opening."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

from walkit._internal.arguments import check_choice, check_kind, check_progress, refuse
from walkit._internal.report import PhaseClock
from walkit._main_thread import ending_early, run_uninterrupted
from walkit.commit.ports import LogPorts, Owner
from walkit.config import LogOptions
from walkit.errors import LogExistsError, LogLockedError, LogNotFoundError
from walkit.events import EventCallback, EventSink
from walkit.format.layout import DURABLE_SLOTS_BYTES
from walkit.format.manifest import MANIFEST_NAME, Manifest, ManifestFile
from walkit.log.log_parts import compose
from walkit.log.resources import LogResources
from walkit.log.scratch import open_scratch
from walkit.log.wal import WriteAheadLog, open_logs
from walkit.record import wall_us
from walkit.recovery.apply import sync_unsealed
from walkit.recovery.log_scan import Progress, read_durable_slot
from walkit.recovery.plan import RecoveryPlan, emit_recovery, plan_recovery
from walkit.recovery.report import RecoveryReport
from walkit.segments.consumer_files import claims_locked
from walkit.segments.manifest_store import (
    DURABLE_NAME,
    check_owner,
    load_manifest_file,
    owner_facts,
    settle_manifest,
    write_manifest,
)
from walkit.segments.writer_lock import take_writer_lock
from walkit.storage.address import storage_at
from walkit.storage.interface import Storage, remove_if_there


def open_writer(
    place: Storage,
    mode: str,
    options: LogOptions | None = None,
    events: EventCallback | None = None,
    progress: Callable[[int, int], None] | None = None,
    ports: LogPorts | None = None,
) -> WriteAheadLog:
    """Open a log in a folder for writing, see `walkit.open`. `ports` get frames and guard the queue."""
    check_choice(mode, ("a", "x"), "mode", " or 'r'")
    check_progress(progress, "(bytes scanned, bytes to scan)")
    check_kind(options, LogOptions, "options")
    sink, given = EventSink(events), options or LogOptions()
    return run_uninterrupted(
        lambda: _open_writer(place, mode, given, sink, progress, ports or LogPorts()),
        "open",
        events=sink,
        undo=WriteAheadLog.close,
    )


def _open_writer(
    place: Storage,
    mode: str,
    options: LogOptions,
    events: EventSink,
    progress: Callable[[int, int], None] | None,
    ports: LogPorts,
) -> WriteAheadLog:
    try:
        return _open_locked(place, mode, options, events, progress, ports)
    except LogLockedError as error:
        if not error.same_process:
            raise
        raise LogLockedError(
            error.path,
            pid=error.pid,
            command=error.command,
            same_process=True,
            index=_index_of(place.location),
        ) from None


def _open_locked(
    storage: Storage,
    mode: str,
    options: LogOptions,
    events: EventSink,
    progress: Progress | None,
    ports: LogPorts,
) -> WriteAheadLog:
    """Open or create a log. The lock is held on return; on an error it is not, and nothing was changed."""
    clock, progress = PhaseClock(), ending_early(progress)
    with clock.phase("open") as detail:
        found = _require_a_log(storage, mode, ports.owner)
        lock = take_writer_lock(storage, manifest=None if found is None else found.manifest)
        try:
            created = found is None and MANIFEST_NAME not in storage.names()
            if mode == "x" and not created:
                raise LogExistsError(storage.location)
            if created:
                manifest = _create(storage, options, ports.owner)
            else:
                settle_manifest(storage)
                found = load_manifest_file(storage, found)
                manifest = found.manifest
            _check_stored(manifest, options)
            check_owner(manifest, storage.location, ports.owner)
            slot = read_durable_slot(storage)
            detail["segments"] = len(manifest.segments)
        except BaseException:
            lock.release()
            raise
    try:
        with clock.phase("scan") as detail:
            sync_unsealed(storage, manifest, salvage=options.recovery == "salvage")
            plan = plan_recovery(storage, manifest, slot, options.recovery, progress=progress)
            detail["unsealed"] = len(plan.findings.unsealed)
        clock.split_off("verify", plan.findings.verify_s)
        with clock.phase("apply"):
            resources = LogResources(compose(storage, options, events, plan, ports, lock, found), lock)
            lock.recovered()
    except BaseException:
        lock.release()
        raise
    report = recovery_report(storage, options, clock, plan, created)
    emit_recovery(events, report)
    events.emit("walkit.log.open", location=storage.location, verdict=report.verdict)
    return WriteAheadLog(resources, report)


def _require_a_log(storage: Storage, mode: str, owner: Owner | None) -> ManifestFile | None:
    """Make the folder of a new log; refuse other folders before anything is written. None for a new log."""
    try:
        found = load_manifest_file(storage)
    except LogNotFoundError:
        owner_facts(owner, storage.location)
        storage.create()
        return None
    if mode == "x":
        raise LogExistsError(storage.location)
    return found


def _create(storage: Storage, options: LogOptions, owner: Owner | None) -> Manifest:
    manifest = Manifest(
        log_id=secrets.randbits(64) | 1,
        created_us=wall_us(),
        ack_order=options.ack_order or "append",
        extra=owner_facts(owner, storage.location),
    )
    make_log(storage, manifest)
    return manifest


def make_log(storage: Storage, manifest: Manifest) -> None:
    """Make the files that a full disk must not refuse later, then write the first manifest; durable on return."""
    if remove_if_there(storage, DURABLE_NAME):
        # A log that was removed by hand left it. A manifest beside its promises would be refused.
        storage.sync_directory()
    with claims_locked(storage):
        cell = storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=True)
        if cell is not None:
            cell.close()
    write_manifest(storage, manifest)


def _check_stored(manifest: Manifest, options: LogOptions) -> None:
    if options.ack_order is not None and options.ack_order != manifest.ack_order:
        refuse(
            "ack_order",
            options.ack_order,
            f"the log was made with {manifest.ack_order!r}, for its life",
            manifest.ack_order,
        )


def recovery_report(
    storage: Storage, options: LogOptions, clock: PhaseClock, plan: RecoveryPlan, created: bool
) -> RecoveryReport:
    """Return an opening's findings, and its plan's actions."""
    findings = plan.findings
    scanned = [f for f in (*findings.sealed, *findings.unsealed) if f.bytes_scanned]
    clean = not findings.unsealed and not plan.cuts and not plan.steps
    with clock.phase("ready"):
        pass  # it only tells when the log was ready
    return RecoveryReport(
        **plan.outcome(storage),
        verdict="created" if created else "clean" if clean else "recovered",
        phases=tuple(clock.phases),
        segments=len(plan.manifest.segments),
        segments_scanned=len(scanned),
        frames_scanned=sum(f.frames for f in scanned),
        records_scanned=sum(f.records for f in scanned),
        bytes_scanned=sum(f.bytes_scanned for f in scanned),
        promised_position=findings.promised_position,
    )


def _index_of(location: str) -> int | None:
    """Return where in `open_logs()` the log at a place stands; None for one that is opened or closed at this moment."""
    for index, log in enumerate(open_logs()):
        known = log.location
        both_there = os.path.exists(known) and os.path.exists(location)
        if known == location or (both_there and os.path.samefile(known, location)):
            return index
    return None


def scratch(
    name: str = "log", options: LogOptions | None = None, events: EventCallback | None = None
) -> WriteAheadLog:
    """Return a new, empty log on real files in the folder for temporary ones. For notebooks; `Store.scratch` likewise.

    A name is one log in a process: the same name again closes the earlier log and removes its files, with the event
    `walkit.scratch.replace` (a warning in `logging`): a cell can be run twice. The files are removed,
    too, when the log is dropped or the process ends, and after a kill by the next process that makes a scratch log.
    Other files beside the log's folder go with the process.

    Raises the errors of `walkit.open` for `options`; the earlier log is then left as it is. Safe from any thread.
    """
    return open_scratch(
        name, lambda place: open_writer(storage_at(place), "x", options, events), lambda log: log
    )
