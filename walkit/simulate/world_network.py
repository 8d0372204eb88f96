"""The network of a world: one link for each direction, in order and whole unless a fault says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import TypeAlias

from walkit.replication.delta.messages import PollAnswer
from walkit.replication.protocol.messages import Batch
from walkit.simulate.world_clock import Clock, Process
from walkit.simulate.world_counts import message_name
from walkit.simulate.world_faults import Fault, random_of

Message: TypeAlias = object
AGAIN_MS = 100.0
"""How much later a message may come the second time; or it comes right after the first."""


class _Link:
    """One direction between two processes."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.faults: list[Fault] = []
        self.newest_ms = 0.0
        """When the message sent last arrives: the next one does not overtake it."""
        self.latest_ms = 0.0
        """When the last of all that was sent arrives, reordered or not."""

    def amount(self, kind: str) -> float | None:
        """Return how much of this fault there is now; None where there is none."""
        return max((fault.amount for fault in self.faults if fault.kind == kind), default=None)

    def happens(self, kind: str) -> bool:
        """Draw whether this fault meets one message."""
        amount = self.amount(kind)
        return amount is not None and self.random.random() < amount

    def free_ms(self) -> float:
        """Return until when messages wait on this link."""
        return max((fault.until_ms for fault in self.faults if fault.kind == "clog"), default=0.0)


class Network:
    """Carries values between processes. Messages are values here: their encoding has tests of its own."""

    def __init__(self, clock: Clock, seed: int, processes: Mapping[str, Process]) -> None:
        self._clock, self._seed, self._processes = clock, seed, processes
        self._links: dict[str, _Link] = {}
        self.sent = 0

    def send(self, source: str, target: str, message: Message, take: Callable[[Message], None]) -> None:
        """Have the target's process take a message some time from now, or never, or twice."""
        link = self._link(f"{source}>{target}")
        self.sent += 1
        count = self._clock.count
        if link.amount("cut") is not None:
            count("cut")
            return
        if link.happens("lose"):
            count("lose")
            return
        repeated = link.happens("repeat")
        count("repeat", repeated)
        again_ms = link.random.choice((None, AGAIN_MS)) if repeated else None
        for spread_ms in (link.amount("reorder"), again_ms)[: 1 + repeated]:
            carried: Message | None = message
            if link.happens("damage"):
                carried = spoiled(message, link.random)
                count("damage seen" if carried is None else "damage")
            if carried is not None:
                self._carry(link, target, carried, take, spread_ms)

    def _carry(
        self,
        link: _Link,
        target: str,
        message: Message,
        take: Callable[[Message], None],
        spread_ms: float | None,
    ) -> None:
        """Have a message come in its order, or up to `spread_ms` later than it would and in any order."""
        now_ms, process, count = self._clock.now_ms, self._processes[target], self._clock.count
        late_ms = link.amount("delay") or 0.0
        count("delay", late_ms > 0)
        at_ms = now_ms + link.random.uniform(0.5, 2.0) + late_ms
        free_ms = link.free_ms()
        count("clog", free_ms > at_ms)
        at_ms = max(at_ms, free_ms)
        if spread_ms is None:
            at_ms = link.newest_ms = max(at_ms, link.newest_ms)
        else:
            at_ms += link.random.uniform(0, spread_ms)
        count("reorder", at_ms < link.latest_ms)
        link.latest_ms = max(at_ms, link.latest_ms)

        def taken() -> None:
            count(message_name(message))
            take(message)

        self._clock.after(at_ms - now_ms, lambda: process.deliver(taken))

    def is_up(self, name: str) -> bool:
        """Return whether this process is up."""
        return self._processes[name].up

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
