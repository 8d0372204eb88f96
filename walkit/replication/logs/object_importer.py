"""The importer of a replica's log on object storage: see `Importer`, which works in a folder.

Each run of frames becomes one bulk. A replica mints no epoch, so its opening puts no fence. Two that import into one
place collide at the next number, and only frames that follow are put: each acknowledges the existing frames, and the
later one ends with LogFencedError. A writer that opens the log fences both by the fence of its epoch.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from walkit._internal.locks import marked, once
from walkit._main_thread import run_uninterrupted
from walkit.commit.latches import CommitSignal
from walkit.config import LogOptions
from walkit.copier.object_target import ObjectTarget
from walkit.errors import (
    LogClosedError,
    LogFencedError,
    LogPoisonedError,
    ObjectUnsupportedError,
    WalkitError,
)
from walkit.events import EventSink
from walkit.format.layout import align_up
from walkit.format.manifest import EpochRecord, LogEnd, Manifest
from walkit.log.live_log import Lifetime
from walkit.objects.layout import MANIFEST_KEY
from walkit.objects.object_sink import SAVE_OBJECTS
from walkit.objects.opening import Opening
from walkit.objects.requests import Patience, PatientReads, put_own
from walkit.objects.segments_folder import segments_folder
from walkit.objects.verbatim import VerbatimBulks
from walkit.objects.view import ObjectEnd, ObjectView
from walkit.objects.vouched import encoded
from walkit.read.reader import live_view
from walkit.read.view import LogView
from walkit.replication.logs.folder_role import as_replica
from walkit.replication.logs.importer import Watchers
from walkit.replication.protocol.frame_run import FrameRun
from walkit.storage.object_store import ObjectStore

REQUEST_S: Final = 30.0
"""How long one request is repeated."""
IDENTITY_KEY: Final = "identity"


class _Refused:
    """A part that replicas in folders have alone: it names no files, and refuses every other use."""

    def __init__(self, location: str) -> None:
        self.location = location
        # Of no trim; a store that is made over the log takes it.
        self.state_lock = threading.RLock()

    def names(self, folder: str = "") -> list[str]:
        """See Storage."""
        return []

    def close(self) -> None:
        """Nothing is held."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ObjectUnsupportedError(
            f"the replica at {self.location} is on object storage: claims, trims and checkpoints of its own are only "
            "for one in a folder",
            what=name,
            store=self.location,
        )


class ObjectImporter:
    """One replica's log on object storage that is open for importing. One thread imports; see `Importer`."""

    folder = recovery = None

    def __init__(
        self,
        place: ObjectStore,
        options: LogOptions,
        events: EventSink,
        watchers: Watchers,
    ) -> None:
        """Read the log to its end. Raises the errors of opening a log for writing."""
        self.place, self.options, self.events, self.watchers = place, options, events, watchers
        self.lifetime, self.advanced = Lifetime(), CommitSignal()
        self.failure: BaseException | None = None
        self.storage: Any = _Refused(place.location)
        self._reads = PatientReads(place, lambda: Patience(REQUEST_S))
        self._nonce = secrets.randbits(64) | 1
        self._closing = threading.RLock()
        """Held through a closing: the second caller returns when the first is done."""
        self._identity: dict[str, str] = {}
        self.current, self._tag = Manifest(log_id=0), ""
        """The manifest in its place."""
        self.adopted, self.end = False, LogEnd()
        self.manifest_store: Any = self
        # Trims, checkpoints and claims of a replica on object storage are refused.
        refusing: Any = _Refused(place.location)
        self.maintenance: Any = SimpleNamespace(trimmer=refusing, orphan_files=refusing, own_claims=refusing)
        self.segments: Any = SimpleNamespace(maintenance=refusing)
        if self._reads.find(MANIFEST_KEY) is not None:
            self._open()

    def _open(self) -> None:
        opening = Opening(self._reads)
        opening.follow()
        manifest, taken = opening.manifest, opening.taken
        self._tag, self._floor = opening.manifest_tag, opening.floor
        self._bulks, self._source = VerbatimBulks(self._reads, manifest.log_id, taken), ObjectEnd(self.place)
        # An import that died between a fence and the manifest with its epoch.
        self.current = replace(manifest, lineage=(*manifest.lineage, *taken.began))
        self.end, self.adopted = taken.place.end, True
        self.storage = segments_folder(self._current_view)

    def _current_view(self) -> ObjectView:
        place = self._bulks.place
        manifest = replace(self.current, end=place.end)
        return ObjectView(self._source.folder(), manifest, self._floor, place, self._source)

    def adopt(self, log_id: int, *, created_us: int, ack_order: str, extra: Mapping[str, Any]) -> None:
        """Become a replica of this log, at the first contact; durable on return.

        ObjectUnsupportedError for a log of completion order.
        """
        if ack_order != "append":
            raise self._unsupported("a replica of a log that acknowledges in completion order")
        said = {**extra, **self._identity, "object": 0, "opening": []}
        _, data = encoded(Manifest(log_id=log_id, created_us=created_us), self._nonce, said)
        if put_own(self._reads, MANIFEST_KEY, data, None) is None:
            raise LogFencedError(self.place.location, 0)
        self._open()

    def keep_identity(self, identity: str) -> bool:
        """Keep the identity of this replica in the manifest, with its place: a copy of it is another's."""
        self._identity = {IDENTITY_KEY: f"{identity} {self.place.location}"}
        if self.adopted:
            self._save(self.current.lineage)
        return True

    def note(self, facts: Mapping[str, Any]) -> None:
        """See Manifests."""
        self.current = replace(self.current, extra={**self.current.extra, **facts})
        self._save(self.current.lineage)

    def import_run(self, run: FrameRun, lineage: tuple[EpochRecord, ...]) -> LogEnd:
        """Put frames that follow the end of this log, as one bulk; durable on return. Returns the new end.

        LogFencedError if another opening has put something there. A StorageError poisons the log: open it again.
        ObjectUnsupportedError for frames that come after a jump of LSNs or positions.
        """
        if self.closed:
            raise LogClosedError(f"the replica's log at {self.place.location} is closed")
        if self.failure is not None:
            raise LogPoisonedError(f"an earlier write failed ({self.failure}); open the replica again")
        assert run.after == self.end and run.identity.log_id == self.current.log_id
        bulks, limits = self._bulks, run.limits
        begun = [e for e in lineage if e.number > bulks.place.epoch]
        starts = {(e.first_lsn, e.position) for e in begun} | {(run.first_lsn, self.end.position)}
        is_near = run.start_position == align_up(self.end.position, limits.alignment)
        if starts != {(self.end.last_lsn + 1, self.end.position)} or not is_near:
            raise self._unsupported("a jump of LSNs or positions")
        try:
            if begun:
                # Named before their fences are there, so that a reader knows them.
                self._save(self.current.lineage, begun)
                bulks.begin_epochs(begun)
                self._save(lineage)
            header = bulks.header(run.identity, limits.alignment, limits.frame_bytes_max)
            bulks.put(header, run.data, sum(h.records for h in run.headers), run.end)
            if bulks.place.number - self.current.extra["object"] >= SAVE_OBJECTS:
                self._save(self.current.lineage)
        except WalkitError as error:
            self.failure = error
            self.events.emit("walkit.log.poison", cause=repr(error), acked_lsn=self.end.last_lsn)
            raise
        with marked(), self.advanced.lock:
            self.end = run.end
            self.advanced.notify_locked()
        self.watchers.notify()
        return run.end

    def _save(self, lineage: tuple[EpochRecord, ...], opening: Sequence[EpochRecord] = ()) -> None:
        """Put the manifest with the end as the vouched end. LogFencedError if another opening has replaced it."""
        place, (said, own) = self._bulks.place, self._bulks.taken.fields()
        extra = {**self._identity, **said, "opening": [[e.number, e.id] for e in opening]}
        before = replace(self.current, extra=as_replica(self.current.extra))
        after, data = encoded(before, self._nonce, extra, lineage=lineage, **own)
        tag = put_own(self._reads, MANIFEST_KEY, data, self._tag)
        if tag is None:
            raise LogFencedError(self.place.location, place.epoch)
        self.current, self._tag = after, tag

    def _unsupported(self, what: str) -> ObjectUnsupportedError:
        location = self.place.location
        return ObjectUnsupportedError(
            f"no log on object storage can be {what}: {location}", what=what, store=location
        )

    def gathering(self) -> ObjectTarget:
        """Return the target of a bootstrap. This log has to be empty."""
        return ObjectTarget(self.place, replaces=True)

    def view(self) -> LogView:
        """Return a view of the records that can be read now."""
        return live_view(self.storage) if self.adopted else LogView(self.storage, self.current, ())

    @property
    def closed(self) -> bool:
        """Whether the log has been closed."""
        return self.lifetime.closed

    @property
    def acked_lsn(self) -> int:
        """See LogMarks."""
        return self.end.last_lsn

    durable_lsn = acked_lsn

    @property
    def written_position(self) -> int:
        """See LogMarks."""
        return self.end.position

    durable_position = written_position

    def close(self) -> None:
        """Save the vouched end. Closing twice does nothing; an interrupt does not end it."""
        run_uninterrupted(self._close, "close", events=self.events)

    def _close(self) -> None:
        with once(self._closing), self._closing:
            if self.closed:
                return
            self.lifetime.end_work()
            with marked(), self.advanced.lock:
                self.lifetime.closed = True
                self.advanced.notify_locked()
            try:
                if (
                    self.adopted
                    and self.failure is None
                    and self._bulks.place.number > self.current.extra["object"]
                ):
                    self._save(self.current.lineage)
            except WalkitError as error:  # nothing is lost: the next opening reads on from the last saved end
                self.events.emit("walkit.maintenance.fail", job="vouched end", error=str(error))
            finally:
                self.place.close()  # its next put opens it again
                self.lifetime.end()
                self.watchers.notify()

    def forget(self) -> None:
        """In a forked child: this copy is dead, the parent's log continues untouched."""
        self.lifetime.forget()
        self.advanced, self._closing = CommitSignal(), threading.RLock()
