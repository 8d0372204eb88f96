"""Every call to the storage fails in turn, in every operation, at every level: nothing promised is lost, none hangs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

import walkit
from tests.log.everycall import Kind
from tests.log.faultloop import Loop
from tests.log.faultscenes import SCENES

LEVELS: dict[str, dict[str, Any]] = {
    "sync": {"durability": "sync"},
    "interval": {"durability": "interval", "interval_ms": 2},
    "none": {"durability": "none"},
}
FLIGHTS: dict[str, dict[str, Any]] = {
    "one frame": {},
    "eight frames": {"in_flight": 8},
    "eight as they land": {"in_flight": 8, "ack_order": "completion"},
}
OF_A_STORE = ("a store", "a store by itself")
HEAVY = (*OF_A_STORE, "reading", "repairing without a manifest")
"""Scenes with so many calls, or so much at each, that a run of all of them is for the whole alone."""
OF_DAMAGE = ("salvaging", "repairing", "repairing without a manifest", "importing")
KINDS: tuple[Kind, ...] = ("error", "landed", "short", "full", "delay", "slow sync")
DELAYED_AT_ONCE = 16
"""Runs on a slow device that go on side by side: they do little but wait."""


@dataclass(frozen=True)
class Case:
    """A scene, the options of its log, the fault, and which calls meet it: each `step`th from `first` on."""

    scene: str
    level: str
    flights: str
    kind: Kind
    forever: bool = False
    step: int = 1
    first: int = 1

    def __str__(self) -> str:
        which = "each call" if self.step == 1 else f"calls {self.first}, {self.first + self.step}, ..."
        how = " for ever" if self.forever else ""
        return f"{self.scene}, {self.level}, {self.flights}, {which}: {self.kind}{how}"

    @property
    def is_of_every_call(self) -> bool:
        """Whether it comes to each call of a scene, or in a heavy scene to every third, with a plain error."""
        return self.kind == "error" and not self.forever and self.step <= 3

    def run(self) -> None:
        """Run the loop."""
        options = walkit.LogOptions(
            segment_bytes=64 * 1024, frame_bytes_max=8 * 1024, idle_marker_ms=0, **LEVELS[self.level],
            **FLIGHTS[self.flights],
        )  # fmt: skip
        threads = DELAYED_AT_ONCE if self.kind in ("delay", "slow sync") else 1
        Loop(
            SCENES[self.scene], options, self.kind, forever=self.forever, step=self.step, first=self.first,
            threads=threads,
        ).run()  # fmt: skip


def combinations(scene: str) -> list[tuple[str, str]]:
    """Return the (level, frames in flight) in which a scene is another one."""
    if scene in OF_DAMAGE:
        return [("sync", "one frame")]
    flights = [f for f in FLIGHTS if scene not in OF_A_STORE or f != "eight as they land"]
    return list(product(LEVELS, flights))


def first_middle_last(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return three of them, or the one there is."""
    return list(dict.fromkeys([pairs[0], pairs[len(pairs) // 2], pairs[-1]]))


def the_whole() -> list[Case]:
    """Return each scene with every call failing at every level, and with every kind of fault at some."""
    cases: list[Case] = []
    for scene in SCENES:
        pairs = combinations(scene)
        cases += [Case(scene, *pair, "error") for pair in pairs]
        for pair in first_middle_last(pairs):
            cases.append(Case(scene, *pair, "error", True))
            cases += [Case(scene, *pair, kind) for kind in KINDS[1:]]
            cases += [Case(scene, *pair, kind, True) for kind in ("landed", "short", "full", "slow sync")]
        # All that comes is slow: hours, were it done from each call on.
        cases.append(Case(scene, *pairs[0], "delay", True, step=40))
    return cases


def a_selection() -> list[Case]:
    """Return what comes to every call once in most scenes, and to every kind, level and count in flight somewhere.

    Steps are such that the combinations of one scene come to different calls.
    """
    cases: list[Case] = []
    for scene in SCENES:
        pairs = combinations(scene)
        few = 3 if scene in HEAVY else 1
        cases.append(Case(scene, *pairs[0], "error", step=few))
        for index, pair in enumerate(pairs[1:], 1):
            cases.append(Case(scene, *pair, "error", step=18 * few, first=1 + 2 * index))
        first, middle, last = pairs[0], pairs[len(pairs) // 2], pairs[-1]
        cases += [
            Case(scene, *first, "error", True, step=13 * few, first=2),
            Case(scene, *last, "error", True, step=13 * few, first=6),
            Case(scene, *middle, "landed", step=13 * few, first=3),
            Case(scene, *first, "short", step=6 * few),
            Case(scene, *last, "short", True, step=7 * few),
            Case(scene, *first, "full", step=8 * few, first=2),
            Case(scene, *last, "full", True, step=9 * few),
            Case(scene, *middle, "delay", step=8 * few, first=4),
            Case(scene, *middle, "slow sync"),
        ]
    # Where syncs stand beside the way of the frames: what one of them loses must be told.
    for scene in ("zeroing", "retaining"):
        cases.append(Case(scene, "none", "eight frames", "error"))
        cases.append(Case(scene, "interval", "eight as they land", "slow sync"))
    return cases


def of_each_run() -> list[Case]:
    """Return of that what `make test` does each time: every call once in most scenes, and a third of the rest."""
    return [case for index, case in enumerate(a_selection()) if index % 3 == 0 or case.is_of_every_call]


@pytest.mark.parametrize("case", of_each_run(), ids=str)
def test_no_fault_of_the_storage_loses_what_was_promised(case: Case) -> None:
    """Fail one call after the other in a scene, cut the power: all promised is there, errors are typed, none hangs."""
    case.run()


@pytest.mark.slow
@pytest.mark.parametrize("case", the_whole(), ids=str)
def test_no_fault_at_all_loses_what_was_promised(case: Case) -> None:
    """Do the same with every call, every kind of fault, every level and count in flight."""
    case.run()
