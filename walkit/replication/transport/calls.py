"""The calls of a primary: a bounded number of callers without a hello, and one live session for each id.

Calls of one request (`SingleRequestCalls`) have the same bound: a caller that sends none holds no place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar

from walkit._internal.locks import once
from walkit.replication.protocol.messages import Refusal
from walkit.replication.transport.grpc_common import grpc

WAITING_MAX = 32
"""So many callers may owe their first message; one more takes the room of the one that has waited longest."""

C = TypeVar("C")


class Call(Protocol):
    """A call, as the table sees it. Safe from any thread."""

    def cancel(self) -> None:
        """End the call at once, even if its peer reads nothing."""

    def is_stalled(self, now_ms: float) -> bool:
        """Return whether a message has waited too long for the peer to read."""


def enter_waiting(waiting: dict[C, None], call: C) -> C | None:
    """Note a call whose peer has sent nothing yet; return the one to cancel for it, or None if there is room.

    An honest peer speaks at once, so the one that has waited longest goes: silent peers cannot keep others out. Needs
    the lock held that `waiting` changes under.
    """
    longest = next(iter(waiting)) if len(waiting) >= WAITING_MAX else None
    if longest is not None:
        del waiting[longest]
    waiting[call] = None
    return longest


class CallTable:
    """The calls that have a place, and those that wait for one. Safe from any thread.

    A caller gets its place with its hello.
    """

    def __init__(self, places: int, holds: int) -> None:
        self.places, self.holds = places, holds
        self._lock = threading.RLock()
        self._waiting: dict[Call, None] = {}
        self._seated: dict[str, Call] = {}

    def enter(self, call: Call) -> None:
        """Take in a new caller, which has said nothing yet."""
        with once(self._lock), self._lock:
            longest = enter_waiting(self._waiting, call)
            self._check()
        if longest is not None:
            longest.cancel()

    def seat(self, call: Call, key: str, name: str, held: frozenset[str]) -> Refusal | None:
        """Give a caller the place of this id, or return why it gets none now. `held` are the ids with a hold.

        `name` is its label, for the words.
        """
        with once(self._lock), self._lock:
            if key in self._seated:
                text = (
                    f"another session of replica {name!r} is live; it ends when it is silent or its call ends"
                )
                return Refusal(reason="busy", message=text)
            if len(self._seated) >= self.places:
                text = f"all {self.places:,} places are taken"
                return Refusal(reason="full", message=text)
            keys = held | self._seated.keys()
            if key not in keys and len(keys) >= self.holds:
                text = f"{len(keys):,} replicas have a hold or are about to; one must expire before another begins"
                return Refusal(reason="full", message=text)
            self._waiting.pop(call, None)
            self._seated[key] = call
            self._check()
        return None

    def leave(self, call: Call) -> None:
        """Forget a call that has ended; its id is free again."""
        with once(self._lock), self._lock:
            self._waiting.pop(call, None)
            self._seated = {key: other for key, other in self._seated.items() if other is not call}

    def _check(self) -> None:
        """Assert that no more wait, or have a place, than may, and none does both; needs the lock held."""
        assert len(self._waiting) <= WAITING_MAX and len(self._seated) <= self.places
        assert self._waiting.keys().isdisjoint(self._seated.values()), "a call that has a place waits for one"

    def cancel_stalled(self, now_ms: float) -> None:
        """Cancel the calls whose peers do not read their messages."""
        with once(self._lock), self._lock:
            calls = [*self._waiting, *self._seated.values()]
        for call in calls:
            if call.is_stalled(now_ms):
                call.cancel()


Answer: TypeAlias = Callable[[bytes, Any], Iterator[bytes]]
"""Answers a request on its call's own thread: the message and gRPC's context in, the answers out."""


class SingleRequestCalls:
    """Reads the one request of each call, and has it answered. Safe from any thread.

    These calls are served as streams: gRPC would read the message of a unary call before any handler runs, and a caller
    that sends none would hold one of the primary's calls forever, unseen.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: dict[Any, None] = {}

    def handler(self, answer: Answer) -> Callable[[Iterator[bytes], Any], Iterator[bytes]]:
        """Return the handler of a call whose one message `answer` takes."""

        def handle(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            request = self._request(requests, context)
            if request is not None:
                yield from answer(request, context)

        return handle

    def _request(self, requests: Iterator[bytes], context: Any) -> bytes | None:
        """Return the message of a call; None if the call ends without one."""
        with once(self._lock), self._lock:
            longest = enter_waiting(self._waiting, context)
        if longest is not None:
            longest.cancel()
        try:
            with suppress(grpc.RpcError):  # the call has ended: nothing is left to answer
                return next(requests, None)
        finally:
            with once(self._lock), self._lock:
                self._waiting.pop(context, None)
        return None
