"""A replica in another process, and a watch on its lag."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from walkit.errors import LogNotFoundError, WalkitError
from walkit.replication.logs.source import StoredSource
from walkit.storage import FileStorage
from walkit.workload.replicated import ReplicatedChild

SAMPLE_S: Final = 0.01
WAIT_S: Final = 180.0


class ReplicaProcessError(WalkitError):
    """The replica's process ended unasked, or did not come far enough in time."""

    code = "replica-process"


class ReplicaProcess:
    """A replica as a child process, that can be killed and started again. Used by one thread at a time.

    A context manager: no process outlives it, and if this process itself dies, the child ends too.
    """

    def __init__(self, address: str, folder: Path) -> None:
        self.folder = folder
        self._address = address
        self._child: ReplicatedChild | None = None
        self._source: StoredSource | None = None

    @property
    def pid(self) -> int:
        """Process id of the child; ReplicaProcessError if none was started."""
        return self._started().pid

    def start(self) -> None:
        """Start the child, without waiting for it; it connects by itself."""
        child = ReplicatedChild.replica(
            os.fspath(self.folder), self._address, "replica", "zstd", lambda _: None
        )
        child.start()
        self._child = child

    def kill(self) -> int:
        """End the child with SIGKILL, and return its exit status."""
        child, self._child = self._started(), None
        child.close()
        return child.returncode

    def stop(self) -> int:
        """Ask the child to close its log and end; return its exit status."""
        child, self._child = self._started(), None
        child.stop(WAIT_S)
        return child.returncode

    def _started(self) -> ReplicatedChild:
        if self._child is None:
            raise ReplicaProcessError("the replica's process was not started")
        return self._child

    def durable_lsn(self) -> int:
        """Return the LSN up to which the replica's log is on stable storage, as its own files say; 0 before it is."""
        try:
            self._source = self._source or StoredSource(FileStorage(os.fspath(self.folder)))
        except LogNotFoundError:
            return 0
        return self._source.durable()[0]

    def check(self) -> None:
        """Raise ReplicaProcessError with its last words if the replica failed or its process ended by itself."""
        child = self._child
        if child is None:
            return
        said = child.newest
        if said is not None and said["status"]["error"]:
            raise ReplicaProcessError(f"the replica has failed: {said['status']['error']}")
        if not child.talking:
            raise ReplicaProcessError(f"the replica's process ended: {child.failure()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self.kill()


class LagWatch:
    """Notes every 10 ms the durable LSNs of a primary and its replica, and acts at given LSNs.

    A context manager with one thread. Errors of that thread are raised by `wait` and `due_done`.
    """

    def __init__(self, primary_lsn: Callable[[], int], replica_lsn: Callable[[], int]) -> None:
        self._primary_lsn, self._replica_lsn = primary_lsn, replica_lsn
        self._rows: list[tuple[float, int, int]] = []
        self._due: tuple[int, Callable[[], None]] | None = None
        self._error: BaseException | None = None
        self._over = False
        self._changed = threading.Condition()
        self._began = time.perf_counter()
        self._thread = threading.Thread(target=self._run, name="lag-watch", daemon=True)

    @property
    def now_s(self) -> float:
        """Seconds on the clock of the samples."""
        return time.perf_counter() - self._began

    @property
    def samples(self) -> npt.NDArray[np.float64]:
        """Rows of (time in s, durable LSN of the primary, durable LSN of the replica) so far."""
        with self._changed:
            return np.array(self._rows, np.float64).reshape(-1, 3)

    def at(self, lsn: int, act: Callable[[], None]) -> None:
        """Do this on the watch's thread as soon as the primary is durable up to `lsn`. One thing at a time."""
        with self._changed:
            self._due = lsn, act

    def due_done(self) -> None:
        """Wait until the due action is done; TimeoutError if its LSN does not come."""
        self._wait(lambda: self._due is None, "the action at an LSN of the primary")

    def wait(self, lsn: int, check: Callable[[], None]) -> None:
        """Wait until the replica is durable up to `lsn`; `check` may raise while it is not."""

        def there() -> bool:
            check()
            return bool(self._rows) and self._rows[-1][2] >= lsn

        self._wait(there, f"the replica to have LSN {lsn:,}")

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if holds():
                    return
                if time.monotonic() > deadline:
                    raise ReplicaProcessError(f"waited {WAIT_S:.0f} s for {what}")
                self._changed.wait(0.1)

    def _run(self) -> None:
        try:
            while not self._over:
                # The replica first: a record in between must not look like a replica that is ahead.
                replica_lsn, primary_lsn = self._replica_lsn(), self._primary_lsn()
                with self._changed:
                    self._rows.append((self.now_s, primary_lsn, replica_lsn))
                    due = self._due
                if due is not None and primary_lsn >= due[0]:
                    due[1]()
                    with self._changed:
                        self._due = None
                with self._changed:
                    self._changed.notify_all()
                    self._changed.wait(SAMPLE_S)
        except BaseException as error:  # noqa: BLE001 - the wait raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        self._thread.join()
