"""The two protocol cores over a link that loses, repeats, reorders, damages and breaks: always a prefix, ends equal."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.replication.sim_network import World, corrupted, history_of
from tests.support.examples import examples

# Most messages arrive, or a test gets nowhere; each way to go wrong is met often enough.
FATES = {"deliver": 10, "lose": 1, "repeat": 1, "overtake": 2, "damage": 1}

TROUBLE = st.sampled_from(
    (
        "",
        "",
        "60",
        "600",
        "1100",
        "20000",
        "the link breaks",
        "the replica restarts",
        "the session ends unnoticed",
    )
)


class BadLink(RuleBasedStateMachine):
    """Rules are what can happen to the link, to either process, and to the primary's log."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(history_of(9, 7, 8, 6), window_bytes=6000, batch_bytes=500)
        self.world.grow(5)

    @rule(
        frames=st.integers(0, 6), messages=st.integers(1, 40), seed=st.integers(0, 1 << 16), trouble=TROUBLE
    )
    def go_on(self, frames: int, messages: int, seed: int, trouble: str) -> None:
        """More frames become durable, messages in both directions meet their fates, and perhaps there is trouble."""
        world = self.world
        world.grow(frames)
        chance = random.Random(seed)
        for turn, fate in enumerate(chance.choices(list(FATES), list(FATES.values()), k=messages)):
            where = chance.randrange(1 << 20)
            if (turn % 2 and world.to_publisher) or not world.to_subscriber:
                # Answers that arrive out of order end the session, as they should: here they are lost or repeated.
                answers = {"damage": "repeat", "overtake": "deliver"}.get(fate, fate)
                _meet(world.to_publisher, world.deliver_to_publisher, answers, where)
            else:
                _meet(world.to_subscriber, world.deliver_to_subscriber, fate, where)
            if not chance.randrange(4):
                world.import_waiting()
            world.check()
        if trouble == "the link breaks":
            world.break_link()
        elif trouble == "the replica restarts":
            world.restart_replica()
        elif trouble == "the session ends unnoticed":
            world.publisher = None
        elif trouble:
            world.wait(float(trouble))

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


def _meet(line: deque[bytes], deliver: Callable[[bytes], None], fate: str, where: int) -> None:
    """Let one message meet its fate: mostly the first, one further behind where it overtakes."""
    if not line:
        return
    at = where % len(line) if fate == "overtake" else 0
    data = line[at]
    if fate != "repeat":
        del line[at]
    if fate == "damage":
        data = corrupted(data, where)
    if fate != "lose":
        deliver(data)


TestBadLink = BadLink.TestCase
TestBadLink.settings = settings(max_examples=examples(60), stateful_step_count=30)
