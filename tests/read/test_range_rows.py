"""Ranges of small frames, read many frames at once: the records of a plain read, within bounds and before a damage."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import walkit
from tests.support.examples import examples
from walkit.errors import CorruptionError
from walkit.read.ranges import plan_ranges, read_ranges
from walkit.record import RECORD_SCHEMA

OPTIONS = walkit.LogOptions(
    segment_bytes=64 * 1024, frame_bytes_max=32 * 1024, durability="none", idle_marker_ms=0
)


def write(path: Path, seed: int, frames: int) -> pa.Table:
    """Write frames of 1 to 40 records of 0 to 200 bytes over two epochs, and return the records by a plain read."""
    rng = random.Random(seed)
    for _ in range(2):
        with walkit.open(path, options=OPTIONS) as log:
            for _ in range(frames // 2):
                count = rng.choice((1, 1, 3, 40))
                keys = [rng.choice((b"", b"key-%d" % n, None)) for n in range(count)]
                log.append_many([rng.randbytes(rng.choice((0, 30, 200))) for _ in keys], keys)
    with walkit.open(path, mode="r") as reader:
        return reader.to_arrow()


def rows_of(batches: list[pa.RecordBatch]) -> pa.Table:
    """The batches as a table."""
    return pa.Table.from_batches(batches, RECORD_SCHEMA).combine_chunks()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    """A log of 600 frames in several segments, and its records."""
    path = tmp_path_factory.mktemp("log") / "log"
    return path, write(path, 7, 600).combine_chunks()


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shares=st.tuples(st.floats(0, 1.1), st.floats(0, 1)),
    parts=st.sampled_from((None, 1, 3, 50)),
    seed=st.integers(0, 9),
)
def test_any_ranges_between_any_lsns(
    told: tuple[Path, pa.Table], shares: tuple[float, float], parts: int | None, seed: int
) -> None:
    """Read ranges in any order between two LSNs as Hypothesis draws them: the records of a plain read, each once."""
    path, rows = told
    low, high = sorted(int(share * len(rows)) + 1 for share in shares)
    for bounds in ((low, high), (None, high), (low, None), (None, None)):
        ranges = plan_ranges(path, parts=parts)
        random.Random(seed).shuffle(ranges)
        first, last = bounds
        found = rows_of(list(read_ranges(path, ranges, first_lsn=first, last_lsn=last))).sort_by("lsn")
        begin, end = (first or 1) - 1, len(rows) if last is None else last
        assert found.equals(rows.slice(begin, max(min(end, len(rows)) - begin, 0)))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_what_is_before_a_damage_is_read(tmp_path: Path, share: float) -> None:
    """Flip a bit of a value: the frames before it are yielded, then CorruptionError; bounds that end before it pass."""
    path = tmp_path / "log"
    rows = write(path, 3, 300)
    ranges = plan_ranges(path, parts=1)
    values = rows["value"].to_pylist()
    begin = int(share * len(values))
    damaged = next(n for n, value in enumerate(values[begin:], begin) if len(value or b"") == 200)
    (file,) = (p for p in path.glob("*.segment") if values[damaged] in p.read_bytes())
    data = bytearray(file.read_bytes())
    data[data.index(values[damaged])] ^= 1
    file.write_bytes(data)
    batches: list[pa.RecordBatch] = []
    with pytest.raises(CorruptionError) as caught:
        batches.extend(read_ranges(path, ranges))
    lost = caught.value.first_lost_lsn
    assert lost is not None and damaged + 1 - 40 < lost <= damaged + 1
    assert rows_of(batches).equals(rows.slice(0, lost - 1).combine_chunks())
    assert rows_of(list(read_ranges(path, ranges, last_lsn=lost - 1))).equals(
        rows.slice(0, lost - 1).combine_chunks()
    )
