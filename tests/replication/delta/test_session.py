"""The session of a delta reader: exact ranges or nothing, whatever the order of events."""

from __future__ import annotations

from tests.replication.delta.frames import Frames, frames_after
from walkit.replication.delta.buffer import DELTA_BYTES_MAX
from walkit.replication.delta.messages import DeltaEnd
from walkit.replication.delta.session import DeltaSession, DeltaState


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
