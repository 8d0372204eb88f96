"""The ordering core: which records form a frame, its position, and when it is acknowledged. Pure.

No thread, clock or file: every input is a method call, every output a return value, so that the same core runs on
real storage under `commit.driver` and in virtual time under `simulate`. It is not thread-safe; a driver calls
`submit`, `take`, `written`, `synced` and `fail` under one lock, and `seal` from one thread at a time, in the order of
`take`; with more than one frame in flight under the same lock.

The rules it keeps:

- LSNs and positions are given at sealing, densely and in one order; a chain links each frame to the one before.
- `in_flight_max` bounds the frames that are being written, `reorder_window_bytes` and `reorder_window_frames` how far
  frames may be after the oldest of them: frames that land after it free their place, but not the window.
- Under append order the contiguous written prefix is acknowledged, nothing else. AutoMQ #1718 asks for this;
  a failed frame fails itself and everything after it at once, so nothing waits for it (their head-of-line fault).
  Earlier frames may still land, and are acknowledged then.
- Under completion order (`completion_order=True`, as in AutoMQ's first block WAL) a frame is acknowledged when it
  lands. The marks stay those of the contiguous prefix: `acked_lsn` is the last LSN acknowledged *with everything
  before it*.
- With an `ack_limit_lsn` (replicas, see `replication.primary.replica_acks`) written records wait in `unacked` until
  the limit has reached it, too: acknowledged is the smaller of both. `fail_unacked` fails the callers of late frames:
  the records stay, and the mark passes them like any other.
- A submission in `held` keeps its place, and nothing after it is taken before `release` or `withdraw`.
- A sync covers only frames that were written before it began: `sync_begin` takes the prefix, `synced` gives it back.
- Marks only grow: `applied <= acked <= written <= appended`, `durable <= appended`; each moves in one place, and is
  asserted there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from walkit.commit.frame import SealedFrame, Submission, SyncPoint, Tick
from walkit.commit.policy import TAKE_ALL, WAIT_US_MAX, Policy, QueueState, Take, Wait
from walkit.errors import LogExhaustedError
from walkit.format.body import Columns
from walkit.format.frame import MARKER_BODY, FrameIdentity, PreparedBody, seal_frame
from walkit.format.layout import FRAME_HEADER_BYTES, LSN_LAST, LSN_MAX, POSITION_MAX, RECORDS_PER_FRAME_MAX

S = TypeVar("S", bound=Submission)

UNACKED_FRAMES_MAX: Final = 1 << 16
"""So many frames wait for the acknowledgement of others at most, however small they are."""
NEXT_LATE_US: Final = 1_000
"""When to ask about the next frame after one was late."""
NO_LIMIT: Final = LSN_MAX + 1
"""As `ack_limit_lsn`: written records are acknowledged."""


class OrderingCore(Generic[S]):
    """State of the commit path. See the module's docstring for the threads of each call."""

    def __init__(
        self,
        identity: FrameIdentity,
        *,
        last_lsn: int,
        position: int,
        chain: int,
        alignment: int,
        frame_bytes_max: int,
        in_flight_max: int = 1,
        completion_order: bool = False,
        reorder_window_bytes: int | None = None,
        reorder_window_frames: int | None = None,
        policy: Policy | None = None,
        ack_when_durable: bool = True,
        idle_marker_us: int = 0,
        interval_us: int = 0,
        ack_sink: Callable[[SealedFrame], object] | None = None,
    ) -> None:
        self.body_bytes_max = frame_bytes_max - FRAME_HEADER_BYTES - alignment
        self.in_flight_max = in_flight_max
        self.policy = policy
        self._begin_queue()
        self._begin_limit()
        self.identity, self.alignment = identity, alignment
        self.frame_bytes_max = frame_bytes_max
        self.completion_order = completion_order
        self.reorder_window_bytes = (
            in_flight_max * frame_bytes_max if reorder_window_bytes is None else reorder_window_bytes
        )
        self.ack_when_durable = ack_when_durable
        self.idle_marker_us = idle_marker_us
        self.interval_us, self.reorder_window_frames = interval_us, reorder_window_frames
        self.sealed_at_us = 0
        # Written by `seal` if all before it is durable, and by `synced`: since when something lacks a sync.
        self.unsynced_since_us = 0
        # Written by `flush` under the commit lock; only grows. No policy holds back a record up to it.
        self.flush_lsn = 0
        # Appended by `seal`, taken from the left by `written` and from the right by `begin_failure`, which are
        # under the commit lock.
        self.in_flight: deque[SealedFrame] = deque()
        """Frames that are sealed and not yet passed by the contiguous written prefix, in append order."""
        self.landed = 0
        """How many of them are written, and wait for one before them."""
        # The marks: `seal`, whose calls are serial, writes the first five, and `segment_ready` segment_end before it;
        # `written` and `synced` write the others under the commit lock. Between two steps:
        # - position <= segment_end
        # - promised_position <= durable_position <= written_position <= position
        # - durable_lsn <= written_lsn <= appended_lsn and acked_lsn <= written_lsn; equal without an `ack_limit_lsn`
        self.position = position
        self.chain = chain
        self.promised_position = position
        self.record_end_position = position
        self.appended_lsn = last_lsn
        self.segment_end = position
        self.acked_lsn = last_lsn
        self.durable_lsn = last_lsn
        self.written_lsn = last_lsn
        self.written_position = position
        self.durable_position = position
        # Written once, by `begin_failure` under the commit lock: then `take` returns nothing, and no sync counts.
        self.failure: BaseException | None = None
        self.failed_from: int | None = None
        """Nothing is acknowledged from this position on."""
        self.on_prefix: Callable[[SealedFrame], object] | None = None
        """Completion order: given each frame, marks too, when the contiguous prefix has passed it, in order."""
        self.ack_sink = ack_sink
        """See `commit.ports.AcknowledgementSink`."""
        self.ack_sink_failure: tuple[BaseException, SealedFrame] | None = None
        """The sink's error, and its frame: that frame and all after it are to be failed."""

    # -- the queue

    def _begin_queue(self) -> None:
        self.policy_error: BaseException | None = None
        """The policy's error, or why its time cannot be waited for; it is not called again."""
        self.seal_at_us: int | None = None
        """When to call `take` again, because the policy holds frames back; None if it holds none."""
        # Changed under the commit lock only; its order is that of the LSNs to come.
        self.pending: deque[S] = deque()
        # Added to before a submission is queued, by any thread; else changed under the commit lock. A dict, because
        # each step is one call.
        self.held: dict[S, Any] = {}
        """Submissions that wait for something outside, and keep back all that is queued after them."""
        self.batch: Any = None
        """The last of them, if it may still grow (the driver does that); else None."""
        # Changed under the commit lock, before the call that changes `pending`: an interrupt may leave them too
        # high for a moment, and never too low. `_check` holds them to `pending`.
        self._bytes = self._records = 0
        """Totals without `batch`: it grows without a step here, and is counted when it ends."""
        # Appended by threads that may hold any lock, each by one call; moved to `pending` under the commit lock.
        self.inbox: deque[S] = deque()
        """Submissions of foreign code on threads that have locks: one may be inside a step here."""
        # Written under the commit lock: by `take`, and by `written`, which smooths the time of a write.
        self.taken_us = self.write_us = 0
        # Both grow in `take` and shrink in `seal`, or in `forget_waiting` after a failure. With one frame in flight
        # the leader is the only one to seal, so it needs no lock there.
        self.taken_records = 0
        """How many records were taken and are not sealed."""
        self.taken_frames = 0
        self.lost: list[list[SealedFrame | None]] = []
        """Frames that have failed and left `in_flight`, newest first, until `forget_failed`."""

    def _begin_limit(self) -> None:
        self.unacked: deque[SealedFrame] = deque()
        """Frames that the written prefix has passed, and the acknowledged one has not, in append order."""
        self.timed_out = 0
        """How many of `unacked`, from the first on, are late: their callers have got an error."""
        # Written under the commit lock, by `commit.background.AckLimit`.
        self.ack_limit_lsn = NO_LIMIT
        """Nothing after this LSN is acknowledged."""
        self.ack_timeout_us = 0
        """When a frame is to be given up, from its sealing on; 0: never."""
        self.unacked_bytes_max = 0
        """Where so many bytes of frames are unacked nothing more is taken."""

    @property
    def pending_bytes(self) -> int:
        """Upper bound of the waiting records, in bytes of a frame's body."""
        batch, size = self.batch, self._bytes
        if self.inbox:
            size += sum(submission.size_bytes for submission in tuple(self.inbox))
        return size if batch is None else size + int(batch.grown_bytes)

    @property
    def pending_records(self) -> int:
        """How many records wait."""
        batch = self.batch
        return self._records if batch is None else self._records + int(batch.count)

    def submit(self, submission: S, now_us: int = 0) -> None:
        """Queue records for the next frame. `now_us` matters to policies only.

        The call that appends comes last: CPython looks for interrupts after calls, so that one strikes before anything
        has changed or when all has.
        """
        submission.submitted_us = now_us
        if self.inbox:
            self.take_in(now_us)
        if self.batch is not None:
            self.end_batch()
        self._bytes += submission.size_bytes
        self._records += submission.count
        self.pending.append(submission)

    def put_in(self, submission: S) -> None:
        """Put a submission into the inbox, from a thread that need not have the driver's lock."""
        self.inbox.append(submission)

    def take_in(self, now_us: int = 0) -> None:
        """Queue the inbox before anything that comes later. It may grow meanwhile."""
        while self.inbox:
            submission = self.inbox[0]
            if not (
                self.pending and self.pending[-1] is submission
            ):  # an interrupt came before it left the inbox
                submission.submitted_us = now_us
                self.end_batch()
                self._bytes += submission.size_bytes
                self._records += submission.count
                self.pending.append(submission)
            self.inbox.popleft()

    def begin_batch(self, batch: S) -> None:
        """Queue a submission that may grow until another comes, or it is taken. Interrupts strike as in `submit`."""
        if self.inbox:
            self.take_in()
        self.end_batch()
        self.batch = batch
        self.pending.append(batch)

    def end_batch(self) -> None:
        """The last submission no longer grows. May be interrupted, and is called again then."""
        batch = self.batch
        if batch is not None:
            records = batch.end()
            self._bytes += batch.size_bytes
            self._records += records
            self.batch = None

    def withdraw(self, submission: S) -> bool:
        """Take back a submission that no frame has taken yet; False if it is too late."""
        try:
            index = self.pending.index(submission)
        except ValueError:
            return False
        del self.pending[index]
        self._bytes -= submission.size_bytes
        self._records -= submission.count
        self.held.pop(submission, None)
        return True

    def release(self, submission: S, size_bytes: int) -> bool:
        """Let a held submission be taken, with `size_bytes` from now on; False if it waits no longer."""
        if self.held.pop(submission, None) is None:
            return False
        self._bytes += size_bytes - submission.size_bytes
        submission.size_bytes = size_bytes
        return True

    def _cut(self, verdict: Take) -> Sequence[S]:
        """Return the submissions of the next frame, and count their records as taken.

        It leaves the queue only when nothing can fail: from then on it is in no other place that would be found.
        """
        if self.batch is not None:
            self.end_batch()
        bytes_max, records_max = self.body_bytes_max, RECORDS_PER_FRAME_MAX
        if verdict is not TAKE_ALL:
            bytes_max = min(bytes_max, verdict.size_bytes or bytes_max)
            records_max = min(records_max, verdict.records or records_max)
        if self._bytes <= bytes_max and self._records <= records_max and not self.held:
            taken = self.taken_records + self._records
            emptied: deque[S] = deque()
            group, self.pending = self.pending, emptied
            self._bytes = self._records = 0
            self.taken_records = taken
            return group
        group = deque()
        size = records = 0
        for head in self.pending:
            if group and (size + head.size_bytes > bytes_max or records + head.count > records_max):
                break
            if self.held and head in self.held:
                break
            size += head.size_bytes
            records += head.count
            group.append(head)
        left_bytes, left_records = self._bytes - size, self._records - records
        assert left_bytes >= 0
        taken, heads = self.taken_records + records, iter(tuple(group))
        self._bytes, self._records, self.taken_records = left_bytes, left_records, taken
        for _ in heads:
            self.pending.popleft()
        return group

    def _decide(self, policy: Policy, writing: int, flushing: bool, now_us: int) -> Take | None:
        """Return the policy's choice now; None if it waits, with `seal_at_us` as the time to ask again."""
        queue = QueueState(
            now_us=now_us,
            records=self.pending_records,
            size_bytes=self.pending_bytes,
            oldest_us=self.pending[0].submitted_us,
            in_flight=writing,
            in_flight_max=self.in_flight_max,
            taken_us=self.taken_us,
            write_us=self.write_us,
        )
        try:
            verdict = policy.decide(queue)
            if not isinstance(verdict, Take | Wait):
                raise TypeError(f"{policy!r} decided {verdict!r}, which is neither Take nor Wait")
            wait_us = verdict.us if isinstance(verdict, Wait) else 0
            wait_us = wait_us if wait_us is None else int(wait_us)
            if isinstance(verdict, Take) and verdict != TAKE_ALL:
                verdict = Take(*(n if n is None else int(n) for n in verdict))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a plug-in's fault must not lose records
            self.policy, self.policy_error = None, error
            return TAKE_ALL
        if isinstance(verdict, Take):
            return verdict
        flushing = flushing or queue.waited_us >= WAIT_US_MAX
        if flushing or (wait_us is None and not writing) or (wait_us is not None and wait_us <= 0):
            return TAKE_ALL
        self.seal_at_us = None if wait_us is None else now_us + wait_us
        return None

    def waiting(self) -> list[S]:
        """Return all that waits; none of it grows later."""
        self.take_in()
        self.end_batch()
        return list(self.pending)

    def add_places(self, count: int) -> list[SealedFrame | None]:
        """Add places for frames to `lost`, and return them."""
        places: list[SealedFrame | None] = [None] * count
        self.lost.append(places)
        return places

    def lost_frames(self) -> list[SealedFrame]:
        """Return the frames that have failed since the last `forget_failed`, in append order."""
        frames = [frame for places in self.lost for frame in places if frame is not None]
        return sorted((f for f in frames if f.state == "failed"), key=lambda frame: frame.position)

    def forget_failed(self) -> None:
        """Forget the lost frames and the waiting submissions: they are queued for completion."""
        self.lost.clear()
        self.forget_waiting()

    def refuse(self) -> list[S]:
        """Return all waiting submissions, never to be written: later ones must not take their place.

        Groups that were taken and not sealed are the caller's to give back, too.
        """
        waiting = self.waiting()
        self.forget_waiting()
        return waiting

    def forget_waiting(self) -> None:
        """Forget the waiting and the taken submissions; the lock was held since `waiting`. Allocates nothing."""
        self.pending.clear()
        self.held.clear()
        self._bytes = self._records = self.taken_records = self.taken_frames = 0

    # -- on the way in

    @property
    def writing(self) -> int:
        """How many frames are taken or sealed, and not yet written."""
        return len(self.in_flight) - self.landed + self.taken_frames

    def ready(self, now_us: int = 0) -> bool:
        """Say whether `take` would return something now; where a policy holds it back, `seal_at_us` says until when."""
        return self._verdict(now_us) is not None

    def take(self, now_us: int = 0) -> Sequence[S]:
        """Return the submissions of the next frame, oldest first: all that wait, up to the frame limit.

        Empty if nothing waits, as many frames as allowed are in flight, the window is full, or the policy waits.
        A group that was taken is sealed, or given up by `refuse` or `fail`.
        """
        if self.inbox:
            self.take_in(now_us)
        verdict: Take | None = TAKE_ALL
        if self.policy is not None or self.in_flight or self.taken_frames or self.unacked or self.held:
            verdict = self._verdict(now_us)
        elif not self.pending or self.failure is not None:
            return ()
        if verdict is None:
            return ()
        group = self._cut(verdict)
        self.taken_frames += 1
        self.taken_us = now_us
        return group

    def submit_and_take(self, submission: S) -> Sequence[S]:
        """Do the work of `submit` and `take` for an empty queue, nothing in flight and no policy."""
        assert not (self.pending or self.in_flight or self.taken_frames) and self.policy is None
        self.taken_frames = 1
        self.taken_records = submission.count
        return (submission,)

    def _verdict(self, now_us: int) -> Take | None:
        """Return the submissions that may be taken now, or None."""
        self.seal_at_us = None
        if not self.pending or self.failure is not None:
            return None
        if self.held and self.pending[0] in self.held:
            return None
        writing = self.taken_frames
        if self.in_flight or writing:
            writing += len(self.in_flight) - self.landed
            end = self.position + (self.taken_frames + 1) * self.frame_bytes_max
            if end - self.written_position > self.reorder_window_bytes:
                return None
            window = self.reorder_window_frames
            if window is not None and len(self.in_flight) + self.taken_frames >= window:
                return None
        if writing >= self.in_flight_max or (self.is_full and not self.timed_out):
            return None
        if self.policy is None:
            return TAKE_ALL
        flushing = self.appended_lsn + self.taken_records < self.flush_lsn
        return self._decide(self.policy, writing, flushing, now_us)

    @property
    def is_full(self) -> bool:
        """Whether as much waits for the acknowledgement of others as may."""
        if not self.unacked or self.ack_limit_lsn == NO_LIMIT:
            return False
        waiting_bytes = self.written_position - self.unacked[0].position
        return waiting_bytes >= self.unacked_bytes_max or len(self.unacked) >= UNACKED_FRAMES_MAX

    def flush(self) -> None:
        """A caller waits for the queue of now: no policy holds it back, and the last submission no longer grows."""
        self.take_in()
        self.end_batch()
        self.flush_lsn = self.queued_lsn

    @property
    def queued_lsn(self) -> int:
        """The LSN that the last record queued by now will have, if nothing is refused."""
        return self.appended_lsn + self.taken_records + self.pending_records + len(self.inbox)

    # -- sealing: serial

    def needs_segment(self, footprint: int) -> bool:
        """Say whether a frame of this size has to go to a new segment."""
        return self.position + footprint > self.segment_end

    def has_room(self, body: PreparedBody) -> bool:
        """Say whether a frame of this body fits into the segment, and its records have LSNs."""
        footprint = (FRAME_HEADER_BYTES + body.stored_bytes + self.alignment - 1) & -self.alignment
        return self.position + footprint <= self.segment_end and self.appended_lsn + body.count <= LSN_LAST

    def segment_ready(self, end_position: int) -> None:
        """A segment begins at the current position; its frames end at or before `end_position`, and POSITION_MAX."""
        assert end_position > self.position
        self.segment_end = min(end_position, POSITION_MAX)

    def require_positions(self, footprint: int) -> None:
        """LogExhaustedError if a frame of this size has no position; asked before a segment is made for it."""
        if self.position + footprint > POSITION_MAX:
            raise LogExhaustedError("position", self.position + footprint, POSITION_MAX)

    def seal(
        self,
        group: Sequence[S],
        body: PreparedBody,
        now_us: int,
        *,
        user_bytes: int = 0,
        columns: Columns | None = None,
    ) -> SealedFrame:
        """Give the group its LSNs, position and chain, and the promise known now. The segment must have room."""
        first_lsn = self.appended_lsn + 1
        position, count, promise = self.position, body.count, self.durable_position
        buffers, footprint, header_crc = seal_frame(
            body,
            self.identity,
            position=position,
            first_lsn=first_lsn,
            durable_position=promise,
            chain=self.chain,
            sealed_us=now_us,
            alignment=self.alignment,
        )
        assert position + footprint <= self.segment_end, "a frame never leaves its segment"
        frame = SealedFrame(
            group, first_lsn, count, position, footprint, header_crc, buffers, user_bytes, columns
        )
        frame.epoch_id = self.identity.epoch_id
        lsn = first_lsn
        if len(group) == 1:  # a lone record, or a batch: none of its records' number is asked again
            group[0].first_lsn, group[0].frame = first_lsn, frame
            lsn += count
        elif count == len(group):
            for lsn, submission in enumerate(group, first_lsn):
                submission.first_lsn = lsn
                submission.frame = frame
            lsn += 1 if count else 0
        else:
            for submission in group:
                submission.first_lsn = lsn
                submission.frame = frame
                lsn += submission.count
        assert lsn == first_lsn + count <= LSN_MAX
        self.appended_lsn = lsn - 1
        if group:
            self.taken_records -= count
            self.taken_frames -= 1
        self.position = position + footprint
        self.chain = header_crc
        self.promised_position = promise
        if count:
            self.record_end_position = self.position
        self.sealed_at_us = frame.sealed_us = now_us
        if self.written_position == self.durable_position and not self.in_flight:
            self.unsynced_since_us = now_us
        self.in_flight.append(frame)
        return frame

    def seal_marker(self, now_us: int) -> SealedFrame:
        """Seal a frame without records, for its promise alone."""
        return self.seal((), MARKER_BODY, now_us)

    @property
    def needs_marker(self) -> bool:
        """Whether all records are durable and nothing has promised the frames of the last ones yet."""
        return self.promised_position < self.record_end_position <= self.durable_position

    def tick(self, now_us: int) -> Tick:
        """Return the work that is due: a sync after the interval, a marker frame once the log is idle for long."""
        wakes: list[int] = []
        sync = marker = late = False
        if self.ack_timeout_us and self.timed_out < len(self.unacked):
            due = self.unacked[self.timed_out].sealed_us + self.ack_timeout_us
            late = now_us >= due
            wakes.append(NEXT_LATE_US if late else due - now_us)
        if self.failure is not None:
            return Tick(False, False, wakes[0] if wakes else None, late=late)
        if self.interval_us and self.written_position > self.durable_position:
            due = self.unsynced_since_us + self.interval_us
            sync = now_us >= due
            wakes.append(self.interval_us if sync else due - now_us)
        if self.idle_marker_us and (self.needs_marker or self.in_flight or self.pending):
            due = self.sealed_at_us + self.idle_marker_us
            marker = now_us >= due and self.needs_marker and not self.in_flight and not self.pending
            wakes.append(self.idle_marker_us if now_us >= due else due - now_us)
        seal = self.seal_at_us is not None and now_us >= self.seal_at_us
        if self.seal_at_us is not None and not seal:
            wakes.append(self.seal_at_us - now_us)
        # A frame wakes no timer that waits already; records written before the next question have their interval, too.
        if wakes:
            wakes += [us for us in (self.interval_us, self.ack_timeout_us) if us]
        return Tick(marker, sync, min(wakes) if wakes else None, seal, late)

    # -- on the way out

    def written(self, frame: SealedFrame, *, durable: bool, now_us: int = 0) -> list[SealedFrame]:
        """A frame's bytes are written (and on stable storage, with `durable`): return the frames acknowledged by that.

        Append order: those that the contiguous written prefix has grown by, in append order. Completion order: this
        one. No ticket may be completed before. Empty for a frame that has failed meanwhile.
        """
        frame.written = True
        frame.durable = durable
        if self.failed_from is not None and self.has_failed(frame):
            return []
        self.landed += 1
        if self.policy is not None:
            took_us = max(now_us - frame.sealed_us, 0)
            self.write_us = took_us if not self.write_us else (7 * self.write_us + took_us) // 8
        acknowledged: list[SealedFrame] = []
        if self.completion_order:
            frame.state = "acked"
            acknowledged.append(frame)
        while self.in_flight and self.in_flight[0].written:
            head = self.in_flight.popleft()
            self.landed -= 1
            assert head.position == self.written_position
            self.written_position = head.next_position
            self.written_lsn = head.last_lsn
            if head.durable and self.durable_position == head.position:
                self.durable_position = head.next_position
                self.durable_lsn = head.last_lsn
            assert not self.ack_when_durable or self.durable_position >= head.next_position
            self.unacked.append(head)
        return self.acknowledge(acknowledged)

    def acknowledge(self, acknowledged: list[SealedFrame] | None = None) -> list[SealedFrame]:
        """Acknowledge the written frames up to the limit: return those after these, under append order."""
        acknowledged = [] if acknowledged is None else acknowledged
        unacked, limit_lsn = self.unacked, self.ack_limit_lsn
        while unacked and unacked[0].last_lsn <= limit_lsn and self.ack_sink_failure is None:
            head = unacked[0]
            assert self.acked_lsn < head.first_lsn <= self.acked_lsn + 1
            assert limit_lsn == NO_LIMIT or head.last_lsn <= self.durable_lsn
            self.acked_lsn = head.last_lsn
            if self.ack_sink is not None and head.count:
                try:
                    self.ack_sink(head)
                except BaseException as error:  # noqa: BLE001 - the frames before are acknowledged, and completed
                    self.ack_sink_failure = error, head
                    break
            unacked.popleft()
            if self.timed_out:
                self.timed_out -= 1
            if self.on_prefix is not None:
                self.on_prefix(head)
            if not self.completion_order:
                head.state = "acked"
                acknowledged.append(head)
        assert self.acked_lsn <= self.written_lsn
        return acknowledged

    def fail_unacked(self, error: BaseException, until_us: int | None = None) -> list[SealedFrame]:
        """Fail the frames in `unacked` that were sealed up to `until_us`, or all; return them, oldest first.

        A copy without callers takes the place of each, for the sink and the observers.
        """
        late: list[SealedFrame] = []
        stand_ins: list[SealedFrame] = []
        for frame in islice(self.unacked, self.timed_out, None):
            if until_us is not None and frame.sealed_us > until_us:
                break
            late.append(frame)
            stand_ins.append(frame.without_callers())
        for frame, stand_in in zip(late, stand_ins, strict=True):  # from here on nothing allocates
            self.unacked[self.timed_out] = stand_in
            self.timed_out += 1
            frame.error, frame.state = error, "failed"
        return late

    def sync_begin(self) -> SyncPoint:
        """A sync of everything written begins now."""
        return SyncPoint(self.written_position, self.written_lsn)

    def synced(self, point: SyncPoint) -> None:
        """The sync that began at `point` has succeeded."""
        if point.position > self.durable_position and self.failure is None:
            self.durable_position = point.position
            self.durable_lsn = point.lsn
            self.unsynced_since_us = self.sealed_at_us
        self._check_marks()

    def fail(
        self, cause: BaseException, frame: SealedFrame | None = None, *, unsealed: bool = False
    ) -> tuple[list[SealedFrame], list[S]]:
        """Do the steps of a failure: return (frames of unknown outcome, submissions that were never written)."""
        self.begin_failure(cause, frame, unsealed=unsealed)
        found = self.lost_frames(), self.waiting()
        self.forget_failed()
        return found

    def begin_failure(
        self, cause: BaseException, frame: SealedFrame | None = None, *, unsealed: bool = False
    ) -> None:
        """A write or sync failed: put the frames of unknown outcome to `lost`, and take no more.

        With `frame`, the one whose write failed, frames before it stay in flight: they are acknowledged if they land.
        With `unsealed` the failure struck before sealing, and all in flight may land. With neither, all in flight has
        failed. Frames written but not acknowledged are among them, unless they are durable and wait for the limit.
        It can be repeated after a MemoryError.
        """
        if self.failure is None:
            self.failure = cause
        start = self.position if unsealed else self.written_position if frame is None else frame.position
        if self.failed_from is None or start < self.failed_from:
            self.failed_from = start
        # The places come first: after the pop nothing allocates, so each frame is always in one of the two lists.
        count, places = 0, self.add_places(len(self.in_flight) + len(self.unacked))
        # One by one from the end: a leader may be sealing a frame just now, which is failed the next time.
        while self.in_flight and self.in_flight[-1].position >= start and count < len(places):
            places[count] = last = self.in_flight.pop()
            count += 1
            self.landed -= last.written
            if last.state == "sealed":
                last.error = cause
                last.state = "failed"
        durable = min(start, self.durable_position)
        while self.unacked and self.unacked[-1].next_position > durable and count < len(places):
            places[count] = last = self.unacked.pop()
            count += 1
            last.error, last.state = cause, "failed"
        self.timed_out = min(self.timed_out, len(self.unacked))
        self._check_marks()

    def has_failed(self, frame: SealedFrame) -> bool:
        """Say whether nothing may be acknowledged at this frame's position."""
        return self.failed_from is not None and frame.position >= self.failed_from

    def _check(self) -> None:
        """Assert the invariants between two steps, while no other thread is in one: for tests and the end of a log."""
        counted = [submission for submission in self.pending if submission is not self.batch]
        assert self._bytes == sum(submission.size_bytes for submission in counted)
        assert self._records == sum(submission.count for submission in counted)
        assert self.batch is None or self.batch is self.pending[-1], "only the last may grow"
        self._check_marks()
        assert self.position <= self.segment_end
        position = self.written_position
        for frame in self.in_flight:
            assert frame.position == position and frame.state != "failed"
            position = frame.next_position
        assert position == self.position or self.failure is not None
        assert self.ack_limit_lsn < NO_LIMIT or not self.unacked or self.failure is not None
        assert 0 <= self.timed_out <= len(self.unacked)
        for frame in reversed(self.unacked):
            assert frame.written and frame.next_position <= self.written_position and frame.state == "sealed"
        assert self.landed == sum(frame.written for frame in self.in_flight)
        assert not self.in_flight or not self.in_flight[0].written, "the prefix has passed the written frames"

    def _check_marks(self) -> None:
        """Assert the order of the marks; also while another thread seals, which only moves the last ones on."""
        assert (
            self.durable_lsn <= self.written_lsn <= self.appended_lsn and self.acked_lsn <= self.written_lsn
        )
        assert self.unacked or self.acked_lsn == self.written_lsn or self.failure is not None
        assert self.acked_lsn <= self.ack_limit_lsn
        assert self.promised_position <= self.durable_position <= self.written_position <= self.position
        assert self.durable_position == self.written_position or not self.ack_when_durable
