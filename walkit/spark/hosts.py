"""What a worker says where it does not see a log that the driver has planned to read."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from walkit.errors import LogNotFoundError
from walkit.spark.errors import noted


@contextmanager
def on_a_worker(path: str) -> Iterator[None]:
    """Add the host, and what to do, to a LogNotFoundError: the process that planned the read has seen the log.

    Every walkit error is noted for the driver, too.
    """
    with noted():
        try:
            yield
        except LogNotFoundError as error:
            error.add_note(
                f"The driver saw a log at {path} and the worker on host {socket.gethostname()} does not: the path must "
                "be visible on each machine of the cluster, or the log was removed since."
            )
            raise
