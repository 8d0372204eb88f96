"""From a group of submissions to an acknowledged frame: encode, seal, write, acknowledge.

Several threads may do this at once, one frame each. Encoding and writing run side by side; sealing is serial, in the
order in which the groups were taken; what changes the core is under the lock. With one frame in flight there is one
such thread, and none of this costs it anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from walkit.commit.batch import Submitted
from walkit.commit.core import OrderingCore
from walkit.commit.encode import prepare
from walkit.commit.failure import CommitFailure
from walkit.commit.frame import SealedFrame
from walkit.commit.ports import FrameObserver, FrameSink
from walkit.commit.timer import CommitClock, CommitTimer
from walkit.errors import LogExhaustedError, LogFullError
from walkit.format.body import Columns
from walkit.format.frame import PreparedBody
from walkit.format.layout import FRAME_HEADER_BYTES, LSN_LAST


@dataclass(slots=True)
class CommitCounters:
    """Counters since opening, for `log.statistics()`. The leader changes them, a sync under way `syncs`, too."""

    frames_written: int = 0
    marks_written: int = 0
    frame_bytes: int = 0
    user_bytes: int = 0
    padding_bytes: int = 0
    syncs: int = 0
    write_ns: int = 0
    prepare_ns: int = 0

    def wrote(self, frame: SealedFrame, write_ns: int, synced: bool) -> None:
        """Count a frame that was written, and whether its write was synced."""
        self.frames_written += 1
        self.frame_bytes += frame.footprint
        self.user_bytes += frame.user_bytes
        self.write_ns += write_ns
        self.syncs += synced


def publish_locked(core: OrderingCore[Any], frame_sink: FrameSink) -> BaseException | None:
    """Tell other processes how far the log is durable, before anything is acknowledged by it.

    Returns what went wrong instead of raising it: it fails the log, but for what is durable already.
    """
    try:
        frame_sink.publish(core.durable_position, core.durable_lsn)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the tickets must be completed
        return error
    return None


class FrameWriter:
    """Makes a frame of a group and writes it. The leader of the group calls `commit`."""

    def __init__(
        self,
        core: OrderingCore[Submitted],
        frame_sink: FrameSink,
        failure: CommitFailure,
        *,
        timer: CommitTimer | None,
        clock: CommitClock,
        counters: CommitCounters,
        sync: Callable[[], object],
        sync_writes: bool,
        codec: str | None,
    ) -> None:
        """`sync` makes durable what was written before: asked for before a segment is begun, without `sync_writes`."""
        self.core = core
        self.frame_sink = frame_sink
        self.lock = failure.lock
        self.failure = failure
        self.completion = failure.completion
        self.watch = failure.completion.watch
        self.timer = timer
        self.clock = clock
        self.counters = counters
        self.sync_writes = sync_writes
        self.codec = codec
        self.write_observers: tuple[FrameObserver, ...] = ()
        self.sequencer = failure.sequencer
        self.parallel = core.in_flight_max > 1
        self.passed: list[SealedFrame] = []
        """Completion order: frames that the contiguous prefix has passed, and that observers have not seen yet."""
        self.as_landed = core.completion_order and self.parallel
        """Whether a frame may be acknowledged before one in front of it."""
        if self.as_landed:
            core.on_prefix = self.passed.append
        self._sync = sync
        self._asks_time = core.policy is not None
        """Whether the core has to know the time: only policies ask for it."""

    def commit(self, group: Sequence[Submitted], turn: int) -> None:
        """Make a frame of the group, write it, and complete what that acknowledges."""
        parallel = self.parallel
        try:
            begun = perf_counter_ns()
            body, user_bytes, columns = prepare(group, self.codec, keep=self.core.ack_sink is not None)
            prepare_ns = perf_counter_ns() - begun
            if parallel:
                self.sequencer.wait(turn)
            frame = self._seal(group, turn, body, columns, user_bytes)
            self.counters.prepare_ns += prepare_ns
        except BaseException as error:
            self.failure.fail(error, unsealed=True)
            raise
        finally:
            if parallel:
                self.sequencer.end(turn)
        if frame is not None:
            self.write(frame)

    def _seal(
        self,
        group: Sequence[Submitted],
        turn: int,
        body: PreparedBody,
        columns: Columns | None,
        user_bytes: int,
    ) -> SealedFrame | None:
        """Seal and assign a group whose turn it is; None where its tickets have failed, and are complete."""
        core = self.core
        if not core.has_room(body):
            self.make_room(body)
        if self.parallel:
            self.lock.acquire()
        try:
            self.failure.taken.pop(turn, None)
            if group[0].frame is not None:
                return None
            frame = core.seal(group, body, self.clock.us(), user_bytes=user_bytes, columns=columns)
        finally:
            if self.parallel:
                self.lock.release()
        self.counters.padding_bytes += frame.footprint - FRAME_HEADER_BYTES - body.stored_bytes
        if core.failure is not None and core.has_failed(frame):  # by a sync, before this frame was sealed
            self.failure.fail(core.failure, frame)
            return None
        return frame if self.assign(frame) else None

    def assign(self, frame: SealedFrame) -> bool:
        """Give a sealed frame its segment; False where that failed, and the log with it."""
        try:
            self.frame_sink.assign(frame)
        except BaseException as error:
            self.failure.fail(error, frame)
            if not isinstance(error, Exception):
                raise
            return False
        return True

    def make_room(self, body: PreparedBody) -> None:
        """Begin the segment that a frame of this body needs; refuse what is not sealed where it has no room or LSN."""
        core = self.core
        last_lsn = core.appended_lsn + body.count
        if last_lsn > LSN_LAST:
            self.failure.refuse_unsealed(LogExhaustedError("LSN", last_lsn, LSN_LAST))
        elif core.failure is None:
            try:
                core.require_positions(body.footprint(core.alignment))
                self._begin_segment()
            except (LogFullError, LogExhaustedError) as error:
                self.failure.refuse_unsealed(error)

    def _begin_segment(self) -> None:
        core, watch = self.core, self.watch
        if not self.sync_writes and core.written_position > core.durable_position:
            self._sync()
        watch.begin(perf_counter_ns())
        try:
            end = self.frame_sink.begin_segment(
                position=core.position, first_lsn=core.appended_lsn + 1, chain=core.chain
            )
        finally:
            watch.end()
        core.segment_ready(end)
        self.frame_sink.passed(core.written_position)

    def write(self, frame: SealedFrame) -> None:
        """Write an assigned frame, and complete what that acknowledges; where the write fails, the log has failed."""
        core, watch = self.core, self.watch
        thread, begun = get_ident(), perf_counter_ns()
        try:
            watch.calls[thread] = (begun, frame)
            watch.active = True
            if watch.asleep:
                watch.wake()
            if self.write_observers:
                self.write_observed(frame)
            else:
                self.frame_sink.write(frame, sync=self.sync_writes)
        except BaseException as error:
            self.failure.fail(error, frame)
            if not isinstance(error, Exception):
                raise
            return
        finally:
            watch.calls.pop(thread, None)
        problem: BaseException | None = None
        completion = self.completion
        with self.lock:
            self.counters.wrote(frame, perf_counter_ns() - begun, self.sync_writes)
            acked = core.written(
                frame, durable=self.sync_writes, now_us=self.clock.us() if self._asks_time else 0
            )
            if self.sync_writes and acked:
                problem = publish_locked(core, self.frame_sink)
            if self.as_landed:
                completion.queue_landed_locked(acked, self.passed)
            elif self.parallel:
                completion.queue_in_order_locked(acked)
        self.finish(frame, [] if self.parallel else acked, problem)

    def finish(self, frame: SealedFrame, acked: list[SealedFrame], problem: BaseException | None) -> None:
        """Do what follows the write of a frame outside the lock: failures, completion, the timer.

        `acked` are the frames to complete, but for those that are queued; `problem` is what publishing has raised.
        """
        core = self.core
        if problem is not None:
            self.failure.fail(problem)
        if core.ack_sink_failure is not None and core.in_flight:
            self.failure.fail(*core.ack_sink_failure)
        if core.failure is not None:
            if core.has_failed(frame):  # by a sync, before this frame was sealed
                self.failure.fail(core.failure, frame)
            elif not core.in_flight:
                # Those that follow the log wait for that, and get no news of a marker frame.
                self.failure.on_poison()
        if self.parallel:
            self.frame_sink.passed(core.written_position)
            self.completion.run()
        else:
            for each in acked:
                self.completion.complete(each)
        if self.timer is not None and self.timer.parked:
            self.timer.wake()

    def write_observed(self, frame: SealedFrame) -> None:
        """Write a frame, and show it to the observers that measure it."""
        observers = self.write_observers
        for observer in observers:
            observer.writing(frame)
        began = perf_counter_ns()
        self.frame_sink.write(frame, sync=self.sync_writes)
        ended = perf_counter_ns()
        for observer in observers:
            observer.wrote(frame, began, ended)
