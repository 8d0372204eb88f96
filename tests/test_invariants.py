"""Random histories of a log and of a store: after every step each part's own invariants hold, and each can fail."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import walkit
from tests.support.examples import examples
from tests.support.invariants import changed, check_log, check_store, inside
from tests.support.machines import that_did
from walkit.commit.background import DeviceWorker
from walkit.commit.core import OrderingCore
from walkit.commit.delivery import Delivery
from walkit.commit.election import LeaderElection
from walkit.commit.latches import CommitSignal, SealSequencer
from walkit.commit.timer import CommitClock, DeviceWatch
from walkit.compaction.rewriter import FrameGatherer
from walkit.errors import JournalFullError
from walkit.events import EventSink
from walkit.format.frame import FrameIdentity
from walkit.format.manifest import LogEnd, Manifest
from walkit.log.claims import ClaimTable, _Seen
from walkit.log.live_log import Lifetime
from walkit.models import CrashingStorage
from walkit.record import Batch
from walkit.replication.core.publisher import Publisher
from walkit.replication.core.states import StateTracker
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.delta.buffer import DeltaBuffer
from walkit.replication.delta.loader import RangeLoader
from walkit.replication.delta.messages import DeltaEnd
from walkit.replication.delta.poll_client import DeltaPoller
from walkit.replication.delta.reader_loop import DeltaLoop
from walkit.replication.delta.replayer import DeltaReplayer
from walkit.replication.delta.state import ReaderState
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.logs.importer import Importer
from walkit.replication.logs.source import StoredSource
from walkit.replication.logs.tail_watch import TailWatch
from walkit.replication.primary.shared_runs import SharedRuns
from walkit.replication.replica.loop import ReplicaLoop
from walkit.replication.replica.opening import Opened
from walkit.replication.replica.store import ReplicaStore
from walkit.replication.transport.calls import CallTable
from walkit.replication.transport.connection import Destination
from walkit.replication.transport.threads import LoopThread
from walkit.segments.active_segment import OpenSegment
from walkit.segments.maintenance_worker import MaintenanceWorker
from walkit.segments.manifest_store import ManifestStore
from walkit.state import KeyedTable
from walkit.state.admission import Admission
from walkit.state.journal import Ring
from walkit.storage.file import AlignedBuffers

SMALL = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=0)
OWNER = uuid.UUID(int=1)
KEYS = st.sampled_from((b"a", b"b", b"c", b"d"))


class Logs(RuleBasedStateMachine):
    """All that one process does with a log, one thing after the other."""

    did: ClassVar[Counter[str]] = Counter()

    @initialize(in_flight=st.sampled_from((1, 4)), completion=st.booleans())
    def begin(self, in_flight: int, completion: bool) -> None:
        """Open an empty log."""
        order: Any = "completion" if completion else "append"
        self.options = replace(SMALL, in_flight=in_flight, ack_order=order)
        self.storage = CrashingStorage()
        self.open()

    def open(self) -> None:
        self.log = walkit.open(storage=self.storage, options=self.options)
        self.cursor = self.log.cursor("consumer")
        self.hold = self.log.hold("here", self.cursor.lsn + 1)
        self.claim = walkit.claim(self.storage, "consumer", owner=OWNER)

    @rule(sizes=st.lists(st.integers(0, 12_000), min_size=1, max_size=6))
    def submit(self, sizes: list[int]) -> None:
        tickets = [self.log.submit(bytes(size)) for size in sizes]
        assert [ticket.result().first_lsn for ticket in tickets] == list(
            range(self.log.acked_lsn - len(sizes) + 1, self.log.acked_lsn + 1)
        )

    @rule(count=st.integers(1, 200))
    def append_many(self, count: int) -> None:
        self.log.append_many([b"%d" % i for i in range(count)])

    @rule(count=st.integers(1, 5))
    def transact(self, count: int) -> None:
        with self.log.transaction() as tx:
            for i in range(count):
                tx.put(b"%d" % i, b"x")

    @rule(share=st.floats(0, 1))
    def consume(self, share: float) -> None:
        lsn = self.cursor.lsn + int((self.log.acked_lsn - self.cursor.lsn) * share)
        self.cursor.advance(lsn)
        self.hold.advance(lsn + 1)

    @rule(share=st.floats(0, 1))
    def consume_elsewhere(self, share: float) -> None:
        first = self.claim.first_lsn
        self.claim.advance(first + int((self.log.acked_lsn + 1 - first) * share))

    @rule(consumed=st.floats(0.5, 1), elsewhere=st.floats(0.5, 1), share=st.floats(0.5, 1))
    def fill_consume_and_trim(self, consumed: float, elsewhere: float, share: float) -> None:
        for _ in range(4):
            self.submit([12_000] * 3)
        self.log.wait_idle()
        self.consume(consumed)
        self.consume_elsewhere(elsewhere)
        self.trim(share)

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        first, wanted = self.log.first_lsn, int(self.log.acked_lsn * share)
        needed = min(self.cursor.lsn, self.claim.first_lsn - 1)
        self.log.trim(wanted)
        self.did["limited"] += wanted > needed
        self.did["dropped"] += self.log.first_lsn > first
        assert self.log.first_lsn <= self.cursor.lsn + 1, "a hold was passed"
        assert self.log.first_lsn <= self.claim.first_lsn, "a claim was passed"

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.open()

    @rule(seed=st.integers(0, 1000))
    def crash(self, seed: int) -> None:
        acked = self.log.acked_lsn
        self.storage, before = self.storage.crash(keep="random", seed=seed), self.log
        self.open()
        assert self.log.acked_lsn >= acked
        before.close()

    @invariant()
    def hold_true(self) -> None:
        if hasattr(self, "log"):
            check_log(self.log)
            self.cursor._check()

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()


class Stores(RuleBasedStateMachine):
    """The same of a store with a journal."""

    did: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.storage = CrashingStorage()
        self.expected: dict[bytes, bytes] = {}
        self.open()

    def open(self) -> None:
        options = walkit.StoreOptions(journal_slots=32, checkpoint_margin=0)
        self.store = walkit.Store.open(storage=self.storage, options=SMALL, store_options=options)
        self.claim = walkit.claim(self.storage, "consumer", owner=OWNER)

    @rule(key=KEYS, size=st.integers(0, 9000))
    def put(self, key: bytes, size: int) -> None:
        with contextlib.suppress(JournalFullError):
            self.store.put(key, bytes(size))
            self.expected[key] = bytes(size)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        with contextlib.suppress(JournalFullError):
            self.store.delete(key)
            self.expected.pop(key, None)

    @rule(share=st.floats(0, 1))
    def consume_elsewhere(self, share: float) -> None:
        first, end = self.claim.first_lsn, self.store.log.acked_lsn + 1
        assert [r.lsn for r in self.store.log.read(first)] == list(range(first, end)), "a claim was passed"
        self.claim.advance(first + int((end - first) * share))

    @rule(trim=st.booleans())
    def checkpoint(self, trim: bool) -> None:
        first = self.store.log.first_lsn
        self.store.checkpoint(trim=trim)
        self.did["trimmed"] += self.store.log.first_lsn > first

    @rule(trim=st.booleans(), share=st.floats(0.5, 1))
    def fill_and_compact(self, trim: bool, share: float) -> None:
        for turn in range(24):
            self.put(b"abcd"[turn % 4 : turn % 4 + 1], 9000)
        self.delete(b"a")
        self.consume_elsewhere(share)
        self.checkpoint(trim)
        self.compact()

    @rule()
    def compact(self) -> None:
        self.did["compacted"] += self.store.compact().segments_rewritten > 0

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()

    @invariant()
    def hold_true(self) -> None:
        check_store(self.store)
        assert dict(self.store.items()) == self.expected

    def teardown(self) -> None:
        self.store.close()


TestLogs = that_did(Logs, "limited", "dropped")
TestStores = that_did(Stores, "trimmed", "compacted")
TestLogs.settings = TestStores.settings = settings(
    max_examples=examples(50), stateful_step_count=20, deadline=None
)


def _core() -> OrderingCore[Any]:
    return OrderingCore(
        FrameIdentity(1, 1, 1), last_lsn=5, position=640, chain=0, alignment=64, frame_bytes_max=4096
    )


def _table() -> KeyedTable:
    table = KeyedTable()
    table.apply(Batch([1, 2], 1, [b"a", b"b"], [b"", b""]))
    return table


def _ring() -> Ring:
    ring = Ring(4)
    ring.put(1, 3, 64)
    return ring


def _subscriber() -> Subscriber:
    subscriber = Subscriber("replica")
    subscriber.start(0)
    return subscriber


def _segment() -> OpenSegment:
    file = CrashingStorage()
    file.create()
    return OpenSegment(1, file.open("segment", "create"), 1 << 16)


def _poller() -> DeltaPoller:
    poller = DeltaPoller()
    assert poller.request(DeltaEnd(), 0.0) is not None
    return poller


def _runs() -> SharedRuns:
    runs = SharedRuns()
    runs.enter()
    return runs


def _tracker() -> StateTracker:
    tracker = StateTracker("replica", "new")
    tracker.begin(0.0)
    tracker.move("connecting", 1.0)
    return tracker


def _election() -> LeaderElection:
    watch, clock = DeviceWatch(0), CommitClock(time.time_ns)
    signal = CommitSignal(watch.lock)
    return LeaderElection(_core(), watch, signal=signal, timer=None, clock=clock, events=EventSink())


def _loader() -> RangeLoader:
    loader = RangeLoader(_stored(), 1)
    loader.note_end(DeltaEnd(3, 640))
    loader.note_end(DeltaEnd(1, 64))
    return loader


def _delivery() -> Delivery:
    delivery = Delivery("log", EventSink())
    delivery.add_observer(print)
    return delivery


def _claims() -> ClaimTable:
    return ClaimTable(*_managed(), EventSink())


def _managed() -> tuple[CrashingStorage, ManifestStore]:
    storage = CrashingStorage()
    storage.create()
    return storage, ManifestStore(storage, Manifest(log_id=7))


def _worker() -> MaintenanceWorker:
    return MaintenanceWorker("log", EventSink())


def _importer() -> Importer:
    importer = Importer(CrashingStorage(), walkit.LogOptions(), EventSink())
    importer.adopt(7, created_us=1, ack_order="append", extra={})
    return importer


def _delta_loop() -> DeltaLoop:
    storage = CrashingStorage()
    walkit.open(storage=storage).close()
    return DeltaLoop(
        name="reader",
        destination=Destination("127.0.0.1:1"),
        loader=RangeLoader(StoredSource(storage), 1),
        source=StoredSource(storage),
        replayer=DeltaReplayer(DeltaEnd(), log_id=1),
        new_poller=DeltaPoller,
        state=ReaderState(),
        log_id=1,
        events=EventSink(),
    )


def _sequencer() -> SealSequencer:
    sequencer = SealSequencer()
    sequencer.end(sequencer.draw_locked())
    return sequencer


def _signal() -> CommitSignal:
    signal = CommitSignal()
    signal.call_next_locked(print)
    return signal


def _admission() -> Admission:
    admission = Admission(8, 0, refuses=True)
    admission.attach(SimpleNamespace(refusal=None, queued_lsn=lambda: 5, events=EventSink()))
    admission.begin(3)
    assert admission.admit(2)
    return admission


def _gatherer() -> FrameGatherer:
    storage = CrashingStorage()
    storage.create()
    return FrameGatherer(storage.open("new", "create"), 1, 64, None)


def _buffers() -> AlignedBuffers:
    buffers = AlignedBuffers()
    buffers.give(buffers.take(4096))
    return buffers


class Silent:
    """A call whose peer says nothing."""

    def cancel(self) -> None:
        """See Call."""

    def is_stalled(self, now_ms: float) -> bool:
        """See Call."""
        return False


def _calls() -> CallTable:
    calls = CallTable(places=2, holds=2)
    for key in ("a", "b"):
        call = Silent()
        calls.enter(call)
        assert calls.seat(call, key, "replica", frozenset()) is None
    return calls


def _stored() -> StoredSource:
    storage = CrashingStorage()
    with walkit.open(storage=storage) as log:
        log.append(b"x")
    source = StoredSource(storage)
    assert source.durable()[0] == 1
    return source


def _replica_loop() -> ReplicaLoop:
    store = _replica_store()
    opened = Opened(store.log, store, Subscriber("replica"))
    return ReplicaLoop(opened, None, Destination("127.0.0.1:1"))  # type: ignore[arg-type]  # it is not started


def _replica_store() -> ReplicaStore:
    with closing(ImportedLog(CrashingStorage())) as log:
        return ReplicaStore(log)


ENDED = Manifest(log_id=7, end=LogEnd(last_lsn=5, position=640))
BROKEN: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
    (_core, changed("durable_lsn", 6)),
    (_core, changed("written_position", 641)),
    (_core, changed("landed", 1)),
    (_core, changed("_records", 1)),
    (_table, inside("_lsns", lambda lsns: lsns.update({b"c": 1}))),
    (_table, inside("_lsns", lambda lsns: lsns.update({b"a": 9}))),
    (_ring, inside("_lsns", lambda lsns: lsns.__setitem__(0, 3))),
    (Publisher, changed("_began_at", 64)),
    (Publisher, inside("_ends", lambda ends: ends.clear() or ends.append(None))),
    (_subscriber, changed("state", "failed")),
    (_subscriber, changed("heard_ms", 1.0)),
    (_segment, changed("zeroed", 1 << 20)),
    (_poller, changed("wake_at_ms", 5.0)),
    (_poller, changed("session_id", 7)),
    (DeltaBuffer, changed("size_bytes", 1)),
    (DeltaBuffer, changed("end", DeltaEnd(1, 64))),
    (_runs, inside("_kept", lambda kept: kept.update({(1, None): None}))),
    (_runs, changed("_size", 1)),
    (_tracker, changed("state", "new")),
    (_tracker, inside("_spans", deque.reverse)),
    (_election, changed("leading", {1: True, 2: True})),
    (SealSequencer, inside("_over", lambda over: over.add(0))),
    (_loader, inside("_ends", list.reverse)),
    (_loader, changed("tail", SimpleNamespace(users=-1, is_replaced=False))),
    (_delivery, changed("observers", (print, len))),
    (_segment, changed("frames", 1)),
    (_sequencer, changed("_current", 2)),
    (_sequencer, inside("_latches", lambda latches: latches.update({0: None}))),
    (_claims, changed("_kept", [])),
    (_claims, inside("_seen", lambda seen: seen.update(a=_Seen(None, float("inf"))))),
    (_worker, changed("_doing", "seal")),
    (_worker, inside("_jobs", lambda jobs: jobs["seal"].append(print))),
    (_worker, inside("_periodic", lambda periodic: periodic.update(paint=None))),
    (_importer, changed("adopted", False)),
    (_importer, inside("manifest_store", changed("current", ENDED))),
    (_importer, inside("segments", changed("identity", FrameIdentity(8, 1, 1)))),
    (_delta_loop, inside("_loads", lambda loads: loads.add(1))),
    (_delta_loop, inside("_named", lambda named: named.update({1: 1}))),
    (_delta_loop, changed("_probe_ms", 1.0)),
    (lambda: LoopThread(print), changed("_thread", threading.current_thread())),
    (lambda: LoopThread(print), inside("_unstarted", lambda unstarted: unstarted.append(True))),
    (lambda: DeviceWorker("log", print), inside("_jobs", lambda jobs: jobs.append(("sync", print)))),
    (Lifetime, changed("ended", True)),
    (lambda: TailWatch(CrashingStorage(), lambda: (0, 0)), changed("_callbacks", (print,))),
    (_signal, changed("wanted", False)),
    (_admission, changed("checkpoint_lsn", 6)),
    (_admission, changed("_failure", OSError())),
    (_admission, inside("_wanting", lambda wanting: wanting.update({1: 0}))),
    (_gatherer, inside("_keys", lambda keys: keys.append(b"k"))),
    (_buffers, changed("_free_bytes", 0)),
    (_calls, changed("places", 1)),
    (_calls, lambda calls: vars(calls)["_waiting"].update(dict.fromkeys(vars(calls)["_seated"].values()))),
    (_stored, changed("_log_id", 1)),
    (_stored, changed("_manifest", None)),
    (_replica_loop, changed("_queued_bytes", 1)),
    (_replica_loop, changed("_reopened", True)),
    (_replica_loop, inside("core", changed("end", LogEnd(last_lsn=1, position=64)))),
    (_replica_store, changed("_checkpoint_thread", object())),
    (_replica_store, changed("begins_lsn", 2)),
]


@pytest.mark.parametrize(("make", "spoil"), BROKEN, ids=range(len(BROKEN)))
def test_a_spoiled_state_is_noticed(make: Callable[[], Any], spoil: Callable[[Any], object]) -> None:
    """Spoil one field of a sound object: its check, which passed before, fails."""
    thing = make()
    thing._check()
    spoil(thing)
    with pytest.raises(AssertionError):
        thing._check()


@pytest.mark.parametrize(
    "change",
    [
        {"log_id": 8},
        {"next_segment": 2},
        {"low_watermark": 9},
        {"checkpoint_lsn": 9},
        {"generation": 6},
    ],
    ids=str,
)
def test_a_manifest_that_goes_back_is_never_written(change: dict[str, int]) -> None:
    """A change that takes back what only grows: AssertionError, and neither file nor object has changed."""
    storage = CrashingStorage()
    storage.create()
    current = Manifest(log_id=7, generation=6, next_segment=3, low_watermark=10, checkpoint_lsn=10)
    store = ManifestStore(storage, current)
    with pytest.raises(AssertionError):
        store.update(lambda manifest: replace(manifest.next(), **change))  # type: ignore[arg-type]
    assert store.current is current and storage.names() == []
