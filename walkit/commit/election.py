"""Leader election: which thread takes what waits, and writes the next frame.

A leader has one of the `in_flight` places; `leaders` counts them, and a thread that takes a place gives it back or
hands it to the next leader. A waiting caller that is elected finds its place taken; the writer threads are only asked
to look, so that asking twice, or once too often, does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice
from typing import Final

from walkit.commit.batch import Batch, Caller, Submitted
from walkit.commit.commit_signal import CommitSignal, call_all
from walkit.commit.core import OrderingCore
from walkit.commit.ticket import CAN_LEAD, TO_LEAD, open_latch
from walkit.commit.timer import CommitClock, CommitTimer
from walkit.commit.writer_pool import WriterPool

WRITER_THREAD_MIN_WAITERS: Final = 8
"""From so many callers of single records that wait the writer thread leads, until nothing waits."""


class LeaderElection:
    """Counts the leaders and elects the next one. Methods that end in `_locked` need the lock held."""

    pool: WriterPool
    """The writer threads; set before anything is queued."""

    def __init__(
        self,
        core: OrderingCore[Submitted],
        lock: threading.Lock,
        *,
        signal: CommitSignal,
        timer: CommitTimer | None,
        clock: CommitClock,
    ) -> None:
        self.lock = lock
        self.leaders = 0
        """Threads that lead now."""
        self.places = core.in_flight_max
        """How many may."""
        self.plain = self.places == 1 and core.policy is None
        """Whether whatever waits may be taken once no thread leads."""
        self.asks_time = core.policy is not None
        """Whether the core has to know the time: only policies ask for it."""
        self.asked = False
        """Whether the writer threads were asked to look, and have not done so yet."""
        self._given = False
        """Whether a place was taken for the writer thread, which does not know of it yet."""
        self._seal_at_us: int | None = None
        """The time that the timer was woken for last."""
        self._core = core
        self._signal = signal
        self._timer = timer
        self.clock = clock

    def ready_locked(self) -> bool:
        """Say whether a frame can be taken now; where a policy holds it back, the timer asks again in time."""
        core = self._core
        ready = core.ready(self.clock.us() if self.asks_time else 0)
        due = core.seal_at_us
        if due != self._seal_at_us:
            self._seal_at_us = due
            if due is not None and self._timer is not None:
                try:
                    self._timer.wake()
                except (
                    RuntimeError
                ) as error:  # the system has no thread to give, so nothing would ask again in time
                    core.policy, core.policy_error = None, error
                    return core.ready()
        return ready

    def claim(self) -> bool:
        """Take a place for a writer thread that looks; False where there is none, or nothing to take."""
        with self.lock:
            self.asked = False
            if self._given:
                self._given = False
            elif self.leaders < self.places and self._core.pending and (self.plain or self.ready_locked()):
                self.leaders += 1
            else:
                return False
        return True

    def hand_over(self, keep: bool = False) -> bool:
        """Give the place back, or to the next leader; True where the caller keeps it.

        It does with `keep` where there is something to take.
        """
        successor: Caller | WriterPool | None = None
        signal = self._signal
        prepare = False
        with self.lock:
            callbacks = signal.notify_locked() if signal.wanted else []
            waiting = self._core.pending and self.ready_locked()
            if not waiting or not keep:
                self.leaders -= 1
                keep = False
            if waiting and not keep:
                prepare = not self.pool.running and self._is_crowded_locked()
                successor = self.elect_locked()
        try:
            if callbacks:
                call_all(callbacks)
        finally:
            if successor is not None:
                self.start(successor)
        if prepare:
            self.pool.prepare()
        return keep

    def _is_crowded_locked(self) -> bool:
        """Say whether so many callers wait that the writer thread should lead."""
        if not self.plain:
            return False
        first = islice(self._core.pending, WRITER_THREAD_MIN_WAITERS)
        return sum(len(s.callers) for s in first if isinstance(s, Batch)) >= WRITER_THREAD_MIN_WAITERS

    def elect_locked(self) -> Caller | WriterPool | None:
        """Return the next leader, to be started without the lock; None where there is no place or nothing to take.

        It is the oldest caller that waits and can lead, with a place taken for it; else the writer threads, which take
        one themselves. With one frame in flight and many callers it is the writer thread: its place is taken, and it
        is started here. It leads frame after frame without a switch of threads, and the device writes while the
        callers of the frame before come back; a caller has to be woken, and gets the interpreter after all of those.
        """
        core = self._core
        if self.leaders >= self.places or not core.pending or not self.ready_locked():
            return None
        if self.pool.running and self._is_crowded_locked():
            # First of all: where an exception of another thread strikes after it, the writer finds a place to take.
            self.pool.calls.put(True)
            self.leaders += 1
            self._given = True
            return None
        for submission in core.pending:
            callers: Sequence[Caller] = ()
            if isinstance(submission, Batch):
                callers = submission.callers
            elif submission.lead == CAN_LEAD:
                callers = (submission,)
            for ticket in callers:
                if ticket.lead == CAN_LEAD:
                    ticket.lead = TO_LEAD
                    self.leaders += 1
                    return ticket
        if self.asked:
            return None
        self.asked = True
        return self.pool

    def start(self, leader: Caller | WriterPool) -> None:
        """Wake the leader that `elect_locked` has returned, without the lock."""
        if isinstance(leader, WriterPool):
            leader.wake()
        else:
            open_latch(leader.latch)

    def _check(self) -> None:
        """Assert what holds between two steps; needs the lock held."""
        assert 0 <= self.leaders <= self.places
        assert self.leaders or not self._given, "a place was given away and not taken"

    def kick(self) -> None:
        """Begin a frame if there is one to begin: time has passed, or a caller waits for all that is queued."""
        with self.lock:
            leader = self.elect_locked()
        if leader is not None:
            self.start(leader)
