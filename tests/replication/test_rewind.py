"""Rewind: a diverged suffix is cut off where that was asked for, and refused where somebody has read it."""

from __future__ import annotations

import errno
import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import walkit
from tests.replication.blocking_callers import quick, until
from tests.replication.processes import Command
from tests.replication.test_replica_checkpoint import put
from tests.support.crash_recorder import Filmed
from tests.support.imports import bytes_of, frames_of
from tests.support.logs import lsns
from tests.support.stores import SMALL
from walkit.cli import main
from walkit.errors import (
    CursorDivergedError,
    DivergenceError,
    LogClosedError,
    LogLockedError,
    LogNotFoundError,
    OptionsError,
)
from walkit.models import CrashingStorage, FaultyStorage
from walkit.replication import PeerError, Primary, Replica, RewindError, promote, rejoin, rewind
from walkit.segments.manifest_store import load_manifest
from walkit.state.snapshot import snapshot_lsns
from walkit.storage import FileStorage, Storage
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


def test_a_promotion_without_records_is_taken_back_where_that_is_asked(tmp_path: Path) -> None:
    """Promote, write nothing, follow the old primary: refused; with `rewind` the epoch goes, and it follows at once."""
    followed(tmp_path / "old", tmp_path / "new")
    promote(tmp_path / "new")
    Store.open(tmp_path / "new", options=SMALL).close()
    events: list[dict[str, object]] = []
    with Store.open(tmp_path / "old", options=SMALL) as store, Primary(store) as primary:
        last = put(store, 5)
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
    assert rewind(film, 31).snapshots_dropped == (50,)
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
        process = Command(*arguments)
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


# -- promotion


def followed(path: Path, replica: Path | Storage, count: int = 60) -> None:
    """Make a store with so many records, and a replica of it that has a snapshot in the middle."""
    with (
        Store.open(path, options=SMALL) as store,
        Primary(store) as primary,
        Replica(replica, primary.address, options=SMALL) as following,
    ):
        following.wait_for(put(store, count // 2), 30)
        following.checkpoint()
        following.wait_for(put(store, count - count // 2), 30)


def test_a_promoted_replica_is_written_on_and_the_old_primary_is_refused(tmp_path: Path) -> None:
    """Promote, append on both sides, follow the new primary by a replica and by the old log: the latter diverges."""
    followed(tmp_path / "old", tmp_path / "new")
    report = promote(tmp_path / "new")
    assert (report.first_lsn, report.already) == (61, False)
    again = promote(tmp_path / "new")
    assert again.already and (again.epoch, again.first_lsn) == (report.epoch, 61)
    with Store.open(tmp_path / "old", options=SMALL) as old:
        put(old, 5)
    with Store.open(tmp_path / "new", options=SMALL) as store, Primary(store) as primary:
        assert store.put(b"new", b"value").last_lsn == 61
        with Replica(tmp_path / "old", primary.address) as refused, pytest.raises(DivergenceError) as caught:
            refused.wait_for(100, 30)
        assert caught.value.first_lsn == 61
        walkit.copy(tmp_path / "new", tmp_path / "next")
        with Replica(tmp_path / "next", primary.address) as following:
            following.wait_for(store.put(b"more", b"value").last_lsn, 30)
            assert following.store.items() == store.items()
    assert walkit.verify(tmp_path / "new").ok


def test_a_log_or_a_running_replica_is_not_promoted(tmp_path: Path) -> None:
    """Promote nothing, a log, and a replica that runs: typed errors, and the manifest is as it was."""
    with pytest.raises(LogNotFoundError):
        promote(tmp_path / "nothing")
    walkit.open(tmp_path / "log").close()
    before = load_manifest(FileStorage(str(tmp_path / "log")))
    with pytest.raises(OptionsError):
        promote(tmp_path / "log")
    assert load_manifest(FileStorage(str(tmp_path / "log"))) == before
    followed(tmp_path / "old", tmp_path / "new")
    with Replica(tmp_path / "new", "127.0.0.1:1"):
        with pytest.raises(LogLockedError):
            promote(tmp_path / "new")
        assert "replica" in load_manifest(FileStorage(str(tmp_path / "new"))).extra


def test_the_command_says_that_the_old_primary_is_not_fenced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run `walkit promote` on a replica, as text and as JSON, and on a log: 0, 0 and 2."""
    followed(tmp_path / "old", tmp_path / "new")
    assert main(["promote", str(tmp_path / "new")]) == 0
    assert "not fenced" in capsys.readouterr().out
    assert main(["promote", str(tmp_path / "new"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["already"] and said["old_primary_fenced"] is False and said["first_lsn"] == 61
    assert main(["promote", str(tmp_path / "old")]) == 2


def test_a_power_cut_at_any_change_leaves_a_replica_or_a_promoted_one() -> None:
    """Cut the power before each change of a promotion: the next one gives the same LSN, and a log with all records."""
    base = CrashingStorage()
    with Store.open(storage=CrashingStorage(), options=SMALL) as store, Primary(store) as primary:
        with Replica(base, primary.address, options=SMALL) as replica:
            replica.wait_for(put(store, 20), 30)
        items = store.items()
    film = Filmed(base.process_kill(), every_way=True)
    film.running = True
    promote(film)
    film.take("the end")
    assert len(film.images) > 10
    for moment, image in film.images:
        assert promote(image).first_lsn == 21, moment
        with Store.open(storage=image, options=SMALL) as opened:
            assert opened.items() == items, moment


def marked(path: Path) -> tuple[Path, Path]:
    """Two replicas with the same 30 records of one log; the second one has the mark of an idle primary, too."""
    short, long = path / "short", path / "long"
    with (
        Store.open(path / "old", options=replace(SMALL, idle_marker_ms=1)) as store,
        Primary(store) as primary,
        Replica(long, primary.address, options=SMALL) as replica,
    ):
        replica.wait_for(put(store, 30), 30)
        until(lambda: frames_of(FileStorage(str(long)))[-1][1].records == 0, "the mark")
    shutil.copytree(long, short)
    assert rewind(short, 31).end_lsn == 30
    ends = [load_manifest(FileStorage(str(folder))).end for folder in (short, long)]
    assert ends[0].last_lsn == ends[1].last_lsn == 30 and ends[0].position < ends[1].position
    return short, long


def test_replicas_with_the_same_records_follow_whichever_is_promoted(tmp_path: Path) -> None:
    """Promote one without its primary's marks: one that has them, and the old log, cut no record and follow on."""
    short, long = marked(tmp_path)
    promote(short)
    events: list[tuple[str, dict[str, object]]] = []
    with Store.open(short, options=SMALL) as store, Primary(store) as primary:
        last = put(store, 5)
        for folder in (long, tmp_path / "old"):
            with Replica(
                folder,
                primary.address,
                options=SMALL,
                events=lambda name, about: events.append((name, dict(about))),
            ) as replica:
                replica.wait_for(last, 30)
                assert replica.store.items() == store.items()
    until(lambda: [name for name, _ in events].count("walkit.replica.rewind") == 2, "the events")
    cuts = [about for name, about in events if name == "walkit.replica.rewind"]
    assert [(cut["end_lsn"], cut["last_lsn"]) for cut in cuts] == [(30, 30)] * 2
    assert walkit.verify(long).ok and walkit.verify(tmp_path / "old").ok


def test_no_record_goes_without_being_asked(tmp_path: Path) -> None:
    """Give the longer replica's log one record more: DivergenceError, and the record is still there."""
    short, long = marked(tmp_path)
    with (
        Store.open(tmp_path / "old", options=SMALL) as store,
        Primary(store) as primary,
        Replica(long, primary.address, options=SMALL) as replica,
    ):
        replica.wait_for(put(store, 1), 30)
    promote(short)
    with Store.open(short, options=SMALL) as store, Primary(store) as primary:
        with (
            Replica(long, primary.address, options=SMALL) as replica,
            pytest.raises(DivergenceError) as caught,
        ):
            replica.wait_for(put(store, 5) + 1, 30)
        assert caught.value.first_lsn == 31
        with Replica(long, primary.address, options=SMALL) as replica:
            assert lsns(replica.log.read())[-1] == 31
    with pytest.raises(RewindError) as refused:
        rewind(long, 31, records=False)
    assert refused.value.reason == "records"


# -- a replica that serves replicas of its own


def test_a_primary_of_a_replica_outlives_its_logs(tmp_path: Path, stack: ExitStack) -> None:
    """Serve a replica before its first contact, over a bootstrap, a failed storage and a rewind: the last follows."""
    storage = FaultyStorage(FileStorage(str(tmp_path / "middle")))
    store = stack.enter_context(Store.open(tmp_path / "log", options=SMALL))
    primary = stack.enter_context(Primary(store))
    put(store, 50)
    store.checkpoint()
    middle = Replica(storage, primary.address, options=SMALL, backoff=quick())
    second = stack.enter_context(Primary(middle))
    last = stack.enter_context(Replica(tmp_path / "last", second.address, options=SMALL, backoff=quick()))
    until(lambda: last.status().reason == "absent", "the refusal")
    assert second.status().state == "absent"
    stack.enter_context(middle)
    last.wait_for(put(store, 10), 30)
    assert second.status().state == "serving"
    fault = storage.fail("synced_write", "*.segment", times=None, errno=errno.EIO)
    result = put(store, 10)
    until(lambda: middle.status().state == "absent", "the failed storage")
    fault.cancel()
    last.wait_for(result, 30)
    assert last.store.items() == store.items()
    promoted, address = stack.enter_context(diverged(tmp_path, tmp_path / "old"))
    middle = Replica(tmp_path / "old", address, options=SMALL, rewind=True, force_rewind=True)
    third = stack.enter_context(Primary(middle))
    last = Replica(tmp_path / "end", third.address, options=SMALL, rewind=True, backoff=quick())
    stack.enter_context(last).wait_for(100, 30)
    stack.enter_context(middle)
    until(lambda: last.log.durable_lsn == 80, "the rewind of both")  # of 100
    last.wait_for(put(promoted, 30), 30)
    assert last.store.items() == promoted.items() and third.status().state == "serving"
    of_the_log = stack.enter_context(Primary(middle.log))
    middle.stop()
    assert third.status().state == of_the_log.status().state == "closed"


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    """Serve a replica without a log, and give wrong options of a rewind: typed errors."""
    with Replica(tmp_path / "replica", "127.0.0.1:1") as replica, pytest.raises(LogNotFoundError):
        Primary(replica.log)
    for refused in ({"force_rewind": True}, {"rewind": 1}, {"new_identity": 1}, {"force_rewind": "no"}):
        with pytest.raises(OptionsError):
            Replica(tmp_path / "other", "127.0.0.1:1", **refused)
