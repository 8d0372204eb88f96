"""The network of a world: one link for each direction, in order and whole unless a fault says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import TypeAlias

from walkit.replication.delta.messages import PollAnswer
from walkit.replication.protocol.messages import Batch
from walkit.simulate.world_clock import Clock, Process
from walkit.simulate.world_faults import Fault, random_of

Message: TypeAlias = object


class _Link:
    """One direction between two processes."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.faults: list[Fault] = []
        self.newest_ms = 0.0
        """When the message sent last arrives: the next one does not overtake it."""

    def amount(self, kind: str) -> float | None:
        """Return how much of this fault there is now; None where there is none."""
        return max((fault.amount for fault in self.faults if fault.kind == kind), default=None)

    def happens(self, kind: str) -> bool:
        """Draw whether this fault meets one message."""
        amount = self.amount(kind)
        return amount is not None and self.random.random() < amount


class Network:
    """Carries values between processes. Messages are values here: their encoding has tests of its own."""

    def __init__(self, clock: Clock, seed: int, processes: Mapping[str, Process]) -> None:
        self._clock, self._seed, self._processes = clock, seed, processes
        self._links: dict[str, _Link] = {}
        self.sent = self.dropped = 0

    def send(self, source: str, target: str, message: Message, take: Callable[[Message], None]) -> None:
        """Have the target's process take a message some time from now, or never, or twice."""
        link = self._link(f"{source}>{target}")
        self.sent += 1
        if link.amount("cut") is not None or link.happens("lose"):
            self.dropped += 1
            return
        for _ in range(2 if link.happens("repeat") else 1):
            carried = spoiled(message, link.random) if link.happens("damage") else message
            if carried is None:
                self.dropped += 1
                continue
            self._carry(link, target, carried, take)

    def _carry(self, link: _Link, target: str, message: Message, take: Callable[[Message], None]) -> None:
        now_ms, process = self._clock.now_ms, self._processes[target]
        at_ms = now_ms + link.random.uniform(0.5, 2.0) + (link.amount("delay") or 0.0)
        at_ms = max([at_ms, *(fault.until_ms for fault in link.faults if fault.kind == "clog")])
        spread_ms = link.amount("reorder")
        if spread_ms is None:
            at_ms = link.newest_ms = max(at_ms, link.newest_ms)
        else:
            at_ms += link.random.uniform(0, spread_ms)
        self._clock.after(at_ms - now_ms, lambda: process.deliver(lambda: take(message)))

    def begin(self, fault: Fault) -> None:
        """Let a fault of a link begin."""
        self._link(fault.target).faults.append(fault)

    def end(self, fault: Fault) -> None:
        """Let it end."""
        self._link(fault.target).faults.remove(fault)

    def _link(self, name: str) -> _Link:
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = _Link(random_of(self._seed, "link", name))
        return link


def spoiled(message: Message, random: Random) -> Message | None:
    """Return a message with a flipped bit in its frames; None for one whose damage its own checksum shows."""
    if isinstance(message, tuple) and message and isinstance(message[-1], Batch | PollAnswer):
        *about, carrier = message
        spoiled_carrier = _with_flipped_bit(carrier, random)
        return None if spoiled_carrier is None else (*about, spoiled_carrier)
    return None


def _with_flipped_bit(carrier: Batch | PollAnswer, random: Random) -> Batch | PollAnswer | None:
    data = carrier.data if isinstance(carrier, Batch) else carrier.delta
    if not data:
        return None
    at, bit = random.randrange(len(data)), 1 << random.randrange(8)
    flipped = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
    return replace(carrier, data=flipped) if isinstance(carrier, Batch) else replace(carrier, delta=flipped)
