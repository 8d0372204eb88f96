"""From a group of submissions to a frame that is acknowledged or has failed: encode, seal, write, acknowledge, fail.

Several threads may do this at once, one frame each. Encoding and writing run side by side; sealing is serial, in the
order in which the groups were taken; changes of the core are under the lock. With one frame in flight there is one
such thread, and none of this costs it anything. The first failure of a write or sync poisons the log.

There is one encoder of bodies, for columns. One record, and the puts of one batch, which are most frames, have their
own (`prepare_one`, `prepare_puts`) that make the same bytes without making columns first.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from walkit._internal.threads import MEMORY_TRIES
from walkit.commit.core import OrderingCore
from walkit.commit.delivery import Completion
from walkit.commit.frame import SealedFrame
from walkit.commit.latches import SealSequencer, call_all
from walkit.commit.ports import FrameObserver, FrameSink
from walkit.commit.ticket import Submitted
from walkit.commit.timer import CommitClock, CommitTimer
from walkit.errors import LogClosedError, LogExhaustedError, LogFullError, LogPoisonedError, WalkitError
from walkit.events import EventSink
from walkit.format.body import COLUMN_BYTES_PER_RECORD, Columns, PackedBytes, one_record
from walkit.format.frame import PreparedBody, prepare_body, prepare_one, prepare_puts
from walkit.format.layout import FRAME_HEADER_BYTES, HAS_KEY, HAS_TIMESTAMP, HAS_VALUE, LSN_LAST


def prepare(
    submissions: Sequence[Submitted], codec: str | None, *, keep: bool
) -> tuple[PreparedBody, int, Columns | None]:
    """Return (the body, the user bytes, with `keep` the columns) of the submissions of a frame."""
    if not keep and len(submissions) == 1:
        only: Any = submissions[0]
        if only.shared:
            keys, values = only.records
            body = prepare_puts(only.kind, keys, values, codec)
            return body, only.size_bytes - COLUMN_BYTES_PER_RECORD * body.count, None
        columns = only.columns
        if columns is None:
            body = prepare_one(only.kind, only.key, only.value, only.timestamp, codec)
            return body, only.size_bytes - COLUMN_BYTES_PER_RECORD, None
        return prepare_body(columns, codec), only.size_bytes - COLUMN_BYTES_PER_RECORD * columns.count, None
    columns, user_bytes = gather(submissions)
    return prepare_body(columns, codec), user_bytes, columns if keep else None


def gather(submissions: Sequence[Submitted]) -> tuple[Columns, int]:
    """Return (the columns of a frame, its user bytes) from the submissions that share it, in their order."""
    if len(submissions) == 1:
        return _gather_one(submissions[0])
    if not any(s.shared or s.columns is not None for s in submissions):
        return _gather_singles(submissions)
    many = [_gather_one(s)[0] for s in submissions]
    user_bytes = sum(s.size_bytes - COLUMN_BYTES_PER_RECORD * s.count for s in submissions)
    if all(_is_packed(c) for c in many):
        return _gather_packed(many), user_bytes
    kinds: list[int] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    stamps: list[int] = []
    for columns in many:
        n = columns.count
        kinds.extend([columns.kinds] * n if isinstance(columns.kinds, int) else columns.kinds)
        keys.extend(_or_empty(columns.keys, n))
        values.extend(_or_empty(columns.values, n))
        stamps.extend([0] * n if columns.timestamps is None else columns.timestamps)
    return _columns(kinds, keys, values, stamps), user_bytes


def _or_empty(items: Sequence[bytes] | PackedBytes | None, count: int) -> Iterable[bytes]:
    return [b""] * count if items is None else items


def _is_packed(columns: Columns) -> bool:
    return all(items is None or isinstance(items, PackedBytes) for items in (columns.keys, columns.values))


def _gather_packed(many: list[Columns]) -> Columns:
    """Put packed columns below each other without making an object of any record."""
    kinds: int | bytes
    if len({c.kinds if isinstance(c.kinds, int) else -1 for c in many}) == 1 and isinstance(
        many[0].kinds, int
    ):
        kinds = many[0].kinds
    else:
        kinds = b"".join(
            bytes((c.kinds,)) * c.count if isinstance(c.kinds, int) else bytes(c.kinds) for c in many
        )
    stamps: array[int] | None = None
    if any(c.timestamps is not None for c in many):
        stamps = array("q")
        for columns in many:
            stamps.extend(array("q", columns.timestamps or bytes(8 * columns.count)))
    return Columns(
        sum(c.count for c in many),
        kinds,
        _stacked([(c.count, c.keys) for c in many]),
        _stacked([(c.count, c.values) for c in many]),
        stamps,
    )


def _stacked(columns: list[tuple[int, Sequence[bytes] | PackedBytes | None]]) -> PackedBytes | None:
    if all(items is None for _, items in columns):
        return None
    return PackedBytes.joined(
        [items if isinstance(items, PackedBytes) else PackedBytes.empties(count) for count, items in columns]
    )


def _gather_one(submission: Submitted) -> tuple[Columns, int]:
    columns = submission.columns
    if columns is None:
        only: Any = submission
        columns = one_record(only.kind, only.key, only.value, only.timestamp)
    return columns, submission.size_bytes - COLUMN_BYTES_PER_RECORD * submission.count


def _gather_singles(tickets: Sequence[Any]) -> tuple[Columns, int]:
    columns = _columns(
        [t.kind for t in tickets],
        [t.key for t in tickets],
        [t.value for t in tickets],
        [t.timestamp for t in tickets],
    )
    return columns, sum(t.size_bytes for t in tickets) - COLUMN_BYTES_PER_RECORD * len(tickets)


def _columns(kinds: list[int], keys: list[bytes], values: list[bytes], stamps: list[int]) -> Columns:
    seen = set(kinds)
    present = 0
    for kind in seen:
        present |= kind
    return Columns(
        len(kinds),
        kinds[0] if len(seen) == 1 else kinds,
        keys if present & HAS_KEY else None,
        values if present & HAS_VALUE else None,
        stamps if present & HAS_TIMESTAMP else None,
    )


class CommitFailure:
    """Refuses the queue and fails the frames in flight. All methods are safe from any thread."""

    def __init__(
        self,
        completion: Completion,
        events: EventSink,
    ) -> None:
        # The commit lock: see `DeviceWatch.lock`.
        self.lock = completion.lock
        # Written under the commit lock, once by `stop` or the first failure. Read under it before anything is
        # queued, so nothing enters a log that refuses.
        self.refusal: WalkitError | None = None
        """The error that refuses new work once the log has failed or is closed; None before."""
        # Written once, under the commit lock, by the first failure.
        self.poisoned: LogPoisonedError | None = None
        """The refusal of a log that has failed."""
        # A leader adds its group under the commit lock, together with the lead. It removes the group when it seals;
        # a failure clears them all. Turn 0 is the only one with one frame in flight.
        self.taken: dict[int, Sequence[Submitted]] = {}
        """Groups that leaders have taken and that are not sealed yet, by the turn in which they are sealed."""
        self.on_poison: Callable[[], object] = lambda: None
        """Called when the log has failed, and when more of it has: it must only wake something."""
        self.sequencer = SealSequencer()
        """The order of sealing; abandoned when the log has failed, as the leader whose turn it is may hang."""
        self.completion = completion
        self._core = completion.core
        self._signal = completion.signal
        self._events = events
        # Written by threads that fail, under no lock: two at once may send the event twice, which is harmless.
        self._reported = False
        self._parallel = self._core.in_flight_max > 1

    def refused(self) -> WalkitError:
        """Return a fresh copy of the error that refuses work now."""
        refusal = self.refusal
        if refusal is None:
            return LogClosedError()
        fresh = copy.copy(refusal)
        fresh.__cause__ = refusal.__cause__
        return fresh

    def refuse_unsealed(self, error: WalkitError) -> None:
        """Refuse every unsealed group: it has no room or number, and later frames must not take its place."""
        with self.lock:
            waiting = [t for group in self.taken.values() for t in group]
            waiting += self._core.waiting()
            self.completion.queue_in_order_locked([SealedFrame.refused(waiting, error)])
            # Last, and without an allocation: an earlier failure to allocate leaves all as it was.
            self.taken.clear()
            self._core.forget_waiting()
        self.completion.run()

    def fail(self, cause: BaseException, frame: SealedFrame | None = None, *, unsealed: bool = False) -> None:
        """Fail the frames of `OrderingCore.begin_failure` at once, and take no more. The first one poisons the log.

        Tried again if it finds no memory, as threads wait for that: it continues where it was.
        """
        tries = 0
        while True:
            try:
                self._fail(cause, frame, unsealed=unsealed)
                return
            except MemoryError:
                tries += 1
                if tries >= MEMORY_TRIES:
                    raise

    def _fail(self, cause: BaseException, frame: SealedFrame | None, *, unsealed: bool) -> None:
        core = self._core
        with self.lock:
            core.begin_failure(cause, frame, unsealed=unsealed)
            if self.poisoned is None:
                poisoned = LogPoisonedError(
                    f"an earlier write, or work beside it, failed ({cause!r}); close the log and open it again: "
                    "recovery finds out what survived",
                    cause=repr(cause),
                )
                poisoned.__cause__ = cause
                self.refusal = self.refusal or poisoned
                self.poisoned = poisoned
            frames, waiting = core.lost_frames(), core.waiting()
            # With one frame in flight the leader may be sealing its group now: it finds the failure itself.
            takes = self._parallel or unsealed
            if takes:
                waiting[:0] = self._taken_locked()
            if waiting:
                frames.append(SealedFrame.refused(waiting, self.poisoned))
            self.completion.queue_in_order_locked(frames)
            core.forget_failed()
            if takes:
                self.taken.clear()
            callbacks = self._signal.notify_locked()
        call_all(callbacks)
        if self._parallel:
            self.sequencer.abandon()
        self.completion.run()
        self.on_poison()
        if not self._reported:
            self._reported = True
            self._events.emit("walkit.log.poison", cause=repr(cause), acked_lsn=core.acked_lsn)

    def fail_group_or_raise(self, group: Sequence[Submitted], error: BaseException) -> None:
        """Fail the unacknowledged part of a lone writer's group, which met this error at any point of its frame.

        Raises the error again if it is not an Exception: that one belongs to the thread, not to the log.
        """
        frame = group[0].frame
        if frame is None or frame.state == "sealed":
            self.fail(error, frame, unsealed=frame is None)
        if not isinstance(error, Exception):
            raise error
        self.fail_group(group, error)

    def fail_group(self, group: Sequence[Submitted], error: BaseException) -> None:
        """Poison the log because its own code failed with this group, and complete the group's tickets.

        A group that the device has refused, or that could not be encoded, is complete by then.
        """
        frame = group[0].frame if group else None
        if self._core.failure is None:
            self.fail(error, frame, unsealed=frame is None)
        if frame is not None and frame.state == "sealed":  # the core no longer holds it
            frame.error, frame.state = error, "failed"
        elif group and group[0].frame is None:  # taken, and not noted in `taken` yet
            frame = SealedFrame.refused(group, self.poisoned or error)
        elif frame is None or frame.state != "acked" or frame.notified:
            return
        # One that is acknowledged, too, where the error came before its waiters were told.
        with self.lock:
            self.completion.queue_in_order_locked([frame])
        self.completion.run()

    def poison(self, cause: BaseException) -> None:
        """Fail all that is in flight, and take nothing more, for a cause that no frame has. Raises nothing.

        A sync beside the frames has failed, or one of the log's own threads met an unforeseen error.
        """
        try:
            self.fail(cause)
        except BaseException as error:  # noqa: BLE001 - the log has failed by then; its thread must not end of this
            self._events.emit("walkit.callback.fail", what="the log's failure", error=repr(error))

    def refuse_fork(self, refusal: WalkitError) -> None:
        """Refuse everything in a forked child, and fail queue and frames in flight: the parent has the threads."""
        self.refusal = refusal
        core = self._core
        SealedFrame.refused([*self._taken_locked(), *core.refuse()], refusal)
        for frame in (*core.in_flight, *core.unacked):
            if frame.state == "sealed":
                frame.error, frame.state = refusal, "failed"

    def _taken_locked(self) -> list[Submitted]:
        return [t for group in self.taken.values() for t in group if t.frame is None]


@dataclass(slots=True)
class CommitCounters:
    """Counters since opening, for `log.statistics()`. The leader changes them, a sync under way `syncs`, too."""

    frames_written: int = 0
    marker_frames: int = 0
    frame_bytes: int = 0
    user_bytes: int = 0
    padding_bytes: int = 0
    syncs: int = 0
    write_ns: int = 0
    prepare_ns: int = 0
    payload_dead_bytes: int = 0
    """Set by `links.floor`."""

    def wrote(self, frame: SealedFrame, write_ns: int, synced: bool) -> None:
        """Count a frame that was written, and whether its write was synced."""
        self.frames_written += 1
        self.frame_bytes += frame.footprint
        self.user_bytes += frame.user_bytes
        self.write_ns += write_ns
        self.syncs += synced


def publish_locked(core: OrderingCore[Any], frame_sink: FrameSink) -> BaseException | None:
    """Tell other processes how far the log is durable, before anything is acknowledged by it.

    Returns an error instead of raising it: it fails the log, except for durable records.
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
        """`sync` makes all earlier writes durable: called before a new segment, without `sync_writes`."""
        self.core = core
        self.frame_sink = frame_sink
        # The commit lock: see `DeviceWatch.lock`.
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
        # Written once more, under the commit lock, by `AckLimit.begin`: see there.
        self.queues = self.parallel
        """Whether frames are completed by way of the queue of `Completion`, as several threads may."""
        self.passed: list[SealedFrame] = []
        """Completion order: frames that the contiguous prefix has passed, and that observers have not seen yet."""
        self.as_landed = core.completion_order and self.parallel
        """Whether a frame may be acknowledged before one in front of it."""
        if self.as_landed:
            core.on_prefix = self.passed.append
        self._sync = sync
        self._needs_time = core.policy is not None
        """Whether the core has to know the time: only policies ask for it."""

    def commit(self, group: Sequence[Submitted], turn: int) -> None:
        """Make a frame of the group, write it, and complete the acknowledged tickets."""
        parallel = self.parallel
        try:
            start_ns = perf_counter_ns()
            body, user_bytes, columns = prepare(group, self.codec, keep=self.core.ack_sink is not None)
            prepare_ns = perf_counter_ns() - start_ns
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
        """Seal and assign a group whose turn it is; None if its tickets have failed and are complete."""
        core = self.core
        if self.queues and self._lacks_replicas():
            self.failure.refuse_unsealed(
                LogFullError(
                    f"{len(core.unacked):,} frames wait for replicas, some for too long, and more find no room "
                    f"({core.unacked_bytes_max:,} bytes); try again",
                    reason="replicas",
                    limit_bytes=core.unacked_bytes_max,
                )
            )
        elif not core.has_room(body):
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

    def _lacks_replicas(self) -> bool:
        with self.lock:
            return self.core.is_full and self.core.timed_out > 0

    def assign(self, frame: SealedFrame) -> bool:
        """Give a sealed frame its segment; False if that failed, and the log with it."""
        try:
            self.frame_sink.assign(frame)
        except BaseException as error:
            self.failure.fail(error, frame)
            if not isinstance(error, Exception):
                raise
            return False
        return True

    def make_room(self, body: PreparedBody) -> None:
        """Begin the segment that a frame of this body needs; refuse unsealed groups without room or an LSN."""
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
        """Write an assigned frame, and complete the acknowledged tickets; if the write fails, the log has failed."""
        core, watch = self.core, self.watch
        thread, start_ns = get_ident(), perf_counter_ns()
        try:
            watch.calls[thread] = (start_ns, frame)
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
            self.counters.wrote(frame, perf_counter_ns() - start_ns, self.sync_writes)
            acked = core.written(
                frame, durable=self.sync_writes, now_us=self.clock.us() if self._needs_time else 0
            )
            if self.sync_writes and (acked or core.unacked):
                problem = publish_locked(core, self.frame_sink)
            if self.as_landed:
                completion.queue_landed_locked(acked, self.passed)
            elif self.queues:
                completion.queue_in_order_locked(acked)
                acked = []
        self.finish(frame, [] if self.as_landed else acked, problem)

    def finish(self, frame: SealedFrame, acked: list[SealedFrame], problem: BaseException | None) -> None:
        """Finish the write of a frame outside the lock: failures, completion, the timer.

        `acked` are the frames to complete, except the queued ones; `problem` is the error of publishing.
        """
        core = self.core
        if problem is not None:
            self.failure.fail(problem)
        if core.ack_sink_failure is not None and core.unacked:
            self.failure.fail(*core.ack_sink_failure)
        if core.failure is not None:
            if core.has_failed(frame):  # by a sync, before this frame was sealed
                self.failure.fail(core.failure, frame)
            elif not core.in_flight:
                # Those that follow the log wait for that, and get no news of a marker frame.
                self.failure.on_poison()
        if self.parallel:
            self.frame_sink.passed(core.written_position)
        for each in acked:
            self.completion.complete(each)
        if core.unacked:
            self.completion.delivery.wake()  # readers of the log itself see it by now, as replicas do
        if self.queues:
            self.completion.run()
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
