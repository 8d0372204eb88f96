"""The Replication page: a primary and its replicas as processes, whose links are cut and which are killed."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, cast

import numpy as np

from walkit._internal.arguments import check_whole
from walkit._internal.html import Markup, table, tag
from walkit.errors import OptionsError
from walkit.metrics import TrafficStatistics
from walkit.models.tcp_link import LinkState, TcpLink
from walkit.plots import LagSeries, LagUnit, StateBar, lag_over_time, sent_by_codec, state_lanes
from walkit.plots.units import bytes_text, duration_text
from walkit.views.background_jobs import Jobs, sentence
from walkit.views.base import (
    Button,
    Form,
    Select,
    View,
    column,
    example_html,
    figure_pane,
    html_pane,
    pn,
    scrolled,
    sentence_html,
    tool_bar,
)
from walkit.views.workspace import Workspace
from walkit.workload.replicated import PacedLoad, ReplicatedChild

REPLICAS_MAX = 3
READERS_MAX = 2
PATIENCE_S = 30.0
STOP_S = 10.0
WINDOW_S = 120.0
PRIMARY = "primary"


POINTS_MAX = 480
"""Two minutes of four lines per second."""
SPANS_MAX = 120
NAN = float("nan")


class ReplicaHistory:
    """Takes the lines of a child, over all of its lives. `take` is for the thread that reads them, the rest for any."""

    def __init__(self, name: str, zero_s: float) -> None:
        self.name = name
        self._zero_s = zero_s
        """The clock's time at which the figures begin."""
        self._lock = threading.Lock()
        self._points: deque[tuple[float, float, float, float]] = deque(maxlen=POINTS_MAX)
        self._past: deque[tuple[str, float, float, str]] = deque(maxlen=SPANS_MAX)
        self._spans: list[tuple[str, float, float | None, str]] = []

    def take(self, line: dict[str, Any]) -> None:
        """Take a line of a replica, or one of a primary, which has no lag."""
        status = line.get("status")
        with self._lock:
            if status is None:
                if not self._spans:
                    self._spans = [("serving", line["clock_s"], None, "")]
                return
            self._spans = [(s["state"], s["since"], s["until"], s["detail"]) for s in status["history"]]
            self._check_locked()

    def note_lag(self, clock_s: float, follower: dict[str, Any] | None) -> None:
        """Take a lag: the primary reports a replica's, a delta reader its own; None if unknown."""
        with self._lock:
            found = follower or {}
            values = [found.get(name) for name in ("lag_records", "lag_bytes", "lag_ms")]
            records, size, ms = (NAN if value is None else float(value) for value in values)
            self._points.append((clock_s - self._zero_s, records, size, ms))

    @property
    def newest(self) -> tuple[float | None, float | None, float | None]:
        """The newest lag in records, bytes and milliseconds; None if unknown."""
        with self._lock:
            newest = self._points[-1][1:] if self._points else (NAN, NAN, NAN)
        records, size, ms = (None if value != value else value for value in newest)
        return records, size, ms

    def end(self, state: str, clock_s: float, detail: str = "") -> None:
        """The process has ended: its states are closed, and `state` follows until its next life."""
        with self._lock:
            self._close(clock_s)
            self._spans = [(state, clock_s, None, detail)]
            self._check_locked()

    def begin(self, clock_s: float) -> None:
        """Another life begins."""
        with self._lock:
            self._close(clock_s)
            self._check_locked()

    def _check(self) -> None:
        """Assert the invariants between two steps: at most the last state lasts, and none of a life before does."""
        with self._lock:
            self._check_locked()

    def _check_locked(self) -> None:
        """See `_check`; needs the lock held."""
        assert all(until is not None for _, _, until, _ in self._spans[:-1]), (
            "a state lasts that another follows"
        )
        assert all(until is not None for _, _, until, _ in self._past), "a state of an earlier life lasts"

    def _close(self, clock_s: float) -> None:
        self._past.extend(
            (s, since, clock_s if until is None else until, w) for s, since, until, w in self._spans
        )
        self._spans = []

    def lag(self) -> LagSeries:
        """Return the points as columns."""
        with self._lock:
            points = np.array(self._points, np.float64).reshape(-1, 4)
        at, records, size, ms = points.T.copy()
        return LagSeries(name=self.name, time_s=at, records=records, bytes=size, ms=ms)

    def bars(self, now_s: float, since_s: float) -> list[StateBar]:
        """Return the states as bars up to `now_s`, those that ended before `since_s` left out; both on the clock."""
        with self._lock:
            spans = [*self._past, *((s, b, now_s if e is None else e, w) for s, b, e, w in self._spans)]
        zero = self._zero_s
        return [
            StateBar(
                lane=self.name,
                state=state,
                start_s=max(begin, since_s) - zero,
                end_s=max(end, begin) - zero,
                detail=detail,
            )
            for state, begin, end, detail in spans
            if end >= since_s
        ]


@dataclass(frozen=True, kw_only=True)
class Member:
    """One process as it is now. Unknown values are None."""

    name: str
    state: str
    """As the process reports; "killed", "ended" or "stopped" without one."""
    link: str
    """State of its link; "" for the primary."""
    pid: int | None
    lsn: int | None
    lag_records: int | None
    lag_bytes: int | None
    lag_ms: float | None
    error: str
    delta_bytes: int | None = None
    """Bytes that a delta reader took by delta; None of the others."""
    loaded_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class LabSnapshot:
    """All that is shown of a moment."""

    members: tuple[Member, ...]
    lag: tuple[LagSeries, ...]
    bars: tuple[StateBar, ...]
    traffic: dict[str, TrafficStatistics]
    resting: bool
    """Whether the log has its size, and nothing more is appended."""


class _Node:
    """One member: its folder, its link, its current process, and its history."""

    def __init__(self, name: str, zero_s: float) -> None:
        self.name = name
        self.history = ReplicaHistory(name, zero_s)
        self.child: ReplicatedChild | None = None
        self.link: TcpLink | None = None
        self.ended = ""
        """How its last process ended, until the next one starts."""
        self.error = ""

    def take_own(self, line: dict[str, Any]) -> None:
        """Take a line of a delta reader, which knows its lag itself."""
        self.history.take(line)
        self.history.note_lag(line["clock_s"], line["lag"])

    def close(self) -> None:
        """Kill its process, close its link."""
        if self.child is not None:
            self.child.close()
        if self.link is not None:
            self.link.close()


class _Resources:
    """A folder, processes and links, which must not outlive a session. Safe from any thread."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="walkit-replication-")
        self.lock = threading.RLock()
        """Held while a process or link is made or ended, so that none is made after `remove`."""
        self.seats: dict[str, _Node] = {}
        self.gone = False

    def clear(self) -> None:
        """End all processes and links, and remove their files."""
        with self.lock:
            for seat in self.seats.values():
                seat.close()
            self.seats = {}
            for name in os.listdir(self.folder) if os.path.isdir(self.folder) else ():
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)

    def remove(self) -> None:
        """End everything. Ending again does nothing."""
        with self.lock:
            self.gone = True
            self.clear()
            shutil.rmtree(self.folder, ignore_errors=True)


class ReplicationLab:
    """Starts, cuts, kills and restarts a primary and its replicas. A job does each request, one at a time.

    Any thread requests and reads; only the jobs and `close` wait. The end of this process ends its children too.
    """

    def __init__(self) -> None:
        self.jobs = Jobs("walkit-replication")
        self._belongings = _Resources()
        self._codec, self._load = "zstd", PacedLoad()
        self._zero_s = 0.0
        self._finalizer = weakref.finalize(self, self._belongings.remove)

    # -- requests

    @property
    def running(self) -> bool:
        """Whether there is a primary, living or not."""
        return PRIMARY in self._belongings.seats

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of the replicas, in the order in which they joined."""
        return self._named("replica")

    @property
    def readers(self) -> tuple[str, ...]:
        """Names of the delta readers, in the order in which they joined."""
        return self._named("reader")

    def _named(self, kind: str) -> tuple[str, ...]:
        return tuple(name for name in list(self._belongings.seats) if name.startswith(f"{kind} "))

    def start(self, load: PacedLoad, codec: str, replicas: int = 2) -> None:
        """Start again: a primary under this load, and so many replicas that take this codec."""
        self.jobs.start("starting the processes", lambda job: self._start(load, codec, replicas, job.step))

    def add(self) -> None:
        """Add a replica that has nothing yet."""
        self.jobs.start("adding a replica", lambda _: self._add())

    def add_reader(self) -> None:
        """Add a delta reader, which shares the primary's folder and polls it."""
        self.jobs.start("adding a delta reader", lambda _: self._add("reader"))

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        self.jobs.start(f"killing {name}", lambda _: self._kill(name))

    def restart(self, name: str) -> None:
        """Start a process again, on the files that it left; one that lives is killed first."""
        self.jobs.start(f"restarting {name}", lambda _: self._restart(name))

    def link(self, name: str, state: LinkState) -> None:
        """Cut, slow down or heal the link of a replica."""
        self.jobs.start(f"changing the link of {name}", lambda _: self._set_link(name, state))

    def stop(self) -> None:
        """Stop all processes: each closes its log; then remove the files."""
        self.jobs.start("stopping the processes", lambda _: self._stop())

    # -- the worker thread

    @contextmanager
    def _seat(self, name: str) -> Iterator[_Node]:
        """Give a member, under the lock that keeps the session from ending meanwhile."""
        with self._belongings.lock:
            if self._belongings.gone:
                raise OptionsError("the session has ended")
            seat = self._belongings.seats.get(name)
            if seat is None:
                raise OptionsError(f"no {name or 'replica'} yet; press Start")
            yield seat

    def _start(self, load: PacedLoad, codec: str, replicas: int, step: Callable[[int, int], object]) -> None:
        check_whole(replicas, "replicas", 1, REPLICAS_MAX)
        with self._belongings.lock:
            if self._belongings.gone:
                raise OptionsError("the session has ended")
            self._belongings.clear()
            self._load, self._codec, self._zero_s = load, codec, time.time()
            self._belongings.seats[PRIMARY] = _Node(PRIMARY, self._zero_s)
        self._revive(PRIMARY)
        for number in range(replicas):
            step(number + 1, replicas + 1)
            self._add()

    def _add(self, kind: str = "replica") -> None:
        with self._seat(PRIMARY):
            there, most = len(self._named(kind)), REPLICAS_MAX if kind == "replica" else READERS_MAX
            if there >= most:
                raise OptionsError(f"there are {most} {kind}s already")
            name = f"{kind} {there + 1}"
            seat = _Node(name, self._zero_s)
            seat.link = TcpLink(self._address())
            self._belongings.seats[name] = seat
        self._revive(name)

    def _address(self) -> str:
        primary = self._belongings.seats[PRIMARY].child
        newest = None if primary is None else primary.newest
        return str(newest["address"]) if newest else "127.0.0.1:9"

    def _revive(self, name: str) -> None:
        """Start the process of a member, and wait for its first line."""
        with self._seat(name) as seat:
            seat.history.begin(time.time())
            seat.child = self._child_of(seat)
            seat.ended = seat.error = ""
            try:
                seat.child.start_and_hear(PATIENCE_S)
            except BaseException:
                seat.child, seat.ended = None, "ended"
                seat.history.end("ended", time.time())
                raise
            if name == PRIMARY:
                for other in self._belongings.seats.values():
                    if other.link is not None:
                        other.link.retarget(self._address())
            self._check()

    def _check(self) -> None:
        """Assert the invariants between two jobs: members and links fit, and an ended member has no process."""
        with self._belongings.lock:
            seats = self._belongings.seats
            for name, seat in seats.items():
                assert seat.name == name and (seat.link is None) == (name == PRIMARY)
                assert seat.child is None or not seat.ended, "a member that has ended has a process"
            assert not seats or next(iter(seats)) == PRIMARY
            assert len(self.replicas) <= REPLICAS_MAX and len(self.readers) <= READERS_MAX

    def _child_of(self, seat: _Node) -> ReplicatedChild:
        """Return the process of a member, not started yet."""
        name, folder = seat.name, self._belongings.folder
        path = os.path.join(folder, name.replace(" ", "-"))
        if seat.link is None:
            return ReplicatedChild.primary(path, self._load, self._on_line)
        if name.startswith("reader"):
            log = os.path.join(folder, PRIMARY)
            return ReplicatedChild.delta(path, seat.link.address, name, log, seat.take_own)
        return ReplicatedChild.replica(path, seat.link.address, name, self._codec, seat.history.take)

    def _on_line(self, line: dict[str, Any]) -> None:
        """Take a line of the primary, on the thread that reads them: it knows the lag of each replica."""
        followers = {each["name"]: each for each in line["followers"]}
        for name, seat in list(self._belongings.seats.items()):
            if name == PRIMARY:
                seat.history.take(line)
            elif name.startswith("replica"):
                seat.history.note_lag(line["clock_s"], followers.get(name))

    def _kill(self, name: str) -> None:
        with self._seat(name) as seat:
            if seat.child is None:
                raise OptionsError(f"{name} is {seat.ended} already")
            seat.child.close()
            self._note_end(seat, "killed", "SIGKILL")
            self._check()

    def _note_end(self, seat: _Node, how: str, detail: str) -> None:
        """Note how a process has ended: without a primary no replica's lag is known, without a reader not its own."""
        seat.child, seat.ended = None, how
        seat.history.end(how, time.time(), detail)
        for name in self.replicas if seat.name == PRIMARY else {seat.name} & {*self.readers}:
            self._belongings.seats[name].history.note_lag(time.time(), None)

    def _restart(self, name: str) -> None:
        with self._seat(name) as seat:
            if seat.child is not None:
                self._kill(name)
        self._revive(name)

    def _set_link(self, name: str, state: LinkState) -> None:
        with self._seat(name) as seat:
            if seat.link is None:
                raise OptionsError("the primary has no link of its own; choose a replica")
            seat.link.set(state)

    def _stop(self) -> None:
        with self._seat(PRIMARY):
            seats = list(self._belongings.seats.values())
            for seat in reversed(seats):
                child, seat.child = seat.child, None
                seat.ended = seat.ended or "stopped"
                if child is not None:
                    child.stop(STOP_S)
            self._belongings.clear()

    # -- views

    def status(self) -> str:
        """Return the processes' activity, as a sentence."""
        job = self.jobs.current
        if job is not None:
            return f"{sentence(job)}."
        if not self.running:
            return "Nothing runs yet: press Start."
        load = self._load
        return (
            f"A primary that takes {load.records_per_s:,} records per second of {load.record_bytes:,} bytes, and "
            f"{len(self.replicas)} of {REPLICAS_MAX} replicas, "
            f"{len(self.readers)} of {READERS_MAX} delta readers; codec {self._codec or 'none'}."
        )

    def picture(self) -> LabSnapshot:
        """Return the current state. Never waits for a process."""
        seats = list(self._belongings.seats.values())
        now = time.time()
        since = now - WINDOW_S
        primary = next((seat for seat in seats if seat.name == PRIMARY), None)
        said = None if primary is None or primary.child is None else primary.child.newest
        return LabSnapshot(
            members=tuple(map(self._member, seats)),
            lag=tuple(seat.history.lag() for seat in seats if seat.name != PRIMARY),
            bars=tuple(bar for seat in seats for bar in seat.history.bars(now, since)),
            traffic=_traffic(seats),
            resting=bool(said and said["resting"]),
        )

    def _member(self, seat: _Node) -> Member:
        child = seat.child
        if child is not None and not child.talking and not self.jobs.current:
            self._reap(seat, child)
            child = seat.child
        said = None if child is None else child.newest
        status: dict[str, Any] = {} if said is None else said.get("status", {})
        records, size, ms = seat.history.newest
        lsn = None if said is None else status.get("lsn", said.get("durable_lsn"))
        return Member(
            name=seat.name,
            state=seat.ended or status.get("state", "serving" if said else "starting"),
            link="" if seat.link is None else seat.link.state,
            pid=None if child is None else child.pid,
            lsn=lsn,
            lag_records=None if records is None else int(records),
            lag_bytes=None if size is None else int(size),
            lag_ms=ms,
            error=seat.error
            or status.get("error")
            or status.get("detail")
            or (said or {}).get("trouble", ""),
            **(said or {}).get("by_path", {}),
        )

    def _reap(self, seat: _Node, child: ReplicatedChild) -> None:
        """Note why a process has ended by itself, and release its resources."""
        if not self._belongings.lock.acquire(blocking=False):
            return  # a job is at it
        try:
            if seat.child is child:
                seat.error = child.failure()
                child.close()
                self._note_end(seat, "ended", seat.error)
        finally:
            self._belongings.lock.release()

    def close(self) -> None:
        """Kill all processes and remove the files; waits for a running job. Closing twice does nothing."""
        self._belongings.gone = True
        self.jobs.close()
        self._finalizer()


def _traffic(seats: list[_Node]) -> dict[str, TrafficStatistics]:
    """Return the bytes that the newest process of each member has sent or received, by name."""
    found = {}
    for seat in seats:
        said = None if seat.child is None else seat.child.newest
        if said is not None and "traffic" in said:
            words = "sent by the primary" if seat.name == PRIMARY else f"taken by {seat.name}"
            found[words] = TrafficStatistics(**said["traffic"])
    return found


UNKNOWN = "unknown"
MEMBERS_CSS = """
.members { margin-bottom: 0.8em; }
.members td, .members th { padding: 1px 10px 1px 0; white-space: nowrap; }
.members th { white-space: normal !important; vertical-align: bottom; }
.members td:last-child { white-space: normal; min-width: 11em; }
"""


NOTHING_YET = example_html(
    "a primary and two replicas; the link of the second one is cut for a while.",
    {"primary": (20,), "replica 1": (20,), "replica 2": (8, 6, 6)},
)


class ReplicationView(View):
    """Shows a Picture. Used by one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.unit: LagUnit = "records"
        self.members = html_pane(NOTHING_YET)
        self.lag, self.states, self.sent = (figure_pane(link_figure=False) for _ in range(3))
        self._layout = column(self.members, self.lag, self.states, self.sent)

    def update(self, picture: LabSnapshot) -> None:
        """Show a moment; figures without data are hidden."""
        self.members.object = members_html(picture.members)
        drawn = bool(picture.bars)
        if drawn:
            end_s = max(bar.end_s for bar in picture.bars)
            span_s = (max(end_s - WINDOW_S, 0.0), max(end_s, 1.0))
            for pane, drawing in (
                (self.lag, lag_over_time(picture.lag, unit=self.unit, span_s=span_s)),
                (self.states, state_lanes(picture.bars, span_s=span_s)),
                (self.sent, sent_by_codec(picture.traffic)),
            ):
                drawing.layout.uirevision = "replication"  # the zoom stays
                pane.object = drawing
        for pane in (self.lag, self.states, self.sent):
            pane.visible = drawn


def members_html(members: tuple[Member, ...]) -> str:
    """Return the processes as a table; unknown values are marked."""
    if not members:
        return NOTHING_YET
    rows = []
    for one in members:
        primary = not one.link
        rows.append(
            (
                one.name,
                one.state,
                one.link or "-",
                "-" if one.pid is None else str(one.pid),
                UNKNOWN if one.lsn is None else f"{one.lsn:,}",
                "-" if primary else UNKNOWN if one.lag_records is None else f"{one.lag_records:,}",
                "-" if primary else UNKNOWN if one.lag_bytes is None else bytes_text(one.lag_bytes),
                "-" if primary else UNKNOWN if one.lag_ms is None else duration_text(one.lag_ms / 1000),
                *_by_path(one),
                one.error or "-",
            )
        )
    head = (
        "process",
        "state",
        "link",
        "pid",
        "LSN reached",
        "lag, records",
        "lag, bytes",
        "lag, time",
        "by delta",
        "from the log",
        "hit rate",
        "error, or why it waits",
    )
    shown = scrolled("div", "processes", table(rows, head, right=(3, 4, 5, 6, 7, 8, 9, 10)), "members")
    return tag("style", Markup(MEMBERS_CSS)) + shown


def _by_path(one: Member) -> tuple[str, str, str]:
    """Return bytes by delta, bytes from the log, and the delta's part of them; "-" if it is not a delta reader."""
    taken, loaded = one.delta_bytes, one.loaded_bytes
    if taken is None or loaded is None:
        return "-", "-", "-"
    rate = f"{taken / (taken + loaded):.1%}" if taken + loaded else UNKNOWN
    return bytes_text(taken), bytes_text(loaded), rate


RATES = {"100 records/s": 100, "500 records/s": 500, "2,000 records/s": 2_000, "5,000 records/s": 5_000}
CODECS = {"zstd": "zstd", "snappy": "snappy", "none": ""}
UNITS: dict[str, LagUnit] = {"in records": "records", "in bytes": "bytes", "in time": "ms"}
LINKS: dict[str, LinkState] = {"Cut": "cut", "Slow": "slow", "Heal": "open"}
DRAW_S = 1.0
"""Seconds between two drawings of the figures."""
RESTING = "The log has its size: nothing more is appended."
ABOUT = (
    "Each is a process of its own: Kill is SIGKILL, and Restart recovers the files that are left. A slow link carries "
    "64 KiB per second. A delta reader shares the primary's folder; if its link is cut, it reads the log alone. "
    "The LSN reached is durable at a primary and at a replica, and applied at a delta reader."
)


class ReplicationPage(Form):
    """Start a primary with replicas, disturb them, and see lag, states and bytes."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.lab = ReplicationLab()
        workspace.on_close(self.lab.close)
        self.view = ReplicationView()
        self._drawn_at, self._resting = 0.0, False
        near: dict[str, Any] = {"margin": (0, 4)}
        self.start = Button(label="Start", color="primary", width=80, **near)
        self.stop = Button(label="Stop", width=70, disabled=True, **near)
        self.add = Button(label="Add a replica", width=130, disabled=True, **near)
        self.add_reader = Button(label="Add a delta reader", width=150, disabled=True, **near)
        self.cancel = Button(label="Cancel", width=80, disabled=True, **near)
        self.rate = Select(label="load", options=RATES, value=500, width=150, **near)
        self.codec = Select(label="codec", options=CODECS, value="zstd", width=100, **near)
        self.count = Select(
            label="replicas", options=list(range(1, REPLICAS_MAX + 1)), value=2, width=80, **near
        )
        self.which = Select(label="process", options=[PRIMARY], value=PRIMARY, width=130, **near)
        self.unit = Select(label="lag", options=UNITS, value="records", width=120, **near)
        self.named = {"rate": self.rate, "codec": self.codec, "unit": self.unit}
        self.kill = Button(label="Kill", width=70, disabled=True, **near)
        self.restart = Button(label="Restart", width=90, disabled=True, **near)
        self.links = {name: Button(label=name, width=70, disabled=True, **near) for name in LINKS}
        self.status = pn.pane.HTML("", sizing_mode="stretch_width")
        self.disturbing = tool_bar(
            self.which, *self.links.values(), self.kill, self.restart, self.unit, self.add, self.add_reader
        )
        self.disturbing.visible = False
        self._layout = column(
            tool_bar(self.rate, self.codec, self.count, self.start, self.stop, self.cancel),
            self.disturbing,
            self.status,
            self.view,
            html_pane(tag("p", ABOUT)),
        )
        self._listen()

    def _listen(self) -> None:
        lab = self.lab
        self.start.on_click(lambda _: self.request(self._start))
        self.stop.on_click(lambda _: self.request(lab.stop))
        self.add.on_click(lambda _: self.request(lab.add))
        self.add_reader.on_click(lambda _: self.request(lab.add_reader))
        self.cancel.on_click(lambda _: self.request(lab.jobs.cancel))
        self.kill.on_click(lambda _: self.request(lambda: lab.kill(self.which.value)))
        self.restart.on_click(lambda _: self.request(lambda: lab.restart(self.which.value)))
        for name, each in self.links.items():
            each.on_click(partial(self._set_link, LINKS[name]))
        for widget in (self.unit, self.which):
            widget.param.watch(lambda _: self._apply_view(), "value")

    def _set_link(self, state: LinkState, _: Any) -> None:
        self.request(lambda: self.lab.link(self.which.value, state))

    def _start(self) -> None:
        self.lab.start(PacedLoad(records_per_s=self.rate.value), self.codec.value, self.count.value)

    def _apply_view(self) -> None:
        self.view.unit = cast("LagUnit", self.unit.value)
        self._drawn_at = 0.0
        self.refresh()

    def refresh(self, shown: bool = True) -> None:
        """Show new data; the figures at most once per second."""
        if not shown:
            return
        lab, now = self.lab, monotonic()
        busy, running = lab.jobs.current is not None, lab.running
        names = [PRIMARY, *lab.replicas, *lab.readers]
        if self.which.options != names:
            self.which.options = names
        self.disturbing.visible = running
        on_replica = self.which.value != PRIMARY
        for button, disabled in (
            (self.start, busy),
            (self.stop, busy or not running),
            (self.add, busy or not running or len(lab.replicas) >= REPLICAS_MAX),
            (self.add_reader, busy or not running or len(lab.readers) >= READERS_MAX),
            (self.cancel, not busy),
            (self.kill, busy or not running),
            (self.restart, busy or not running),
            *((each, busy or not running or not on_replica) for each in self.links.values()),
        ):
            button.disabled = disabled
        if now - self._drawn_at >= DRAW_S:
            self._drawn_at = now
            picture = lab.picture()
            self.view.update(picture)
            self._resting = picture.resting
        words = sentence_html(
            lab.status(), warnings=[RESTING] if self._resting else [], problem=lab.jobs.problem
        )
        self.status.object = words

    def code(self) -> str:
        """Return Python for a primary with one replica in this process."""
        return f"""import walkit
from walkit.replication import Primary, Replica

with walkit.open("orders") as log:
    primary = Primary(log, "127.0.0.1:0").start()
    replica = Replica("orders-replica", primary.address, codec={self.codec.value!r}).start()
    replica.wait_for(log.append(b"paid", key=b"order-7"), timeout=30)
    print(replica.status().state)
    replica.stop()
    primary.stop()"""
