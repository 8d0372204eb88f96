"""The core of the delta poll: sessions of readers, their pending answers, and the polls that wait; without I/O.

Events go in by method calls, replies come out; nothing here has a thread, a socket, a file or a clock. Times are
milliseconds of the shell's clock. A session is an entry in a table: its end removes it, so nothing is left registered
anywhere; the shell observes the log while there is one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

from walkit._internal.arguments import check_number, check_whole
from walkit.replication.core.lag import Lag
from walkit.replication.core.publisher import CONTACT_MS
from walkit.replication.delta.buffer import DELTA_BYTES_MAX, EncodedFrames
from walkit.replication.delta.messages import (
    DELTA_VERSION_MAX,
    DeltaEnd,
    PollAnswer,
    PollRefusal,
    PollRequest,
    check_request,
    checksum_of,
)
from walkit.replication.delta.session import DeltaSession

_BOUNDS = {
    "buffer_bytes": (0, 1 << 30),
    "long_poll_ms": (0, 60_000),
    "interval_ms": (0, 60_000),
    "expiry_ms": (1, 86_400_000),
    "retry_ms": (1, 86_400_000),
    "sessions_max": (1, 65_536),
    "waiting_max": (1, 1_024),
}


@dataclass(frozen=True, kw_only=True)
class DeltaOptions:
    """How delta readers are served. Times in milliseconds. OptionsError for a number out of its bounds."""

    buffer_bytes: int = DELTA_BYTES_MAX
    """The most bytes of frames that are kept for a session; an answer that is pending has at most as many again."""
    long_poll_ms: float = 100.0
    """How long a poll waits for news at most."""
    interval_ms: float = 1.0
    """The least time between two answers of a session; frames in between are one answer."""
    expiry_ms: float = 60_000.0
    """A session without a request for this time is closed."""
    retry_ms: float = 5_000.0
    """A session whose waiting poll was given up is closed unless another poll comes within this time."""
    sessions_max: int = 32
    waiting_max: int = 4
    """How many polls of one session may wait for the same answer; one more replaces the oldest."""

    def __post_init__(self) -> None:
        for each in fields(self):
            check = check_whole if each.name.endswith(("bytes", "max")) else check_number
            check(getattr(self, each.name), each.name, *_BOUNDS[each.name])


class Reply(NamedTuple):
    """The reply to the caller that gave this token."""

    token: Hashable
    answer: PollAnswer | PollRefusal


@dataclass(slots=True)
class DeltaCounts:
    """Counts of answers: with a delta, with an end up to which the log is to be read, and with nothing new."""

    deltas: int = 0
    ends: int = 0
    nothing: int = 0
    repeated: int = 0
    """Answers that were given again."""
    delta_bytes: int = 0
    sessions_opened: int = 0
    sessions_closed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionStatus:
    """One delta reader as the server of its log sees it. LSNs, and bytes of frames that are kept for it."""

    id: str
    """A digest of the session's random number, which alone lets a caller poll in it; new at each begin of a session."""
    state: str
    """"syncing": the next answer can have frames; "not sync": it says to read the log."""
    applied_lsn: int
    """Up to here the reader said that it has applied the log."""
    answered_lsn: int
    held_bytes: int
    waiting: int
    """Polls that wait now."""
    lag_records: int | None = None
    """Records that are durable here and not applied there; None if the reader has said nothing for some time."""
    lag_bytes: int | None = None
    """Bytes of their frames; None also if the reader does not say at which position it is."""
    lag_ms: float | None = None
    """For how long something has been durable here that it has not applied."""


def shown_id(session_id: int) -> str:
    """Return a session's id for others to see; the number cannot be computed from it."""
    return hashlib.sha256(b"walkit delta session 1\0%016x" % session_id).hexdigest()[:16]


@dataclass(slots=True, eq=False)
class _Session:
    """One reader's place. At most one of `pending` and `waiting` is there."""

    id: int
    delta: DeltaSession
    epoch: int
    expires_ms: float
    pending: PollAnswer | None = None
    waiting: list[tuple[Hashable, int]] = field(default_factory=list)
    """(token, version) of the polls that wait for the answer number `epoch`."""
    woken: bool = False
    """Whether there was a notice since the polls began to wait; many are one."""
    earliest_ms: float = 0.0
    due_ms: float = 0.0
    applied: DeltaEnd = field(default_factory=DeltaEnd)
    lag: Lag = field(default_factory=Lag)
    heard_ms: float = 0.0

    def news_at(self, now_ms: float) -> None:
        """Note since when the newest durable end is known."""
        newest = self.delta.newest
        self.lag.source_at(newest.lsn, newest.position, self.applied.lsn, now_ms)

    def described(self, now_ms: float) -> SessionStatus:
        """Return the session's status."""
        newest, applied = self.delta.newest, self.applied
        known = bool(self.waiting) or now_ms - self.heard_ms <= CONTACT_MS
        records = max(newest.lsn - applied.lsn, 0)
        placed = known and bool(applied.position or not applied.lsn or not records)
        return SessionStatus(
            id=shown_id(self.id),
            state=self.delta.state.value,
            applied_lsn=applied.lsn,
            answered_lsn=self.delta.answered.lsn,
            held_bytes=self.held_bytes,
            waiting=len(self.waiting),
            lag_records=records if known else None,
            lag_bytes=(max(newest.position - applied.position, 0) if records else 0) if placed else None,
            lag_ms=self.lag.ms(now_ms) if known else None,
        )

    @property
    def held_bytes(self) -> int:
        """Bytes of frames kept for the session: those buffered, and those of the pending answer."""
        pending = self.pending.delta if self.pending is not None else None
        return self.delta.buffered_bytes + len(pending or b"")

    @property
    def wake_at_ms(self) -> float:
        if not self.waiting:
            return self.expires_ms
        return self.earliest_ms if self.woken or self.delta.has_news else self.due_ms

    def answer_of(self, version: int) -> PollAnswer:
        """Return the pending answer for a reader of this version."""
        assert self.pending is not None
        return self.pending.as_version(version)


class DeltaPolls:
    """Answers the polls of all delta readers of one opening of a log. Not thread-safe.

    `poll`, `appended`, `tick`, `on_disconnect` and `end` as things happen; each returns the replies to give.
    """

    def __init__(
        self,
        log_id: int,
        epoch_id: int,
        *,
        options: DeltaOptions,
        new_id: Callable[[], int],
    ) -> None:
        """`new_id` returns random 64-bit numbers; one that is taken or 0 is not used."""
        self.options = options
        self.counts = DeltaCounts()
        self._ids = {"log_id": log_id, "epoch_id": epoch_id}
        self._new_id = new_id
        self._sessions: dict[int, _Session] = {}
        self._closed: PollRefusal | None = None
        self.hurried: list[Hashable] = []
        """Polls, by token, that are to be answered sooner than before the last call of `appended`, and were not yet."""

    @property
    def sessions(self) -> int:
        """How many sessions there are: the log has to be observed while there is one."""
        return len(self._sessions)

    @property
    def held_bytes(self) -> int:
        """Bytes of frames kept for all sessions."""
        return sum(session.held_bytes for session in self._sessions.values())

    @property
    def wake_at_ms(self) -> float | None:
        """When to call `tick` at the latest."""
        return min((session.wake_at_ms for session in self._sessions.values()), default=None)

    def applied(self) -> dict[int, DeltaEnd]:
        """Return the applied end that each session's reader has reported; it still needs the records after it."""
        return {session.id: session.applied for session in self._sessions.values()}

    def described(self, now_ms: float) -> tuple[SessionStatus, ...]:
        """Return the status of each session."""
        return tuple(session.described(now_ms) for session in self._sessions.values())

    def poll(
        self, request: PollRequest, token: Hashable, end: DeltaEnd, now_ms: float, *, seen_after_lsn: int = 0
    ) -> list[Reply]:
        """A reader polls; the log is durable up to `end`. A reply to `token` comes now or later, once.

        For a new session: every frame whose records lie after `seen_after_lsn` will be given to `appended`.
        ProtocolError for a request that no reader sends; nothing has changed then.
        """
        check_request(request)
        replies = self.tick(end, now_ms)
        version = min(request.version, DELTA_VERSION_MAX)
        if self._closed is not None:
            return [*replies, Reply(token, self._closed)]
        session = self._sessions.get(request.session_id)
        if session is not None and not self._can_send(session, request):
            replies += self._close(session, PollRefusal(reason="stale", message="the session was replaced"))
            session = None
        if request.leave:
            left = PollRefusal(reason="left", message="the reader no longer needs the session")
            return [*replies, *(self._close(session, left) if session else ()), Reply(token, left)]
        if session is None:
            return [*replies, *self._open(request, version, token, end, seen_after_lsn, now_ms)]
        return [*replies, *self._poll(session, request, version, token, now_ms)]

    def appended(self, frames: EncodedFrames, now_ms: float) -> list[Reply]:
        """Frames have become durable. A notice ends the wait of a poll even if the frames are not new."""
        replies: list[Reply] = []
        self.hurried = []
        for session in list(self._sessions.values()):
            session.delta.append(frames)
            session.news_at(now_ms)
            sooner = not session.woken
            session.woken = bool(session.waiting)
            replies += self._settle(session, now_ms)
            if sooner:  # the rest waits because the last answer was a moment ago
                self.hurried += [token for token, _ in session.waiting]
        return replies

    def tick(self, end: DeltaEnd, now_ms: float) -> list[Reply]:
        """Time has passed, and the log is durable up to `end`."""
        replies: list[Reply] = []
        for session in list(self._sessions.values()):
            session.delta.durable(end)
            session.news_at(now_ms)
            replies += self._settle(session, now_ms)
            if not session.waiting and now_ms >= session.expires_ms:
                replies += self._close(session, None)
        return replies

    def on_disconnect(self, token: Hashable, now_ms: float) -> None:
        """The caller that gave this token is gone: it gets no reply, and the answer is kept for a retry."""
        for session in self._sessions.values():
            if any(token == waiting for waiting, _ in session.waiting):
                session.waiting = [each for each in session.waiting if each[0] != token]
                if not session.waiting:
                    session.woken = False
                    session.expires_ms = now_ms + self.options.retry_ms

    def reopened(self, log_id: int, epoch_id: int) -> list[Reply]:
        """Another opening writes the log, or another log is in its place: end all sessions."""
        self._ids = {"log_id": log_id, "epoch_id": epoch_id}
        return self.end(PollRefusal(reason="failed", message="another opening writes the log now"))

    def end(self, refusal: PollRefusal) -> list[Reply]:
        """End all sessions: polls that wait are refused. After "closed" so is every later one."""
        replies = [
            reply for session in list(self._sessions.values()) for reply in self._close(session, refusal)
        ]
        if refusal.reason == "closed":
            self._closed = refusal
        return replies

    # -- one session

    def _can_send(self, session: _Session, request: PollRequest) -> bool:
        """Return whether a reader that was answered as this session was can send this."""
        epoch = request.session_epoch
        if request.applied.lsn > session.delta.answered.lsn:
            return False  # it reports records that no answer had
        return epoch <= session.epoch or (epoch == session.epoch + 1 and session.pending is not None)

    def _open(
        self,
        request: PollRequest,
        version: int,
        token: Hashable,
        end: DeltaEnd,
        seen_after_lsn: int,
        now_ms: float,
    ) -> list[Reply]:
        if len(self._sessions) >= self.options.sessions_max:
            self._make_room(now_ms)
        if len(self._sessions) >= self.options.sessions_max:
            text = f"{len(self._sessions):,} readers have a session"
            return [Reply(token, PollRefusal(reason="full", message=text))]
        number = 0
        while not number or number in self._sessions:
            number = self._new_id()
        delta = DeltaSession(end, seen_after_lsn=seen_after_lsn, bytes_max=self.options.buffer_bytes)
        session = _Session(number, delta, 1, now_ms + self.options.expiry_ms, heard_ms=now_ms)
        if request.applied.lsn <= end.lsn:
            session.applied = request.applied
        session.news_at(now_ms)
        self._sessions[number] = session
        self.counts.sessions_opened += 1
        session.waiting.append((token, version))
        return self._answer(session, now_ms)

    def _make_room(self, now_ms: float) -> None:
        """End the oldest session whose reader got an answer and requested no other within the time for retries."""
        retry_after_ms = self.options.expiry_ms - self.options.retry_ms
        for session in self._sessions.values():
            if session.epoch == 1 and now_ms >= session.expires_ms - retry_after_ms:
                self._close(session, None)
                return

    def _poll(
        self, session: _Session, request: PollRequest, version: int, token: Hashable, now_ms: float
    ) -> list[Reply]:
        if request.session_epoch < session.epoch:
            text = f"answer {request.session_epoch:,} was taken: {session.epoch:,} was requested"
            return [Reply(token, PollRefusal(reason="stale", message=text))]
        session.expires_ms = now_ms + self.options.expiry_ms
        session.heard_ms = now_ms
        if request.applied.lsn > session.applied.lsn:
            session.applied = request.applied
            session.lag.reached(session.applied.lsn)
        if request.session_epoch > session.epoch:
            session.pending, session.epoch = None, request.session_epoch
        if session.pending is not None:
            self.counts.repeated += 1
            return [Reply(token, session.answer_of(version))]
        replies: list[Reply] = []
        longest = self.options.long_poll_ms
        wait_ms = longest if request.wait_ms is None else min(request.wait_ms, longest)
        due_ms = max(now_ms + wait_ms, session.earliest_ms)
        session.due_ms = min(session.due_ms, due_ms) if session.waiting else due_ms
        session.waiting.append((token, version))
        if len(session.waiting) > self.options.waiting_max:
            oldest, _ = session.waiting.pop(0)
            replies.append(
                Reply(oldest, PollRefusal(reason="busy", message="other polls wait for the same answer"))
            )
        return [*replies, *self._settle(session, now_ms)]

    def _settle(self, session: _Session, now_ms: float) -> list[Reply]:
        """Answer the waiting polls if their time has come."""
        if session.waiting and now_ms >= session.wake_at_ms:
            return self._answer(session, now_ms)
        return []

    def _answer(self, session: _Session, now_ms: float) -> list[Reply]:
        """Make the answer, keep it until the next request, and give it to all that wait for it."""
        version = max(version for _, version in session.waiting)
        first, end, delta = session.delta.collect(with_delta=version >= 2)
        answer = PollAnswer(
            version=DELTA_VERSION_MAX,
            session_id=session.id,
            session_epoch=session.epoch,
            end=end,
            first=first,
            delta=delta,
            **self._ids,
        )
        if delta is not None:
            answer = replace(answer, crc=checksum_of(answer))
        session.pending = answer.as_version(version)
        self._count(session.pending, first)
        replies = [Reply(token, session.answer_of(version)) for token, version in session.waiting]
        session.waiting, session.woken = [], False
        session.earliest_ms = now_ms + self.options.interval_ms
        session.expires_ms = now_ms + self.options.expiry_ms
        self._check(session)
        return replies

    def _count(self, answer: PollAnswer, first: DeltaEnd) -> None:
        counts = self.counts
        if answer.delta:
            counts.deltas += 1
            counts.delta_bytes += len(answer.delta)
        elif answer.delta is not None or answer.end.lsn == first.lsn:
            counts.nothing += 1
        else:
            counts.ends += 1

    def _close(self, session: _Session, refusal: PollRefusal | None) -> list[Reply]:
        """Take a session out of the table; polls that wait are refused."""
        del self._sessions[session.id]
        session.delta.close()
        self.counts.sessions_closed += 1
        waiting, session.waiting, session.pending = session.waiting, [], None
        assert refusal is not None or not waiting, "a session with a poll that waits does not expire"
        return [] if refusal is None else [Reply(token, refusal) for token, _ in waiting]

    def _check(self, session: _Session) -> None:
        """Assert the invariants after every answer; in constant time."""
        assert session.held_bytes <= 2 * self.options.buffer_bytes
        assert not (session.pending is not None and session.waiting)
        assert len(self._sessions) <= self.options.sessions_max
