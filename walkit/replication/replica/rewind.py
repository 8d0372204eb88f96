"""Rewind: cuts a replica's log back to the last record that it shares with its primary. Only on request.

The order is that of a recovery that cuts: the cut records are kept under lost+found, durably, then their snapshots go,
then the manifest is replaced, then the files are cut. A crash before the manifest leaves the log as it was, and one
after it a log that the next opening tidies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from walkit._internal.locks import once
from walkit._internal.report import fields_html
from walkit._internal.text import counted
from walkit._main_thread import run_uninterrupted
from walkit.config import LogOptions
from walkit.errors import HistoryTrimmedError, SnapshotError
from walkit.events import EventCallback, EventSink
from walkit.format.file_names import snapshot_name
from walkit.format.manifest import LogEnd, Manifest
from walkit.read.view import LogView
from walkit.recovery.apply import keep_part
from walkit.replication.logs.folder_role import as_replica
from walkit.replication.logs.importer import Importer
from walkit.replication.protocol.failures import RewindError
from walkit.replication.replica.common_point import CommonPoint, common_point
from walkit.replication.replica.identity_file import drop_identity
from walkit.segments.consumer_files import claim_facts
from walkit.segments.history import lies_in
from walkit.segments.index_file import files_of
from walkit.segments.manifest_store import DURABLE_NAME, gaps_where, load_manifest
from walkit.state.load_snapshot import base_at
from walkit.state.snapshot import snapshot_lsns
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import FileNumber, Storage, remove_if_there


@dataclass(frozen=True, kw_only=True, slots=True)
class RewindReport:
    """The records that one rewind cut off a log."""

    location: str
    end_lsn: int
    """The last LSN that is left: everything up to here is the primary's, too."""
    last_lsn: int
    """The last LSN that there was."""
    bytes_cut: int
    """Bytes of frames by which the log is shorter."""
    epochs_cut: int
    """Epochs that the log has no more: those that began at the common point or after it."""
    bytes_kept: int
    """Bytes of segment files that were kept under lost+found."""
    snapshots_dropped: tuple[int, ...]
    """LSNs of the snapshots that held cut records."""
    forced_past: tuple[str, ...]
    """Claims and chained replicas that have read cut records; () without `force`."""

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        cut = (
            f"LSN {self.end_lsn + 1:,} to {self.last_lsn:,}" if self.end_lsn < self.last_lsn else "no record"
        )
        kept = f"{counted(self.bytes_kept, 'byte')} of it kept under lost+found"
        if self.epochs_cut:
            cut += f" and {counted(self.epochs_cut, 'epoch')}"
        said = f"{self.location} was rewound to LSN {self.end_lsn:,}: {cut} went, {kept}"
        return [said, *(f"  forced past {name}" for name in self.forced_past)]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {
            "snapshots_dropped": list(self.snapshots_dropped),
            "forced_past": list(self.forced_past),
        }

    def _repr_html_(self) -> str:
        return fields_html(f"Rewind of {self.location}", self)


def rewind(
    dir: Place,  # noqa: A002 - as of Replica
    first_lsn: int,
    *,
    force: bool = False,
    records: bool = True,
    options: LogOptions | None = None,
    events: EventCallback | EventSink | None = None,
) -> RewindReport:
    """Cut a log back to before `first_lsn`, the first LSN that its primary does not have; durable on return.

    With `records=False` only frames without records are cut.

    What is cut off is kept under lost+found, with its snapshots removed, and the log's identity as a replica is
    forgotten: it ends below what it has acknowledged. A crash leaves the log as it was or rewound; then the same call
    does the rest, or there is nothing left to do.

    RewindError, and only recovery has changed the folder: "held" if a claim or a chained replica has read records that
    would go, unless with `force`; "bootstrap" if a snapshot, a trim or a compaction has passed the common point, and
    the state there is gone; "foreign" if nothing is common; "records" if records would go with `records=False`.
    LogLockedError while the log is open; the errors of opening a replica.
    """
    storage = storage_at(dir)
    sink = events if isinstance(events, EventSink) else EventSink(events)
    return rewind_storage(
        storage, first_lsn, force=force, records=records, options=options or LogOptions(), events=sink
    )


def rewind_storage(
    storage: Storage,
    first_lsn: int,
    *,
    force: bool,
    records: bool,
    options: LogOptions,
    events: EventSink,
    again: FileNumber | None = None,
) -> RewindReport:
    """Rewind for a replica that has just released its lock: in the folder with the number `again`."""
    return run_uninterrupted(
        lambda: _rewind(storage, first_lsn, force, records, options, events, again), "rewind", events=events
    )


def _rewind(
    storage: Storage,
    first_lsn: int,
    force: bool,
    records: bool,
    options: LogOptions,
    events: EventSink,
    again: FileNumber | None,
) -> RewindReport:
    load_manifest(storage)  # do not make a log here
    _require_common(storage, first_lsn)
    importer = Importer(storage, options, events, again)
    try:
        report = _rewind_locked(importer, first_lsn, force, records)
    finally:
        importer.close()
    events.emit(
        "walkit.replica.rewind",
        location=report.location,
        end_lsn=report.end_lsn,
        last_lsn=report.last_lsn,
        forced_past=report.forced_past,
    )
    return report


def _rewind_locked(importer: Importer, first_lsn: int, force: bool, records: bool) -> RewindReport:
    storage, store, maintenance = importer.storage, importer.manifest_store, importer.maintenance
    lock = maintenance.orphan_files.lock
    with importer.events.held(), maintenance.claims.shut() as shut, once(lock), lock:
        before = store.current
        point, readers = rewind_point(importer.view(), first_lsn, force=force, records=records)
        size = _keep(storage, point)
        dropped = tuple(lsn for lsn in snapshot_lsns(storage) if lsn > point.end.last_lsn)
        for lsn in dropped:
            storage.remove(snapshot_name(lsn))
        remove_if_there(storage, DURABLE_NAME)  # its records go; the manifest vouches for the rest
        storage.sync_directory()
        drop_identity(storage)
        newest = max(snapshot_lsns(storage), default=0)
        after = _rewound(before, point, newest)
        store.put_back(after)
        shut.reopen()
        _cut(storage, point)
    return RewindReport(
        location=storage.location,
        end_lsn=point.end.last_lsn,
        last_lsn=before.end.last_lsn,
        bytes_cut=before.end.position - point.end.position,
        epochs_cut=len(before.lineage) - len(after.lineage),
        bytes_kept=size,
        snapshots_dropped=dropped,
        forced_past=readers,
    )


def rewind_point(
    view: LogView, first_lsn: int, *, force: bool, records: bool = True
) -> tuple[CommonPoint, tuple[str, ...]]:
    """Return where a rewind would cut a sealed log, and the readers of the records to go. Changes nothing.

    RewindError if the log cannot be cut there, see `rewind`.
    """
    _require_common(view.storage, first_lsn)
    location, point = view.storage.location, common_point(view, first_lsn - 1)
    if not records and (point.passed or point.end.last_lsn != view.manifest.end.last_lsn):
        raise RewindError(
            f"{location} was not rewound to LSN {point.end.last_lsn:,}: records would go. Nothing was changed",
            first_lsn=first_lsn,
            reason="records",
        )
    _require_a_state(view, point, first_lsn)
    readers = tuple(_readers_past(view, point.end.last_lsn))
    if readers and not force:
        raise RewindError(
            f"{location} was not rewound to LSN {point.end.last_lsn:,}: {', '.join(readers)} have read past it. "
            "Nothing was changed; force cuts it off all the same, and each of them gets a DivergenceError",
            first_lsn=first_lsn,
            reason="held",
            readers=readers,
        )
    return point, readers


def _require_common(storage: Storage, first_lsn: int) -> None:
    if first_lsn <= 1:
        raise RewindError(
            f"{storage.location} has nothing in common with the primary's log: a rewind would leave nothing. An empty "
            "folder starts again",
            first_lsn=first_lsn,
            reason="foreign",
        )


def _require_a_state(view: LogView, point: CommonPoint, first_lsn: int) -> None:
    """Refuse if the state at the common point is gone: only a bootstrap brings it back."""
    manifest, lsn = view.manifest, point.end.last_lsn
    detail = ""
    if point.passed:
        detail = point.passed
    elif lsn < manifest.low_watermark or lsn >= first_lsn:
        detail = f"the log was trimmed up to LSN {manifest.low_watermark:,}"
    elif lsn < manifest.end.last_lsn:  # else it is the state of now: frames without records go
        try:
            base_at(view, lsn)
        except (HistoryTrimmedError, SnapshotError) as error:
            detail = str(error)
    if detail:
        raise RewindError(
            f"{view.storage.location} cannot be rewound to LSN {first_lsn - 1:,}: {detail}. Nothing was changed; "
            "a bootstrap from the primary, into an empty folder, is needed",
            first_lsn=first_lsn,
            reason="bootstrap",
        )


def _readers_past(view: LogView, end_lsn: int) -> Iterator[str]:
    """Yield the readers of records after `end_lsn`: claims, and replicas of this one, each by its name."""
    storage, manifest = view.storage, view.manifest
    for fact in claim_facts(storage, manifest):
        # An unreadable one may be of a consumer that is further; one of a branch that was cut has none.
        mark = fact.mark
        if not fact.counts or (mark is not None and not lies_in(manifest, mark.first_lsn - 1, mark.epoch_id)):
            continue
        if mark is None or max(mark.first_lsn - 1, mark.acked.last_lsn) > end_lsn:
            yield f"replica {fact.label!r}" if fact.label else f"claim {fact.name!r}"


def _keep(storage: Storage, point: CommonPoint) -> int:
    """Keep all that is to be cut off under lost+found, durably; return its bytes."""
    size = 0
    if point.cut is not None:
        name, offset = point.cut.record.name, point.cut.offset
        size += _keep_file(storage, name, f"{name}.{point.end.position}.rewound", offset)
    for record in point.dropped:
        size += _keep_file(storage, record.name, f"{record.name}.rewound", 0)
    return size


def _keep_file(storage: Storage, name: str, kept: str, start: int) -> int:
    file = storage.open(name, "read")
    try:
        until = file.size()
        if until > start:
            keep_part(storage, kept, file, start, until)
        return max(until - start, 0)
    finally:
        file.close()


def _rewound(manifest: Manifest, point: CommonPoint, newest_snapshot: int) -> Manifest:
    """Return the manifest of the log that ends at the common point."""
    end: LogEnd = point.end
    return manifest.next(
        segments=point.kept,
        end=end,
        lineage=tuple(e for e in manifest.lineage if e.position < end.position),
        **gaps_where(manifest, lambda gap: gap.end_position <= end.position),
        checkpoint_lsn=min(manifest.checkpoint_lsn, newest_snapshot),
        extra=as_replica(manifest.extra),
    )


def _cut(storage: Storage, point: CommonPoint) -> None:
    """Cut the files; after a crash before the end the next opening removes the rest."""
    if point.cut is not None:
        for name in files_of([point.cut.record]):
            if name != point.cut.record.name:
                remove_if_there(storage, name)  # the index of the uncut segment
        file = storage.open(point.cut.record.name, "write")
        try:
            file.shorten(point.cut.offset)
            file.sync()
        finally:
            file.close()
    for name in files_of(point.dropped):
        remove_if_there(storage, name)
    storage.sync_directory()
