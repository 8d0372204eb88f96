"""Trimming: the records that are dropped, and the log that is left after a reopening."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import walkit
from tests.support.logs import faulty_log, lsns, memory_log, tiny, values
from walkit.errors import GapError, StorageError
from walkit.models import CrashingStorage


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """A log of 80 records in ten segments."""
    with memory_log() as made:
        made.append_many([bytes(7000)] * 80)
        made.wait_idle()
        yield made


def segments_of(log: walkit.WriteAheadLog) -> list[str]:
    """Return the names of the segment files there are."""
    return [n for n in log.parts.storage.names() if n.endswith(".segment")]


def test_trim_drops_whole_segments_and_moves_the_oldest_lsn(log: walkit.WriteAheadLog) -> None:
    """Trim into the midst of a segment: records below are gone, the segment stays until all of it is below."""
    before = len(segments_of(log))
    assert log.trim(20) == 20
    assert log.first_lsn == 21 and lsns(log.read()) == list(range(21, 81))
    assert len(segments_of(log)) == before - 2
    with pytest.raises(GapError) as gap:
        log.read(20)
    assert (gap.value.wanted, gap.value.oldest) == (20, 21)
    assert lsns(log.read(21, 22)) == [21, 22]
    assert log.trim(24) == 24 and len(segments_of(log)) == before - 3


@pytest.mark.parametrize("up_to", [0, -7, 5])
def test_trim_never_moves_back(log: walkit.WriteAheadLog, up_to: int) -> None:
    """Trim to less than before: nothing changes, the watermark of before is returned."""
    assert log.trim(10) == 10
    generation = log.parts.manifest_store.current.generation
    assert log.trim(up_to) == 10
    assert (log.first_lsn, log.parts.manifest_store.current.generation) == (11, generation)


def test_a_log_continues_after_trimming_everything(log: walkit.WriteAheadLog) -> None:
    """Trim beyond the end: all durable records are gone, no others; LSNs and positions continue."""
    end = log.parts.core.position
    assert log.trim(10_000) == 80
    assert (log.first_lsn, log.acked_lsn, list(log.read())) == (81, 80, [])
    assert log.to_arrow().num_rows == 0 and log.statistics().segments <= 1
    result = log.append(b"after")
    assert result.first_lsn == 81 and result.position >= end
    assert values(log.read()) == [b"after"]


def test_only_durable_records_are_trimmed() -> None:
    """Trim a log of level none before and after a sync: never more than is on stable storage."""
    with memory_log(tiny(durability="none")) as log:
        log.append_many([b"x"] * 10)
        assert log.trim(10) == 0 and log.first_lsn == 1
        log.sync()
        assert log.trim(7) == 7 and log.first_lsn == 8


@pytest.mark.parametrize("trimmed", [0, 13, 79, 80])
def test_lsns_go_on_after_trim_and_reopening(trimmed: int) -> None:
    """Trim, close and open again: the oldest and the next LSN are the same, also if no segment is left."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append_many([bytes(7000)] * 80)
        log.trim(trimmed)
    for _ in range(3):
        with walkit.open(storage=storage, options=tiny()) as log:
            assert (log.first_lsn, log.acked_lsn, log.durable_lsn) == (trimmed + 1, 80, 80)
            assert lsns(log.read()) == list(range(trimmed + 1, 81))
            log.trim(trimmed)
    with walkit.open(storage=storage, options=tiny()) as log:
        assert log.append(b"next").first_lsn == 81
        log.trim(81)
    with walkit.open(storage=storage, options=tiny()) as log:
        assert (log.first_lsn, log.append(b"x").first_lsn) == (82, 82)
        assert not [n for n in storage.names() if n.startswith("lost+found")]


def test_a_trim_that_crashes_before_its_files_are_gone_is_finished_by_the_next_opening() -> None:
    """Fail the removal of trimmed files: the watermark stands, and reopening removes them without keeping them."""
    storage, log = faulty_log()
    log.append_many([bytes(7000)] * 40)
    log.wait_idle()
    storage.fail("remove", "*.segment", times=None)
    with pytest.raises(StorageError):
        log.trim(30)
    assert log.first_lsn == 31
    log.append(b"goes on")
    image = storage.inner.process_kill()
    storage.clear()
    log.close()
    for place in (image, storage.inner):
        with walkit.open(storage=place, options=tiny()) as again:
            assert again.first_lsn == 31 and again.acked_lsn == 42
            assert len(segments_of(again)) == len(again.parts.manifest_store.current.segments)
            assert not [n for n in place.names() if n.startswith("lost+found")]
