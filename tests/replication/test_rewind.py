"""Rewind: a diverged suffix is cut off where that was asked for, and refused where somebody has read it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import walkit
from tests.replication.blocking_callers import until
from tests.replication.test_kill import Process
from tests.replication.test_promote import followed
from tests.replication.test_replica_checkpoint import put
from tests.support.crash_recorder import Filmed
from tests.support.imports import bytes_of
from tests.support.logs import lsns
from tests.support.stores import SMALL
from walkit.errors import CursorDivergedError, DivergenceError, LogClosedError, LogLockedError, OptionsError
from walkit.models import CrashingStorage
from walkit.replication import PeerError, Primary, Replica, RewindError, promote, rejoin, rewind
from walkit.segments.manifest_store import load_manifest
from walkit.state.snapshot import snapshot_lsns
from walkit.storage import FileStorage
from walkit.store import Store


@contextmanager
def diverged(folder: Path, old: Path, common: int = 60, more: int = 40) -> Iterator[tuple[Store, str]]:
    """Part two histories at `common`: the old primary appends `more`, the promoted one 20; serve the latter."""
    with (
        Store.open(old, options=SMALL) as store,
        Primary(store) as primary,
        Replica(folder / "new", primary.address, options=SMALL) as replica,
    ):
        replica.wait_for(put(store, common), 30)
        replica.stop()
        primary.stop()
        for claim in store.log.claims():  # the promoted one will not come back to it
            store.log.drop_claim(claim.name)
        put(store, more)
    promote(folder / "new")
    with Store.open(folder / "new", options=SMALL) as promoted, Primary(promoted) as serving:
        put(promoted, 20)
        yield promoted, serving.address


def test_the_old_primary_follows_the_new_one_after_a_rewind(tmp_path: Path) -> None:
    """Part two logs at LSN 60 and follow with `rewind`: the suffix is under lost+found, and the frames are equal."""
    with (
        diverged(tmp_path, tmp_path / "old") as (promoted, address),
        Replica(tmp_path / "old", address, options=SMALL, rewind=True) as replica,
    ):
        before = replica.log
        replica.wait_for(put(promoted, 30), 30)
        assert replica.store.items() == promoted.items()
        assert replica.error is None and replica.log is not before
        with pytest.raises(LogClosedError):
            before.read()
    old, new = (load_manifest(FileStorage(str(tmp_path / name))) for name in ("old", "new"))
    assert old.lineage == new.lineage[: len(old.lineage)] and len(old.lineage) == 3 and "replica" in old.extra
    kept = FileStorage(str(tmp_path / "old")).names("lost+found")
    assert kept and all(name.endswith(".rewound") for name in kept)
    assert bytes_of(FileStorage(str(tmp_path / "old"))) == bytes_of(FileStorage(str(tmp_path / "new")))
    assert walkit.verify(tmp_path / "old").ok


@pytest.mark.parametrize("more", [0, 5])
def test_a_promotion_without_records_is_taken_back_where_that_is_asked(tmp_path: Path, more: int) -> None:
    """Promote, write nothing, follow the old primary: refused; with `rewind` the epoch goes, and it follows at once."""
    followed(tmp_path / "old", tmp_path / "new")
    promote(tmp_path / "new")
    Store.open(tmp_path / "new", options=SMALL).close()
    events: list[dict[str, object]] = []
    with Store.open(tmp_path / "old", options=SMALL) as store, Primary(store) as primary:
        last = put(store, more) if more else store.log.acked_lsn
        with Replica(tmp_path / "new", primary.address, options=SMALL) as replica:
            until(lambda: isinstance(replica.error, DivergenceError), "the refusal")
        assert len(load_manifest(FileStorage(str(tmp_path / "new"))).lineage) == 2
        with Replica(
            tmp_path / "new",
            primary.address,
            options=SMALL,
            rewind=True,
            events=lambda name, about: events.append(dict(about)) if name.endswith("rewind") else None,
        ) as replica:
            until(lambda: replica.status().state == "streaming" and bool(events), "the contact")
            replica.wait_for(put(store, 1), 30)
            assert replica.error is None and replica.store.items() == store.items()
    assert [(event["end_lsn"], event["last_lsn"]) for event in events] == [(60, 60)]
    report = rewind(tmp_path / "new", last + 2)
    assert (report.bytes_cut, report.epochs_cut) == (0, 0)


def test_rejoin_makes_each_folder_one_that_follows(tmp_path: Path) -> None:
    """Compare folders with a new primary, first dry, then for good: the action is right, and then each follows."""
    with diverged(tmp_path, tmp_path / "old") as (promoted, address):
        storage = FileStorage(str(tmp_path / "new"))
        with Replica(tmp_path / "replica", address, options=SMALL) as replica:
            replica.wait_for(80, 30)
        for name in ("copy", "held", "trimmed"):
            shutil.copytree(tmp_path / "old", tmp_path / name)
        with Store.open(tmp_path / "trimmed", options=SMALL) as store:
            store.checkpoint()
        with Store.open(tmp_path / "other", options=SMALL) as store:
            put(store, 3)
        (tmp_path / "ahead").mkdir()
        with walkit.open(tmp_path / "new", mode="r"):
            walkit.copy(tmp_path / "new", tmp_path / "ahead" / "log")
        claim = walkit.claim(tmp_path / "held", "mailer", first_lsn=91)
        before = {name: bytes_of(FileStorage(str(tmp_path / name))) for name in ("old", "trimmed", "other")}
        actions = {"none": "follow", "replica": "follow", "old": "rewind", "trimmed": "anew"}
        for name, action in actions.items():
            report = rejoin(tmp_path / name, address, dry_run=True)
            assert (name, report.action, report.dry_run) == (name, action, True), str(report)
            assert str(report.location) in str(report)
        assert {name: bytes_of(FileStorage(str(tmp_path / name))) for name in before} == before
        with pytest.raises(RewindError) as held:
            rejoin(tmp_path / "held", address)
        assert held.value.reason == "held" and rejoin(tmp_path / "held", address, force=True).first_lsn == 61
        with pytest.raises(DivergenceError):
            claim.renew()
        with Store.open(tmp_path / "old", options=SMALL), pytest.raises(LogLockedError):
            rejoin(tmp_path / "old", address)
        for dry_run in (True, False):  # a wrong address: the folder stays
            with pytest.raises(RewindError, match="has another log") as foreign:
                rejoin(tmp_path / "other", address, force=True, dry_run=dry_run)
            assert foreign.value.reason == "foreign"
        assert bytes_of(FileStorage(str(tmp_path / "other"))) == before["other"]
        for name, action in actions.items():
            report = rejoin(tmp_path / name, address)
            assert (name, report.action) == (name, action)
            assert (action == "anew") == Path(report.kept).joinpath("manifest").exists()
            with Replica(tmp_path / name, address, options=SMALL) as replica:
                replica.wait_for(put(promoted, 5), 30)
                assert replica.store.items() == promoted.items()
    for name in ("old", "other"):
        with pytest.raises(PeerError):
            rejoin(tmp_path / name, address)
    with Primary(tmp_path / "ahead" / "log") as lagging:  # a copy of an earlier state
        report = rejoin(tmp_path / "new", lagging.address, force=True)
        assert (report.action, report.first_lsn) == ("rewind", 81)
        with Replica(storage, lagging.address, options=SMALL) as replica:
            until(lambda: replica.status().state == "streaming", "the contact")
            assert replica.log.durable_lsn == 80


def test_rejoin_of_a_log_that_parted_before_its_first_record(tmp_path: Path) -> None:
    """Promote a replica that had no record yet: the old primary's log is the same and all of it differs: put aside."""
    with Store.open(tmp_path / "old", options=SMALL) as store, Primary(store) as primary:
        with Replica(tmp_path / "new", primary.address, options=SMALL) as replica:
            until(lambda: replica.status().state == "streaming", "the contact")
        put(store, 5)
    promote(tmp_path / "new")
    with Store.open(tmp_path / "new", options=SMALL) as promoted, Primary(promoted) as serving:
        put(promoted, 3)
        report = rejoin(tmp_path / "old", serving.address)
        assert (report.action, report.first_lsn) == ("anew", 1) and not (tmp_path / "old").exists()


def test_without_being_asked_nothing_is_rewound(tmp_path: Path) -> None:
    """Follow a diverged log without `rewind`: DivergenceError, and all 100 records are still there."""
    with diverged(tmp_path, tmp_path / "old") as (_, address):
        with Replica(tmp_path / "old", address, options=SMALL) as replica:
            with pytest.raises(DivergenceError) as caught:
                replica.wait_for(200, 30)
            assert not isinstance(caught.value, RewindError)
            assert caught.value.first_lsn == 61 and lsns(replica.log.read()) == list(range(1, 101))
        for refused in ({"force_rewind": True}, {"rewind": 1}, {"new_identity": 1}, {"force_rewind": "no"}):
            with pytest.raises(OptionsError):
                Replica(tmp_path / "old", address, **refused)


def test_readers_past_the_common_point_forbid_a_rewind(tmp_path: Path) -> None:
    """Claim, and chain a replica, past LSN 60: refused with their names; forced, each of them notices it."""
    with diverged(tmp_path, tmp_path / "old") as (promoted, address):
        with Store.open(tmp_path / "old", options=SMALL) as store, Primary(store) as primary:
            with Replica(tmp_path / "chained", primary.address, options=SMALL) as chained:
                chained.wait_for(100, 30)
                # The primary keeps records for it by its acknowledgement.
                until(
                    lambda: [f.acked_lsn for f in primary.status().followers] == [100], "its acknowledgement"
                )
            claim = walkit.claim(tmp_path / "old", "mailer", first_lsn=91)
            behind = walkit.claim(tmp_path / "old", "early", first_lsn=40)
            store.log.cursor("done").advance(95)
        with Replica(tmp_path / "old", address, options=SMALL, rewind=True) as replica:
            with pytest.raises(RewindError) as caught:
                replica.wait_for(200, 30)
            assert caught.value.reason == "held" and "claim 'mailer'" in caught.value.readers
            assert any("replica" in name for name in caught.value.readers)
            assert not any("early" in name for name in caught.value.readers)
            assert replica.status().state == "failed"
            assert lsns(replica.log.read()) == list(range(1, 101))
        with Replica(tmp_path / "old", address, options=SMALL, rewind=True, force_rewind=True) as replica:
            replica.wait_for(put(promoted, 30), 30)
            assert replica.store.items() == promoted.items()
            with pytest.raises(DivergenceError):
                claim.renew()
            behind.renew()
            with walkit.open(tmp_path / "old", "r") as reader, pytest.raises(CursorDivergedError):
                reader.cursor("done")
            with Primary(replica.log) as second:
                chained = Replica(tmp_path / "chained", second.address, options=SMALL).start()
                with chained, pytest.raises(DivergenceError):
                    chained.wait_for(200, 30)
                with Replica(tmp_path / "chained", second.address, options=SMALL, rewind=True) as chained:
                    chained.wait_for(put(promoted, 1), 30)
                    assert chained.store.items() == promoted.items()


def test_a_trim_or_a_compaction_past_the_common_point_needs_a_bootstrap(tmp_path: Path) -> None:
    """Checkpoint, or compact, past LSN 60 at the old primary: RewindError "bootstrap", and nothing was changed."""
    with diverged(tmp_path, tmp_path / "old") as (_, address):
        shutil.copytree(tmp_path / "old", tmp_path / "compacted")
        with Store.open(tmp_path / "old", options=SMALL) as store:
            store.checkpoint()
        with Store.open(tmp_path / "compacted", options=SMALL) as store:
            store.checkpoint(trim=False)
            store.compact()
        for name in ("old", "compacted"):
            before = bytes_of(FileStorage(str(tmp_path / name)))
            with Replica(tmp_path / name, address, options=SMALL, rewind=True) as replica:
                with pytest.raises(RewindError) as caught:
                    replica.wait_for(200, 30)
                assert caught.value.reason == "bootstrap"
            assert bytes_of(FileStorage(str(tmp_path / name))) == before


def test_a_snapshot_past_the_common_point_goes_where_the_log_reaches_back(tmp_path: Path) -> None:
    """Checkpoint without a trim at LSN 100 and rewind to 60: the snapshot goes, and the state is that of LSN 60."""
    with diverged(tmp_path, tmp_path / "old"):
        with Store.open(tmp_path / "old", options=SMALL) as store:
            wanted = dict(store.state_at(60))
            store.checkpoint(trim=False)
        report = rewind(tmp_path / "old", 61)
        assert (report.end_lsn, report.last_lsn, report.snapshots_dropped) == (60, 100, (100,))
        assert rewind(tmp_path / "old", 61).bytes_kept == 0
        with Store.open(tmp_path / "old", options=SMALL) as store:
            assert dict(store.items()) == wanted
            assert store.put(b"k", b"v").last_lsn == 61


def test_another_log_and_an_open_one_are_not_rewound(tmp_path: Path) -> None:
    """Follow another log with `rewind`: "foreign"; rewind a log that is open: LogLockedError; nothing is changed."""
    with (
        Store.open(tmp_path / "other", options=SMALL) as other,
        Store.open(tmp_path / "log", options=SMALL) as store,
        Primary(store) as primary,
    ):
        put(other, 5)
        put(store, 5)
        with pytest.raises(LogLockedError):
            rewind(tmp_path / "other", 3)
        other.close()
        with Replica(tmp_path / "other", primary.address, options=SMALL, rewind=True) as replica:
            with pytest.raises(RewindError) as caught:
                replica.wait_for(10, 30)
            assert caught.value.reason == "foreign"
            assert lsns(replica.log.read()) == [1, 2, 3, 4, 5]


def test_a_power_cut_at_any_change_of_a_rewind(tmp_path: Path) -> None:
    """Cut the power before each change: each image opens to the state of LSN 30 or 50, and what went is kept."""
    base = CrashingStorage()
    with Store.open(storage=base, options=SMALL) as store:
        put(store, 50)
        old, wanted = dict(store.items()), dict(store.state_at(30))
        store.checkpoint(trim=False)
    film = Filmed(base.process_kill())
    film.running = True
    rewind(film, 31)
    film.take("the end")
    assert len(film.images) > 15
    seen = set()
    for moment, image in film.images:
        before = snapshot_lsns(image)
        assert walkit.verify(image).ok, moment
        with Store.open(storage=image, options=SMALL) as opened:
            seen.add(opened.applied_lsn)
            assert dict(opened.items()) == {30: wanted, 50: old}[opened.applied_lsn], (moment, before)
        if opened.applied_lsn == 30:
            assert image.names("lost+found"), moment
    assert seen == {30, 50}


def test_follow_rewinds_as_a_command(tmp_path: Path) -> None:
    """Run `walkit follow --rewind --checkpoint-every 10` on a diverged folder: it follows, and prints its LSN."""
    with diverged(tmp_path, tmp_path / "old") as (promoted, address):
        arguments = ("follow", address, str(tmp_path / "old"), "--rewind", "--checkpoint-every", "10")
        process = Process("-m", "walkit", *arguments)
        try:
            put(promoted, 5)
            follower = FileStorage(str(tmp_path / "old"))
            until(lambda: load_manifest(follower).checkpoint_lsn > 60, "a checkpoint of the new history")
        finally:
            assert process.end(signal.SIGINT) == 0
    assert load_manifest(follower).end.last_lsn == 85


def test_a_snapshot_below_the_common_point_stays(tmp_path: Path) -> None:
    """Rewind a replica with a snapshot below the common point: it opens with that one, and the tail up to there."""
    followed(tmp_path / "log", tmp_path / "replica")
    report = rewind(tmp_path / "replica", 46)
    assert (report.end_lsn, report.snapshots_dropped) == (45, ())
    replica = Replica(tmp_path / "replica", "127.0.0.1:1", options=SMALL)
    assert replica.store.applied_lsn == 45 and replica.store.snapshot_lsn == 30
    replica.stop()
    with (
        Store.open(tmp_path / "log", options=SMALL) as store,
        Primary(store) as primary,
        Replica(tmp_path / "replica", primary.address, options=SMALL) as replica,
    ):
        replica.wait_for(60, 30)
        assert replica.store.items() == store.items()
