"""The third step: a replica in another process follows the log while it is driven on, is killed, and catches up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from walkit.config import LogOptions
from walkit.demo.parts import Parts
from walkit.demo.progress_printer import ProgressPrinter
from walkit.demo.replica import LagWatch, ReplicaProcess
from walkit.measure import Run
from walkit.objects.entrance import open_log
from walkit.replication.primary.server import Primary
from walkit.state.replay import replay
from walkit.state.table import KeyedTable
from walkit.store import Store
from walkit.workload import OperationStream, Workload, drive

KILL_AT, RESTART_AT = 0.4, 0.5
"""Share of the stream's second part at the replica's kill, and of its third part at the restart."""


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


class _Scene:
    """The replica's two lives, by the watch's clock."""

    def __init__(self, told: Followed, store: Store, replica: ReplicaProcess, watch: LagWatch) -> None:
        self.told, self._store, self._replica, self._watch = told, store, replica, watch

    def lsns(self) -> tuple[int, int]:
        replica_lsn = self._replica.durable_lsn()
        return self._store.log.durable_lsn, replica_lsn

    def mark(self, what: str) -> None:
        self.told.marks.append((self._watch.now_s, what))

    def start(self) -> None:
        self.mark("started")
        self._replica.start()

    def kill(self) -> None:
        self.told.returncode = self._replica.kill()
        self.told.killed_lsns = self.lsns()
        self.mark("killed")

    def restart(self) -> None:
        self.told.restarted_lsns = self.lsns()
        self.mark("started again")
        self._replica.start()

    def catch_up(self, lsn: int) -> None:
        self._watch.wait(lsn, self._replica.check)
        restarted_s, _ = self.told.marks[-1]
        at_s = caught_up_at(self._watch.samples, restarted_s)
        self.told.caught_up_s = at_s - restarted_s
        self.told.marks.append((at_s, "caught up"))


def follow_while_driven(
    told: Followed,
    out: Path,
    workload: Workload,
    parts: Parts,
    options: LogOptions,
    printer: ProgressPrinter,
    progress: bool,
) -> dict[str, Any]:
    """Drive the second and the third part of the stream while a replica follows; fill `told` as it happens.

    The replica is killed in the middle of the second part and started again in the middle of the third. Raises
    KeyboardInterrupt if a drive was interrupted; no process is left then.
    """
    _, second, third = parts.streams
    replica_path = out / "replica-log"
    with (
        Store.open(out / "log", options) as store,
        Primary(store) as primary,
        ReplicaProcess(primary.address, replica_path) as replica,
        LagWatch(lambda: store.log.durable_lsn, replica.durable_lsn) as watch,
    ):
        scene = _Scene(told, store, replica, watch)
        try:
            with printer.part("a replica starts in another process and makes its first contact"):
                scene.start()
                watch.wait(1, replica.check)
            watch.at(parts.first_lsn + int(len(second) * KILL_AT), scene.kill)
            with printer.part("writing on; the replica catches up, follows, and is killed", bar=True):
                told.runs.append(_drive(store, workload, second, progress))
                watch.due_done()
            told.second_lsn = store.log.acked_lsn
            watch.at(parts.second_lsn + int(len(third) * RESTART_AT), scene.restart)
            with printer.part("writing on without it, until it is started again", bar=True):
                told.runs.append(_drive(store, workload, third, progress))
                watch.due_done()
            with printer.part("the replica catches up with the rest"):
                scene.catch_up(store.log.durable_lsn)
            replica.stop()
        finally:
            told.samples = watch.samples
        state, last_lsn = dict(store.items()), store.log.acked_lsn
    with printer.part("comparing the records of both logs"):
        seen = _compare(out / "log", replica_path)
    printer.say(
        f"   killed at LSN {told.killed_lsns[1]:,} of {told.killed_lsns[0]:,}; started again {told.behind:,} records "
        f"behind, and less than {CLOSE_S} s behind {told.caught_up_s:.1f} s later"
    )
    return {
        "store_state": state,
        "store_lsn": last_lsn,
        "replica_returncode": told.returncode,
        "replica_killed_lsn": told.killed_lsns[1],
        "replica_behind": told.behind,
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
