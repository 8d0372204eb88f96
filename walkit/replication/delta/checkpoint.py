"""A delta reader's own checkpoint: its state, and of which record of which history it is, in a folder of its own."""

from __future__ import annotations

import uuid
from contextlib import suppress

from walkit.errors import (
    CorruptionError,
    DivergenceError,
    OptionsError,
    SnapshotError,
    StorageError,
)
from walkit.events import EventSink
from walkit.format.manifest import MANIFEST_NAME, Manifest
from walkit.replication.delta.loader import Reached
from walkit.replication.logs.private_file import read_private, write_private
from walkit.segments.writer_lock import take_writer_lock
from walkit.state.machine import StateImage
from walkit.state.snapshot import (
    SnapshotInfo,
    identity_at,
    read_snapshot,
    snapshot_lsns,
    snapshot_name,
    write_snapshot,
)
from walkit.state.table import KeyedTable
from walkit.storage.address import Place, storage_at

OWNER_NAME = "delta-reader"
KEPT = 2
"""So many snapshots are kept: where the newest is damaged, the one before it is used while the log reaches back."""


class DeltaCheckpoint:
    """The folder of one reader's checkpoints; one reader at a time has it. One thread at a time.

    A snapshot appears under its name whole or not at all, so a killed reader continues with the one before.
    """

    def __init__(self, place: Place, log_id: int) -> None:
        """Take the folder; LogLockedError where another reader has it, DivergenceError where it is of another log.

        OptionsError for the folder of a log.
        """
        self.storage = storage_at(place)
        if self.storage.exists() and MANIFEST_NAME in self.storage.names():
            raise OptionsError(
                f"{self.storage.location} is a log's folder: give a folder for this reader alone",
                option="checkpoint",
                wanted=place,
            )
        self.storage.create()
        self._lock = lock = take_writer_lock(self.storage)
        try:
            found = read_private(self.storage, OWNER_NAME)
            facts = {"owner": uuid.uuid4().hex, "log_id": f"{log_id:016x}"} if found is None else found[0]
            if facts.get("log_id") != f"{log_id:016x}":
                raise DivergenceError(
                    f"the checkpoint at {self.storage.location} is of log {facts.get('log_id')}, and this is log "
                    f"{log_id:016x}. Nothing was changed",
                    first_lsn=1,
                )
            try:
                self.owner = uuid.UUID(hex=facts["owner"])
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptionError(
                    f"the file {OWNER_NAME} at {self.storage.location} has no owner",
                    segment=OWNER_NAME,
                    expected="a UUID",
                    found=facts.get("owner"),
                ) from error
            if found is None:
                write_private(self.storage, OWNER_NAME, lambda _: facts)
        except BaseException:
            lock.release()
            raise

    def restore(self, manifest: Manifest, table: KeyedTable, events: EventSink) -> SnapshotInfo | None:
        """Restore the newest good snapshot; None where there is none. Damaged ones are passed over, with an event.

        DivergenceError for one of another history of the log: what the reader had applied was cut since.
        """
        for lsn in reversed(snapshot_lsns(self.storage)):
            try:
                return read_snapshot(self.storage, lsn, table, identity=identity_at(manifest, lsn))
            except SnapshotError as error:
                if error.stage == "identity":
                    raise DivergenceError(
                        str(error), first_lsn=min(lsn, manifest.end.last_lsn + 1)
                    ) from error
                events.emit("walkit.snapshot.skip", lsn=lsn, error=str(error))
                table.restore((), 0)
        return None

    def save(self, image: StateImage, reached: Reached, manifest: Manifest) -> int:
        """Write the state durably, and remove older ones; return its LSN. SnapshotError, DivergenceError.

        The epoch is that of the applied record, so a snapshot of a cut history is never taken for one of the log.
        """
        identity = identity_at(manifest, reached.lsn)
        if identity.epoch_id != reached.epoch_id and reached.epoch_id:
            raise DivergenceError(
                f"record {reached.lsn:,} is of another epoch now: what the reader has applied was cut",
                first_lsn=min(reached.lsn, manifest.end.last_lsn + 1),
            )
        info = write_snapshot(
            self.storage, image, identity=identity, make_durable=lambda lsn: None, codec="zstd"
        )
        for lsn in snapshot_lsns(self.storage)[:-KEPT]:
            with suppress(StorageError):
                self.storage.remove(snapshot_name(lsn))
        return info.lsn

    def close(self) -> None:
        """Free the folder."""
        self._lock.release()
