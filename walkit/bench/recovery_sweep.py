"""How long a killed writer's log takes to be there again, over the checkpoint interval and over the segment size.

Each point is a store of its own, filled by a child process that is killed; every round opens a fresh copy of each of
them, in turns, so that other load of the machine affects all points alike.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple

from walkit._internal.arguments import check_whole, refuse
from walkit.bench.recovery import drop_cached, fill_and_kill, parts_of, read_plainly
from walkit.bench.recovery_load import LAST_KEY, RecoveryLoad
from walkit.measure import MachineFacts
from walkit.objects.entrance import open_log
from walkit.recovery.report import RecoveryReport
from walkit.storage.mounts import require_folder
from walkit.store import Store

SweepKind = Literal["checkpoint", "segment"]
SweepStep = Callable[[int, int, str], object]
"""Called with (steps done, steps in all, the current step); an error of it ends the sweep."""

CHECKPOINT_SEGMENT_BYTES = 1 << 20
"""Segment size of the sweep over the checkpoint: small, so that most of the log is sealed and the replay shows."""


class SweepPoint(NamedTuple):
    """One store of a sweep."""

    kind: SweepKind
    at: int
    """Of "checkpoint": operations after the last one. Of "segment": bytes of a segment."""
    load: RecoveryLoad


@dataclass
class RecoverySweep:
    """The rows of a sweep so far."""

    machine: MachineFacts
    operations: int
    rounds: int = 0
    """Finished rounds: each opens every point once."""
    ended_early: bool = False
    """Whether the time was over before all rounds were done."""
    whole: bool = True
    """Whether every opening had all that was written."""
    reports: dict[SweepKind, dict[int, list[RecoveryReport]]] = field(default_factory=dict)
    """By kind and place on its axis: one report for each round."""


def sweep_points(
    operations: int, frame_records: int, ages: Sequence[float], segment_bytes: Sequence[int]
) -> list[SweepPoint]:
    """Return the points of both sweeps: a store for each age of the checkpoint, a log for each size of segments."""
    common = {"operations": operations, "keys": max(operations // 10, 1), "record_bytes": 100}
    found = [
        SweepPoint(
            "checkpoint",
            operations - round(operations * (1 - age)),
            RecoveryLoad(
                **common,
                frame_records=frame_records,
                checkpoint_age=age,
                segment_bytes=CHECKPOINT_SEGMENT_BYTES,
            ),
        )
        for age in ages
    ]
    found += [
        SweepPoint("segment", size, RecoveryLoad(**common, frame_records=frame_records, segment_bytes=size))
        for size in segment_bytes
    ]
    return found


def sweep_recovery(
    points: Sequence[SweepPoint],
    *,
    rounds: int = 5,
    seconds_max: float = 120.0,
    path: str | os.PathLike[str] | None = None,
    step: SweepStep = lambda done, total, words: None,
) -> RecoverySweep:
    """Open a fresh copy of each point's store `rounds` times, point by point and round by round, with a warm cache.

    A point of kind "checkpoint" is opened with `Store.open`, one of kind "segment" with `walkit.open`. No round begins
    after `seconds_max`. The folders are below `path` (the system's for temporary files) and are removed. `step` may
    raise to end it.

    Raises OptionsError without points or rounds, ChildWriterError, and the errors of opening.
    """
    if not points:
        refuse("points", points, "at least one point")
    check_whole(rounds, "rounds")
    require_folder(path)
    total, done, deadline = len(points) * (rounds + 1), 0, monotonic() + seconds_max
    with tempfile.TemporaryDirectory(prefix="walkit-sweep-", dir=path, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        found = RecoverySweep(MachineFacts.here(folder), points[0].load.operations)
        for number, point in enumerate(points):
            step(done, total, "filling stores")
            fill_and_kill("walkit", folder / f"{number}", point.load)
            done += 1
        for first in {point.kind: number for number, point in enumerate(points)}.values():
            # The first opening of a process imports modules, so it does not count.
            _open_copy(folder / f"{first}", folder / "copy", points[first])
        for turn in range(rounds):
            if turn and monotonic() > deadline:
                found.ended_early = True
                break
            measured: list[tuple[RecoveryReport, bool]] = []
            for number, point in enumerate(points):
                step(done, total, f"round {turn + 1} of {rounds}")
                measured.append(_open_copy(folder / f"{number}", folder / "copy", point))
                done += 1
            for point, (report, whole) in zip(points, measured, strict=True):
                found.reports.setdefault(point.kind, {}).setdefault(point.at, []).append(report)
                found.whole = found.whole and whole
            found.rounds += 1
    return found


def _open_copy(image: Path, copy: Path, point: SweepPoint) -> tuple[RecoveryReport, bool]:
    """Return the report of opening a copy, and whether everything that was written is there."""
    shutil.copytree(image, copy)
    try:
        parts = parts_of(copy)
        drop_cached(parts)  # written back: the copy's dirty pages do not fall into the opening
        read_plainly(parts)
        operations = point.load.operations
        if point.kind == "segment":
            with open_log(str(copy), "a") as log:
                return log.recovery, log.acked_lsn == operations
        with Store.open(str(copy)) as store:
            whole = store.log.acked_lsn == operations and store.get(LAST_KEY) == point.load.last_value
            return store.recovery, whole
    finally:
        shutil.rmtree(copy, ignore_errors=True)
