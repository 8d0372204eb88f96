"""The primary's sessions with its replicas: the shell of a real publisher core for each, on the world's network."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Protocol

from walkit.errors import GapError
from walkit.format.manifest import LogEnd
from walkit.replication.core.actions import Admit, MoveClaim, PublisherStep, Read, Send
from walkit.replication.core.publisher import Publisher
from walkit.replication.protocol.identity import key_of
from walkit.replication.protocol.lineage import PrimaryState
from walkit.replication.protocol.messages import FromSubscriber, Hello, Refusal
from walkit.segments.consumer_files import ClaimFact
from walkit.simulate.world_clock import Alarm, Process
from walkit.simulate.world_counts import count_moves
from walkit.simulate.world_disk import CLAIM_LEASE_MS, LOG_ID, PrimaryDisk, claim_of
from walkit.simulate.world_faults import PRIMARY
from walkit.simulate.world_network import Network

HEARTBEAT_MS, SILENCE_MS, HELLO_MS = 100.0, 400.0, 300.0
WINDOW_BYTES, BATCH_BYTES = 4096, 1024
CLAIM_LEASE_US = round(CLAIM_LEASE_MS * 1000)


class Owner(Protocol):
    """What sessions ask of their primary."""

    process: Process
    disk: PrimaryDisk

    @property
    def now_us(self) -> int:
        """Microseconds of the world's clock."""

    def save_claims(self) -> None:
        """Write the claims of now to the disk."""


class Caller(Protocol):
    """A replica, as its session sees it."""

    name: str

    def hear(self, message: object) -> None:
        """Take (connection, message), or (connection, None) where the connection is over."""


class Session:
    """One connection of one replica."""

    def __init__(self, sessions: Sessions, caller: Caller, connection: int) -> None:
        self.caller, self.connection = caller, connection
        self.core = Publisher(
            heartbeat_ms=HEARTBEAT_MS,
            silence_ms=SILENCE_MS,
            hello_ms=HELLO_MS,
            window_bytes=WINDOW_BYTES,
            batch_bytes=BATCH_BYTES,
        )
        self.claim: ClaimFact | None = None
        self.key = ""
        self.alarm = Alarm(sessions.process, lambda: sessions.tick(self))


class Sessions:
    """All connections of the primary's process. They end with it; claims are on its disk."""

    def __init__(self, owner: Owner, network: Network, random: Random) -> None:
        self._owner, self._network, self._random = owner, network, random
        self.live: dict[tuple[str, int], Session] = {}

    @property
    def process(self) -> Process:
        """The primary's process."""
        return self._owner.process

    @property
    def _now_ms(self) -> float:
        return self.process.clock.now_ms

    def claims(self) -> dict[str, ClaimFact]:
        """Return the claims of live sessions, with a lease that begins now."""
        until_us = self._owner.now_us + CLAIM_LEASE_US
        return {
            session.claim.name: replace(session.claim, lease_until_us=until_us)
            for session in self.live.values()
            if session.claim is not None
        }

    def save(self) -> None:
        """Write what replicas have acknowledged."""
        for session in self.live.values():
            self._note(session)

    def forget(self) -> None:
        """The process has ended."""
        self.live.clear()

    def close(self, why: str) -> None:
        """Refuse every session: the log is closed."""
        for session in list(self.live.values()):
            self._do(session, session.core.refuse(Refusal(reason="closed", message=why), self._now_ms))

    def source_moved(self) -> None:
        """More is durable."""
        end = self._owner.disk.store.end
        for session in list(self.live.values()):
            self._do(session, session.core.source_moved(end.last_lsn, end.position, self._now_ms))

    def tick(self, session: Session) -> None:
        """The alarm of a session rings."""
        if self._is_live(session):
            end = self._owner.disk.store.end
            core, now_ms = session.core, self._now_ms
            steps = core.source_moved(end.last_lsn, end.position, now_ms) or core.tick(now_ms)
            self._do(session, steps)

    def hear(self, caller: Caller, message: object) -> None:
        """Take (connection, message) of a replica; None for the message where it hangs up."""
        assert isinstance(message, tuple)
        connection, said = message
        session = self.live.get((caller.name, connection))
        if said is None:
            if session is not None:
                self._end(session)
        elif session is not None:
            self._heard(session, said)
        elif isinstance(said, Hello):
            session = self.live[caller.name, connection] = Session(self, caller, connection)
            session.core.began(self._now_ms)
            self._heard(session, said)
        else:
            self._network.send(PRIMARY, caller.name, (connection, None), caller.hear)

    def _heard(self, session: Session, said: FromSubscriber) -> None:
        core, now_ms = session.core, self._now_ms
        if core.state == "waiting" and isinstance(said, Hello):
            self._do(session, core.greeted(said, now_ms))
        elif core.state != "waiting":
            self._do(session, core.receive(said, now_ms))

    def _is_live(self, session: Session) -> bool:
        return self.live.get((session.caller.name, session.connection)) is session

    def _do(self, session: Session, steps: list[PublisherStep]) -> None:
        for step in steps:
            if not self._is_live(session):
                return
            if isinstance(step, Send):
                message = (session.connection, step.message)
                self._network.send(PRIMARY, session.caller.name, message, session.caller.hear)
            elif isinstance(step, Read):
                took_ms = self._random.choice((0.05, 0.2, 3.0))
                self.process.after(took_ms, lambda step=step: self._read(session, step))  # type: ignore[misc]
            elif isinstance(step, Admit):
                self._do(session, self._admit(session, step))
            elif isinstance(step, MoveClaim):
                self._move_hold(session, step.acked.last_lsn + 1)
            else:
                self._network.send(
                    PRIMARY, session.caller.name, (session.connection, None), session.caller.hear
                )
                self._end(session)
        session.alarm.set(session.core.wake_at_ms)
        count_moves(session.core.states, self.process.clock)
        self.process.clock.count("window full", session.core.in_flight_bytes >= WINDOW_BYTES)

    def _read(self, session: Session, step: Read) -> None:
        if not self._is_live(session):
            return
        disk = self._owner.disk
        if step.after.position < disk.store.base.position:
            self.process.clock.count("gone before it is read")
            self._gap(session, step.after.last_lsn + 1)
            return
        run = disk.store.read(step.after, step.limit_bytes)
        self._do(session, session.core.frames(run, disk.lineage, self._now_ms))

    def _gap(self, session: Session, wanted: int) -> None:
        oldest = self._owner.disk.oldest_lsn
        refusal = Refusal(reason="gap", message=str(GapError(wanted, oldest)), lsn=wanted, other_lsn=oldest)
        self._do(session, session.core.refuse(refusal, self._now_ms))

    def _admit(self, session: Session, step: Admit) -> list[PublisherStep]:
        hello, disk, now_ms = step.hello, self._owner.disk, self._now_ms
        key = key_of(hello.id)
        if any(s.key == key for s in self.live.values() if s is not session):
            return session.core.refuse(Refusal(reason="busy", message="another session is live"), now_ms)
        session.key = key
        acked = disk.acked.get(key, LogEnd())
        return session.core.admitted(hello, self._primary_state(hello), now_ms, acked)

    def _primary_state(self, hello: Hello) -> PrimaryState:
        disk, end = self._owner.disk, self._owner.disk.store.end
        return PrimaryState(
            log_id=LOG_ID,
            created_us=0,
            ack_order="append",
            lineage=disk.lineage,
            durable_lsn=end.last_lsn,
            durable_position=end.position,
            oldest_lsn=disk.oldest_lsn,
            oldest_position=disk.store.base.position,
            there=disk.store.end_at(hello.end.position),
            visible_lsn=end.last_lsn,
            gone=hello.end.position < disk.store.base.position,
        )

    def _move_hold(self, session: Session, first_lsn: int) -> None:
        oldest = self._owner.disk.oldest_lsn
        if session.claim is None and first_lsn < oldest:
            self.process.clock.count("gone before it is held")
            self._gap(session, first_lsn)
            return
        taken = session.claim is None
        session.claim = claim_of(session.core.key, first_lsn, self._owner.now_us + CLAIM_LEASE_US)
        if taken:
            self._owner.save_claims()

    def _note(self, session: Session) -> None:
        known, acked = self._owner.disk.acked, session.core.acked
        if session.core.key and acked.position > known.get(session.key, LogEnd()).position:
            known[session.key] = acked

    def _end(self, session: Session) -> None:
        """Forget a session; its claim stands until its lease is over."""
        session.core.gone(self._now_ms, "the replica has hung up")
        count_moves(session.core.states, self.process.clock)
        self._note(session)
        self._owner.save_claims()
        del self.live[session.caller.name, session.connection]
