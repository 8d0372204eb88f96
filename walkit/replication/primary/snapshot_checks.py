"""Whether a primary's snapshots are whole, looked at before a replica fetches one: its header alone does not say."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from walkit.errors import FormatVersionError, SnapshotError
from walkit.events import EventSink
from walkit.format.frame import FrameIdentity
from walkit.state.snapshot import verify_snapshot
from walkit.storage.interface import Storage

VERDICT_S: Final = 600.0
"""So long a verdict counts: files get damaged later, and are put back."""


class SnapshotChecks:
    """Checks each snapshot of a log once in a while. Safe from any thread; one reads a snapshot, and others wait.

    A replica that gives up while a large one is read finds the verdict when it comes again.
    """

    def __init__(
        self, storage: Storage, events: EventSink, on_trouble: Callable[[str], None] = lambda _: None
    ) -> None:
        self._storage, self._events, self._on_trouble = storage, events, on_trouble
        self._lock = threading.Lock()
        self._known: dict[
            tuple[int, FrameIdentity], tuple[float, SnapshotError | FormatVersionError | None]
        ] = {}

    def fault(self, lsn: int, identity: FrameIdentity) -> SnapshotError | FormatVersionError | None:
        """Return why the snapshot at this LSN cannot be used, which is `on_trouble`, too; None where it is whole."""
        with self._lock:
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
