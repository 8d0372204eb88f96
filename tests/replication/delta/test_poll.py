"""The core of the delta poll: shared answers, long polls, versions, and every exit of a session."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.machines import that_did
from walkit.errors import OptionsError
from walkit.replication import ProtocolError
from walkit.replication.delta.buffer import DELTA_BYTES_MAX
from walkit.replication.delta.messages import (
    REFUSALS,
    DeltaEnd,
    PollAnswer,
    PollRefusal,
    PollRequest,
    checksum_of,
)
from walkit.replication.delta.poll_server import DeltaOptions, DeltaPolls, Reply
from walkit.replication.delta.session import DeltaSession, DeltaState

LOG_ID, EPOCH_ID = 7, 8


class Frames(NamedTuple):
    """An observed frame, as far as a session uses it."""

    first_lsn: int
    last_lsn: int
    position: int
    next_position: int
    data: bytes

    @property
    def end(self) -> DeltaEnd:
        """The end after these frames."""
        return DeltaEnd(self.last_lsn, self.next_position)


def frames_after(end: DeltaEnd, records: int = 1, size: int = 64, skip: int = 0) -> Frames:
    """Return a frame that follows `end`, or one that follows what lies `skip` records after it."""
    first = end.lsn + skip + 1
    position = end.position + 64 * skip
    fill = b"%d," % first
    data = (fill * (size // len(fill) + 1))[:size]
    return Frames(first, first + records - 1, position, position + size, data)


@dataclass
class Readers:
    """The poll core with a log that is made up and a clock that is moved by hand, and what every caller was given."""

    options: DeltaOptions = field(default_factory=DeltaOptions)
    now_ms: float = 1_000.0
    end: DeltaEnd = field(default_factory=DeltaEnd)

    def __post_init__(self) -> None:
        ids = count(1000)
        self.core = DeltaPolls(LOG_ID, EPOCH_ID, options=self.options, new_id=lambda: next(ids))
        self.given: dict[object, list[PollAnswer | PollRefusal]] = {}
        self._tokens = count(1)

    def take(self, replies: list[Reply]) -> None:
        """Note the replies."""
        for token, answer in replies:
            self.given.setdefault(token, []).append(answer)

    def ask(self, request: PollRequest) -> int:
        """Poll; return the token."""
        token = next(self._tokens)
        self.take(self.core.poll(request, token, self.end, self.now_ms))
        return token

    def append(self, records: int = 1, size: int = 64) -> Frames:
        """Let a frame become durable."""
        frames = frames_after(self.end, records, size)
        self.end = frames.end
        self.take(self.core.appended(frames, self.now_ms))
        return frames

    def wait(self, ms: float) -> None:
        """Let time pass, in steps of the core's wake times."""
        until = self.now_ms + ms
        while (wake := self.core.wake_at_ms) is not None and wake <= until:
            self.now_ms = max(self.now_ms, wake)
            self.take(self.core.tick(self.end, self.now_ms))
        self.now_ms = until
        self.take(self.core.tick(self.end, self.now_ms))

    def answered(self, token: int) -> PollAnswer:
        """Return the one answer that this caller was given."""
        (answer,) = self.given[token]
        assert isinstance(answer, PollAnswer)
        return answer

    def refused(self, token: int) -> PollRefusal:
        """Return the one refusal that this caller was given."""
        (answer,) = self.given[token]
        assert isinstance(answer, PollRefusal)
        return answer

    def begin(self, version: int = 2) -> PollAnswer:
        """Open a session."""
        return self.answered(self.ask(PollRequest(version=version)))

    def next(self, last: PollAnswer, **facts: object) -> int:
        """Ask for the answer after `last`."""
        facts = {"version": last.version, **facts}
        return self.ask(
            PollRequest(session_id=last.session_id, session_epoch=last.session_epoch + 1, **facts)  # type: ignore[arg-type]
        )

    def again(self, last: PollAnswer, **facts: object) -> int:
        """Ask for the same answer as `last` once more."""
        facts = {"version": last.version, **facts}
        return self.ask(PollRequest(session_id=last.session_id, session_epoch=last.session_epoch, **facts))  # type: ignore[arg-type]


# -- the long poll


def test_an_idle_poll_waits_and_then_says_that_nothing_is_new() -> None:
    """Poll a log that stands still: the answer comes after the long poll's time, with the next number and no byte."""
    readers = Readers()
    first = readers.begin()
    token = readers.next(first)
    readers.wait(99)
    assert token not in readers.given
    readers.wait(1)
    answer = readers.answered(token)
    assert (answer.session_epoch, answer.end, answer.delta) == (2, first.end, b"")


def test_a_poll_that_wants_no_waiting_is_answered_at_once() -> None:
    """Poll with wait_ms=0 once the interval is over: it passes the long poll by; so does the first of a session."""
    readers = Readers()
    first = readers.begin()
    readers.wait(1)
    assert readers.answered(readers.next(first, wait_ms=0)).delta == b""


def test_appends_in_one_interval_are_one_answer() -> None:
    """Append many frames right after an answer: a poll gets all of them in one, when the interval is over."""
    readers = Readers(options=DeltaOptions(interval_ms=5))
    token = readers.next(readers.begin())
    said = b"".join(readers.append().data for _ in range(20))
    assert token not in readers.given
    readers.wait(4)
    assert token not in readers.given
    readers.wait(1)
    assert readers.answered(token).delta == said


def test_a_repeated_notice_ends_a_wait() -> None:
    """Repeat the notice of a frame that an answer had: the poll is answered, that nothing is new."""
    readers = Readers()
    first = readers.begin()
    readers.wait(1)
    token = readers.next(first)
    frames = readers.append()
    answer = readers.answered(token)
    readers.wait(1)
    token = readers.next(answer)
    readers.take(readers.core.appended(frames, readers.now_ms))
    assert readers.answered(token).delta == b""


def test_one_poll_too_many_replaces_the_oldest() -> None:
    """Let five polls wait where four may: the first is refused, the others share the answer."""
    readers = Readers()
    first = readers.begin()
    readers.wait(1)
    tokens = [readers.next(first) for _ in range(5)]
    assert readers.refused(tokens[0]).reason == "busy"
    readers.append()
    assert len({id(readers.answered(token)) for token in tokens[1:]}) == 1


# -- numbers, sessions, versions


def test_the_next_number_releases_the_answer_before() -> None:
    """Ask for the next answer: what was kept for the last one is dropped, and is refused from then on, as stale."""
    readers = Readers(options=DeltaOptions(buffer_bytes=1024))
    first = readers.begin()
    readers.wait(1)
    token = readers.next(first)
    readers.append(size=1024)
    answer = readers.answered(token)
    readers.wait(1)
    readers.append(size=1024)
    assert readers.core.held_bytes == 2048
    following = readers.next(answer)
    assert readers.answered(following).delta is not None
    assert readers.core.held_bytes == 1024
    stale = readers.again(answer)
    assert readers.refused(stale).reason == "stale"
    assert readers.answered(readers.again(readers.answered(following))) is readers.answered(following)


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_epoch": 3},
        {"session_id": 1 << 40},
        {"session_epoch": 1, "applied": DeltaEnd(1, 64)},
    ],
)
def test_a_request_that_does_not_fit_opens_a_new_session(wrong: dict[str, object]) -> None:
    """Ask for a number that was not reached, in an unknown session, with an end never answered: a new session."""
    readers = Readers()
    first = readers.begin()
    fits = PollRequest(session_id=first.session_id, session_epoch=2)
    answer = readers.answered(readers.ask(replace(fits, **wrong)))  # type: ignore[arg-type]
    assert answer.session_id != first.session_id
    assert (answer.session_epoch, answer.delta) == (1, None)
    assert readers.core.sessions == (2 if "session_id" in wrong else 1)


def test_a_mismatch_while_another_poll_waits_refuses_that_one() -> None:
    """Let a poll wait and ask for a number beyond: the waiting one is refused, and gets nothing later."""
    readers = Readers()
    first = readers.begin()
    waits = readers.next(first)
    readers.answered(readers.ask(PollRequest(session_id=first.session_id, session_epoch=3)))
    assert readers.refused(waits).reason == "stale"
    readers.append()
    readers.wait(200)
    assert len(readers.given[waits]) == 1


def test_older_reader_gets_no_frames() -> None:
    """Ask with each version: all have the end and the identity, from 2 on also the range, the frames and the CRC."""
    readers = Readers()
    by_version = {}
    for version in (0, 1, 2, 9):
        first = readers.begin(version)
        readers.wait(1)
        by_version[version] = readers.next(first)
    frames = readers.append()
    for version, token in by_version.items():
        answer = readers.answered(token)
        assert (answer.end, answer.log_id, answer.epoch_id) == (frames.end, LOG_ID, EPOCH_ID)
        assert answer.version == min(version, 2)
        if version < 2:
            assert (answer.first, answer.delta, answer.crc) == (None, None, None)
        else:
            assert (answer.first, answer.delta, answer.crc) == (DeltaEnd(), frames.data, checksum_of(answer))


def test_a_retry_of_an_older_version_gets_the_end_of_the_same_answer() -> None:
    """Lose an answer with frames and ask again as an older reader: the same number and end, without the frames."""
    readers = Readers()
    first = readers.begin()
    readers.wait(1)
    token = readers.next(first)
    readers.append()
    said = readers.answered(token)
    old = readers.answered(readers.again(said, version=0))
    assert (old.session_epoch, old.end, old.delta) == (said.session_epoch, said.end, None)
    assert readers.answered(readers.again(said)) is said


@pytest.mark.parametrize(
    "wrong",
    [
        PollRequest(session_epoch=0),
        PollRequest(session_id=-1),
        PollRequest(version=-1),
        PollRequest(wait_ms=-1),
        PollRequest(applied=DeltaEnd(-1, 0)),
        PollRequest(applied=DeltaEnd(0, 1 << 70)),
    ],
)
def test_a_request_that_cannot_be_is_refused_whole(wrong: PollRequest) -> None:
    """Send values that no reader has: a typed error, and no session."""
    readers = Readers()
    with pytest.raises(ProtocolError):
        readers.ask(wrong)
    assert readers.core.sessions == 0


# -- the exits, and the bounds


def test_a_session_expires_and_keeps_nothing() -> None:
    """Stop polling, with frames kept: after the expiry the session is gone, and the old number opens a new one."""
    readers = Readers(options=DeltaOptions(expiry_ms=500))
    first = readers.begin()
    readers.append()
    readers.wait(499)
    assert (readers.core.sessions, readers.core.held_bytes) == (1, 64)
    readers.wait(1)
    assert (readers.core.sessions, readers.core.held_bytes, readers.core.wake_at_ms) == (0, 0, None)
    assert readers.answered(readers.next(first)).session_id != first.session_id


def test_a_session_with_a_poll_that_waits_does_not_expire() -> None:
    """Let a poll wait longer than sessions live: it is answered, and the session lives on from there."""
    readers = Readers(options=DeltaOptions(expiry_ms=50, long_poll_ms=200))
    token = readers.next(readers.begin())
    readers.wait(200)
    assert readers.answered(token).delta == b""
    assert readers.core.sessions == 1


def test_a_reader_that_hung_up_is_forgotten_soon() -> None:
    """Hang up and do not come again: the session ends after the time for retries, long before it would expire."""
    readers = Readers(options=DeltaOptions(retry_ms=100))
    token = readers.next(readers.begin())
    readers.core.on_disconnect(token, readers.now_ms)
    readers.wait(100)
    assert readers.core.sessions == 0
    readers.core.on_disconnect(token, readers.now_ms)


def test_a_reader_can_leave() -> None:
    """Say goodbye while a poll of the session waits, and again: the session is gone, all are refused as "left"."""
    readers = Readers()
    first = readers.begin()
    waits = readers.next(first)
    goodbye = PollRequest(session_id=first.session_id, leave=True)
    tokens = [waits, readers.ask(goodbye), readers.ask(goodbye)]
    assert [readers.refused(token).reason for token in tokens] == ["left"] * 3
    assert readers.core.sessions == 0


def test_sessions_are_bounded_and_the_place_of_one_that_expired_is_given_again() -> None:
    """Open one session too many: refused; once the first has expired there is room."""
    readers = Readers(options=DeltaOptions(sessions_max=2, expiry_ms=100, interval_ms=0))
    readers.answered(readers.next(readers.begin(), wait_ms=0))
    readers.wait(50)
    readers.answered(readers.next(readers.begin(), wait_ms=0))
    assert readers.refused(readers.ask(PollRequest())).reason == "full"
    readers.wait(50)
    readers.begin()
    counts = readers.core.counts
    assert (readers.core.sessions, counts.sessions_opened, counts.sessions_closed) == (2, 3, 1)


def test_a_session_that_was_never_asked_again_makes_room() -> None:
    """Open sessions by first polls alone, more than there is room for: they go after a while, and no other does."""
    readers = Readers(options=DeltaOptions(sessions_max=3, interval_ms=0, retry_ms=1_000))
    last = readers.answered(readers.next(readers.begin(), wait_ms=0))
    readers.begin()
    readers.begin()
    readers.wait(999)
    assert readers.refused(readers.ask(PollRequest())).reason == "full"
    readers.wait(1)
    assert {readers.begin().session_id for _ in range(2)} == {1003, 1004}
    assert readers.refused(readers.ask(PollRequest())).reason == "full"
    assert readers.core.sessions == 3 and readers.core.counts.sessions_closed == 2
    assert readers.answered(readers.next(last, wait_ms=0)).session_id == last.session_id


def test_what_a_reader_has_applied_is_known_and_never_goes_back() -> None:
    """Poll with ends that grow, then with an older one: the newest is what counts."""
    readers = Readers()
    last = readers.begin()
    for n in range(3):
        frames = readers.append()
        readers.wait(1)
        last = readers.answered(readers.next(last))
        readers.again(last, applied=frames.end)
        assert readers.core.applied() == {last.session_id: DeltaEnd(n + 1, 64 * (n + 1))}
    readers.again(last, applied=DeltaEnd(1, 64))
    assert readers.core.applied() == {last.session_id: readers.end}


def test_every_reason_has_its_words() -> None:
    """Look at the table of refusals: each is a sentence's beginning, and none is empty."""
    assert all(words and words[0].islower() for words in REFUSALS.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"buffer_bytes": -1},
        {"interval_ms": -0.5},
        {"sessions_max": 0},
        {"waiting_max": 1.5},
        {"expiry_ms": 0},
    ],
)
def test_options_out_of_their_bounds_are_refused(wrong: dict[str, float]) -> None:
    """Give numbers that make no sense: an OptionsError that names the option."""
    with pytest.raises(OptionsError) as caught:
        DeltaOptions(**wrong)  # type: ignore[arg-type]
    assert caught.value.option in wrong


# -- the frames of one session


def test_a_frame_above_the_bound_overflows_by_itself() -> None:
    """Append one frame of the bound, and one a byte larger: the first is kept, the second never joined."""
    for size, state in ((DELTA_BYTES_MAX, DeltaState.SYNCING), (DELTA_BYTES_MAX + 1, DeltaState.NOT_SYNC)):
        session = DeltaSession(DeltaEnd())
        session.collect(with_delta=True)
        session.append(frames_after(DeltaEnd(), size=size))
        assert session.state is state


def test_a_frame_that_is_not_kept_is_never_encoded() -> None:
    """Append frames whose bytes cannot be had, to sessions that keep none: nothing asks for them."""

    class Unread(Frames):
        @property
        def data(self) -> bytes:
            raise AssertionError("the bytes were asked for")

    frames = Unread(*frames_after(DeltaEnd(), size=DELTA_BYTES_MAX + 1))
    old, new = DeltaSession(DeltaEnd()), DeltaSession(DeltaEnd())
    old.collect(with_delta=False)
    new.collect(with_delta=True)
    old.append(frames)
    new.append(frames)
    assert old.newest == new.newest == frames.end


def test_a_closed_session_keeps_and_answers_nothing_new() -> None:
    """Close it with frames kept, twice: they are gone, later ones change nothing, and it reports the last end."""
    session = DeltaSession(DeltaEnd())
    session.collect(with_delta=True)
    session.append(frames_after(DeltaEnd()))
    session.close()
    session.close()
    assert (session.state, session.buffered_bytes) == (DeltaState.CLOSED, 0)
    newest = session.newest
    session.append(frames_after(newest))
    session.durable(DeltaEnd(100, 6400))
    assert session.newest == newest
    assert session.collect(with_delta=True) == (DeltaEnd(), DeltaEnd(), None)


def test_a_range_that_misses_or_repeats_records_is_never_a_delta() -> None:
    """Append a frame, then one that overlaps it or leaves a gap: no frame is kept, and the next answer is an end."""
    for wrong in (frames_after(DeltaEnd(), records=2), frames_after(DeltaEnd(1, 64), skip=1)):
        session = DeltaSession(DeltaEnd())
        session.collect(with_delta=True)
        session.append(frames_after(DeltaEnd()))
        session.append(wrong)
        assert (session.state, session.buffered_bytes) == (DeltaState.NOT_SYNC, 0)
        assert session.collect(with_delta=True) == (DeltaEnd(), wrong.end, None)


# -- the hazards of the seed


class PollMachine(RuleBasedStateMachine):
    """One reader over a network that loses, repeats and delays, beside the list of all frames: it skips none."""

    did: ClassVar[Counter[str]] = Counter()

    @initialize(version=st.sampled_from([0, 1, 2, 2, 2]))
    def begin(self, version: int) -> None:
        """Begin with an empty log."""
        self.readers = Readers(options=DeltaOptions(buffer_bytes=256, expiry_ms=400, retry_ms=200))
        self.version = version
        self.frames: list[Frames] = []
        self.session_id, self.number = 0, 1
        self.known: dict[tuple[int, int], PollAnswer] = {}
        self.taken, self.checked = DeltaEnd(), set[object]()
        self.asked: list[tuple[PollRequest, int]] = []
        self.started = False

    @rule(size=st.sampled_from([64, 128, 320]), records=st.integers(1, 3))
    def append(self, size: int, records: int) -> None:
        """Let a frame become durable."""
        self.frames.append(self.readers.append(records, size))

    @rule(ms=st.sampled_from([1, 10, 100, 450]))
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.readers.wait(ms)

    @rule(wait_ms=st.sampled_from([None, 0]))
    def ask(self, wait_ms: int | None) -> None:
        """Ask for the answer that the reader needs next: the first time, or once more."""
        request = PollRequest(
            session_id=self.session_id, session_epoch=self.number, version=self.version, wait_ms=wait_ms
        )
        self.asked = [*self.asked[-5:], (request, self.readers.ask(request))]

    @rule(size=st.sampled_from([0, 64, 128, 320]), late=st.booleans(), gives_up=st.booleans())
    def read_on(self, size: int, late: bool, gives_up: bool) -> None:
        """Ask over a good link, before or after a frame becomes durable, and give up or take the answer."""
        if late and size:
            self.append(size, 1)
        self.ask(None)
        if gives_up:
            self.on_disconnect(len(self.asked) - 1)
        if size and not late:
            self.append(size, 1)
        self.wait(100)
        if not gives_up:
            self.take()

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 5))
    def repeat_an_old_request(self, which: int) -> None:
        """Let a request of before come again, whose answer goes nowhere."""
        request, _ = self.asked[which % len(self.asked)]
        self.readers.ask(request)

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 5))
    def on_disconnect(self, which: int) -> None:
        """Give a poll up."""
        _, token = self.asked.pop(which % len(self.asked))
        if token not in self.readers.given:
            self.did["given up"] += 1
            self.readers.core.on_disconnect(token, self.readers.now_ms)

    @precondition(lambda self: any(token in self.readers.given for _, token in self.asked))
    @rule()
    def take(self) -> None:
        """Take the newest answer that has come: its range begins where the reader is, or the session is new."""
        request, token = next(each for each in reversed(self.asked) if each[1] in self.readers.given)
        self.asked.remove((request, token))
        (answer,) = self.readers.given[token]
        if (request.session_id, request.session_epoch) != (self.session_id, self.number):
            self.did["late"] += 1
            return  # an answer to an older request: a reader drops it whole
        if isinstance(answer, PollRefusal):
            self.did["refused"] += 1
            self.session_id, self.number = 0, 1
            self.asked.clear()  # a reader that starts again takes no answer to an earlier request
            return
        if answer.session_id == self.session_id and answer.delta is not None:
            assert answer.first is not None
            self.did["delta" if answer.delta else "nothing new"] += 1
            assert answer.first.lsn == self.taken.lsn, "a delta that does not continue from the reader's LSN"
        self.session_id, self.number = answer.session_id, answer.session_epoch + 1
        assert answer.end.lsn >= self.taken.lsn
        self.taken = answer.end

    @invariant()
    def answers_are_of_the_log(self) -> None:
        """Every answer given: one a number, with exactly the frames of its range."""
        if not hasattr(self, "readers"):
            return
        core = self.readers.core
        for token, answers in self.readers.given.items():
            (answer,) = answers
            if token in self.checked or isinstance(answer, PollRefusal):
                continue
            self.checked.add(token)
            key = answer.session_id, answer.session_epoch
            assert self.known.setdefault(key, answer) == answer
            if answer.delta is not None and answer.first is not None:
                first, last = answer.first.lsn, answer.end.lsn
                within = [
                    each.data for each in self.frames if first < each.first_lsn and each.last_lsn <= last
                ]
                assert answer.delta == b"".join(within)
                assert answer.crc == checksum_of(answer)
        assert core.held_bytes <= 2 * 256 * max(core.sessions, 1)


PollMachine.TestCase.settings = settings(max_examples=examples(400), stateful_step_count=40)
TestPolls = that_did(PollMachine, "delta", "nothing new", "given up", "late", "refused")
