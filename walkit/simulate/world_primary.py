"""The primary of a world: the real ordering core over a disk that loses what was not written, and what it serves."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from walkit.commit.core import OrderingCore
from walkit.commit.frame import SealedFrame
from walkit.config import Retention
from walkit.errors import StorageError
from walkit.format.body import COLUMN_BYTES_PER_RECORD, Columns
from walkit.format.frame import FrameHeader, FrameIdentity, prepare_body
from walkit.format.layout import HAS_KEY, HAS_VALUE
from walkit.format.manifest import EpochRecord
from walkit.log.retention import RetentionFacts, RetentionPlan, plan_retention
from walkit.record import Kind
from walkit.replication.delta.messages import DeltaEnd
from walkit.segments.consumer_files import ClaimFact
from walkit.simulate.world_clock import Process
from walkit.simulate.world_disk import LOG_ID, PrimaryDisk, claim_of
from walkit.simulate.world_faults import random_of
from walkit.simulate.world_feed import Feed
from walkit.simulate.world_log import (
    ALIGNMENT,
    FRAME_BYTES_MAX,
    Ledger,
    Rows,
    Violation,
    WorldFrame,
)
from walkit.simulate.world_network import Network
from walkit.simulate.world_session import Sessions

SEGMENT_BYTES = 1024
RECORDS_KEPT = 8
"""Retention drops whole segments while there are more records than this and nothing needs them."""
UPKEEP_MS = 100.0
REOPEN_MS = 30.0
IN_FLIGHT = 2
SKIPS = (0, 0, 64, 192)
"""How many bytes after the end of the log an epoch may begin."""
_KIND = Kind.PUT | HAS_KEY | HAS_VALUE
SURVIVAL = 0.5
"""The chance that a frame is on the disk that was being written when the process ended."""


class Append:
    """One caller's records on their way into the log, as the ordering core looks at them."""

    submitted_us = 0
    first_lsn = 0
    frame: SealedFrame | None = None
    latch: Any = None
    callbacks: list[Any] | None = None

    def __init__(self, rows: Rows, done: Callable[[Append | None], None]) -> None:
        self.rows, self.done = rows, done
        """`done` is called with the append when it is acknowledged, and with None where that is not known."""
        self.count = len(rows)
        self.size_bytes = sum(len(key) + len(value) + COLUMN_BYTES_PER_RECORD for key, value in rows)


class Primary:
    """The writer's process: appends, the commit path, retention, sessions of replicas and of delta readers."""

    def __init__(self, process: Process, network: Network, ledger: Ledger, seed: int) -> None:
        self.process, self.ledger, self._network = process, ledger, network
        self.disk = PrimaryDisk()
        self.sessions = Sessions(self, network, random_of(seed, "primary", "ids"))
        self.feed = Feed(self, network, random_of(seed, "primary", "delta"))
        self.core: OrderingCore[Append] | None = None
        self.fails_next_write = False
        self.crashes_in_write: Callable[[], None] | None = None
        """Ends the process; called while its next write is under way."""
        self._random = random_of(seed, "primary", "disk")
        self._landed: set[int] = set()
        """Positions of frames that are written and not yet in the store, as one before them is not."""
        self._crashed: list[SealedFrame] = []

    @property
    def now_us(self) -> int:
        """Microseconds of the world's clock."""
        return round(self.process.clock.now_ms * 1000)

    @property
    def acked_lsn(self) -> int:
        """See `world_feed.Owner`."""
        assert self.core is not None
        return self.core.acked_lsn

    @property
    def durable_end(self) -> DeltaEnd:
        """See `world_feed.Owner`."""
        assert self.core is not None
        return DeltaEnd(self.core.durable_lsn, self.core.durable_position)

    @property
    def held(self) -> dict[str, ClaimFact]:
        """The claims that count now: those of live sessions, and saved ones whose lease still runs."""
        saved = {
            key: claim
            for key, claim in self.disk.replica_claims.items()
            if (claim.lease_until_us or 0) > self.now_us
        }
        return {**saved, **self.sessions.claims()}

    # -- a life of the process

    def start(self) -> None:
        """Begin: recover what is on the disk, and open a new epoch."""
        self.process.start()
        self._recover()
        disk, end, count = self.disk, self.disk.store.end, self.process.clock.count
        disk.epochs += 1
        position = end.position + self._random.choice(SKIPS) * (end.position > 0)
        count("epoch begins", disk.epochs > 1)
        count("epoch skips", position > end.position)
        self.core = OrderingCore(
            FrameIdentity(LOG_ID, disk.epochs, self._random.getrandbits(64)),
            last_lsn=end.last_lsn,
            position=position,
            chain=end.chain,
            alignment=ALIGNMENT,
            frame_bytes_max=FRAME_BYTES_MAX,
            in_flight_max=IN_FLIGHT,
        )
        self.feed.start(LOG_ID, self.core.identity.epoch_id)
        self.process.after(UPKEEP_MS, self._upkeep)

    def _recover(self) -> None:
        """Keep of what was under way a prefix: what was written, and of the rest what chance has written."""
        survives = True
        for frame in self._crashed:
            survives = survives and (frame.position in self._landed or self._random.random() < SURVIVAL)
            self.process.clock.count("frame survives" if survives else "frame lost")
            if survives:
                self._put(frame)
        self._crashed, self._landed = [], set()
        known = self.ledger.end.position
        for found in self.disk.store.frames[self.disk.store.after(known) :]:
            self.ledger.append(found)

    def kill(self) -> None:
        """End at once: what is under way may have been written, or not."""
        if not self.process.up:
            return
        assert self.core is not None
        self.process.kill()
        store_end = self.disk.store.end.position
        self._crashed = [frame for frame in self.core.in_flight if frame.position >= store_end]
        if self.core.failure is None:
            self.process.clock.count("primary crashes")
            self.process.clock.count("crash in a write", bool(self._crashed))
        waiting = [*(a for frame in self.core.in_flight for a in frame.submissions), *self.core.pending]
        self.core = None
        self.sessions.forget()
        self.feed.forget()
        for append in waiting:
            append.done(None)  # type: ignore[attr-defined]

    def _poisoned(self, frame: SealedFrame) -> None:
        """A write has failed: the log is closed, and opened again by another process."""
        assert self.core is not None
        self.process.clock.count("primary fails")
        store_end = self.disk.store.end.position
        under_way = [each for each in self.core.in_flight if each.position >= store_end]
        lost, waiting = self.core.fail(StorageError("the modelled disk failed", errno=errno.EIO), frame)
        self.sessions.close("the log is closed")
        self.feed.close()
        for append in [*(a for each in lost for a in each.submissions), *waiting]:
            append.done(None)  # type: ignore[attr-defined]
        self.kill()
        self._crashed = under_way
        self.process.clock.after(REOPEN_MS, lambda: None if self.process.up else self.start())

    # -- the commit path

    def append(self, rows: Rows, done: Callable[[Append | None], None]) -> None:
        """Append records; `done` is called once, unless the process ends in between and the outcome is unknown."""
        assert self.core is not None
        self.core.submit(Append(rows, done), self.now_us)
        self._seal_what_may()

    def _seal_what_may(self) -> None:
        core, count = self.core, self.process.clock.count
        assert core is not None
        while group := core.take(self.now_us):
            count("shared frame", len(group) > 1)
            count("frames in flight", len(core.in_flight) > core.landed)
            rows = [row for append in group for row in append.rows]
            keys, values = zip(*rows, strict=True)
            body = prepare_body(Columns(len(rows), _KIND, keys, values))
            footprint = body.footprint(ALIGNMENT)
            if core.needs_segment(footprint):
                core.segment_ready(core.position + max(SEGMENT_BYTES, footprint))
                if core.position > self.disk.starts[-1][0]:
                    self.disk.starts.append((core.position, self.now_us))
                    count("segment begins")
            self._begin_epoch(core)
            frame = core.seal(group, body, self.now_us)
            fails, self.fails_next_write = self.fails_next_write, False
            took_ms = self._random.choice((0.3, 0.5, 1.0, 4.0))
            self.process.after(took_ms, lambda frame=frame, fails=fails: self._written(frame, fails))  # type: ignore[misc]
            if self.crashes_in_write is not None:
                crash, self.crashes_in_write = self.crashes_in_write, None
                self.process.clock.after(took_ms * self._random.random(), crash)

    def _begin_epoch(self, core: OrderingCore[Append]) -> None:
        """Note the epoch in the lineage before its first frame is written, as the manifest does."""
        identity, lineage = core.identity, self.disk.lineage
        if lineage and lineage[-1].number == identity.epoch:
            return
        begun = EpochRecord(
            number=identity.epoch,
            id=identity.epoch_id,
            first_lsn=core.appended_lsn + 1,
            position=core.position,
            chain=core.chain,
        )
        self.disk.lineage = self.ledger.lineage = (*lineage, begun)

    def _written(self, frame: SealedFrame, fails: bool) -> None:
        core = self.core
        assert core is not None
        if fails:
            self._poisoned(frame)
            return
        self._landed.add(frame.position)
        self.process.clock.count("writes overtake", core.in_flight[0] is not frame)
        for done in core.written(frame, durable=True, now_us=self.now_us):
            if done.position not in self._landed:
                raise Violation("durable", f"LSN {done.first_lsn} is acknowledged before it is written")
            self._landed.remove(done.position)
            landed = self._put(done)
            self.ledger.append(landed)
            self.feed.durable(landed)
            for append in done.submissions:
                append.done(append)  # type: ignore[attr-defined]
        self.sessions.source_moved()
        self._seal_what_may()

    def _put(self, frame: SealedFrame) -> WorldFrame:
        data = b"".join(frame.buffers)
        rows = [row for append in frame.submissions for row in append.rows]  # type: ignore[attr-defined]
        landed = WorldFrame(FrameHeader.parse(data), data, rows)
        self.disk.store.append(landed)
        return landed

    # -- upkeep

    def save_claims(self) -> None:
        """Write the claims of now to the disk; those whose lease is over are left out."""
        held = self.held
        self.process.clock.count("replica claim lapsed", len(self.disk.replica_claims.keys() - held.keys()))
        self.disk.replica_claims = held

    def _upkeep(self) -> None:
        """Take a snapshot now and then, save claims, and drop what retention asks for."""
        self.process.after(UPKEEP_MS, self._upkeep)
        self.sessions.save()
        self.save_claims()
        end = self.disk.store.end
        if self._random.random() < 0.5:
            snapshot = self.disk.snapshot
            state = snapshot.copy()
            state.apply(snapshot.lsn + 1, self.ledger.rows[snapshot.lsn : end.last_lsn])
            self.disk.snapshot = state
        self._trim()

    def _trim(self) -> None:
        now_us, disk, held = self.now_us, self.disk, self.held
        sealed = disk.sealed()
        open_from = sealed[-1].end_position if sealed else disk.store.base.position
        open_frames = disk.store.frames[disk.store.after(open_from) :]
        facts = RetentionFacts(
            sealed=sealed,
            begun_us=disk.starts[-1][1] if open_frames else None,
            open_bytes=sum(len(frame.data) for frame in open_frames),
            open_records=sum(len(frame.rows) for frame in open_frames),
            claims=tuple(claim for _, claim in sorted(held.items()))
            + tuple(
                claim_of(name, first_lsn, round(until_ms * 1000))
                for name, (first_lsn, until_ms) in sorted(disk.claims.items())
                if until_ms > self.process.clock.now_ms
            ),
            bound_lsn=disk.snapshot.lsn,
            now_us=now_us,
        )
        plan = plan_retention(Retention(records_max=RECORDS_KEPT), facts)
        self._count_retention(plan)
        if plan.segments:
            disk.drop_through(plan.up_to_lsn)

    def _count_retention(self, plan: RetentionPlan) -> None:
        """Count what a plan drops, what keeps the rest, and which lapsed leases would have kept what it drops."""
        disk, count, live = self.disk, self.process.clock.count, self.sessions.claims()
        count("segments dropped", bool(plan.segments))
        for name in plan.kept_by:
            _, is_claim, reader = name.rpartition("claim ")
            if not is_claim:
                count("state keeps")
            elif reader in disk.claims:
                count("claim keeps")
                count("claim of the dead keeps", not self._network.is_up(reader))
            else:
                count("replica claim keeps")
                count("saved claim keeps", reader not in live)
        now_ms = self.process.clock.now_ms
        for first_lsn, until_ms in disk.claims.values():
            count("claim lapsed", until_ms <= now_ms and disk.oldest_lsn <= first_lsn <= plan.up_to_lsn)
