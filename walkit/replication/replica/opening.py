"""How a replica's log, its store and its protocol core are opened: once at first, and again after each rewind."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import NamedTuple, cast

from walkit.config import LogOptions
from walkit.errors import DivergenceError, WalkitError
from walkit.events import EventSink
from walkit.format.manifest import LogEnd, Manifest
from walkit.objects.entrance import object_store_of
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.logs.folder_role import REPLICA_KEY
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.protocol.failures import RewindError
from walkit.replication.protocol.identity import mint
from walkit.replication.protocol.messages import NAME_CHARS_MAX
from walkit.replication.replica.identity_file import OwnIdentity, drop_identity
from walkit.replication.replica.rewind import rewind_storage
from walkit.replication.replica.store import ReplicaStore
from walkit.storage.address import AnyPlace
from walkit.storage.interface import Storage
from walkit.storage.object_store import ObjectStore

FRAME_BYTES_TAKEN = 64 << 20
"""The largest frame that any replica takes; `frame_bytes_max` of its options may say more."""


class Opened(NamedTuple):
    """The open parts of a replica. A rewind replaces them."""

    log: ImportedLog
    store: ReplicaStore
    core: Subscriber


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaOpening:
    """The arguments of a replica. Does not refer to the user's object, so that one can be dropped."""

    storage: Storage | ObjectStore
    options: LogOptions | None
    events: EventSink
    name: str | None
    codec: str | None
    versions: tuple[int, int]
    backoff: Backoff | None
    checkpoint_every: int | None
    rewinds: bool
    """Whether a diverged suffix is to be cut off."""
    forced: bool
    payload_log: AnyPlace | None = None

    def open(
        self, own: OwnIdentity | None, *, new_identity: bool = False, before: ImportedLog | None = None
    ) -> Opened:
        """Open the folder, with the writer's lock, after the log `before`. Nothing is held if it raises."""
        again, watchers = (None, None) if before is None else (before.folder, before.watchers)
        log = ImportedLog(self.storage, self.options, self.events, again, watchers, self.payload_log)
        try:
            if self.payload_log is not None:
                log.name_payload_log(self.payload_log)
            if new_identity and not log.keep_identity(""):
                drop_identity(log.storage)  # with the writer's lock: no other replica is in this folder
            store = ReplicaStore(log, self.checkpoint_every)
            return Opened(log, store, self._core(log, own, new_identity))
        except BaseException:
            log.close()
            raise

    def _core(self, log: ImportedLog, own: OwnIdentity | None, new_identity: bool) -> Subscriber:
        manifest = log.manifest
        stored = own.name if own else "" if new_identity else manifest.extra.get(REPLICA_KEY, {}).get("name")
        frame_bytes_max = 0 if self.options is None else self.options.frame_bytes_max
        return Subscriber(
            self.name or stored or _name_of(log.location),
            log_id=manifest.log_id,
            lineage=manifest.lineage,
            end=log.end,
            codecs=() if self.codec is None else (self.codec,),
            versions=self.versions,
            backoff=self.backoff,
            frame_bytes_max=max(frame_bytes_max, FRAME_BYTES_TAKEN),
            identity=own.identity if own else mint(),
            keeps=own is not None,
            bootstraps=True,
        )

    def needs_rewind(self, error: WalkitError | None, log: ImportedLog) -> bool:
        """Return whether to try a rewind after this error: on request, or if no record can differ."""
        if not isinstance(error, DivergenceError) or isinstance(error, RewindError):
            return False
        if object_store_of(self.storage) is not None:
            return False  # a bulk of the log is never replaced
        return self.rewinds or only_markers_differ(error, log.manifest, log.end)

    def rewound(self, before: Opened, error: DivergenceError) -> tuple[Opened, WalkitError | None]:
        """Close the log, cut off the records that its primary lacks, and open it again under a new identity.

        Without having been asked for it cuts frames without records alone. Where the rewind is refused the log is
        opened as it was, and the refusal returned. Raises the errors of opening; the log is closed then.
        """
        before.log.close()
        before.store.wake()
        refused: WalkitError | None = None
        identity = before.core.identity
        own = OwnIdentity(identity, before.core.name) if identity and before.core.keeps else None
        try:
            report = rewind_storage(
                cast(Storage, self.storage),
                error.first_lsn,
                force=self.forced,
                records=self.rewinds,
                options=self.options or LogOptions(),
                events=self.events,
                again=before.log.folder,
            )
            own = None
            # The difference is not in this log: doing it again would not end.
            if not report.bytes_cut and not report.epochs_cut:
                refused = error
        except RewindError as refusal:
            refused = refusal if self.rewinds else error
        after = self.open(own, before=before.log)
        after.core.continue_as(before.core)
        return after, refused


def only_markers_differ(error: DivergenceError, manifest: Manifest, end: LogEnd) -> bool:
    """Return whether all that a log has from the first difference on is frames without records, of an epoch before it.

    Then its primary was promoted with fewer of them. A log that has an epoch of its own there was promoted itself.
    """
    first = error.first_lsn
    return 1 < first > end.last_lsn and all(epoch.first_lsn < first for epoch in manifest.lineage)


def _name_of(location: str) -> str:
    """Return a name that no other replica has, after the folder if possible."""
    folder = "".join(c for c in os.path.basename(location.rstrip("/")) if c.isprintable())
    return f"{folder[: NAME_CHARS_MAX // 2] or 'replica'}-{secrets.token_hex(4)}"
