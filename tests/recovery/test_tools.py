"""Scan and verify: every state of a log and every kind of damage, told and never touched."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest

import walkit
from tests.support.damaged import (
    OPTIONS,
    RECORDS,
    Copy,
    close_log,
    end_writer,
    kill_log,
    start_writer,
    value_of,
)
from tests.support.makers import forged
from walkit.errors import (
    CorruptionError,
    FormatVersionError,
    LogNotFoundError,
    NotALogError,
    SegmentMissingError,
    StorageError,
)
from walkit.format.frame_fields import frame_fields
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.models import CrashingStorage
from walkit.models.faults import FaultyStorage
from walkit.record import STAMP_MAX
from walkit.recovery.scan_report import FrameRow, ScanReport, Verdict, frame_time
from walkit.recovery.verify import scan, verify


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log, and one whose writer was killed; "power cut" is the latter, to lose its durable slot."""
    folder = tmp_path_factory.mktemp("originals")
    close_log(folder / "closed")
    kill_log(folder / "killed")
    shutil.copytree(folder / "killed", folder / "power cut")
    return folder


def copy_of(originals: Path, base: str, folder: Path) -> Copy:
    shutil.copytree(originals / base, folder / "log")
    return Copy(folder / "log")


@pytest.mark.parametrize("base", ["closed", "killed"])
def test_an_intact_log_is_reported_whole(base: str, originals: Path) -> None:
    """Verify undamaged logs: all records and frames are counted, nothing is a problem or a note."""
    report = verify(originals / base)
    assert (report.ok, report.problems, report.notes) == (True, (), ())
    assert report.state == ("closed" if base == "closed" else "unclosed")
    assert (report.first_lsn, report.last_lsn, report.records_checked) == (1, RECORDS, RECORDS)
    assert report.end_position == report.promised_position == report.bytes_checked
    used = [s for s in report.segments if s.frames]
    assert [s.first_lsn for s in used] == [1, *(s.last_lsn + 1 for s in used[:-1] if s.last_lsn)]
    assert report.summary().startswith("ok:")


@pytest.mark.parametrize("sealed_us", [STAMP_MAX, STAMP_MAX + 1, 1 << 63, (1 << 64) - 1])
def test_a_frame_time_that_no_calendar_has(sealed_us: int, tmp_path: Path) -> None:
    """Forge the time of a frame and make every table, text and page of it: the number stands for the time."""
    path = tmp_path / "copy"
    with walkit.open(tmp_path / "log") as log:
        log.append(b"value")
        shutil.copytree(tmp_path / "log", path)
    with (path / f"{1:020d}.segment").open("r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES)
        frame = forged(file.read(4096), sealed_us=sealed_us)
        file.seek(SEGMENT_HEADER_BYTES)
        file.write(frame)
    (path / "durable").unlink()
    report = verify(path)
    assert report.ok and report.records_checked == 1 and report._repr_html_()
    time = report.frames["sealed"][0]
    assert str(report.frames.dtypes["sealed"]) == "datetime64[us, UTC]"
    year = frame_time(sealed_us)[:4]
    assert (sealed_us > STAMP_MAX) == (time is pd.NaT) == (year != "9999")
    assert f"{sealed_us:,}" in next(f.value for f in frame_fields(frame) if f.name == "sealed_us")
    assert walkit.lsn_at(path, datetime.now(UTC)) == 0


def test_damage_is_named_with_place_and_loss(originals: Path, tmp_path: Path) -> None:
    """Flip a bit in frame 4 of segment 2: its position, LSN, expected and found are in the problem and the range."""
    copy = copy_of(originals, "closed", tmp_path)
    _, header = copy.frames(1)[4]
    copy.flip_in_frame(1, 4, "body")
    report = verify(copy.path)
    (problem,) = report.problems
    assert isinstance(problem.error, CorruptionError)
    assert (problem.segment, problem.position, problem.first_lost_lsn) == (
        copy.used(1),
        header.position,
        header.first_lsn,
    )
    assert str(header.first_lsn) in problem.expected and "checksum" in problem.found
    (corrupt,) = [r for r in report.verdict if r.verdict is Verdict.CORRUPT]
    assert (corrupt.start_position, corrupt.end_position) == (header.position, header.end_position)
    assert (corrupt.first_lsn, corrupt.last_lsn) == (header.first_lsn, header.last_lsn)
    assert report.records_checked == RECORDS - header.records, "records after the damage are reported too"
    (bad,) = [row for row in report.frame_rows() if not row.intact]
    assert (bad.position, bad.first_lsn) == (header.position, header.first_lsn)


def test_two_damaged_segments_are_two_problems(originals: Path, tmp_path: Path) -> None:
    """Remove one segment and damage another: both are reported, the missing one first."""
    copy = copy_of(originals, "closed", tmp_path)
    copy.flip_in_frame(0, 2, "header")
    copy.remove(copy.used(2))
    report = scan(copy.path)
    assert [type(p.error) for p in report.problems] == [SegmentMissingError, CorruptionError]
    assert [p.segment for p in report.problems] == [copy.used(2), copy.used(0)]


def test_scan_without_bodies_reports_it(originals: Path, tmp_path: Path) -> None:
    """Damage a sealed body: a scan of headers alone certifies no sealed frame and names verify; a whole one sees it."""
    copy = copy_of(originals, "closed", tmp_path)
    copy.flip_in_frame(1, 4, "body")
    headers, whole = scan(copy.path, bodies=False), scan(copy.path)
    assert headers.ok is None and not headers.bodies_read and headers.frames_checked == 0
    assert {r.verdict for r in headers.verdict} - {Verdict.UNUSED} == {Verdict.NOT_READ}
    assert {s.verdict for s in headers.segments} == {Verdict.NOT_READ}
    for said in (headers.summary(), str(headers), headers._repr_html_()):
        assert "not read" in said and "verify" in said and "intact" not in said and " ok" not in said
    assert not whole.ok and whole.bodies_read and whole.notes == ()
    assert {row.intact for row in headers.frame_rows()} == {None}


def test_frames_are_a_table(originals: Path) -> None:
    """Ask for the frames: typed columns, one row per frame, made once, and equal to the records' totals."""
    report = scan(originals / "closed")
    frames = report.frames
    assert report.frames is frames
    assert list(frames.columns) == ["sealed" if name == "sealed_us" else name for name in FrameRow._fields]
    assert len(frames) == report.frames_checked and int(frames["records"].sum()) == RECORDS
    assert bool(frames["intact"].all()) and not bool(frames["mark"].any())
    assert frames["position"].is_monotonic_increasing and str(frames["sealed"].dtype).endswith("UTC]")
    assert int(frames["footprint"].sum()) == report.bytes_checked
    assert (frames["durable_position"] <= frames["position"]).all()


def test_a_mark_is_a_frame_without_records(tmp_path: Path) -> None:
    """Let a writer fall idle until it writes a mark: the table shows it, with the promise of the whole log."""
    options = walkit.LogOptions(idle_marker_ms=1)
    with walkit.open(tmp_path / "log", options=options) as log:
        log.append(b"value")
        while not log.statistics().marker_frames:
            log.sync()
    frames = verify(tmp_path / "log").frames
    assert list(frames["mark"]) == [False, True] and list(frames["records"]) == [1, 0]
    assert frames["durable_position"].iloc[1] == frames["position"].iloc[1]


def test_the_report_is_frozen_and_shown(originals: Path, tmp_path: Path) -> None:
    """Show good and bad reports as HTML: verdict and problem are in it, escaped, and no fixed black or white."""
    copy = copy_of(originals, "closed", tmp_path)
    copy.flip_in_frame(1, 4, "header")
    good, bad = verify(originals / "closed"), verify(copy.path)
    with pytest.raises(FrozenInstanceError):
        good.location = "elsewhere"  # type: ignore[misc]
    assert ": ok" in good._repr_html_() and "NOT OK" not in good._repr_html_()
    html = bad._repr_html_()
    assert "NOT OK" in html and "corrupt" in html and copy.used(1) in html
    assert not re.search(r"(color|background)\s*:\s*(black|white|#000|#fff)", html.lower())


@pytest.mark.parametrize("tool", [scan, verify])
def test_a_place_without_a_log_raises(tool: object, tmp_path: Path, originals: Path) -> None:
    """Point the tools at nothing, a file, a folder of other files and a newer manifest: the typed error of each."""
    look = verify if tool is verify else scan
    with pytest.raises(LogNotFoundError):
        look(tmp_path / "nothing")
    (tmp_path / "file").write_text("text")
    with pytest.raises(NotALogError):
        look(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(LogNotFoundError):
        look(tmp_path / "folder")
    (tmp_path / "folder" / "other").write_text("text")
    with pytest.raises(NotALogError):
        look(tmp_path / "folder")
    (tmp_path / "folder" / f"{1:020d}.segment").write_text("no segment of ours")
    with pytest.raises(CorruptionError):
        look(tmp_path / "folder")
    copy = copy_of(originals, "closed", tmp_path)
    copy.newer_manifest()
    with pytest.raises(FormatVersionError):
        look(copy.path)


def test_an_empty_log_is_in_order(tmp_path: Path) -> None:
    """Create a log and close it: no segments, no records, nothing wrong."""
    walkit.open(tmp_path / "log").close()
    report = verify(tmp_path / "log")
    assert report.ok and report.segments == () and report.verdict == ()
    assert (report.first_lsn, report.last_lsn, report.state) == (1, 0, "closed")
    assert len(report.frames) == 0


def test_an_unreadable_segment_is_unknown_and_the_rest_is_reported() -> None:
    """Let one segment fail with EIO at opening or reading: a StorageError in the report, the others are intact."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=OPTIONS) as log:
        for i in range(RECORDS):
            log.append(value_of(i))
    name = f"{2:020d}.segment"
    for operation in ("open", "read"):
        faulty = FaultyStorage(storage)
        faulty.fail(operation, name, times=None)
        report = verify(faulty)
        assert not report.ok and isinstance(report.problems[0].error, StorageError)
        assert [r.verdict for r in report.verdict].count(Verdict.UNKNOWN) == 1
        assert {r.segment for r in report.verdict if r.verdict is Verdict.INTACT} == {
            s.name for s in report.segments if s.name != name
        }


def test_a_live_log_of_another_process_is_judged_up_to_its_durable_position(tmp_path: Path) -> None:
    """Scan while a writer lives, then after it was killed, then after recovery: in order each time."""
    writer = start_writer(tmp_path / "log", RECORDS)
    try:
        report = verify(tmp_path / "log")
        assert (report.ok, report.state, report.last_lsn) == (True, "live", RECORDS)
        assert [r.verdict for r in report.verdict if r.verdict is not Verdict.INTACT] == [Verdict.IN_PROGRESS]
        assert report.end_position == report.promised_position
    finally:
        end_writer(writer, kill=True)
    report = verify(tmp_path / "log")
    assert (report.ok, report.state, report.last_lsn) == (True, "unclosed", RECORDS)
    walkit.open(tmp_path / "log").close()
    report = verify(tmp_path / "log")
    assert (report.ok, report.state, report.last_lsn) == (True, "closed", RECORDS)


def test_what_is_not_durable_is_in_progress(tmp_path: Path) -> None:
    """Append with durability none in this process: nothing is judged before sync(), all of it after."""
    options = walkit.LogOptions(durability="none", idle_marker_ms=0)
    with walkit.open(tmp_path / "log", options=options) as log:
        for i in range(20):
            log.append(value_of(i))
        before = scan(tmp_path / "log")
        log.sync()
        after = scan(tmp_path / "log")
    assert before.ok and (before.last_lsn, before.frames_checked) == (0, 0)
    assert [r.verdict for r in before.verdict] == [Verdict.IN_PROGRESS]
    assert after.ok and (after.last_lsn, after.frames_checked) == (20, 20)


BUSY_WRITER = """
import sys, threading, walkit
from tests.support.damaged import OPTIONS, value_of
log = walkit.open(sys.argv[1], options=OPTIONS)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
log.append(value_of(0))
print("ready", flush=True)
lsn = 1
while not stop.is_set():
    lsn = log.append_many([value_of(i) for i in range(4)]).last_lsn
    if lsn % 50 == 1:
        log.trim(lsn - 60)
log.close()
"""


def test_a_busy_writer_that_rotates_and_trims_is_never_accused(tmp_path: Path) -> None:
    """Verify again and again while another process appends, rotates and trims: always in order, and ever further."""
    writer = start_writer(tmp_path / "log", 0, BUSY_WRITER)
    reports: list[ScanReport] = []
    try:
        while len(reports) < 25 or reports[-1].low_watermark == 0:
            reports.append(verify(tmp_path / "log"))
    finally:
        end_writer(writer, kill=False)
    for report in reports:
        assert report.ok, [str(p) for p in report.problems]
        assert report.state == "live"
    last = [r.last_lsn for r in reports]
    assert last == sorted(last) and last[-1] > last[0]


def test_looking_needs_no_pandas(originals: Path) -> None:
    """Verify in a new interpreter: pandas, Spark and plotly are not imported."""
    program = (
        "import sys; from walkit.recovery.verify import verify; report = verify(sys.argv[1]); report.to_dict();"
        "print(sorted({'pandas', 'pyspark', 'plotly', 'tqdm'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(originals / "closed")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(walkit.__file__).parent.parent,
    )
    assert done.stdout == "[]\n"
