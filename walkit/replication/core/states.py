"""The states of a replica and of a primary's session with one: one table of states and edges, and its checks.

The site shows this table, and every edge has a test of its own. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from walkit.events import EventSink

Side: TypeAlias = Literal["replica", "session"]

SPANS_KEPT = 64
"""The newest spans of a history that are kept."""
MOVES_KEPT = 256
"""Moves that may wait to be reported as events; older ones are dropped, which no shell lets happen."""


class State(NamedTuple):
    """One state, and the word for it in a status."""

    side: Side
    name: str
    shown: str
    meaning: str


class Edge(NamedTuple):
    """An edge from a state to another, its cause, and the event that it emits."""

    side: Side
    start: str
    end: str
    cause: str
    event: str


class Span(NamedTuple):
    """For how long a state, as it is shown, lasted: milliseconds of the shell's clock, None while it lasts."""

    state: str
    since_ms: float
    until_ms: float | None
    detail: str


class Move(NamedTuple):
    """One edge that was taken, after `lasted_ms` in the state before."""

    edge: Edge
    detail: str
    lasted_ms: float


STATES = (
    State("replica", "new", "new", "it was not started"),
    State("replica", "detached", "connecting", "it waits before the next attempt to connect"),
    State("replica", "connecting", "connecting", "it asks for a connection"),
    State("replica", "greeting", "connecting", "it has said hello and is not welcome yet"),
    State(
        "replica", "catching up", "catching up", "it lacks frames that the primary had when this state began"
    ),
    State("replica", "streaming", "streaming", "it has all but the frames of the last moment"),
    State("replica", "bootstrapping", "bootstrapping", "it gets its whole log again"),
    State("replica", "rewinding", "rewinding", "its log is cut back to the primary's history"),
    State("replica", "failed", "failed", "permanently; `error` has the cause"),
    State("replica", "stopped", "stopped", "`stop` was called"),
    State("session", "waiting", "greeting", "the replica has said no hello yet"),
    State(
        "session",
        "catching up",
        "catching up",
        "frames that were durable when this state began are not acked",
    ),
    State("session", "streaming", "streaming", "all but the frames of the last moment are acknowledged"),
    State(
        "session",
        "planning",
        "bootstrapping",
        "the replica needs its whole log again: its files are claimed for it",
    ),
    State("session", "bootstrapping", "bootstrapping", "the replica fetches the files of its new log"),
    State("session", "ended", "ended", "the replica was refused, or is gone"),
)
_CONTACT = ("connecting", "greeting", "catching up", "streaming", "bootstrapping")
_LIVE = ("new", "detached", *_CONTACT, "rewinding")
EDGES = (
    Edge("replica", "new", "connecting", "`start`", "walkit.replica.move"),
    Edge("replica", "detached", "connecting", "the pause is over", "walkit.replica.move"),
    Edge("replica", "connecting", "greeting", "a connection was made", "walkit.replica.move"),
    Edge("replica", "greeting", "catching up", "a welcome; the primary has more", "walkit.replica.move"),
    Edge("replica", "greeting", "streaming", "a welcome; nothing is missing", "walkit.replica.move"),
    Edge("replica", "catching up", "streaming", "missing records are imported", "walkit.replica.move"),
    Edge("replica", "streaming", "catching up", "a frame is missing for a second", "walkit.replica.move"),
    Edge("replica", "catching up", "bootstrapping", "a plan for a new log came", "walkit.replica.move"),
    Edge("replica", "streaming", "bootstrapping", "a plan for a new log came", "walkit.replica.move"),
    Edge("replica", "bootstrapping", "connecting", "the new log is in its place", "walkit.replica.move"),
    Edge(
        "replica",
        "failed",
        "rewinding",
        "histories differ, and `rewind` was asked for",
        "walkit.replica.move",
    ),
    Edge("replica", "rewinding", "connecting", "the log was cut back", "walkit.replica.move"),
    *(
        Edge(
            "replica",
            s,
            "detached",
            "refused, silent, damaged, or the connection broke",
            "walkit.replica.lose",
        )
        for s in _CONTACT
    ),
    *(Edge("replica", s, "failed", "a lasting failure", "walkit.replica.fail") for s in (*_LIVE, "stopped")),
    *(Edge("replica", s, "stopped", "`stop`", "walkit.replica.move") for s in (*_LIVE, "failed")),
    Edge("session", "waiting", "catching up", "admitted; the log has more", "walkit.session.move"),
    Edge("session", "waiting", "streaming", "admitted; nothing is missing", "walkit.session.move"),
    Edge("session", "catching up", "streaming", "missing records are acknowledged", "walkit.session.move"),
    Edge("session", "streaming", "catching up", "a frame is not acked for a second", "walkit.session.move"),
    Edge("session", "waiting", "planning", "admitted; its log cannot be continued", "walkit.session.move"),
    Edge("session", "planning", "bootstrapping", "the plan is made", "walkit.session.move"),
    *(
        Edge("session", s, "ended", "refused, silent, or the call is over", "walkit.session.move")
        for s in ("waiting", "catching up", "streaming", "planning", "bootstrapping")
    ),
)
SHOWN = {(s.side, s.name): s.shown for s in STATES}
_EDGES = {(e.side, e.start, e.end): e for e in EDGES}


class StateTracker:
    """The state of one side, and its past. Used by one thread; others may read a moment sooner or later."""

    def __init__(self, side: Side, state: str, now_ms: float | None = None) -> None:
        self.side: Side = side
        self.state = state
        self.detail = ""
        """Why it is in this state, in words; "" if the state is enough."""
        self.moves: deque[Move] = deque(maxlen=MOVES_KEPT)
        """Moves not reported yet."""
        self._since_ms = now_ms
        self._spans: deque[Span] = deque(maxlen=SPANS_KEPT)

    @property
    def shown(self) -> str:
        """The word of the state in a status."""
        return SHOWN[self.side, self.state]

    def move(self, state: str, now_ms: float, detail: str = "") -> None:
        """Take the edge to `state`; AssertionError if the table has no such edge. The same state changes nothing."""
        if state == self.state:
            return
        edge = _EDGES.get((self.side, self.state, state))
        assert edge is not None, f"a {self.side} cannot become {state!r} after {self.state!r}"
        before = self.shown
        since_ms = now_ms if self._since_ms is None else self._since_ms
        self.moves.append(Move(edge, detail, now_ms - since_ms))
        self.state, self._since_ms = state, now_ms
        self.detail = detail or ("" if self.shown != before else self.detail)
        last = self._spans[-1] if self._spans else None
        if last is not None and self.shown == before:
            self._spans[-1] = last._replace(detail=self.detail)
        else:
            if last is not None:
                self._spans[-1] = last._replace(until_ms=now_ms)
            self._spans.append(Span(self.shown, now_ms, None, self.detail))
        self._check()

    def begin(self, now_ms: float) -> None:
        """Say when the first state began; later calls change nothing."""
        if self._since_ms is None:
            self._since_ms = now_ms
            self._spans.append(Span(self.shown, now_ms, None, self.detail))

    def _check(self) -> None:
        """Assert that the spans of the history follow each other without a gap, the last one without an end."""
        assert (self.side, self.state) in SHOWN
        spans = self._spans
        assert all(before.until_ms == after.since_ms for before, after in pairwise(spans))
        assert not spans or (spans[-1].until_ms is None and spans[-1].state == self.shown)

    @property
    def since_ms(self) -> float | None:
        """When the state began, as it is shown; None if unknown."""
        return self._spans[-1].since_ms if self._spans else self._since_ms

    def spans(self) -> tuple[Span, ...]:
        """Return the newest spans, at most SPANS_KEPT, oldest first; the last one has no end."""
        while True:
            try:
                return tuple(self._spans)
            except RuntimeError:  # the other thread appended meanwhile
                continue


def report_moves(tracker: StateTracker, events: EventSink, **facts: str) -> None:
    """Emit the event of each edge that was taken since the last call; `facts` go with each."""
    while tracker.moves:
        edge, detail, lasted_ms = tracker.moves.popleft()
        about = {
            **facts,
            "before": edge.start,
            "state": edge.end,
            "detail": detail,
            "lasted_ms": round(lasted_ms, 1),
        }
        if edge.event == "walkit.replica.fail":
            events.emit("walkit.replica.fail", error=detail, **about)
        elif edge.event == "walkit.replica.lose":
            events.emit("walkit.replica.lose", **about)
        elif edge.side == "replica":
            events.emit("walkit.replica.move", **about)
        else:
            events.emit("walkit.session.move", **about)


@dataclass(frozen=True, slots=True)
class StateSpan:
    """For how long one state lasted: seconds since 1970; `until` is None of the state that lasts."""

    state: str
    since: float
    until: float | None
    detail: str
    """Why it came to be, as last known; "" if the state is enough."""


def spans_of(tracker: StateTracker, now_ms: float, now_s: float) -> tuple[StateSpan, ...]:
    """Return the past of a state in seconds since 1970, of which it is `now_s` now."""
    zero_s = now_s - now_ms / 1000
    return tuple(
        StateSpan(
            span.state,
            zero_s + span.since_ms / 1000,
            None if span.until_ms is None else zero_s + span.until_ms / 1000,
            span.detail,
        )
        for span in tracker.spans()
    )
