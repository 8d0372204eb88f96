"""The processes of a world: primaries with their clients, replicas and delta readers, as a program runs them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from walkit.config import Durability, LogOptions, Retention, StoreOptions
from walkit.errors import (
    ClaimError,
    DivergenceError,
    LogFencedError,
    LogNotFoundError,
    StorageError,
    WalkitError,
)
from walkit.format.manifest import LogEnd
from walkit.models import CrashingStorage
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.publisher import Publisher
from walkit.replication.delta.messages import DELTA_VERSION_MAX
from walkit.replication.delta.poll_server import DeltaOptions
from walkit.replication.delta.reader import DeltaReader
from walkit.replication.delta.replayer import ReplayLimits
from walkit.replication.primary.server import Primary
from walkit.replication.replica.follower import Replica
from walkit.replication.replica.promote import promote
from walkit.simulate.runner import Life, Process, Runner
from walkit.simulate.world_bucket import BucketView
from walkit.simulate.world_counts import SEEN_EVENTS
from walkit.simulate.world_disk import Disk, DiskStorage
from walkit.simulate.world_faults import LOGS, PRIMARY, random_of
from walkit.simulate.world_log import Branch, Ledger, Rows, Violation
from walkit.store import Store

PORTS = {name: 7001 + number for number, name in enumerate(LOGS)}
LEASE_S = 12.0
INTERVAL_MS = 400
RESTART_MS = 300.0
ACKS_MS = 3_600_000
OPTIONS = LogOptions(segment_bytes=1 << 16, frame_bytes_max=1 << 14)
RETENTION = Retention(records_max=60)
DELTA = DeltaOptions(
    buffer_bytes=2048, long_poll_ms=400, interval_ms=5, expiry_ms=8_000, retry_ms=2_000, sessions_max=3
)
LIMITS = ReplayLimits(loads_max=3, load_bytes=4_000, bytes_max=60_000, parts_max=8, tries_max=3)
VERSIONS = (*(DELTA_VERSION_MAX,) * 14, 1, 0)
"""Of the poll protocol, one for each reader's life."""
CLIENTS = 2
BURSTS = (1, 1, 1, 1, 1, 5)


class Node:
    """A process that is started, killed, and started again by a supervisor."""

    leader: LogNode
    """The primary that it follows."""
    has_state = True
    """Whether it applies the records to a state."""
    storage: DiskStorage | BucketView
    """The place of its log, as this life sees it."""

    def __init__(self, name: str, runner: Runner, ledger: Ledger, seed: int) -> None:
        self.name, self.runner, self.ledger = name, runner, ledger
        self.process = Process(name, runner)
        self.random = random_of(seed, name)
        self.disk: Any = Disk(name, runner, random_of(seed, name, "disk"))
        self.down_until_ms = 0.0
        self.was_replaced = False
        """Whether its folder was, so that its primary refuses it under the identity that it has."""
        self.needs_identity = self._forgets = False
        self.seen: tuple[Branch, LogEnd] | None = None
        """The branch of its log or state, and how far it was, when the rules looked last."""

    @property
    def kind(self) -> str:
        """Its role: primary, replica or reader."""
        return self.name.partition("-")[0]

    def differs(self) -> bool:
        """Say whether it has something that its primary does not have."""
        ours = self.leader.branch
        return ours is None or self.seen is None or not ours.has_all_of(*self.seen)

    def start(self) -> None:
        """Begin a life."""
        if self._forgets and self.leader.branch is not None:
            # The sessions of the life before may have been heard until now.
            self.leader.branch.acked.pop(self.name, None)
            self._forgets = False
        life = self.process.start()
        self.runner.spawn(life, lambda: self._main(life), "main")

    def _main(self, life: Life) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        """End at once, with the power of its disk."""
        if self.process.up:
            self.runner.count(f"{self.kind} crashes")
            self.end()
            self.disk.cut_power()

    def replace_folder(self, image: CrashingStorage) -> None:
        """End, and be started again in another folder, or in the same as it was earlier."""
        self.runner.count(f"{self.kind} in another folder")
        if self.process.up:
            self.end()
        self.disk.put(image)
        self.was_replaced = self._forgets = True
        self.seen = None
        self.restart(RESTART_MS)

    def begin_anew(self) -> None:
        """Leave a folder of another history, and begin in an empty one."""
        self.runner.count(f"{self.kind} begins anew")
        self.replace_folder(CrashingStorage())

    def end(self) -> None:
        """End every thread of this life."""
        self.process.life.kill()

    def exit(self) -> None:
        """End, as the program does after an error; it is started again soon. By the driver."""
        if self.process.up:
            self.end()
            self.disk.free()
        self.restart(RESTART_MS)

    def restart(self, in_ms: float) -> None:
        """Be started again after a time, unless another fault keeps it down for longer."""
        self.down_until_ms = max(self.down_until_ms, self.runner.now_ms + in_ms)

        def start() -> None:
            if not self.process.up and self.runner.now_ms >= self.down_until_ms:
                self.start()

        self.runner.at(self.down_until_ms, start)

    def event(self, name: str, about: dict[str, Any]) -> None:
        """Count an event of the program."""
        if "before" in about:
            side = "session" if name == "walkit.session.move" else "replica"
            self.runner.count(f"{side}: {about['before']} to {about['state']}")
        elif name in SEEN_EVENTS:
            self.runner.count(name)


class LogNode(Node):
    """A process with a log: a primary, which is a Store that takes checkpoints and has clients, or a stream replica."""

    store: Store | None = None
    primary: Primary | None = None
    replica: Replica | None = None
    appends = True
    """Whether its clients append."""
    branch: Branch | None = None
    """Of its log, while it is a primary that was opened."""
    shares = False
    """Whether another process may take over its log where that is."""
    forces = False
    """Whether it is rewound past claims."""
    _values = 0

    def __init__(self, name: str, runner: Runner, ledger: Ledger, seed: int) -> None:
        super().__init__(name, runner, ledger, seed)
        self.leads, self.on_lead = name == PRIMARY, lambda: None
        self.port, self.rewound, self._was_promoted = PORTS[name], False, False
        self._durability: Durability = self.random.choice(("sync", "sync", "sync", "interval"))
        self.acks = self.random.choice((None, None, 1)) if self._durability == "sync" else None
        """So many replicas have each acknowledged record."""
        self.promised_lsn = 0
        """The last acknowledged record that a promotion of this replica has to keep."""

    @property
    def kind(self) -> str:
        """See Node."""
        return "primary" if self.leads else "replica"

    def _main(self, life: Life) -> None:
        self.storage = storage = self.disk.view_for(life)
        try:
            if self.leads:
                self._lead(life, storage)
            else:
                self._follow(storage)
        except (StorageError, LogNotFoundError) as error:
            if not (isinstance(error, StorageError) or self.disk.away):
                raise
            self.runner.after(0, self.exit)

    def _lead(self, life: Life, storage: DiskStorage | BucketView) -> None:
        if self.branch is None and self._was_promoted:
            promote(storage.place, events=self.event)
        checkpoints = StoreOptions(checkpoint_every=self.random.choice((24, 120)))
        options = replace(
            OPTIONS,
            durability=self._durability,
            interval_ms=INTERVAL_MS if self._durability == "interval" else None,
            retention=RETENTION,
            in_flight=self.random.choice((1, 2, 4)),
        )
        store = Store.open(None, options, checkpoints, events=self.event, storage=storage.place)
        self._compare(store)
        primary = Primary(
            store,
            f"127.0.0.1:{self.port}",
            publisher=lambda: Publisher(
                heartbeat_ms=500, silence_ms=2_500, hello_ms=1_500, window_bytes=65_536, batch_bytes=8192
            ),
            lease_s=LEASE_S,
            delta=DELTA,
            events=self.event,
            ack_replicas=self.acks,
            ack_timeout_ms=ACKS_MS,
        ).start()
        self.store, self.primary = store, primary
        for _ in range(CLIENTS):
            self.runner.spawn(life, self._client, "client")
        self.runner.after(0, self.on_lead)

    def _compare(self, store: Store) -> None:
        """Compare the log that was opened with the ledger, which learns the records that were not acknowledged."""
        log, before = store.log, self.branch
        if not self.is_newest(store):
            raise LogFencedError(log.location, 0)
        lineage, own = log.parts.manifest_store.current.lineage, log.parts.core.identity.epoch_id
        branch = self.branch = self.ledger.opened(lineage, own, before)
        if before is None and self._was_promoted:
            assert branch.before is not None
            promised = branch.before.acked.get(self.name, LogEnd())
            if branch.base.position < promised.position or branch.base.last_lsn < self.promised_lsn:
                text = f"{self.name} begins at {branch.base}, has acknowledged {promised}"
                raise Violation("promoted", f"{text}, and LSN {self.promised_lsn} is acknowledged")
            branch.shown_lsn = branch.base.last_lsn
        if log.durable_lsn < branch.shown_lsn:
            raise Violation("durable", f"the log ends at LSN {log.durable_lsn}; {branch.shown_lsn} was shown")
        branch.forget_after(log.durable_lsn)
        for r in log.read():
            branch.learn(r.lsn, [(bytes(r.key or b""), bytes(r.value or b""))], "the log after an opening")
        branch.shown_lsn = max(branch.shown_lsn, log.durable_lsn)
        if dict(store.items()) != branch.states[log.durable_lsn]:
            raise Violation("durable", "the state is another after an opening")

    def _follow(self, storage: DiskStorage | BucketView) -> None:
        replica = Replica(
            storage.place,
            f"127.0.0.1:{self.leader.port}",
            self.random.choice((None, "zstd")),
            name=self.name,
            options=OPTIONS,
            events=self.event,
            backoff=Backoff(100.0, 1500.0, self.random.random),
            checkpoint_every=40,
            new_identity=self.needs_identity,
            rewind=True,
            force_rewind=self.forces,
        )
        self.needs_identity = False
        promised = None if self.leader.branch is None else self.leader.branch.acked.get(self.name)
        if promised is not None and replica.log.end.position < promised.position:
            text = f"{self.name} ends at {replica.log.end}, and has acknowledged {promised}"
            raise Violation("acknowledged", text)
        self.replica = replica.start()

    def event(self, name: str, about: dict[str, Any]) -> None:
        """See Node."""
        super().event(name, about)
        self.rewound |= name == "walkit.replica.rewind"

    def end(self) -> None:
        """See Node."""
        super().end()
        self.store = self.primary = self.replica = None

    def reach(self, branch: Branch) -> int:
        """Return the position of its end if it is a replica whose log is a part of this branch; else -1."""
        if self.replica is None or self.seen is None or not branch.has_all_of(*self.seen):
            return -1
        return self.replica.log.end.position if self.replica.log.adopted else -1

    def promote(self) -> None:
        """Be a primary from now on."""
        self.end()
        self.disk.free()
        self.leads, self._was_promoted, self.branch = True, True, None
        self.restart(RESTART_MS)

    @property
    def oldest_lsn(self) -> int:
        """The oldest record of its log, while it is a primary."""
        store = self.store
        return 1 if store is None else store.log.parts.manifest_store.current.low_watermark + 1

    def is_newest(self, store: Store) -> bool:
        """Say whether no other process has opened its log since."""
        return True

    def gives_way(self, new: LogNode) -> bool:
        """Say whether another node may take the place of this one, as it has opened its log."""
        return True

    def follow(self, leader: LogNode) -> None:
        """Be a replica of this primary from now on."""
        self.leads, self.leader, self.down_until_ms, self.branch = False, leader, 0.0, None
        self.exit()

    def _client(self) -> None:
        """Append, wait for the outcome, think, and append again, as long as there are faults."""
        while True:
            self.runner.sleep(self.random.choice((2.0, 40.0, 200.0, 600.0, 1500.0)))
            for _ in range(self.random.choice(BURSTS)):
                if self.appends and not self.append(self.random_rows()):
                    return

    def append(self, rows: Rows) -> bool:
        """Append, and note what was acknowledged; False where the log takes no more."""
        store = self.store
        assert store is not None
        try:
            if len(rows) == 1:
                result = store.put(*rows[0])
            else:
                result = store.put_many([key for key, _ in rows], [value for _, value in rows])
        except WalkitError as error:
            if store.log.parts.core.failure is None:
                raise Violation("refused", f"an append failed: {type(error).__name__}: {error}") from error
            self.runner.count("primary fails")
            self.runner.after(0, self.exit)
            return False
        assert self.branch is not None
        self.branch.learn(result.first_lsn, rows, "an acknowledgement")
        if self._durability == "sync":
            self.branch.acked_lsn = max(self.branch.acked_lsn, result.last_lsn)
            self.branch.shown_lsn = max(self.branch.shown_lsn, result.last_lsn)
        return True

    def random_rows(self) -> Rows:
        """Return what a client appends."""
        size = self.random.choice((8, 40, 300, 2500))
        rows = []
        for _ in range(self.random.choice((1, 1, 2, 5))):
            self._values += 1
            key = b"key %d" % self.random.randrange(12)
            rows.append((key, (b"%d " % self._values * size)[:size]))
        return rows


class ReaderNode(Node):
    """A delta reader: the primary's disk is its storage, its own one has its checkpoints."""

    reader: DeltaReader | None = None

    def __init__(self, name: str, runner: Runner, ledger: Ledger, seed: int) -> None:
        super().__init__(name, runner, ledger, seed)
        self.faults = Counter[str]()
        """The faults between it and the log, in each life: see DiskStorage."""

    def _main(self, life: Life) -> None:
        self.storage = self.leader.disk.view_for(life)
        self.storage.faults = self.faults
        try:
            reader = DeltaReader(
                self.storage.place,
                f"127.0.0.1:{self.leader.port}",
                checkpoint=DiskStorage(self.disk, life),
                checkpoint_s=1.0,
                claim=self.name,
                lease_s=LEASE_S,
                limits=LIMITS,
                interval_ms=self.random.choice((2.0, 8.0, 25.0)),
                version=self.random.choice(VERSIONS),
                backoff=Backoff(50.0, 600.0, self.random.random),
                events=self.event,
            )
        except DivergenceError as error:
            if not self.differs():
                raise Violation("refused", f"{self.name} gave up: {error}") from error
            self.runner.after(0, self.begin_anew)
            return
        except (StorageError, LogNotFoundError, ClaimError):  # another owner has the claim for a while
            self.runner.after(0, self.exit)
            return
        self.reader = reader.start()

    def missing(self, lsn: int) -> str:
        """Return what keeps it from having everything up to an LSN, in words; "" if nothing does."""
        if self.reader is None:
            return "is down"
        if self.reader.applied_lsn != lsn:
            return f"has applied LSN {self.reader.applied_lsn} of {lsn}"
        return "" if self.reader._loop.is_answered else "gets no answer to its polls"

    def follow(self, leader: LogNode) -> None:
        """Read the log of this primary from now on."""
        self.leader = leader
        self.exit()

    def end(self) -> None:
        """See Node; count how its records have come."""
        super().end()
        if self.reader is not None:
            counts = self.reader._loop.replayer.counts
            self.runner.count("delta", counts.deltas)
            self.runner.count("load", counts.loads)
            self.runner.count("load again", counts.retries)
            self.runner.count("delta unfit", counts.unfit)
        self.reader = None
