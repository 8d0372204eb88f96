"""Ranges of frames are read between bounds, and nothing else is met on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

import walkit
from walkit.errors import CorruptionError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.read.ranges import plan_ranges, read_range
from walkit.read.reader import view_of
from walkit.storage.address import storage_at

RECORDS = 4000


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of 4,000 records in frames of 20 and several segments."""
    path = tmp_path_factory.mktemp("log") / "segments"
    options = walkit.LogOptions(durability="none", segment_bytes=64 * 1024, frame_bytes_max=16 * 1024)
    with walkit.open(str(path), options=options) as log:
        for start in range(0, RECORDS, 20):
            numbers = range(start, start + 20)
            log.append_many(
                [b"value-%d" % n * 4 for n in numbers], keys=[b"key-%d" % (n % 7) for n in numbers]
            )
    assert len(list(path.glob("*.segment"))) > 2
    return path


def test_damage_before_the_bounds_is_met_where_the_way_leads_through_it(
    segments: Path, tmp_path: Path
) -> None:
    """A damaged header before the wanted frame breaks the way to it: CorruptionError, after the records before it."""
    log = tmp_path / "log"
    log.mkdir()
    for file in segments.iterdir():
        (log / file.name).write_bytes(file.read_bytes())
    (frames,) = [r for r in plan_ranges(str(log), parts=1) if r.first_lsn == 1]
    view, _ = view_of(storage_at(str(log)))
    header = next(header for header, _, _ in view.frames(21, 21, body=False))
    assert header.first_lsn == 21
    segment = min(log.glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[SEGMENT_HEADER_BYTES + header.position] ^= 1
    segment.write_bytes(data)
    read = read_range(str(log), frames, first_lsn=5, last_lsn=100)
    assert next(read).column("lsn").to_pylist() == list(range(5, 21))
    with pytest.raises(CorruptionError):
        next(read)
    skipped = read_range(str(log), frames, first_lsn=41, last_lsn=60)
    with pytest.raises(CorruptionError):
        list(skipped)
