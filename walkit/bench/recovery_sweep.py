"""How long a killed writer's log takes to be there again, over the checkpoint interval and over the segment size.

Each point is a store of its own, filled by a child process that is killed; every round opens a fresh copy of each of
them, in turns, so that other load of the machine affects all points alike.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

from walkit._internal.arguments import check_whole, refuse
from walkit.bench.recovery import drop_cached, fill_and_kill, parts_of, read_plainly
from walkit.bench.recovery_load import LAST_KEY, RecoveryLoad
from walkit.bench.runner import Case, in_turns, work_folder
from walkit.measure import MachineFacts
from walkit.objects.entrance import open_log
from walkit.recovery.report import RecoveryReport
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


@dataclass(frozen=True)
class RecoverySweep:
    """The rows of a sweep so far."""

    machine: MachineFacts
    operations: int
    rounds: int
    """Each opens every point once."""
    whole: bool
    """Whether every opening had all that was written."""
    reports: dict[SweepKind, dict[int, list[RecoveryReport]]]
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
    path: str | os.PathLike[str] | None = None,
    step: SweepStep = lambda done, total, words: None,
) -> RecoverySweep:
    """Open a fresh copy of each point's store `rounds` times, in turns and with a warm cache.

    A point of kind "checkpoint" is opened with `Store.open`, one of kind "segment" with `walkit.open`. The folders are
    below `path` (the system's for temporary files) and are removed. `step` may raise to end it.

    Raises OptionsError without points or rounds, ChildWriterError, and the errors of opening.
    """
    if not points:
        refuse("points", points, "at least one point")
    check_whole(rounds, "rounds")
    done = count()

    def note(words: str) -> None:
        step(next(done), len(points) * (rounds + 1), words)

    with work_folder(path) as made:
        machine = MachineFacts.here(made)
        cases = []
        for number, point in enumerate(points):
            note("filling stores")
            image = Path(made) / f"{number}"
            fill_and_kill("walkit", image, point.load)
            cases.append(Case("opening copies", partial(_open_copy, image, point)))
        # The first opening of a process imports modules, so it does not count.
        firsts = {point.kind: case for point, case in zip(points, cases, strict=True)}
        in_turns(list(firsts.values()), 1, made)
        found = in_turns(cases, rounds, made, note)
    reports: dict[SweepKind, dict[int, list[RecoveryReport]]] = {}
    for point, opened in zip(points, found, strict=True):
        reports.setdefault(point.kind, {})[point.at] = [report for report, _ in opened]
    whole = all(whole for opened in found for _, whole in opened)
    return RecoverySweep(machine, points[0].load.operations, rounds, whole, reports)


def _open_copy(image: Path, point: SweepPoint, place: str) -> tuple[RecoveryReport, bool]:
    """Return the report of opening a copy, and whether everything that was written is there."""
    copy, operations = Path(place) / "copy", point.load.operations
    shutil.copytree(image, copy)
    parts = parts_of(copy)
    drop_cached(parts)  # written back: the copy's dirty pages do not fall into the opening
    read_plainly(parts)
    if point.kind == "segment":
        with open_log(str(copy), "a") as log:
            return log.recovery, log.acked_lsn == operations
    with Store.open(str(copy)) as store:
        whole = store.log.acked_lsn == operations and store.get(LAST_KEY) == point.load.last_value
        return store.recovery, whole
