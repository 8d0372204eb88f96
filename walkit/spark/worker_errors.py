"""The cure that a worker adds to the error of a log that the driver has planned to read."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from walkit.errors import GapError, LogNotFoundError
from walkit.spark.errors import noted

LOAD_AGAIN = "was trimmed or compacted since it was loaded: load it again."


@contextmanager
def on_a_worker(path: str, gap: str = f"The log {LOAD_AGAIN}") -> Iterator[None]:
    """Add the cure to a GapError, and the host to a LogNotFoundError: the process that planned the read saw the log.

    Every walkit error is noted for the driver, too.
    """
    with noted():
        try:
            yield
        except GapError as error:
            error.add_note(gap)
            raise
        except LogNotFoundError as error:
            error.add_note(
                f"The driver saw a log at {path} and the worker on host {socket.gethostname()} does not: the path must "
                "be visible on each machine of the cluster, or the log was removed since."
            )
            raise
