"""Policy "salvage": every damage of the table, the rest, the recorded losses, and the reports."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import walkit
from tests.support.damaged_logs import (
    DAMAGES,
    OPTIONS,
    Damage,
    contents,
    crash_image,
    gone,
    in_frame,
    opened,
    options,
    overwrite,
    read,
    rows_by_ranges,
    rows_of,
    rows_without,
    shorten,
    value_of,
)
from walkit.errors import CorruptionError, GapError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage
from walkit.recovery.scan_report import Verdict
from walkit.replication.logs.source import source_of
from walkit.replication.primary.frame_reader import FrameReader
from walkit.segments.manifest_store import load_manifest


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda h: h.name)
def test_every_damage_leaves_the_intact_frames_and_names_the_rest(damage: Damage) -> None:
    """Damage a copy, open it with salvage: the rows that are left, the lost LSNs, the decisions; then as any log."""
    image = crash_image(closed=damage.closed)
    damage.do(image)
    if (damage.lost or damage.mended) and not damage.given_again:
        with pytest.raises(CorruptionError):
            opened(image, "absolute")
    with opened(image, "salvage") as log:
        assert rows_of(log) == rows_without(*damage.lost)
        report = log.recovery
        assert report is not None
        told = {lsn for g in report.lost for lsn in range(g.first_lsn, g.last_lsn + 1)}
        assert told == (set() if damage.given_again else set(damage.lost))
        assert all(g.reason and g.segment.endswith(".segment") for g in report.lost)
        assert tuple(d.row for d in report.decisions) == damage.rows
        following = log.follow(1, timeout=0)
        if told:
            with pytest.raises(GapError) as gap:
                next(following)
            assert gap.value.oldest == max(told) + 1
        else:
            assert next(following).lsn == 1
        assert walkit.verify(image).ok
        next_lsn = damage.given_again or 9
        assert log.append(b"next").first_lsn == next_lsn
    rows = [*rows_without(*damage.lost), (next_lsn, b"next")]
    found = walkit.verify(image)
    assert found.ok and found.last_lsn == next_lsn
    lost = [r for r in found.verdict if r.verdict is Verdict.LOST]
    assert {n for r in lost for n in range(r.first_lsn or 0, (r.last_lsn or -1) + 1)} == told
    assert rows_by_ranges(image) == rows
    for policy in ("prefix", "absolute", "salvage"):
        with opened(image, policy) as log:
            assert rows_of(log) == rows and not log.recovery.lost and not log.recovery.cuts
    with walkit.open(None, mode="r", storage=image) as reader:
        assert rows_of(reader) == rows


def test_what_is_removed_is_kept() -> None:
    """Salvage rebuilt, foreign and torn segments: each byte that leaves its place is found again under lost+found."""
    for name in ("a flip in a segment header", "a segment of another log", "killed: header and all frames"):
        damage = next(h for h in DAMAGES if h.name == name)
        image = crash_image(closed=damage.closed)
        damage.do(image)
        before = contents(image)
        opened(image, "salvage").close()
        after = contents(image)
        kept = [data for n, data in after.items() if n.startswith("lost+found/")]
        changed = [
            n
            for n in before
            if n.endswith(".segment") and before[n].rstrip(b"\0") != after.get(n, b"").rstrip(b"\0")
        ]
        assert len(changed) == 1 and len(kept) == 1
        assert before[changed[0]].startswith(kept[0]) and kept[0]
        if not damage.mended:
            assert before[changed[0]].rstrip(b"\0") == kept[0].rstrip(b"\0")


@pytest.mark.parametrize(("closed", "name"), [(True, 1), (True, 90), (False, 90)])
def test_segments_under_other_names_are_refused_and_not_lost(closed: bool, name: int) -> None:
    """Swap two segments, or rename one: salvage names both instead of giving up whole segments, and changes nothing."""
    image = crash_image(closed=closed)
    number = 2 if closed else 4
    if name == 1:
        one, two = read(image, segment_name(1)), read(image, segment_name(number))
        overwrite(image, segment_name(1), two)
        overwrite(image, segment_name(number), one)
    else:
        image.replace(segment_name(number), segment_name(name))
        image.sync_directory()
    before = contents(image)
    with pytest.raises(CorruptionError, match="right names") as refused:
        opened(image, "salvage")
    assert (refused.value.segment, refused.value.found) == (segment_name(name), segment_name(number))
    assert contents(image) == before


def test_a_later_loss_takes_an_earlier_one_in() -> None:
    """Salvage one frame, then lose its whole segment: one lost range covers both, and the rest is readable."""
    image = crash_image(closed=True)
    in_frame(2, 0, 300)(image)
    opened(image, "salvage").close()
    gone(2)(image)
    with opened(image, "salvage") as log:
        assert rows_of(log) == rows_without(3, 4)
    (lost,) = load_manifest(image).lost
    assert (lost.first_lsn, lost.last_lsn) == (3, 4)
    assert walkit.verify(image).ok


def test_a_store_of_a_salvaged_log_works_and_refuses_unknown_states() -> None:
    """Salvage a store: the state is that of the records left, states within the loss are refused, appends go on."""
    image = crash_image(closed=True)
    in_frame(2, 0, 300)(image)
    with walkit.Store.open(image, options=options("salvage")) as store:
        assert store[b"key 2"] == value_of(8) and store[b"key 0"] == value_of(6)
        with pytest.raises(walkit.HistoryTrimmedError):
            store.state_at(3)
        store[b"key 0"] = b"new"
        assert store.state_at(9)[b"key 0"] == b"new"
        store.checkpoint()
    with walkit.Store.open(image) as store:
        assert store[b"key 0"] == b"new" and not load_manifest(image).lost


def test_replication_sends_up_to_the_loss_and_names_the_next_lsn() -> None:
    """Salvage a frame, read the log as a primary sends it: the frames before, then a GapError with the LSN behind."""
    image = crash_image(closed=True)
    in_frame(2, 0, 300)(image)
    opened(image, "salvage").close()
    with walkit.open(None, mode="r", storage=image) as log:
        reader = FrameReader(source_of(log))
        run = reader.read(LogEnd(), 1 << 20)
        assert run is not None and [h.last_lsn for h in run.headers] == [1, 2]
        with pytest.raises(GapError) as gap:
            reader.read(run.end, 1 << 20)
        reader.close()
    assert (gap.value.wanted, gap.value.oldest) == (3, 4)


def test_a_loss_of_all_frames_takes_in_one_between_them() -> None:
    """Salvage a segment around a lost frame, cut its file to the header, salvage again: one lost range for both."""
    image = CrashingStorage()
    with walkit.open(storage=image, options=OPTIONS) as log:
        for lsn in range(1, 13):
            log.append(value_of(lsn)[:15_000])
    in_frame(2, 1, 300)(image)
    opened(image, "salvage").close()
    shorten(image, segment_name(2), SEGMENT_HEADER_BYTES)
    with opened(image, "salvage") as log:
        assert [r.lsn for r in log.read()] == [*range(1, 5), *range(9, 13)]
    (lost,) = load_manifest(image).lost
    assert (lost.first_lsn, lost.last_lsn) == (5, 8)
    assert walkit.verify(image).ok


def test_repair_names_the_loss_first(tmp_path: Path) -> None:
    """Flip a bit in a frame of 2,000 records: text, repr and HTML of a repair and an opening name the loss first."""
    with walkit.open(tmp_path / "log") as log:
        log.append(b"first")
        log.append_many([b"record %d" % number for number in range(2000)])
    (segment,) = (tmp_path / "log").glob("*.segment")
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"record 700", b"recorD 700"))
    shutil.copytree(tmp_path / "log", tmp_path / "other")
    report = walkit.repair(tmp_path / "log", policy="salvage")
    with walkit.open(tmp_path / "other", options=walkit.LogOptions(recovery="salvage")) as log:
        opened_report = log.recovery
    loss = "1 of 2,001 records left; LSN 2 to 2,001 lost (one damaged frame)"
    assert report.lines()[0] == str(opened_report).splitlines()[0] == loss
    assert report.summary().startswith(loss) and repr(report).startswith(loss)
    for html in (report._repr_html_(), opened_report._repr_html_()):
        assert html.partition("<b>")[2].startswith(loss)
    assert (report.records_left, report.lsns_lost, report.damaged_frames) == (1, 2000, 1)
