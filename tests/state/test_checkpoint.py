"""Checkpoints: the dropped and kept records, and writers that continue beside them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import walkit
from tests.support.stores import SMALL, copy, memory_store
from walkit.config import StoreOptions
from walkit.errors import CorruptionError, LogClosedError
from walkit.format.manifest import LogEnd, Manifest, encode_base
from walkit.models import CrashingStorage, FaultyStorage
from walkit.segments.manifest_store import load_manifest
from walkit.state import StateImage, StateMachine, take_image
from walkit.state.snapshot import snapshot_lsns, snapshot_name
from walkit.store import Store


def filled(storage: CrashingStorage | FaultyStorage, count: int = 60, start: int = 0) -> dict[bytes, bytes]:
    """Open, put keys over several segments, delete some, close; return the live keys."""
    with memory_store(storage) as store:
        for i in range(start, start + count):
            store.put(b"%03d" % (i % 50), b"v%d" % i * 1000)
            if i % 7 == 3:
                store.delete(b"%03d" % (i % 50))
        return {key: value for key, value in store.items() if value is not None}


def manifest_of(store: Store) -> Manifest:
    """The manifest of an open store."""
    return store.log.parts.manifest_store.current


def test_a_checkpoint_saves_the_state_and_drops_the_log() -> None:
    """Several epochs, then a checkpoint: the report and the files agree; an opening replays nothing."""
    storage = CrashingStorage()
    expected = filled(storage)
    with memory_store(storage) as store:
        assert len(manifest_of(store).sealed) > 2
        before = {s.name: s.size_bytes + 4096 for s in manifest_of(store).sealed}
        report = store.checkpoint()
        assert report.lsn == store.log.acked_lsn == report.low_watermark == manifest_of(store).checkpoint_lsn
        assert report.records == len(expected)
        assert report.segments_trimmed == len(before) and report.bytes_trimmed == sum(before.values())
        assert not any(name in storage.names() for name in before)
        assert report.snapshot_bytes == storage.open(snapshot_name(report.lsn), "read").size()
        assert [p.name for p in report.phases] == ["image", "log", "snapshot", "watermark", "trim"]
        assert report.duration_s > 0 and f"LSN {report.lsn}" in report._repr_html_()
        assert store.log.first_lsn == report.lsn + 1 and list(store.log.read()) == []
        assert store.log.append(b"next").first_lsn == report.lsn + 1
    with memory_store(storage) as store:
        assert dict(store.items()) == expected
        detail = {phase.name: phase.detail for phase in store.recovery.phases}
        assert (detail["snapshot"]["lsn"], detail["replay"]["records"]) == (report.lsn, 1)


def test_older_snapshots_go_when_nothing_needs_them() -> None:
    """A claim keeps the log, the first snapshot after it and the two newest; without it only the newest one stays."""
    storage = CrashingStorage()
    filled(storage)
    with memory_store(storage) as store:
        hold = store.log.hold("reader", 5)
        lsns = []
        for i in range(4):
            store.put(b"n%d" % i, b"v")
            report = store.checkpoint()
            lsns.append(report.lsn)
            assert (report.low_watermark, report.segments_trimmed) == (4, 0)
        assert snapshot_lsns(storage) == [lsns[0], *lsns[-2:]]
        assert store.log.first_lsn == 5
        hold.release()
        report = store.checkpoint()
        assert (report.lsn, report.low_watermark, report.snapshots_removed) == (lsns[-1], lsns[-1], 2)
        assert snapshot_lsns(storage) == lsns[-1:]
        kept = store.checkpoint(trim=False)
        assert (kept.low_watermark, kept.segments_trimmed) == (lsns[-1], 0)


def test_trimming_never_passes_the_newest_snapshot() -> None:
    """A trim of a store's log stops at its newest snapshot, also when the log is opened without its store."""
    storage = CrashingStorage()
    filled(storage)
    with memory_store(storage) as store:
        assert store.log.trim(50) == 0
        lsn = store.checkpoint().lsn
        for i in range(30):
            store.put(b"%d" % i, b"x" * 8000)
        assert store.log.trim(store.log.acked_lsn) == lsn
        items = store.items()
    with walkit.open(storage=storage, options=SMALL) as log:
        assert log.trim(log.acked_lsn) == lsn
    with memory_store(storage) as store:
        assert store.items() == items


def check(image: CrashingStorage, allowed: list[dict[bytes, bytes]]) -> None:
    """Open the log after a crash: one of the allowed states; a checkpoint works, and so does the next opening."""
    with memory_store(image) as store:
        found = dict(store.items())
        assert found in allowed
        last = store.log.acked_lsn
        report = store.checkpoint()
        assert report.lsn == last and snapshot_lsns(image) == [last]
        assert store.put(b"after", b"it").first_lsn == last + 1
    with memory_store(image) as store:
        assert dict(store.items()) == {**found, b"after": b"it"}
    assert walkit.verify(image).ok


def test_checkpoints_by_itself() -> None:
    """checkpoint_every=40: checkpoints come by themselves, and closing in their midst is in order."""
    storage = CrashingStorage()
    events: list[tuple[str, dict[str, Any]]] = []
    taken = threading.Semaphore(0)

    def note(name: str, facts: dict[str, Any]) -> None:
        events.append((name, facts))
        if name == "walkit.checkpoint.finish":
            taken.release()

    options = StoreOptions(checkpoint_every=40)
    with Store.open(storage=storage, options=SMALL, store_options=options, events=note) as store:
        for i in range(200):
            store.put(b"%d" % (i % 20), b"v" * 3000)
            if i % 40 == 39:
                assert taken.acquire(timeout=30)
        items = store.items()
    checkpoints = [facts for name, facts in events if name == "walkit.checkpoint.finish"]
    assert len(checkpoints) >= 5
    assert checkpoints[-1]["lsn"] == 200
    with memory_store(storage) as store:
        assert store.items() == items and store.log.first_lsn > 100
    assert not [t for t in threading.enumerate() if t.name.startswith("walkit-checkpoint")]


def test_a_checkpoint_that_fails_by_itself_is_an_event() -> None:
    """Fail the snapshot's write in the background: an event, no error for writers, and the next one makes up for it."""
    storage = FaultyStorage(CrashingStorage())
    failed, finished = threading.Event(), threading.Event()

    def note(name: str, _: dict[str, Any]) -> None:
        if name == "walkit.checkpoint.fail":
            failed.set()
        if name == "walkit.checkpoint.finish":
            finished.set()

    options = StoreOptions(checkpoint_every=10)
    with Store.open(storage=storage, options=SMALL, store_options=options, events=note) as store:
        fault = storage.fail("create", "snapshot.new")
        for i in range(10):
            store.put(b"%d" % i, b"v")
        assert failed.wait(30) and fault.hits == 1
        for i in range(12):
            store.put(b"%d" % i, b"v")
        assert finished.wait(30)
        assert store.statistics().snapshot_lsn > 0


def test_closing_waits_for_a_checkpoint_under_way() -> None:
    """Close while a checkpoint hangs in its write: close waits, the files are whole, later checkpoints are refused."""
    storage = CrashingStorage()
    expected = filled(storage)
    faulty = FaultyStorage(storage)
    store = memory_store(faulty)
    hang = faulty.hang("sync", "snapshot.new")
    checkpoint = threading.Thread(target=store.checkpoint)
    checkpoint.start()
    assert hang.entered.wait(30)
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive() and storage.is_locked("lock")
    hang.release()
    checkpoint.join(30)
    closing.join(30)
    assert not closing.is_alive()
    with pytest.raises(LogClosedError):
        store.checkpoint()
    check(storage, [expected])


def test_a_log_that_ends_before_its_checkpoint_is_refused() -> None:
    """The manifest has the durable end of the log: a log that ends before is corrupt, store or not."""
    storage = CrashingStorage()
    filled(storage)
    with memory_store(storage) as store:
        store.log.hold("all", 1)
        lsn = store.checkpoint().lsn
    manifest = load_manifest(storage)
    last = manifest.sealed[-1]
    end = LogEnd(last_lsn=last.first_lsn - 1, position=last.start_position, chain=last.start_chain)
    shorter = manifest.next(segments=manifest.segments[:-1], end=end)
    copy(storage, storage, "manifest", encode_base(shorter))
    storage.remove(last.name)
    storage.remove("durable")
    for opened in (memory_store, lambda s: walkit.open(storage=s)):
        with pytest.raises(CorruptionError, match=f"durable up to LSN {lsn}") as caught:
            opened(storage)
        assert caught.value.first_lost_lsn == last.first_lsn


def test_nothing_is_applied_while_an_image_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the lock of applying while a checkpoint takes its image: it is held, so the image has one LSN."""
    held: list[bool] = []
    with memory_store(CrashingStorage()) as store:
        store.put(b"k", b"v")

        def image(machine: StateMachine, lsn: int) -> StateImage:
            held.append(store._follower.lock.locked())
            return take_image(machine, lsn)

        monkeypatch.setattr("walkit.state.checkpoint.take_image", image)
        store.checkpoint()
    assert held == [True]
