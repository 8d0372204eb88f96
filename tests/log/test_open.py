"""Opening: modes, places, refusals and their reasons; and that a refusal changes nothing."""

from __future__ import annotations

import os
import stat
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.logs import tiny, values
from walkit import LogOptions, record
from walkit.errors import (
    CorruptionError,
    LogExistsError,
    LogNotFoundError,
    NotALogError,
    OptionsError,
    StorageError,
)
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import ManifestFile
from walkit.format.segment import SegmentHeader
from walkit.log import log_parts
from walkit.log import open as open_module
from walkit.models import CrashingStorage
from walkit.models.wrapper import PassingFile, PassingStorage
from walkit.segments.manifest_store import load_manifest
from walkit.storage import FileStorage
from walkit.storage.interface import Buffer, OpenMode, Storage, StorageFile


def everything(folder: Path) -> dict[str, bytes | None]:
    """Return each file's bytes, and None for folders, below a folder."""
    return {
        str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes() for p in sorted(folder.rglob("*"))
    }


def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that takes the path of every folder that is listed from now on."""
    listed: list[str] = []
    scandir = os.scandir

    def noted(path: str | int) -> Any:
        listed.append(os.readlink(f"/dev/fd/{path}") if isinstance(path, int) else path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noted)
    return listed


def test_modes(tmp_path: Path) -> None:
    """Open a missing and a present log in each mode: "a" makes or opens, "x" only makes, "r" only reads."""
    path = tmp_path / "deep" / "down" / "log"
    with pytest.raises(LogNotFoundError) as missing:
        walkit.open(path, mode="r")
    assert isinstance(missing.value, FileNotFoundError) and missing.value.path == str(path)
    assert not path.exists()
    with walkit.open(path, mode="x") as log:
        assert log.recovery.verdict == "created" and log.append(b"1").first_lsn == 1
    with pytest.raises(LogExistsError) as exists:
        walkit.open(path, mode="x")
    assert isinstance(exists.value, FileExistsError) and exists.value.path == str(path)
    with walkit.open(path) as log:
        assert log.recovery.verdict == "clean" and log.append(b"2").first_lsn == 2
    with walkit.open(path, "r") as reader:
        assert values(reader.read()) == [b"1", b"2"]


@pytest.mark.parametrize(
    "field", ["log_id", "epoch", "epoch_id", "number", "start_position", "first_lsn", "manifest_generation"]
)
def test_a_sealed_segment_is_that_of_the_manifest(tmp_path: Path, field: str) -> None:
    """Change one number in the header of a sealed segment, with a right checksum: opening and verify refuse it."""
    with walkit.open(tmp_path / "log", options=tiny()) as log:
        for _ in range(40):
            log.append(bytes(1000))
    first = log.parts.manifest_store.current.sealed[0]
    segment = tmp_path / "log" / first.name
    data = segment.read_bytes()
    header = SegmentHeader.decode(data)
    assert header is not None
    step = {"start_position": 64, "manifest_generation": 1 << 20}.get(field, 1)
    changed = replace(header, **{field: getattr(header, field) + step})
    segment.write_bytes(changed.encode() + data[SEGMENT_HEADER_BYTES:])
    before = everything(tmp_path)
    with pytest.raises(CorruptionError) as refused:
        walkit.open(tmp_path / "log")
    assert refused.value.segment == first.name and everything(tmp_path) == before
    assert first.name in {problem.segment for problem in walkit.verify(tmp_path / "log").problems}
    segment.write_bytes(data)
    walkit.open(tmp_path / "log").close()


def test_an_opening_that_writes_nothing_makes_no_segment(tmp_path: Path) -> None:
    """Open and close an empty and a filled log ten times: no segment and no epoch is added."""
    for _ in range(3):
        with walkit.open(tmp_path / "log"):
            pass
    assert sorted(os.listdir(tmp_path / "log")) == ["claims.lock", "durable", "lock", "manifest"]
    with walkit.open(tmp_path / "log") as log:
        log.append(b"1")
    files = sorted(os.listdir(tmp_path / "log"))
    for _ in range(3):
        with walkit.open(tmp_path / "log") as log:
            assert log.acked_lsn == 1
    assert sorted(os.listdir(tmp_path / "log")) == files
    assert len(log.parts.manifest_store.current.lineage) == 1


def test_a_log_made_by_another_thread_meanwhile_is_not_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another caller make the log between the look and the lock: mode "x" still only makes new ones."""
    storage = CrashingStorage()
    look = open_module._require_a_log

    def and_then_somebody_is_quicker(place: Any, mode: str, owner: Any) -> ManifestFile | None:
        existed = look(place, mode, owner)
        if mode == "x":
            with walkit.open(storage=storage) as quicker:
                quicker.append(b"theirs")
        return existed

    monkeypatch.setattr(open_module, "_require_a_log", and_then_somebody_is_quicker)
    with pytest.raises(LogExistsError):
        walkit.open(storage=storage, mode="x")
    with walkit.open(storage=storage) as log:
        assert values(log.read()) == [b"theirs"]


def test_a_file_is_not_a_log(tmp_path: Path) -> None:
    """Open a file in every mode: NotALogError, and the file stays as it is."""
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    for mode in ("a", "x", "r"):
        with pytest.raises(NotALogError, match="a log is a folder") as refused:
            walkit.open(path, mode=mode)
        assert refused.value.path == str(path)
    assert everything(tmp_path) == {"file": b"mine"}
    with pytest.raises((NotALogError, StorageError)):
        walkit.open(path / "below")
    assert everything(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "folder/inner.bin", "durable.bak", "manifest.old"])
def test_a_folder_of_other_things_is_not_a_log(tmp_path: Path, name: str) -> None:
    """Open a folder with a foreign file in every mode: NotALogError, and nothing is added or changed."""
    folder = tmp_path / "folder"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_bytes(b"mine")
    before = everything(tmp_path)
    for mode in ("a", "x", "r"):
        with pytest.raises(NotALogError, match="Nothing was changed"):
            walkit.open(folder, mode=mode)
    assert everything(tmp_path) == before


def test_a_tree_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the root of a tree in every mode, and with every tool: refused; no folder below the first is listed."""
    (tmp_path / "tree" / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "deep" / "file").write_bytes(b"mine")
    before = everything(tmp_path)
    listed = listings(monkeypatch)
    attempts: list[Callable[[Path], object]] = [walkit.scan, walkit.verify]
    attempts += [partial(walkit.open, mode=mode) for mode in ("a", "x", "r")]
    for attempt in attempts:
        with pytest.raises(NotALogError, match="sub/"):
            attempt(tmp_path / "tree")
    monkeypatch.undo()
    assert set(listed) == {str(tmp_path / "tree")} and everything(tmp_path) == before
    (tmp_path / "tree" / "sub").rename(tmp_path / "tree" / "lost+found")
    with pytest.raises(NotALogError, match=r"lost\+found"):
        walkit.open(tmp_path / "tree")


def test_a_log_above_a_tree_is_opened_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a tree beside the segments of a log: no opening, reading, scan or verification lists its files."""
    with walkit.open(tmp_path) as log:
        log.append(b"1")
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / f"{9:020d}.segment").write_bytes(b"not of the log")
    listed = listings(monkeypatch)
    with walkit.open(tmp_path) as log:
        assert values(log.read()) == values(walkit.open(tmp_path, mode="r").read()) == [b"1"]
    assert walkit.scan(tmp_path).ok
    notes = walkit.verify(tmp_path).notes
    monkeypatch.undo()
    assert any("tree/" in note for note in notes)
    assert set(listed) == {str(tmp_path)}


def test_a_folder_with_a_foreign_manifest_is_not_a_log(tmp_path: Path) -> None:
    """Open a folder whose file "manifest" is something else: NotALogError, nothing changed."""
    (tmp_path / "manifest").write_text("name: something else\n")
    for mode in ("a", "r"):
        with pytest.raises(NotALogError, match="magic"):
            walkit.open(tmp_path, mode=mode)
    assert everything(tmp_path) == {"manifest": b"name: something else\n"}


def test_an_empty_folder_becomes_a_log(tmp_path: Path) -> None:
    """Open an empty folder, with and without the leftovers of an opening that was cut short: a new log."""
    for leftovers in ([], ["lock"], ["lock", "durable", "manifest.new"]):
        folder = tmp_path / f"log{len(leftovers)}"
        folder.mkdir()
        for name in leftovers:
            (folder / name).write_bytes(b"")
        with pytest.raises(LogNotFoundError):
            walkit.open(folder, mode="r")
        with walkit.open(folder) as log:
            assert log.append(b"1").first_lsn == 1


def test_segments_without_a_manifest_are_corruption_not_a_new_log(tmp_path: Path) -> None:
    """Remove the manifest of a log: refused in every mode, and the segments stay."""
    with walkit.open(tmp_path / "log") as log:
        log.append(b"1")
    (tmp_path / "log" / "manifest").unlink()
    before = everything(tmp_path)
    for mode in ("a", "x", "r"):
        with pytest.raises(CorruptionError, match="no manifest"):
            walkit.open(tmp_path / "log", mode=mode)
    assert everything(tmp_path) == before


def test_places(tmp_path: Path) -> None:
    """Open by path, PathLike, file:// and storage: the same log; by memory://: one per name and process."""
    with walkit.open(str(tmp_path / "log")) as log:
        log.append(b"1")
        assert log.location == str(tmp_path / "log")
    for place in (tmp_path / "log", f"file://{tmp_path}/log"):
        with walkit.open(place) as log:
            assert values(log.read()) == [b"1"]
    with walkit.open(storage=FileStorage(tmp_path / "log")) as log:
        assert values(log.read()) == [b"1"]
    with walkit.open("memory://tests-of-places") as log:
        log.append(b"in memory")
        with walkit.open("memory://tests-of-places", mode="r") as reader:
            assert values(reader.read()) == [b"in memory"]
    with walkit.open("memory://tests-of-places") as log:
        assert values(log.read()) == [b"in memory"]
    with walkit.open("memory://another-of-places") as log:
        assert list(log.read()) == []


def test_a_path_is_the_one_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open a relative path and one with a tilde, then change the folder: the log stays at its first place."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with walkit.open("~/log") as log:
        assert log.location == str(tmp_path / "log")
    monkeypatch.chdir(tmp_path)
    with walkit.open("log", options=tiny()) as log:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        log.append_many([bytes(7000)] * 20)
    assert os.listdir(tmp_path / "elsewhere") == []
    with walkit.open(tmp_path / "log") as log:
        assert log.acked_lsn == 20


@pytest.mark.parametrize(
    ("named", "option"),
    [
        ({}, "path"),
        ({"path": "a", "storage": CrashingStorage()}, "path"),
        ({"path": ""}, "path"),
        ({"path": "http://host/log"}, "path"),
        ({"path": 7}, "path"),
        ({"path": b"/bytes"}, "path"),
        ({"path": "log", "mode": "w"}, "mode"),
        ({"path": "log", "mode": None}, "mode"),
        ({"path": "log", "options": {"durability": "none"}}, "options"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, Any], option: str
) -> None:
    """Open with wrong arguments: OptionsError that names the option and its value, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionsError, match=f"{option}=") as wrong:
        walkit.open(**named)
    assert isinstance(wrong.value, ValueError)
    assert (wrong.value.option, wrong.value.wanted) == (option, named.get(option))
    assert os.listdir(tmp_path) == []


def test_opened_lists_what_is_open_oldest_first() -> None:
    """Open three and close one: the others are listed in the order of their opening."""
    before = walkit.open_logs()
    logs = [walkit.open(storage=CrashingStorage()) for _ in range(3)]
    assert walkit.open_logs() == [*before, *logs]
    logs[1].close()
    assert walkit.open_logs() == [*before, logs[0], logs[2]]
    logs[0].close()
    logs[2].close()
    assert walkit.open_logs() == before


def test_progress_and_report_of_an_opening() -> None:
    """Reopen a killed log with a progress callback: bytes grow to the total, the report has timed phases."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append_many([bytes(3000)] * 50)
        image = storage.process_kill()
    seen: list[tuple[int, int]] = []
    with walkit.open(
        storage=image, options=tiny(), progress=lambda done, total: seen.append((done, total))
    ) as log:
        report = log.recovery
    assert seen and all(done <= total for done, total in seen)
    assert (report.verdict, report.next_lsn, report.cuts) == ("recovered", 51, ())
    assert [p.name for p in report.phases] == ["open", "scan", "verify", "apply", "ready"]
    assert report.duration_s > 0 and "recovered" in report._repr_html_()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """Open below a folder without permission: StorageError with the errno, nothing made."""
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(StorageError) as refused:
            walkit.open(tmp_path / "log")
        assert refused.value.errno == 13
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_opening_starts_no_thread_before_it_is_needed() -> None:
    """Open, append, read and close on one thread, marks and the watch over writes off: no other thread is started."""
    options = LogOptions(idle_marker_ms=0, write_timeout_ms=None)
    with walkit.open(storage=CrashingStorage(), options=options) as log:
        log.append(b"1")
        assert values(log.read()) == [b"1"]
        assert not [t for t in threading.enumerate() if t.name.startswith("walkit-")]


class CountedFile(PassingFile):
    """A file that counts the bytes that are read of it."""

    def __init__(self, inner: StorageFile, counts: list[int]) -> None:
        super().__init__(inner)
        self.counts = counts

    def read(self, offset: int, size: int) -> bytes:
        """See `StorageFile`."""
        self.counts.append(size)
        return self.inner.read(offset, size)

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """See `StorageFile`."""
        self.inner.write(offset, buffers, sync=sync)

    def sync(self) -> None:
        """See `StorageFile`."""
        self.inner.sync()


class CountedStorage(PassingStorage):
    """A storage that counts the bytes read of sealed segments."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.sealed = {record.name for record in load_manifest(inner).sealed}
        self.counts: list[int] = []

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """See `Storage`."""
        file = super().open(name, mode)
        return CountedFile(file, self.counts) if name in self.sealed else file


# Slow: a log of 64 MiB; 100 segments show the same growth.
@pytest.mark.parametrize("segments", [1, 100, pytest.param(1000, marks=pytest.mark.slow)])
def test_an_opening_reads_the_header_of_each_sealed_segment_and_no_more(segments: int) -> None:
    """Count the reads of sealed segments as a log opens, and the memory of verifying it: both have a bound for each."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=tiny(frame_bytes_max=61_440)) as log:
        for _ in range(segments):
            log.append(bytes(60_000))
    counted = CountedStorage(storage)
    assert len(counted.sealed) == segments
    walkit.open(storage=counted).close()
    assert counted.counts == [SEGMENT_HEADER_BYTES] * segments
    tracemalloc.start()
    try:
        assert walkit.verify(storage).ok
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (8 << 20) + 16_384 * segments


def test_frames_have_the_time_of_the_wall_clock_though_a_core_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hold the opening for 50 ms between its first readings of both clocks: frames are not dated back."""
    held = iter([0.05])

    def wall_us() -> int:
        found = record.wall_us()
        time.sleep(next(held, 0.0))
        return found

    monkeypatch.setattr(log_parts, "wall_us", wall_us)
    began_us = record.wall_us()
    assert log_parts.commit_clock().us() >= began_us + 50_000
