"""Who leads: the thread that takes what waits, writes it as one frame, and hands the lead on.

A lead is a place among the `in_flight` frames: `_leaders` counts them, and whoever takes one gives it back or hands it
on. A caller that is chosen finds its lead taken; the writer threads are only asked to look, so that asking twice, or
once too often, does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from walkit.commit.batch import Batch, Caller, Submitted
from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import CAN_LEAD, TO_LEAD, open_gate
from walkit.commit.timed import TimedWriter
from walkit.commit.writers import Writers

CROWD = 8
"""From so many callers of single records that wait the writer thread leads, until nothing waits: see `_choose_another`.

With 64 callers it makes 1.44 times as many records as when a caller leads, with 16 1.30, with 12 1.14, with 8 0.98.
"""


class Leading(TimedWriter):
    """How the lead goes from hand to hand."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._slots = self.core.in_flight_max
        self._plain = self._slots == 1 and self.core.policy is None
        self._asked = False
        """Whether the writer threads were asked to look, and have not done so yet."""
        self._given = False
        """Whether the lead was given to the writer thread, which has not come for it yet."""
        self._seal_told: int | None = None
        self._policy_told = False
        self._writers = Writers(self._name, self._slots, self._lead_for_others, self.poison)

    def _lead_alone(self, group: Sequence[Submitted]) -> None:
        """Write the frame that was taken when its only caller came, then hand the lead on."""
        given_up = False
        try:
            given_up = self._commit(group, 0)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must be told
            self._break(group, error)
        finally:
            if not given_up:
                self._hand_over()

    def _lead(self, to_the_end: bool = False) -> None:
        """Write one frame, then hand the lead on; a writer thread goes on until nothing is to be taken."""
        interrupt: BaseException | None = None
        news = self._news
        callbacks: list[Callable[[], object]] = []
        while True:
            group: Sequence[Submitted] = ()
            turn = begun = 0
            try:
                with self._lock:
                    group = self.core.take(self._clock_us() if self._timed else 0)
                    if group:
                        turn = self._turns.draw() if self._parallel else 0
                        self._taken[turn] = group
                        if news.wanted:
                            callbacks = news.tell_locked()
                    another = group and not self._plain and self._choose_another()
                if callbacks:
                    call_all(callbacks)
                    callbacks = []
                if another:
                    self._start(another)
                begun = 1
                if group and self._commit(group, turn):
                    break
            except BaseException as error:  # noqa: BLE001 - whatever it is, those who wait must be told
                if not isinstance(error, Exception):
                    interrupt = (
                        error  # it goes to its thread; who waits for a frame that was begun has been told
                    )
                if interrupt is None or not begun:
                    self._break(group, error)
                if group and self._parallel and not begun:
                    self._turns.end(turn)
            if not self._hand_over(to_the_end):
                break
        if self.core.policy_error is not None:
            self._tell_policy_error(self.core.policy_error)
        if interrupt is not None:
            raise interrupt

    def _break(self, group: Sequence[Submitted], error: BaseException) -> None:
        """The log's own code has failed with this group: nobody may wait for it in vain, and the log is poisoned.

        What the device refuses has been told by then, and so has a group that could not be encoded.
        """
        frame = group[0].frame if group else None
        if self.core.failure is None:
            self._fail(error, frame, unsealed=frame is None)
        if frame is not None and frame.state == "sealed":  # the core had let go of it already
            frame.error, frame.state = error, "failed"
        elif group and group[0].frame is None:  # it was not noted yet who has taken it
            frame = SealedFrame.refused(group, self._poison or error)
        else:
            return
        with self._lock:
            self._releaser.queue(self._releaser.tell, [frame])
        self._releaser.run()

    def _lead_for_others(self) -> None:
        """Write what those who do not wait have queued, where nobody leads, or what a crowd has: the writers' work."""
        with self._lock:
            self._asked = False
            if self._given:
                self._given = False
            elif self._leaders < self._slots and self.core.pending and (self._plain or self._ready()):
                self._leaders += 1
            else:
                return
        self._lead(to_the_end=True)

    def _hand_over(self, to_the_end: bool = False) -> bool:
        """Pass the lead on; True where the caller keeps it (`to_the_end`, and there is something to take)."""
        successor: Caller | Writers | None = None
        news = self._news
        unready = False
        with self._lock:
            callbacks = news.tell_locked() if news.wanted else []
            waiting = self.core.pending and self._ready()
            if not waiting or not to_the_end:
                self._leaders -= 1
                to_the_end = False
            if waiting and not to_the_end:
                unready = not self._writers.running and self._crowds()
                successor = self._choose_another()
        if callbacks:
            call_all(callbacks)
        if successor is not None:
            self._start(successor)
        if unready:
            self._writers.prepare()
        return to_the_end

    def _crowds(self) -> bool:
        """Whether so many callers wait that the writer thread should lead; needs the lock held."""
        if not self._plain:
            return False
        first = islice(self.core.pending, CROWD)
        return sum(len(s.callers) for s in first if isinstance(s, Batch)) >= CROWD

    def _ready(self) -> bool:
        """Ask the core whether a frame can be taken now; needs the lock held. Sees that it is asked again in time."""
        core = self.core
        ready = core.ready(self._clock_us() if self._timed else 0)
        due = core.seal_at_us
        if due != self._seal_told:
            self._seal_told = due
            if due is not None and self._timer is not None:
                self._timer.wake()
        return ready

    def _choose_another(self) -> Caller | Writers | None:
        """Where there is a place and something to take for one more leader, return whom to start; needs the lock held.

        The oldest caller that waits and can, with a lead that is taken for it; else the writer threads, which take it
        themselves. With one frame in flight and a crowd of callers it is the writer thread, and the lead is taken for
        it, which is started here: it goes on from frame to frame without a switch of threads, and the device writes
        while the callers of the frame before come back. A caller that is chosen has to be woken, and gets the
        interpreter after all of those.
        """
        if self._leaders >= self._slots or not self.core.pending or not self._ready():
            return None
        if self._writers.running and self._crowds():
            # First of all: where an exception of another thread strikes behind it, the writer finds a lead to take.
            self._writers.calls.put(True)
            self._leaders += 1
            self._given = True
            return None
        for submission in self.core.pending:
            callers: Sequence[Caller] = ()
            if isinstance(submission, Batch):
                callers = submission.callers
            elif submission.lead == CAN_LEAD:
                callers = (submission,)
            for ticket in callers:
                if ticket.lead == CAN_LEAD:
                    ticket.lead = TO_LEAD
                    self._leaders += 1
                    return ticket
        if self._asked:
            return None
        self._asked = True
        return self._writers

    def _start(self, leader: Caller | Writers) -> None:
        if isinstance(leader, Writers):
            leader.wake()
        else:
            open_gate(leader.waiter)

    def _kick(self) -> None:
        """Begin a frame if there is one to begin: time has passed, or somebody waits for all that is queued."""
        with self._lock:
            leader = self._choose_another()
        if leader is not None:
            self._start(leader)

    def _tell_policy_error(self, error: Exception) -> None:
        with self._lock:
            told, self._policy_told = self._policy_told, True
        if not told:
            self.events.emit("walkit.policy.fail", error=repr(error))


def call_all(callbacks: list[Callable[[], object]]) -> None:
    """Make the calls that `News.tell_locked` has returned, without the lock."""
    for callback in callbacks:
        callback()
