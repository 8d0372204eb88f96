"""A stream replica of a world: the shell of a real subscriber core over a disk of its own."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable

from walkit.errors import GapError, StorageError, WalkitError
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.core.actions import (
    Adopt,
    Connect,
    Disconnect,
    Fail,
    Import,
    Keep,
    SendToPublisher,
    SubscriberStep,
)
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.protocol.frame_run import FrameRun, join_runs
from walkit.replication.protocol.identity import Identity
from walkit.replication.protocol.messages import Ack, Batch
from walkit.simulate.world_clock import Alarm, Process
from walkit.simulate.world_counts import count_moves
from walkit.simulate.world_faults import PRIMARY, random_of
from walkit.simulate.world_log import (
    FRAME_BYTES_MAX,
    FrameStore,
    Ledger,
    State,
    Violation,
    WorldFrame,
    rows_of,
)
from walkit.simulate.world_network import Network
from walkit.simulate.world_primary import Primary
from walkit.simulate.world_session import SILENCE_MS

RESTART_MS = 40.0
INBOX_MAX = 10_000


class ReplicaDisk:
    """What a replica has on stable storage; it outlives the process."""

    def __init__(self) -> None:
        self.store = FrameStore()
        self.state = State()
        self.lineage: tuple[EpochRecord, ...] = ()
        self.log_id = 0
        self.identity: Identity | None = None

    @property
    def end(self) -> LogEnd:
        """Where the replica's log ends."""
        return self.store.end


class Replica:
    """One replica's process. While it imports it takes nothing in, as the real one's single thread."""

    def __init__(
        self, process: Process, network: Network, primary: Primary, ledger: Ledger, seed: int
    ) -> None:
        self.name, self.process = process.name, process
        self.disk = ReplicaDisk()
        self.core: Subscriber | None = None
        self.fails_next_write = False
        self.crashes_in_write: Callable[[], None] | None = None
        """Ends the process; called while its next import is under way."""
        self._network, self._primary, self._ledger = network, primary, ledger
        self._random = random_of(seed, process.name)
        self._connection = 0
        self._inbox: deque[tuple[Callable[[], list[SubscriberStep]], bool]] = deque()
        """Events with whether each is a batch: anything else comes after what waits is imported."""
        self._waiting: list[Import] = []
        self._writing: list[Import] = []
        self._alarm = Alarm(process, self._tick)

    # -- a life of the process

    def start(self) -> None:
        """Begin with what is on the disk."""
        self.process.start()
        disk = self.disk
        self.core = Subscriber(
            self.name,
            log_id=disk.log_id,
            lineage=disk.lineage,
            end=disk.end,
            codecs=(),
            backoff=Backoff(10.0, 150.0, self._random.random),
            silence_ms=SILENCE_MS,
            frame_bytes_max=FRAME_BYTES_MAX,
            identity=disk.identity or Identity(self._random.randbytes(16)),
            keeps=disk.identity is not None,
        )
        self._inbox.clear()
        self._waiting, self._writing = [], []
        self._alarm = Alarm(self.process, self._tick)
        self._queue(lambda: self._core.start(self._now_ms))

    def kill(self) -> None:
        """End at once. What was being imported may be on the disk, as a prefix of whole frames, or not."""
        if not self.process.up:
            return
        self.process.kill()
        self.core = None
        self._count("replica crashes")
        if self._writing:
            run = join_runs([step.run for step in self._writing])
            kept = self._random.randint(0, len(run.headers))
            self._count("crash in an import")
            self._count(f"import {'lost' if not kept else 'kept' if kept == len(run.headers) else 'torn'}")
            self._put(run, kept, self._writing[-1].lineage)

    @property
    def _core(self) -> Subscriber:
        assert self.core is not None
        return self.core

    @property
    def _now_ms(self) -> float:
        return self.process.clock.now_ms

    def _count(self, name: str) -> None:
        self.process.clock.count(name)

    # -- the loop

    def hear(self, message: object) -> None:
        """Take (connection, message) of the primary; None for the message where the connection is over."""
        assert isinstance(message, tuple)
        connection, said = message

        def heard() -> list[SubscriberStep]:
            if connection != self._connection:
                return []
            if said is None:
                return self._core.lost("the primary has hung up", self._now_ms)
            return self._count_stream(lambda core: core.receive(said, self._now_ms))

        self._queue(heard, is_batch=isinstance(said, Batch))

    def _count_stream(self, event: Callable[[Subscriber], list[SubscriberStep]]) -> list[SubscriberStep]:
        """Handle an event of the stream, and count which frames did not fit."""
        core = self._core
        before = core.duplicates, core.gaps, core.damaged
        steps = event(core)
        after = core.duplicates, core.gaps, core.damaged
        for name, was, now in zip(("duplicate", "gap", "damage"), before, after, strict=True):
            self.process.clock.count(f"stream {name}", now - was)
        return steps

    def _tick(self) -> None:
        self._queue(lambda: self._core.tick(self._now_ms))

    def _queue(self, event: Callable[[], list[SubscriberStep]], *, is_batch: bool = False) -> None:
        """Handle an event, after those before it, and after frames that have to be imported first."""
        if len(self._inbox) >= INBOX_MAX:
            raise Violation("bounds", f"{self.name} has {len(self._inbox):,} messages that wait")
        self._inbox.append((event, is_batch))
        self._drain()

    def _drain(self) -> None:
        while self._inbox and not self._writing:
            if self._waiting and not self._inbox[0][1]:
                break
            self._take(self._inbox.popleft()[0]())
            if self.core is None:
                return
        if self._waiting and not self._writing:
            self._import()
        if self.core is not None:
            self._alarm.set(self.core.wake_at_ms)

    def _take(self, steps: list[SubscriberStep]) -> None:
        count_moves(self._core.states, self.process.clock)
        for step in steps:
            if isinstance(step, SendToPublisher):
                self._say(step)
            elif isinstance(step, Import):
                self._waiting.append(step)
            elif isinstance(step, Connect):
                self._connection += 1
                self._take(self._connect())
            elif isinstance(step, Disconnect):
                self._count_end()
                self._send(None)
                self._connection += 1
            elif isinstance(step, Keep):
                self.disk.identity = step.identity
            elif isinstance(step, Adopt):
                self.disk.log_id = step.welcome.log_id
            else:
                assert isinstance(step, Fail)
                self._failed(step.error)

    def _connect(self) -> list[SubscriberStep]:
        """Connect; if the primary is down, its host refuses half of the attempts and ignores the others."""
        if not self._primary.process.up and self._random.random() < 0.5:
            return self._core.lost("the connection is refused", self._now_ms, "connect")
        return self._core.connected(self._now_ms)

    def _count_end(self) -> None:
        """Count a connection that ends without a refusal, by its reason."""
        if self._core.reason in ("connection", "connect", "silence", "frames"):
            self._count(f"lost: {self._core.reason}")

    def _say(self, step: SendToPublisher) -> None:
        if isinstance(step.message, Ack):
            said, has = step.message.end, self.disk.end
            if said.position > has.position or self._ledger.ends.get(said.position) != said:
                raise Violation("acknowledged", f"{self.name} acknowledges {said} and has {has} on its disk")
        self._send(step.message)

    def _send(self, message: object) -> None:
        self._network.send(
            self.name,
            PRIMARY,
            (self._connection, message),
            lambda carried: self._primary.sessions.hear(self, carried),
        )

    def _failed(self, error: WalkitError) -> None:
        """End as the real process does; a supervisor starts another one."""
        if isinstance(error, GapError):
            self._reseed(error)
        elif not isinstance(error, StorageError):
            raise Violation("refused", f"{self.name} gave up: {type(error).__name__}: {error}")
        self.process.kill()
        self.core, self._writing, self._waiting = None, [], []
        self.process.clock.after(RESTART_MS, lambda: None if self.process.up else self.start())

    def _reseed(self, error: GapError) -> None:
        """Begin again with a copy of the primary's log and state, as an operator does: what comes next is gone."""
        store = self._primary.disk.store
        if store.base.position <= self.disk.end.position:
            text = f"{self.name} was refused LSN {error.wanted}, and the primary has all from {store.oldest_lsn} on"
            raise Violation("refused", text)
        self._count("reseeded")
        disk = self.disk = ReplicaDisk()
        disk.store = FrameStore(store.frames, store.base)
        disk.lineage = tuple(e for e in self._ledger.lineage if e.position < max(store.end.position, 1))
        disk.log_id = self._ledger.frames[0].header.log_id if self._ledger.frames else 0
        disk.state.rows = dict(self._ledger.state())
        disk.state.lsn, disk.state.digest = store.end.last_lsn, self._ledger.digests[store.end.last_lsn]

    # -- importing

    def _import(self) -> None:
        """Write frames that wait, as far as they follow each other in one epoch, in one synced write."""
        waiting = self._waiting
        count = 1
        while count < len(waiting) and waiting[count - 1].run.is_followed_by(waiting[count].run):
            count += 1
        self.process.clock.count("joined import", count > 1)
        self._writing, self._waiting = waiting[:count], waiting[count:]
        took_ms = self._random.choice((0.3, 1.0, 5.0, 20.0))
        self.process.after(took_ms, self._imported)
        if self.crashes_in_write is not None:
            crash, self.crashes_in_write = self.crashes_in_write, None
            self.process.clock.after(took_ms * self._random.random(), crash)

    def _imported(self) -> None:
        steps, self._writing = self._writing, []
        if self.fails_next_write:
            self.fails_next_write = False
            self._count("replica fails")
            self._take(
                self._core.fail(StorageError("the modelled disk failed", errno=errno.EIO), self._now_ms)
            )
            return
        run = join_runs([step.run for step in steps])
        self._put(run, len(run.headers), steps[-1].lineage)
        self._take(self._core.imported(self.disk.end, self._now_ms))
        self._drain()

    def _put(self, run: FrameRun, count: int, lineage: tuple[EpochRecord, ...]) -> None:
        """Have the first frames of a run on the disk, compared with what the primary has made durable."""
        disk = self.disk
        if run.after != disk.end:
            raise Violation(
                "logs", f"{self.name} imports what follows {run.after}, and its log ends at {disk.end}"
            )
        for header, data in run.frames()[:count]:
            frame = WorldFrame(header, bytes(data), ())
            true = self._ledger.by_position.get(header.position)
            if true is None or true.data != frame.data:
                what = f"LSN {header.first_lsn} to {header.last_lsn} at position {header.position}"
                raise Violation("logs", f"{self.name} imports {what}, which the primary never made durable")
            disk.store.append(frame)
            disk.state.apply(header.first_lsn, rows_of(header, frame.data))
        if count:
            disk.lineage = lineage
