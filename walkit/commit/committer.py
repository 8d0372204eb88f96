"""The committer thread: leads for those who do not wait (tickets, event loops)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from walkit.commit.ticket import new_gate, open_gate


class Committer:
    """Calls `lead()` each time it is woken; the thread starts with the first time."""

    def __init__(self, name: str, lead: Callable[[], None]) -> None:
        self._name = name
        self._lead = lead
        self._gate = new_gate()
        self._thread: threading.Thread | None = None
        self._closing = False

    def wake(self) -> None:
        """Let it lead: called once by whoever has taken the lead for it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"walkit-commit {self._name}", daemon=True)
            self._thread.start()
        self._gate.release()

    def _run(self) -> None:
        while True:
            self._gate.acquire()
            if self._closing:
                return
            self._lead()

    def close(self) -> None:
        """End the thread; nobody may wake it any more. May be called again where it was interrupted."""
        self._closing = True
        if self._thread is not None:
            open_gate(self._gate)
            if self._thread is not threading.current_thread():
                self._thread.join()
