"""The ordering core: which records form a frame, where it stands, and when it is acknowledged. Pure.

No thread, clock or file: every input is a method call, every output a return value, so that the same core runs on
real storage under `commit.driver` and in virtual time under `simulate`. It is not thread-safe; a driver calls
`submit`, `take`, `written`, `synced` and `fail` under one lock, and `seal` from one thread at a time.

The rules it keeps (ARCHITECTURE section 5):

- LSNs and positions are given at sealing, densely and in one order; a chain links each frame to the one before.
- Under append order the contiguous written prefix is acknowledged, nothing else. This is what AutoMQ #1718 asks for;
  a failed frame fails itself and everything after it at once, so nothing waits behind it (their head-of-line fault).
- A sync covers only frames that were written before it began: `sync_begin` takes the prefix, `synced` gives it back.
- Marks only grow: `applied <= acked <= appended`, `durable <= appended`; each moves in one place and is asserted there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from walkit.commit.frame import SealedFrame, Submission
from walkit.format.body import Columns
from walkit.format.frame import MARK_BODY, FrameIdentity, PreparedBody, seal_frame
from walkit.format.layout import FRAME_HEADER_BYTES, RECORDS_PER_FRAME_MAX

S = TypeVar("S", bound=Submission)


class SyncPoint(NamedTuple):
    """How far the contiguous written prefix reached when a sync began."""

    position: int
    lsn: int


class Tick(NamedTuple):
    """What the passing of time asks for: a mark frame, a sync, and when to ask again.

    `wake_in_us` counts from the `now_us` of the question; None: not before new frames.
    """

    mark: bool
    sync: bool
    wake_in_us: int | None


class OrderingCore(Generic[S]):
    """State of the commit path. See the module's words for who may call what."""

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
        ack_when_durable: bool = True,
        idle_mark_us: int = 0,
        interval_us: int = 0,
    ) -> None:
        self.identity = identity
        self.alignment = alignment
        self.body_bytes_max = frame_bytes_max - FRAME_HEADER_BYTES - alignment
        self.in_flight_max = in_flight_max
        self.ack_when_durable = ack_when_durable
        self.idle_mark_us = idle_mark_us
        self.interval_us = interval_us
        self.sealed_at_us = 0
        self.unsynced_since_us = 0
        self.pending: deque[S] = deque()
        self.pending_bytes = 0
        self.pending_records = 0
        self.taken_records = 0
        self.in_flight: deque[SealedFrame] = deque()
        self.position = position
        self.chain = chain
        self.segment_end = position
        self.promised_position = position
        self.record_end_position = position
        self.appended_lsn = last_lsn
        self.acked_lsn = last_lsn
        self.durable_lsn = last_lsn
        self.written_lsn = last_lsn
        self.written_position = position
        self.durable_position = position
        self.failure: BaseException | None = None
        self.sinks: tuple[Callable[[SealedFrame], object], ...] = ()
        """Given each acknowledged frame with records, in order, before anybody can see that it is acknowledged.

        Added before the first append; a sink does next to nothing and never raises."""

    # -- on the way in

    def submit(self, submission: S) -> None:
        """Queue records for the next frame."""
        self.pending.append(submission)
        self.pending_bytes += submission.size_bytes
        self.pending_records += submission.count

    def withdraw(self, submission: S) -> bool:
        """Take back a submission that no frame has taken yet; False where it is too late."""
        try:
            self.pending.remove(submission)
        except ValueError:
            return False
        self.pending_bytes -= submission.size_bytes
        self.pending_records -= submission.count
        return True

    def take(self) -> Sequence[S]:
        """Return the submissions of the next frame, oldest first: all that wait, up to the frame limit.

        Empty where nothing waits or as many frames as allowed are in flight.
        """
        if not self.pending or len(self.in_flight) >= self.in_flight_max or self.failure is not None:
            return ()
        if self.pending_bytes <= self.body_bytes_max and self.pending_records <= RECORDS_PER_FRAME_MAX:
            group = self.pending
            self.taken_records = self.pending_records
            self.pending = deque()
            self.pending_bytes = self.pending_records = 0
            return group
        group = deque()
        size = records = 0
        while self.pending:
            head = self.pending[0]
            size += head.size_bytes
            records += head.count
            if group and (size > self.body_bytes_max or records > RECORDS_PER_FRAME_MAX):
                break
            group.append(self.pending.popleft())
            self.pending_bytes -= head.size_bytes
            self.pending_records -= head.count
        self.taken_records = sum(s.count for s in group)
        assert self.pending_bytes >= 0
        return group

    @property
    def queued_lsn(self) -> int:
        """The LSN that the last record queued by now will have, if nothing is refused."""
        return self.appended_lsn + self.taken_records + self.pending_records

    # -- sealing: serial

    def needs_segment(self, footprint: int) -> bool:
        """Say whether a frame of this size has to go to a new segment."""
        return self.position + footprint > self.segment_end

    def segment_ready(self, end_position: int) -> None:
        """A segment begins at the current position; its frames end at or before `end_position`."""
        assert end_position > self.position
        self.segment_end = end_position

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
        promise = self.durable_position
        position, count = self.position, body.count
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
        lsn = first_lsn
        for submission in group:
            submission.first_lsn = lsn
            submission.frame = frame
            lsn += submission.count
        assert lsn == first_lsn + count
        self.appended_lsn = lsn - 1
        self.taken_records = 0
        self.position = position + footprint
        self.chain = header_crc
        self.promised_position = promise
        if count:
            self.record_end_position = self.position
        self.sealed_at_us = now_us
        if self.written_position == self.durable_position and not self.in_flight:
            self.unsynced_since_us = now_us
        self.in_flight.append(frame)
        return frame

    def seal_mark(self, now_us: int) -> SealedFrame:
        """Seal a frame without records, for its promise alone."""
        return self.seal((), MARK_BODY, now_us)

    @property
    def needs_mark(self) -> bool:
        """Whether all records are durable and the last of them stand in frames that nothing has promised yet."""
        return self.promised_position < self.record_end_position <= self.durable_position

    def tick(self, now_us: int) -> Tick:
        """Say what time asks for: a sync when the interval is over, a mark when the log has been idle long enough."""
        wakes: list[int] = []
        sync = mark = False
        if self.failure is not None:
            return Tick(False, False, None)
        if self.interval_us and self.written_position > self.durable_position:
            due = self.unsynced_since_us + self.interval_us
            sync = now_us >= due
            wakes.append(self.interval_us if sync else due - now_us)
        if self.idle_mark_us and (self.needs_mark or self.in_flight or self.pending):
            due = self.sealed_at_us + self.idle_mark_us
            mark = now_us >= due and self.needs_mark and not self.in_flight and not self.pending
            wakes.append(self.idle_mark_us if now_us >= due else due - now_us)
        return Tick(mark, sync, min(wakes) if wakes else None)

    # -- on the way out

    def written(self, frame: SealedFrame, *, durable: bool) -> list[SealedFrame]:
        """A frame's bytes are written (and on stable storage, with `durable`): return the frames acknowledged by that.

        The frames returned are the contiguous written prefix, in append order; nobody may be told of a frame before.
        """
        if self.failure is not None:
            return []
        frame.written = True
        frame.durable = durable
        acknowledged: list[SealedFrame] = []
        while self.in_flight and self.in_flight[0].written:
            head = self.in_flight.popleft()
            assert head.position == self.written_position
            self.written_position = head.next_position
            self.written_lsn = head.last_lsn
            if head.durable and self.durable_position == head.position:
                self.durable_position = head.next_position
                self.durable_lsn = head.last_lsn
            assert not self.ack_when_durable or self.durable_position >= head.next_position
            assert self.acked_lsn < head.first_lsn <= self.acked_lsn + 1
            self.acked_lsn = head.last_lsn
            if head.count:
                for sink in self.sinks:
                    sink(head)
            head.state = "acked"
            acknowledged.append(head)
        assert self.acked_lsn <= self.appended_lsn
        return acknowledged

    def sync_begin(self) -> SyncPoint:
        """A sync of everything written begins now."""
        return SyncPoint(self.written_position, self.written_lsn)

    def synced(self, point: SyncPoint) -> None:
        """The sync that began at `point` has succeeded."""
        if point.position > self.durable_position and self.failure is None:
            self.durable_position = point.position
            self.durable_lsn = point.lsn
            self.unsynced_since_us = self.sealed_at_us
        assert self.durable_lsn <= self.appended_lsn

    def fail(self, cause: BaseException) -> tuple[list[SealedFrame], list[S]]:
        """A write or sync failed: return (frames of unknown outcome, submissions that were never written).

        Frames written but not acknowledged are among the first. From now on nothing is taken or acknowledged.
        """
        if self.failure is None:
            self.failure = cause
        frames: list[SealedFrame] = []
        while (
            self.in_flight
        ):  # one by one: a leader may be sealing a frame just now, which is failed the next time
            frames.append(self.in_flight.popleft())
        for frame in frames:
            frame.error = cause
            frame.state = "failed"
        return frames, self.refuse()

    def refuse(self) -> list[S]:
        """Give back all that waits, never to be written: what comes later must not stand where it would have stood."""
        waiting = list(self.pending)
        self.pending = deque()
        self.pending_bytes = self.pending_records = self.taken_records = 0
        return waiting
