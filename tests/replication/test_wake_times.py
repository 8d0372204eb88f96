"""The cores say when they are to be woken: at that time there is something to do, or they say none."""

from __future__ import annotations

import pytest

from walkit.errors import StorageError
from walkit.replication.core.actions import End, Send
from walkit.replication.core.publisher import Publisher
from walkit.replication.delta.messages import DeltaEnd, PollAnswer
from walkit.replication.delta.replayer import DeltaReplayer, LoadRange, ReplayLimits
from walkit.replication.protocol.lineage import PrimaryState
from walkit.replication.protocol.messages import Hello

STANDING = PrimaryState(
    log_id=5, created_us=0, ack_order="append", lineage=(), durable_lsn=0, durable_position=0, oldest_lsn=1,
    oldest_position=0, there=None, visible_lsn=0,
)  # fmt: skip
ODD_MS = [160.7, 0.1 + 0.2, 1389.4999999999998, 1e9 / 3, 947.157165193392]


@pytest.mark.parametrize("now_ms", ODD_MS)
def test_a_publisher_that_is_woken_at_its_time_acts(now_ms: float) -> None:
    """Tick a publisher at exactly the time that it names, at times that do not add up: each tick does something."""
    waiting = Publisher(hello_ms=0.3)
    waiting.began(now_ms)
    assert waiting.wake_at_ms is not None
    assert isinstance(waiting.tick(waiting.wake_at_ms)[-1], End)
    streaming = Publisher(heartbeat_ms=0.1, silence_ms=0.7)
    state = STANDING
    streaming.admitted(Hello(name="r"), state, now_ms)
    for _ in range(100):
        if streaming.wake_at_ms is None:
            break
        steps = streaming.tick(streaming.wake_at_ms)
        assert isinstance(steps[0], Send | End)
    assert streaming.state == "ended"


def test_a_load_that_waits_for_room_names_no_time() -> None:
    """Let a load fail while others have all places: its time comes, and the replayer waits for a load, not a time."""
    limits = ReplayLimits(loads_max=1, load_bytes=100)
    replayer = DeltaReplayer(DeltaEnd(), log_id=7, limits=limits, chance=lambda: 1.0)
    answer = PollAnswer(version=0, session_id=1, session_epoch=1, end=DeltaEnd(4, 400), log_id=7, epoch_id=0)
    (first,) = replayer.answered(answer, 0.0)
    assert isinstance(first, LoadRange)
    (second,) = replayer.load_failed(first.number, StorageError("once"), 0.0)
    assert isinstance(second, LoadRange)
    due_ms = replayer.wake_at_ms
    assert due_ms is not None
    assert due_ms > 0
    assert replayer.tick(due_ms) == []
    assert replayer.wake_at_ms is None
    steps = replayer.loaded(second.number, None, 100, DeltaEnd(second.last_lsn, 200), due_ms + 1)
    assert [step.first_lsn for step in steps if isinstance(step, LoadRange)] == [1]
