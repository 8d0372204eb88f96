"""How far the life of an open log has come, and what has to end with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class EndWatcher(Protocol):
    """What is woken where a log ends: a Bell, mostly."""

    def set(self) -> None:
        """Look again. Called on any thread; returns at once."""


class Lifetime:
    """Whether a log is open, being closed, or closed; and what its closing ends first. Safe from any thread."""

    def __init__(self) -> None:
        self._closers: list[Callable[[], object]] = []
        self.end_watchers: set[EndWatcher] = set()
        """Woken where the log ends or fails: those that follow it look again then."""
        self.closed = False
        """Whether it takes no more work. A closing that cannot be done makes it False again."""
        self.ended = False
        """Whether nothing of it is written any more."""

    def on_close(self, closer: Callable[[], object], *, first: bool = False) -> None:
        """Call back at the beginning of a closing, on its thread, to end what works on the log's files.

        `first`: before all that were added until now.
        """
        if first:
            self._closers.insert(0, closer)
        else:
            self._closers.append(closer)

    def off_close(self, closer: Callable[[], object]) -> None:
        """Call `closer` back no more."""
        with suppress(ValueError):
            self._closers.remove(closer)

    def end_work(self) -> None:
        """Call back all that `on_close` has noted."""
        for closer in tuple(self._closers):
            closer()

    def end(self) -> None:
        """Note that nothing of the log is written any more, and wake those that follow it."""
        self.ended = True
        self._check()
        self.wake_end_watchers()

    def _check(self) -> None:
        """Assert that what has ended takes no more work, either."""
        assert self.closed or not self.ended

    def wake_end_watchers(self) -> None:
        """Wake those that follow the log: they look again."""
        for watcher in list(self.end_watchers):
            watcher.set()

    def forget(self) -> None:
        """In a forked child: this copy of the log is over, and what its closing would end is the parent's."""
        self.closed = self.ended = True
        self._closers.clear()
