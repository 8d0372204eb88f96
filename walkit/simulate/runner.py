"""One thread at a time, in virtual time: processes of a world and their threads.

A thread runs until it waits; then the seed chooses the next one of those that are ready. Time does not pass while
one is ready, and jumps to the next moment for which one waits. So the same seed gives the same interleaving.
"""

from __future__ import annotations

import sys
import threading
import traceback
from _thread import allocate_lock, get_ident
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

Act = Callable[[], object]
HANG_S = 20.0
"""A thread that has not come back after this real time waits for something outside the world."""


class Killed(SystemExit):
    """Raised in each thread of a process that was killed, when it waits or uses its storage."""


class Process:
    """One process of the world. Its threads end with its life; while it is stalled none of them runs."""

    def __init__(self, name: str, runner: Runner) -> None:
        self.name, self.runner = name, runner
        self.life = Life(self)
        self.life.is_over = True
        self.stalled_until_ms = 0.0
        self.skew_ms = 0.0
        """By how much its wall clock is ahead."""

    @property
    def up(self) -> bool:
        """Whether it is alive."""
        return not self.life.is_over

    def start(self) -> Life:
        """Begin a life."""
        assert not self.up
        self.life = Life(self)
        return self.life

    def deliver(self, act: Act) -> None:
        """Have `act` called now, or when a stall is over; never in another life."""
        self._run(self.life, act)

    def _run(self, life: Life, act: Act) -> None:
        if life.is_over:
            return
        if self.stalled_until_ms > self.runner.now_ms:
            self.runner.count("stall")
            self.runner.at(self.stalled_until_ms, lambda: self._run(life, act))
            return
        self.runner.ran, with_life, self.runner.acting = self, self.runner.acting, life
        try:
            act()
        finally:
            self.runner.acting = with_life


class Life:
    """One life of a process: its threads, and whether it was killed."""

    def __init__(self, process: Process) -> None:
        self.process, self.is_over = process, False
        self.threads: dict[Thread, None] = {}

    def kill(self) -> None:
        """End every thread at once, as SIGKILL does: nothing that they do on their way out reaches anybody."""
        self.is_over = True
        for thread in list(self.threads):
            self.process.runner.end(thread)


class Thread:
    """One thread of a life: it runs while it has the turn."""

    def __init__(self, life: Life, name: str) -> None:
        self.life, self.name = life, name
        self.turn = allocate_lock()
        self.turn.acquire()
        self.wakings = 0
        """How often it was woken: an earlier alarm does not wake it again."""
        self.is_waiting, self.is_timed_out = True, False


class Runner:
    """Gives turns to threads and lets time pass; see the module. Everything but `turn` is the driver's or has the turn.

    The driver is the thread that made it. It acts for a process where a message comes, and never waits then.
    """

    def __init__(self, seed: int) -> None:
        self.now_ms = 0.0
        self.events = 0
        self.counts: Counter[str] = Counter()
        self.acting: Life | None = None
        self.ran: Process | None = None
        """The process that the last step ran; None after an event outside all processes."""
        self.failure: tuple[Thread, BaseException] | None = None
        """An exception that ended a thread, which the program has not seen."""
        self.threads: dict[int, Thread] = {}
        """The world's threads by the identifier of the real ones."""
        self._random, self._driver = Random(f"{seed}/turns"), get_ident()
        self._back = allocate_lock()
        self._back.acquire()
        self._ready: list[Thread] = []
        self._heap: list[tuple[float, int, Thread | Act, int]] = []
        self._order = 0

    # -- events

    def after(self, in_ms: float, act: Act) -> None:
        """Have the driver call `act` so many milliseconds from now."""
        self.at(self.now_ms + in_ms, act)

    def at(self, at_ms: float, act: Thread | Act, waking: int = 0) -> None:
        """Have it called, or the thread woken, at this time, or now if that is past."""
        self._order += 1
        heappush(self._heap, (max(at_ms, self.now_ms), self._order, act, waking))

    def count(self, name: str, times: int = 1) -> None:
        """Count what happens now, by its name in `world_counts.COVERAGE`."""
        if times:
            self.counts[name] += times

    def step(self, until_ms: float) -> bool:
        """Give one turn, or let the next event happen; False, at `until_ms`, if none is left until then."""
        self.ran = None
        if self._ready:
            self.events += 1
            at = self._random.randrange(len(self._ready))
            thread, self._ready[at] = self._ready[at], self._ready[-1]
            self._ready.pop()
            self.ran = thread.life.process
            self._give(thread)
            return True
        if not self._heap or self._heap[0][0] > until_ms:
            self.now_ms = max(self.now_ms, until_ms)
            return False
        self.now_ms, _, act, waking = heappop(self._heap)
        if isinstance(act, Thread):
            if act.is_waiting and act.wakings == waking:
                act.is_timed_out = True
                self.wake(act)
        else:
            self.events += 1
            act()
        return True

    # -- threads

    def spawn(self, life: Life, run: Act, name: str) -> None:
        """Begin a thread of this life."""
        thread = self.enter(life, name)
        threading.Thread(target=lambda: self.run(thread, run), name=f"walkit-{name}", daemon=True).start()

    def enter(self, life: Life, name: str) -> Thread:
        """Note a thread that is about to start: it gets its first turn some time from now."""
        if life.is_over:
            raise Killed
        thread = Thread(life, name)
        life.threads[thread] = None
        self.wake(thread)
        return thread

    def run(self, thread: Thread, run: Act) -> None:
        """Be this thread: wait for the first turn, do the work, and give the turn back for good."""
        thread.turn.acquire()
        self.threads[get_ident()] = thread
        try:
            if not thread.life.is_over:
                run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            if not thread.life.is_over:
                self.failure = self.failure or (thread, error)
        finally:
            del self.threads[get_ident()], thread.life.threads[thread]
            self._back.release()

    def here(self) -> Thread | None:
        """Return the thread that calls; None for the driver."""
        return self.threads.get(get_ident())

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is one of this world."""
        ident = get_ident()
        return ident == self._driver or ident in self.threads

    @property
    def life(self) -> Life | None:
        """The life in which the caller is; None if the driver acts for none."""
        thread = self.here()
        return self.acting if thread is None else thread.life

    def wait(self, timeout_ms: float | None = None) -> bool:
        """Give the turn away until this thread is woken; False if the time was over first."""
        thread = self.here()
        assert thread is not None, "the driver of a world must not wait"
        if thread.life.is_over:
            raise Killed
        thread.is_waiting, thread.is_timed_out = True, False
        if timeout_ms is not None:
            self.at(self.now_ms + max(timeout_ms, 0), thread, thread.wakings)
        self._back.release()
        thread.turn.acquire()
        if thread.life.is_over:
            raise Killed
        return not thread.is_timed_out

    def sleep(self, ms: float) -> None:
        """Wait for so long."""
        self.wait(ms)

    def wake(self, thread: Thread) -> None:
        """Let a thread that waits go on."""
        if thread.is_waiting:
            thread.is_waiting = False
            thread.wakings += 1
            self._ready.append(thread)

    def end(self, thread: Thread) -> None:
        """Have a thread whose life is over unwind."""
        if thread in self._ready:
            self._ready.remove(thread)
        thread.is_waiting = False
        self._turn(thread)
        assert thread not in thread.life.threads, f"{thread.name} waits after its end"

    def _give(self, thread: Thread) -> None:
        stalled_ms = thread.life.process.stalled_until_ms
        if stalled_ms > self.now_ms:
            self.count("stall")
            thread.is_waiting = True
            self.at(stalled_ms, thread, thread.wakings)
            return
        self._turn(thread)
        if self.failure is not None:
            raise self.failure[1]

    def _turn(self, thread: Thread) -> None:
        thread.turn.release()
        if not self._back.acquire(timeout=HANG_S):
            frames = sys._current_frames()
            stack = "".join(
                line
                for ident, each in self.threads.items()
                if each is thread
                for line in traceback.format_stack(frames[ident])
            )
            raise AssertionError(f"{thread.name} does not come back:\n{stack}")
