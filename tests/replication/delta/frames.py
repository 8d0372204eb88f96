"""Frames made up for tests of the delta cores: as many bytes as wanted, at any LSNs, without a log."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from walkit.replication.delta.messages import DeltaEnd, PollAnswer, PollRefusal, PollRequest
from walkit.replication.delta.polls import DeltaOptions, DeltaPolls, Reply

LOG_ID, EPOCH_ID = 7, 8


class Frames(NamedTuple):
    """An observed frame, as far as a session uses it."""

    first_lsn: int
    last_lsn: int
    position: int
    next_position: int
    data: bytes

    @property
    def end(self) -> DeltaEnd:
        """The end after these frames."""
        return DeltaEnd(self.last_lsn, self.next_position)


def frames_after(end: DeltaEnd, records: int = 1, size: int = 64, skip: int = 0) -> Frames:
    """Return a frame that follows `end`, or one that follows what lies `skip` records after it."""
    first = end.lsn + skip + 1
    position = end.position + 64 * skip
    fill = b"%d," % first
    data = (fill * (size // len(fill) + 1))[:size]
    return Frames(first, first + records - 1, position, position + size, data)


@dataclass
class Readers:
    """The poll core with a log that is made up and a clock that is moved by hand, and what every caller was given."""

    options: DeltaOptions = field(default_factory=DeltaOptions)
    now_ms: float = 1_000.0
    end: DeltaEnd = field(default_factory=DeltaEnd)

    def __post_init__(self) -> None:
        ids = count(1000)
        self.core = DeltaPolls(LOG_ID, EPOCH_ID, options=self.options, new_id=lambda: next(ids))
        self.given: dict[object, list[PollAnswer | PollRefusal]] = {}
        self._tokens = count(1)

    def take(self, replies: list[Reply]) -> None:
        """Note the replies."""
        for token, answer in replies:
            self.given.setdefault(token, []).append(answer)

    def ask(self, request: PollRequest) -> int:
        """Poll; return the token."""
        token = next(self._tokens)
        self.take(self.core.poll(request, token, self.end, self.now_ms))
        return token

    def append(self, records: int = 1, size: int = 64) -> Frames:
        """Let a frame become durable."""
        frames = frames_after(self.end, records, size)
        self.end = frames.end
        self.take(self.core.appended(frames, self.now_ms))
        return frames

    def wait(self, ms: float) -> None:
        """Let time pass, in steps of the core's wake times."""
        until = self.now_ms + ms
        while (wake := self.core.wake_at_ms) is not None and wake <= until:
            self.now_ms = max(self.now_ms, wake)
            self.take(self.core.tick(self.end, self.now_ms))
        self.now_ms = until
        self.take(self.core.tick(self.end, self.now_ms))

    def answered(self, token: int) -> PollAnswer:
        """Return the one answer that this caller was given."""
        (answer,) = self.given[token]
        assert isinstance(answer, PollAnswer)
        return answer

    def refused(self, token: int) -> PollRefusal:
        """Return the one refusal that this caller was given."""
        (answer,) = self.given[token]
        assert isinstance(answer, PollRefusal)
        return answer

    def begin(self, version: int = 2) -> PollAnswer:
        """Open a session."""
        return self.answered(self.ask(PollRequest(version=version)))

    def next(self, last: PollAnswer, **facts: object) -> int:
        """Ask for the answer after `last`."""
        facts = {"version": last.version, **facts}
        return self.ask(
            PollRequest(session_id=last.session_id, session_epoch=last.session_epoch + 1, **facts)  # type: ignore[arg-type]
        )

    def again(self, last: PollAnswer, **facts: object) -> int:
        """Ask for the same answer as `last` once more."""
        facts = {"version": last.version, **facts}
        return self.ask(PollRequest(session_id=last.session_id, session_epoch=last.session_epoch, **facts))  # type: ignore[arg-type]
