"""A file that is absent or shorter than the space that was reserved for it: no crash does that, all readers tell it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.crash_recorder import Filmed
from tests.support.crashes import SMALL, Script
from tests.support.logs import lsns, tiny
from walkit.errors import CorruptionError, SegmentMissingError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME
from walkit.format.segment import SegmentHeader
from walkit.models import CrashingStorage
from walkit.segments.manifest_store import DURABLE_NAME, load_manifest

OPTIONS = tiny(segment_bytes=128 * 1024)


def killed(records: int, size: int = 900, **options: Any) -> CrashingStorage:
    """A log in use after a power cut: all of its frames, and no durable slot."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=replace(OPTIONS, **options))
    for n in range(records):
        log.append(b"%d" % n + bytes(size))
    log.wait_idle()
    image = storage.crash(keep="all")
    log.close()
    if DURABLE_NAME in image.names():
        image.remove(DURABLE_NAME)
    return image


def cut(image: CrashingStorage, name: str, size: int | None) -> None:
    """Cut a file short, or remove it, durably."""
    if size is None:
        image.remove(name)
        image.sync_directory()
        return
    file = image.open(name, "write")
    file.shorten(size)
    file.sync()
    file.close()


def last_used(image: CrashingStorage) -> tuple[str, SegmentHeader, int]:
    """Name, header and size of the last segment with a header."""
    for record in reversed(load_manifest(image).unsealed):
        file = image.open(record.name, "read")
        header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
        if header is not None:
            return record.name, header, file.size()
    raise AssertionError("no segment is in use")


CUTS: dict[str, Callable[[int, int], int | None]] = {
    "one byte": lambda end, size: size - 1,
    "to the end of the last frame": lambda end, size: end,
    "the last frame": lambda end, size: end - 1024,
    "within the last frame": lambda end, size: end - 500,
    "several frames": lambda end, size: end - 20 * 1024,
    "all frames": lambda end, size: SEGMENT_HEADER_BYTES,
    "within the header": lambda end, size: 1000,
    "everything": lambda end, size: 0,
    "the file": lambda end, size: None,
}


@pytest.mark.parametrize("where", CUTS)
def test_a_cut_of_the_last_file_is_refused(where: str) -> None:
    """Cut the last file of a killed log at each kind of place, its cell lost: opening, reading, verifying report it."""
    image = killed(60)
    with walkit.open(storage=image.process_kill(), mode="r") as reader:
        assert lsns(reader.read()) == list(range(1, 61))
    name, header, size = last_used(image)
    end = header.offset_of(60 * 1024)
    cut(image, name, CUTS[where](end, size))
    with pytest.raises(SegmentMissingError) as refused:
        walkit.open(storage=image, options=OPTIONS)
    error = refused.value
    assert (error.segment, error.expected, error.found) == (name, size, CUTS[where](end, size))
    first_lost = {"the last frame": 60, "within the last frame": 60, "several frames": 41}.get(where, 61)
    if where in ("all frames", "within the header", "everything", "the file"):
        first_lost = header.first_lsn
    assert ("is missing" in str(error)) == (where == "the file")
    assert error.first_lost_lsn == first_lost
    with walkit.open(storage=image, mode="r") as reader, pytest.raises(SegmentMissingError):
        list(reader.read())
    for tool in (walkit.scan, walkit.verify):
        report = tool(image)
        assert not report.ok and [type(p.error) for p in report.problems] == [SegmentMissingError]
        assert report.problems[0].segment == name


@pytest.mark.parametrize("where", CUTS)
def test_salvage_keeps_the_rest_and_reports_a_possible_loss(where: str) -> None:
    """Salvage the same cuts: every whole frame is read, a lost range follows, and nothing is needed twice."""
    image = killed(60)
    name, header, size = last_used(image)
    end = header.offset_of(60 * 1024)
    cut(image, name, CUTS[where](end, size))
    dry = walkit.repair(image, policy="salvage", dry_run=True)
    report = walkit.repair(image, policy="salvage")
    assert (dry.lost, dry.end_position) == (report.lost, report.end_position)
    (lost,) = report.lost
    detail = "is missing" if where == "the file" else "cut short"
    assert not report.ok and lost.segment == name and detail in lost.reason and lost.lsns == 0
    left = lost.first_lsn - 1
    assert left == {"the last frame": 59, "within the last frame": 59, "several frames": 40}.get(
        where, header.first_lsn - 1 if (CUTS[where](end, size) or 0) <= SEGMENT_HEADER_BYTES else 60
    )
    again = walkit.repair(image, policy="salvage")
    assert again.ok and not again.changed
    with walkit.open(storage=image, options=OPTIONS) as log:
        assert lsns(log.read()) == list(range(1, left + 1))
        assert log.append(b"next").first_lsn == left + 1
    assert walkit.verify(image).ok


@pytest.mark.parametrize("records", [50, 90])
def test_short_files_of_a_writer_or_recovery_are_not_cut_short(records: int) -> None:
    """Cut space without frames: a spare that was never used, and the end of a file that the next one follows."""
    image = killed(records)
    manifest = load_manifest(image)
    name, _, _ = last_used(image)
    spares = [r for r in manifest.unsealed if r.name > name]
    assert len(spares) == (records == 90), "the next segment is made from the middle of one on"
    for record in spares:
        cut(image, record.name, SEGMENT_HEADER_BYTES)
    with walkit.open(storage=image.process_kill(), options=OPTIONS) as log:
        assert lsns(log.read()) == list(range(1, records + 1))


def test_a_segment_followed_by_the_log_may_be_short() -> None:
    """Crash between the seal's manifest, lost, and the next segment: the unused end of a full file is not missed."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=OPTIONS)
    log.parts.segments.maintenance.submit = lambda *_: None  # type: ignore[method-assign]
    for n in range(80):
        log.append(b"%d" % n + bytes(2100))
    image = storage.crash(keep="all")
    log.close()
    if DURABLE_NAME in image.names():
        image.remove(DURABLE_NAME)
    first, second = load_manifest(image).unsealed
    file = image.open(second.name, "read")
    header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), second.name)
    assert header is not None
    end = SEGMENT_HEADER_BYTES + header.previous_end
    assert end < first.reserved_bytes
    cut(image, first.name, end)
    assert walkit.verify(image).ok
    with walkit.open(storage=image.process_kill(), options=OPTIONS) as again:
        assert lsns(again.read()) == list(range(1, 81))
    cut(image, first.name, end - 64)
    assert not walkit.verify(image).ok
    with pytest.raises(CorruptionError):
        walkit.open(storage=image, options=OPTIONS)


def test_the_reserved_size_is_durable_before_the_manifest_names_it() -> None:
    """Cut the power at each operation while segments are made, keeping nothing unsynced: no file is short of it."""
    storage = Filmed(CrashingStorage())
    storage.running = True
    log = walkit.open(storage=storage, options=replace(SMALL, segment_bytes=2 << 20))
    Script().run(log, lambda: None, 20)
    log.close()
    named = 0
    for _, image in storage.images:
        if "manifest" not in image.names():
            continue
        for record in load_manifest(image).unsealed:
            named += 1
            assert image.open(record.name, "read").size() >= record.reserved_bytes == 2 << 20
        walkit.open(storage=image, options=SMALL).close()
    assert named > 5


def test_a_storage_that_cannot_reserve_records_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the file system refuse to reserve: the file is grown instead, its size is recorded, and a cut is seen."""

    def refused(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    with walkit.open(tmp_path / "log", options=OPTIONS) as log:
        log.append(b"1")
        record = load_manifest(log.parts.storage).unsealed[0]
        assert record.reserved_bytes == OPTIONS.segment_bytes
        shutil.copytree(tmp_path / "log", tmp_path / "killed")
    (tmp_path / "killed" / DURABLE_NAME).unlink()
    os.truncate(tmp_path / "killed" / record.name, SEGMENT_HEADER_BYTES)
    with pytest.raises(SegmentMissingError):
        walkit.open(tmp_path / "killed")


def test_an_unknown_size_is_not_reported() -> None:
    """Rebuild the manifest from the headers, which do not hold the reserved size: a short file is then a torn tail."""
    image = killed(60)
    name, header, _ = last_used(image)
    cut(image, name, header.offset_of(60 * 1024) - 500)
    image.remove(MANIFEST_NAME)
    report = walkit.repair(image)
    assert (report.last_lsn, report.manifest_rebuilt) == (59, True)
    assert any("cut short" in note for note in report.notes)
