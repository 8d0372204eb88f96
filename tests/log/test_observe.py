"""Observers and followers: every record once, in order, from any thread, or a GapError; never a skip."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from itertools import islice, pairwise
from typing import Any

import pytest

import walkit
from tests.support.logs import (
    SEGMENTS,
    FaultyMemory,
    faulty_log,
    lsns,
    memory_log,
    reopened,
    segment_set,
    tiny,
    values,
    view_of,
)
from tests.support.threads import GUARD_S, Task, wait_until
from walkit import GapError, ObservedFrames


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """An empty log in memory."""
    with memory_log() as made:
        yield made


def test_observers_see_the_frames_as_in_the_files(log: walkit.WriteAheadLog) -> None:
    """Observe a mixed load: ranges and positions join up, bytes equal the files' bytes."""
    log.append(b"before")
    seen: list[ObservedFrames] = []
    observation = log.observe(seen.append)
    log.append(b"1", key=b"k", timestamp=5)
    log.append_many([b"2", None, bytes(3000)] * 10)
    with log.transaction() as tx:
        tx.delete(b"k")
    wait_until(lambda: seen and seen[-1].last_lsn == 33)
    observation.close()
    log.append(b"after")
    assert seen[0].first_lsn == 2
    assert all(b.first_lsn == a.last_lsn + 1 for a, b in pairwise(seen))
    assert all(b.position == a.next_position for a, b in pairwise(seen))
    files = {header.position: bytes(frame) for header, frame, _ in view_of(log).frames(1)}
    assert all(frames.data == files[frames.position] for frames in seen)
    assert all(len(frames.data) == frames.next_position - frames.position for frames in seen)
    assert [r for frames in seen for r in frames.records()] == list(log.read(2, 33))
    assert "first_lsn=2" in repr(seen[0])


def test_frames_can_be_read_after_they_were_trimmed(log: walkit.WriteAheadLog) -> None:
    """Keep an observer's frames, trim them away in the log: its records are still there."""
    seen: list[ObservedFrames] = []
    log.observe(seen.append)
    log.append_many([bytes(7000)] * 40)
    wait_until(lambda: seen and seen[-1].last_lsn == 40)
    log.trim(40)
    assert lsns(r for frames in seen for r in frames.records()) == list(range(1, 41))


def raises(_: ObservedFrames) -> None:
    """An observer with a fault."""
    raise RuntimeError("mine")


def test_an_observer_that_raises_is_named_once_counted_and_called_again() -> None:
    """Raise in an observer for three frames: one event with its name, all counted; the log and the other go on."""
    events: list[tuple[str, dict[str, Any]]] = []
    log = walkit.open(
        storage=walkit.models.CrashingStorage(), options=tiny(), events=lambda *event: events.append(event)
    )
    seen: list[int] = []
    observations = [
        log.observe(callback) for callback in (raises, partial(raises), lambda f: seen.append(f.first_lsn))
    ]
    for _ in range(3):
        log.append(b"value")
    wait_until(lambda: seen == [1, 2, 3])
    assert log.statistics().callback_errors == 6
    log.close()
    assert [o.errors for o in observations] == [3, 3, 0]
    wait_until(lambda: [name for name, _ in events].count("walkit.callback.fail") == 2, "the events")
    told = [facts for name, facts in events if name == "walkit.callback.fail"]
    assert [facts["what"] for facts in told] == [f"{__name__}.raises"] * 2
    assert all("mine" in facts["error"] for facts in told)


def test_an_observer_may_use_the_log(log: walkit.WriteAheadLog) -> None:
    """Append, read and stop observing from within an observer: no lock is held there."""
    done = threading.Event()

    def echo(frames: ObservedFrames) -> None:
        if frames.first_lsn == 1:
            assert log.append(b"echo").first_lsn == 2
            assert lsns(log.read()) == [1, 2]
            log.sync()
            observation.close()
            done.set()

    observation = log.observe(echo)
    log.append(b"1")
    assert done.wait(GUARD_S)


def test_followers_begin_at_the_given_lsn(log: walkit.WriteAheadLog) -> None:
    """Follow from the middle, from the next record and from one that is not there yet."""
    log.append_many([b"%d" % n for n in range(1, 11)])
    assert values(islice(log.follow(9), 2)) == [b"9", b"10"]
    assert values(islice(log.follow(-3), 1)) == [b"1"]
    ahead = Task(lambda: values(islice(log.follow(13), 1)))
    for n in range(11, 14):
        log.append(b"%d" % n)
    assert ahead.result() == [b"13"]


def test_a_follower_with_a_timeout_ends_when_nothing_comes(log: walkit.WriteAheadLog) -> None:
    """Follow with a timeout: it ends after the last record, and leaves no observer behind."""
    log.append(b"1")
    assert values(log.follow(1, timeout=0.01)) == [b"1"]
    assert values(log.follow(5, timeout=0)) == []
    assert not log.parts.driver.delivery.observers and not log.parts.lifetime.end_watchers


def test_a_dropped_follower_leaves_nothing(log: walkit.WriteAheadLog) -> None:
    """Close a follower before its end: its waker is gone."""
    log.append(b"1")
    following = log.follow(1)
    assert next(following).lsn == 1
    assert len(log.parts.driver.delivery.wakers) == 1
    following.close()  # type: ignore[attr-defined]
    assert not log.parts.driver.delivery.wakers


def test_a_follower_ends_with_the_log_after_its_last_record() -> None:
    """Close with records still on their way: a follower that looks in between waits for them, then ends."""
    storage, log = faulty_log()
    following = log.follow(1)
    assert next(following).value == b"first"
    hang = storage.hang("synced_write", SEGMENTS)
    log.submit(b"on its way")
    assert hang.entered.wait(GUARD_S)
    closing = Task(log.close)
    wait_until(lambda: log.closed)
    rest = Task(lambda: values(following))
    wait_until(lambda: not rest.thread.is_alive() or len(log.parts.lifetime.end_watchers) == 1)
    rest.thread.join(0.05)
    hang.release()
    closing.result()
    assert rest.result() == [b"on its way"]


def test_what_was_trimmed_is_a_gap_and_never_a_skip(log: walkit.WriteAheadLog) -> None:
    """Trim past a follower, before it begins and while it waits: GapError that names the oldest record."""
    log.append_many([bytes(7000)] * 40)
    waits = log.follow(1)
    assert lsns(islice(waits, 40)) == list(range(1, 41))
    log.append_many([bytes(7000)] * 40)
    log.trim(75)
    with pytest.raises(GapError) as gap:
        next(waits)
    assert (gap.value.wanted, gap.value.oldest) == (41, 76)
    with pytest.raises(GapError) as gap:
        next(log.follow(75))
    assert (gap.value.wanted, gap.value.oldest) == (75, 76)
    assert values(islice(log.follow(76), 1)) == [bytes(7000)]


def test_a_trim_in_the_moment_of_looking_is_a_gap(
    log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trim between the acknowledged mark and the view of a reader or follower: GapError, or all of it; never a part."""
    log.append_many([bytes(7000)] * 40)
    engine_view = log.parts.contents.view

    def trim_first() -> Any:
        monkeypatch.setattr(log.parts.contents, "view", engine_view)
        log.trim(35)
        return engine_view()

    monkeypatch.setattr(log.parts.contents, "view", trim_first)
    with pytest.raises(GapError):
        next(log.follow(1))
    log.append_many([bytes(7000)] * 40)

    def trim_more() -> Any:
        monkeypatch.setattr(log.parts.contents, "view", engine_view)
        log.trim(60)
        return engine_view()

    monkeypatch.setattr(log.parts.contents, "view", trim_more)
    with pytest.raises(GapError):
        log.read(36)


def test_the_oldest_record_does_not_move_while_a_segment_is_being_sealed(log: walkit.WriteAheadLog) -> None:
    """Seal the first segment between two looks at the log: the oldest LSN stays 1."""
    while len(segment_set(log).open_segments) + len(log.parts.manifest_store.current.sealed) < 1:
        log.append(bytes(7000))
    segments = segment_set(log)

    class SealsWhenLookedAt(list[Any]):
        """A list of open segments whose first one is sealed the moment somebody looks."""

        def __iter__(self) -> Iterator[Any]:
            plain = list.__iter__(self)
            found = [s for s in plain if s.header is not None]
            segments.open_segments = list(found)
            segments._seal_one(found[0])
            return iter(segments.open_segments)

    segments.open_segments = SealsWhenLookedAt(segments.open_segments)
    assert log.first_lsn == 1
    assert [s.first_lsn for s in log.parts.manifest_store.current.sealed] == [1]


@pytest.mark.parametrize("when", ["walkit.segment.rotate", "walkit.segment.seal", "walkit.log.poison"])
def test_closing_from_an_events_callback_closes_once_it_has_returned(when: str) -> None:
    """Close the log in a callback of `events=`, on whichever thread: nothing hangs, and it is closed soon after."""
    storage = FaultyMemory()
    returned: list[bool] = []

    def close(name: str, _: Any) -> None:
        if name == when and not returned:
            opened.close()
            returned.append(True)

    opened = walkit.open(storage=storage, options=tiny(), events=close)
    for n in range(60):
        if when == "walkit.log.poison" and n == 30:
            storage.fail("synced_write", SEGMENTS, times=None)
        if Task(opened.append, bytes(4000)).join().error is not None:
            break
    wait_until(lambda: opened.parts.lifetime.ended, "the close")
    assert returned
    found = lsns(reopened(storage.inner))
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= opened.acked_lsn > 0 or when == "walkit.segment.rotate"
