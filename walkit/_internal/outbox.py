"""Events that a thread keeps: for one that waits for it, or for one that sends and does nothing else."""

from __future__ import annotations

import atexit
import threading
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

Send = Callable[[str, dict[str, Any]], None]

KEPT_MAX = 10_000
"""How many events are kept at most; the event `walkit.event.lose` counts the others."""
EXIT_WAIT_S = 1.0
"""How long the end of the process waits for events that are under way."""


class _Sink(Protocol):
    def pass_on(self, name: str, attributes: dict[str, Any]) -> None:
        """Send an event on this thread, or keep it where this thread may send none."""

    def keep(self, name: str, attributes: dict[str, Any]) -> None:
        """Keep an event for a thread that no other waits for."""


class Outbox:
    """Keeps the events of a thread for one that waits for it: `with box:` on the first, `send` on the other."""

    __slots__ = ("_ended", "_left", "kept")

    def __init__(self) -> None:
        self.kept: deque[tuple[_Sink, str, dict[str, Any]]] = deque()
        self._ended = self._left = False

    def __enter__(self) -> None:
        here.box = self

    def __exit__(self, *_: object) -> None:
        here.box = None
        self._ended = True
        if self._left:
            self._hand_over()

    def send(self) -> None:
        """Send all on this thread, which has stopped waiting. Raises as `emit` does."""
        while self.kept:
            sink, name, attributes = self.kept.popleft()
            sink.pass_on(name, attributes)

    def leave(self) -> None:
        """Have all sent elsewhere at the end of the block: the other thread has stopped waiting."""
        self._left = True
        if self._ended:
            self._hand_over()

    def _hand_over(self) -> None:
        with suppress(IndexError):  # the other thread may be at it, too
            while True:
                sink, name, attributes = self.kept.popleft()
                sink.keep(name, attributes)


class _Here(threading.local):
    box: Outbox | None = None


here = _Here()


_sending: set[Any] = set()
"""The locks of the senders that have a thread at this moment."""


class Sender:
    """Events that no thread may send which others wait for: a thread sends them that does nothing else, in order."""

    __slots__ = ("_lost", "_sending", "kept")

    def __init__(self) -> None:
        self.kept: deque[tuple[str, dict[str, Any]]] = deque()
        self._lost = 0
        self._sending = allocate_lock()
        """Held by the thread while it runs."""

    def add(self, name: str, attributes: dict[str, Any]) -> None:
        """Keep one event; takes no lock."""
        if len(self.kept) < KEPT_MAX:
            self.kept.append((name, attributes))
        else:
            self._lost += 1

    def take_lost(self) -> int:
        """Return how many events were not kept since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    def start(self, send: Send) -> None:
        """See that a thread sends what is kept."""
        if self.kept and not self._sending.locked():
            with suppress(
                RuntimeError, MemoryError
            ):  # no thread to be had: the next one that sends takes them
                start_new_thread(self._run, (send,))

    def send_here(self, send: Send) -> None:
        """Send what is kept on this thread, unless the other one is at it."""
        if not self._sending.locked():
            self._send_all(send)

    def _run(self, send: Send) -> None:
        # Whoever adds an event and sees the lock held relies on the look after its release.
        while self.kept and self._sending.acquire(blocking=False):
            _sending.add(self._sending)
            try:
                self._send_all(send)
            finally:
                _sending.discard(self._sending)
                self._sending.release()

    def _send_all(self, send: Send) -> None:
        while self.kept:
            try:
                name, attributes = self.kept.popleft()
            except IndexError:  # another thread has sent the last one
                return
            send(name, attributes)


def _await_senders() -> None:
    """Give the events of the last moments of a process the time to be sent."""
    deadline = monotonic() + EXIT_WAIT_S
    for lock in tuple(_sending):
        lock.acquire(timeout=max(deadline - monotonic(), 0))


atexit.register(_await_senders)
