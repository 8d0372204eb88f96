"""The writer threads: they lead for callers that do not wait (tickets, event loops), one per frame in flight."""

from __future__ import annotations

import contextlib
import threading
from _thread import get_ident, start_new_thread
from collections.abc import Callable
from queue import SimpleQueue
from time import sleep

from walkit._internal.interrupts import on_main_thread, uninterrupted
from walkit._internal.locks import marked
from walkit._internal.threads import MEMORY_TRIES, START_STEP_S, LogThread


class WriterPool:
    """Calls `look()` once each time it is woken, on a thread that is free; threads start as they are needed."""

    def __init__(
        self,
        name: str,
        count: int,
        look: Callable[[], None],
        broken: Callable[[BaseException], object] = lambda _: None,
        serving: set[int] | None = None,
    ) -> None:
        """`broken` is called with what a look raised, or why there is no thread to look, and raises nothing.

        `serving` gets the numbers of the threads while they run.
        """
        self._serving: set[int] = set() if serving is None else serving
        self._name = name
        self._broken = broken
        self._count = count
        self._look = look
        self.calls: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[LogThread] = []
        # Guards `_threads`, `_count` and `full`. Taken without the commit lock; no lock is taken under it.
        self.starting = threading.RLock()
        """Held while one is started."""
        # Set by each writer thread as it begins, and never set back. Read under the commit lock by threads that queue:
        # only a running thread will take their item from `calls`.
        self.running = False
        """Whether one of them runs, so that it will look when it is woken."""
        self.full = False
        """Whether all of them run."""

    def wake(self) -> None:
        """Let one of them look whether there is something to lead for. Once too often does no harm.

        Where the system has no thread to give, those that run will do; where none runs, `broken` gets the RuntimeError:
        what waits must not wait for ever.
        """
        self.calls.put(True)
        if (len(self._threads) < self._count or not self.running) and not self.calls.empty():
            try:
                if self._count > 1 and on_main_thread():
                    # One call, which nothing strikes: `Thread.start` waits in Python code, where a handler raises.
                    start_new_thread(self._start_or_break, ())
                else:
                    self._start()
            except RuntimeError as error:
                self._miss(error)

    def wake_from_within(self) -> None:
        """Do the same from foreign code on a thread that has locks, perhaps those of this pool: takes none."""
        self.calls.put(True)
        if not self.running:
            start_new_thread(self._start_or_break, ())

    def _start_or_break(self) -> None:
        try:
            self._start()
        except RuntimeError as error:
            self._miss(error)

    def _miss(self, error: RuntimeError) -> None:
        if not self._threads:
            self._broken(error)

    def prepare(self) -> None:
        """Start the first thread before it is needed; does nothing where the system has none to give."""
        with contextlib.suppress(RuntimeError):
            if not self._threads:
                self._start()

    def _start(self) -> None:
        with marked(), self.starting:
            if len(self._threads) < self._count:
                name = f"walkit-commit {self._name}"
                if self._count > 1:
                    name = f"{name} {len(self._threads)}"
                thread = LogThread(target=self._run, name=name, daemon=True)
                with uninterrupted():
                    thread.start()
                    while not (self.running or thread.ended):
                        sleep(START_STEP_S)
                    if thread.ended:
                        raise RuntimeError("a writer thread found no memory to begin its work")
                    self._threads.append(thread)
                    self.full = len(self._threads) == self._count

    def _run(self) -> None:
        tries = 0  # others count on it: a look that fails is reported, and it looks again
        while tries < MEMORY_TRIES:
            try:
                if self._count:  # one that finds no memory to end has taken the call that ends it
                    self._serve()
                self._serving.discard(get_ident())
                self.calls.put(False)  # for the next one
                return
            except MemoryError:
                tries += 1

    def _serve(self) -> None:
        self.running = True
        self._serving.add(get_ident())
        while self.calls.get():
            try:
                self._look()
            except BaseException as error:  # noqa: BLE001 - it counts as running, and is asked to look again
                self._broken(error)

    def close(self, *, wait: bool = True) -> None:
        """End the threads; `wake` may not be called any more. May be called again where it was interrupted."""
        with marked(), self.starting:  # one that runs already, and is about to be noted, counts too
            self._count = 0  # a start that is on its way finds no place
            threads = list(self._threads)
        self.calls.put(False)
        for thread in threads:
            if wait and thread is not threading.current_thread():
                thread.join()
