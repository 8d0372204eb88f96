"""Admission and places: certificates and tokens of both kinds of readers, names and folders."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, quick
from tests.replication.certificates import Authority
from tests.replication.delta.test_reader import ReadOnly, expected
from tests.support.logs import tiny
from tests.support.threads import Task, wait_until
from walkit.errors import (
    ClaimError,
    CorruptionError,
    GapError,
    LogLockedError,
    OptionsError,
    StorageError,
    WalkitError,
)
from walkit.models import FaultyStorage
from walkit.replication import ClientTLS, DeltaReader, Primary, Replica, ServerTLS
from walkit.replication.delta import reader as delta_reader
from walkit.replication.logs.secret_file import read_private, write_private
from walkit.state.snapshot import snapshot_name
from walkit.storage import FileStorage

Sides = Callable[[Authority, Authority], tuple[ServerTLS | None, ClientTLS | None, dict[str, Any]]]
REFUSED: dict[str, tuple[Sides, str]] = {
    "an expired certificate": (lambda a, _: (a.server(days=-1), a.client(), {}), "expired"),
    "another host": (lambda a, _: (a.server("db.example"), a.client(), {}), "mismatch"),
    "another authority": (lambda a, b: (a.server(), b.client(), {}), "issuer"),
    "no certificate of its own": (lambda a, _: (a.server(client_ca=a.ca), a.client(), {}), "certificate"),
    "another client's certificate": (
        lambda a, b: (a.server(client_ca=a.ca), a.client(shows=b.issue("reader.example")), {}),
        "certificate",
    ),
    "an expired certificate of its own": (
        lambda a, _: (a.server(client_ca=a.ca), a.client(shows=a.issue("reader.example", days=-1)), {}),
        "certificate",
    ),
    "TLS at the primary alone": (lambda a, _: (a.server(), None, {}), "speaks TLS"),
    "TLS at the reader alone": (lambda a, _: (None, a.client(), {}), "speaks no TLS"),
    "another token": (lambda a, _: (a.server(), a.client(), {"token": "wrong"}), "token"),
    "no token": (lambda a, _: (a.server(), a.client(), {"token": None}), "token"),
}


@pytest.mark.parametrize("kind", [DeltaReader, Replica])
@pytest.mark.parametrize("name", REFUSED)
def test_a_stranger_is_refused_in_one_sentence_and_asks_no_more(
    stack: ExitStack, tmp_path: Path, ours: Authority, theirs: Authority, name: str, kind: type[Any]
) -> None:
    """Follow with a wrong certificate, name or token: an OptionsError of one line, no session, no further try."""
    sides, words = REFUSED[name]
    server, client, more = sides(ours, theirs)
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    log.append(b"secret", key=b"k")
    primary = stack.enter_context(Primary(log, tls=server, token="right"))
    given: dict[str, Any] = {"tls": client, "token": "right", "backoff": quick(), "insecure": True} | more
    place = tmp_path / ("log" if kind is DeltaReader else "replica")
    follower = stack.enter_context(kind(place, primary.address, **given))
    wait_until(lambda: follower.status().error is not None)
    with pytest.raises(OptionsError) as refused:
        follower.wait_for(2, WAIT_S)
    text = str(refused.value)
    assert words in text and text.isprintable() and "right" not in text.replace("right now", "")
    assert refused.value.option == ("token" if "token" in name else "tls")
    assert (follower.status().state == "failed" and kind is DeltaReader) or not list(follower.log.read())
    assert not primary.status().delta_readers and not primary.status().followers


def test_two_readers_of_one_name_do_not_share_it(stack: ExitStack, tmp_path: Path) -> None:
    """Begin readers with the name, and with the folder, of one that lives: typed errors, and the first one follows."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    place, own = tmp_path / "log", tmp_path / "own"
    first = stack.enter_context(DeltaReader(place, primary.address, claim="one", checkpoint=own))
    with pytest.raises(ClaimError):
        DeltaReader(place, primary.address, claim="one")
    with pytest.raises(ClaimError):
        DeltaReader(place, primary.address, claim="one", checkpoint=tmp_path / "other")
    with pytest.raises(LogLockedError):
        DeltaReader(place, primary.address, claim="two", checkpoint=own)
    assert [claim.name for claim in log.claims()] == ["one"]
    assert first.wait_for(log.append(b"1", key=b"k").last_lsn, WAIT_S) == 1
    other = stack.enter_context(
        DeltaReader(place, primary.address, claim="two", checkpoint=tmp_path / "other")
    )
    assert other.wait_for(1, WAIT_S) == 1


@pytest.mark.parametrize("how", ["trim", "compaction", "retention"])
def test_what_overtakes_a_reader_without_its_claim_is_an_error_or_no_loss(
    stack: ExitStack, tmp_path: Path, how: str
) -> None:
    """Let a claim's lease end, then drop the records that its reader needs next: GapError, or the log's state."""
    store = stack.enter_context(walkit.Store.open(tmp_path / "log", options=tiny()))
    primary = stack.enter_context(Primary(store))
    for n in range(20):
        store.put(b"%d" % n, bytes(100))
    reader = DeltaReader(tmp_path / "log", primary.address, lease_s=0.01, backoff=quick())
    for n in range(500):
        store.put(b"%d" % (n % 9), bytes(500))
    wait_until(lambda: "expired" in reader.status().claim)
    store.checkpoint(trim=how == "trim")
    if how == "compaction":
        store.compact()
    elif how == "retention":
        store.log.enforce_retention(walkit.Retention(records_max=10))
    assert store.log.first_lsn > 21 or how == "compaction"
    with reader:
        lsn = store.put(b"last", b"one").last_lsn
        try:
            reader.wait_for(lsn, WAIT_S)
        except GapError:
            assert reader.applied_lsn <= 20
        assert dict(reader.state.items()) in ({}, dict(store.items()))


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_jumps_costs_a_reader_nothing(
    stack: ExitStack, tmp_path: Path, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set the wall clock a day back, or forward, under readers of both paths: they follow as before."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    readers = [
        stack.enter_context(
            DeltaReader(tmp_path / "log", address, backoff=quick(), checkpoint=tmp_path / name)
        )
        for name, address in (("a", primary.address), ("b", "127.0.0.1:9"))
    ]
    right_ns, right_s = time.time_ns, time.time
    for turn in range(4):
        if turn == 1:
            monkeypatch.setattr(time, "time_ns", lambda: right_ns() + days * 86_400_000_000_000)
            monkeypatch.setattr(time, "time", lambda: right_s() + days * 86_400)
        lsn = log.append(b"%d" % turn, key=b"k").last_lsn
        for reader in readers:
            assert reader.wait_for(lsn, WAIT_S) == lsn
            assert reader.checkpoint() == lsn
    assert all(reader.error is None for reader in readers)


def test_a_claim_that_a_clock_has_ended_is_taken_again(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set the wall clock a day forward under a reader that idles: its claim counts again soon, as it stood."""
    monkeypatch.setattr(delta_reader, "CLAIM_S", 0.05)
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    log.append(b"1", key=b"k")
    reader = stack.enter_context(DeltaReader(tmp_path / "log", "127.0.0.1:9", backoff=quick()))
    reader.wait_for(1, WAIT_S)
    wait_until(lambda: reader.status().claim == "LSN 2 and later, held")
    right_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + 86_400_000_000_000)
    wait_until(lambda: reader.status().claim == "LSN 2 and later, held")
    assert log.claims()[0].counts


def test_a_checkpoint_that_takes_long_ends_no_claim(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a checkpoint hang: the claim is renewed meanwhile, as it was."""
    monkeypatch.setattr(delta_reader, "CLAIM_S", 0.05)
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    own = FaultyStorage(FileStorage(str(tmp_path / "own")))
    stack.enter_context(
        DeltaReader(tmp_path / "log", primary.address, checkpoint=own, checkpoint_s=0, lease_s=3)
    )
    hang = own.hang("sync", "*")
    stack.callback(hang.release)
    log.append(b"1", key=b"k")
    assert hang.entered.wait(WAIT_S)
    (before,) = log.claims()
    wait_until(lambda: log.claims()[0].lease_until_us != before.lease_until_us)
    assert log.claims()[0].first_lsn == before.first_lsn == 1


@pytest.mark.parametrize("operation", ["create", "write", "sync", "replace"])
def test_a_folder_of_checkpoints_that_cannot_be_written_is_said(
    stack: ExitStack, tmp_path: Path, operation: Any
) -> None:
    """Fail a folder of checkpoints while a reader runs: it follows, its status has the reason, its claim keeps all."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    own = FaultyStorage(FileStorage(str(tmp_path / "own")))
    reader = stack.enter_context(
        DeltaReader(tmp_path / "log", primary.address, checkpoint=own, checkpoint_s=0)
    )
    fault = own.fail(operation, "*", times=None, errno=errno.EROFS)
    lsn = log.append(b"1", key=b"k").last_lsn
    assert reader.wait_for(lsn, WAIT_S) == lsn
    wait_until(lambda: bool(reader.status().trouble))
    with pytest.raises(WalkitError):
        reader.checkpoint()
    assert reader.error is None and log.claims()[0].first_lsn == 1
    fault.cancel()
    assert reader.checkpoint() == lsn


def test_a_folder_of_checkpoints_that_can_only_be_read_is_refused(tmp_path: Path) -> None:
    """Begin with a folder that takes no lock: StorageError, and no claim is left."""
    walkit.open(tmp_path / "log").close()
    with pytest.raises(StorageError):
        DeltaReader(tmp_path / "log", "127.0.0.1:9", checkpoint=ReadOnly(str(tmp_path / "own")))
    with walkit.open(tmp_path / "log") as log:
        assert not log.claims()


@pytest.mark.parametrize("operation", ["create", "write", "sync", "replace", "sync_directory", "remove"])
def test_a_reader_killed_in_its_checkpoint_continues_from_one_that_is_whole(
    stack: ExitStack, tmp_path: Path, operation: Any
) -> None:
    """Copy the folder during each step of a checkpoint: a reader that starts there is right."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    own = FaultyStorage(FileStorage(str(tmp_path / "own")))
    with DeltaReader(tmp_path / "log", primary.address, checkpoint=own) as reader:
        for n in range(3):  # so that there is an older one to remove
            reader.wait_for(log.append(b"%d" % n, key=b"%d" % n).last_lsn, WAIT_S)
            if n < 2:
                reader.checkpoint()
        hang = own.hang(operation, "*")
        task = Task(reader.checkpoint)
        assert hang.entered.wait(WAIT_S)
        shutil.copytree(tmp_path / "own", tmp_path / "killed")
        hang.release()
        assert task.result() == 3
    with DeltaReader(
        tmp_path / "log", "127.0.0.1:9", checkpoint=tmp_path / "killed", backoff=quick()
    ) as again:
        assert again.status().checkpoint_lsn in (2, 3)
        assert again.wait_for(3, WAIT_S) == 3
        assert dict(again.state.items()) == expected(log, 3)


# -- the folder of checkpoints is its reader's alone


OWNER = "delta-reader"


@pytest.fixture
def log(stack: ExitStack, tmp_path: Path) -> walkit.WriteAheadLog:
    """A log with records, at which a reader has stopped with a checkpoint in "own"."""
    made = stack.enter_context(walkit.open(tmp_path / "log", options=tiny()))
    made.append_many([bytes(500)] * 50, [b"k"] * 50)
    with (
        Primary(made) as primary,
        DeltaReader(tmp_path / "log", primary.address, checkpoint=tmp_path / "own") as own,
    ):
        own.wait_for(50, WAIT_S)
    return made


def test_a_copied_checkpoint_has_a_claim_of_its_own(
    log: walkit.WriteAheadLog, stack: ExitStack, tmp_path: Path
) -> None:
    """Copy the folder, start a reader on each: two claims that do not move each other, and one event."""
    (before,) = log.claims()
    shutil.copytree(tmp_path / "own", tmp_path / "copy")
    events: list[tuple[str, dict[str, Any]]] = []
    address = stack.enter_context(Primary(log)).address

    def reader(name: str) -> DeltaReader:
        return DeltaReader(
            tmp_path / "log", address, checkpoint=tmp_path / name, events=lambda *what: events.append(what)
        )

    copy = reader("copy")
    assert [facts["owner"] for name, facts in events if name == "walkit.checkpoint.copied"] == [before.owner]
    stack.enter_context(copy).wait_for(log.append(b"v", key=b"k").last_lsn, WAIT_S)
    assert copy.checkpoint() == 51
    kept, other = sorted(log.claims(), key=lambda claim: claim.name != before.name)
    assert kept == before and other.owner != before.owner and other.first_lsn in (51, 52)
    with reader("own") as own:
        own.wait_for(51, WAIT_S)
        assert len(log.claims()) == 2
    copy.stop()
    names = {claim.name for claim in log.claims()}
    events.clear()
    for name in ("own", "copy"):  # each continues as what it is by now
        with reader(name) as again:
            again.wait_for(51, WAIT_S)
    assert not events and {claim.name for claim in log.claims()} == names


def test_a_renamed_checkpoint_continues_with_its_claim(
    log: walkit.WriteAheadLog, stack: ExitStack, tmp_path: Path
) -> None:
    """Rename the folder and start a reader on it: the claim is the same one."""
    (before,) = log.claims()
    (tmp_path / "own").rename(tmp_path / "moved")
    address = stack.enter_context(Primary(log)).address
    with DeltaReader(tmp_path / "log", address, checkpoint=tmp_path / "moved") as again:
        again.wait_for(50, WAIT_S)
    (after,) = log.claims()
    assert (after.name, after.owner) == (before.name, before.owner)


@pytest.mark.parametrize("how", ["moved", "replaced", "copied back", "removed"])
def test_a_reader_writes_no_checkpoint_into_another_folder(
    log: walkit.WriteAheadLog, stack: ExitStack, tmp_path: Path, how: str
) -> None:
    """Take the folder of a living reader away: its checkpoints go with it, and nothing is written to another."""
    own = tmp_path / "own"
    address = stack.enter_context(Primary(log)).address
    reader = stack.enter_context(DeltaReader(tmp_path / "log", address, checkpoint=own, checkpoint_s=1000))
    own.rename(tmp_path / "away")
    if how == "replaced":
        other = stack.enter_context(DeltaReader(tmp_path / "log", address, checkpoint=own))
        assert other.wait_for(50, WAIT_S) == 50
        other.stop()
    elif how == "copied back":
        shutil.copytree(tmp_path / "away", own)
    elif how == "removed":
        shutil.rmtree(tmp_path / "away")
    there = sorted(own.iterdir()) if own.exists() else None
    reader.wait_for(log.append(b"v", key=b"k").last_lsn, WAIT_S)
    if how == "removed":
        with pytest.raises(StorageError):
            reader.checkpoint()
    else:
        assert reader.checkpoint() == 51 and (tmp_path / "away" / snapshot_name(51)).exists()
    assert there == (sorted(own.iterdir()) if own.exists() else None)


def test_a_private_file_knows_its_number(tmp_path: Path) -> None:
    """Write a numbered file: a rename keeps it, a copy is one; what has no number, or wrong ones, is said so."""
    storage = FileStorage(tmp_path)
    write_private(storage, OWNER, {"a": 1})
    (tmp_path / OWNER).rename(tmp_path / "kept")
    (tmp_path / "kept").rename(tmp_path / OWNER)
    found = read_private(storage, OWNER)
    assert found is not None and found.facts["a"] == 1 and not found.is_copy and found.written == found.found
    shutil.copy(tmp_path / OWNER, tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / OWNER)
    copied = read_private(storage, OWNER)
    assert copied is not None and copied.is_copy
    write_private(storage, OWNER, {"device": None, "inode": None})
    plain = read_private(storage, OWNER)
    assert plain is not None and plain.written is None and not plain.is_copy
    for wrong in ({"inode": "x", "device": 1}, {"inode": 1, "device": None}):
        write_private(storage, OWNER, wrong)
        with pytest.raises(CorruptionError):
            read_private(storage, OWNER)
