"""Pages that the device does not read: salvage gives up only their records, all else refuses with the reason."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

import walkit
from tests.recovery.damage_corpus import OPTIONS, Case, Files, files_in, load_bases
from tests.support.logs import tiny
from walkit.errors import StorageError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage
from walkit.models.faults import FaultyStorage, Operation

T = TypeVar("T")
PAGE_BYTES = 4096
STRAY = segment_name(1000)


class BadPages(FaultyStorage):
    """A storage on which bytes of one file cannot be read, until another file takes its name."""

    def __init__(self, inner: CrashingStorage, name: str, pages: range) -> None:
        super().__init__(inner)
        self.bad_name, self.pages = name, pages

    def perform(self, operation: Operation, act: Callable[[], T], **more: object) -> T:
        """Refuse a read that touches the bad bytes."""
        start, end = operation.offset, operation.offset + operation.size
        touched = start < self.pages.stop and end > self.pages.start
        if operation.name == "read" and operation.file == self.bad_name and touched:
            raise StorageError("unreadable page", errno=5, name=operation.file)
        done = super().perform(operation, act, **more)  # type: ignore[arg-type]
        if operation.name == "replace" and operation.file == self.bad_name:
            self.pages = range(0)
        return done


@dataclass(frozen=True, kw_only=True)
class Bad:
    """One unreadable page of a log, and the loss of a salvage."""

    name: str
    base: str = "killed"
    segment: int = -1
    """Index of the segment among those of the base."""
    page: int = 0
    stray: bool = False
    """Whether it is in a file that the manifest does not name: a copy of the segment, which prefix sets aside."""
    loses: bool = False
    """Whether records go."""
    refused: bool = True
    """Whether policy prefix refuses the log; it does not read the frames of sealed segments."""


BAD = (
    Bad(name="space that no frame has used", page=12),
    Bad(name="space after the last frame", page=4),
    Bad(name="the header of the open segment", page=0),
    Bad(name="a page of frames of the open segment", page=1, loses=True),
    Bad(name="the header of a sealed segment", segment=0, page=0),
    Bad(name="a page of frames of a sealed segment", segment=0, page=3, loses=True, refused=False),
    Bad(name="the only frame", base="one record", page=1, loses=True),
    Bad(name="unused space of a replica", base="imported, killed", page=15),
    Bad(name="unused space before the next segment", base="completion, holes over a rotation", segment=0, page=15),
    Bad(name="frames in flight, and unused space", base="frames in flight", page=9),
    Bad(name="the end of a stray file", segment=0, page=9, stray=True, refused=False),
)  # fmt: skip


def _rows(log: walkit.WriteAheadLog | walkit.LogReader) -> dict[int, bytes | None]:
    with log:
        return {r.lsn: r.value for r in log.read()}


def _opened(storage: FaultyStorage | CrashingStorage, policy: str) -> dict[int, bytes | None]:
    options = walkit.LogOptions(**OPTIONS, recovery=policy)  # type: ignore[arg-type]
    return _rows(walkit.open(storage=storage, options=options))


def _made(bad: Bad) -> tuple[Files, str, dict[int, bytes | None]]:
    """Return a log's files, the name of the one with the bad page, and the records of a salvage without damage."""
    files = dict(load_bases()[bad.base].files)
    name = sorted(n for n in files if n.endswith(".segment"))[bad.segment]
    if bad.stray:
        files[STRAY], name = files[name], STRAY
    return files, name, _opened(Case(0, bad.base, [], files).image(), "salvage")


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_salvage_abandons_only_unreadable_records(bad: Bad) -> None:
    """Make one page unreadable and salvage: the other records stay, also for who opens again on the bad device."""
    files, name, rows = _made(bad)
    storage = BadPages(
        Case(0, bad.base, [], files).image(), name, range(bad.page * PAGE_BYTES, (bad.page + 1) * PAGE_BYTES)
    )
    kept = _opened(storage, "salvage")
    assert kept.items() <= rows.items()
    assert (kept != rows) is bad.loses
    assert len(rows) - len(kept) <= 3
    for again in ("salvage", "prefix"):
        assert _opened(storage, again) == kept
    assert walkit.verify(storage).ok
    assert not walkit.repair(storage, policy="salvage").changed


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_verify_and_opening_agree_on_an_unreadable_page(bad: Bad) -> None:
    """Make one page unreadable: prefix refuses, nothing is changed, and verify has a problem; not of a stray file."""
    files, name, rows = _made(bad)
    image = Case(0, bad.base, [], files).image()
    storage = BadPages(image, name, range(bad.page * PAGE_BYTES, (bad.page + 1) * PAGE_BYTES))
    assert walkit.verify(storage).ok is bad.stray
    if bad.refused:
        with pytest.raises(StorageError):
            _opened(storage, "prefix")
        assert files_in(image) == files
    elif bad.stray:
        assert _opened(storage, "prefix") == rows
        assert f"lost+found/{STRAY}" in image.names("lost+found")


@pytest.mark.parametrize("where", ["the tail", "a stray file", "beside a damaged header"])
def test_what_is_kept_of_a_huge_file_costs_no_memory(tmp_path: Path, where: str) -> None:
    """Grow a file to a terabyte with a byte at its end, and recover: some megabytes do, and the byte is kept."""
    path = tmp_path / "log"
    with walkit.open(path, options=tiny()) as log:
        log.append_many([b"here"] * 5)
    (segment,) = path.glob("*.segment")
    target = segment if where != "a stray file" else path / STRAY
    if where == "beside a damaged header":
        with open(segment, "r+b") as file:
            file.write(b"damaged")
    try:
        with open(target, "ab") as file:
            os.truncate(target, (1 << 40) - 1)
            file.seek(0, os.SEEK_END)
            file.write(b"x")
    except OSError as error:
        pytest.skip(f"the file system has no file of that size: {error}")
    tracemalloc.start()
    try:
        policy = "salvage" if where == "beside a damaged header" else "prefix"
        log = walkit.open(path, options=tiny(recovery=policy))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    with log:
        assert [r.value for r in log.read()] == [b"here"] * 5
    assert peak < 32 << 20
    (kept,) = [p for p in (path / "lost+found").iterdir() if not p.name.endswith(".header")]
    assert kept.stat().st_size >= (1 << 40) - (1 << 20) and kept.stat().st_blocks * 512 < 1 << 20
    with open(kept, "rb") as file:
        file.seek(-1, os.SEEK_END)
        assert file.read() == b"x"
    assert segment.stat().st_size < SEGMENT_HEADER_BYTES + (1 << 20)


def test_an_unreadable_kept_file_is_kept_again() -> None:
    """Make a tail under lost+found unreadable, and cut the same tail once more: it is kept under another name."""
    files, name, rows = _made(Bad(name="a torn tail", base="killed, without its durable slot"))
    data = bytearray(files[name])
    used = len(bytes(data).rstrip(b"\0"))
    data[used - 10] ^= 1
    files[name] = bytes(data)
    image = Case(0, "", [], files).image()
    kept = _opened(image, "prefix")
    assert kept.items() < rows.items()
    (tail,) = (n for n in files_in(image) if n.startswith("lost+found/"))
    again = Case(0, "", [], files | {tail: files_in(image)[tail]}).image()
    assert _opened(BadPages(again, tail, range(PAGE_BYTES)), "prefix") == kept
    assert {n for n in files_in(again) if n.startswith("lost+found/")} == {tail, f"{tail}.1"}


def test_a_lost_and_found_other_than_a_folder_is_a_note(tmp_path: Path) -> None:
    """Replace lost+found by a link to itself: verify notes that it cannot be listed, and is ok."""
    path = tmp_path / "log"
    with walkit.open(path, options=tiny()) as log:
        log.append(b"here")
    (path / "lost+found").symlink_to("lost+found")
    report = walkit.verify(path)
    assert report.ok and any("could not be listed" in note for note in report.notes)
