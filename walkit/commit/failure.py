"""What the commit path refuses and fails: the first failure of a write or sync poisons the log."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from walkit._internal.threads import MEMORY_TRIES
from walkit.commit.batch import Submitted
from walkit.commit.commit_signal import call_all
from walkit.commit.completion import Completion
from walkit.commit.frame import SealedFrame
from walkit.commit.seal_sequencer import SealSequencer
from walkit.errors import LogClosedError, LogPoisonedError, WalkitError
from walkit.events import EventSink


class CommitFailure:
    """Refuses what is queued and fails what is in flight. All methods are safe from any thread."""

    def __init__(
        self,
        completion: Completion,
        events: EventSink,
    ) -> None:
        self.lock = completion.lock
        # Written under the commit lock, once by `stop` or the first failure. Read under it before anything is
        # queued, so nothing enters a log that refuses.
        self.refusal: WalkitError | None = None
        """What refuses new work: the log has failed or is closed. None while it takes some."""
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
        """The order of sealing; abandoned where the log has failed, as the leader whose turn it is may hang."""
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
        """Refuse what is not sealed: there is no room or number for it, so later frames must not take its place."""
        with self.lock:
            waiting = [t for group in self.taken.values() for t in group]
            waiting += self._core.waiting()
            self.completion.queue_in_order_locked([SealedFrame.refused(waiting, error)])
            # Last, and without an allocation: what finds no memory before leaves all where it was.
            self.taken.clear()
            self._core.forget_waiting()
        self.completion.run()

    def fail(self, cause: BaseException, frame: SealedFrame | None = None, *, unsealed: bool = False) -> None:
        """Fail what `OrderingCore.begin_failure` says, at once, and take no more. The first one poisons the log.

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
        """Fail what is not acknowledged of the group of a lone writer, which met this error at any point of its frame.

        Raises the error again where it is no Exception: that one belongs to the thread, and not to the log.
        """
        frame = group[0].frame
        if frame is None or frame.state == "sealed":
            self.fail(error, frame, unsealed=frame is None)
        if not isinstance(error, Exception):
            raise error
        self.fail_group(group, error)

    def fail_group(self, group: Sequence[Submitted], error: BaseException) -> None:
        """Poison the log where its own code has failed with this group, and complete the group's tickets.

        A group that the device has refused, or that could not be encoded, is complete by then.
        """
        frame = group[0].frame if group else None
        if self._core.failure is None:
            self.fail(error, frame, unsealed=frame is None)
        if frame is not None and frame.state == "sealed":  # the core does not hold it any more
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

        A sync beside the frames has failed, or one of the log's own threads met what it has no answer to.
        """
        try:
            self.fail(cause)
        except BaseException as error:  # noqa: BLE001 - the log has failed by then; its thread must not end of this
            self._events.emit("walkit.callback.fail", what="the log's failure", error=repr(error))

    def refuse_fork(self, refusal: WalkitError) -> None:
        """Refuse everything in a forked child, and fail what is queued or in flight: its threads are the parent's."""
        self.refusal = refusal
        core = self._core
        SealedFrame.refused([*self._taken_locked(), *core.refuse()], refusal)
        for frame in core.in_flight:
            if frame.state == "sealed":
                frame.error, frame.state = refusal, "failed"

    def _taken_locked(self) -> list[Submitted]:
        return [t for group in self.taken.values() for t in group if t.frame is None]
