"""The network of a world: one link for each direction, in order and whole unless a fault says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias

from walkit.replication.transport.grpc_common import grpc
from walkit.simulate.runner import Life, Process, Runner
from walkit.simulate.world_damage import corrupted, is_asked_for_again
from walkit.simulate.world_faults import Fault, random_of

Message: TypeAlias = Any
"""A `world_link.Packet`."""
AGAIN_MS = 100.0
"""How much later a message may come the second time; or it comes right after the first."""


RESET_MS = (3_000.0, 20_000.0)
"""A call breaks so long after a loss, unless the cores request the lost message again."""
RESET = (grpc.StatusCode.UNAVAILABLE, "the connection was reset")
REFUSED = (grpc.StatusCode.UNAVAILABLE, "nobody listens there")


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
        """Return how much of this fault there is now; None if there is none."""
        return max((fault.amount for fault in self.faults if fault.kind == kind), default=None)

    def happens(self, kind: str) -> bool:
        """Draw whether this fault meets one message."""
        amount = self.amount(kind)
        return amount is not None and (kind == "cut" or self.random.random() < amount)

    def free_ms(self) -> float:
        """Return until when messages wait on this link."""
        return max((fault.until_ms for fault in self.faults if fault.kind == "clog"), default=0.0)


class Network:
    """Carries packets between processes. A packet for an earlier life of a process is lost."""

    def __init__(self, runner: Runner, seed: int, homes: Mapping[int, Process]) -> None:
        self.runner, self._seed, self._homes = runner, seed, homes
        """`homes` has the process of each port."""
        self._links: dict[str, _Link] = {}
        self.servers: dict[int, Any] = {}
        """By port: who listens there, of any life."""
        self._clients: dict[int, tuple[Life, Callable[[Message], None]]] = {}
        self._calls = self.sent = 0

    def new_call(self, life: Life, take: Callable[[Message], None]) -> int:
        """Return the number of a new call, whose answers `take` gets."""
        self._calls += 1
        self._clients[self._calls] = life, take
        return self._calls

    def forget(self, number: int) -> None:
        """A call is over at its client."""
        self._clients.pop(number, None)

    def to_server(self, life: Life, address: str, packet: Message) -> None:
        """Have a server take a packet of a client; without a server half of the hosts refuse it."""
        port = int(address.rpartition(":")[2])
        home, source = self._homes[port], life.process.name

        def take(carried: Message) -> None:
            server = self.servers.get(port)
            if server is not None and home.up and server.life is home.life:
                home.deliver(lambda: server.take(life, carried))
            elif carried.kind == "open" and self._link(f"{source}>{home.name}").random.random() < 0.5:
                self.runner.count("nobody listens")
                refused = replace(carried, kind="end", data=REFUSED)
                self._send(home.name, source, refused, self._deliver, answer=True)

        if not life.is_over:
            self._send(source, home.name, packet, take, answer=False)

    def to_client(self, life: Life, client: Life, packet: Message) -> None:
        """Have a client take a packet of its server."""
        if not life.is_over:
            self._send(life.process.name, client.process.name, packet, self._deliver, answer=True)

    def _deliver(self, packet: Message) -> None:
        """Have the client of a call take a packet, if it waits for one."""
        life, take = self._clients.get(packet.call, (None, None))
        if life is not None and take is not None and life is life.process.life:
            life.process.deliver(lambda: take(packet))

    def _reset(self, packet: Message) -> None:
        """Break a call on both sides, as TCP does with one of which something stays lost."""
        self._deliver(replace(packet, kind="end", data=RESET))
        for server in self.servers.values():
            call = server.calls.get(packet.call)
            if call is not None and server.life is server.life.process.life:
                server.life.process.deliver(call.on_disconnect)

    def _send(
        self, source: str, target: str, packet: Message, take: Callable[[Message], None], *, answer: bool
    ) -> None:
        """Have a packet taken some time from now, or never, or twice."""
        link = self._link(f"{source}>{target}")
        self.sent += 1
        count = self.runner.count
        lost = next((kind for kind in ("cut", "lose") if link.happens(kind)), None)
        if lost is not None:
            count(lost)
            if not isinstance(packet.data, bytes) or not is_asked_for_again(packet.data):
                self.runner.after(link.random.choice(RESET_MS), lambda: self._reset(packet))
            return
        repeated = link.happens("repeat")
        count("repeat", repeated)
        again_ms = link.random.choice((None, AGAIN_MS)) if repeated else None
        for spread_ms in (link.amount("reorder"), again_ms)[: 1 + repeated]:
            carried = packet
            if isinstance(packet.data, bytes) and link.happens("damage"):
                carried = replace(packet, data=corrupted(packet.data, link.random, answer=answer))
                count("damage")
            self._carry(link, carried, take, spread_ms)

    def _carry(
        self, link: _Link, packet: Message, take: Callable[[Message], None], spread_ms: float | None
    ) -> None:
        """Have a packet come in its order, or up to `spread_ms` later than it would and in any order."""
        now_ms, count = self.runner.now_ms, self.runner.count
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
        self.runner.at(at_ms, lambda: take(packet))

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
