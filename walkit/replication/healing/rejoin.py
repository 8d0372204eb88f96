"""Rejoin: makes a folder able to follow a primary whose history differs, or may differ, from its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count
from typing import Literal

from walkit._internal.arguments import refuse
from walkit._internal.html import tag
from walkit._main_thread import run_uninterrupted
from walkit.config import LogOptions
from walkit.errors import DivergenceError, GapError, LogNotFoundError, StorageError
from walkit.events import EventCallback, EventSink
from walkit.format.layout import FRAME_BYTES_LIMIT
from walkit.format.manifest import LogEnd
from walkit.read.reader import reader_view_of
from walkit.read.view import LogView
from walkit.replication.healing.link import RangeLink
from walkit.replication.primary.status_call import request_status
from walkit.replication.protocol.failures import RewindError
from walkit.replication.replica.opening import only_markers_differ
from walkit.replication.replica.rewind import rewind_point, rewind_storage
from walkit.replication.transport.connection import Destination, destination_of
from walkit.replication.transport.tls import ClientTLS
from walkit.segments.writer_lock import refuse_a_writer, take_writer_lock
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class RejoinReport:
    """The result of `rejoin`, or with `dry_run` the result to expect."""

    location: str
    source: str
    """Address of the primary."""
    action: Literal["follow", "rewind", "anew"]
    """The folder stays as it is, or its log is cut back, or the folder gets another name and leaves an empty place."""
    detail: str
    first_lsn: int
    """The first LSN that is another record at the primary; 0 without a difference."""
    kept: str
    """The new name of the folder; "" if it keeps its own."""
    dry_run: bool

    def __str__(self) -> str:
        does = {
            "follow": "follows as it is",
            "rewind": f"is rewound to LSN {self.first_lsn - 1:,}, and the rest is kept under lost+found",
            "anew": f"is empty at first, and the old folder is kept as {self.kept}",
        }
        return f"{self.location} {does[self.action]}: {self.detail}"

    def _repr_html_(self) -> str:
        return tag("pre", str(self))


def rejoin(
    dir: Place,  # noqa: A002 - as of Replica
    source: str,
    *,
    dry_run: bool = False,
    force: bool = False,
    token: str | None = None,
    tls: ClientTLS | None = None,
    insecure: bool = False,
    events: EventCallback | None = None,
) -> RejoinReport:
    """Make the folder of an old primary or a replica one that can follow the primary at `source`.

    It compares the two histories, and then leaves the folder as it is, rewinds it as `rewind` does, or, if a rewind
    would leave no state, renames it, so that a replica begins in an empty folder of the old name. Nothing is deleted.
    Afterwards `Replica(dir, source)` follows. With `dry_run` it only reports. `force` rewinds also past readers.

    RewindError: "held" if a claim or a replica has read records that would go, "foreign" if the primary has another
    log, as at a wrong address; nothing was changed then. LogLockedError while the log is open; PeerError if the
    primary is not reached, or cannot answer now; OptionsError, CorruptionError, StorageError.
    """
    storage, destination = storage_at(dir), destination_of(source, token, tls, insecure)
    report = _compared(storage, destination, force=force, dry_run=dry_run)
    sink = EventSink(events)
    if report.action == "rewind" and not dry_run:
        rewind_storage(
            storage, report.first_lsn, force=force, records=True, options=LogOptions(), events=sink
        )
    elif report.action == "anew" and not dry_run:
        run_uninterrupted(lambda: _put_aside(storage, report.kept), "rejoin", events=sink)
    return report


def _compared(storage: Storage, destination: Destination, *, force: bool, dry_run: bool) -> RejoinReport:
    action: Literal["follow", "rewind", "anew"] = "follow"
    detail, first_lsn = "the primary has all its records", 0
    try:
        refuse_a_writer(storage)
        view = reader_view_of(storage).view
        error = _difference(view, destination)
    except LogNotFoundError as absent:
        detail, error = str(absent), None
    if error is not None and only_markers_differ(error, view.manifest, view.manifest.end):
        detail = "only frames without records differ, and a replica cuts them off by itself"
    elif error is not None:
        action, detail, first_lsn = "rewind", str(error), error.first_lsn
        try:
            rewind_point(view, first_lsn, force=force)
        except RewindError as refused:
            if refused.reason == "held":
                raise
            _require_this_log(view, destination)
            action, detail = "anew", str(refused)
    return RejoinReport(
        location=storage.location,
        source=destination.address,
        action=action,
        detail=detail,
        first_lsn=first_lsn,
        kept=_free_name(storage) if action == "anew" else "",
        dry_run=dry_run,
    )


def _difference(view: LogView, destination: Destination) -> DivergenceError | None:
    """Return the first difference of a log's history and that of a primary; None if a replica can follow with it."""
    manifest, end = view.manifest, view.manifest.end
    try:
        with RangeLink(destination, FRAME_BYTES_LIMIT) as link:
            found = next(link.runs(manifest.log_id, manifest.lineage, end), None)
    except GapError:  # a replica gets its log from the primary then
        return None
    except DivergenceError as error:
        return error
    ends_lsn = end.last_lsn if found is not None else request_status(destination).durable_lsn
    if end.last_lsn <= ends_lsn:
        return None
    text = f"the log has records up to LSN {end.last_lsn:,}, and the primary ends at {ends_lsn:,}"
    return DivergenceError(text, first_lsn=ends_lsn + 1)


def _require_this_log(view: LogView, destination: Destination) -> None:
    """Raise a RewindError if the primary has another log. From nothing on, each replica of this log can follow."""
    try:
        with RangeLink(destination, FRAME_BYTES_LIMIT) as link:
            next(link.runs(view.manifest.log_id, (), LogEnd()), None)
    except GapError:  # the beginning of this log is gone there
        return
    except DivergenceError as error:
        said = f"the primary at {destination.address} has another log. Nothing was changed. It said: {error}"
        raise RewindError(said, first_lsn=1, reason="foreign") from error


def _free_name(storage: Storage) -> str:
    """Return a name beside the folder that nothing has; OptionsError for a storage that is not a folder."""
    folder = storage.location.rstrip("/")
    if not os.path.isdir(folder):
        refuse("dir", storage.location, "a folder of a file system: nothing else can be put aside")
    return next(name for n in count(1) if not os.path.lexists(name := f"{folder}.before-rejoin-{n}"))


def _put_aside(storage: Storage, kept: str) -> None:
    lock = take_writer_lock(storage)
    try:
        os.rename(storage.location.rstrip("/"), kept)
    except OSError as error:
        raise StorageError(f"{storage.location} cannot be renamed: {error}", errno=error.errno) from error
    finally:
        lock.release()
