"""Salvage of folders that hold several histories: each record can be reached, in the log or in a branch beside it."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.logs import TINY
from tests.support.mixed_folders import (
    MIXED,
    Mixed,
    Rows,
    add_segments,
    appended,
    branch_within_a_segment,
    foreign_manifest_and_slot,
    number_from,
    old_manifest,
    renamed_under_its_writer,
    rows_of,
    three_histories,
    two_epochs_branch,
    written,
)
from walkit.errors import CorruptionError, StorageError, WalkitError
from walkit.format.manifest import MANIFEST_NAME
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import OperationName
from walkit.recovery import repair
from walkit.segments.manifest_store import DURABLE_NAME
from walkit.storage import Storage
from walkit.storage.address import Place, storage_at


def reached(*folders: str | Path) -> set[tuple[int, bytes]]:
    """Return (LSN, value) of every record that these logs give."""
    return {row for folder in folders for row in rows_of(folder).items()}


def kept_files(root: Path) -> list[bytes]:
    """Return the bytes of every segment below a folder, those under lost+found included, without zeros at the end."""
    paths = [p for p in root.rglob("*") if ".segment" in p.name and p.is_file()]
    return [p.read_bytes().rstrip(b"\0") for p in paths]


@pytest.mark.parametrize("make", MIXED, ids=lambda make: make.__name__)
def test_every_history_in_a_folder_can_be_read(make: Callable[[Path], Mixed], tmp_path: Path) -> None:
    """Salvage each mixed folder, dry, for real and again: each acknowledged record is in a log that opens."""
    mixed = make(tmp_path)
    folder = mixed.folder
    files = kept_files(folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    dry = walkit.repair(folder, policy="salvage", dry_run=True)
    assert before == {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    assert not list(tmp_path.glob("orders.branch-*"))
    done = walkit.repair(folder, policy="salvage")
    assert rows_of(folder) == mixed.log and done.last_lsn == max(mixed.log)
    assert not done.lost and done.unaccounted_lsns in (0, min(mixed.log) - 1)
    assert done.ok is (not done.unaccounted_lsns and not done.foreign_manifest)
    assert done.foreign_manifest is (make is foreign_manifest_and_slot)
    logs = [folder, *(Path(b.location) for b in done.branches)]
    assert sorted(logs[1:]) == sorted(tmp_path.glob("orders.branch-*"))
    for other in mixed.others:
        assert set(other.items()) <= reached(*logs)
    for branch, planned in zip(done.branches, dry.branches, strict=True):
        rows = rows_of(branch.location)
        assert (branch.first_lsn, branch.last_lsn) == (min(rows), max(rows)) and not branch.lost
        assert branch.location == planned.location and branch.last_lsn == planned.last_lsn
        assert {lsn for lsn, value in rows.items() if mixed.log.get(lsn) == value} == set(
            range(min(rows), branch.shared_lsn + 1)
        )
        assert str(branch.last_lsn) in str(done) and branch.location in str(done)
    for file in files:
        assert any(kept.startswith(file) or (file.startswith(kept) and kept) for kept in kept_files(tmp_path))
    again = walkit.repair(folder, policy="salvage")
    assert (again.changed, again.branches) == (False, ())
    for log in logs:
        assert walkit.verify(log).ok
        with walkit.open(log, options=TINY) as opened:
            assert opened.append(b"next").first_lsn == max(rows_of(log))


@pytest.mark.parametrize("make", [two_epochs_branch, three_histories, branch_within_a_segment])
def test_other_policies_refuse_several_histories(make: Callable[[Path], Mixed], tmp_path: Path) -> None:
    """Repair a folder without a manifest that holds branches by each other policy: refused, and nothing is changed."""
    folder = make(tmp_path).folder
    before = sorted((p.name, p.read_bytes()) for p in folder.iterdir() if p.is_file() and p.name != "lock")
    for policy in ("prefix", "holes", "absolute"):
        with pytest.raises(CorruptionError, match="histories"):
            walkit.repair(folder, policy=policy)
    assert before == sorted(
        (p.name, p.read_bytes()) for p in folder.iterdir() if p.is_file() and p.name != "lock"
    )


@pytest.mark.parametrize("policy", ["prefix", "salvage"])
@pytest.mark.parametrize("make", [renamed_under_its_writer, old_manifest])
def test_an_opening_makes_no_branches_and_names_the_tool(
    make: Callable[[Path], Mixed], policy: Any, tmp_path: Path
) -> None:
    """Open a folder with two histories: refused by each policy, salvage too, and no log is made beside it."""
    folder = make(tmp_path).folder
    names = sorted(tmp_path.rglob("*"))
    with pytest.raises(CorruptionError, match="walkit repair --policy salvage"):
        walkit.open(folder, options=walkit.LogOptions(recovery=policy))
    assert {path.name for path in {*tmp_path.rglob("*")} - {*names}} <= {"lock"}


def test_a_place_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    """Salvage a branch whose place another log has: that one stays as it is, and the branch has a number more."""
    mixed = two_epochs_branch(tmp_path)
    rows = written(tmp_path / "orders.branch-2", "another", 3)
    (tmp_path / "orders.branch-2.1").write_bytes(b"a file")
    (branch,) = walkit.repair(mixed.folder, policy="salvage").branches
    assert branch.location.endswith("orders.branch-2.2") and rows_of(branch.location) == mixed.others[0]
    assert rows_of(tmp_path / "orders.branch-2") == rows


OPERATIONS: tuple[OperationName, ...] = (
    *("write", "synced_write", "sync", "shorten", "create", "replace", "remove", "sync_directory"),
)
CHANGES = ("os.rename", "os.remove", "os.truncate", "os.mkdir")


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Do this in a child that exits at its change of this number to a folder; False if it made fewer."""
    child = os.fork()
    if not child:
        changes = count(1)

        def watch(event: str, args: tuple[Any, ...]) -> None:
            created = event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT
            if (event in CHANGES or created) and next(changes) == number:
                os._exit(9)

        sys.addaudithook(watch)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def everything(root: Path) -> dict[str, Rows | bytes]:
    """Return the records of each log in a folder, and the bytes of its other files that must not differ."""
    found: dict[str, Rows | bytes] = {}
    for log in sorted(p.parent for p in root.rglob(MANIFEST_NAME) if p.parent.name != "lost+found"):
        found[str(log.relative_to(root))] = rows_of(log)
    for path in (p for p in root.rglob("*") if p.is_file() and ".segment" in p.name):
        found[str(path.relative_to(root))] = path.read_bytes()
    return found


def killed_salvages(make: Callable[[Path], Mixed], tmp_path: Path, step: int) -> int:
    """Kill a salvage at each `step`th change to a folder, and repeat it; return after how many it was through."""
    origin, whole, root = tmp_path / "origin", tmp_path / "whole", tmp_path / "killed"
    origin.mkdir()
    shutil.copytree(make(origin).folder, tmp_path / "mixed")
    shutil.copytree(tmp_path / "mixed", whole / "orders")
    walkit.repair(whole / "orders", policy="salvage")
    wanted = everything(whole)

    def salvage() -> object:
        return walkit.repair(root / "orders", policy="salvage")

    for number in count(1, step):
        shutil.copytree(tmp_path / "mixed", root / "orders")
        killed = killed_at(number, salvage)
        salvage()
        found = everything(root)
        assert found == wanted, f"killed at change {number}: {set(found) ^ set(wanted)}"
        shutil.rmtree(root)
        if not killed:
            return number
    raise AssertionError


def test_salvage_killed_at_a_change_continues(tmp_path: Path) -> None:
    """Kill a salvage at every fifth change to a folder, and repeat it: all files are as without the kill."""
    assert killed_salvages(branch_within_a_segment, tmp_path, 5) > 20


class Beside:
    """The storages of the branches of one log in memory, by the end of their location."""

    def __init__(self) -> None:
        self.storages: dict[str, FaultyStorage] = {}

    def at(self, place: object) -> FaultyStorage:
        """Return the storage at this place, the same one each time."""
        return self.storages.setdefault(str(place).partition(".")[2], FaultyStorage(CrashingStorage()))

    def opened(self, place: Place) -> Storage:
        """Stand in for `storage_at`: a storage is itself, a location is that of a branch."""
        return self.at(place) if isinstance(place, str) else storage_at(place)

    def after_a_power_cut(self) -> Beside:
        """Return the rest of them."""
        left = Beside()
        left.storages = {suffix: FaultyStorage(cut(storage)) for suffix, storage in self.storages.items()}
        return left


def cut(storage: FaultyStorage) -> CrashingStorage:
    """Return a storage after a power cut: synced bytes, and nothing else."""
    assert isinstance(storage.inner, CrashingStorage)
    return storage.inner.crash(keep="none")


def in_memory(folder: Path) -> CrashingStorage:
    """Return a storage in memory with the files of a folder, all of them durable."""
    storage = CrashingStorage()
    storage.create()
    for path in (p for p in folder.iterdir() if p.is_file()):
        file = storage.open(path.name, "create")
        file.write(0, [path.read_bytes()])
        file.sync()
        file.close()
    storage.sync_directory()
    return storage


def test_salvage_survives_a_power_cut_at_each_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail every second operation on the log and the branch, cut the power, salvage again: every record is read."""
    mixed = branch_within_a_segment(tmp_path)
    wanted = {*mixed.log.items(), *mixed.others[0].items()}
    image, cuts = in_memory(mixed.folder), 0
    for name, on_branch in product(OPERATIONS, (False, True)):
        for nth in count(1, 2):
            storage, beside = FaultyStorage(image.process_kill()), Beside()
            monkeypatch.setattr(repair, "storage_at", beside.opened)
            fault = (beside.at(".branch-2") if on_branch else storage).fail(name, nth=nth, times=1)
            with suppress(StorageError):
                walkit.repair(storage, policy="salvage")
            if not fault.hits:
                break
            cuts += 1
            after, left = cut(storage), beside.after_a_power_cut()
            monkeypatch.setattr(repair, "storage_at", left.opened)
            walkit.repair(after, policy="salvage")
            found = set()
            logs: list[Storage] = [after, *left.storages.values()]
            for log in logs:
                with walkit.open(log, mode="r") as reader:
                    found |= {(r.lsn, bytes(r.value or b"")) for r in reader.read()}
            assert found == wanted, f"{name} {nth}, {'branch' if on_branch else 'log'}"
    assert cuts > 10


@pytest.mark.slow  # some 120 salvages in children of their own, each with all its syncs
@pytest.mark.parametrize(
    "make", [renamed_under_its_writer, three_histories, branch_within_a_segment, old_manifest]
)
def test_salvage_killed_at_each_of_its_changes_continues(
    make: Callable[[Path], Mixed], tmp_path: Path
) -> None:
    """Kill a salvage of each mixed folder at each change to a folder, and repeat it: all files are as without."""
    killed_salvages(make, tmp_path, 1)


def test_a_folder_renamed_under_its_writer_loses_nothing(tmp_path: Path) -> None:
    """Rename a writer's folder, write another log at its path, go on with the first: salvage reaches every record."""
    folder, moved = tmp_path / "orders", tmp_path / "orders.old"
    log = walkit.open(folder, options=TINY)
    ours = appended(log, "a", 60)
    folder.rename(moved)
    theirs = written(folder, "b", 45)
    with suppress(WalkitError):
        ours |= appended(log, "a", 150)
    with suppress(WalkitError):
        log.close()
    reports = [walkit.repair(path, policy="salvage") for path in (folder, moved)]
    found = reached(folder, moved, *(b.location for report in reports for b in report.branches))
    assert rows_of(folder) == theirs
    assert set(theirs.items()) | set(ours.items()) <= found


def test_a_segment_from_lost_and_found_can_be_read(tmp_path: Path) -> None:
    """Open a folder with a segment of another log, which goes to lost+found: alone in a folder, repair reads it."""
    folder, other = tmp_path / "orders", tmp_path / "other"
    written(folder, "a", 30)
    written(other, "b", 1)
    number_from(other, 70)
    written(other, "b", 20)
    (path,) = other.glob("*70.segment")
    shutil.copy(path, folder / path.name)
    written(folder, "a", 1)
    (tmp_path / "found").mkdir()
    shutil.copy(folder / "lost+found" / path.name, tmp_path / "found" / path.name)
    walkit.repair(tmp_path / "found")
    found, wanted = rows_of(tmp_path / "found"), rows_of(other)
    assert found and found == {lsn: wanted[lsn] for lsn in found} and max(found) == max(wanted)


def mixed_at_random(root: Path, draw: random.Random) -> set[tuple[int, bytes]]:
    """Let two writers continue from a copy of a log in use, mix their files; return all that was acknowledged."""
    folder, copied = root / "orders", root / "copied"
    acknowledged = set()
    with walkit.open(folder, options=TINY) as log:
        acknowledged |= set(appended(log, "a", draw.randrange(120)).items())
        log.wait_idle()  # no file is being replaced while they are copied
        shutil.copytree(folder, copied)
        number_from(copied, 500)
        with walkit.open(copied, options=TINY) as other:
            for _ in range(draw.randint(1, 4)):
                acknowledged |= set(appended(other, "b", draw.randrange(90)).items())
                acknowledged |= set(appended(log, "a", draw.randrange(90)).items())
    add_segments(folder, copied)
    for name in (MANIFEST_NAME, DURABLE_NAME):
        how = draw.choice(("kept", "replaced", "removed"))
        if how == "replaced":
            shutil.copy(copied / name, folder / name)
        elif how == "removed":
            (folder / name).unlink()
    return acknowledged


def _salvage_drawn_mixtures(numbers: range, tmp_path: Path) -> None:
    for number in numbers:
        root = tmp_path / str(number)
        root.mkdir()
        acknowledged = mixed_at_random(root, random.Random(number))
        for name in ("orders", "copied"):
            report = walkit.repair(root / name, policy="salvage")
            assert not report.lost, f"{number}: {report}"
        logs = [path for path in root.iterdir() if path.is_dir()]
        assert all(walkit.verify(log).ok for log in logs), number
        missing = acknowledged - reached(*logs)
        assert not missing, f"{number}: {sorted(lsn for lsn, _ in missing)}"
        shutil.rmtree(root)


def test_some_drawn_mixtures_lose_nothing(tmp_path: Path) -> None:
    """Mix the files of a log and of a copy that was written on, by chance, and salvage: each record can be read."""
    _salvage_drawn_mixtures(range(2), tmp_path)


@pytest.mark.slow  # two writers with all their syncs for each of 100 mixtures
def test_many_drawn_mixtures_lose_nothing(tmp_path: Path) -> None:
    """Do the same with 100 mixtures."""
    _salvage_drawn_mixtures(range(2, 102), tmp_path)
