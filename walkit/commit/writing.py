"""From a group of submissions to an acknowledged frame: encode, seal, write, acknowledge, or fail.

Several threads may be at this at once, one frame each. Encoding and writing run side by side; sealing is serial, in the
order in which the groups were taken; what changes the core is under the lock. With one frame in flight there is one
such thread, and it pays for none of this.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from walkit.commit.batch import Submitted
from walkit.commit.core import OrderingCore, Tick
from walkit.commit.counters import CommitCounters
from walkit.commit.delivery import Delivery
from walkit.commit.frame import SealedFrame
from walkit.commit.gather import prepare
from walkit.commit.hand import Hand
from walkit.commit.news import News
from walkit.commit.place import FramePlace
from walkit.commit.release import Releaser
from walkit.commit.timer import CommitTimer
from walkit.commit.turns import Turns
from walkit.commit.watch import DeviceWatch
from walkit.errors import (
    LogClosedError,
    LogExhaustedError,
    LogFullError,
    LogPoisonedError,
    WalkitError,
)
from walkit.events import EventSink
from walkit.format.body import Columns
from walkit.format.frame import PreparedBody
from walkit.format.layout import FRAME_HEADER_BYTES, LSN_LAST


class FrameWriter:
    """What a group becomes; `CommitDriver` says who does it and who waits. `_leaders` is how many threads are at it."""

    def __init__(
        self,
        core: OrderingCore[Submitted],
        place: FramePlace,
        *,
        events: EventSink,
        name: str,
        sync_writes: bool,
        codec: str | None,
        clock_us: Callable[[], int],
        write_timeout_us: int = 0,
    ) -> None:
        self.core = core
        self.place = place
        self.events = events
        self.delivery = Delivery(name, events, self.poison)
        self.refusal: WalkitError | None = None
        self._poison: LogPoisonedError | None = None
        self.counters = CommitCounters()
        self.on_poison: Callable[[], object] = lambda: None
        """Called when the log has failed, and when more of it has: it must only wake something."""
        self._name = name
        self._sync_writes = sync_writes
        self._codec = codec
        self._clock_us = clock_us
        self._timed = core.policy is not None
        """Whether the core has to know the time: only policies ask for it."""
        self._lock = threading.Lock()
        self._news = News(self._lock)
        self._leaders = 0
        self._parallel = core.in_flight_max > 1
        self._turns = Turns()
        self._taken: dict[int, Sequence[Submitted]] = {}
        self._passed: list[SealedFrame] = []
        self._as_landed = core.completion and self._parallel
        """Whether a frame may be acknowledged before one in front of it."""
        if self._as_landed:
            core.on_prefix = self._passed.append
        self._releaser = Releaser(self.delivery)
        self._watch = DeviceWatch(write_timeout_us * 1000)
        self._hand = Hand(name, self.poison)
        self._stopped = False
        timed = core.idle_mark_us or core.interval_us or write_timeout_us or core.policy is not None
        watch = (self._tick, self._act, self._watch.nap_us)
        self._timer = CommitTimer(name, *watch, broken=self.poison) if timed else None

    def refused(self) -> WalkitError:
        """Return a fresh copy of the error that refuses work now."""
        refusal = self.refusal
        if refusal is None:
            return LogClosedError()
        fresh = copy.copy(refusal)
        fresh.__cause__ = refusal.__cause__
        return fresh

    # -- a frame's way

    def _commit(self, group: Sequence[Submitted], turn: int) -> bool:
        """Make a frame of the group, write it, and release whom that acknowledges; True where `_write` says it."""
        parallel = self._parallel
        try:
            begun = perf_counter_ns()
            body, user_bytes, columns = prepare(group, self._codec, keep_columns=bool(self.core.sinks))
            prepare_ns = perf_counter_ns() - begun
            if parallel:
                self._turns.wait(turn)
            frame = self._seal(group, turn, body, columns, user_bytes)
            self.counters.prepare_ns += prepare_ns
        except BaseException as error:
            self._fail(error, unsealed=True)
            raise
        finally:
            if parallel:
                self._turns.end(turn)
        return frame is not None and self._write(frame)

    def _seal(
        self,
        group: Sequence[Submitted],
        turn: int,
        body: PreparedBody,
        columns: Columns | None,
        user_bytes: int,
    ) -> SealedFrame | None:
        """Seal a group whose turn it is; None where everybody in it has been told of a failure."""
        core = self.core
        alignment = core.alignment
        unpadded_bytes = FRAME_HEADER_BYTES + body.stored_bytes
        footprint = (unpadded_bytes + alignment - 1) & -alignment
        if core.appended_lsn + body.count > LSN_LAST:
            self._refuse_all(LogExhaustedError("LSN", core.appended_lsn + body.count, LSN_LAST))
        elif core.position + footprint > core.segment_end and core.failure is None:
            try:
                core.require_positions(footprint)
                self._begin_segment()
            except (LogFullError, LogExhaustedError) as error:
                self._refuse_all(error)
        if self._parallel:
            self._lock.acquire()
        try:
            self._taken.pop(turn, None)
            if group[0].frame is not None:
                return None
            frame = core.seal(group, body, self._clock_us(), user_bytes=user_bytes, columns=columns)
        finally:
            if self._parallel:
                self._lock.release()
        self.counters.padding_bytes += footprint - unpadded_bytes
        if core.failure is not None and core.has_failed(frame):
            self._fail(core.failure, frame)  # a sync failed on another thread before this frame was sealed
            return None
        return frame if self._admit(frame) else None

    def _admit(self, frame: SealedFrame) -> bool:
        try:
            self.place.admit(frame)
        except BaseException as error:
            self._fail(error, frame)
            if not isinstance(error, Exception):
                raise
            return False
        return True

    def _begin_segment(self) -> None:
        core = self.core
        if not self._sync_writes and core.written_position > core.durable_position:
            self.sync()
        self._begin_call()
        try:
            end = self.place.begin_segment(
                position=core.position, first_lsn=core.appended_lsn + 1, chain=core.chain
            )
        finally:
            self._watch.end()
        core.segment_ready(end)
        self.place.passed(core.written_position)

    def _begin_call(self) -> None:
        """A call to the device begins that is not about one frame."""
        self._watch.begin(perf_counter_ns())
        if self._watch.asleep:
            self._wake_watch()

    def _wake_watch(self) -> None:
        if self._timer is not None:
            self._watch.asleep = False
            self._timer.wake()

    def _write(self, frame: SealedFrame) -> bool:
        """Write an admitted frame, and release whom that acknowledges.

        True where the lead was given up with it: with one frame in flight, and nobody to be told or waiting.
        """
        core, watch = self.core, self._watch
        thread, begun = get_ident(), perf_counter_ns()
        watch.calls[thread] = (begun, frame)
        watch.active = True
        if watch.asleep:
            self._wake_watch()
        try:
            self.place.write(frame, sync=self._sync_writes)
        except BaseException as error:
            self._fail(error, frame)
            if not isinstance(error, Exception):
                raise
            return False
        finally:
            watch.calls.pop(thread, None)
        problem: Exception | None = None
        with self._lock:
            self.counters.wrote(frame, perf_counter_ns() - begun, self._sync_writes)
            told = core.written(
                frame, durable=self._sync_writes, now_us=self._clock_us() if self._timed else 0
            )
            if self._sync_writes and told:
                problem = self._publish()
            if self._parallel:
                self._queue(told)
            alone = not self._parallel and self._is_alone(frame)
            if alone:
                self._leaders = 0
        if problem is not None:
            self._fail(problem)
        if core.failure is not None and core.has_failed(frame):
            self._fail(core.failure, frame)  # a sync failed on another thread before this frame was sealed
        if self._parallel:
            self.place.passed(core.written_position)
            self._releaser.run()
        elif alone:
            frame.forget()
        else:
            for each in told:
                self._releaser.tell(each)
        if self._timer is not None and self._timer.parked:
            self._timer.wake()
        return alone

    def _is_alone(self, frame: SealedFrame) -> bool:
        """Whether nobody waits, and nobody but who leads is to be told of the frame; needs the lock held."""
        if len(frame.submissions) != 1:
            return False
        only: Any = frame.submissions[0]
        return (
            frame.state == "acked"
            and not only.shared
            and only.waiter is only.callbacks is only.wait is None
            and not (self.core.pending or self._news.wanted or self.delivery.observers)
        )

    def _publish(self) -> Exception | None:
        """Tell other processes how far the log is durable, before anybody is told; needs the lock held.

        What goes wrong is returned: it fails the log, but for what is durable already.
        """
        try:
            self.place.publish(self.core.durable_position, self.core.durable_lsn)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must be told
            return error
        return None

    def _queue(self, told: list[SealedFrame]) -> None:
        """Queue what a landed frame has acknowledged; needs the lock held."""
        releaser = self._releaser
        if not self._as_landed:
            releaser.queue(releaser.tell, told)
            return
        releaser.queue(releaser.tell_landed, told)
        releaser.queue(releaser.tell_passed, self._passed)
        self._passed.clear()

    # -- failure

    def _refuse_all(self, error: WalkitError) -> None:
        """No room or number: refuse what is not sealed. What comes later must not stand where it would have stood."""
        with self._lock:
            waiting = [t for group in self._taken.values() for t in group]
            waiting += self.core.refuse()
            self._taken.clear()
            refused = [SealedFrame.refused(waiting, error)]
            if self._parallel:
                self._releaser.queue(self._releaser.tell, refused)
        if self._parallel:
            self._releaser.run()
        else:
            self._releaser.tell(refused[0])

    def _fail(
        self, cause: BaseException, frame: SealedFrame | None = None, *, unsealed: bool = False
    ) -> None:
        """Fail what `OrderingCore.fail` says, at once, and take nothing more. The first failure poisons the log."""
        with self._lock:
            first = self.core.failure is None
            frames, waiting = self.core.fail(cause, frame, unsealed=unsealed)
            if first:
                self._poison = LogPoisonedError(
                    f"an earlier write, or work beside it, failed ({cause!r}); close the log and open it again: "
                    "recovery finds out what survived",
                    cause=repr(cause),
                )
                self._poison.__cause__ = cause
                self.refusal = self.refusal or self._poison
            if self._parallel or unsealed:
                # With one frame in flight the leader may be sealing its group this very moment: it finds out itself.
                waiting[:0] = [t for group in self._taken.values() for t in group if t.frame is None]
                self._taken.clear()
            if waiting:
                frames.append(SealedFrame.refused(waiting, self._poison or cause))
            callbacks = self._news.tell_locked()
            if self._parallel:
                self._releaser.queue(self._releaser.tell, frames)
        if self._parallel:
            self._releaser.run()
        else:
            for each in frames:
                self._releaser.tell(each)
        for callback in callbacks:
            callback()
        self.on_poison()
        if first:
            self.events.emit("walkit.log.poison", cause=repr(cause), acked_lsn=self.core.acked_lsn)

    def poison(self, cause: BaseException) -> None:
        """Fail all that is in flight, and take nothing more, for a cause off the way of a frame. Raises nothing.

        A sync beside the frames has failed, or one of the log's own threads met what it has no answer to.
        """
        try:
            self._fail(cause)
        except BaseException as error:  # noqa: BLE001 - the log has failed by then; its thread must not end of this
            self.events.emit("walkit.callback.fail", what="the log's failure", error=repr(error))

    def sync(self) -> None:
        """See TimedWriter."""
        raise NotImplementedError

    def _tick(self) -> Tick:
        raise NotImplementedError

    def _act(self, tick: Tick) -> None:
        raise NotImplementedError

    def _kick(self) -> None:
        raise NotImplementedError

    def _hand_over(self, to_the_end: bool = False) -> bool:
        raise NotImplementedError
