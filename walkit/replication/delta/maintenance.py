"""Keeps a delta reader's claim on the unread records, and takes its checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from walkit._internal.locks import WORK, alone
from walkit._internal.threads import Latch, LogThread
from walkit.errors import ClaimError, DivergenceError, GapError, WalkitError
from walkit.read.kept_claim import KeptClaim
from walkit.replication.delta.checkpoint import DeltaCheckpoint
from walkit.replication.delta.state import ReaderState
from walkit.replication.logs.source import SharedLog

CLAIM_S = 2.0
"""The least time between two writings of a claim: each costs a sync."""
LOOK_S = 0.25


class ReaderMaintenance:
    """Moves the claim on one thread, and takes checkpoints on another, so that a slow checkpoint ends no claim."""

    def __init__(
        self,
        log: SharedLog,
        state: ReaderState,
        kept: KeptClaim,
        checkpoint: DeltaCheckpoint | None,
        *,
        every_s: float,
        saved_lsn: int,
        fail: Callable[[Exception], object],
    ) -> None:
        """`fail` is called with an error that ends the reader: another history is there."""
        self._log, self._state, self.claim, self._checkpoint = log, state, kept, checkpoint
        self._every_s, self._fail = every_s, fail
        self.saved_lsn, self.checkpoints = saved_lsn, 0
        self._troubles: dict[str, str] = {}
        """Why the claim was not kept, or the last checkpoint not taken; the next success clears it."""
        self._saved_s = time.monotonic()
        self._saving = threading.Lock()
        self._over = Latch()
        self._threads: list[LogThread] = []

    def start(self, name: str) -> None:
        """Begin, for the reader of this name."""
        jobs = {"claim": self._keep} | (
            {} if self._checkpoint is None else {"checkpoint": self._save_in_time}
        )
        for kind, job in jobs.items():
            thread = LogThread(
                target=self._run, args=(kind, job), name=f"walkit-delta-{kind} {name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    @property
    def trouble(self) -> str:
        """Why the claim was not kept, or the last checkpoint not taken; "" if nothing failed since."""
        return "; ".join([*self._troubles.values()])

    def _run(self, kind: str, job: Callable[[], object]) -> None:
        while not self._over.wait(LOOK_S):
            try:
                job()
                if kind == "claim":  # a checkpoint clears its own when it is taken
                    self._troubles.pop(kind, None)
            except DivergenceError as error:
                self._fail(error)
                return
            except WalkitError as error:
                self._troubles[kind] = str(error)
            except Exception as error:  # noqa: BLE001 - without this thread the claim would end unnoticed
                self._fail(error)
                return

    def stop(self, wait_s: float = 0) -> None:
        """Have the threads end soon, and wait for each of them so long."""
        self._over.set()
        for thread in self._threads if wait_s else ():
            thread.join(wait_s)

    @property
    def at_work(self) -> list[str]:
        """The names of the threads that have not ended."""
        return [thread.name for thread in self._threads if not thread.ended]

    def finish(self, *, whole: bool) -> None:
        """Take the last checkpoint if the state is whole, and release the claim or leave it to its lease."""
        if whole:
            try:
                self.save()
            except WalkitError as error:
                self._troubles["checkpoint"] = str(error)
        if self._checkpoint is None:
            self.claim.release()
            return
        with suppress(WalkitError):  # its lease ends it
            self._keep(now=True)
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
                self.saved_lsn = self._checkpoint.save(*found, self._log.manifest())
                self.checkpoints += 1
                self._troubles.pop("checkpoint", None)
            return self.saved_lsn

    def _save_in_time(self) -> None:
        if time.monotonic() - self._saved_s >= self._every_s:
            self.save()

    def _keep(self, *, now: bool = False) -> None:
        """Keep the records that are not in a state that a restart would find. DivergenceError for another history."""
        needed = (self._state.applied_lsn if self._checkpoint is None else self.saved_lsn) + 1
        with suppress(ClaimError, GapError):  # `claim.line` says it
            self.claim.keep(max(needed, self.claim.first_lsn or 0), now=now)
