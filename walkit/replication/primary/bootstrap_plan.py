"""The plan of a bootstrap, on the publisher's side: what a replica's log is to be, and the files it is read from.

All that a plan names stays as it is while the replica's claim counts: sealed segments are never changed, the one in use
is sent up to a durable frame, and the snapshot is kept open.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from walkit._internal.locks import once
from walkit.copier.plan import open_span, plan_segments, planned_manifest
from walkit.errors import FormatVersionError, SnapshotError, StorageError, WalkitError
from walkit.events import EventSink
from walkit.format.frame import FrameIdentity
from walkit.format.manifest_file import encode_base
from walkit.format.names import snapshot_name
from walkit.recovery.snapshot_reader import read_header
from walkit.replication.logs.source import Source
from walkit.replication.protocol.messages import Fetch, Plan
from walkit.segments.manifest_store import load_manifest
from walkit.state.snapshot import identity_at, snapshot_lsns, verify_snapshot
from walkit.storage.interface import Storage, StorageFile

VERDICT_S: Final = 600.0
"""So long a verdict counts: files get damaged later, and are put back."""


class PlannedFiles:
    """The files of one plan, open for reading. Used by one thread; to be closed."""

    def __init__(self, source: Source, checks: SnapshotChecks) -> None:
        """Make the plan of this moment; a claim on all that there is comes before.

        CorruptionError where a frame that has to be looked at is damaged; SnapshotError or FormatVersionError where no
        snapshot is whole and one is needed; GapError where something was dropped meanwhile; StorageError.
        """
        self._file: StorageFile | None = None
        self._index = -1
        self._snapshot: StorageFile | None = None
        # The snapshot before the view: the log is durable up to each one that has a name.
        snapshot_lsn = self._open_snapshot(source.storage, checks)
        try:
            self._view = source.view()
            self._segments, end = plan_segments(self._view, snapshot_lsn)
            records, sizes = [s.record for s in self._segments], [s.size for s in self._segments]
            manifest = planned_manifest(self._view.manifest, records, end, snapshot_lsn)
            if self._snapshot is not None:
                sizes.append(self._snapshot.size())
            self.plan = Plan(manifest=encode_base(manifest), sizes=tuple(sizes), snapshot_lsn=snapshot_lsn)
        except BaseException:
            self.close()
            raise

    def _open_snapshot(self, storage: Storage, checks: SnapshotChecks) -> int:
        """Open the newest snapshot that is whole; return its LSN, or 0 where there is none and none is needed.

        The SnapshotError or FormatVersionError of the newest one where none is whole and the log was trimmed by them.
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
                        self._snapshot = file
                        return lsn
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
        return 0

    def read(self, fetch: Fetch) -> bytes:
        """Return bytes of a file of the plan. GapError where it was dropped; StorageError."""
        if fetch.file == len(self._segments):
            assert self._snapshot is not None
            data = self._snapshot.read(fetch.offset, fetch.size)
        else:
            if self._index != fetch.file:
                self._close_segment()
                self._file, _ = open_span(self._view, self._segments[fetch.file].span)
                self._index = fetch.file
            assert self._file is not None
            data = self._file.read(fetch.offset, fetch.size)
        if len(data) != fetch.size:
            raise StorageError(
                f"file {fetch.file} of the plan ends before byte {fetch.offset + fetch.size:,}",
                errno=errno.EIO,
            )
        return data

    def _close_segment(self) -> None:
        file, self._file, self._index = self._file, None, -1
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close the files."""
        with suppress(WalkitError):
            self._close_segment()
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None


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
        """Return why the snapshot at this LSN cannot be used, which is `on_trouble`, too; None where it is whole."""
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
