"""The table of states and edges: each edge is taken by a core, no other one can be, and the documents have them all."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from scripts import make_docs
from tests.replication.forged_messages import welcome
from tests.replication.frame_history import messages_of, whole
from tests.replication.test_cores import hello_at
from walkit.errors import GapError
from walkit.events import EVENTS, EventSink
from walkit.format.manifest import LogEnd
from walkit.replication.core.actions import PublisherStep
from walkit.replication.core.lag import CATCH_UP_MS
from walkit.replication.core.publisher import Publisher
from walkit.replication.core.states import (
    EDGES,
    MOVES_KEPT,
    SPANS_KEPT,
    STATES,
    Edge,
    StateTracker,
    report_moves,
)
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.protocol.messages import Ack, Heartbeat, Plan, Welcome

FAR = 7
"""An LSN that the replica of these tests does not have at first."""


def source_at(lsn: int) -> Welcome:
    """A welcome of a source that ends at this LSN."""
    return welcome(whole(), log_id=5, source_lsn=lsn, source_position=lsn * 64)


class ReplicaDriver:
    """A subscriber core, led over one edge after the other."""

    def __init__(self) -> None:
        self.core, self.now = Subscriber("r", bootstraps=True), 0.0
        self.states = self.core.states

    def go(self, end: str) -> None:
        """Cause the edge from the state that it is in to `end`."""
        self.now += 1
        core, now = self.core, self.now
        causes: dict[str, Callable[[], object]] = {
            "connecting": self._connect,
            "bootstrapping": lambda: core.receive(Plan(manifest=b"", sizes=(64,), snapshot_lsn=0), now),
            "rewinding": lambda: core.states.move("rewinding", now),
            "detached": lambda: core.lost("cut", now),
            "greeting": lambda: core.connected(now),
            "failed": lambda: core.fail(GapError(1, 2), now),
            "stopped": lambda: core.states.move("stopped", now),
            "streaming": self._stream,
            "catching up": self._lag,
        }
        causes[end]()

    def _connect(self) -> None:
        core, now = self.core, self.now
        if self.states.state == "new":
            core.start(now)
        elif self.states.state == "bootstrapping":
            core.published(LogEnd(), (), now)
        elif self.states.state == "rewinding":  # the log was opened again, and has another core
            self.core = Subscriber("r", bootstraps=True)
            self.core.continue_as(core)
            self.core.start(now)
        else:
            core.tick(now + 60_000)

    def _stream(self) -> None:
        if self.states.state == "greeting":
            self.core.receive(source_at(0), self.now)
        else:
            self.core.imported(LogEnd(last_lsn=FAR, position=FAR * 64, chain=1), self.now)

    def _lag(self) -> None:
        if self.states.state == "greeting":
            self.core.receive(source_at(FAR), self.now)
            return
        for at in (self.now, self.now + CATCH_UP_MS):
            self.core.receive(Heartbeat(sent_position=0, source_lsn=FAR, source_position=FAR * 64), at)


class SessionDriver:
    """A publisher core over a real history, led over one edge after the other."""

    def __init__(self) -> None:
        self.core, self.now = Publisher(), 0.0
        self.states = self.core.states
        self.history = whole()
        self.history.durable -= 1
        self.steps: list[PublisherStep] = []
        self.core.began(0.0)

    def go(self, end: str) -> None:
        """Cause the edge from the state that it is in to `end`."""
        self.now += 1
        core, now, history = self.core, self.now, self.history
        if end == "ended":
            core.gone(now, "the call is over")
        elif end == "planning":
            hello = replace(hello_at(history, 0), bootstrap=True)
            core.admitted(
                hello, replace(history.primary_state(hello), oldest_lsn=5, oldest_position=320), now
            )
        elif end == "bootstrapping":
            core.planned(Plan(manifest=b"", sizes=(64,), snapshot_lsn=0), now)
        elif self.states.state == "waiting":
            hello = hello_at(history, 0 if end == "catching up" else history.durable)
            self.steps += core.admitted(hello, history.primary_state(hello), now)
        elif end == "streaming":
            self._acknowledge_all()
        else:
            history.durable += 1
            self.steps += core.source_moved(history.end().last_lsn, history.end().position, now)
            core.tick(now + CATCH_UP_MS)

    def _acknowledge_all(self) -> None:
        while messages_of(self.core, self.history, self.steps, self.now):
            self.steps = self.core.receive(Ack(end=self.core.sent), self.now)


PATHS = {
    ("replica", "new"): (),
    ("replica", "detached"): ("connecting", "detached"),
    ("replica", "connecting"): ("connecting",),
    ("replica", "greeting"): ("connecting", "greeting"),
    ("replica", "catching up"): ("connecting", "greeting", "catching up"),
    ("replica", "streaming"): ("connecting", "greeting", "streaming"),
    ("replica", "bootstrapping"): ("connecting", "greeting", "streaming", "bootstrapping"),
    ("replica", "rewinding"): ("connecting", "failed", "rewinding"),
    ("replica", "failed"): ("connecting", "failed"),
    ("replica", "stopped"): ("connecting", "stopped"),
    ("session", "waiting"): (),
    ("session", "catching up"): ("catching up",),
    ("session", "streaming"): ("streaming",),
    ("session", "planning"): ("planning",),
    ("session", "bootstrapping"): ("planning", "bootstrapping"),
    ("session", "ended"): ("ended",),
}
"""How a new core comes to each state."""


def driver_at(side: str, state: str) -> ReplicaDriver | SessionDriver:
    """A core that was led to this state."""
    driver = ReplicaDriver() if side == "replica" else SessionDriver()
    for step in PATHS[side, state]:
        driver.go(step)
    assert driver.states.state == state
    return driver


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.side}: {edge.start} to {edge.end}")
def test_each_edge_is_taken_and_emits_its_event(edge: Edge) -> None:
    """Lead a core to the edge's start and cause it: that edge and no other one is noted, and its event is sent."""
    driver = driver_at(edge.side, edge.start)
    driver.states.moves.clear()
    driver.go(edge.end)
    assert [move.edge for move in driver.states.moves] == [edge]
    assert driver.states.moves[0].lasted_ms > 0 or edge.start == "new"
    events: list[tuple[str, dict[str, Any]]] = []
    report_moves(driver.states, EventSink(lambda name, facts: events.append((name, facts))), name="r")
    ((name, facts),) = events
    assert name == edge.event and name in EVENTS
    assert (facts["before"], facts["state"], facts["name"]) == (edge.start, edge.end, "r")


def test_an_edge_that_is_not_in_the_table_is_refused() -> None:
    """Ask for each pair of states of a side: the table's are taken, the same state is nothing, others are refused."""
    allowed = {(edge.side, edge.start, edge.end) for edge in EDGES}
    for side in ("replica", "session"):
        names = [state.name for state in STATES if state.side == side]
        for start, end in product(names, names):
            tracker = StateTracker(side, start, 0.0)
            if start == end or (side, start, end) in allowed:
                tracker.move(end, 1.0)
                assert (tracker.state, len(tracker.moves)) == (end, int(start != end))
            else:
                with pytest.raises(AssertionError, match="cannot become"):
                    tracker.move(end, 1.0)
    assert {name for edge in EDGES for name in (edge.start, edge.end)} == {state.name for state in STATES}


def test_the_table_in_the_documents_is_the_table_of_the_code() -> None:
    """Make the page as the site has it: its lines of states and edges are those of the table, and no others."""
    text = make_docs.with_tables((Path(__file__).parents[2] / "docs" / "replication.md").read_text())
    states = [f"| {s.side} | {s.name} | {s.shown} | {s.meaning} |" for s in STATES]
    edges = [f"| {e.side} | {e.start} | {e.end} | {e.cause} | `{e.event}` |" for e in EDGES]
    there = [line for line in text.splitlines() if line.startswith(("| replica |", "| session |"))]
    assert there == [*states, *edges]


def test_a_history_is_bounded_and_without_gaps() -> None:
    """Lose contact a thousand times, at random: at most 64 spans, each begins where the one before ends."""
    chance = random.Random(7)
    driver = driver_at("replica", "streaming")
    for _ in range(1_000):
        driver.go("detached")
        for step in ("connecting", "greeting", chance.choice(("streaming", "catching up"))):
            driver.go(step)
            if chance.random() < 0.3:
                break
    spans = driver.states.spans()
    assert len(spans) == SPANS_KEPT
    assert all(one.until_ms == other.since_ms for one, other in pairwise(spans))
    assert all(one.state != other.state for one, other in pairwise(spans))
    assert spans[-1].until_ms is None and len(driver.states.moves) <= MOVES_KEPT
