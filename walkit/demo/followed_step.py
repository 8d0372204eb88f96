"""The third step: a replica in another process follows the log while it is driven on, is killed, and catches up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from walkit.bench.sampling import LsnSamples, Samples, sampled_lsns
from walkit.config import LogOptions
from walkit.demo.parts import Parts
from walkit.demo.progress_printer import ProgressPrinter
from walkit.errors import LogNotFoundError
from walkit.log.wal import WriteAheadLog
from walkit.measure import Run
from walkit.objects.entrance import open_log
from walkit.replication.logs.source import StoredSource
from walkit.replication.primary.server import Primary
from walkit.replication.protocol.failures import ReplicaFailedError
from walkit.state.replay import replay
from walkit.state.table import KeyedTable
from walkit.storage import FileStorage
from walkit.store import Store
from walkit.workload import OperationStream, Workload, drive
from walkit.workload.replicated import ReplicatedChild

KILL_AT, RESTART_AT = 0.4, 0.5
"""Share of the stream's second part at the replica's kill, and of its third part at the restart."""

SAMPLE_S = 0.01
WAIT_S = 180.0
CLOSE_S = 0.1
"""A replica has caught up when it has the records that its primary had this long ago."""


@dataclass(kw_only=True)
class Followed:
    """How a replica followed. Times in seconds on the clock of the samples, LSNs durable ones."""

    samples: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 3)))
    """Rows of (time, LSN of the primary, LSN of the replica)."""
    marks: list[tuple[float, str]] = field(default_factory=list)
    """The events of the replica, and their times."""
    runs: list[Run] = field(default_factory=list)
    """The drives of the second and third part of the stream."""
    returncode: int | None = None
    """Exit status of the replica's first process."""
    second_lsn: int = 0
    """Last LSN after the second part."""
    killed_lsns: tuple[int, int] = (0, 0)
    """Of primary and replica, when that was killed."""
    restarted_lsns: tuple[int, int] = (0, 0)
    """Of primary and replica, when that was started again."""
    caught_up_s: float = 0.0
    """From the start of the second process until the replica was less than `close_s` behind."""
    close_s: float = CLOSE_S

    @property
    def behind(self) -> int:
        """Records that the replica lacked when it was started again."""
        return self.restarted_lsns[0] - self.restarted_lsns[1]


def caught_up_at(samples: npt.NDArray[np.float64], from_s: float) -> float:
    """Return when, from `from_s` on, the replica first has the records that the primary had CLOSE_S before.

    If no sample qualifies, the last one counts.
    """
    at, _, replica = samples[samples[:, 0] >= from_s].T
    close = replica >= np.interp(at - CLOSE_S, samples[:, 0], samples[:, 1])
    return float(at[close.argmax()] if close.any() else at[-1])


class FollowedReplica:
    """A replica in another process, killed once and started again; no process outlives the block.

    It notes each event with its time on the clock of the samples.
    """

    def __init__(self, followed: Followed, store: Store, address: str, folder: Path) -> None:
        self._followed, self._store = followed, store
        self._address, self._folder = address, folder
        self._child: ReplicatedChild | None = None
        self._source: StoredSource | None = None
        self.began_s = time.perf_counter()

    def sample(self) -> tuple[int, int]:
        """Return the durable LSNs of primary and replica; 0 before the replica's log is there."""
        try:
            self._source = self._source or StoredSource(FileStorage(os.fspath(self._folder)))
        except LogNotFoundError:
            return self._store.log.durable_lsn, 0
        # The replica first: a record in between must not look like a replica that is ahead.
        replica_lsn = self._source.durable()[0]
        return self._store.log.durable_lsn, replica_lsn

    def _mark(self, event: str, at_s: float | None = None) -> None:
        now_s = time.perf_counter() - self.began_s
        self._followed.marks.append((now_s if at_s is None else at_s, event))

    def start(self, event: str = "started") -> None:
        """Start a process, without waiting for it; it connects by itself."""
        self._mark(event)
        self._child = ReplicatedChild.replica(
            os.fspath(self._folder), self._address, "replica", "zstd", lambda _: None
        )
        self._child.start()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        child = self._running()
        child.close()
        self._followed.returncode, self._followed.killed_lsns = child.returncode, self.sample()
        self._mark("killed")

    def restart(self) -> None:
        """Start another process on the files that are left."""
        self._followed.restarted_lsns = self.sample()
        self.start("started again")

    def wait(self, lsn: int) -> None:
        """Wait until the replica has an LSN. ReplicaFailedError with the reason if it has failed or ended."""
        child = self._running()

        def status() -> dict[str, Any]:
            found: dict[str, Any] = (child.newest or {}).get("status", {})
            return found

        came = child.wait_until(lambda: bool(status().get("error")) or status().get("lsn", 0) >= lsn, WAIT_S)
        reason = status().get("error", "")
        if not came:
            reason = (
                f"no LSN {lsn:,} after {WAIT_S:.0f} s" if child.talking else child.failure() or "it ended"
            )
        if reason:
            raise ReplicaFailedError(f"the replica does not follow: {reason}", cause=reason)

    def catch_up(self, samples: LsnSamples) -> None:
        """Wait until the replica has all that its primary has, and note when it was close."""
        self.wait(self._store.log.durable_lsn)
        restarted_s, _ = self._followed.marks[-1]
        at_s = caught_up_at(self.on_clock(samples), restarted_s)
        self._followed.caught_up_s = at_s - restarted_s
        self._mark("caught up", at_s)

    def on_clock(self, samples: LsnSamples) -> Samples:
        """Return the samples so far, in seconds since this object was made."""
        rows = samples.rows()
        rows[:, 0] -= self.began_s
        return rows

    def stop(self) -> None:
        """Let the process close its log and end."""
        self._running().stop(WAIT_S)

    def _running(self) -> ReplicatedChild:
        assert self._child is not None, "the replica was not started"
        return self._child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.close()


@contextmanager
def _once_at(log: WriteAheadLog, lsn: int, act: Callable[[], None]) -> Iterator[None]:
    """Do this once the log is durable up to an LSN, in the block or at its end; raises its error."""
    ended = threading.Event()

    def wait_and_act() -> None:
        while log.durable_lsn < lsn:
            if ended.wait(SAMPLE_S) and log.durable_lsn < lsn:
                return
        act()

    with ThreadPoolExecutor(1, "demo-replica") as pool:
        acting = pool.submit(wait_and_act)
        try:
            yield
        finally:
            ended.set()
        acting.result()


def follow_while_driven(
    followed: Followed,
    out: Path,
    workload: Workload,
    parts: Parts,
    options: LogOptions,
    printer: ProgressPrinter,
    progress: bool,
) -> dict[str, Any]:
    """Drive the second and the third part of the stream while a replica follows; fill `followed` as it happens.

    The replica is killed in the middle of the second part and started again in the middle of the third. Raises
    KeyboardInterrupt if a drive was interrupted; no process is left then.
    """
    _, second, third = parts.streams
    replica_path = out / "replica-log"
    with (
        Store.open(out / "log", options) as store,
        Primary(store) as primary,
        FollowedReplica(followed, store, primary.address, replica_path) as replica,
        sampled_lsns(replica.sample, SAMPLE_S) as samples,
    ):
        try:
            with printer.part("a replica starts in another process and makes its first contact"):
                replica.start()
                replica.wait(1)
            with (
                printer.part("writing on; the replica catches up, follows, and is killed", bar=True),
                _once_at(store.log, parts.first_lsn + int(len(second) * KILL_AT), replica.kill),
            ):
                followed.runs.append(_drive(store, workload, second, progress))
            followed.second_lsn = store.log.acked_lsn
            with (
                printer.part("writing on without it, until it is started again", bar=True),
                _once_at(store.log, parts.second_lsn + int(len(third) * RESTART_AT), replica.restart),
            ):
                followed.runs.append(_drive(store, workload, third, progress))
            with printer.part("the replica catches up with the rest"):
                replica.catch_up(samples)
            replica.stop()
        finally:
            followed.samples = replica.on_clock(samples)
        state, last_lsn = dict(store.items()), store.log.acked_lsn
    with printer.part("comparing the records of both logs"):
        seen = _compare(out / "log", replica_path)
    printer.print_line(
        f"   killed at LSN {followed.killed_lsns[1]:,} of {followed.killed_lsns[0]:,}; started again "
        f"{followed.behind:,} records behind, and less than {CLOSE_S} s behind {followed.caught_up_s:.1f} s later"
    )
    return {
        "store_state": state,
        "store_lsn": last_lsn,
        "replica_returncode": followed.returncode,
        "replica_killed_lsn": followed.killed_lsns[1],
        "replica_behind": followed.behind,
        **seen,
    }


def _drive(store: Store, workload: Workload, stream: OperationStream, progress: bool) -> Run:
    run = drive(
        store,
        replace(workload, name=f"{workload.name}, with a replica"),
        progress=progress,
        stream=stream,
    )
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def _compare(primary: Path, replica: Path) -> dict[str, Any]:
    """Return the replica's last LSN and state, and how many records both logs have if they have the same ones."""
    table = KeyedTable()
    with open_log(primary, "r") as ours, open_log(replica, "r") as theirs:
        records = theirs.to_arrow()
        equal = len(records) if ours.to_arrow().equals(records) else 0
        replay(theirs, table)
        lsn = theirs.durable_lsn
    return {"replica_lsn": lsn, "replica_equal_records": equal, "replica_state": dict(table.items())}
