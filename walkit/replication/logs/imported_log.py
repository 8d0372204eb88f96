"""The log of a replica: written by frames of its primary alone, at the same LSNs and positions, byte for byte.

Its segments are flagged IMPORTED: their frames' promises are about the primary's disk, and recovery does not use them;
this log's own durable slot and seals cover this disk. It has the writer's lock, and readers of other processes read it
like any log. It mints no epoch: its lineage is that of the primary, as far as it has come.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, TypeAlias, cast

from walkit._internal.arguments import as_lsn
from walkit._internal.threads import WakeEvent
from walkit._main_thread import run_uninterrupted
from walkit.config import LogOptions
from walkit.copier.gathering import Gathering
from walkit.copier.object_target import ObjectTarget
from walkit.errors import GapError, LogClosedError, LogNotFoundError, OptionsError, WalkitError
from walkit.events import EventSink
from walkit.format.manifest import EpochRecord, LogEnd, Manifest
from walkit.log.live_log import Lifetime, LogMarks
from walkit.log.log_parts import MaintenanceParts
from walkit.log.resources import report_dropped, run_for_dropped, watch_exit
from walkit.log.trim import WASTE_RATIO_DEFAULT, TrimReport
from walkit.objects.entrance import location_of, object_store_of, payload_source
from walkit.read.claim import LEASE_S_DEFAULT, Claim
from walkit.read.payloads import LOGS_KEY, names_of
from walkit.read.read_api import ReadApi, resolved
from walkit.read.view import LogView
from walkit.record import Record
from walkit.recovery.report import RecoveryReport
from walkit.replication.logs.imported_segments import ImportedSegments
from walkit.replication.logs.importer import Importer, Watchers
from walkit.replication.logs.object_importer import ObjectImporter
from walkit.replication.protocol.frame_run import FrameRun
from walkit.segments.manifest_store import ManifestStore
from walkit.storage.address import AnyPlace, absolute
from walkit.storage.interface import FileNumber, Storage
from walkit.storage.object_store import ObjectStore

AnyImporter: TypeAlias = Importer | ObjectImporter
LOOK_S = 1.0
"""Time between two looks of a thread that waits for a log to be replaced: a wake can be lost."""


class ImportedLog(ReadApi):
    """A replica's log, open for importing: it can be read like any log, and has no append. Safe from any thread.

    Opening takes the writer's lock and recovers; an interrupt (Ctrl-C) of it leaves the lock free. The log is empty
    before the first contact with the primary, when `adopt` makes it. Only one thread imports. A log that is dropped
    without `close` closes itself, with a ResourceWarning unless the process is ending.
    """

    def __init__(
        self,
        storage: Storage | ObjectStore,
        options: LogOptions | None = None,
        events: EventSink | None = None,
        again: FileNumber | None = None,
        watchers: Watchers | None = None,
        payload_log: AnyPlace | None = None,
    ) -> None:
        """Raises the errors of opening a log for writing; then nothing is held and nothing was changed.

        `again` is the `folder` of an earlier opening: StorageError (ESTALE) if another is at this place by now.
        `watchers` are those of the log that this one replaces, `payload_log` is where readers find values of links.
        """
        given = options or LogOptions()
        if given.direct_io:
            raise OptionsError(
                "direct_io=True: a replica keeps the frames of its primary, with their alignment",
                option="direct_io",
                wanted=True,
            )
        if given.retention.at_capacity == "refuse":
            raise OptionsError(
                "retention with at_capacity='refuse': a replica takes what its primary sends; 'drop' drops what its "
                "newest snapshot has",
                option="retention",
                wanted=given.retention,
            )
        self._is_reopening, self._reopened = False, WakeEvent()
        self.open_payloads, self._payload_log = payload_source, absolute(payload_log)
        self._facts: dict[str, Any] = {}
        self._open(storage, given, events or EventSink(), again, watchers or Watchers())

    def _open(
        self,
        place: Storage | ObjectStore,
        given: LogOptions,
        sink: EventSink,
        again: FileNumber | None,
        watchers: Watchers,
    ) -> None:
        def opened() -> AnyImporter:
            # All of it without interrupts: one between the lock and the finaliser would leave the lock taken.
            store = object_store_of(cast(AnyPlace, place))
            if store is None:
                importer: AnyImporter = Importer(cast(Storage, place), given, sink, again, watchers)
            else:
                importer = ObjectImporter(store, given, sink, watchers)
            self._importer = importer
            self._finalizer = weakref.finalize(self, close_dropped, importer)
            watch_exit()
            return importer

        run_uninterrupted(opened, "open", events=sink, undo=lambda importer: importer.close())

    # -- importing

    def adopt(self, log_id: int, *, created_us: int, ack_order: str, extra: Mapping[str, Any]) -> None:
        """Become a replica of this log, at the first contact; durable on return."""
        self._importer.adopt(
            log_id, created_us=created_us, ack_order=ack_order, extra={**extra, **self._facts}
        )

    def name_payload_log(self, place: AnyPlace) -> None:
        """Name this payload log in the manifest, now or when the log is adopted. Raises the errors of opening it.

        One that the manifest names already is not opened.
        """
        if location_of(place) in names_of(self.manifest, self.location).values():
            return
        source = payload_source(place)
        with closing(source):
            named = {f"{source.now()[0].manifest.log_id:016x}": source.location}
        self._facts = {LOGS_KEY: {**self.manifest.extra.get(LOGS_KEY, {}), **named}}
        if self.adopted:
            self.manifest_store.note(self._facts)

    def reopen(self) -> None:
        """Close this log and open the gathered one in its place; by the importing thread.

        A thread that waits for a record still gets it. After an error the log `is_reopening` until another call opens
        it, or `close`. LogNotFoundError if the folder has lost its log.
        """
        if not self._is_reopening:
            self._reopened = WakeEvent()
        self._is_reopening = True
        before = self._importer
        before.close()
        self._finalizer.detach()
        self._open(before.place, before.options, before.events, before.folder, before.watchers)
        before.watchers.notify()
        if not self.adopted:
            self._importer.close()
            raise LogNotFoundError(self.location)
        self._end_reopening()

    def _end_reopening(self) -> None:
        self._is_reopening = False
        self._reopened.set()

    def gathering(self) -> Gathering | ObjectTarget:
        """Return the collector of another log, which replaces this one."""
        return self._importer.gathering()

    def keep_identity(self, identity: str) -> bool:
        """Keep the identity of this replica with its log; False if a folder has a file for it."""
        return self._importer.keep_identity(identity)

    @property
    def folder(self) -> FileNumber | None:
        """The number of the folder that this log is in; None if its storage has no folder."""
        return self._importer.folder

    @property
    def is_reopening(self) -> bool:
        """Whether this log was closed to be replaced, and the other one is not open yet."""
        return self._is_reopening

    def import_run(self, run: FrameRun, lineage: tuple[EpochRecord, ...]) -> LogEnd:
        """Take frames that follow the end of this log; on stable storage on return. Returns the new end.

        `lineage` is the primary's up to the run's epoch. StorageError and LogFullError poison the log: open it again.
        """
        return self._importer.import_run(run, lineage)

    @property
    def adopted(self) -> bool:
        """Whether this is a replica of a log already."""
        return self._importer.adopted

    @property
    def failure(self) -> BaseException | None:
        """The write or sync that has failed, after which nothing is imported; None while all is well."""
        return self._importer.failure

    @property
    def segments(self) -> ImportedSegments:
        """The segments that imported frames are written to; empty before the log is adopted."""
        return self._importer.segments

    @property
    def maintenance(self) -> MaintenanceParts:
        """The trimmer and the claims of this log. LogNotFoundError before the first contact with the primary."""
        self.require_log()
        return self._importer.maintenance

    @property
    def manifest_store(self) -> ManifestStore:
        """The manifest in its place."""
        return self._importer.manifest_store

    @property
    def lifetime(self) -> Lifetime:
        """The work that ends with this log."""
        return self._importer.lifetime

    @property
    def marks(self) -> LogMarks:
        """How far this log is, for objects that outlive this one."""
        return self._importer

    @property
    def recovery(self) -> RecoveryReport | None:
        """The recovery of this opening; None without a log."""
        return self._importer.recovery

    @property
    def options(self) -> LogOptions:
        """The options of this opening."""
        return self._importer.options

    @property
    def events(self) -> EventSink:
        """Where the log's events go."""
        return self._importer.events

    @property
    def closed(self) -> bool:
        """Whether the log has been closed."""
        return self._importer.closed and not self._is_reopening

    # -- reading

    @property
    def end(self) -> LogEnd:
        """Where the log ends: LSN, position and chain that the next frame must follow. All before it is durable."""
        return self._importer.end

    @property
    def manifest(self) -> Manifest:
        """The manifest of this moment."""
        return self._importer.manifest_store.current

    @property
    def storage(self) -> Storage:
        """Where the log is."""
        return self._importer.storage

    @property
    def location(self) -> str:
        """Where the log is: a path or a URL."""
        return self._importer.storage.location

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can be read; one more than the last if the log is empty."""
        return self._importer.view().first_lsn

    @property
    def durable_lsn(self) -> int:
        """The last LSN imported: all of it is on this replica's stable storage."""
        return self._importer.end.last_lsn

    def _now(self) -> tuple[LogView, int]:
        """See ReadApi."""
        if self.closed:
            raise LogClosedError(f"the replica's log at {self.location} is closed")
        newest = self._importer.end.last_lsn
        return self._importer.view(), newest

    def view(self) -> LogView:
        """Return a view of the records that can be read now."""
        return self._importer.view()

    def watch(self, notify: Callable[[], object]) -> Callable[[], object]:
        """Call `notify` after each import and at the closing, on their thread: it must only wake something.

        Returns a function that ends it.
        """
        return self.watchers.add(notify)

    @property
    def watchers(self) -> Watchers:
        """The callbacks after each import."""
        return self._importer.watchers

    def follow(self, first_lsn: int, timeout: float | None = None) -> Iterator[Record]:
        """Yield records from `first_lsn` on, and continue as more are imported.

        Ends when the log is closed or, with `timeout`, after that many seconds without a new record. GapError if a
        record has been trimmed: never a skip.
        """
        wanted = max(first_lsn, 1)
        while not self.closed:
            view, newest = self._now()
            if wanted < view.first_lsn:
                raise GapError(wanted, view.first_lsn)
            if wanted <= newest:
                yield from resolved(self, view.batches(wanted, newest, records=4096))
                wanted = newest + 1
            elif not self.wait_for(wanted, timeout):
                return

    def wait_for(self, lsn: int, timeout: float | None = None) -> bool:
        """Wait until this LSN is imported; False if the time is over or the log is closed before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.closed and self._importer.end.last_lsn < lsn:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            self._wait_in(self._importer, lsn, left)
            # If the log is being replaced, wait for the other one. The event wakes one thread, which wakes the next;
            # after an interrupt between the two, the rest look again by themselves.
            if self._is_reopening and self._reopened.wait(min(left or LOOK_S, LOOK_S)):
                self._reopened.set()
        return self._importer.end.last_lsn >= lsn

    @staticmethod
    def _wait_in(importer: AnyImporter, lsn: int, timeout: float | None) -> None:
        importer.advanced.wait_for(lambda: importer.closed or importer.end.last_lsn >= lsn, timeout)

    # -- consumers and maintenance

    def hold(self, name: str, first_lsn: int, lease_s: float = LEASE_S_DEFAULT) -> Claim:
        """Keep records from `first_lsn` on from being trimmed here; see `WriteAheadLog.hold`.

        LogNotFoundError before the first contact with the primary.
        """
        return self.maintenance.own_claims.take(name, first_lsn, lease_s)

    def trim(self, up_to_lsn: int, *, waste_ratio: float = WASTE_RATIO_DEFAULT) -> TrimReport:
        """Drop records at or below `up_to_lsn` of this replica; see `WriteAheadLog.trim`. The primary keeps its own.

        Never past the newest snapshot here: `Replica.checkpoint` takes one. LogNotFoundError before the first contact.
        """
        return self.maintenance.trimmer.trim(as_lsn(up_to_lsn, "up_to_lsn"), waste_ratio)

    def require_log(self) -> None:
        """LogNotFoundError before the first contact with the primary, LogClosedError once the log is closed."""
        if self.closed:
            raise LogClosedError(f"the replica's log at {self.location} is closed")
        if not self.adopted:
            raise LogNotFoundError(self.location)

    def close(self) -> None:
        """Seal the open segment and free the log. Closing twice does nothing; an interrupt does not end it."""
        self._importer.close()
        if self._payloads is not None:
            self._payloads.close()
        self._finalizer.detach()
        self._end_reopening()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<ImportedLog {self.location} {state}: LSN {self._importer.end.last_lsn}>"


def close_dropped(importer: AnyImporter) -> None:
    """Close a replica's log whose object is gone. The collector may call this on any thread."""
    if importer.closed:
        return
    run_for_dropped(lambda: _close_quietly(importer))
    report_dropped(
        f"the replica's log at {importer.storage.location}", importer.events, importer.storage.location
    )


def _close_quietly(importer: AnyImporter) -> None:
    try:
        importer.close()
    except WalkitError as error:
        importer.events.emit("walkit.log.poison", cause=repr(error), acked_lsn=importer.end.last_lsn)
