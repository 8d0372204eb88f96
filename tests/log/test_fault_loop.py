"""Calls to the storage fail in turn, in every operation, at every level: nothing promised is lost, none hangs."""

from __future__ import annotations

import random
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
OF_DAMAGE = ("salvaging", "repairing", "repairing without a manifest", "importing")
KINDS: tuple[Kind, ...] = ("error", "landed", "short", "full", "delay", "slow sync")
DELAYED_AT_ONCE = 16
"""Runs on a slow device that go on side by side: they do little but wait."""
DRAWN = 10
"""Calls of a scene that fail in `make test` with a plain error."""
DRAWN_OF_A_KIND = 3
"""Calls of a scene that meet each of the other kinds of fault that are drawn for it."""


@dataclass(frozen=True)
class Case:
    """A scene, the options of its log, the fault, and which calls meet it: each `step`th, or so many that are drawn."""

    scene: str
    level: str
    flights: str
    kind: Kind
    forever: bool = False
    step: int = 1
    drawn: int | None = None

    def __str__(self) -> str:
        which = "each call" if self.drawn is None else f"{self.drawn} calls"
        how = " for ever" if self.forever else ""
        return f"{self.scene}, {self.level}, {self.flights}, {which}: {self.kind}{how}"

    def run(self) -> None:
        """Run the loop."""
        options = walkit.LogOptions(
            segment_bytes=64 * 1024, frame_bytes_max=8 * 1024, idle_marker_ms=0, **LEVELS[self.level],
            **FLIGHTS[self.flights],
        )  # fmt: skip
        threads = DELAYED_AT_ONCE if self.kind in ("delay", "slow sync") else 1
        Loop(
            SCENES[self.scene], options, self.kind, forever=self.forever, step=self.step, drawn=self.drawn,
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


def drawn() -> list[Case]:
    """Return each scene with plain errors and three other kinds of fault, each at options that a seed draws."""
    cases: list[Case] = []
    for scene in SCENES:
        chance, pairs = random.Random(scene), combinations(scene)
        cases.append(Case(scene, *chance.choice(pairs), "error", drawn=DRAWN))
        cases.append(Case(scene, *chance.choice(pairs), "error", True, drawn=2))
        for kind in chance.sample(KINDS[1:], 3):
            forever = kind not in ("delay", "slow sync") and chance.random() < 0.5
            cases.append(Case(scene, *chance.choice(pairs), kind, forever, drawn=DRAWN_OF_A_KIND))
    return cases


@pytest.mark.parametrize("case", drawn(), ids=str)
def test_no_fault_of_the_storage_loses_what_was_promised(case: Case) -> None:
    """Fail calls of a scene that a seed draws, cut the power: all promised is there, errors are typed, none hangs."""
    case.run()


@pytest.mark.slow  # an hour: each of some two hundred calls of a scene is a run of it
@pytest.mark.parametrize("case", the_whole(), ids=str)
def test_no_fault_at_all_loses_what_was_promised(case: Case) -> None:
    """Fail every call in turn, with every kind of fault, at every level and count in flight: the same holds."""
    case.run()
