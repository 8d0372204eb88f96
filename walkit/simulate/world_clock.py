"""Virtual time for a world of several processes: events in one order, processes that crash and stall, alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush

Act = Callable[[], None]


class Clock:
    """Jumps from event to event. Times are virtual milliseconds; events of one time happen in the order of asking."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.events = 0
        """How many events have happened."""
        self.counts: Counter[str] = Counter()
        """How often each thing of `world_counts.COVERAGE` has happened."""
        self._order = 0
        self._heap: list[tuple[float, int, Act]] = []

    def after(self, in_ms: float, act: Act) -> None:
        """Have `act` called once, so many milliseconds from now."""
        self.at(self.now_ms + in_ms, act)

    def at(self, at_ms: float, act: Act) -> None:
        """Have `act` called once at exactly this time, or now where that is past."""
        self._order += 1
        heappush(self._heap, (max(at_ms, self.now_ms), self._order, act))

    def count(self, name: str, times: int = 1) -> None:
        """Count what happens now, by its name in `world_counts.COVERAGE`."""
        if times:
            self.counts[name] += times

    def step(self, until_ms: float) -> bool:
        """Let the next event happen; False, with the clock at `until_ms`, where none is left before that."""
        if not self._heap or self._heap[0][0] > until_ms:
            self.now_ms = max(self.now_ms, until_ms)
            return False
        self.now_ms, _, act = heappop(self._heap)
        self.events += 1
        act()
        return True


class Process:
    """One process of the world: what it has asked for ends with it, and waits while it is stalled."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name, self.clock = name, clock
        self.up = False
        self.life = 0
        """Counts the starts; what an earlier life has asked for does not happen."""
        self.stalled_until_ms = 0.0

    def start(self) -> None:
        """Begin a life."""
        assert not self.up
        self.up, self.life = True, self.life + 1

    def kill(self) -> None:
        """End at once, as by SIGKILL or a power cut."""
        self.up = False

    def after(self, in_ms: float, act: Act) -> None:
        """Have `act` called so many milliseconds from now, or when a stall is over; never in another life."""
        self.at(self.clock.now_ms + in_ms, act)

    def at(self, at_ms: float, act: Act) -> None:
        """Have `act` called at this time, as `after` does."""
        life = self.life
        self.clock.at(at_ms, lambda: self._run(life, act))

    def deliver(self, act: Act) -> None:
        """Have `act` called now, or when a stall is over; never where the process is down."""
        self._run(self.life, act)

    def _run(self, life: int, act: Act) -> None:
        if not self.up or life != self.life:
            return
        if self.stalled_until_ms > self.clock.now_ms:
            self.clock.count("stall")
            self.clock.at(self.stalled_until_ms, lambda: self._run(life, act))
        else:
            act()


class Alarm:
    """Calls a process back at the time that was set last, once for each setting."""

    def __init__(self, process: Process, act: Act) -> None:
        self._process, self._act = process, act
        self._wanted_ms: float | None = None
        self._asked: list[float] = []

    def set(self, at_ms: float | None) -> None:
        """Ring at that time, or never where it is None; a time that was set before counts no more."""
        self._wanted_ms = at_ms
        if at_ms is not None and (not self._asked or at_ms < min(self._asked)):
            self._asked.append(at_ms)
            self._process.at(at_ms, lambda: self._ring(at_ms))

    def _ring(self, asked_ms: float) -> None:
        self._asked.remove(asked_ms)
        wanted_ms = self._wanted_ms
        if wanted_ms is None:
            return
        if self._process.clock.now_ms < wanted_ms:
            self.set(wanted_ms)
            return
        self._wanted_ms = None
        self._act()
