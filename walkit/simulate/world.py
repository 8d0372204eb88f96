"""A seeded world in virtual time: primary, replicas, delta readers and clients over the real cores, and their faults.

The cores of commit, publisher, subscriber, delta poll, poller, replayer and retention are the ones that real processes
run; their shells, disks and network are modelled. The same schedule gives the same run, bit for bit. After each step
every rule of `world_rules` is checked; when the faults have stopped, everything has to become equal.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from zlib import crc32

from walkit.simulate.world_clock import Clock, Process
from walkit.simulate.world_faults import (
    LINK_KINDS,
    NODES,
    PRIMARY,
    READERS,
    REPLICAS,
    Fault,
    Schedule,
    random_of,
)
from walkit.simulate.world_log import Ledger, Rows, Violation
from walkit.simulate.world_network import Network
from walkit.simulate.world_primary import Append, Primary
from walkit.simulate.world_reader import Reader
from walkit.simulate.world_replica import Replica
from walkit.simulate.world_rules import Rules

CLIENTS = 2
BURSTS = (1, 1, 1, 1, 1, 5)
"""How many appends a client has under way at once: so many that some share a frame."""
SETTLE_MS = 12_000.0
"""How long after the faults everything may take to become equal."""
HEALTHY_APPENDS, HEALTHY_PAUSE_MS = 3, 40.0
HEALTHY_MS = 300.0
"""How long an append may take to reach everyone where there is no fault."""
LATE_MS = 400.0
"""After so long without a fault no message of before is under way, and a poll that was given up was made again."""
LOOK_MS = 20.0
"""How often it is looked at whether everything is equal."""
EVENTS_MAX = 20_000
"""More events in one schedule are a livelock."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """How far everyone was at one moment, for figures: the last durable, stored or announced LSN by name.

    A reader that has no replay at that moment is left out.
    """

    at_ms: float
    lsns: dict[str, int]
    down: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one schedule."""

    schedule: Schedule
    rule: str
    """The rule that was broken; "" where all held."""
    text: str
    at_ms: float
    """When it ended: virtual milliseconds."""
    events: int
    records: int
    """Records that became durable."""
    digest: int
    """A CRC-32 over every frame, every state and the number of events: equal for equal runs."""
    counts: Mapping[str, int]
    """How often each thing of `world_counts.COVERAGE` happened; without those that did not."""
    samples: tuple[Sample, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether a rule was broken."""
        return bool(self.rule)


class World:
    """One run of one schedule: `run` once."""

    def __init__(self, schedule: Schedule, *, sample_ms: float | None = None) -> None:
        self.schedule = schedule
        self.clock = Clock()
        seed = schedule.seed
        self.processes = {name: Process(name, self.clock) for name in NODES}
        self.network = Network(self.clock, seed, self.processes)
        self.ledger = Ledger()
        self.primary = Primary(self.processes[PRIMARY], self.network, self.ledger, seed)
        shared = (self.network, self.primary, self.ledger, seed)
        self.replicas = tuple(Replica(self.processes[name], *shared) for name in REPLICAS)
        self.readers = tuple(Reader(self.processes[name], *shared) for name in READERS)
        self.rules = Rules(self.ledger, self.primary, self.replicas, self.readers)
        nodes: list[Primary | Replica | Reader] = [self.primary, *self.replicas, *self.readers]
        self._nodes = {node.process.name: node for node in nodes}
        self._random = random_of(seed, "clients")
        self._values = 0
        self._down_until: dict[str, float] = {}
        self._sample_ms, self._samples = sample_ms, list[Sample]()

    def run(self) -> Outcome:
        """Run the faults, then let everything settle; return what came of it. Raises nothing that a core raises."""
        rule = text = ""
        try:
            self._run()
        except Violation as violation:
            rule, text = violation.rule, violation.text
        except Exception as error:  # noqa: BLE001 - whatever a core raises is a finding, with the schedule that led to it
            *_, last = traceback.extract_tb(error.__traceback__)
            place = f"{os.path.basename(last.filename)}, {last.name}: {last.line}"
            rule, text = "assertion", f"{type(error).__name__}: {error} ({place})"
        return Outcome(
            schedule=self.schedule,
            rule=rule,
            text=text,
            at_ms=self.clock.now_ms,
            events=self.clock.events,
            records=self.ledger.end.last_lsn,
            digest=self._digest(),
            counts=dict(self.clock.counts),
            samples=tuple(self._samples),
        )

    def _run(self) -> None:
        clock = self.clock
        for node in self._nodes.values():
            node.start()
        for _ in range(CLIENTS):
            self._client()
        last_ms = self.schedule.chaos_ms
        for fault in self.schedule.faults():
            clock.after(fault.at_ms, lambda fault=fault: self._begin(fault))  # type: ignore[misc]
            last_ms = max(last_ms, fault.until_ms)
        if self._sample_ms is not None:
            self._sample()
        self._go_on(last_ms)
        self._settle("converged", SETTLE_MS)
        self._go_on(self.clock.now_ms + LATE_MS)
        self._settle("converged", SETTLE_MS)
        self._stay_healthy()
        self.rules.compare_disk()

    def _settle(self, rule: str, for_ms: float) -> None:
        """Go on until everything is equal; Violation of this rule where it is not within so much time."""
        clock, until_ms = self.clock, self.clock.now_ms + for_ms
        while missing := self.rules.missing():
            if clock.now_ms >= until_ms:
                raise Violation(rule, f"{missing}, {for_ms / 1000:g} s after the last fault or append")
            self._go_on(clock.now_ms + LOOK_MS)

    def _go_on(self, until_ms: float) -> None:
        while self.clock.step(until_ms):
            self.rules.check()
            self._bound()

    def _stay_healthy(self) -> None:
        """Without any fault, append a little more: it reaches everyone soon, over the connections that there are."""
        before = self.rules.connections()
        for number in range(HEALTHY_APPENDS):
            key, value = b"key %d" % number, b"healthy %d" % number
            self._append(((key, value),))
            self._go_on(self.clock.now_ms + HEALTHY_PAUSE_MS)
        self._settle("healthy", HEALTHY_MS)
        if self.rules.connections() != before:
            raise Violation("healthy", f"without a fault: {before} became {self.rules.connections()}")

    def _bound(self) -> None:
        if self.clock.events > EVENTS_MAX:
            raise Violation("bounds", f"{EVENTS_MAX:,} events: something goes round in a circle")

    # -- clients

    def _client(self) -> None:
        """Append, wait for the outcome, think, and append again, as long as there are faults."""
        if self.clock.now_ms >= self.schedule.chaos_ms:
            return
        think_ms = self._random.choice((0.0, 4.0, 20.0, 60.0, 200.0))
        process = self.primary.process
        if not process.up or process.stalled_until_ms > self.clock.now_ms:
            self.clock.after(think_ms + 5, self._client)
            return
        for _ in range(self._random.choice(BURSTS) - 1):
            self._append(self._drawn_rows())
        self._append(self._drawn_rows(), lambda: self.clock.after(think_ms, self._client))

    def _drawn_rows(self) -> Rows:
        size = self._random.choice((8, 8, 40, 300))
        rows = []
        for _ in range(self._random.choice((1, 1, 2, 5))):
            self._values += 1
            key = b"key %d" % self._random.randrange(12)
            rows.append((key, (b"%d " % self._values * size)[:size]))
        return rows

    def _append(self, rows: Rows, then: Callable[[], None] | None = None) -> None:
        def done(append: Append | None) -> None:
            if append is not None:
                self._check_acknowledged(append)
            if then is not None:
                then()

        self.primary.append(rows, done)

    def _check_acknowledged(self, append: Append) -> None:
        first = append.first_lsn
        found = self.ledger.rows[first - 1 : first - 1 + append.count]
        if list(found) != list(append.rows):
            raise Violation("durable", f"LSN {first} was acknowledged, and is not in the log")

    # -- faults

    def _begin(self, fault: Fault) -> None:
        end: Callable[[], None] | None = None
        if fault.kind in LINK_KINDS:
            self.network.begin(fault)
            end = lambda: self.network.end(fault)  # noqa: E731
        elif fault.kind == "crash":
            node = self._nodes[fault.target]
            if fault.amount and isinstance(node, Primary | Replica) and node.process.up:
                writer = node
                writer.crashes_in_write = lambda: self._crash(fault, writer)
                self.clock.after(fault.amount, lambda: self._crash_idle(fault, writer))
            else:
                self._crash(fault, node)
        elif fault.kind == "stall":
            process = self.processes[fault.target]
            process.stalled_until_ms = max(process.stalled_until_ms, fault.until_ms)
        elif fault.kind == "write":
            node = self._nodes[fault.target]
            assert isinstance(node, Primary | Replica)
            node.fails_next_write = True
            end = lambda: self._can_write(node)  # noqa: E731
        else:
            reader = self._nodes[fault.target]
            assert fault.kind == "storage" and isinstance(reader, Reader)
            reader.storage_fails += 1
            end = lambda: self._mend(reader)  # noqa: E731
        if end is not None:
            self.clock.after(fault.for_ms, end)

    def _crash(self, fault: Fault, node: Primary | Replica | Reader) -> None:
        node.kill()
        until_ms = self.clock.now_ms + fault.for_ms
        self._down_until[fault.target] = max(until_ms, self._down_until.get(fault.target, 0))
        self.clock.at(until_ms, lambda: self._restart(fault))

    def _crash_idle(self, fault: Fault, node: Primary | Replica) -> None:
        """End a process that has written nothing for as long as it was waited for."""
        if node.crashes_in_write is not None:
            node.crashes_in_write = None
            self._crash(fault, node)

    def _restart(self, fault: Fault) -> None:
        node = self._nodes[fault.target]
        if not node.process.up and self.clock.now_ms >= self._down_until[fault.target]:
            node.start()

    @staticmethod
    def _can_write(node: Primary | Replica) -> None:
        node.fails_next_write = False

    @staticmethod
    def _mend(reader: Reader) -> None:
        reader.storage_fails -= 1

    # -- what is seen

    def _sample(self) -> None:
        assert self._sample_ms is not None
        lsns = {PRIMARY: self.ledger.end.last_lsn}
        lsns |= {replica.name: replica.disk.end.last_lsn for replica in self.replicas}
        lsns |= {reader.name: reader.announced_lsn for reader in self.readers if reader.replayer is not None}
        down = tuple(name for name, process in self.processes.items() if not process.up)
        self._samples.append(Sample(at_ms=self.clock.now_ms, lsns=lsns, down=down))
        self.clock.after(self._sample_ms, self._sample)

    def _digest(self) -> int:
        digest = crc32(b"%d %d" % (self.clock.events, self.network.sent))
        for frame in self.ledger.frames:
            digest = crc32(frame.data, digest)
        states = [
            *(replica.disk.state for replica in self.replicas),
            *(reader.state for reader in self.readers),
        ]
        for state in states:
            digest = crc32(b"%d %d" % (state.lsn, state.digest), digest)
        return digest


def run_schedule(schedule: Schedule, *, sample_ms: float | None = None) -> Outcome:
    """Run one schedule and return what came of it; with `sample_ms`, how far everyone was that often."""
    return World(schedule, sample_ms=sample_ms).run()
