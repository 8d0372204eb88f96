"""What must hold in a world: at every step, and after the faults have stopped."""

from __future__ import annotations

from collections.abc import Sequence

from walkit.format.manifest import LogEnd
from walkit.simulate.world_feed import OPTIONS
from walkit.simulate.world_log import FRAME_BYTES_MAX, Ledger, Violation
from walkit.simulate.world_primary import SKIPS, Primary
from walkit.simulate.world_reader import LIMITS, Reader
from walkit.simulate.world_replica import Replica
from walkit.simulate.world_session import BATCH_BYTES, WINDOW_BYTES

RULES = {
    "durable": "what was acknowledged is in the log, unchanged, after every crash of the primary",
    "acknowledged": "a replica acknowledges only what is on its disk, and the primary believes no more than that",
    "logs": "a replica's log is a part of the primary's durable log, byte for byte, and its state follows",
    "announced": "a reader announces only what it has applied, each record once and in order",
    "answers": "an answer names only what is durable",
    "claims": "nothing that a live claim needs is dropped",
    "refused": "no replica and no reader ends for a reason that is not there",
    "bounds": "what waits in memory is bounded",
    "converged": "after the faults all logs and states become equal, and the primary knows it",
    "healthy": "without a fault what is appended reaches everyone soon, in the sessions that there are",
    "assertion": "no core raises",
}
LARGEST_FRAME_BYTES = FRAME_BYTES_MAX + SKIPS[-1]
"""A window, a batch or a load may be passed by one frame, and by the bytes that an epoch skips before it."""


class Rules:
    """Looks at the whole world after each step; Violation where something does not hold."""

    def __init__(
        self, ledger: Ledger, primary: Primary, replicas: Sequence[Replica], readers: Sequence[Reader]
    ) -> None:
        self.ledger, self.primary = ledger, primary
        self.replicas, self.readers = replicas, readers
        self._life = 0
        """The life of the primary whose disk was compared."""
        self._compared: dict[str, LogEnd] = {}
        """By replica, the end at which its log and its state were compared."""

    def check(self) -> None:
        """Check everything, in a time that does not grow with the log."""
        self._check_primary()
        for replica in self.replicas:
            self._check_replica(replica)
        for reader in self.readers:
            self._check_reader(reader)

    def _check_primary(self) -> None:
        primary, ledger = self.primary, self.ledger
        disk, now_ms = primary.disk, primary.process.clock.now_ms
        oldest = disk.oldest_lsn
        for name, (first_lsn, until_ms) in disk.claims.items():
            if until_ms > now_ms and first_lsn < oldest:
                raise Violation(
                    "claims", f"the claim of {name} needs LSN {first_lsn}; the oldest is {oldest}"
                )
        for key, saved in disk.replica_claims.items():
            lapses_ms = (saved.lease_until_us or 0) / 1000
            if lapses_ms > now_ms and saved.needed_lsn < oldest and key not in primary.sessions.claims():
                raise Violation(
                    "claims", f"the saved claim {key} needs LSN {saved.first_lsn}; the oldest is {oldest}"
                )
        core = primary.core
        if core is None:
            return
        for session in primary.sessions.live.values():
            claim = session.claim
            if claim is not None and claim.needed_lsn < oldest:
                name = session.caller.name
                raise Violation(
                    "claims", f"the claim of {name} needs LSN {claim.first_lsn}; the oldest is {oldest}"
                )
            replica = session.caller
            if (
                claim is not None
                and isinstance(replica, Replica)
                and claim.needed_lsn > replica.disk.end.last_lsn + 1
            ):
                end_lsn = replica.disk.end.last_lsn
                text = f"the claim of {replica.name} is at LSN {claim.first_lsn}; it ends at {end_lsn}"
                raise Violation("claims", text)
            if session.core.in_flight_bytes > WINDOW_BYTES + max(BATCH_BYTES, LARGEST_FRAME_BYTES):
                raise Violation("bounds", f"{session.core.in_flight_bytes:,} bytes are in flight")
        if core.acked_lsn > ledger.end.last_lsn or core.durable_lsn > ledger.end.last_lsn:
            raise Violation(
                "durable", f"LSN {core.acked_lsn} is acknowledged, {ledger.end.last_lsn} is durable"
            )
        if self._life != primary.process.life:
            self._life = primary.process.life
            self.compare_disk()
        feed = primary.feed
        if feed.answered_lsn > ledger.end.last_lsn:
            raise Violation(
                "answers", f"LSN {feed.answered_lsn} was answered, {ledger.end.last_lsn} is durable"
            )
        if feed.polls is not None and feed.polls.held_bytes > 2 * OPTIONS.buffer_bytes * feed.polls.sessions:
            raise Violation("bounds", f"{feed.polls.held_bytes:,} bytes are kept for delta readers")

    def compare_disk(self) -> None:
        """Compare what the primary has on its disk with everything that was ever durable."""
        store, ledger = self.primary.disk.store, self.ledger
        if store.end != ledger.end:
            raise Violation(
                "durable", f"the log ends at {store.end} after an opening; {ledger.end} was durable"
            )
        kept = ledger.frames[len(ledger.frames) - len(store.frames) :]
        for mine, true in zip(store.frames, kept, strict=True):
            if mine.data != true.data:
                raise Violation(
                    "durable", f"the frame at position {true.position} is another after an opening"
                )

    def _check_replica(self, replica: Replica) -> None:
        disk, name = replica.disk, replica.name
        end = disk.end
        if self._compared.get(name) is not end:  # what was compared and is the same has not moved
            self._compare_log(replica)
            self._compared[name] = end
        core = replica.core
        if core is not None and core.end.position > end.position:
            raise Violation("acknowledged", f"{name} counts on {core.end} and has {end} on its disk")
        for session in self.primary.sessions.live.values():
            acked = session.core.acked
            # A replica that begins again with a copy gets another identity: what the old one said counts no more.
            if (
                acked.position > end.position
                and session.caller is replica
                and session.core.key == _key(replica)
            ):
                raise Violation("acknowledged", f"the primary counts on {acked} of {name}, which has {end}")

    def _compare_log(self, replica: Replica) -> None:
        disk, ledger = replica.disk, self.ledger
        end, state = disk.end, disk.state
        if ledger.ends.get(end.position) != end:
            raise Violation("logs", f"{replica.name} ends at {end}, where the primary's log has no end")
        if (state.lsn, state.digest) != (end.last_lsn, ledger.digests[end.last_lsn]):
            text = f"the state of {replica.name} is not that of its log at LSN {end.last_lsn}"
            raise Violation("logs", text)

    def _check_reader(self, reader: Reader) -> None:
        state, digests = reader.state, self.ledger.digests
        if state.lsn >= len(digests) or state.digest != digests[state.lsn]:
            text = f"the state of {reader.name} is not that of the log at LSN {state.lsn}"
            raise Violation("announced", text)
        replayer = reader.replayer
        if replayer is None:
            return
        if replayer.applied.lsn > state.lsn:
            text = f"{reader.name} announces LSN {replayer.applied.lsn} and has applied {state.lsn}"
            raise Violation("announced", text)
        if replayer.held_bytes > LIMITS.bytes_max + max(LIMITS.load_bytes, LARGEST_FRAME_BYTES) * 2:
            raise Violation("bounds", f"{reader.name} holds {replayer.held_bytes:,} bytes")

    def connections(self) -> dict[str, int]:
        """Return how many connections or sessions everyone has begun in its life."""
        found = {r.name: r.core.connections for r in self.replicas if r.core is not None}
        return found | {reader.name: reader.sessions for reader in self.readers}

    def missing(self) -> str:
        """Return what keeps the world from being converged, in words; "" where nothing does."""
        primary, ledger = self.primary, self.ledger
        if not primary.process.up:
            return "the primary is down"
        end = ledger.end
        for replica in self.replicas:
            if replica.disk.end != end:
                return (
                    f"{replica.name} ends at LSN {replica.disk.end.last_lsn}, the primary at {end.last_lsn}"
                )
            if replica.core is None or replica.core.state != "streaming":
                return f"{replica.name} is not connected"
            mine = [s for s in primary.sessions.live.values() if s.caller is replica and s.core.acked == end]
            if not mine:
                return f"the primary does not know that {replica.name} has everything"
            if replica.disk.state.rows != ledger.state():
                return f"the state of {replica.name} is not the primary's"
        for reader in self.readers:
            if not reader.sessions:
                return f"{reader.name} has no session"
            if reader.announced_lsn != end.last_lsn:
                return f"{reader.name} has announced LSN {reader.announced_lsn} of {end.last_lsn}"
            if reader.state.rows != ledger.state():
                return f"the state of {reader.name} is not the primary's"
        return ""


def _key(replica: Replica) -> str:
    identity = replica.disk.identity
    return "" if identity is None else identity.key
