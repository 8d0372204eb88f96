"""The plan of a bootstrap, on the publisher's side: the log that a replica is to have, and the files it is read from.

All that a plan names stays as it is while the replica's claim counts: sealed segments are never changed, the one in use
is sent up to a durable frame, and the snapshot is kept open. A replica whose connection breaks gets the same plan
again, and continues: it would not have the files of a newer one.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from typing import Final

from walkit._internal.locks import once
from walkit.copier.planned_files import PlannedFiles
from walkit.copier.snapshot_check import snapshot_lsns, verify_snapshot
from walkit.errors import FormatVersionError, SnapshotError, StorageError
from walkit.events import EventSink
from walkit.format.file_names import snapshot_name
from walkit.format.frame import FrameIdentity
from walkit.format.manifest import encode_base
from walkit.recovery.snapshot_reader import read_header
from walkit.replication.logs.source import Source
from walkit.replication.protocol.messages import Plan
from walkit.segments.history import identity_at
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage, StorageFile

VERDICT_S: Final = 600.0
"""So long a verdict counts: files get damaged later, and are put back."""


class BootstrapFiles(PlannedFiles):
    """The files of one plan, and the message of it for a replica. Used by one thread; to be closed."""

    until_s = 0.0
    """When the claim of a replica that is away is over, by the clock of this process; 0 before its first fetch."""

    def __init__(self, source: Source, checks: SnapshotChecks) -> None:
        """Make the plan of this moment.

        CorruptionError if a frame that has to be looked at is damaged; SnapshotError or FormatVersionError if no
        snapshot is whole and one is needed; GapError if something was dropped meanwhile; StorageError.
        """
        # The snapshot before the view: the log is durable up to each one that has a name.
        newest = _newest_snapshot(source.storage, checks)
        super().__init__(source.view, newest, covered_lsn=max(newest, default=0))
        lsn = max(self.snapshot_lsns, default=0)
        self.plan = Plan(manifest=encode_base(self.manifest), sizes=self.sizes, snapshot_lsn=lsn)


class KeptPlans:
    """The plans of replicas that have fetched and are away, until their claims are over. Safe from any thread."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self.plans: dict[str, BootstrapFiles] = {}
        """By key; a session that takes one out owns it. Each step is one call, which no other thread interrupts."""

    def leave(self, key: str, files: BootstrapFiles, *, fetched: bool) -> None:
        """Keep the plan of a session that has ended, if it, or one before it, has fetched; else close it."""
        if fetched:
            files.until_s = time.monotonic() + self._lease_s
        if files.until_s:
            self.plans[key] = files
        else:
            files.close()

    def drop(self, now_s: float) -> None:
        """Close the plans without a claim."""
        for key, files in list(self.plans.items()):
            if files.until_s <= now_s and (over := self.plans.pop(key, None)) is not None:
                over.close()


def _newest_snapshot(storage: Storage, checks: SnapshotChecks) -> dict[int, StorageFile]:
    """Open the newest snapshot that is whole, by its LSN; an empty dictionary if none is whole and none is needed.

    The SnapshotError or FormatVersionError of the newest one if none is whole and the log was trimmed by them.
    """
    manifest = load_manifest(storage)
    refused: list[SnapshotError | FormatVersionError] = []
    for lsn in reversed(snapshot_lsns(storage)):
        if lsn < manifest.low_watermark:
            break  # the log does not reach back to it
        file = None
        try:
            file = storage.open(snapshot_name(lsn), "read")
            if read_header(file).identity == (identity := identity_at(manifest, lsn)):
                fault = checks.fault(lsn, identity)
                if fault is None:
                    return {lsn: file}
                refused.append(fault)
        except (SnapshotError, FormatVersionError) as error:
            refused.append(error)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
        if file is not None:
            file.close()
    if refused and manifest.low_watermark:
        raise refused[0]
    return {}


class SnapshotChecks:
    """Checks each snapshot of a log once in a while. Safe from any thread; one reads a snapshot, and others wait.

    A replica that gives up while a large one is read finds the verdict when it comes again.
    """

    def __init__(
        self, storage: Storage, events: EventSink, on_trouble: Callable[[str], None] = lambda _: None
    ) -> None:
        self._storage, self._events, self._on_trouble = storage, events, on_trouble
        self._lock = threading.RLock()
        self._known: dict[
            tuple[int, FrameIdentity], tuple[float, SnapshotError | FormatVersionError | None]
        ] = {}

    def fault(self, lsn: int, identity: FrameIdentity) -> SnapshotError | FormatVersionError | None:
        """Return why the snapshot at this LSN cannot be used, also to `on_trouble`; None if it is whole."""
        with self._events.held(), once(self._lock), self._lock:
            now = time.monotonic()
            self._known = {key: known for key, known in self._known.items() if now - known[0] < VERDICT_S}
            known = self._known.get((lsn, identity))
            if known is None:
                known = now, self._checked(lsn, identity)
                self._known[lsn, identity] = known
        if known[1] is not None:
            self._on_trouble(f"the snapshot at LSN {lsn:,} cannot be given to replicas: {known[1]}")
        return known[1]

    def _checked(self, lsn: int, identity: FrameIdentity) -> SnapshotError | FormatVersionError | None:
        try:
            verify_snapshot(self._storage, lsn, identity=identity)
        except (SnapshotError, FormatVersionError) as error:
            self._events.emit("walkit.snapshot.skip", lsn=lsn, error=str(error))
            return error
        return None
