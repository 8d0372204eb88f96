"""What time asks for: syncs, marks, and the end of those who wait for a device that hangs.

The timer thread only looks. What calls the device is done by the hand, so that it is watched, whoever asked for it; who
waits for a sync is woken by its end, or by the watch.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter_ns

from walkit.commit.core import Tick
from walkit.commit.frame import SealedFrame
from walkit.commit.writing import FrameWriter
from walkit.errors import StorageError, WalkitError


class TimedWriter(FrameWriter):
    """The half of the commit path that nobody's record is on."""

    def sync(self) -> None:
        """Make everything durable that was written before this call; the caller has waited for its own records.

        Raises what refuses the log, at once where the device is found to hang, and the StorageError of a failed sync.
        """
        if self._hand.is_current:
            self._sync_now()
            return
        with self._lock:
            if self.core.failure is not None or self._stopped:
                raise self.refused()
            point = self.core.sync_begin()
        if point.position <= self.core.durable_position:
            return
        ended: list[BaseException | None] = []
        if not self._hand.do("sync", lambda: self._sync_for(ended)):
            raise self.refused()
        self._news.wait_for(lambda: bool(ended) or self._watch.hung)
        if not ended:
            raise self.refused()
        if ended[0] is not None:
            raise ended[0]

    def _sync_for(self, ended: list[BaseException | None]) -> None:
        """Sync, and wake who waits for it."""
        error: BaseException | None = None
        try:
            self._sync_now()
        except BaseException as problem:  # noqa: BLE001 - raised by who waits
            error = problem
        with self._lock:
            ended.append(error)
            callbacks = self._news.tell_locked()
        for callback in callbacks:
            callback()

    def _sync_now(self) -> None:
        """Sync on this thread, which is the hand: so there is one sync at a time."""
        with self._lock:
            if self.core.failure is not None or self._stopped:
                raise self.refused()
            point = self.core.sync_begin()
        if point.position <= self.core.durable_position:
            return
        self._begin_call()
        try:
            self.place.sync()
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._watch.end()
        self.counters.syncs += 1
        with self._lock:
            self.core.synced(point)
            problem = self._publish()
        if problem is not None:
            self._fail(problem)
            raise problem
        if self._timer is not None and self._timer.parked:
            self._timer.wake()

    def _tick(self) -> Tick:
        with self._lock:
            return self.core.tick(self._clock_us())

    def _act(self, tick: Tick) -> None:
        if self._watch.limit_ns and len(self._watch):
            self._fail_hung()
        if tick.sync:
            self._hand.do_once("timer's sync", lambda: self._quietly(self._sync_now))
        if tick.mark:
            self._hand.do_once("mark", lambda: self._quietly(self._write_mark))
        if tick.seal:
            self._kick()

    def _quietly(self, act: Callable[[], None]) -> None:
        """Act for the timer: where it fails the log is poisoned, and everybody has been told."""
        with suppress(WalkitError):
            act()

    @contextmanager
    def watched(self, frame: SealedFrame) -> Iterator[None]:
        """Watch what the calling thread waits for on a frame's behalf: where that hangs, the frame fails."""
        self._watch.begin(perf_counter_ns(), frame)
        if self._watch.asleep:
            self._wake_watch()
        try:
            yield
        finally:
            self._watch.end()

    def _fail_hung(self) -> None:
        """Fail what hangs on the device, with everything behind it; what lands later is never acknowledged."""
        hanging = self._watch.hanging()
        frames = [frame for frame in hanging if frame is not None and frame.state == "sealed"]
        if not frames and (None not in hanging or self.core.failure is not None):
            return
        error = StorageError(
            f"the device has not answered for {self._watch.limit_ns / 1e9:g} s (write_timeout_ms)",
            errno=errno.ETIMEDOUT,
        )
        if frames:
            self._fail(error, min(frames, key=lambda frame: frame.position))
        else:
            self._fail(error, unsealed=True)

    def _write_mark(self) -> None:
        """Write a frame without records, if the log is still idle and its segment has room."""
        core = self.core
        with self._lock:
            if self._leaders or self.refusal is not None or core.pending or not core.needs_mark:
                return
            if core.needs_segment(core.alignment * 2):
                return
            self._leaders += 1
            mark = core.seal_mark(self._clock_us())
            turn = self._turns.draw() if self._parallel else 0
        try:
            admitted = self._admit(mark)
            if self._parallel:
                self._turns.end(turn)
            if admitted:
                self._write(mark)
                self.counters.marks_written += mark.state == "acked"
        finally:
            self._hand_over()
