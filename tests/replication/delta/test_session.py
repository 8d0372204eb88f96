"""The session of a delta reader: exact ranges or nothing, whatever the order of events."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.replication.delta.frames import Frames, frames_after
from tests.support.examples import examples
from tests.support.machines import that_did
from walkit.replication.delta.buffer import DELTA_BYTES_MAX, DeltaBuffer
from walkit.replication.delta.messages import DeltaEnd
from walkit.replication.delta.session import EDGES, DeltaEvent, DeltaSession, DeltaState


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


def test_a_range_that_misses_frames_is_never_a_delta() -> None:
    """Leave a frame out: the session overflows, and the next answer is an end."""
    session = DeltaSession(DeltaEnd())
    session.collect(with_delta=True)
    late = frames_after(DeltaEnd(), skip=1)
    session.append(late)
    assert session.state is DeltaState.NOT_SYNC
    assert session.collect(with_delta=True) == (DeltaEnd(), late.end, None)


def test_a_closed_session_keeps_and_answers_nothing_new() -> None:
    """Close it with frames kept, twice: they are gone, later ones change nothing, the last end is what it says."""
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


def test_the_table_has_every_edge_that_can_be_taken() -> None:
    """Look at all pairs: no event leaves CLOSED, only a session that keeps frames overflows."""
    assert all(
        after is DeltaState.CLOSED for (state, _), after in EDGES.items() if state is DeltaState.CLOSED
    )
    assert [state for state, event in EDGES if event is DeltaEvent.OVERFLOW] == [DeltaState.SYNCING]
    assert {state for state, event in EDGES if event is DeltaEvent.CLOSE} == set(DeltaState)


def test_the_buffer_keeps_one_contiguous_range() -> None:
    """Append frames that follow, one that overlaps and one that leaves a gap: after either of these it is empty."""
    for wrong in (frames_after(DeltaEnd()), frames_after(DeltaEnd(2, 128), skip=1)):
        buffer = DeltaBuffer()
        buffer.begin(DeltaEnd(1, 64))
        assert buffer.append(frames_after(DeltaEnd(1, 64)))
        assert not buffer.append(wrong)
        assert (buffer.size_bytes, buffer.take()) == (0, b"")


BOUND = 256


class SessionMachine(RuleBasedStateMachine):
    """A session beside a list of frames: every delta is the frames of its range, every range begins where one ended."""

    did: ClassVar[Counter[str]] = Counter()

    @initialize(unseen=st.integers(0, 2), before=st.integers(0, 2))
    def begin(self, unseen: int, before: int) -> None:
        """Open a session on a log of some frames, of which the last `unseen` are not durable yet and never given."""
        self.frames: list[Frames] = []
        self.given = 0
        for _ in range(before + unseen):
            self._write(64)
        self.given = len(self.frames)
        self.durable = before
        end = self.frames[before - 1].end if before else DeltaEnd()
        self.session = DeltaSession(end, seen_after_lsn=before + unseen, bytes_max=BOUND)
        self.ends = [end]
        self.closed = False

    def _write(self, size: int) -> None:
        end = self.frames[-1].end if self.frames else DeltaEnd()
        self.frames.append(frames_after(end, size=size))

    @rule(size=st.sampled_from([64, 128, BOUND, BOUND + 64]))
    def write(self, size: int) -> None:
        """Let a frame become durable; its notice comes later."""
        self._write(size)
        self.durable = len(self.frames)

    @precondition(lambda self: self.given < len(self.frames))
    @rule()
    def give(self) -> None:
        """Give the next frame."""
        self.session.append(self.frames[self.given])
        self.given += 1

    @precondition(lambda self: self.given > 0)
    @rule(back=st.integers(1, 3))
    def give_again(self, back: int) -> None:
        """Repeat a notice of one of the last frames."""
        self.session.append(self.frames[max(self.given - back, 0)])

    @precondition(lambda self: self.durable)
    @rule()
    def look(self) -> None:
        """Say how far the log is durable, which the notices may not have reached."""
        self.session.durable(self.frames[self.durable - 1].end)

    @precondition(lambda self: self.given == len(self.frames))
    @rule(size=st.sampled_from([64, 128, BOUND + 64]))
    def write_give_and_collect(self, size: int) -> None:
        """Let a frame become durable, give it, and collect."""
        self.write(size)
        self.give()
        self.collect(True)

    @rule(with_delta=st.booleans())
    def collect(self, with_delta: bool) -> None:
        """Collect: the range begins where the last one ended, ends at a frame, and a delta is all frames between."""
        state = self.session.state
        first, end, delta = self.session.collect(with_delta=with_delta)
        assert first == self.ends[-1]
        assert end.lsn <= len(self.frames)
        assert (delta is None) == (state is not DeltaState.SYNCING or not with_delta)
        if delta is not None:
            assert delta == b"".join(each.data for each in self.frames[first.lsn : end.lsn])
            assert len(delta) <= BOUND
            self.did["delta" if delta else "nothing new"] += 1
        elif with_delta and state is DeltaState.NOT_SYNC and end != first:
            self.did["end alone"] += 1
        self.ends.append(end)

    @precondition(lambda self: len(self.ends) > 6)
    @rule()
    def close(self) -> None:
        """Close it, after some answers."""
        self.did["closed"] += not self.closed
        self.session.close()
        self.closed = True

    @invariant()
    def it_is_bounded_and_knows_no_future(self) -> None:
        """Nothing above the bound is kept; a closed session stays closed."""
        if not hasattr(self, "session"):
            return
        assert self.session.buffered_bytes <= BOUND
        assert self.session.newest.lsn <= len(self.frames)
        assert (self.session.state is DeltaState.CLOSED) == self.closed


SessionMachine.TestCase.settings = settings(max_examples=examples(800), stateful_step_count=40)
TestSession = that_did(SessionMachine, "delta", "nothing new", "end alone", "closed")
