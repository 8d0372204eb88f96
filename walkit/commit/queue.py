"""The queue of submissions that wait for their frame: what the next frame takes of it, and when a policy lets it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from walkit.commit.frame import SealedFrame, Submission
from walkit.commit.policy import TAKE_ALL, WAIT_US_MAX, Policy, QueueState, Take, Wait
from walkit.format.layout import RECORDS_PER_FRAME_MAX

S = TypeVar("S", bound=Submission)


class SubmissionQueue(Generic[S]):
    """Submissions, oldest first, and the policy that is asked about them. Part of the ordering core."""

    def __init__(self, *, body_bytes_max: int, in_flight_max: int, policy: Policy | None) -> None:
        self.body_bytes_max = body_bytes_max
        self.in_flight_max = in_flight_max
        self.policy = policy
        self.policy_error: BaseException | None = None
        """What a policy raised, or why its time cannot be waited for; it is not asked any more."""
        self.seal_at_us: int | None = None
        """When `take` is to be asked again, because the policy holds back what waits; None where nothing is held."""
        # Changed under the commit lock only; its order is that of the LSNs to come.
        self.pending: deque[S] = deque()
        self.batch: Any = None
        """The last of them where it may still grow, which is for the driver to do; None otherwise."""
        # Changed under the commit lock, before the call that changes `pending`: an interrupt may leave them too
        # high for a moment, and never too low. `_check` holds them to `pending`.
        self._bytes = self._records = 0
        """What waits, without `batch`: that grows without a step here, and is counted when it grows no more."""
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

    @property
    def pending_bytes(self) -> int:
        """Upper bound of what waits, in bytes of a frame's body."""
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
        """Queue what is in the inbox, before anything that comes later. More may come into it meanwhile."""
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
        """The last submission grows no more. May be interrupted, and is called again then."""
        batch = self.batch
        if batch is not None:
            records = batch.end()
            self._bytes += batch.size_bytes
            self._records += records
            self.batch = None

    def withdraw(self, submission: S) -> bool:
        """Take back a submission that no frame has taken yet; False where it is too late."""
        try:
            index = self.pending.index(submission)
        except ValueError:
            return False
        del self.pending[index]
        self._bytes -= submission.size_bytes
        self._records -= submission.count
        return True

    def _cut(self, verdict: Take) -> Sequence[S]:
        """Return what goes into the next frame, and count its records as taken.

        It leaves the queue only when nothing can fail: from then on it is in no other place that would be found.
        """
        if self.batch is not None:
            self.end_batch()
        bytes_max, records_max = self.body_bytes_max, RECORDS_PER_FRAME_MAX
        if verdict is not TAKE_ALL:
            bytes_max = min(bytes_max, verdict.size_bytes or bytes_max)
            records_max = min(records_max, verdict.records or records_max)
        if self._bytes <= bytes_max and self._records <= records_max:
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

    def _check(self) -> None:
        """Assert that the counts are those of what waits."""
        counted = [submission for submission in self.pending if submission is not self.batch]
        assert self._bytes == sum(submission.size_bytes for submission in counted)
        assert self._records == sum(submission.count for submission in counted)
        assert self.batch is None or self.batch is self.pending[-1], "only the last may grow"

    def _ask(self, policy: Policy, writing: int, flushing: bool, now_us: int) -> Take | None:
        """Return what the policy takes now; None where it waits, with `seal_at_us` as the time to ask again."""
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
        """Return all that waits, never to be written: what comes later must not take its place.

        Groups that were taken and not sealed are the caller's to give back, too.
        """
        waiting = self.waiting()
        self.forget_waiting()
        return waiting

    def forget_waiting(self) -> None:
        """Forget the waiting and the taken submissions; the lock was held since `waiting`. Allocates nothing."""
        self.pending.clear()
        self._bytes = self._records = self.taken_records = self.taken_frames = 0
