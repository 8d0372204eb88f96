"""The durable slot and the manifest's promise in their file (FORMAT.md F-4): stores take turns between two places."""

from __future__ import annotations

from walkit.errors import StorageError
from walkit.events import EventSink
from walkit.format.durable_slot import DurableSlot, ManifestPromise, encode_promise, encode_slot
from walkit.format.frame import FrameIdentity
from walkit.format.layout import DURABLE_SLOTS_BYTES
from walkit.format.manifest import Manifest
from walkit.storage.interface import Cell, Storage

DURABLE_NAME = "durable"


class SlotStore:
    """Stores how far a log, and which manifest, is on stable storage. If a store fails, that is an event, no poison.

    `store` has one caller at a time, under the commit lock, and `promise` another, under that of the manifest: each has
    places of its own in the file, so that neither waits for the other.
    """

    def __init__(self, storage: Storage, newest: DurableSlot, events: EventSink) -> None:
        self._cell: Cell | None = storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=True)
        self._generation = newest.generation
        self._turn = 0
        self._location, self._events = storage.location, events
        self._fails = False

    def store(self, identity: FrameIdentity, position: int, lsn: int) -> None:
        """Store the slot in the place that the last store left alone."""
        generation = self._generation + 1
        try:
            if self._cell is not None:
                self._cell.write(*encode_slot((generation, identity.epoch, identity.epoch_id, position, lsn)))
        except StorageError as error:
            # The next store takes the same place again: the other one has the value that is still true.
            self._fail(error)
            return
        self._generation = generation
        self._fails = False

    def promise(self, manifest: Manifest) -> None:
        """Say that this manifest is on stable storage, in the newest epoch of its lineage; without one, nothing."""
        if manifest.lineage:
            epoch = manifest.lineage[-1]
            promise = ManifestPromise(manifest.generation, epoch.number, epoch.id)
            try:
                if self._cell is not None:
                    self._cell.write(*encode_promise(promise, self._turn))
            except StorageError as error:
                self._fail(error)
                return
            self._turn += 1

    def _fail(self, error: StorageError) -> None:
        if not self._fails:
            self._fails = True
            self._events.emit("walkit.slot.fail", location=self._location, error=str(error))

    def close(self) -> None:
        """Close the cell; its bytes stay."""
        if self._cell is not None:
            self._cell.close()
