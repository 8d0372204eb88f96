"""The rules of a world: they hold at every step, and after the faults have stopped."""

from __future__ import annotations

from collections.abc import Sequence

from walkit.errors import DivergenceError, GapError, StorageError, WalkitError
from walkit.format.file_names import lsn_of_name
from walkit.format.manifest import LogEnd
from walkit.replication.delta.messages import DELTA_VERSION_MAX
from walkit.replication.primary.session import Session
from walkit.replication.protocol.failures import IdentityError, RewindError
from walkit.replication.protocol.messages import Plan
from walkit.simulate.runner import Life, Runner
from walkit.simulate.world_faults import SKEW_MS
from walkit.simulate.world_log import Branch, Ledger, Promise, Violation
from walkit.simulate.world_nodes import LEASE_S, LIMITS, OPTIONS, LogNode, ReaderNode

RULES = {
    "durable": "an acknowledged record is in the log and the state, unchanged, after every crash of the primary",
    "acknowledged": "a replica acknowledges only records on its disk, and the primary counts no others",
    "promoted": "a promoted replica has all that it acknowledged; with `ack_replicas` it has each acknowledged record",
    "logs": "a replica's log is a part of the primary's durable log, chain by chain, and its state follows",
    "announced": "the state of a reader is that of the log at the LSN that it announces",
    "claims": "nothing is dropped that was promised to a replica or a reader, and a started bootstrap keeps its plan",
    "fenced": "a writer whose log was taken over publishes nothing, and nothing that the log names is deleted",
    "refused": "no replica and no reader ends, is rewound or is emptied for a reason that does not exist",
    "bounds": "memory is bounded, nothing goes round in a circle, and at rest few files are open",
    "converged": "after the faults all logs and states become equal, and the primary knows it",
    "healthy": "without a fault each record soon reaches everyone, without new connections, and answers bring frames",
    "assertion": "no shell and no core raises",
}
FILES_MAX = 8
"""Files of a log that a process has open at rest."""
CLAIM_MS = 6_000.0
"""A claim is in force after so much contact, whatever has failed meanwhile is tried again, ..."""
KEPT_MS = LEASE_S * 1000 - 5_500.0 - 2 * SKEW_MS
"""... and for so long after it: it was written, or renewed, some time before the contact ended."""
CONTACT_MS = 1_500.0
"""A replica that has said nothing for so long may be away."""
READER_CLAIM_MS = 5_000.0
"""A reader's own claim: the one before may have lapsed, which is noticed by the first try to renew it."""

HELD_BYTES_MAX = LIMITS.bytes_max + (LIMITS.loads_max + 1) * OPTIONS.frame_bytes_max
"""Each load under way may bring a whole frame where a few records of it were asked for, and so may the head's."""


class Rules:
    """Looks at the world after each step; Violation where something does not hold."""

    def __init__(
        self,
        runner: Runner,
        ledger: Ledger,
        logs: Sequence[LogNode],
        readers: Sequence[ReaderNode],
    ) -> None:
        self.runner, self.ledger, self.logs, self.readers = runner, ledger, logs, readers
        self._plans: dict[tuple[Life, str], tuple[Session, Plan, float]] = {}
        """By life of a primary and key of a replica: its last bootstrap, whose plan it may count on until then."""
        self._compared: dict[str, tuple[Branch, int]] = {}
        """By process, the branch and the LSN at which its state was compared."""

    def check(self) -> None:
        """Check the process that the last step ran; all after an event outside them, as a fault."""
        if self.ledger.found is not None:
            raise self.ledger.found
        ran = self.runner.ran
        for node in self.logs:
            if ran in (None, node.process):
                (self._check_primary if node.leads else self._check_replica)(node)
        for reader in self.readers:
            if ran in (None, reader.process):
                self._check_reader(reader)

    def _check_primary(self, node: LogNode) -> None:
        store, primary, branch = node.store, node.primary, node.branch
        if store is None or primary is None or branch is None:
            return
        core = store.log.parts.core
        if node.is_newest(store) and branch.acked_lsn > core.durable_lsn:
            raise Violation(
                "durable",
                f"LSN {branch.acked_lsn} is acknowledged, {core.durable_lsn} is durable at {node.name}",
            )
        oldest, now_ms = node.oldest_lsn, self.runner.now_ms
        heard = {self._check_session(session, node) for session in primary._sessions}
        for name in (n.name for n in self.logs if n.leader is node and n.name not in heard):
            self._promise(node, name, 0, CLAIM_MS, False)
        for name, promise in branch.promises.items():
            if promise.first_lsn < oldest and now_ms < promise.until_ms:
                text = f"{name} was promised LSN {promise.first_lsn} and later; the oldest is {oldest}"
                raise Violation("claims", text)

    def _check_session(self, session: Session, node: LogNode) -> str:
        """Check one session; return the name of its replica, "" if that has not been heard for some time."""
        self._check_plan(session, node.process.life)
        core, branch = session.core, node.branch
        if core.state != "streaming" or branch is None:
            return ""
        name, acked = core.name, core.acked
        replica = next(each for each in self.logs if each.name == name)
        if session._context.client is not replica.process.life or replica.leads or replica.leader is not node:
            return ""  # of an earlier life, whose folder may be another
        if branch.acked.get(name) != acked:
            self._replica_has(replica, acked.position, f"the primary counts on {acked} of {name}")
            branch.acked[name] = acked
        if core.in_flight_bytes > core.window_bytes + OPTIONS.frame_bytes_max * 2:
            raise Violation("bounds", f"{core.in_flight_bytes:,} bytes are in flight")
        if core.heard_ago_ms(self.runner.now_ms) > CONTACT_MS:
            return ""
        self._promise(node, name, acked.last_lsn + 1, CLAIM_MS, True)
        return name

    def _check_plan(self, session: Session, life: Life) -> None:
        """Check that a replica which has fetched a part gets the same plan again, while its lease lives."""
        core, files, whose = session.core, session._planned, (life, session.core.key)
        if core.state == "streaming":
            self._plans.pop(whose, None)  # the log that it was made for is there
        elif core.state == "bootstrapping" and files is not None:
            before, plan, until_ms = self._plans.get(whose, (session, files.plan, 0.0))
            if plan != files.plan:
                is_refused = before._planned is None or before.core.acked != core.acked
                if self.runner.now_ms < until_ms and not is_refused:
                    raise Violation("claims", f"{core.name} gets another plan, and has fetched parts of one")
                until_ms = 0.0
            if core.traffic.batches:
                until_ms = self.runner.now_ms + LEASE_S * 1000
            self._plans[whose] = session, files.plan, until_ms

    def _replica_has(self, node: LogNode, position: int, what: str) -> None:
        replica = node.replica
        if replica is not None and replica.log.end.position < position:
            raise Violation("acknowledged", f"{what}, which ends at {replica.log.end}")

    def _promise(self, node: LogNode, name: str, first_lsn: int, after_ms: float, contact: bool) -> None:
        """Note what a primary promises from now on: after a time of contact, and for a time after it."""
        now_ms = self.runner.now_ms
        assert node.branch is not None
        promise = node.branch.promises.setdefault(name, Promise(first_lsn, 0.0))
        promise.first_lsn = max(first_lsn, promise.first_lsn)
        is_gone = promise.until_ms < now_ms and promise.first_lsn < node.oldest_lsn
        if not contact or is_gone or node.process.stalled_until_ms > now_ms:
            promise.since_ms = None
        elif promise.since_ms is None:
            promise.since_ms = now_ms
        if promise.since_ms is not None and now_ms - promise.since_ms >= after_ms:
            promise.until_ms = now_ms + KEPT_MS

    def _check_replica(self, node: LogNode) -> None:
        replica = node.replica
        if replica is None:
            return
        if node.rewound and not node.differs():
            raise Violation("refused", f"{node.name} was rewound, and its primary has all of it: {node.seen}")
        node.rewound = False
        loop = replica._loop
        log, store, core = loop.opened
        end, lsn = log.end, store.applied_lsn
        branch = self.ledger.branch_of(log.manifest.lineage)
        if loop.error is not None and loop.thread.ended:
            self._ended(node, loop.error)
            return
        if branch is None or log.closed:
            return
        node.seen = branch, end
        if branch.ends.get(end.position) is not end:
            branch.end_at(end, node.name)
        branch.shown_lsn = max(branch.shown_lsn, end.last_lsn)
        if core.end.position > end.position and not log.closed:
            raise Violation("acknowledged", f"{node.name} counts on {core.end} and has {end} on its disk")
        if (
            (branch, lsn) != self._compared.get(node.name)
            and lsn <= branch.last_lsn
            and not store._follower.lock.locked()
        ):
            if lsn == store._table.applied_lsn and dict(store._table.items()) != branch.states[lsn]:
                raise Violation("logs", f"the state of {node.name} is not that of its log at LSN {lsn}")
            self._compared[node.name] = branch, lsn

    def _check_reader(self, node: ReaderNode) -> None:
        reader, branch = node.reader, node.leader.branch
        if reader is None or branch is None:
            return
        loop, state = reader._loop, reader.state
        lsn = state.applied_lsn
        node.seen = branch, LogEnd(last_lsn=lsn)
        branch.shown_lsn = max(branch.shown_lsn, lsn)
        if (
            (branch, lsn) != self._compared.get(node.name)
            and lsn <= branch.last_lsn
            and not state._follower.lock.locked()
        ):
            if dict(state.table.items()) != branch.states[lsn]:
                raise Violation("announced", f"the state of {node.name} is not that of the log at LSN {lsn}")
            self._compared[node.name] = branch, lsn
        maintenance = loop.maintenance
        if maintenance is not None and maintenance.saved_lsn:
            storage = node.storage
            works = not (any(node.faults.values()) or storage.disk.away or maintenance.trouble)
            works &= node.process.stalled_until_ms <= self.runner.now_ms
            self._promise(node.leader, node.name, maintenance.saved_lsn + 1, READER_CLAIM_MS, works)
        if loop.replayer.held_bytes > HELD_BYTES_MAX:
            raise Violation("bounds", f"{node.name} holds {loop.replayer.held_bytes:,} bytes")
        if loop.error is not None and loop.thread.ended:
            self._ended(node, loop.error)

    def _ended(self, node: LogNode | ReaderNode, error: WalkitError) -> None:
        """A replica or reader has ended: for its storage it may; all else is tried again by itself."""
        count = self.runner.count
        if isinstance(error, StorageError):
            count(f"{node.kind} fails")
            node.exit()
        elif isinstance(error, IdentityError) and error.reason == "rewound" and node.was_replaced:
            count("a folder that is put back is refused")
            node.needs_identity, node.was_replaced = True, False
            node.exit()
        elif isinstance(error, GapError) and (
            node.leader.store is None or error.wanted < node.leader.oldest_lsn
        ):
            count(f"{node.kind} meets a gap")
            node.exit()
        elif isinstance(error, RewindError) and error.reason == "held" and isinstance(node, LogNode):
            count("a rewind is held")
            node.forces = True
            node.exit()
        elif isinstance(error, DivergenceError) and node.differs():
            node.begin_anew()
        else:
            raise Violation("refused", f"{node.name} gave up: {type(error).__name__}: {error}")

    def left_open(self) -> str:
        """Return the files that are open without need at rest, as text; empty if all are closed."""
        nodes = (*self.logs, *self.readers)
        snapshots = [(n.name, name) for n in nodes for name in n.storage.files if lsn_of_name(name)]
        many = [(n.name, len(n.storage.files)) for n in nodes if len(n.storage.files) > FILES_MAX]
        return f"files are open: {snapshots or many}" if snapshots or many else ""

    def connections(self) -> dict[str, int]:
        """Return how many connections or sessions everyone has begun in its life."""
        found = {r.name: r.replica._loop.core.connections for r in self.logs if r.replica is not None}
        return found | {r.name: r.reader._loop.sessions for r in self.readers if r.reader is not None}

    def deltas(self) -> dict[str, int]:
        """Return how many deltas each reader of the newest version has applied."""
        loops = {r.name: r.reader._loop for r in self.readers if r.reader is not None}
        return {
            name: loop.replayer.counts.deltas
            for name, loop in loops.items()
            if loop.poller.version == DELTA_VERSION_MAX
        }

    def missing(self, leader: LogNode, old: LogNode | None) -> str:
        """Return what keeps the world from being converged, in words; "" where nothing does."""
        store, primary, branch = leader.store, leader.primary, leader.branch
        if store is None or primary is None or branch is None:
            return "the primary is down"
        if old is not None:
            return f"{old.name} does not follow the new primary"
        core = store.log.parts.core
        lsn, position = core.durable_lsn, core.durable_position
        if branch.last_lsn != lsn:
            return f"LSN {branch.last_lsn} of {lsn} is acknowledged"
        acked = {s.core.name: s.core.acked for s in primary._sessions if s.core.state == "streaming"}
        replicas = [node for node in self.logs if node is not leader and not node.shares]
        for node in replicas:
            replica = node.replica
            if replica is None:
                return f"{node.name} is down"
            if replica.log.end.position != position or replica.store.applied_lsn != lsn:
                return f"{node.name} ends at LSN {replica.log.end.last_lsn}, the primary at {lsn}"
            if replica._loop.core.state != "streaming":
                return f"{node.name} is not connected"
            if acked.get(node.name) != replica.log.end:
                return f"the primary does not know that {node.name} has everything"
        for each in self.readers:
            if missing := each.missing(lsn):
                return f"{each.name} {missing}"
        for name in (node.name for node in (*replicas, *self.readers) if node.has_state):
            other, compared_lsn = self._compared.get(name, (branch, 0))
            if compared_lsn != lsn or not branch.has_all_of(other, LogEnd(last_lsn=lsn)):
                return f"the state of {name} was not compared"
        return ""
