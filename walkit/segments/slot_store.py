"""The writer's side of the durable slot (FORMAT.md F-4): stores take turns between its two places."""

from __future__ import annotations

from walkit.errors import StorageError
from walkit.events import EventSink
from walkit.format.durable_slot import DurableSlot, encode_slot
from walkit.format.frame import FrameIdentity
from walkit.storage.interface import Cell


class SlotStore:
    """Stores how far a log is on stable storage. One caller at a time: the commit lock is held."""

    def __init__(self, cell: Cell | None, newest: DurableSlot, location: str, events: EventSink) -> None:
        self._cell = cell
        self._generation = newest.generation
        self._location, self._events = location, events
        self._fails = False

    def store(self, identity: FrameIdentity, position: int, lsn: int) -> None:
        """Store in the place that the last store left alone. If it fails, that is an event and no poison."""
        if self._cell is None:
            return
        generation = self._generation + 1
        try:
            self._cell.write(*encode_slot((generation, identity.epoch, identity.epoch_id, position, lsn)))
        except StorageError as error:
            # The next store takes the same place again: the other one has the value that is still true.
            if not self._fails:
                self._fails = True
                self._events.emit("walkit.slot.fail", location=self._location, error=str(error))
            return
        self._generation = generation
        self._fails = False

    def close(self) -> None:
        """Close the cell; its bytes stay."""
        if self._cell is not None:
            self._cell.close()
