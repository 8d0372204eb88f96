"""Bootstraps that lie, fail or are left half-done: typed errors, and a replica whose own log stays as it was."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, flipped, quick, until
from tests.replication.forged_messages import welcome
from tests.replication.frame_history import whole
from tests.replication.test_bootstrap import assert_equal, follower, gathered, killed, trimmed
from tests.support.stores import SMALL
from walkit._internal.threads import LogThread
from walkit.copier.gathering import Gathering
from walkit.errors import CorruptionError
from walkit.events import EventSink
from walkit.format.file_names import BOOTSTRAP_READY_NAME
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import HoleRecord, Manifest, decode_manifest, encode_base
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import OperationName
from walkit.replication import Primary, Replica, promote
from walkit.replication.core.actions import (
    Prepare,
    Publish,
    SendToPublisher,
    StorePart,
    SubscriberStep,
)
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.logs.plan_check import gather_plan
from walkit.replication.logs.source import StoredSource
from walkit.replication.logs.tail_watch import TailWatch
from walkit.replication.primary.bootstrap_plan import BootstrapFiles, SnapshotChecks
from walkit.replication.protocol.identity import mint
from walkit.replication.protocol.messages import (
    Chunk,
    Fetch,
    FromPublisher,
    Plan,
)
from walkit.segments.manifest_store import load_manifest
from walkit.storage.file import FileStorage


class Bootstrapping:
    """A replica's core and folder that take in a publisher's messages, as the replica's loop has them do."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.asked: deque[Fetch] = deque()
        self.finished = False
        self.folder = Gathering(FileStorage(str(folder)))
        self.core = Subscriber(
            "r",
            log_id=manifest.log_id,
            lineage=manifest.lineage,
            end=manifest.end,
            identity=mint(),
            bootstraps=True,
        )
        self.core.start(0)
        self.core.connected(0)
        self.take(welcome(whole(), log_id=manifest.log_id, source_lsn=0, source_position=0))

    def take(self, message: FromPublisher) -> None:
        """Take in one message and do the steps that follow. Raises what ends a bootstrap."""
        steps: list[SubscriberStep] = self.core.receive(message, 0)
        for step in steps:
            if isinstance(step, Prepare):
                missing = gather_plan(self.folder, step.plan, self.core.log_id, self.core.lineage)
                steps += self.core.prepared(missing, 0)
            elif isinstance(step, StorePart):
                self.folder.store(step.chunk.file, step.chunk.offset, step.chunk.data)
            elif isinstance(step, SendToPublisher) and isinstance(step.message, Fetch):
                self.asked.append(step.message)
            elif isinstance(step, Publish):
                self.folder.finish()
                self.finished = True

    def answer(self, planned: BootstrapFiles, *, spoiled: bool = False) -> None:
        """Take in the answer to the oldest question: the true one, or one with another bit in its middle."""
        fetch = self.asked.popleft()
        data = planned.read(fetch.file, fetch.offset, fetch.size)
        data = flipped(data, len(data) * 4) if spoiled else data
        self.take(Chunk(file=fetch.file, offset=fetch.offset, data=data))


# -- half-done work is finished or removed


def test_a_promotion_during_a_bootstrap_leaves_no_parts(tmp_path: Path) -> None:
    """Kill a bootstrap among its parts and promote the replica: no part of the other log stays, and it is written."""
    with trimmed(tmp_path / "p") as log, Primary(log) as primary:
        assert killed(tmp_path / "r", primary, log.acked_lsn, ("write", "bootstrap-*.part", 20))
    assert gathered(tmp_path / "r")
    assert not promote(tmp_path / "r").already
    assert gathered(tmp_path / "r") == []
    with walkit.open(tmp_path / "r") as promoted:
        promoted.append(b"new")
    assert walkit.verify(tmp_path / "r").ok


@pytest.mark.parametrize(("number", "torn"), [(0, True), (-1, False)])
def test_a_ready_bootstrap_without_a_part_is_fetched_again(tmp_path: Path, number: int, torn: bool) -> None:
    """Kill a bootstrap that is ready, remove its first or last part or tear its header: the next run ends equal."""
    with trimmed(tmp_path / "p") as log, Primary(log) as primary:
        assert killed(tmp_path / "r", primary, log.acked_lsn, ("replace", "*.segment", 1))
        parts = [name for name in gathered(tmp_path / "r") if name.endswith(".part")]
        part = tmp_path / "r" / parts[number]
        data = part.read_bytes()
        part.unlink()
        if torn:
            part.write_bytes(bytes(512) + data[512:])
        with follower(tmp_path / "r", primary) as replica:
            replica.wait_for(log.append(b"the last").last_lsn, WAIT_S)
            assert_equal(log, replica)
    assert walkit.verify(tmp_path / "r").ok
    assert gathered(tmp_path / "r") == []


def test_a_watch_whose_thread_could_not_start_watches_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the thread of a watch once, then add again: the second callback is called."""
    watch, told = TailWatch(CrashingStorage(), lambda: (next(ends), 0)), threading.Event()
    ends = iter(range(1 << 60))

    def refused(_: LogThread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(LogThread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            watch.add(lambda: None)
    unwatch = watch.add(told.set)
    try:
        until(told.is_set, "the news")
    finally:
        unwatch()


@pytest.mark.parametrize(
    ("operation", "pattern", "synced"),
    [
        ("sync", "bootstrap-0*.part", False),
        ("sync", "bootstrap-snapshot-*.part", False),
        ("synced_write", "bootstrap-0*.part", True),
    ],
    ids=["segment", "snapshot", "header"],
)
def test_a_sync_that_fails_while_a_log_is_gathered_loses_nothing(
    tmp_path: Path, operation: OperationName, pattern: str, synced: bool
) -> None:
    """Fail one sync of a part, let the replica try again, cut the power: what it has acknowledged is there."""
    crashing = CrashingStorage()
    storage = FaultyStorage(crashing)
    with walkit.Store.open(tmp_path / "p", options=SMALL) as store:
        for number in range(300):
            store.put(b"key %d" % (number % 150), b"%d" % number * 1_000)
        store.checkpoint()
        for number in range(60):
            store.put(b"key %d" % number, b"newer %d" % number * 1_000)
        last, wanted = store.log.acked_lsn, dict(store.items())
        fault = storage.fail(operation, pattern)
        with Primary(store) as primary:
            for _ in range(2):  # a replica that its failed disk has ended is opened again
                replica = Replica(storage, primary.address, options=SMALL, backoff=quick())
                try:
                    replica.start().wait_for(last, WAIT_S)
                except walkit.StorageError:
                    assert synced, "a part that could not be synced is fetched again by itself"
                    replica.stop()
                    continue
                break
            assert replica.log.durable_lsn == last
            after = crashing.crash(keep="none")
            replica.stop()
            assert fault.hits, "the fault was not met"
            with Replica(after, primary.address, options=SMALL) as again:
                assert again.log.end.last_lsn == last
                assert dict(again.store.items()) == wanted


def of_first(**facts: Any) -> Callable[[Plan, Manifest], Plan]:
    """Return a change of the plan's first segment."""
    return lambda plan, manifest: in_plan(
        plan, manifest, segments=(manifest.segments[0]._replace(**facts), *manifest.segments[1:])
    )


def of_log(**facts: Any) -> Callable[[Plan, Manifest], Plan]:
    """Return a change of the plan's log."""
    return lambda plan, manifest: in_plan(plan, manifest, **facts)


def in_plan(plan: Plan, manifest: Manifest, **facts: Any) -> Plan:
    return replace(plan, manifest=encode_base(replace(manifest, **facts)))


def longer(plan: Plan, manifest: Manifest) -> Plan:
    """One byte more in the file of the first segment than its frames take."""
    size = SEGMENT_HEADER_BYTES + manifest.segments[0].size_bytes + 1
    return replace(plan, sizes=(size, *plan.sizes[1:]))


def two_lsns_more(plan: Plan, manifest: Manifest) -> Plan:
    """The last segment, and with it the log, ends two LSNs later than its frames."""
    end = replace(manifest.end, last_lsn=manifest.end.last_lsn + 2)
    last = manifest.segments[-1]._replace(last_lsn=end.last_lsn)
    return in_plan(plan, manifest, end=end, segments=(*manifest.segments[:-1], last))


def late_epoch(plan: Plan, manifest: Manifest) -> Plan:
    """An epoch that begins after the log's end."""
    last = manifest.lineage[-1]
    late = replace(last, number=last.number + 1, id=7, position=manifest.end.position + 64)
    return in_plan(plan, manifest, lineage=(*manifest.lineage, late))


def hole_after_the_end(plan: Plan, manifest: Manifest) -> Plan:
    """A hole of positions after the log's end."""
    end = manifest.end
    hole = HoleRecord(
        start_position=end.position,
        end_position=end.position + 64,
        first_lsn=end.last_lsn + 1,
        last_lsn=end.last_lsn + 1,
        chain=1,
    )
    return in_plan(plan, manifest, holes=(hole,))


def old_snapshot(plan: Plan, manifest: Manifest, lsn: int, tombstones: int = 1) -> Plan:
    """A snapshot at this LSN, and tombstones that were dropped below another one."""
    spoiled = in_plan(plan, manifest, tombstones_from_lsn=tombstones)
    return replace(spoiled, snapshot_lsn=lsn, sizes=(*plan.sizes[: len(manifest.segments)], 4096))


LIES: dict[str, Callable[[Plan, Manifest], Plan]] = {
    "a file larger than its frames": longer,
    "a checkpoint after the end": lambda p, m: in_plan(p, m, checkpoint_lsn=m.end.last_lsn + 1),
    "history from after the end": lambda p, m: in_plan(p, m, exact_from_lsn=m.end.last_lsn + 2),
    "history from the end on, and records before": lambda p, m: in_plan(
        p, m, exact_from_lsn=m.end.last_lsn + 1
    ),
    "a snapshot from before a trim": lambda p, m: old_snapshot(p, m, m.low_watermark - 1),
    "a snapshot from before dropped tombstones": lambda p, m: old_snapshot(
        p, m, m.low_watermark, m.low_watermark + 2
    ),
    "tombstones from after the end": of_log(tombstones_from_lsn=1 << 40),
    "an epoch after the end": late_epoch,
    "a hole after the end": hole_after_the_end,
    "records that its frames have not": two_lsns_more,
    "another number of records": of_first(records=1 << 40),
    "another number of frames": of_first(frames=1 << 30),
    "other flags": of_first(flags=4),
}


@pytest.fixture(scope="module")
def primary(tmp_path_factory: pytest.TempPathFactory) -> FileStorage:
    """The folder of a log that was trimmed, and is closed."""
    place = tmp_path_factory.mktemp("planned") / "p"
    with trimmed(place):
        pass
    return FileStorage(str(place))


@pytest.mark.parametrize("lie", [*LIES, "a bit of each piece"])
def test_a_plan_says_nothing_that_its_frames_do_not_bear_out(
    primary: FileStorage, tmp_path: Path, lie: str
) -> None:
    """Change one fact of an honest plan, or its files' bytes: CorruptionError, never ready, the old log untouched."""
    folder = tmp_path / "r"
    with closing(BootstrapFiles(StoredSource(primary), SnapshotChecks(primary, EventSink()))) as planned:
        honest = decode_manifest(planned.plan.manifest, "the plan")
        folder.mkdir()
        own = Manifest(log_id=honest.log_id)
        for lies in (False, True):
            session = Bootstrapping(folder, own)
            try:
                session.take(LIES[lie](planned.plan, honest) if lies and lie in LIES else planned.plan)
                while session.asked:
                    session.answer(planned, spoiled=lies and lie not in LIES)
            except CorruptionError:
                assert lies and not session.finished
            else:
                assert session.finished and not lies
            assert (BOOTSTRAP_READY_NAME in gathered(folder)) == (not lies)
            session.folder.clear()


def test_a_plan_that_the_disk_has_no_room_for_is_refused_before_anything_is_fetched(
    primary: FileStorage, tmp_path: Path
) -> None:
    """Plan a snapshot of more bytes than are free: ENOSPC, no question, no part, and the old log stays."""
    folder = tmp_path / "r"
    walkit.copy(primary, folder)
    storage = FileStorage(str(folder))
    own, before = load_manifest(storage), storage.names()
    with closing(BootstrapFiles(StoredSource(primary), SnapshotChecks(primary, EventSink()))) as planned:
        plan, size = planned.plan, storage.free_bytes() + 1
        large = replace(plan, sizes=(*plan.sizes, size), snapshot_lsn=own.end.last_lsn)
        session = Bootstrapping(folder, own)
        with pytest.raises(walkit.StorageError, match="bytes free") as caught:
            session.take(large)
        assert caught.value.errno == errno.ENOSPC
        assert not session.asked and not session.finished
        assert not [name for name in gathered(folder) if name.endswith(".part")]
        assert set(before) <= set(storage.names()) and load_manifest(storage) == own
        assert walkit.verify(folder).ok
