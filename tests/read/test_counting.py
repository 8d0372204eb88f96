"""Counts and times from headers: as reading everything would give."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import walkit
from walkit.read.record_count import count_records, lsn_at

OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024)


def append(log: walkit.WriteAheadLog, count: int) -> None:
    """Append `count` records in transactions of ten, with seven keys."""
    for start in range(0, count, 10):
        with log.transaction() as tx:
            for n in range(start, start + 10):
                tx.put(b"key-%d" % (n % 7), b"%0200d" % n)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_count_equals_a_readers_records(tmp_path: Path, compacted: bool) -> None:
    """Count between bounds within frames and segments, before and after compaction: as many as a reader yields."""
    with walkit.Store.open(tmp_path / "log", options=OPTIONS) as store:
        append(store.log, 2000)
        if compacted:
            assert store.compact().segments_rewritten
            append(store.log, 30)
    with walkit.open(tmp_path / "log", mode="r") as log:
        lsns = [record.lsn for record in log.read()]
    for first, last in [
        (None, None),
        (1, 1),
        (15, 1500),
        (1993, None),
        (None, 0),
        (1801, 1999),
        (1795, 1801),
    ]:
        expected = sum((first or 1) <= lsn <= (lsns[-1] if last is None else last) for lsn in lsns)
        assert count_records(tmp_path / "log", first, last) == expected, (first, last)


def test_a_count_of_a_trimmed_log_begins_above_the_watermark(tmp_path: Path) -> None:
    """Trim within a segment: the rest counts, a bound below is a GapError, and an empty log counts none."""
    with walkit.open(tmp_path / "log", options=OPTIONS) as log:
        assert count_records(tmp_path / "log") == 0
        append(log, 2000)
        log.trim(1234)
        assert count_records(tmp_path / "log") == 766
        with pytest.raises(walkit.GapError):
            count_records(tmp_path / "log", 1234)


def test_the_lsn_at_a_time_is_that_of_the_frames_sealed_by_then(tmp_path: Path) -> None:
    """Ask at the time of each frame, before the first and after the last: the LSN that its frame ends with."""
    with walkit.open(tmp_path / "log", options=OPTIONS) as log:
        append(log, 600)
    ends = {frame.sealed_us: frame.last_lsn for frame in walkit.scan(tmp_path / "log").frame_rows()}
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    assert len(ends) > 30
    for sealed_us, last_lsn in ends.items():
        assert lsn_at(tmp_path / "log", begin + timedelta(microseconds=sealed_us)) == last_lsn
    assert lsn_at(tmp_path / "log", begin) == 0
    assert walkit.lsn_at(tmp_path / "log", datetime.now(UTC)) == 600


def test_a_time_without_a_zone_is_refused(tmp_path: Path) -> None:
    """Ask with a naive time: OptionsError, and not the time of this machine's zone."""
    walkit.open(tmp_path / "log").close()
    with pytest.raises(walkit.OptionsError, match="time zone"):
        lsn_at(tmp_path / "log", datetime(2026, 1, 1))  # noqa: DTZ001 - the case
