"""The loop of a delta reader: one thread that passes events to the cores, and does the steps that follow.

It outlives the user's object until it is stopped: the `DeltaReader` holds the loop, the threads hold only the loop.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

from walkit._internal.threads import WakeEvent
from walkit.errors import DivergenceError, OptionsError, WalkitError
from walkit.events import EventSink
from walkit.replication.core.absence import is_absent
from walkit.replication.delta.client_channel import POLL_WAIT_MS, PollLink, Received
from walkit.replication.delta.loader import LoadedRange, RangeLoader, Workers, check_history
from walkit.replication.delta.maintenance import ReaderMaintenance
from walkit.replication.delta.messages import DeltaEnd, PollAnswer, PollRefusal, PollRequest
from walkit.replication.delta.opening import Opening
from walkit.replication.delta.poll_client import DeltaPoller
from walkit.replication.delta.replayer import ApplyRange, DeltaReplayer, EndReplay, LoadRange, ReplayStep
from walkit.replication.delta.state import ReaderFigures, ReaderState
from walkit.replication.logs.source import SharedLog
from walkit.replication.protocol.checks import plain_text
from walkit.replication.protocol.failures import ReplicaFailedError
from walkit.replication.transport.connection import Destination
from walkit.replication.transport.threads import LoopThread, now_ms

SILENCE_MS = 200.0
"""Without an answer for this time it reads the log itself; longer if a primary lets polls wait."""
LOOK_MS = 50.0
PROBE_MS = 5_000.0
"""Time until the next poll to a primary that answers none."""
CHECK_MS, UNPROVEN_MS = 5_000.0, 1_000.0
"""Time between two reads of the log itself while polls are answered: a primary may be wrong about it.

More often while the primary's opening is not in the log's manifest: it may be the primary of another copy.
"""
STOP_S = 30.0
"""How long a stop waits for the work of a thread: a storage may hang."""
REFUSALS_MAX = 2
"""The second refusal for token or TLS ends the reader."""


class DeltaLoop:
    """Polls, loads and applies, on one thread once it is started; loads run on a few more.

    `start` and `stop` are safe from any thread; everything else is the loop's own thread's.
    """

    def __init__(
        self,
        *,
        name: str,
        destination: Destination,
        loader: RangeLoader,
        source: SharedLog,
        replayer: DeltaReplayer,
        new_poller: Callable[[], DeltaPoller],
        state: ReaderState,
        log_id: int,
        events: EventSink,
    ) -> None:
        self.name, self.destination, self.events, self.state = name, destination, events, state
        self.replayer, self.poller = replayer, new_poller()
        self.figures, self.process = ReaderFigures(), os.getpid()
        self.maintenance: ReaderMaintenance | None = None
        self.error: WalkitError | None = None
        self.troubles: dict[str, str] = {}
        """The last failure of each ("poll", "look", "load", "stop"). The next success clears it."""
        self._absent: set[str] = set()
        """Which of "look" and "load" found the storage absent last."""
        self.polls = self.failures = self.refusals = self.looks = self.records = 0
        self.answered_ms: float | None = None
        self.seen_ms: float | None = None
        """When the log itself was last looked at without an error."""
        self.in_contact = False  # whether the state was compared with the log since this was made
        self.thread = LoopThread(self._run)
        self.stopping = False
        self._new_poller, self.loader, self._source, self._log_id = new_poller, loader, source, log_id
        self._unfinished, self._wake = deque([True]), WakeEvent()
        self._inbox: deque[Callable[[], Sequence[ReplayStep]]] = deque()
        self._link = PollLink(destination, self._on_reply)
        self._workers = Workers(replayer.limits.loads_max + 1, "walkit-delta-load")
        self._probe_ms: float | None = None
        self._polled_ms = self._log_due_ms = self._log_read_ms = now_ms()
        self._polled_ns = perf_counter_ns()
        self._reading_log, self._silence_ms, self._refused, self._sessions_before = False, SILENCE_MS, 0, 0
        self._opening, self._owed_lsn = Opening(source, log_id), 0  # the log's end at the last look
        self._named: dict[int, int] = {}  # by part of the replay: when it was named, ns
        self._loads: set[int] = set()  # parts that are read from the log

    @property
    def sessions(self) -> int:
        """The number of sessions so far."""
        return self._sessions_before + self.poller.sessions

    @property
    def is_answered(self) -> bool:
        """Whether the primary has answered a poll a short time ago."""
        return self.answered_ms is not None and now_ms() - self.answered_ms < 5 * self._silence_ms

    @property
    def is_in_touch(self) -> bool:
        """Whether the primary, or the log itself, has said a short time ago how far the log is."""
        spoke_ms = max(self.answered_ms or 0.0, self.seen_ms or 0.0)
        return bool(spoke_ms) and not self.is_ended and now_ms() - spoke_ms < 5 * self._silence_ms

    @property
    def is_absent(self) -> bool:
        """Whether the storage was absent at the last look or load: it is tried again until it is back."""
        return bool(self._absent)

    @property
    def trouble(self) -> str:
        """The latest failure that has not succeeded since; "" without one."""
        return "; ".join(dict.fromkeys([*self.troubles.values()]))

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked child: it has neither the threads nor the claim, and the folder is its parent's."""
        return self.process != os.getpid()

    @property
    def is_ended(self) -> bool:
        """Whether it applies nothing more: it was stopped, or has failed."""
        return self.stopping or self.error is not None

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended, or never began."""
        return self.stopping and not self.thread.running

    def start(self) -> None:
        """Start the threads, the first time. RuntimeError if the system has no thread left; then try again."""
        self.thread.start(f"walkit-delta {self.name}")

    def stop(self) -> None:
        """End the threads, and take the last checkpoint. Stopping twice does nothing, nor does a forked child's stop.

        Where a storage hangs it returns after a while: no last checkpoint is taken, claim and folder stay as they are.
        """
        if self.is_foreign:
            return
        self.stopping = True
        self._wake.set()
        self.thread.join(STOP_S)
        maintenance = self.maintenance
        if maintenance is not None:
            maintenance.stop(STOP_S)
        if not self._hangs() and maintenance is not None:
            with suppress(IndexError):  # of two callers at once one finishes it
                self._unfinished.pop()
                maintenance.finish(whole=self.error is None)
        self.loader.close()
        self._source.close()
        self.state.wake()

    def _hangs(self) -> bool:
        """Return whether a thread is still at work that a stop has waited for; the status has it as the trouble."""
        hung = [] if self.maintenance is None else self.maintenance.at_work
        hung += [self.thread.name] if self.thread.hangs() else []
        if hung:
            self.troubles["stop"] = (
                f"a storage hangs under {' and '.join(hung)}: the reader was stopped without waiting"
            )
        return bool(hung)

    # -- the loop's own thread

    def _run(self) -> None:
        """Follow until the reader is stopped or has failed. Any exception here ends in the state "failed"."""
        try:
            if self.stopping:
                return
            if self.maintenance is not None:
                self.maintenance.start(self.name)
            self._follow()
        except BaseException as error:  # noqa: BLE001 - nothing else tells the waiting callers that the thread is gone
            self._fail(error)
        finally:
            if self.maintenance is not None and self.error is not None:
                self.maintenance.stop()  # the claim of a reader that has failed ends with its lease
            if self.is_answered and self.poller.session_id:
                self._link.leave(self.poller.session_id, self.poller.session_epoch)
            self._link.close()
            self._workers.stop()
            self.state.wake()
        if self.error is not None:
            self.events.emit(
                "walkit.replica.fail", name=self.name, source=self.destination.address, error=str(self.error)
            )

    def _follow(self) -> None:
        while not self.is_ended:
            self._wake.clear()
            while self._inbox and not self.is_ended:
                self._perform(self._inbox.popleft()())
            now = now_ms()
            self._send_poll(now)
            self._perform(self.replayer.tick(now))
            self._poll_log(now)
            times = (self.poller.wake_at_ms, self.replayer.wake_at_ms, self._probe_ms, self._log_due_ms)
            wake_at = min(at for at in times if at is not None)
            if not (self._inbox or self.is_ended):
                self._wake.wait(max(wake_at - now_ms(), 0) / 1000)

    def fail(self, error: Exception) -> None:
        """Have the loop end with this error. Safe from any thread."""
        self._enqueue(lambda: [EndReplay(error)])

    def _fail(self, cause: BaseException) -> None:
        if self.error is not None:
            return
        if isinstance(cause, WalkitError):
            self.error = cause
            return
        what = f"{type(cause).__name__}: {cause}".removesuffix(": ")
        self.error = ReplicaFailedError(
            f"the thread of the delta reader {self.name} ended: {what}", cause=what
        )
        self.error.__cause__ = cause

    def _enqueue(self, what: Callable[[], Sequence[ReplayStep]]) -> None:
        self._inbox.append(what)
        self._wake.set()

    # -- polls

    def _send_poll(self, now: float) -> None:
        if self._probe_ms is not None and now >= self._probe_ms:
            self._probe_ms = None
            self._sessions_before += self.poller.sessions
            self.poller = self._new_poller()
        request = self.poller.request(self.replayer.applied, now)
        if request is not None:
            self._polled_ms, self._polled_ns = now, perf_counter_ns()
            try:
                self._link.send(request)
            except OptionsError as error:  # a certificate that is being replaced is whole a moment later
                self._perform(self._received(request, error, perf_counter_ns()))

    def _on_reply(self, request: PollRequest, received: Received) -> None:
        came_ns = perf_counter_ns()
        self._enqueue(lambda: self._received(request, received, came_ns))

    def _received(self, request: PollRequest, received: Received, came_ns: int) -> Sequence[ReplayStep]:
        now = now_ms()
        if isinstance(received, PollAnswer):
            return self._answered(request, received, came_ns, now)
        if isinstance(received, PollRefusal):
            self.refusals += 1
            said = plain_text(f"{received.reason}): {received.message}")
            self.troubles["poll"] = f"the primary refused a poll ({said}"
            self.poller.refused(request, received, now)
            if self.poller.closed is not None:
                self._probe_ms = now + PROBE_MS if received.reason == "version" else now + PROBE_MS / 10
            return ()
        self.failures += 1
        self.troubles["poll"] = str(received)
        self._link.reconnect()
        self.poller.failed(request, now)
        self._refused += isinstance(received, OptionsError)
        if isinstance(received, OptionsError) and self._refused >= REFUSALS_MAX:
            return [EndReplay(received)]
        return ()

    def _answered(
        self, request: PollRequest, answer: PollAnswer, came_ns: int, now: float
    ) -> Sequence[ReplayStep]:
        try:
            taken = self.poller.answered(request, answer, now)
        except WalkitError as error:
            self.failures += 1
            self.troubles["poll"] = str(error)
            return ()
        if taken is None:
            return ()
        self.polls, self._refused, self.answered_ms = self.polls + 1, 0, now
        self.figures.time("poll", max(came_ns - self._polled_ns, 0))
        if taken.end.lsn <= self.replayer.known.lsn:  # how long the primary lets a poll wait for news
            self._silence_ms = min(max(SILENCE_MS, 1.5 * (now - self._polled_ms)), 1.5 * POLL_WAIT_MS)
        try:
            taken = self._opening.checked(taken, request.applied.lsn, self.state.reached, now)
        except DivergenceError as error:
            return [EndReplay(error)]
        except WalkitError as error:
            # Frames of a history that is not known are not applied: a later answer brings their range.
            self.troubles["poll"] = str(error)
            return ()
        self.troubles.pop("poll", None)
        return self._replay(taken, came_ns, now)

    # -- the log's own end

    def _poll_log(self, now: float) -> None:
        """Read the durable end from the log's own slot and manifest: while no poll is answered, else rarely."""
        heard_ms = self.answered_ms if self.answered_ms is not None else -self._silence_ms
        silent = now - heard_ms >= self._silence_ms
        idle = self.poller.wake_at_ms is not None or now - self._polled_ms >= self._silence_ms
        if now < self._log_due_ms:
            return
        self._log_due_ms = now + LOOK_MS if silent else heard_ms + self._silence_ms
        alone = silent and (idle or self.poller.closed is not None)
        check_ms = UNPROVEN_MS if self._opening.is_unproven else CHECK_MS
        if (alone or now - self._log_read_ms >= check_ms) and not self._reading_log:
            self._reading_log, self._log_read_ms = True, now
            self._workers.do(self._read_log_end)

    def _read_log_end(self) -> None:
        came_ns, reached = perf_counter_ns(), self.state.reached
        end: DeltaEnd | WalkitError
        try:
            found, manifest = self._source.end_and_manifest()
            try:
                check_history(manifest, self._log_id, reached)
            except DivergenceError:  # the manifest may be older than the applied records
                check_history(self._source.manifest(), self._log_id, reached)
            end = DeltaEnd(*found)
        except WalkitError as error:
            end = error
        self._enqueue(lambda: self._on_log_end(end, came_ns))

    def _on_log_end(self, end: DeltaEnd | WalkitError, came_ns: int) -> Sequence[ReplayStep]:
        self._reading_log = False
        self.looks += 1
        if isinstance(end, DivergenceError):
            return [EndReplay(end)]
        if isinstance(end, WalkitError):
            self._note_failure("look", end)
            return ()
        self._note_success("look")
        now, owed_lsn, self._owed_lsn = now_ms(), self._owed_lsn, end.lsn
        self.seen_ms = now
        in_contact = self.answered_ms is not None and now - self.answered_ms < self._silence_ms
        if in_contact:
            try:
                self._opening.passed(end.lsn, self.state.reached, now)
            except DivergenceError as error:
                return [EndReplay(error)]
        if in_contact and owed_lsn <= self.replayer.known.lsn:
            return ()  # the primary names this end soon, and its frames may come along
        answer = PollAnswer(
            version=0, session_id=0, session_epoch=0, end=end, log_id=self._log_id, epoch_id=0
        )
        return self._replay(answer, came_ns, now)

    def _note_failure(self, what: str, error: Exception) -> None:
        self.troubles[what] = str(error)
        if is_absent(error):
            self._absent.add(what)
            self.replayer.note_absence(error, now_ms())

    def _note_success(self, what: str) -> None:
        self.troubles.pop(what, None)
        self._absent.discard(what)

    # -- ranges

    def _replay(self, answer: PollAnswer, came_ns: int, now: float) -> Sequence[ReplayStep]:
        self.loader.note_end(answer.end)
        self.in_contact = True
        self.state.wake()
        steps = self.replayer.answered(answer, now)
        self._named |= {step.number: came_ns for step in steps if not isinstance(step, EndReplay)}
        return steps

    def _perform(self, steps: Sequence[ReplayStep]) -> None:
        waiting = deque(steps)
        while waiting:
            step = waiting.popleft()
            if isinstance(step, EndReplay):
                self._fail(step.error)
                return
            if isinstance(step, ApplyRange):
                waiting.extend(self._apply(step))
            else:
                self._named.setdefault(step.number, perf_counter_ns())
                self._loads.add(step.number)
                self._workers.do(self._job_of(step, self.replayer.known))
        self._check()

    def _check(self) -> None:
        """Assert the invariants between two steps; on the loop's own thread. The notes of a part go with it."""
        assert self._loads <= self._named.keys()
        assert self.error is not None or len(self._named) <= self.replayer.parts
        assert self._probe_ms is None or self.poller.closed is not None, "a primary that answers is probed"
        assert SILENCE_MS <= self._silence_ms <= 1.5 * POLL_WAIT_MS and self._refused <= REFUSALS_MAX

    def _job_of(self, step: LoadRange, known: DeltaEnd) -> Callable[[], object]:
        def load() -> None:
            began = perf_counter_ns()
            found: LoadedRange | Exception
            try:
                found = self.loader.load(step.first_lsn, step.last_lsn, known, self.state.reached)
            except Exception as error:  # noqa: BLE001 - the replayer decides about a retry
                found = error
            took = perf_counter_ns() - began
            self._enqueue(lambda: self._loaded(step, found, took))

        return load

    def _loaded(self, step: LoadRange, found: LoadedRange | Exception, took_ns: int) -> Sequence[ReplayStep]:
        now = now_ms()
        if isinstance(found, Exception):
            self._note_failure("load", found)
            return self.replayer.load_failed(step.number, found, now)
        self._note_success("load")
        self.figures.time("read", took_ns)
        return self.replayer.loaded(step.number, found.frames, found.size_bytes, found.end, now)

    def _apply(self, step: ApplyRange) -> Sequence[ReplayStep]:
        named_ns, by_delta = self._named.pop(step.number, 0), step.number not in self._loads
        self._loads.discard(step.number)
        frames: Any = step.payload
        try:
            records, decode_ns, insert_ns = self.state.apply(frames, step.last_lsn)
        except Exception as error:  # noqa: BLE001 - it ends the replay: the state may have a part of the range
            if not (by_delta and isinstance(error, WalkitError) and self.state.is_whole):
                return self.replayer.apply_failed(step.number, error)
            self.troubles["load"] = str(error)
            return self.replayer.spoiled(step.number, now_ms())
        done = perf_counter_ns()
        if frames:
            self.loader.note(frames[-1][0])
        self.records += records
        figures = self.figures
        figures.time("decode", decode_ns)
        figures.time("insert", insert_ns)
        figures.applied(by_delta=by_delta, named_ns=named_ns, done_ns=done)
        return self.replayer.done(step.number, now_ms())
