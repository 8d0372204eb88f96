"""A short measured run in a child process, so the measuring process does not share the interpreter's lock with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from walkit._internal.arguments import check_whole
from walkit.measure import Run
from walkit.measure import load as load_run
from walkit.objects.entrance import open_log
from walkit.workload.drive import drive
from walkit.workload.process import TalkingChild
from walkit.workload.role import LineReporter
from walkit.workload.spec import OpenLoop, Workload
from walkit.workload.steady import ContinuousLoad
from walkit.workload.steady_process import volume_of

OPERATIONS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Measurement:
    """So many records of a load."""

    load: ContinuousLoad
    operations: int = 20_000

    def __post_init__(self) -> None:
        check_whole(self.operations, "operations", 1, OPERATIONS_MAX)

    @property
    def workload(self) -> Workload:
        """The driven workload."""
        load = self.load
        return Workload(
            operations=self.operations,
            keys="uniform",
            value_bytes=load.record_bytes,
            arrival=OpenLoop(rate=load.arrivals_per_s) if load.arrivals_per_s else "closed",
            seed=load.seed,
            name=str(self),
            writers=load.writers,
            tasks=load.writers if load.style == "tasks" else 0,
        )

    def __str__(self) -> str:
        """Return the name of its Run."""
        return f"{self.load.short}, {self.load.device}" if self.load.device else self.load.short


def measured_run(wanted: Measurement, folder: Path, saved: Path, check: Callable[[], object]) -> Run:
    """Measure a load on a new log, in `folder` or on a modelled volume; save its Run, and return it.

    The log is removed.

    `check` is called several times per second; if it raises, the child ends. ChildWriterError if the child fails.
    """
    place = folder / "measured-log"
    shutil.rmtree(place, ignore_errors=True)
    given = {"path": str(place), "saved": str(saved), **asdict(wanted)}

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


def measure(lines: LineReporter, path: str, saved: str, load: dict[str, Any], operations: int) -> None:
    """Measure the load on a new log at `path`, and save its Run: the role of the child."""
    lines.leash()
    wanted = Measurement(ContinuousLoad(**load), operations)
    with open_log(storage=volume_of(path, wanted.load), mode="x", options=wanted.load.options) as log:
        run = drive(log, wanted.workload, progress=False)
    os.makedirs(os.path.dirname(saved), exist_ok=True)
    run.save(saved)
    lines.write(records=run.records)
