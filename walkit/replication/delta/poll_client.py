"""The core of a reader's polls: one request at a time, and only the answer to that one is believed; without I/O."""

from __future__ import annotations

from walkit.replication.core.backoff import Backoff
from walkit.replication.delta.messages import (
    DELTA_VERSION_MAX,
    DeltaEnd,
    PollAnswer,
    PollRefusal,
    PollRequest,
)
from walkit.replication.protocol.failures import ProtocolError


class DeltaPoller:
    """Asks for one answer after the other. Not thread-safe. Times are milliseconds of the shell's clock.

    `request` returns the next poll and when to send it; then `answered`, `refused` or `failed` takes its outcome. A
    lost answer is requested again under its number, so it is the same one. An answer to an older request is dropped
    whole.
    """

    def __init__(
        self, *, version: int = DELTA_VERSION_MAX, interval_ms: float = 1.0, backoff: Backoff | None = None
    ) -> None:
        """`interval_ms` is the least time from an answer to the next request; `backoff` says when to try again."""
        self.version, self.interval_ms = version, interval_ms
        self.session_id, self.session_epoch = 0, 1
        self.sessions = 0
        """The number of sessions so far."""
        self.closed: PollRefusal | None = None
        """Why polls are no longer answered: the version, or the log was closed."""
        self.wake_at_ms: float | None = 0.0
        """When to call `request`; None while one is under way, or there will be none."""
        self._backoff = backoff or Backoff()
        self._under_way: PollRequest | None = None

    def request(self, applied: DeltaEnd, now_ms: float) -> PollRequest | None:
        """Return the request to send now, if it is time to; this reader no longer needs records up to `applied`."""
        if self.wake_at_ms is None or now_ms < self.wake_at_ms:
            return None
        self.wake_at_ms = None
        self._under_way = PollRequest(
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            applied=applied,
            version=self.version,
        )
        self._check()
        return self._under_way

    def answered(self, request: PollRequest, answer: PollAnswer, now_ms: float) -> PollAnswer | None:
        """Return the answer, if it is the one requested last; None for one that came late or again.

        ProtocolError for an answer that no server gives to this request; it is as if it had been lost.
        """
        if request is not self._under_way:
            return None
        begun = answer.session_id != request.session_id
        wanted = 1 if begun else request.session_epoch
        if not answer.session_id or answer.session_epoch != wanted or answer.version > request.version:
            self.failed(request, now_ms)
            found = (answer.session_id, answer.session_epoch, answer.version)
            raise ProtocolError(
                f"a poll for number {wanted:,} was answered with session, number and version {found}",
                field="session_epoch",
                found=found,
            )
        self.sessions += begun
        self.session_id, self.session_epoch = answer.session_id, answer.session_epoch + 1
        self._backoff.reset()
        self._end(now_ms + self.interval_ms)
        return answer

    def refused(self, request: PollRequest, refusal: PollRefusal, now_ms: float) -> None:
        """The request was refused: it is tried again later, in a new session, unless the refusal is final."""
        if request is not self._under_way:
            return
        if refusal.reason in ("version", "closed", "left"):
            self.closed = refusal
            self._end(None)
            return
        if refusal.reason != "busy":
            self.session_id, self.session_epoch = 0, 1
        self._end(now_ms + self._backoff.next_ms())

    def failed(self, request: PollRequest, now_ms: float) -> None:
        """No answer came, or a damaged one: the same is requested again."""
        if request is self._under_way:
            self._end(now_ms + self._backoff.next_ms())

    def _end(self, wake_at_ms: float | None) -> None:
        self._under_way, self.wake_at_ms = None, wake_at_ms
        self._check()

    def _check(self) -> None:
        """Assert the invariants after every event; in constant time."""
        assert self._under_way is None or self.wake_at_ms is None, "one request at a time"
        assert self.closed is None or (self._under_way is None and self.wake_at_ms is None)
        assert self.session_epoch >= 1 and (self.session_id or self.session_epoch == 1)
        assert self.sessions or not self.session_id
