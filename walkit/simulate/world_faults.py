"""The faults of a world, drawn from a seed, each with a time, a target and a length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

PRIMARY = "primary"
REPLICAS = ("replica-1", "replica-2")
READERS = ("reader-1", "reader-2")
WRITERS = (PRIMARY, "primary-2")
"""Those of a log on object storage."""
LOGS = (PRIMARY, *REPLICAS, WRITERS[1])
NODES = (*LOGS, *READERS)
CHAOS_MS = 15_000.0
"""How long faults begin, and clients append."""
CRASH_WAITS_MS = 2_000.0
"""How long a crash that is to come in a write waits for one."""
SKEW_MS = 1_500.0
FAULTS_MIN, FAULTS_MAX = 4, 12

WAITING_KINDS = ("crash", "stall")
"""Those that may wait for a write."""
LINK_KINDS = ("cut", "clog", "lose", "repeat", "reorder", "delay", "damage")
KINDS = (
    *(*LINK_KINDS, *WAITING_KINDS),
    *("write", "away", "skew", "back", "another", "storage", "promote", "requests"),
)
"""All that goes wrong: the faults of docs/world.md."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault: from `at_ms` on for `for_ms`. `target` is a process, or a link as "from>to"."""

    number: int
    """Its place in the schedule that the seed gives: what `keep` names."""
    at_ms: float
    kind: str
    target: str
    for_ms: float
    amount: float = 0.0
    """The part of the messages or requests, from 0 to 1; milliseconds of delay or skew, or of the wait of a crash or a
    stall for a write; 1 if the old primary still runs, or a storage can be read."""

    @property
    def until_ms(self) -> float:
        """When it is over."""
        return self.at_ms + self.for_ms + (self.amount if self.kind in WAITING_KINDS else 0)

    def __str__(self) -> str:
        by = f" by {self.amount:.0f} ms"
        words = {
            "reorder": f" by up to {self.amount:.0f} ms",
            "delay": by,
            "skew": by,
            "storage": " read-only",
        }
        words |= dict.fromkeys(WAITING_KINDS, " in its next write") | {"promote": " (the old one runs)"}
        how = words.get(self.kind, f" {self.amount:.0%}") if self.amount else ""
        return f"{self.number}: {self.at_ms:.0f} ms, {self.kind} {self.target}{how} for {self.for_ms:.0f} ms"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """All that decides a run: the seed, which of its faults happen (None: all), and for how long there are any."""

    seed: int
    keep: tuple[int, ...] | None = None
    chaos_ms: float = CHAOS_MS

    def faults(self) -> tuple[Fault, ...]:
        """Return the faults that happen, by their time."""
        return tuple(
            fault
            for fault in draw_faults(self.seed)
            if (self.keep is None or fault.number in self.keep) and fault.at_ms < self.chaos_ms
        )

    @property
    def command(self) -> str:
        """The command that runs exactly this."""
        parts = [f"walkit simulate world --seed {self.seed}"]
        if self.keep is not None:
            parts.append("--keep " + (",".join(map(str, self.keep)) or "none"))
        if self.chaos_ms != CHAOS_MS:
            parts.append(f"--chaos-ms {self.chaos_ms:g}")
        return " ".join(parts)


def random_of(seed: int, *concern: object) -> Random:
    """Return the randomness of one concern: what one part of a world draws changes nothing for another."""
    return Random("/".join(map(str, (seed, *concern))))


class Cast(NamedTuple):
    """The processes of a world by their roles, and the kinds of its faults."""

    writers: tuple[str, ...]
    replicas: tuple[str, ...]
    readers: tuple[str, ...]
    kinds: tuple[str, ...]

    @property
    def shares(self) -> bool:
        """Whether the log is on object storage, where a second writer takes it over."""
        return len(self.writers) > 1


IN_A_FOLDER = Cast(
    (PRIMARY,),
    REPLICAS,
    READERS,
    (*(kind for kind in KINDS if kind != "requests"), "cut", "crash", "crash", "stall", "storage"),
)
ON_OBJECTS = Cast(
    WRITERS,
    REPLICAS[:1],
    READERS,
    (*KINDS, *("promote",) * 6, *("requests", "crash", "stall") * 3),
)


def cast_of(seed: int) -> Cast:
    """Return who is in the world of a seed: the log of each third one is on object storage."""
    return ON_OBJECTS if seed % 3 == 2 else IN_A_FOLDER


def draw_faults(seed: int) -> tuple[Fault, ...]:
    """Return the faults of a seed, by their time."""
    random, cast = random_of(seed, "faults"), cast_of(seed)
    count = random.randint(FAULTS_MIN, FAULTS_MAX)
    times = sorted(round(random.uniform(0, CHAOS_MS), 1) for _ in range(count))
    return tuple(fault for number, at_ms in enumerate(times) for fault in _draw(random, cast, number, at_ms))


def _draw(random: Random, cast: Cast, number: int, at_ms: float) -> Sequence[Fault]:
    kind = random.choice(cast.kinds)
    for_ms = round(
        random.choice((random.uniform(50, 600), random.uniform(600, 4000), random.uniform(4000, 12000))), 1
    )
    logs = (*cast.writers, *cast.replicas)
    amount, target = 0.0, random.choice((*logs, *cast.readers))
    if kind in LINK_KINDS:
        ends = [PRIMARY, random.choice((*cast.replicas, *cast.readers))]
        random.shuffle(ends)
        target = ">".join(ends)
        amount = round(random.uniform(0.1, 0.9), 2) if kind in ("lose", "repeat", "damage") else 0.0
        amount = round(random.uniform(5, 800)) if kind in ("reorder", "delay") else amount
    elif kind == "promote":
        target, amount = PRIMARY, random.choice((0.0, 1.0))
    elif kind == "write":
        target = random.choice(logs)
    elif kind == "skew":
        amount = round(random.uniform(-SKEW_MS, SKEW_MS))
    elif kind in ("back", "another"):
        target = random.choice((*cast.replicas, *cast.readers))
    elif kind == "requests":
        target, amount = PRIMARY, round(random.uniform(0.05, 0.5), 2)
    elif kind == "stall" and cast.shares and target in cast.writers:
        amount = random.choice((0.0, CRASH_WAITS_MS))
    elif kind == "away":
        for_ms = round(random.uniform(500, 9000), 1)
    elif kind == "storage":
        target, amount = random.choice(cast.readers), random.choice((0.0, 0.0, 1.0))
        for_ms = round(random.uniform(500, 9000), 1)
    elif kind == "crash":
        for_ms = round(
            random.choice((random.uniform(50, 3000), random.uniform(50, 3000), random.uniform(9000, 16000))),
            1,
        )
        if target in logs:
            amount = random.choice((0.0, CRASH_WAITS_MS))
    return (Fault(number=number, at_ms=at_ms, kind=kind, target=target, for_ms=for_ms, amount=amount),)
