"""The Inspector without a browser: a log down to its bytes, never changed, and what may not be looked at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

import walkit
from tests.views.waiting import until
from walkit.views import Shell
from walkit.views.background_jobs import Job, JobCancelledError
from walkit.views.frame_pages import (
    PAGE_FRAMES,
    find_key,
    find_lsn,
    find_time,
    frame_around,
    page_before,
    page_from,
)
from walkit.views.log_outline import outline_of
from walkit.views.page import make_shell
from walkit.views.page_inspector import InspectorPage

OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=8 * 1024, idle_marker_ms=0)
RECORDS = 900


def fill(log: walkit.WriteAheadLog) -> None:
    """Write records with 50 keys in turn, a frame each, over several segments."""
    for number in range(1, RECORDS + 1):
        log.append(b"value %d" % number, key=b"k%d" % (number % 50))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a closed log of several segments."""
    folder = tmp_path_factory.mktemp("root") / "log"
    with walkit.open(folder, options=replace(OPTIONS, durability="none")) as log:
        fill(log)
    return folder


@pytest.fixture
def log(written: Path, tmp_path: Path) -> Path:
    """A copy of the log, below a data root of its own."""
    return Path(shutil.copytree(written, tmp_path / "log"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def segment_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.segment"))


def inspector(shell: Shell, query: str = "") -> InspectorPage:
    shell.read_url(f"?page=inspector{query}")
    assert isinstance(shell.page, InspectorPage)
    return shell.page


def read(page: InspectorPage) -> None:
    """Wait until the page has read what it was asked for."""
    until(page, lambda: not page.looking.busy)


def test_pages_of_frames_join_forwards_and_backwards(log: Path) -> None:
    """Every page of every segment, walked on and back: each frame once, in order, as many as the manifest says."""
    outline = outline_of(log)
    assert outline.state == "closed"
    assert (outline.first_lsn, outline.last_lsn) == (1, RECORDS)
    job = Job("test")
    for line in outline.segments:
        pages, at = [], 0
        while True:
            pages.append(page_from(outline, line, at, job))
            if pages[-1].next_position is None:
                break
            at = pages[-1].next_position
        items = [item for page in pages for item in page.items]
        assert len(items) == line.frames
        assert all(a.end_position == b.position for a, b in pairwise(items))
        for page in pages[1:]:
            before = page_before(outline, line, page.first_position, job)
            assert before.items == tuple(items[items.index(page.items[0]) - PAGE_FRAMES :][:PAGE_FRAMES])


@pytest.mark.parametrize("lsn", [1, 2, 450, RECORDS])
def test_a_record_is_found_by_its_lsn(log: Path, lsn: int) -> None:
    """The frame that is found holds the record, and any byte in it leads to the same frame."""
    outline, job = outline_of(log), Job("test")
    position = find_lsn(outline, lsn, job)
    view = frame_around(outline, position, job)
    assert view.intact
    assert [(r.lsn, r.value) for r in view.records] == [(lsn, b"value %d" % lsn)]
    assert view.header is not None
    for inside in (position + 1, view.header.end_position - 1):
        assert frame_around(outline, inside, job).position == position


@pytest.mark.parametrize(
    ("find", "detail"),
    [
        (lambda o, j: find_lsn(o, RECORDS + 1, j), "lsn=901: no frame has it: LSN 1 to 900 can be read"),
        (lambda o, j: frame_around(o, 10**15, j), "no segment has it; they reach from 0"),
        (lambda o, j: find_time(o, datetime.now(UTC) + timedelta(days=1), j), "no frame was sealed"),
    ],
    ids=["lsn", "position", "time"],
)
def test_a_missing_target_is_an_error_with_the_range(
    log: Path, find: Callable[[object, Job], object], detail: str
) -> None:
    """Beyond the end by LSN, position and time: OptionsError with the reason."""
    with pytest.raises(walkit.OptionsError, match=detail):
        find(outline_of(log), Job("test"))


def test_a_frame_is_found_by_time(log: Path) -> None:
    """Each frame's own time leads to it, or to one before it with the same time."""
    outline, job = outline_of(log), Job("test")
    for line in outline.segments:
        for item in page_from(outline, line, 0, job).items[::37]:
            sealed_us = item.sealed_us  # type: ignore[union-attr]
            when = datetime.fromtimestamp(sealed_us / 1e6, UTC)
            found = frame_around(outline, find_time(outline, when, job), job)
            assert found.header is not None
            assert found.header.sealed_us == sealed_us
            assert found.position <= item.position


def test_a_key_is_found_in_every_segment_and_the_search_goes_on(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records of a key, against what was written; with small bounds the parts of the search join to the same."""
    outline, job = outline_of(log), Job("test")
    wanted = [n for n in range(1, RECORDS + 1) if n % 50 == 7]
    whole = find_key(outline, b"k7", 1, job)
    assert [hit.record.lsn for hit in whole.hits] == wanted
    assert whole.next_lsn is None
    assert find_key(outline, b"k7777", 1, job).hits == ()
    for bound, value in (("HITS_MAX", 5), ("SEARCHED_BYTES_MAX", 4096)):
        with monkeypatch.context() as patch:
            patch.setattr(f"walkit.views.frame_pages.{bound}", value)
            found: list[int] = []
            next_lsn: int | None = 1
            parts = 0
            while next_lsn is not None:
                part = find_key(outline, b"k7", next_lsn, job)
                found += [hit.record.lsn for hit in part.hits]
                next_lsn, parts = part.next_lsn, parts + 1
            assert found == wanted
            assert parts > 2


def test_a_cancelled_read_ends(log: Path) -> None:
    """A job that is cancelled ends each of the reads that may take long."""
    outline, job = outline_of(log), Job("test")
    job.cancel()
    line = outline.segments[0]
    for long in (
        lambda: find_key(outline, b"k7", 1, job),
        lambda: find_lsn(outline, RECORDS, job),
        lambda: page_from(outline, line, 0, job),
        lambda: page_before(outline, line, line.end_position, job),
    ):
        with pytest.raises(JobCancelledError):
            long()


def test_body_too_large_for_a_page_is_not_read(
    shell: Shell, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lower the limit of a page: the frame is called not read, and is neither good nor bad."""
    position = find_lsn(outline_of(log), 300, Job("test"))
    monkeypatch.setattr("walkit.views.frame_pages.FRAME_READ_MAX", 8)
    page = inspector(shell, f"&log=log&position={position}")
    until(page, lambda: page.frame is not None)
    assert page.frame is not None and page.frame.intact is None
    text = page.face.text.object
    assert "Not read" in text and "class='good'" not in text and "class='bad'" not in text


def test_the_page_shows_a_log_down_to_its_bytes(shell: Shell, log: Path) -> None:
    """From the URL to a frame, its fields and records; find, turn pages, verify; no byte of the log has changed."""
    before = contents(log)
    position = find_lsn(outline_of(log), 300, Job("test"))
    page = inspector(shell, f"&log=log&position={position + 3}")
    until(page, lambda: page.frame is not None)
    assert page.state() == {"log": "log", "position": str(position)}
    assert "LSN 300" in page.face.figure.object.layout.title.text or "first LSN 300" in str(
        page.face.figure.object.layout.title.text
    )
    assert "header_crc" in page.face.fields.object
    assert "value 300" in page.face.text.object
    assert page.frames.rows[0]["id"] == str(position)
    for by, text, lsn in (("lsn", "17", 17), ("position", str(position), 300)):
        page.find_by.value, page.wanted.value = by, text
        page.find.clicks += 1
        read(page)
        assert page.frame is not None
        assert page.frame.records[0].lsn == lsn
    page.find_by.value, page.wanted.value = "key", "k7"
    page.find.clicks += 1
    read(page)
    assert len(page.hits.rows) == len([n for n in range(RECORDS) if n % 50 == 7])
    page.hits.pick(page.hits.rows[1]["id"])
    read(page)
    assert page.frame is not None
    assert page.frame.records[0].lsn == 57
    page.segments.table.pick("2")
    read(page)
    first = [row["id"] for row in page.frames.rows]
    for button in (page.on, page.back, page.last, page.first):
        button.clicks += 1
        read(page)
    assert [row["id"] for row in page.frames.rows] == first
    page.check.clicks += 1
    until(page, lambda: page.report is not None)
    assert "ok: 900 frames" in page.verdict.object
    assert page.ranges.table.rows == []
    assert contents(log) == before


@pytest.mark.parametrize("damage", ["body", "header", "segment", "manifest"])
def test_a_damaged_log_is_told_and_still_looked_at(shell: Shell, log: Path, damage: str) -> None:
    """A flipped byte in a body or a header, a missing segment, a damaged manifest: sentences, and no change."""
    position = find_lsn(outline_of(log), 40, Job("test"))
    segment = segment_files(log)[0]
    offset = 4096 + position + (100 if damage == "body" else 20)
    if damage == "segment":
        segment.unlink()
    elif damage == "manifest":
        (log / "manifest").write_bytes((log / "manifest").read_bytes()[:-3])
    else:
        data = bytearray(segment.read_bytes())
        data[offset] ^= 1
        segment.write_bytes(data)
    before = contents(log)
    page = inspector(shell, "&log=log")
    read(page)
    assert page.outline is not None, page.status.object
    if damage in ("body", "header"):
        page.segments.table.pick("1")
        read(page)
        page.frames.pick(str(position))
        read(page)
        assert page.frame is not None
        assert page.frame.position == position
        assert not page.frame.intact
        assert "damage" in page.face.text.object.lower() or "No frame" in page.face.text.object
        assert ("unverified" in page.face.text.object) is (damage == "body")
    else:
        assert "role='alert'" in page.status.object
        page.segments.table.pick("2")
        read(page)
        assert len(page.frames.rows) == PAGE_FRAMES
    page.check.clicks += 1
    until(page, lambda: page.report is not None)
    assert "NOT OK" in page.verdict.object
    assert 'role="alert"' in page.verdict.object
    assert contents(log) == before


def test_a_live_log_of_this_machine_is_read_beside_its_writer(tmp_path: Path) -> None:
    """A log with a writer: what is durable is shown, and more of it after more was written."""
    shell = make_shell(root=tmp_path)
    try:
        with walkit.open(tmp_path / "live", options=OPTIONS) as log:
            log.append_many([b"value"] * RECORDS)
            page = inspector(shell, "&log=live")
            read(page)
            assert page.outline is not None
            assert (page.outline.state, page.outline.last_lsn) == ("live", RECORDS)
            log.append(b"one more")
            page.find_by.value, page.wanted.value = "lsn", str(RECORDS + 1)
            page.find.clicks += 1
            read(page)
            assert page.frame is not None
            assert page.frame.records[0].value == b"one more"
    finally:
        shell.close()


UNSEEN = (
    ("../outside", "it is outside the data root"),
    ("/etc", "it is outside the data root"),
    ("log/../../outside", "it is outside the data root"),
    ("link", "it is outside the data root"),
    ("held", "is a link that leads out of the data root"),
    ("a\0b", "a NUL character is in it"),
    ("x" * 5_000, "it is longer than 4,096 characters"),
    ("x" * 4_000, "it cannot be a path"),
    ("\ud800", "it cannot be a path"),
    ("~root", "there is no such file or folder"),
    ("", "choose a known log"),
    ("nothing", "there is no such file or folder"),
    ("file", "it is a file, and a log is a folder"),
    ("empty", "not a walkit log"),
    ("scratch", "not made yet"),
)
"""Forbidden and unreadable paths, and the page's text for each."""


def test_a_path_that_may_not_be_looked_at_is_a_sentence(shell: Shell, log: Path) -> None:
    """Paths outside of the root by any way, names that none can have, no log at all: each takes away what was shown."""
    root = log.parent
    outside = root.parent / f"{root.name}-outside"
    shutil.copytree(log, outside)
    (root / "link").symlink_to(outside)
    (root / "held").mkdir()
    for path in outside.iterdir():
        (root / "held" / path.name).symlink_to(path)
    (root / "file").write_text("not a log")
    (root / "empty").mkdir()
    (root / "empty" / "thing").touch()
    page = inspector(shell)
    for text, detail in UNSEEN:
        page.restore({"log": "log"})
        read(page)
        assert page.outline is not None and page.body.visible
        page.restore({"log": text, "position": "5"})
        read(page)
        assert detail in page.status.object.replace("&#x27;", "'"), text[:20]
        assert "role='alert'" in page.status.object
        assert page.outline is None
        assert not page.body.visible


def test_text_that_cannot_be_searched_for_is_a_sentence(shell: Shell) -> None:
    """Words instead of a number or a time: the page reports it, and still shows the log."""
    page = inspector(shell, "&log=log&position=nonsense")
    read(page)
    for by, text in (
        ("lsn", "x"),
        ("lsn", "9" * 30),
        ("time", "yesterday"),
        ("key", "0xzz"),
        ("position", "-1"),
    ):
        page.find_by.value, page.wanted.value = by, text
        page.find.clicks += 1
        read(page)
        assert f"is not a valid {by}" in page.status.object, (by, page.status.object)
        assert page.outline is not None


def test_known_logs_are_offered(shell: Shell, log: Path) -> None:
    """The logs below the root are found and can be chosen, hidden folders and links are passed over."""
    os.symlink(log, log.parent / "again")
    shutil.copytree(log, log.parent / ".hidden")
    page = inspector(shell)
    until(page, lambda: not page.chooser.looking.busy)
    assert list(page.chooser.known.options.values()) == ["", "log", "scratch"]
    page.chooser.known.value = "log"
    read(page)
    assert page.outline is not None
