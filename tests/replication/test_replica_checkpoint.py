"""A replica's own checkpoints: it opens with a snapshot and the tail, and drops older records."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import walkit
from tests.replication.blocking_callers import until
from tests.support.crash_recorder import Filmed
from tests.support.logs import lsns, tiny
from tests.support.stores import SMALL
from walkit.config import Retention
from walkit.errors import GapError, LogNotFoundError, OptionsError
from walkit.models import CrashingStorage
from walkit.replication import Primary, Replica
from walkit.segments.manifest_store import load_manifest
from walkit.state.snapshot import snapshot_lsns
from walkit.storage import FileStorage
from walkit.store import Store


def put(store: Store, count: int, keys: int = 10) -> int:
    """Put values of 3 kB under a few keys; return the last LSN."""
    return max(store.put(b"%d" % (i % keys), b"%d" % i + bytes(3000)).last_lsn for i in range(count))


def test_a_replica_opens_with_its_snapshot_and_replays_only_the_tail(tmp_path: Path) -> None:
    """Checkpoint a replica, append ten records, open it again: ten are replayed, and its items are the primary's."""
    with Store.open(tmp_path / "log", options=SMALL) as store, Primary(store) as primary:
        with Replica(tmp_path / "replica", primary.address, options=SMALL) as replica:
            replica.wait_for(put(store, 120), 30)
            report = replica.checkpoint()
            assert (report.lsn, report.low_watermark) == (120, 120)
            assert report.segments_trimmed > 0
            replica.wait_for(put(store, 10), 30)
        with Replica(tmp_path / "replica", primary.address, options=SMALL) as again:
            recovery = again.store.recovery
            assert recovery is not None and recovery.snapshot is not None
            assert (recovery.snapshot.lsn, recovery.replay.records) == (120, 10)
            assert again.store.items() == store.items()
            again.wait_for(put(store, 5), 30)
            assert again.store.items() == store.items()
            with pytest.raises(GapError):
                again.log.read(1)
    manifest = load_manifest(FileStorage(str(tmp_path / "replica")))
    assert manifest.checkpoint_lsn == manifest.low_watermark == 120
    assert walkit.verify(tmp_path / "replica").ok


@pytest.mark.parametrize("changed", ["", "trimmed", "compacted"])
def test_a_replica_starts_from_a_copy(tmp_path: Path, changed: str) -> None:
    """Copy an open Store, as it is, trimmed or compacted, and follow it into the copy: records and state are equal."""
    with Store.open(tmp_path / "log", options=SMALL) as store, Primary(store) as primary:
        put(store, 120)
        if changed == "trimmed":
            assert store.checkpoint().segments_trimmed > 0
        elif changed == "compacted":
            store.checkpoint(trim=False)
            assert store.compact().segments_rewritten > 0
        put(store, 7)
        walkit.copy(tmp_path / "log", tmp_path / "replica")
        last = put(store, 5)
        with Replica(tmp_path / "replica", primary.address, options=SMALL) as replica:
            replica.wait_for(last, 30)
            assert replica.store.items() == store.items()
            assert replica.store.snapshot_lsn == (120 if changed else 0)
            assert changed or lsns(replica.log.read()) == lsns(store.log.read())
    assert walkit.verify(tmp_path / "replica").ok


def test_checkpoints_are_taken_by_themselves(tmp_path: Path) -> None:
    """Follow 200 records with `checkpoint_every=50`: snapshots come, two stay, and the log's beginning is gone."""
    with Store.open(tmp_path / "log", options=SMALL) as store, Primary(store) as primary:
        with Replica(tmp_path / "replica", primary.address, options=SMALL, checkpoint_every=50) as replica:
            for _ in range(4):
                replica.wait_for(put(store, 50), 30)
                until(lambda: replica.store.applied_lsn - replica.store.snapshot_lsn < 50, "a checkpoint")
            until(lambda: replica.log.first_lsn > 100, "the trim")
            items = replica.store.items()
        with Replica(tmp_path / "replica", primary.address, options=SMALL) as again:
            assert again.store.items() == items == store.items()
    assert len(snapshot_lsns(FileStorage(str(tmp_path / "replica")))) <= 2


def test_retention_of_a_replica_waits_for_its_snapshot(tmp_path: Path) -> None:
    """Follow with a limit of records: nothing goes before a checkpoint, and the snapshot's records go after it."""
    options = walkit.LogOptions(
        segment_bytes=64 * 1024, frame_bytes_max=32 * 1024, retention=Retention(records_max=30)
    )
    with (
        Store.open(tmp_path / "log", options=SMALL) as store,
        Primary(store) as primary,
        Replica(tmp_path / "replica", primary.address, options=options) as replica,
    ):
        replica.wait_for(put(store, 200), 30)
        assert replica.log.maintenance.retention.enforce().kept_by == ("state",)
        assert replica.log.first_lsn == 1
        replica.checkpoint(trim=False)
        assert replica.log.maintenance.retention.enforce().reasons == ("records",)
        assert replica.log.first_lsn > 100
    with Replica(tmp_path / "replica", "127.0.0.1:1") as again:
        assert len(again.store) == 10


def test_a_claim_and_a_hold_in_the_replicas_folder_keep_its_log(tmp_path: Path) -> None:
    """Claim LSN 40 and hold LSN 60 at a replica: a checkpoint keeps each record from 40 on, later from 60 on."""
    with (
        Store.open(tmp_path / "log", options=SMALL) as store,
        Primary(store) as primary,
        Replica(tmp_path / "replica", primary.address, options=SMALL) as replica,
    ):
        replica.wait_for(put(store, 120), 30)
        claim = walkit.claim(tmp_path / "replica", "mailer", first_lsn=40)
        hold = replica.log.hold("here", 60)
        assert replica.checkpoint().low_watermark == 39
        assert lsns(replica.log.read()) == list(range(40, 121))
        claim.release()
        assert replica.checkpoint().low_watermark == 59
        hold.release()
        assert replica.log.trim(110) == 110


def test_a_checkpoint_needs_the_first_contact(tmp_path: Path) -> None:
    """Checkpoint, trim and hold of a replica without a log: LogNotFoundError; a wrong option: OptionsError."""
    replica = Replica(tmp_path / "replica", "127.0.0.1:1")
    for wrong in (replica.checkpoint, lambda: replica.log.trim(1), lambda: replica.log.hold("h", 1)):
        with pytest.raises(LogNotFoundError):
            wrong()
    replica.stop()
    with pytest.raises(OptionsError):
        Replica(tmp_path / "replica", "127.0.0.1:1", checkpoint_every=0)
    refusing = tiny(retention=Retention(bytes_max=1 << 20, at_capacity="refuse"))
    with pytest.raises(OptionsError):
        Replica(tmp_path / "replica", "127.0.0.1:1", options=refusing)
    Replica(tmp_path / "replica", "127.0.0.1:1").stop()


def kept(folder: Path) -> list[tuple[bytes, bytes | None]]:
    """The items of a replica that is opened without its primary."""
    with Replica(folder, "127.0.0.1:1", options=SMALL) as replica:
        return replica.store.items()


def test_a_power_cut_at_any_change_of_a_checkpoint(tmp_path: Path) -> None:
    """Cut the power before each change of a replica's checkpoint: each image opens to the same items."""
    base = CrashingStorage()
    with Store.open(tmp_path / "log", options=SMALL) as store, Primary(store) as primary:
        with Replica(base, primary.address, options=SMALL) as replica:
            replica.wait_for(put(store, 40), 30)
        items = store.items()
    film = Filmed(base.process_kill())
    with Replica(film, "127.0.0.1:1", options=SMALL) as replica:
        film.running = True
        replica.checkpoint()
    film.take("the end")
    assert len(film.images) > 10
    for moment, image in film.images:
        with Replica(image, "127.0.0.1:1", options=SMALL) as replica:
            assert replica.store.items() == items, moment


def test_a_callback_that_stops_the_replica_while_it_is_stopped(tmp_path: Path) -> None:
    """Stop a replica within its checkpoint's event, and from outside at that moment: both return, and it is closed."""
    entered, both = threading.Event(), threading.Event()

    def stopping(name: str, about: dict[str, object]) -> None:
        if name == "walkit.snapshot.write":
            entered.set()
            both.wait(0.5)  # until the other one waits for this thread's end, most likely
            replica.stop()

    with Store.open(tmp_path / "log", options=SMALL) as store, Primary(store) as primary:
        replica = Replica(
            tmp_path / "replica", primary.address, options=SMALL, events=stopping, checkpoint_every=5
        ).start()
        put(store, 10)
        assert entered.wait(30)
        outside = threading.Thread(target=replica.stop)
        outside.start()
        outside.join(30)
        assert not outside.is_alive() and replica.log.closed
    assert walkit.verify(tmp_path / "replica").ok
    assert len(kept(tmp_path / "replica")) > 0
