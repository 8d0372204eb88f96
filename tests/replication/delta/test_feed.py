"""Delta readers of a real log: frames as they are in its files, and no observer after any way out of a session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import walkit
from tests.support.logs import memory_log, tiny
from tests.support.threads import Task, wait_until
from walkit.errors import OptionsError
from walkit.log.observe import Observation
from walkit.replication import ProtocolError
from walkit.replication.delta.messages import (
    DeltaEnd,
    PollAnswer,
    PollRefusal,
    PollRequest,
    checksum_of,
    delta_frames,
)
from walkit.replication.delta.poll_server import DeltaOptions
from walkit.replication.delta.server_feed import DeltaFeed

NEVER_MS = 3_600_000


class Clock:
    """A clock that the test moves."""

    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """An empty log in memory, with segments that no test fills by accident."""
    with memory_log(tiny(segment_bytes=1 << 20)) as made:
        yield made


def answered(answer: PollAnswer | PollRefusal) -> PollAnswer:
    """Return the answer, which is not a refusal."""
    assert isinstance(answer, PollAnswer)
    return answer


def refused(answer: PollAnswer | PollRefusal | None) -> str:
    """Return the reason of a refusal."""
    assert isinstance(answer, PollRefusal)
    return answer.reason


def after(last: PollAnswer, **facts: Any) -> PollRequest:
    """Return the request for the answer after `last`."""
    return PollRequest(
        session_id=last.session_id, session_epoch=last.session_epoch + 1, applied=last.end, **facts
    )


def is_observed(log: walkit.WriteAheadLog) -> bool:
    """Return whether the log has an observer, or something that waits for a sync."""
    delivery = log.parts.driver.delivery
    return bool(delivery.observers or delivery.durable_listeners)


def collected(feed: DeltaFeed, last: PollAnswer, lsn: int) -> list[PollAnswer]:
    """Poll until an answer's end has come to this LSN; return the answers."""
    answers = [last]
    while answers[-1].end.lsn < lsn:
        assert len(answers) < 10_000, f"no answer names LSN {lsn}"
        answers.append(answered(feed.poll(after(answers[-1]))))
    return answers[1:]


def test_deltas_are_the_frames_of_the_log(log: walkit.WriteAheadLog) -> None:
    """Append a mixed load and poll: every delta is verified, and is byte for byte what the segments hold."""
    log.append(b"before")
    feed = DeltaFeed(log)
    last = answered(feed.poll(PollRequest()))
    assert (last.end.lsn, last.delta, last.log_id) == (1, None, log.parts.core.identity.log_id)
    log.append(b"1", key=b"k", timestamp=5)
    log.append_many([b"2", None, bytes(300)] * 10)
    with log.transaction() as tx:
        tx.delete(b"k")
    answers = collected(feed, last, 33)
    frames = [frame for answer in answers for frame in delta_frames(answer)]
    files = {header.position: bytes(data) for header, data, _ in log._now()[0].frames(2)}
    assert {header.position: bytes(data) for header, data in frames} == files
    assert frames[0][0].first_lsn == 2
    feed.stop()


def test_marker_frames_between_two_ends_hide_no_record() -> None:
    """Let the idle writer put markers between records: deltas leave them out, and every record comes once."""
    with memory_log(tiny(idle_marker_ms=1)) as log, DeltaFeed(log) as feed:
        last = answered(feed.poll(PollRequest()))
        seen: list[int] = []
        for lsn in range(1, 5):
            log.append(b"x")
            for answer in collected(feed, last, lsn):
                seen += [header.first_lsn for header, _ in delta_frames(answer)]
                last = answer
            wanted = lsn
            wait_until(lambda n=wanted: log.statistics().marker_frames >= n)  # type: ignore[misc]
        assert seen == [1, 2, 3, 4]


def test_what_is_acknowledged_and_not_durable_is_never_sent() -> None:
    """Begin a session between an acknowledgement and its sync: each record is told once it is durable, not before."""
    options = tiny(durability="interval", interval_ms=NEVER_MS)
    with memory_log(options) as log, DeltaFeed(log, DeltaOptions(long_poll_ms=5)) as feed:
        log.append(b"acknowledged before the session")
        last = answered(feed.poll(PollRequest()))
        assert last.end.lsn == 0
        log.sync()  # no append comes after the first poll
        last = collected(feed, last, 1)[-1]
        assert (last.end.lsn, last.delta) == (1, None)
        log.append(b"and after")
        last = answered(feed.poll(after(last)))
        assert last.end.lsn == 1
        log.sync()
        answers = collected(feed, last, 2)
        assert answers[-1].end.lsn == 2
        log.append(b"from here on with deltas")
        log.sync()
        (answer,) = collected(feed, answers[-1], 3)
        assert [header.first_lsn for header, _ in delta_frames(answer)] == [3]


@pytest.mark.parametrize("interval_ms", [300, 0.1])
def test_an_append_wakes_a_poll_before_the_long_polls_time(
    log: walkit.WriteAheadLog, interval_ms: float
) -> None:
    """Let a poll wait, and append before and after the next answer may be given: it is given then, and no later."""
    feed = DeltaFeed(log, DeltaOptions(long_poll_ms=60_000, interval_ms=interval_ms, expiry_ms=600_000))
    last = answered(feed.poll(PollRequest()))
    task = Task(feed.poll, after(last))
    wait_until(lambda: feed.described()[0].waiting == 1)
    log.append(b"x")
    assert answered(task.result()).end.lsn == 1
    feed.stop()


# -- every exit


def test_there_is_an_observer_only_while_there_is_a_session(log: walkit.WriteAheadLog) -> None:
    """Make a feed, poll, leave, poll again, stop: the log is observed in between, not before, after or by nonsense."""
    feed = DeltaFeed(log)
    assert not is_observed(log)
    with pytest.raises(ProtocolError):
        feed.poll(PollRequest(session_epoch=0))
    assert not is_observed(log)
    for _ in range(2):
        last = answered(feed.poll(PollRequest()))
        assert is_observed(log)
        assert refused(feed.poll(after(last, leave=True))) == "left"
        assert not is_observed(log)
    feed.poll(PollRequest())
    feed.stop()
    feed.stop()
    assert not is_observed(log)
    assert refused(feed.poll(PollRequest())) == "closed"


def test_an_error_in_the_callback_ends_sessions_and_observer(log: walkit.WriteAheadLog) -> None:
    """Have the clock raise under a frame: a waiting poll is refused, the observer is gone, an event names the error."""
    clock, broken = Clock(), False

    def clock_ms() -> float:
        if broken:
            raise MemoryError("no room")
        return clock()

    events: list[dict[str, Any]] = []
    log.events.add_listener(
        lambda name, data: events.append(data) if name == "walkit.callback.fail" else None
    )
    feed = DeltaFeed(log, DeltaOptions(long_poll_ms=60_000), clock_ms=clock_ms)
    last = answered(feed.poll(PollRequest()))
    call = feed.begin(after(last))
    broken = True
    log.append(b"x")
    wait_until(lambda: bool(events))
    assert refused(call.answer) == "failed"
    assert not is_observed(log)
    assert "no room" in events[0]["error"]
    broken = False
    again = answered(feed.poll(after(last)))
    assert (again.session_id != last.session_id, again.end.lsn, again.delta) == (True, 1, None)
    feed.stop()


def test_an_observer_that_was_lost_is_replaced_and_its_sessions_end(log: walkit.WriteAheadLog) -> None:
    """Have the log give its observer up: the next poll gets a new session, whose first answer is an end alone."""
    feed = DeltaFeed(log)
    last = answered(feed.poll(PollRequest()))
    observation = feed._observation
    assert isinstance(observation, Observation)
    observation._lose(walkit.GapError(1, 5))
    log.append(b"x")
    again = answered(feed.poll(after(last)))
    assert (again.session_id != last.session_id, again.end.lsn, again.delta) == (True, 1, None)
    assert len(log.parts.driver.delivery.observers) == 1
    feed.stop()


def test_a_log_that_promises_nothing_has_no_delta_readers() -> None:
    """Make a feed of a log of level "none": an OptionsError."""
    with memory_log(tiny(durability="none")) as log, pytest.raises(OptionsError):
        DeltaFeed(log)


# -- what a reader does not believe


def test_every_changed_bit_of_a_delta_is_noticed(log: walkit.WriteAheadLog) -> None:
    """Flip bits all over a delta, and its checksum with them: nothing of it is used, with either check alone."""
    feed = DeltaFeed(log)
    last = answered(feed.poll(PollRequest()))
    log.append(b"value", key=b"key")
    (answer,) = collected(feed, last, 1)
    feed.stop()
    assert answer.delta is not None
    for bit in range(0, 8 * len(answer.delta), 7):
        data = bytearray(answer.delta)
        data[bit // 8] ^= 1 << bit % 8
        changed = replace(answer, delta=bytes(data))
        with pytest.raises(ProtocolError):
            delta_frames(changed)
        with pytest.raises((ProtocolError, walkit.FormatVersionError)):
            delta_frames(replace(changed, crc=checksum_of(changed)))


@pytest.mark.parametrize(
    "facts",
    [
        {"first": DeltaEnd(1, 0)},
        {"first": DeltaEnd(0, 1 << 20)},
        {"end": DeltaEnd(3, 1 << 20)},
        {"end": DeltaEnd(2, 64)},
        {"log_id": 1},
        {"epoch_id": 1},
        {"delta": b""},
    ],
)
def test_a_delta_that_does_not_cover_its_range_is_refused(
    log: walkit.WriteAheadLog, facts: dict[str, Any]
) -> None:
    """Change range or identity of an answer, with the right checksum for it: the frames say otherwise."""
    feed = DeltaFeed(log)
    last = answered(feed.poll(PollRequest()))
    log.append(b"1")
    log.append(b"2")
    assert log.parts.driver.delivery.drain()
    answer = collected(feed, last, 2)[-1]
    feed.stop()
    assert delta_frames(answer)
    wider = replace(answer, end=DeltaEnd(2, answer.end.position + 64))
    assert delta_frames(replace(wider, crc=checksum_of(wider)))
    with pytest.raises(ProtocolError):
        delta_frames(wider)
    changed = replace(answer, **facts)
    with pytest.raises(ProtocolError):
        delta_frames(replace(changed, crc=checksum_of(changed)))
