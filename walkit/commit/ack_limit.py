"""The second bound on acknowledgement: how far others (replicas) have what is durable here.

Without it what is written is acknowledged; with it the smaller of both. All that follows from an acknowledgement
(callers, tickets, tasks, callbacks, observers, the sink) follows from the core's one mark, which
`OrderingCore.acknowledge` moves. Frames are then completed by whichever thread moves it, so all of them go through the
queue of `Completion`.
"""

from __future__ import annotations

from collections.abc import Callable

from walkit._internal.arguments import refuse
from walkit._main_thread import uninterrupted
from walkit.commit.core import NO_LIMIT
from walkit.commit.election import LeaderElection
from walkit.commit.frame_writer import FrameWriter
from walkit.commit.latches import call_all
from walkit.commit.timer import CommitTimer


class AckLimit:
    """Moves the limit of one log, and completes what that acknowledges or gives up. Safe from any thread."""

    def __init__(
        self,
        writer: FrameWriter,
        election: LeaderElection,
        timer: CommitTimer,
        bytes_max: int,
    ) -> None:
        """Where `bytes_max` bytes of frames wait for the limit, the log takes nothing more."""
        # The commit lock: see `DeviceWatch.lock`.
        self.lock = writer.lock
        # Written under the commit lock by `begin` and `end`; the timer reads it without.
        self.on_late: Callable[[], object] | None = None
        """Called by the timer when a waiting frame is late; None unless `begin` was called."""
        # Written under the commit lock.
        self.late_records = 0
        """How many records were given up since the log was opened."""
        # Written once, under the commit lock, by `CommitDriver.stop`.
        self.stopped = False
        """Whether the log is closed: then nothing waits, and nothing is delivered."""
        self._core, self._failure, self._writer = writer.core, writer.failure, writer
        self._election, self._timer = election, timer
        self._core.unacked_bytes_max = bytes_max

    @property
    def is_waiting(self) -> bool:
        """Whether callers wait for the limit; under the lock."""
        return self._core.given_up < len(self._core.unacked)

    @property
    def unacked_records(self) -> int:
        """How many records are written and not acknowledged."""
        return max(self._core.written_lsn - self._core.acked_lsn, 0)

    def begin(self, timeout_us: int, on_late: Callable[[], object]) -> None:
        """Acknowledge nothing more until `raise_to`. OptionsError if `begin` was called before, and not `end`.

        RuntimeError if the system has no thread to give. From now on leaders go by the way of groups, for good: the
        lone writer's completes its frame itself.
        """
        if not self.stopped:
            self._timer.wake()
        with self.lock:
            if self.stopped:
                return
            if self.on_late is not None:
                refuse(
                    "ack_replicas", None, "another primary of this log waits for replicas; stop that first"
                )
            self.on_late = on_late
            self._writer.queues, self._writer.timer = True, self._timer
            self._election.plain = False
            self._core.ack_timeout_us = timeout_us
            self._core.ack_limit_lsn = self._core.acked_lsn
        self._timer.wake()  # it may sleep for longer than this time-out

    def raise_to(self, lsn: int) -> None:
        """Others have all up to this LSN: acknowledge it. An LSN below an earlier one changes nothing."""
        if lsn > self._core.ack_limit_lsn:
            self._move(lsn)

    def lift(self) -> None:
        """Acknowledge what is written, as without a limit, until `restore`."""
        self._move(NO_LIMIT)

    def restore(self, lsn: int) -> None:
        """Have a limit again: others have all up to this LSN."""
        with self.lock:
            self._core.ack_limit_lsn = max(lsn, self._core.acked_lsn)

    def give_up_late(self, error: BaseException) -> int:
        """Fail what has waited for too long; return how many records that were."""
        return self._move(0, error, self._writer.clock.us() - self._core.ack_timeout_us)

    def end(self, error: BaseException | None) -> int:
        """Remove the limit; with an error, fail what waits first. Return how many records failed."""
        with self.lock:
            self.on_late = None
            self._core.ack_timeout_us = 0
        return self._move(NO_LIMIT, error)

    def _move(self, lsn: int, error: BaseException | None = None, until_us: int | None = None) -> int:
        """Give up what waits, with an error, then raise the limit to at least this; complete what came of it."""
        core, completion = self._core, self._failure.completion
        with uninterrupted():
            with self.lock:
                if self.stopped:
                    return 0
                done = [] if error is None else core.give_up(error, until_us)
                records = sum(frame.count for frame in done)
                self.late_records += records
                core.ack_limit_lsn = max(lsn, core.ack_limit_lsn)
                done += core.acknowledge()
                completion.queue_in_order_locked(done)
                callbacks = completion.signal.notify_locked()
            call_all(callbacks)
            if core.ack_sink_failure is not None and core.unacked:
                self._failure.fail(*core.ack_sink_failure)
            completion.run()
            self._election.kick()  # what was full may have room
        return records
