"""The two protocol cores over a link that loses, repeats, reorders, damages and breaks: always a prefix, ends equal."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.replication.worlds import World, corrupted, history_of

INDEX = st.integers(0, 7)


class BadLink(RuleBasedStateMachine):
    """Rules are what can happen to the link, to either process, and to the primary's log."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(history_of(9, 7, 8, 6))

    @rule(frames=st.integers(1, 12))
    def grow(self, frames: int) -> None:
        """More frames become durable."""
        self.world.grow(frames)

    @precondition(lambda self: self.world.to_publisher)
    @rule(fate=st.sampled_from(["deliver", "deliver", "deliver", "lose", "repeat"]), index=INDEX)
    def to_publisher(self, fate: str, index: int) -> None:
        """One message to the publisher, not always the first, meets its fate."""
        self._meet(self.world.to_publisher, self.world.deliver_to_publisher, fate, index, 0)

    @precondition(lambda self: self.world.to_subscriber)
    @rule(
        fate=st.sampled_from(["deliver", "deliver", "deliver", "lose", "repeat", "damage"]),
        index=INDEX,
        where=st.integers(0, 1 << 20),
    )
    def to_subscriber(self, fate: str, index: int, where: int) -> None:
        """One message to the subscriber, not always the first, meets its fate."""
        self._meet(self.world.to_subscriber, self.world.deliver_to_subscriber, fate, index, where)

    def _meet(self, line: Any, deliver: Any, fate: str, index: int, where: int) -> None:
        at = index % len(line) if index > 4 else 0
        data = line[at]
        if fate != "repeat":
            del line[at]
        if fate == "damage":
            data = corrupted(data, where)
        if fate != "lose":
            deliver(data)

    @rule(ms=st.sampled_from([1.0, 60.0, 600.0, 1100.0, 20_000.0]))
    def wait(self, ms: float) -> None:
        """Time passes."""
        self.world.wait(ms)

    @rule()
    def flow(self) -> None:
        """The link works for a while, so that a test gets somewhere."""
        for _ in range(6):
            if self.world.to_publisher:
                self.world.deliver_to_publisher(self.world.to_publisher.popleft())
            if self.world.to_subscriber:
                self.world.deliver_to_subscriber(self.world.to_subscriber.popleft())

    @rule()
    def break_link(self) -> None:
        """The connection breaks."""
        self.world.break_link()

    @rule()
    def restart_replica(self) -> None:
        """The replica is killed and begins again."""
        self.world.restart_replica()

    @rule()
    def restart_publisher(self) -> None:
        """The publisher's session is gone; the subscriber has not noticed."""
        self.world.publisher = None

    @invariant()
    def prefix(self) -> None:
        """See World.check."""
        self.world.check()

    def teardown(self) -> None:
        """The link is mended: the replica ends equal."""
        self.world.grow(len(self.world.history.frames))
        self.world.settle()
        self.world.check()
        assert self.world.end == self.world.history.end()


TestBadLink = BadLink.TestCase
TestBadLink.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
