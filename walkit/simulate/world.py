"""A seeded world in virtual time: a primary, replicas, delta readers and clients as programs run them, and faults.

All of walkit is real here: logs, stores, sessions, loops and claims with their threads. The disks crash, the network
loses messages, and threads take turns as the seed says. The same schedule gives the same run, bit for bit. After each
step every rule of `world_rules` is checked; when the faults have stopped, everything has to become equal.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from zlib import crc32

from walkit.models import CrashingStorage
from walkit.simulate.host import hosted
from walkit.simulate.runner import Process, Runner
from walkit.simulate.world_faults import LINK_KINDS, PRIMARY, WAITING_KINDS, Fault, Schedule
from walkit.simulate.world_link import WorldGrpc
from walkit.simulate.world_log import Ledger, Violation
from walkit.simulate.world_network import Network
from walkit.simulate.world_nodes import LEASE_S, LogNode, Node, ReaderNode
from walkit.simulate.world_objects import nodes_of
from walkit.simulate.world_rules import Rules

SETTLE_MS = 120_000.0
"""How long after the faults everything may take to become equal."""
HEALTHY_APPENDS, HEALTHY_PAUSE_MS = 3, 400.0
HEALTHY_MS = 3_000.0
"""How long an append may take to reach everyone without a fault."""
LATE_MS = 4_000.0
"""After so long without a fault no message of before is under way, and a poll that was given up was made again."""
LOOK_MS = 200.0
"""How often it is looked at whether everything is equal."""
EVENTS_MAX = 100_000
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
    """The result of one schedule."""

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
        self.schedule, seed = schedule, schedule.seed
        self.runner, self.ledger = Runner(seed), Ledger()
        nodes = nodes_of(self.runner, self.ledger, seed)
        self.logs = [node for node in nodes if isinstance(node, LogNode)]
        self.readers = [node for node in nodes if isinstance(node, ReaderNode)]
        self.leader = self.logs[0]
        """The primary that writers and readers are sent to."""
        self._old: LogNode | None = None
        """A primary in whose place another one comes, until it follows that."""
        self._is_whole = True
        """Whether no folder of a log was replaced."""
        self._nodes: dict[str, Node] = {node.name: node for node in nodes}
        self.network = Network(self.runner, seed, {node.port: node.process for node in self.logs})
        self.rules = Rules(self.runner, self.ledger, self.logs, self.readers)
        self._sample_ms, self._samples = sample_ms, list[Sample]()

    def run(self) -> Outcome:
        """Run the faults, then let everything settle; return what came of it. Raises nothing that a shell raises."""
        rule = text = ""
        with hosted(self.runner, self.schedule.seed, WorldGrpc(self.network)):
            try:
                self._run()
            except Violation as violation:
                rule, text = violation.rule, violation.text
            except Exception as error:  # noqa: BLE001 - whatever is raised is a finding, with the schedule that led to it
                *_, last = traceback.extract_tb(error.__traceback__)
                place = f"{os.path.basename(last.filename)}, {last.name}: {last.line}"
                rule, text = "assertion", f"{type(error).__name__}: {error} ({place})"
            digest = self._digest()
            for node in self._nodes.values():
                if node.process.up:
                    node.end()
        return Outcome(
            schedule=self.schedule,
            rule=rule,
            text=text,
            at_ms=self.runner.now_ms,
            events=self.runner.events,
            records=0 if self.leader.branch is None else self.leader.branch.last_lsn,
            digest=digest,
            counts=dict(self.runner.counts),
            samples=tuple(self._samples),
        )

    def _run(self) -> None:
        runner = self.runner
        for node in self._nodes.values():
            node.start()
        last_ms = self.schedule.chaos_ms
        for fault in self.schedule.faults():
            runner.after(fault.at_ms, lambda fault=fault: self._begin(fault))  # type: ignore[misc]
            last_ms = max(last_ms, fault.until_ms)
        if self._sample_ms is not None:
            self._sample()
        self._run_until(self.schedule.chaos_ms)
        for node in self.logs:
            node.appends = False
        self._run_until(last_ms)
        self._settle("converged", SETTLE_MS)
        self._run_until(runner.now_ms + LATE_MS)
        self._append(0)  # a sync that has failed unseen fails the log now
        self._settle("converged", SETTLE_MS)
        self._check_healthy()
        if self.rules.left_open():
            self._run_until(runner.now_ms + LEASE_S * 1100)  # the plan of a bootstrap is kept for so long
        if left := self.rules.left_open():
            raise Violation("bounds", left)

    def _settle(self, rule: str, for_ms: float) -> None:
        """Go on until everything is equal; Violation of this rule where it is not within so much time."""
        runner, until_ms = self.runner, self.runner.now_ms + for_ms
        while missing := self.rules.missing(self.leader, self._old):
            if runner.now_ms >= until_ms:
                raise Violation(rule, f"{missing}, {for_ms / 1000:g} s after the last fault or append")
            self._run_until(runner.now_ms + LOOK_MS)

    def _run_until(self, until_ms: float) -> None:
        while self.runner.step(until_ms):
            self.rules.check()
            if self.runner.events > EVENTS_MAX:
                raise Violation("bounds", f"{EVENTS_MAX:,} events: something goes round in a circle")

    def _check_healthy(self) -> None:
        """Without any fault, append a little more: it reaches everyone soon, over the connections that there are."""
        before, deltas = self.rules.connections(), self.rules.deltas()
        for number in range(HEALTHY_APPENDS):
            self._append(number)
        self._settle("healthy", HEALTHY_MS)
        if self.rules.connections() != before:
            raise Violation("healthy", f"without a fault: {before} became {self.rules.connections()}")
        for name, count in self.rules.deltas().items():
            if count == deltas.get(name):
                raise Violation("healthy", f"{name} gets no frames with its answers")

    def _append(self, number: int) -> None:
        rows = [(b"key %d" % number, b"healthy %d" % number)]
        self.runner.spawn(self.leader.process.life, lambda: self.leader.append(rows), "client")
        self._run_until(self.runner.now_ms + HEALTHY_PAUSE_MS)

    # -- faults

    def _begin(self, fault: Fault) -> None:
        end: Callable[[], object] | None = None
        if fault.kind in LINK_KINDS:
            here = replace(fault, target=self._link_of(fault.target))
            self.network.begin(here)
            end = lambda: self.network.end(here)  # noqa: E731
        elif fault.kind == "promote":
            self._promote(fault)
        elif (node := self._nodes.get(fault.target)) is not None:
            process, disk = node.process, node.disk
            if fault.kind in WAITING_KINDS:
                act = partial(self._crash if fault.kind == "crash" else self._stall, fault, node)
                if fault.amount and process.up:
                    disk.on_write = act
                    self.runner.after(fault.amount, lambda: self._act_if_idle(node, act))
                else:
                    act()
            elif fault.kind == "write":
                disk.fails_next_write = True
                end = lambda: setattr(disk, "fails_next_write", False)  # noqa: E731
            elif fault.kind == "skew":
                process.skew_ms += fault.amount
                end = lambda: self._set_clock(process, fault)  # noqa: E731
            elif fault.kind == "another":
                self._replace(node, CrashingStorage())
            elif fault.kind == "back":
                kept = disk.image.process_kill()
                end = lambda: self._replace(node, kept)  # noqa: E731
            elif fault.kind == "away":
                disk.away += 1
                end = disk.come_back
            elif fault.kind == "requests":
                disk.trouble += fault.amount
                end = lambda: setattr(disk, "trouble", disk.trouble - fault.amount)  # noqa: E731
            else:
                assert fault.kind == "storage" and isinstance(node, ReaderNode)
                kind = "read-only" if fault.amount else "fails"
                node.faults[kind] += 1
                end = lambda: node.faults.subtract([kind])  # noqa: E731
        if end is not None:
            self.runner.after(fault.for_ms, end)

    def _link_of(self, target: str) -> str:
        """Return the link between the primary of this moment and the other end."""
        names = {PRIMARY: self.leader.name, self.leader.name: PRIMARY}
        return ">".join(names.get(name, name) for name in target.split(">"))

    def _replace(self, node: Node, image: CrashingStorage) -> None:
        """Replace a folder, unless it has the only whole log."""
        if node is not self._old and not (isinstance(node, LogNode) and node.leads):
            self._is_whole &= not isinstance(node, LogNode)
            node.replace_folder(image)

    def _promote(self, fault: Fault) -> None:
        """Have the furthest replica take the primary's place, which is lost at once, or continues for some time."""
        old, branch = self.leader, self.leader.branch
        if self._old is not None or branch is None:
            return
        fit = [node for node in self.logs if node.reach(branch) >= 0]
        if not fit:
            return
        new = max(fit, key=lambda node: node.reach(branch))
        self._old, still, new.promised_lsn = old, bool(fault.amount), 0
        if old.acks and self._is_whole and len(fit) == len(self.logs) - 1:  # one of them has each record
            new.promised_lsn = branch.acked_lsn
            self.runner.count("promised by replicas")
        self.runner.count("two primaries" if still else "a primary is lost")
        if not still:
            old.kill()
            old.down_until_ms = math.inf
        new.on_lead = lambda: self._redirect_followers(old, new, fault)
        new.promote()

    def _redirect_followers(self, old: LogNode, new: LogNode, fault: Fault) -> None:
        """Send those that follow to the new primary, when it serves: half of them only later where two are at work."""
        if self._old is not old or self.leader is new or new.store is None:
            return
        if not old.gives_way(new):
            new.exit()
            return
        self.leader = new
        followers: list[LogNode | ReaderNode] = [n for n in self.logs if n not in (old, new)]
        followers += self.readers
        late = followers[::2] if fault.amount else []
        for node in followers:
            if node not in late:
                node.follow(new)
        self.runner.after(fault.for_ms, lambda: self._join(old, [old, *late]))

    def _join(self, old: LogNode, late: Sequence[LogNode | ReaderNode]) -> None:
        self._old = None
        for node in late:
            node.follow(self.leader)

    def _set_clock(self, process: Process, fault: Fault) -> None:
        self.runner.count("skew")
        process.skew_ms -= fault.amount

    def _crash(self, fault: Fault, node: Node) -> None:
        node.kill()
        node.restart(fault.for_ms)

    def _stall(self, fault: Fault, node: Node) -> None:
        process, until_ms = node.process, self.runner.now_ms + fault.for_ms
        process.stalled_until_ms = max(process.stalled_until_ms, until_ms)

    def _act_if_idle(self, node: Node, act: Callable[[], object]) -> None:
        """Let a fault come to a process that has written nothing for as long as it was waited for."""
        if node.disk.on_write is act:
            node.disk.on_write = None
            act()

    # -- what is seen

    def _sample(self) -> None:
        assert self._sample_ms is not None
        lsns = {n.name: n.branch.last_lsn if n.branch else 0 for n in self.logs if n.leads}
        lsns |= {n.name: n.replica.log.end.last_lsn for n in self.logs if n.replica is not None}
        lsns |= {each.name: each.reader.applied_lsn for each in self.readers if each.reader is not None}
        down = tuple(name for name, node in self._nodes.items() if not node.process.up)
        self._samples.append(Sample(at_ms=self.runner.now_ms, lsns=lsns, down=down))
        self.runner.after(self._sample_ms, self._sample)

    def _digest(self) -> int:
        records = 0 if self.leader.branch is None else self.leader.branch.digest
        return crc32(b"%d %d %d" % (self.runner.events, self.network.sent, records))


def run_schedule(schedule: Schedule, *, sample_ms: float | None = None) -> Outcome:
    """Run one schedule and return what came of it; with `sample_ms`, how far everyone was that often."""
    return World(schedule, sample_ms=sample_ms).run()
