"""A short measured run in a child process, so the measuring process does not share the interpreter's lock with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from walkit._internal.arguments import check_choice, check_whole
from walkit.config import MIB, Durability, LogOptions
from walkit.measure import Run
from walkit.measure import load as load_run
from walkit.objects.entrance import open_log
from walkit.workload.drive import drive
from walkit.workload.policies import policy_named
from walkit.workload.process import TalkingChild
from walkit.workload.role import LineReporter
from walkit.workload.spec import Workload

OPERATIONS_MAX = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLoad:
    """The load: a closed loop of writers, each with one record under way, until all operations are done."""

    operations: int = 20_000
    writers: int = 8
    style: Literal["threads", "tasks"] = "threads"
    record_bytes: int = 100
    """Bytes of each value."""
    durability: Durability = "sync"
    in_flight: int = 1
    policy: str = "take-all"
    """When a frame is sealed, by a name that `policy_named` knows."""
    seed: int = 7

    def __post_init__(self) -> None:
        check_whole(self.operations, "operations", 1, OPERATIONS_MAX)
        check_whole(self.writers, "writers", 1, 1024)
        check_whole(self.record_bytes, "record_bytes", 1, MIB)
        check_whole(self.in_flight, "in_flight", 1, 64)
        check_whole(self.seed, "seed", 0, 2**31)
        check_choice(self.style, ("threads", "tasks"), "style")
        check_choice(self.durability, get_args(Durability), "durability")
        policy_named(self.policy)

    @property
    def options(self) -> LogOptions:
        """How the log is opened."""
        return LogOptions(
            durability=self.durability, in_flight=self.in_flight, policy=policy_named(self.policy)
        )

    @property
    def workload(self) -> Workload:
        """The driven workload."""
        return Workload(
            operations=self.operations,
            keys="uniform",
            value_bytes=self.record_bytes,
            seed=self.seed,
            name=str(self),
            writers=self.writers,
            tasks=self.writers if self.style == "tasks" else 0,
        )

    def __str__(self) -> str:
        """Say it in a few words, as the Run is called."""
        words = f"{self.writers} {self.style}, {self.record_bytes:,} B, {self.durability}"
        words += f", {self.in_flight} in flight" if self.in_flight > 1 else ""
        return words if self.policy == "take-all" else f"{words}, {self.policy}"


def measured_run(load: MeasuredLoad, folder: Path, saved: Path, check: Callable[[], object]) -> Run:
    """Measure a load on a new log in `folder`, save its Run, and return it; the log is removed.

    `check` is called several times per second; if it raises, the child ends. ChildWriterError if the child fails.
    """
    place = folder / "measured-log"
    shutil.rmtree(place, ignore_errors=True)
    given = {"path": str(place), "saved": str(saved), "load": asdict(load)}

    def ended() -> bool:
        check()
        return False

    try:
        with TalkingChild("walkit.workload.measured_run:measure", given, lambda _: None) as child:
            child.wait_until(ended)
            child.wait()
        return load_run(saved)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def measure(lines: LineReporter, path: str, saved: str, load: dict[str, Any]) -> None:
    """Measure the load on a new log at `path`, and save its Run: the role of the child."""
    lines.leash()
    wanted = MeasuredLoad(**load)
    with open_log(path, mode="x", options=wanted.options) as log:
        run = drive(log, wanted.workload, progress=False)
    os.makedirs(os.path.dirname(saved), exist_ok=True)
    run.save(saved)
    lines.write(records=run.records)
