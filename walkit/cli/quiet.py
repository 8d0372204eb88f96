"""gRPC without its log lines on standard error: a failure is one sentence there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VERBOSITY = "GRPC_VERBOSITY"


@contextmanager
def quiet_grpc() -> Iterator[None]:
    """Let gRPC be imported in the block, and keep it silent afterwards, unless its logging is configured.

    gRPC reads the variable once, at its import, so it is put back at the end: only commands import gRPC like this, and
    a program that uses `walkit.replication` keeps gRPC, and its environment, as they are.
    """
    if VERBOSITY in os.environ or "GRPC_TRACE" in os.environ:
        yield
        return
    os.environ[VERBOSITY] = "NONE"
    try:
        yield
    finally:
        del os.environ[VERBOSITY]
