"""The leash of a child process: the pipe from its parent, at whose end it ends at once, as if it had been killed."""

from __future__ import annotations

import os
import threading

ORPHANED = 3
"""Exit status of a child whose parent has gone."""


def end_with(parent_fd: int, stop: threading.Event | None = None) -> None:
    """Watch a pipe from the parent on another thread, and end this process when it ends.

    With `stop` the line "stop" in it sets that event.
    """

    def watch() -> None:
        # Below Python's buffer: a thread that holds its lock when the interpreter ends would be a fatal error.
        heard = b""
        while part := os.read(parent_fd, 4096):
            heard = (heard + part)[-16:]
            if stop is not None and b"stop\n" in heard:
                stop.set()
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="parent", daemon=True).start()
