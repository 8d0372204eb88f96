"""The primary's answers to delta readers: the shell of the real poll core, on the world's network."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Protocol

from walkit.replication.delta.messages import DELTA_VERSION_MAX, DeltaEnd, PollRefusal, PollRequest
from walkit.replication.delta.polls import DeltaOptions, DeltaPolls, Reply
from walkit.simulate.world_clock import Alarm, Process
from walkit.simulate.world_faults import PRIMARY
from walkit.simulate.world_log import WorldFrame
from walkit.simulate.world_network import Network

OPTIONS = DeltaOptions(
    buffer_bytes=1024, long_poll_ms=60, interval_ms=5, expiry_ms=800, retry_ms=200, sessions_max=3
)
DELIVERY_MS = (0.1, 0.3, 1.0, 8.0)
"""How long after its acknowledgement a frame may come to its observer."""


class Owner(Protocol):
    """What the feed asks of its primary."""

    process: Process

    @property
    def acked_lsn(self) -> int:
        """The last LSN that is acknowledged."""

    @property
    def durable_end(self) -> DeltaEnd:
        """Where the log is durable up to."""


class Asker(Protocol):
    """A delta reader, as the feed sees it."""

    name: str

    def hear(self, message: object) -> None:
        """Take (number of the call, answer or refusal)."""


class Feed:
    """The delta readers of one opening of the log. Observes durable frames while there is a session."""

    def __init__(self, owner: Owner, network: Network, random: Random) -> None:
        self._owner, self._network, self._random = owner, network, random
        self.polls: DeltaPolls | None = None
        self.answered_lsn = 0
        """The highest end that was ever answered."""
        self._calls: dict[tuple[str, int, int], Asker] = {}
        self._copies = 0
        self._seen_after_lsn: int | None = None
        self._newest_ms = 0.0
        self._alarm = Alarm(owner.process, self._tick)
        self._counted = (0, 0)
        """Answers that were given again, and sessions that ended, which are counted."""

    def _kept(self) -> set[str]:
        """Return the sessions for which frames are kept."""
        assert self.polls is not None
        return {session.id for session in self.polls.described(0.0) if session.state == "syncing"}

    def _count(self, name: str, times: int = 1) -> None:
        self._owner.process.clock.count(name, times)

    def start(self, log_id: int, epoch_id: int) -> None:
        """Begin with an opening of the log."""
        options = replace(OPTIONS, waiting_max=self._random.choice((1, 2, 4)))
        self.polls = DeltaPolls(
            log_id, epoch_id, options=options, new_id=lambda: self._random.getrandbits(64)
        )
        self._alarm = Alarm(self._owner.process, self._tick)
        self._seen_after_lsn = None
        self._counted = (0, 0)

    def forget(self) -> None:
        """The process has ended."""
        self.polls = None
        self._calls.clear()

    def close(self) -> None:
        """Refuse all polls: the log is closed."""
        if self.polls is not None:
            self._give(self.polls.end(PollRefusal(reason="closed", message="the log is closed")))

    def hear(self, asker: Asker, message: object) -> None:
        """Take (number of the call, request); None for the request where its caller has given the call up."""
        assert isinstance(message, tuple)
        number, request = message
        if self.polls is None:
            return
        if request is None:
            for token in [t for t in self._calls if t[:2] == (asker.name, number)]:
                self._count("poll given up")
                self.polls.on_disconnect(token, self._now_ms)
                del self._calls[token]
        else:
            self._ask(asker, number, request)
        self._wake()

    def _ask(self, asker: Asker, number: int, request: PollRequest) -> None:
        polls = self.polls
        assert polls is not None
        if self._seen_after_lsn is None:
            self._seen_after_lsn = self._owner.acked_lsn
        self._copies += 1  # the network may bring one request twice
        token = (asker.name, number, self._copies)
        self._calls[token] = asker
        replies = polls.poll(
            request, token, self._owner.durable_end, self._now_ms, seen_after_lsn=self._seen_after_lsn
        )
        self._give(replies)

    def durable(self, frame: WorldFrame) -> None:
        """A frame has become durable: its observer gets it a moment later, and in order."""
        if self._seen_after_lsn is None:
            return
        now_ms = self._now_ms
        self._newest_ms = max(now_ms + self._random.choice(DELIVERY_MS), self._newest_ms)
        self._owner.process.after(self._newest_ms - now_ms, lambda: self._see(frame))

    def _see(self, frame: WorldFrame) -> None:
        if self.polls is None or self._seen_after_lsn is None or frame.first_lsn <= self._seen_after_lsn:
            return
        self._give(self.polls.tick(self._owner.durable_end, self._now_ms))
        kept = self._kept()
        self._give(self.polls.appended(frame, self._now_ms))
        self._count("delta: overflow", len(kept - self._kept()))
        self._wake()

    def _tick(self) -> None:
        if self.polls is not None:
            self._give(self.polls.tick(self._owner.durable_end, self._now_ms))
            self._wake()

    def _wake(self) -> None:
        assert self.polls is not None
        counts, (again, ended) = self.polls.counts, self._counted
        self._count("answer again", counts.repeated - again)
        self._count("delta: closed", counts.sessions_closed - ended)
        self._counted = counts.repeated, counts.sessions_closed
        if not self.polls.sessions:
            self._seen_after_lsn = None
        self._alarm.set(self.polls.wake_at_ms)

    @property
    def _now_ms(self) -> float:
        return self._owner.process.clock.now_ms

    def _give(self, replies: list[Reply]) -> None:
        for token, answer in replies:
            assert isinstance(token, tuple)
            asker = self._calls.pop(token, None)
            if not isinstance(answer, PollRefusal):
                self._count("old reader", answer.version < DELTA_VERSION_MAX)
                self.answered_lsn = max(self.answered_lsn, answer.end.lsn)
            if asker is not None:
                self._network.send(PRIMARY, asker.name, (token[1], answer), asker.hear)
