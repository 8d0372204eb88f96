"""A state machine that follows a log: acknowledged frames in, in LSN order, without another thread.

The commit path passes every acknowledged frame to `feed` before any caller is notified; `feed` only
queues it. A reader of the state, or a writer afterwards, applies the queue. So the state is never ahead of what
is acknowledged, and a caller notified of a record finds it.
"""

from __future__ import annotations

import threading
from collections import deque

from walkit._internal.locks import STATE, alone, marked
from walkit.commit.frame import SealedFrame
from walkit.commit.ports import AcknowledgementSink
from walkit.state.batch_columns import batch_of
from walkit.state.machine import StateMachine

FRAMES_WAITING_MAX = 256
"""Past this many frames that wait, each new one has two old ones applied by the thread that acknowledges it."""


class FrameFeed:
    """The acknowledgement sink of a store's log: passes each frame to all followers of the log, one after the other."""

    def __init__(self) -> None:
        self._takers: tuple[AcknowledgementSink, ...] = ()

    def add(self, taker: AcknowledgementSink) -> None:
        """Pass frames to one more, from the next one on. Before the first append: nothing else misses no frame."""
        self._takers = (*self._takers, taker)

    def __call__(self, frame: SealedFrame) -> None:
        """Take an acknowledged frame; see AcknowledgementSink."""
        for taker in self._takers:
            taker(frame)


class Follower:
    """Applies acknowledged frames to a machine, under one lock. Safe from any thread.

    `applied_lsn` is the log's last LSN when the machine had all of it: the frames fed begin after it.

    A frame whose application was interrupted (Ctrl-C) is applied again by the next caller, so `apply` of the machine
    has to allow that, as the keyed table's does.
    """

    def __init__(self, machine: StateMachine, applied_lsn: int) -> None:
        self.lock = threading.Lock()
        """Held while the machine changes; hold it to read more than one thing of the machine. Its rank is STATE."""
        # Appended by the log's sink under the commit lock, taken from the left under `lock`; each by one call.
        self.frames: deque[SealedFrame] = deque()
        """Acknowledged and not applied yet, oldest first."""
        # Only grows; written under `lock`, after the machine has the frame.
        self.applied_lsn = applied_lsn
        self._machine = machine

    def feed(self, frame: SealedFrame) -> None:
        """Take a frame that is acknowledged: the log's sink. Called in LSN order, by one thread at a time.

        Does next to nothing, unless the state was not read for `FRAMES_WAITING_MAX` frames. The commit path
        holds Ctrl-C back meanwhile.
        """
        self.frames.append(frame)
        if len(self.frames) > FRAMES_WAITING_MAX:
            with marked(STATE):
                if self.lock.acquire(blocking=False):
                    try:
                        self._apply_next()
                        self._apply_next()
                    finally:
                        self.lock.release()

    def catch_up(self) -> None:
        """Apply all acknowledged records. On return all records acknowledged before the call are applied."""
        with alone(STATE), self.lock:
            self.apply_waiting()

    def apply_if_free(self) -> None:
        """Apply the queue, unless another thread does. For writers: it bounds memory and never waits.

        (An `acquire` that does not block would be left held by a Ctrl-C that comes right after it; `with` is not.)
        """
        if not self.lock.locked():
            with marked(STATE), self.lock:
                self.apply_waiting()

    def apply_waiting(self) -> None:
        """Apply the queue; the caller holds the lock."""
        while self.frames:
            self._apply_next()

    def _apply_next(self) -> None:
        """Apply the oldest frame; it leaves the queue only afterwards, so that an interrupt loses nothing."""
        frame = self.frames[0]
        if frame.last_lsn > self._machine.applied_lsn:
            assert frame.columns is not None, "a sink is added before the first append"
            self._machine.apply(batch_of(frame.first_lsn, frame.columns))
        if frame.last_lsn > self.applied_lsn:
            self.applied_lsn = frame.last_lsn
        self.frames.popleft()
