"""The session of a delta reader: exact ranges or nothing, whatever the order of events."""

from __future__ import annotations

from tests.replication.delta.frames import Frames, frames_after
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
