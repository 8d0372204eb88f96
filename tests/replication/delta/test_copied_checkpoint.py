"""The checkpoint folder of a delta reader is its reader's alone: a copy is another reader's, a renamed one not."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.logs import tiny
from walkit.errors import CorruptionError, StorageError
from walkit.replication import DeltaReader, Primary
from walkit.replication.logs.private_file import read_private, write_private
from walkit.state.snapshot import snapshot_name
from walkit.storage import FileStorage

WAIT_S = 30.0
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
