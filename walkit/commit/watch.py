"""The watch over calls to the device: which are under way, since when, which hang; and which threads must not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

from walkit._internal.locks import WORK, holds
from walkit.commit.frame import SealedFrame
from walkit.errors import CallbackError

GRACE_NS = 1_000_000_000


class DeviceWatch:
    """Knows the calls to the device by their threads; the timer asks which of them take too long. Safe from any thread.

    A call hangs when it was seen to be late and is still under way a grace time after that: a process that was stopped
    (SIGSTOP, a debugger) finds its calls late when it continues, although the device has answered long ago. A limit of
    0 watches nothing.
    """

    def __init__(self, limit_ns: int) -> None:
        self.limit_ns = limit_ns
        self.grace_ns = min(GRACE_NS, limit_ns)
        # Written by the timer thread only, once, under no lock: waiters look again after `CommitSignal.notify`.
        self.hung = False
        """Whether a call was found to hang, and what waits for it has failed; it may be under way still."""
        self.asleep = limit_ns > 0
        """Whether the timer has to be woken for the next call; False again while calls come."""
        self.active = False
        """Whether anything was called since the last look."""
        # Each thread writes its own entry only, by one call; the timer reads copies. So no lock guards it.
        self.calls: dict[int, tuple[int, SealedFrame | None]] = {}
        """By thread: when its call began, and for which frame; None for one that is not about one frame."""
        # The commit lock: it guards the queue, the lead and the core. It is taken first; only
        # `CommitTimer._starting` may be taken under it. No call to the device and no user code except a policy runs
        # under it.
        self.lock: Any = threading.RLock()
        """The driver's lock. An RLock says whether this very thread has it, from the call on that takes it."""
        # Written under the commit lock, and by the leader itself, which takes out its own entry by one call. `len`
        # is the number of leads taken; it is at most `LeaderElection.places`.
        self.leading: dict[int, object] = {}
        """Threads that lead a frame, by their numbers; see LeaderElection."""
        # Each thread adds and removes its own number only.
        self.serving: set[int] = set()
        """The log's own threads that others wait for: writer, device, maintenance and timer."""
        self.on_wake: Callable[[], object] = lambda: None
        """Wakes the timer that looks for calls that hang."""
        self._late: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.calls)

    def begin(self, begun_ns: int, frame: SealedFrame | None = None) -> None:
        """The calling thread is about to call the device, for a frame or for all of it."""
        self.calls[threading.get_ident()] = (begun_ns, frame)
        self.active = True
        if self.asleep:
            self.wake()

    def wake(self) -> None:
        """Wake the timer for a call that begins."""
        self.asleep = False
        self.on_wake()

    @contextmanager
    def watched(self, frame: SealedFrame) -> Iterator[None]:
        """Watch what the calling thread waits for on a frame's behalf: where that hangs, the frame fails."""
        self.begin(perf_counter_ns(), frame)
        try:
            yield
        finally:
            self.end()

    @property
    def is_calling(self) -> bool:
        """Whether the calling thread was called back (by the collector, a signal, an observer) in the log's own work.

        It holds a lock, leads, calls the device, or is a thread that others wait for: a log that waits on such a
        thread would wait for itself.
        """
        thread = threading.get_ident()
        return self.is_busy() or thread in self.calls or thread in self.serving or holds(WORK)

    def is_leading(self) -> bool:
        """Say whether the calling thread leads a frame."""
        return threading.get_ident() in self.leading

    def is_busy(self) -> bool:
        """Say whether the calling thread leads a frame or has a lock that others wait for."""
        return threading.get_ident() in self.leading or self.lock._is_owned() or holds()

    def refuse_waiting(self) -> None:
        """CallbackError where the caller is called back in the log's own work: it must not wait."""
        thread = threading.get_ident()
        if thread in self.calls or thread in self.serving or self.is_busy():
            raise CallbackError

    def end(self) -> None:
        """The calling thread is back."""
        self.calls.pop(threading.get_ident(), None)

    def hanging(self) -> list[SealedFrame | None]:
        """Return the frames whose calls hang; None for a call that is not about one frame."""
        calls, now = list(self.calls.values()), perf_counter_ns()
        late = {begun: frame for begun, frame in calls if now - begun >= self.limit_ns}
        self._late = {begun: self._late.get(begun, now) for begun in late}
        return [late[begun] for begun, seen in self._late.items() if now - seen >= self.grace_ns]

    def nap_us(self) -> int | None:
        """Return how long the timer may sleep at most; None, and `asleep`, where nothing was called for a while."""
        if not self.limit_ns:
            return None
        calls, now = list(self.calls.values()), perf_counter_ns()
        waits = [begun + self.limit_ns - now for begun, _ in calls if begun not in self._late]
        waits += [seen + self.grace_ns - now for seen in self._late.values() if now - seen < self.grace_ns]
        if waits:
            return max(min(waits) // 1000, 1)
        if not self.active and not calls:
            self.asleep = True  # before the last look at the calls, so that none is missed
            if not self.calls:
                return None
            self.asleep = False
        self.active = False
        return self.limit_ns // 1000
