"""Serves the delta readers of a log: its durable frames go into their sessions, their polls are answered.

The shell around `polls`. It has no thread of its own: an open log's delivery thread brings frames, those of a stored
one are read by the callers. Each caller waits on its own thread, and the first of them after a time is over does what
was due. One observer serves all sessions; it is registered while there is one, so no way out of a session can leave one
registered.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable
from typing import Self

from walkit._internal.locks import once
from walkit._internal.threads import WakeEvent
from walkit.errors import LogClosedError, WalkitError
from walkit.log.observe import Observation, ObservedFrames
from walkit.log.wal import WriteAheadLog
from walkit.replication.delta.messages import DeltaEnd, PollAnswer, PollRefusal, PollRequest
from walkit.replication.delta.poll_server import DeltaCounts, DeltaOptions, DeltaPolls, Reply, SessionStatus
from walkit.replication.delta.stored_frames import StoredFrames
from walkit.replication.logs.source import Source, require_promises
from walkit.replication.transport.threads import now_ms


class PollCall:
    """One poll that is under way. `wake` is set after `answer`, after `gone`, and if its answer is due sooner."""

    def __init__(self) -> None:
        self.wake = WakeEvent()
        self.gone = False
        self.answer: PollAnswer | PollRefusal | None = None


class DeltaFeed:
    """The delta readers of one log. Safe from any thread.

    It ends with `stop`, or with the log. OptionsError for a log of durability "none".
    """

    def __init__(
        self,
        log: WriteAheadLog | Source,
        options: DeltaOptions | None = None,
        *,
        clock_ms: Callable[[], float] = now_ms,
        new_id: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        """`clock_ms` never goes back; `new_id` returns random 64-bit numbers. Raises the errors of reading a source."""
        options = options or DeltaOptions()
        if isinstance(log, WriteAheadLog):
            require_promises(log.options.durability)
            identity = log.parts.core.identity
            self._ids, self._stored, self._log = (identity.log_id, identity.epoch_id), None, log
        else:
            self._stored = StoredFrames(log, options.buffer_bytes)
            self._ids = self._stored.ids
        self._clock_ms, self._calls = clock_ms, dict[PollCall, None]()
        self._core = DeltaPolls(*self._ids, options=options, new_id=new_id)
        self._lock, self._seen_after_lsn = threading.RLock(), 0
        self._observation: Observation | StoredFrames | None = None
        self._stopped: PollRefusal | None = None
        if self._stored is None:  # last: the log may close at once
            self._log.parts.lifetime.on_close(self._log_closes)

    @property
    def sessions(self) -> int:
        """How many readers have a session."""
        return self._core.sessions

    @property
    def held_bytes(self) -> int:
        """Bytes of frames that are kept for readers."""
        with once(self._lock), self._lock:
            return self._core.held_bytes

    @property
    def counts(self) -> DeltaCounts:
        """Counts of the answers so far."""
        return self._core.counts

    def described(self) -> tuple[SessionStatus, ...]:
        """Return each session of this moment."""
        with once(self._lock), self._lock:
            return self._core.described(self._clock_ms())

    def poll(self, request: PollRequest) -> PollAnswer | PollRefusal:
        """Return the answer to a poll; waits for news up to the long poll's time. ProtocolError for a senseless one."""
        answer = self.wait(self.begin(request))
        assert answer is not None, "only `on_disconnect` ends a wait without one"
        return answer

    def wait(self, call: PollCall) -> PollAnswer | PollRefusal | None:
        """Return the answer to a poll; None if `on_disconnect` has ended the wait."""
        self._calls[call] = None
        try:
            while call.answer is None and not call.gone:
                call.wake.wait(self._pause_s())
                self.tick()
        except BaseException:  # an interrupt: the answer, if one is made, is kept for a retry
            self.on_disconnect(call)
            raise
        finally:
            del self._calls[call]
        return call.answer

    def begin(self, request: PollRequest) -> PollCall:
        """Begin a poll and return it at once; `tick` has to be called while it waits. Raises the errors of `poll`."""
        call = PollCall()
        with once(self._lock), self._lock:
            if self._stopped is not None:
                self._send_replies([Reply(call, self._stopped)])
                return call
            try:
                self._observe()
                refusal = self._catch_up()
                if refusal is None:
                    end, after_lsn = self._durable_end(), self._seen_after_lsn
                    replies = self._core.poll(request, call, end, self._clock_ms(), seen_after_lsn=after_lsn)
                else:
                    replies = [Reply(call, refusal)]
                self._send_replies(replies)
            except LogClosedError as error:
                self._send_replies([Reply(call, self._stop(str(error)))])
            finally:
                self._leave_unneeded()
        return call

    def on_disconnect(self, call: PollCall) -> None:
        """The caller is gone: its poll gets no answer, and its session ends without another poll soon."""
        with once(self._lock), self._lock:
            self._core.on_disconnect(call, self._clock_ms())
        call.gone = True
        call.wake.set()

    def tick(self) -> None:
        """Answer polls that waited long enough, and end sessions that expired: to be called while polls wait."""
        with once(self._lock), self._lock:
            self._tick()
            self._leave_unneeded()

    def stop(self) -> None:
        """End all sessions; polls that wait and later ones are refused. Stopping twice does nothing."""
        with once(self._lock), self._lock:
            self._stop("delta readers are no longer served")
        if self._stored is None:
            self._log.parts.lifetime.off_close(self._log_closes)

    # -- the log's threads

    def _see(self, frames: ObservedFrames) -> None:
        """Take frames that are durable: on the log's delivery thread. An error ends all sessions, and is raised."""
        with once(self._lock), self._lock:
            try:
                self._tick()
                self._send_replies(self._core.appended(frames, self._clock_ms()))
                self._hurry()
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                self._leave_unneeded()

    def _log_closes(self) -> None:
        with once(self._lock), self._lock:
            self._stop(f"the log at {self._log.location} is closed")

    def _notify(self) -> None:
        """Wake the waiting calls, on the thread that watches the source: there may be news."""
        for call in list(self._calls):
            call.wake.set()

    # -- under the lock

    def _observe(self) -> None:
        """Make sure that all durable frames from here on come to `_see`, before the durable end is looked at."""
        observation = self._observation
        if observation is not None and observation.error is not None:
            self._fail(observation.error)
        if self._observation is None:
            if self._stored is not None:
                self._observation = self._stored.watch(self._notify)
                self._seen_after_lsn = self._stored.end.lsn
                return
            self._observation = self._log.observe(self._see, at="durable")
            # A record that is acknowledged by now and not durable yet may never come.
            self._seen_after_lsn = self._log.acked_lsn

    def _leave_unneeded(self) -> None:
        if self._observation is not None and not self._core.sessions:
            self._observation.close()
            self._observation = None

    def _durable_end(self) -> DeltaEnd:
        if self._stored is not None:
            return self._stored.end
        parts = self._log.parts
        with parts.driver.lock:
            return DeltaEnd(parts.core.durable_lsn, parts.core.durable_position)

    def _catch_up(self) -> PollRefusal | None:
        """Give the sessions the storage's frames; return why they were ended instead."""
        stored = self._stored
        if stored is None:
            return None
        try:
            frames = stored.pull(wanted=bool(self._core.sessions))
        except LogClosedError as error:
            return self._stop(str(error))
        except WalkitError as error:
            return self._fail(error)
        for each in frames:
            self._send_replies(self._core.appended(each, self._clock_ms()))
            self._hurry()
        if stored.ids != self._ids:
            self._ids = stored.ids
            self._send_replies(self._core.reopened(*self._ids))
        return None

    def _tick(self) -> None:
        if self._catch_up() is None:
            self._send_replies(self._core.tick(self._durable_end(), self._clock_ms()))

    def _fail(self, error: BaseException) -> PollRefusal:
        """End the sessions that may lack a frame, and their observer; the next poll starts both again."""
        refusal = PollRefusal(reason="failed", message=f"{type(error).__name__}: {error}")
        self._send_replies(self._core.end(refusal))
        self._leave_unneeded()
        return refusal

    def _stop(self, detail: str) -> PollRefusal:
        if self._stopped is None:
            self._stopped = PollRefusal(reason="closed", message=detail)
            self._send_replies(self._core.end(self._stopped))
            self._leave_unneeded()
        return self._stopped

    def _send_replies(self, replies: Iterable[Reply]) -> None:
        for token, answer in replies:
            assert isinstance(token, PollCall)
            token.answer = answer
            token.wake.set()

    def _hurry(self) -> None:
        """Have those look again that wait for a later time than their answer is due at now."""
        for token in self._core.hurried:
            assert isinstance(token, PollCall)
            token.wake.set()

    def _pause_s(self) -> float | None:
        with once(self._lock), self._lock:
            wake_at_ms = self._core.wake_at_ms
        return None if wake_at_ms is None else max(wake_at_ms - self._clock_ms(), 0) / 1000

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
