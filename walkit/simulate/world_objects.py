"""Writers of one log on object storage, who take it over from each other, and a reader with a claim beside them."""

from __future__ import annotations

import uuid

from walkit.errors import (
    ClaimError,
    GapError,
    LogFencedError,
    LogNotFoundError,
    SnapshotError,
    StorageError,
    WalkitError,
)
from walkit.objects.entrance import claim as take_claim
from walkit.objects.entrance import open_log
from walkit.simulate.runner import Life, Runner
from walkit.simulate.world_bucket import Bucket, BucketView, Objects
from walkit.simulate.world_disk import DiskStorage
from walkit.simulate.world_faults import SKEW_MS, cast_of, random_of
from walkit.simulate.world_log import Branch, Ledger, Promise, Violation
from walkit.simulate.world_nodes import LEASE_S, RESTART_MS, LogNode, Node, ReaderNode
from walkit.store import Store

FURTHEST = 1 << 62
HOLD_LEASE_S = 5.0
MAINTENANCE_ERRORS = (LogFencedError, SnapshotError, StorageError)
"""Each may come from the store, or from another writer; the log is as it was."""


class ObjectNode(LogNode):
    """A writer of a log on object storage: its Store has clients, checkpoints, trims, claims and compaction."""

    partner: ObjectNode
    """The other writer, which takes the log over."""
    shares = True

    def __init__(self, name: str, runner: Runner, ledger: Ledger, seed: int, objects: Objects) -> None:
        super().__init__(name, runner, ledger, seed)
        self.disk, self._durability, self.compacts = Bucket(objects), "sync", False

    @property
    def kind(self) -> str:
        """See Node."""
        return "primary"

    def _main(self, life: Life) -> None:
        self.storage = self.disk.view_for(life)
        try:
            if self.leads:
                super()._main(life)
        except LogFencedError:
            self.runner.count("fenced")
            self.runner.after(0, self.exit)

    def _lead(self, life: Life, storage: DiskStorage | BucketView) -> None:
        super()._lead(life, storage)
        self.runner.spawn(life, self._maintain, "maintenance")

    def _maintain(self) -> None:
        """Trim, checkpoint, hold and compact, as a program does from time to time."""
        acts = [self._trim, self._checkpoint, self._hold, *[self._compact] * (2 * self.compacts)]
        while (store := self.store) is not None:
            self.runner.sleep(self.random.choice((100.0, 400.0, 1500.0)))
            if not self.appends:
                return
            try:
                self.random.choice(acts)(store)
            except WalkitError as error:
                self.runner.count("fenced", isinstance(error, LogFencedError))
                works = store.log.parts.core.failure is None and self.is_newest(store)
                if works and not isinstance(error, MAINTENANCE_ERRORS):
                    raise Violation(
                        "refused", f"maintenance failed: {type(error).__name__}: {error}"
                    ) from error

    def _trim(self, store: Store) -> None:
        store.log.trim(self.random.randint(1, max(store.log.acked_lsn, 1)))

    def _checkpoint(self, store: Store) -> None:
        store.checkpoint()

    def _compact(self, store: Store) -> None:
        store.compact()
        self.runner.count("compacted")

    def _hold(self, store: Store) -> None:
        try:
            hold = store.log.hold("keeper", max(store.log.acked_lsn - 9, store.log.first_lsn), HOLD_LEASE_S)
        except GapError:
            return  # a trim was faster
        first = hold.first_lsn
        self.runner.sleep(self.random.choice((50.0, 500.0, 3_000.0)))
        if self.is_newest(store) and store.log.first_lsn > first:
            raise Violation("claims", f"LSN {first} is held, and the log begins at {store.log.first_lsn}")
        hold.release()

    def reach(self, branch: Branch) -> int:
        """See LogNode: a writer that does not write takes the log over."""
        return -1 if self.leads else FURTHEST

    def promote(self) -> None:
        """Take the log over, while the writer before may be at work."""
        self.end()
        self.leads, self.branch = True, self.partner.branch
        self.restart(RESTART_MS)

    def is_newest(self, store: Store) -> bool:
        """See LogNode."""
        claims = self.disk.objects.claims
        return claims is not None and store.log.parts.core.identity.epoch == claims.epoch

    @property
    def oldest_lsn(self) -> int:
        """See LogNode: as the objects are, whichever writer has trimmed."""
        claims = self.disk.objects.claims
        return 1 if claims is None else claims.dropped_lsn + 1

    def gives_way(self, new: LogNode) -> bool:
        """See LogNode: not if this node has opened the log again since."""
        if new.store is None or not new.is_newest(new.store):
            return False
        self.leads = False
        if self.store is None:  # it is about to open the log
            self.end()
        return True

    def follow(self, leader: LogNode) -> None:
        """Wait until the log is to be taken over again."""
        self.leads, self.down_until_ms = False, 0.0
        self.exit()


class TailNode(ReaderNode):
    """A reader of the objects alone: it has a claim, reads from there on, and moves the claim."""

    has_state = False
    _first_lsn: int | None = None
    """Where its claim begins, if the one that it had has ended."""
    next_lsn = 1
    """The record that it reads next."""

    def missing(self, lsn: int) -> str:
        """See ReaderNode."""
        return f"has read LSN {self.next_lsn - 1} of {lsn}" if self.next_lsn <= lsn else ""

    def _main(self, life: Life) -> None:
        self.storage = self.leader.disk.view_for(life)
        self.storage.faults = self.faults
        try:
            if self.leader.branch is not None:  # else the log is being made
                self._read()
        except (GapError, ClaimError) as error:
            if self.runner.now_ms < self._promise.until_ms:
                raise Violation("claims", f"{self.name} has lost its claim: {error}") from error
            self._first_lsn = error.oldest if isinstance(error, GapError) else None
        except (StorageError, LogNotFoundError):
            pass
        self.runner.after(0, self.exit)

    @property
    def _branch(self) -> Branch:
        assert self.leader.branch is not None
        return self.leader.branch

    @property
    def _promise(self) -> Promise:
        return self._branch.promises.setdefault(self.name, Promise(0, 0.0))

    def _promised(self, first_lsn: int, since_ms: float) -> None:
        self._promise.first_lsn = first_lsn
        self._promise.until_ms = since_ms + LEASE_S * 1000 - 2 * SKEW_MS

    def _read(self) -> None:
        reader, began_ms = open_log(self.storage.place, "r", events=self.event), self.runner.now_ms
        owner = uuid.uuid5(uuid.NAMESPACE_URL, self.name)
        claim = take_claim(self.storage.place, self.name, self._first_lsn, LEASE_S, owner=owner)
        self._first_lsn = None
        self._promised(claim.first_lsn, began_ms)
        self.next_lsn = claim.first_lsn
        while True:
            for record in reader.read(first_lsn=self.next_lsn):
                if record.lsn != self.next_lsn:
                    raise Violation("claims", f"{self.name} reads LSN {record.lsn} after {self.next_lsn - 1}")
                self._branch.learn(
                    record.lsn, [(bytes(record.key or b""), bytes(record.value or b""))], self.name
                )
                self._branch.shown_lsn = max(self._branch.shown_lsn, record.lsn)
                self.next_lsn += 1
            self.runner.sleep(self.random.choice((50.0, 200.0, 500.0)))
            began_ms, self._promise.first_lsn = self.runner.now_ms, self.next_lsn
            claim.advance(self.next_lsn)
            self._promised(self.next_lsn, began_ms)


def nodes_of(runner: Runner, ledger: Ledger, seed: int) -> list[Node]:
    """Make the processes of a world: the first one is its primary."""
    cast, nodes = cast_of(seed), list[Node]()
    if cast.shares:
        chance = random_of(seed, "objects")
        objects, compacts = Objects(runner, ledger, chance), chance.random() < 0.5
        one, other = (ObjectNode(name, runner, ledger, seed, objects) for name in cast.writers)
        one.partner, other.partner = other, one
        one.compacts = other.compacts = compacts
        nodes += [one, other]
        if compacts:  # a bootstrap needs every record in bulks
            one.acks = other.acks = None
        else:
            nodes += [LogNode(name, runner, ledger, seed) for name in cast.replicas]
        nodes += [
            ReaderNode(cast.readers[0], runner, ledger, seed),
            TailNode(cast.readers[1], runner, ledger, seed),
        ]
    else:
        nodes += [LogNode(name, runner, ledger, seed) for name in (*cast.writers, *cast.replicas)]
        nodes += [ReaderNode(name, runner, ledger, seed) for name in cast.readers]
    leader = nodes[0]
    assert isinstance(leader, LogNode)
    for node in nodes:
        node.leader = leader
    return nodes
