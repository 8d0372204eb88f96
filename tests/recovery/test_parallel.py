"""Sealed segments examined side by side: the report of one after the other; progress on the caller's thread."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

import walkit
from tests.support.damaged import close_log
from tests.support.logs import SEGMENTS
from walkit.recovery import scan_results as parallel
from walkit.recovery.log_scan import SegmentFinding
from walkit.recovery.scan_report import ScanReport
from walkit.recovery.scan_results import read_sealed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed log of several segments."""
    close_log(tmp_path / "log")
    return tmp_path / "log"


def told(report: ScanReport) -> tuple[object, ...]:
    """All of a report but how long it took."""
    lines = [f"{type(p.error).__name__}: {p}" for p in report.problems]
    rows = list(report.frame_rows())
    left = replace(report, duration_s=0, problems=(), frame_rows=lambda: iter(()))
    return (lines, rows, *(getattr(left, name) for name in ("verdict", "segments", "notes", "last_lsn")),
            left.promised_position, left.frames_checked, left.records_checked, left.bytes_checked)  # fmt: skip


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ScanReport, ScanReport]:
    """Verify one after the other, and side by side."""
    alone = walkit.verify(path)
    monkeypatch.setattr(parallel, "FRAME_BYTES_MIN", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    begun: list[str] = []

    def noting(*given: object) -> SegmentFinding:
        begun.append(threading.current_thread().name)
        return read_sealed(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(parallel, "read_sealed", noting)
    beside = walkit.verify(path)
    assert begun and all(name.startswith("walkit-verify") for name in begun)
    return alone, beside


@pytest.mark.parametrize("damage", ["none", "flipped", "missing", "short"])
def test_side_by_side_says_what_one_after_the_other_says(
    path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An intact log and three damaged ones: ranges, segments, problems, notes and numbers are the same."""
    segments = sorted(path.glob(SEGMENTS))
    victim = segments[1]
    if damage == "flipped":
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    elif damage == "missing":
        victim.unlink()
    elif damage == "short":
        victim.write_bytes(victim.read_bytes()[:-5000])
    alone, beside = both(path, monkeypatch)
    assert told(beside) == told(alone)
    assert beside.ok == (damage == "none")


def test_progress_is_told_on_the_calling_thread_up_to_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call comes on this thread, bytes never fall, and the last has all of them."""
    monkeypatch.setattr(parallel, "FRAME_BYTES_MIN", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    seen: list[tuple[str, int, int]] = []
    report = walkit.verify(
        path, progress=lambda done, total: seen.append((threading.current_thread().name, done, total))
    )
    assert {name for name, _, _ in seen} == {threading.current_thread().name}
    done = [bytes_done for _, bytes_done, _ in seen]
    assert done == sorted(done) and seen[-1][1:] == (report.bytes_checked, report.bytes_checked)


def test_an_error_of_progress_ends_all_threads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `progress` raises comes out, and no thread is left at work."""
    monkeypatch.setattr(parallel, "FRAME_BYTES_MIN", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    before = threading.active_count()

    def refuse(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        walkit.verify(path, progress=refuse)
    assert threading.active_count() == before
