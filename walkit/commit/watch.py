"""The watch over calls to the device: which are under way, since when, and which of them hang."""

from __future__ import annotations

import threading
from time import perf_counter_ns

from walkit.commit.frame import SealedFrame

GRACE_NS = 1_000_000_000


class DeviceWatch:
    """A thread says when it calls the device and when it is back; the timer asks who has been away too long.

    A call hangs when it was seen to be late and is still under way a grace time after that: a process that was stopped
    (SIGSTOP, a debugger) finds its calls late when it goes on, although the device has answered long ago. A limit of 0
    watches nothing.
    """

    def __init__(self, limit_ns: int, grace_ns: int = GRACE_NS) -> None:
        self.limit_ns = limit_ns
        self.grace_ns = min(grace_ns, limit_ns)
        self.hung = False
        """Whether a call was found to hang; it may be under way still."""
        self.asleep = limit_ns > 0
        """Whether the timer has to be woken for the next call; False again while calls come."""
        self._active = False
        self._calls: dict[int, tuple[int, SealedFrame | None]] = {}
        self._late: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, begun_ns: int, frame: SealedFrame | None = None) -> None:
        """The calling thread is about to call the device, for a frame or for all of it."""
        self._calls[threading.get_ident()] = (begun_ns, frame)
        self._active = True

    def end(self) -> None:
        """The calling thread is back."""
        self._calls.pop(threading.get_ident(), None)

    def hanging(self) -> list[SealedFrame | None]:
        """Return the frames whose calls hang; None for a call that is not about one frame."""
        calls, now = list(self._calls.values()), perf_counter_ns()
        late = {begun: frame for begun, frame in calls if now - begun >= self.limit_ns}
        self._late = {begun: self._late.get(begun, now) for begun in late}
        found = [late[begun] for begun, seen in self._late.items() if now - seen >= self.grace_ns]
        self.hung = self.hung or bool(found)
        return found

    def nap_us(self) -> int | None:
        """Return how long the timer may sleep at most; None, and `asleep`, where nothing was called for a while."""
        if not self.limit_ns:
            return None
        calls, now = list(self._calls.values()), perf_counter_ns()
        waits = [begun + self.limit_ns - now for begun, _ in calls if begun not in self._late]
        waits += [seen + self.grace_ns - now for seen in self._late.values() if now - seen < self.grace_ns]
        if waits:
            return max(min(waits) // 1000, 1)
        if not self._active and not calls:
            self.asleep = True  # before the last look at the calls, so that none is missed
            if not self._calls:
                return None
            self.asleep = False
        self._active = False
        return self.limit_ns // 1000
