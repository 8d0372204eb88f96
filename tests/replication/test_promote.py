"""Promotion: a replica's folder becomes a log that is written on, once, and the old primary is another history."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import walkit
from tests.replication.blocking_callers import until
from tests.replication.test_replica_checkpoint import put
from tests.support.crash_recorder import Filmed
from tests.support.imports import frames_of
from tests.support.logs import lsns
from tests.support.stores import SMALL
from walkit.cli import main
from walkit.errors import DivergenceError, LogLockedError, LogNotFoundError, OptionsError
from walkit.models import CrashingStorage
from walkit.replication import Primary, Replica, RewindError, promote, rewind
from walkit.segments.manifest_store import load_manifest
from walkit.storage import FileStorage, Storage
from walkit.store import Store


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


def test_a_promoted_replica_diverges_before_its_first_record(tmp_path: Path) -> None:
    """Promote and append nothing, append to the old primary: the promoted folder no longer follows it."""
    followed(tmp_path / "old", tmp_path / "new")
    promote(tmp_path / "new")
    with Store.open(tmp_path / "old", options=SMALL) as store, Primary(store) as primary:
        put(store, 5)
        with Replica(tmp_path / "new", primary.address) as refused, pytest.raises(DivergenceError):
            refused.wait_for(65, 30)


def test_chained_replicas_continue_with_the_promoted_one(tmp_path: Path) -> None:
    """Promote the middle of three: the last one continues with it, under its own identity, and has all its records."""
    followed(tmp_path / "old", tmp_path / "middle")
    with (
        Replica(tmp_path / "middle", "127.0.0.1:1", options=SMALL) as middle,
        Primary(middle.log) as second,
    ):
        walkit.copy(tmp_path / "middle", tmp_path / "last")
        with Replica(tmp_path / "last", second.address) as last:
            until(lambda: last.status().state == "streaming", "the contact")
            address = second.address
            second.stop()
            middle.stop()
            promote(tmp_path / "middle")
            with Store.open(tmp_path / "middle", options=SMALL) as store, Primary(store, address):
                last.wait_for(put(store, 10), 30)
                assert last.store.items() == store.items()


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
