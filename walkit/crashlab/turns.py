"""Seeded interleavings: threads of a run take turns at each change of the disk, and a seed says whose turn is next.

Between two changes one thread runs. The next one is drawn once each of the others waits for its turn or is at rest. So
maintenance races with the writer, and the same seed gives the same race.
"""

from __future__ import annotations

import random
import threading
import time

from walkit._internal.locks import once
from walkit._internal.threads import current_frames

LOOK_S, LOOKS = 0.0001, 2
"""Time between two looks, and how many in a row find a thread where the one before did, if it is at rest."""
SHARES = (0.15, 0.5, 0.85, 0.97)
"""How likely the next turn is the script's: maintenance is far behind in some stretches and ahead in others."""
STRETCH = 24
"""Turns until another share is drawn."""


class Turns:
    """Whose turn it is to change the disk. For the thread that makes it and for threads that are named walkit-."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._script = threading.get_ident()
        self._guard = threading.RLock()
        self._waiting: set[int] = set()
        """Threads that wait for a turn. Guarded by `_guard`, as all below."""
        self._last: set[int] = set()
        """Those of them that go on only if nothing else can."""
        self._next: int | None = None
        """The thread that was drawn and has not gone on yet."""
        self._seen: dict[int, tuple[int, int]] = {}
        """Where each other thread was at the last look: its frame and instruction."""
        self._same = 0
        """So many looks in a row have found them there."""
        self._looked_s = 0.0
        self._turns = 0
        self._share = 0.5

    def wait(self, *, last: bool = False) -> None:
        """Return when it is this thread's turn; with `last`, once each other thread needs it to go on, or is done."""
        me = threading.get_ident()
        with once(self._guard), self._guard:
            self._waiting.add(me)
            if last:
                self._last.add(me)
        while True:
            with once(self._guard), self._guard:
                if self._next is None and self._others_rest():
                    self._next = self._drawn()
                if self._next == me:
                    self._next = None
                    self._waiting.remove(me)
                    self._last.discard(me)
                    self._seen, self._same = {}, 0
                    return
            time.sleep(LOOK_S)

    def _others_rest(self) -> bool:
        """Say whether each thread that does not wait for a turn was at the same instruction at the last looks."""
        now_s = time.perf_counter()
        if self._seen and now_s - self._looked_s < LOOK_S:
            return False
        others = {
            thread.ident: thread.native_id
            for thread in threading.enumerate()
            if (thread.name.startswith("walkit-") or thread.ident == self._script)
            and thread.ident not in self._waiting
        }
        if not others:
            return True
        if None in others:  # it is being started
            return False
        frames = current_frames()
        where = {i: (id(frame), frame.f_lasti) for i, frame in frames.items() if i in others}
        at_rest = where == self._seen and not any(map(_is_runnable, others.values()))
        self._seen, self._looked_s = where, now_s
        self._same = self._same + 1 if at_rest else 0
        return self._same >= LOOKS

    def _drawn(self) -> int:
        """Return the thread whose turn is next."""
        if self._turns % STRETCH == 0:
            self._share = self._chance.choice(SHARES)
        self._turns += 1
        draw = self._chance.random()
        waiting = self._waiting - self._last or self._waiting
        others = [t.ident for t in threading.enumerate() if t.ident in waiting - {self._script}]
        if self._script in waiting and (draw < self._share or not others):
            return self._script
        return others[self._chance.randrange(len(others))]


def _is_runnable(native_id: int | None) -> bool:
    """Say whether the kernel would run this thread, if it had a core for it; False if the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{native_id}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False
