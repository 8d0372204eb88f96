"""What a delta reader does beside reading: its claim on what it has not read, and its checkpoints, on one thread."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

from walkit._locks import WORK, alone
from walkit._threads import Bell
from walkit.errors import (
    ClaimError,
    DivergenceError,
    GapError,
    StorageError,
    WalkitError,
)
from walkit.read.claim import Claim, claim
from walkit.replication.delta.checkpoint import DeltaCheckpoint
from walkit.replication.delta.state import ReaderState
from walkit.segments.claim_files import READ_ONLY
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage

CLAIM_S = 2.0
"""The least time between two writings of a claim: each costs a sync."""
LOOK_S = 0.25


class ReaderClaim:
    """The claim of one reader: it keeps the records that are not in a state that will be there again. One thread.

    In a folder that can only be read there is none: then trims and compaction may overtake the reader, which ends with
    a GapError then.
    """

    def __init__(self, storage: Storage, name: str, owner: uuid.UUID | None, lease_s: float) -> None:
        self._storage, self.name, self._owner, self._lease_s = storage, name, owner, lease_s
        self._claim: Claim | None = None
        self._written_s = 0.0
        self.trouble = ""
        self.refused = False
        """Whether the folder can only be read."""

    def take(self, first_lsn: int | None) -> None:
        """Take the claim, from this record on, or from the oldest there is.

        Raises what `walkit.claim` raises, but for a folder that can only be read: then there is no claim.
        """
        try:
            self._claim = claim(
                self._storage, self.name, first_lsn, self._lease_s, owner=self._owner, complete=False
            )
        except StorageError as error:
            if error.errno not in READ_ONLY:
                raise
            self.refused, self.trouble = True, f"the log's folder can only be read: {error}"
            return
        self._owner, self._written_s = self._claim.owner, time.monotonic()

    @property
    def first_lsn(self) -> int | None:
        """The first record that is kept; None where there is no claim."""
        return None if self._claim is None else self._claim.first_lsn

    def line(self) -> str:
        """Return what is kept, in words."""
        if self._claim is None:
            return f"none: {self.trouble}" if self.trouble else "none"
        return f"LSN {self._claim.first_lsn:,} and later, {self._claim.state}"

    def advance(self, first_lsn: int) -> None:
        """Keep records from here on alone, if it is time to write that. DivergenceError for another history."""
        now = time.monotonic()
        held = self._claim
        if self.refused or now - self._written_s < CLAIM_S:
            return
        due = now - self._written_s >= self._lease_s / 4
        due |= held is not None and held.state == "expired"  # a machine that slept, a clock that was set
        if held is not None and first_lsn <= held.first_lsn and not due:
            return
        self._written_s = now  # what fails is tried again after the same time
        try:
            if held is None or held.state == "lost":
                self.take(first_lsn)
            else:
                held.advance(max(first_lsn, held.first_lsn))
            self.trouble = ""
        except DivergenceError:
            raise
        except (ClaimError, GapError, StorageError) as error:
            self.trouble = str(error)
            if isinstance(error, ClaimError | GapError):
                self._claim = None

    def end(self, *, keep_from: int | None) -> None:
        """Release the claim; or leave it to its lease from this record on, for a reader that will continue."""
        held, self._claim = self._claim, None
        if held is None:
            return
        try:
            if keep_from is None:
                held.release()
            elif held.state != "lost":
                held.advance(max(keep_from, held.first_lsn))
        except WalkitError as error:  # its lease ends it
            self.trouble = str(error)


class ReaderUpkeep:
    """Takes checkpoints and moves the claim, until it is stopped: `run` is a thread's."""

    def __init__(
        self,
        storage: Storage,
        state: ReaderState,
        kept: ReaderClaim,
        checkpoint: DeltaCheckpoint | None,
        *,
        every_s: float,
        saved_lsn: int,
        fail: Callable[[Exception], object],
    ) -> None:
        """`fail` is called with an error that ends the reader: another history is there."""
        self._storage, self._state, self.claim, self._checkpoint = storage, state, kept, checkpoint
        self._every_s, self._fail = every_s, fail
        self.saved_lsn, self.checkpoints = saved_lsn, 0
        self.trouble = ""
        """Why the last checkpoint failed; "" where it did not."""
        self._saved_s = time.monotonic()
        self._saving = threading.Lock()
        self._over = Bell()
        self.stopping = False

    def run(self) -> None:
        """Work until `stop`; then take the last checkpoint."""
        while not self.stopping:
            self._over.wait(LOOK_S)
            try:
                if time.monotonic() - self._saved_s >= self._every_s:
                    self.save()
                self.claim.advance(self._needed())
            except DivergenceError as error:
                self._fail(error)
                return
            except WalkitError as error:
                self.trouble = str(error)
            except Exception as error:  # noqa: BLE001 - without this thread the claim would end unnoticed
                self._fail(error)
                return

    def stop(self) -> None:
        """Have `run` end soon."""
        self.stopping = True
        self._over.set()

    def finish(self, *, whole: bool) -> None:
        """Take the last checkpoint where the state is whole, and give the claim up or leave it to its lease."""
        if whole:
            try:
                self.save()
            except WalkitError as error:
                self.trouble = str(error)
        self.claim.end(keep_from=None if self._checkpoint is None else self._needed())
        if self._checkpoint is not None:
            self._checkpoint.close()

    def save(self) -> int:
        """Take a checkpoint, if there is a folder for it and something new; return the LSN of the newest one.

        SnapshotError, StorageError, DivergenceError. Safe from any thread.
        """
        with alone(WORK), self._saving:
            self._saved_s = time.monotonic()
            if self._checkpoint is not None and self._state.applied_lsn > self.saved_lsn:
                found = self._state.image()
                if found is None:  # a range came to the state in part: the reader ends with that error
                    return self.saved_lsn
                self.saved_lsn = self._checkpoint.save(*found, load_manifest(self._storage))
                self.checkpoints += 1
                self.trouble = ""
            return self.saved_lsn

    def _needed(self) -> int:
        """Return the first record that is not in a state that a restart would find."""
        return (self._state.applied_lsn if self._checkpoint is None else self.saved_lsn) + 1
