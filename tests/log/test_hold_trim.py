"""Holds and trimming: what is dropped, what is kept back, and what survives a reopening."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import walkit
from tests.commit.fake_segments import GUARD_S, Task, wait_until
from tests.log.logs import faulty_log, lsns, memory_log, tiny, values
from walkit._threads import current_frames
from walkit.errors import GapError, LogClosedError, StorageError
from walkit.log.holds import RENEW_S_MIN
from walkit.models import CrashingStorage, FaultyStorage
from walkit.segments.manifest_store import load_manifest


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


def test_trimming_everything_leaves_a_log_that_goes_on(log: walkit.WriteAheadLog) -> None:
    """Trim beyond the end: all is gone, nothing beyond what is durable; LSNs and positions go on."""
    end = log.parts.core.position
    assert log.trim(10_000) == 80
    assert (log.first_lsn, log.acked_lsn, list(log.read())) == (81, 80, [])
    assert log.to_arrow().num_rows == 0 and log.statistics().segments <= 1
    result = log.append(b"after")
    assert result.first_lsn == 81 and result.position >= end
    assert values(log.read()) == [b"after"]


def test_only_what_is_durable_is_trimmed() -> None:
    """Trim a log of level none before and after a sync: never more than what is on stable storage."""
    with memory_log(tiny(durability="none")) as log:
        log.append_many([b"x"] * 10)
        assert log.trim(10) == 0 and log.first_lsn == 1
        log.sync()
        assert log.trim(7) == 7 and log.first_lsn == 8


@pytest.mark.parametrize("trimmed", [0, 13, 79, 80])
def test_lsns_go_on_after_trim_and_reopening(trimmed: int) -> None:
    """Trim, close and open again: the oldest and the next LSN are the same, also where no segment is left."""
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


def test_a_hold_keeps_back_the_trim(log: walkit.WriteAheadLog) -> None:
    """Hold, move and release: trim stops below the lowest hold, and goes on when it moves."""
    low, high = log.hold("low", 5), log.hold("high", 50)
    assert log.trim(70) == 4 and log.first_lsn == 5
    low.move(30)
    assert log.trim(70) == 29
    low.release()
    low.release()
    assert log.trim(70) == 49 and log.first_lsn == 50
    high.move(200)
    assert log.trim(70) == 70
    assert "high" in repr(high)


def test_a_hold_does_not_move_back_and_not_after_its_end(log: walkit.WriteAheadLog) -> None:
    """Move back, and move what was released or taken over: refused with the reason."""
    hold = log.hold("h", 10)
    with pytest.raises(ValueError, match="does not move back"):
        hold.move(9)
    hold.move(10)
    newer = log.hold("h", 20)
    with pytest.raises(LogClosedError, match="released"):
        hold.move(30)
    hold.release()
    assert log.trim(70) == 19, "releasing an object that was taken over gives up nothing"
    newer.release()
    with pytest.raises(LogClosedError):
        newer.move(30)


def test_a_hold_needs_a_name_a_lease_and_a_record_that_is_there(log: walkit.WriteAheadLog) -> None:
    """Ask for impossible holds: refused, and no hold is left behind."""
    log.trim(10)
    for name, lease_s in (("", 60), ("h" * 257, 60), ("h", 0), ("h", -1)):
        with pytest.raises(ValueError, match=r"has a name|has a lease"):
            log.hold(name, 20, lease_s=lease_s)
    with pytest.raises(GapError) as gap:
        log.hold("h", 10)
    assert (gap.value.wanted, gap.value.oldest) == (10, 11)
    assert log.parts.holds.mine == {} and log.trim(70) == 70


def test_a_hold_that_could_not_be_saved_is_none() -> None:
    """Fail the saving of a hold: StorageError, and the trim is not kept back by it; an older one of the name stays."""
    storage, log = faulty_log()
    log.append_many([b"x"] * 20)
    older = log.hold("h", 10)
    storage.fail("replace", "manifest", times=2)
    for name in ("h", "other"):
        with pytest.raises(StorageError):
            log.hold(name, 3)
    older.move(15)
    assert log.trim(20) == 14
    log.close()


def test_a_hold_outlives_its_process_until_the_lease_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold, kill and reopen, and move the clock: kept back while the lease runs, reported and gone afterwards."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny())
    log.append_many([b"x"] * 20)
    log.hold("reader", 5, lease_s=60)
    image = storage.process_kill()
    log.close()
    events: list[tuple[str, dict[str, object]]] = []
    for place in (image, storage):
        with walkit.open(storage=place, options=tiny(), events=lambda *e: events.append(e)) as again:
            assert again.trim(20) == 4
            taken_over = again.hold("reader", 8, lease_s=60)
            assert again.trim(20) == 7
            assert taken_over.first_lsn == 8
    assert not [e for e in events if e[0] == "walkit.hold.expire"]
    later = time.time_ns() + 61 * 10**9
    with walkit.open(storage=storage, options=tiny(), events=lambda *e: events.append(e)) as again:
        monkeypatch.setattr(time, "time_ns", lambda: later)
        assert again.trim(20) == 20
    assert [facts for name, facts in events if name == "walkit.hold.expire"] == [
        {"name": "reader", "first_lsn": 8}
    ]


def test_a_hold_that_lives_needs_no_renewal_by_hand(
    log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Move the clock past the lease of a hold whose object lives: it still keeps back."""
    log.hold("alive", 5, lease_s=1)
    later = time.time_ns() + 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert log.trim(70) == 4


def test_a_hold_that_nothing_saves_is_renewed_for_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold, and do nothing: the saved lease begins anew by itself, a third of it later; so it counts after a kill."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny())
    log.append_many([b"x"] * 20)
    hold = log.hold("reader", 5, lease_s=1.5)
    [taken] = load_manifest(storage).holds
    hold.move(7)
    deadline = time.monotonic() + 10
    while (saved := load_manifest(storage).holds[0]) == taken:
        assert time.monotonic() < deadline, "nothing has renewed it"
        time.sleep(0.02)
    assert saved.first_lsn == 7
    assert saved.lease_until_us - taken.lease_until_us > 0.4e6  # by the wall clock, about half a second later
    image = storage.process_kill()
    log.close()
    later = (taken.lease_until_us + saved.lease_until_us) // 2 * 1000
    with walkit.open(storage=image, options=tiny()) as again:
        monkeypatch.setattr(time, "time_ns", lambda: later)
        assert again.trim(20) == 6


def test_renewals_are_few() -> None:
    """Hold with long leases, and with the shortest: nothing is written for the first, and seldom for the last."""
    with memory_log() as log:
        log.append_many([b"x"] * 20)
        log.hold("long", 5)
        store = log.parts.manifest_store
        before = store.current.generation
        log.wait_idle()
        assert store.current.generation == before
        log.hold("short", 5, lease_s=0.001)
        began = time.monotonic()
        while store.current.generation - before < 3:
            assert time.monotonic() - began < 10, "the short one is not renewed"
            time.sleep(0.01)
        assert time.monotonic() - began > 0.9 * RENEW_S_MIN, "one writing takes it, two renew it"


def test_a_released_hold_stays_released_over_a_kill() -> None:
    """Release and kill: the next opening is not kept back."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny())
    log.append_many([b"x"] * 20)
    log.hold("h", 5).release()
    image = storage.process_kill()
    log.close()
    with walkit.open(storage=image, options=tiny()) as again:
        assert again.trim(20) == 20


def test_a_closed_logs_hold_never_touches_the_next_writers_manifest() -> None:
    """Move and release a hold after another writer has opened the log: refused, and the new manifest stays as it is."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny())
    log.append(b"1")
    hold = log.hold("h", 1)
    log.close()
    with walkit.open(storage=storage, options=tiny()) as new:
        new.append_many([bytes(7000)] * 30)
        new.wait_idle()  # what it seals and makes by itself is done
        before = walkit.segments.manifest_store.load_manifest(storage)
        for attempt in (hold.release, lambda: hold.move(5), lambda: log.parts.trimmer.trim(1)):
            with pytest.raises(LogClosedError):
                attempt()
        assert walkit.segments.manifest_store.load_manifest(storage).segments == before.segments
        assert new.acked_lsn == 31


def test_holds_and_trims_from_many_threads(log: walkit.WriteAheadLog) -> None:
    """Take, move and release holds on eight threads beside trims: a held record is never gone."""

    def work(who: int) -> None:
        for n in range(15):
            try:
                hold = log.hold(f"h{who}", log.first_lsn)
            except GapError:
                continue
            assert log.first_lsn <= hold.first_lsn
            assert next(log.read(hold.first_lsn)).lsn == hold.first_lsn
            log.trim(5 * n)
            assert log.first_lsn <= hold.first_lsn
            hold.release()

    for task in [Task(work, who) for who in range(8)]:
        task.result()
    assert log.trim(80) == 80


@pytest.mark.parametrize("how", ["release", "leave"])
def test_a_hold_is_not_given_up_while_another_is_taken(how: str) -> None:
    """Give a hold up while another one is written to a device that is stuck: it stands until that has ended."""
    storage = FaultyStorage(CrashingStorage())
    with walkit.open(storage) as log:
        log.append(b"1")
        hold = log.hold("one", 1)
        stuck = storage.hang("replace")
        taking = Task(lambda: log.hold("other", 1))
        assert stuck.entered.wait(GUARD_S)
        leaving = Task(getattr(hold, how))

        def is_waiting() -> bool:
            frame = current_frames().get(leaving.thread.ident or 0)
            while frame is not None and frame.f_code.co_qualname != f"HoldTable.{how}":
                frame = frame.f_back
            return frame is not None

        wait_until(is_waiting)
        assert hold.state == "held"
        stuck.release()
        taking.result()
        leaving.result()
        assert hold.state == "given up"
        saved = [record.name for record in load_manifest(storage).holds]
        assert saved == (["other"] if how == "release" else ["one", "other"])
