"""Logs with payload logs for these tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import walkit
from tests.support.logs import tiny
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import Operation

OVER = 100


def linked(payload_log: Any, **options: Any) -> walkit.LogOptions:
    """Return the options of a small log that keeps values over 100 bytes elsewhere."""
    return tiny(link_over=OVER, payload_log=payload_log, **options)


def value_of(number: int, size: int = 300) -> bytes:
    """Return a large value; each number has another."""
    return b"%06d" % number * (size // 6)


class Watched(FaultyStorage):
    """A storage that calls `seen` with each operation before it is done; in memory by default."""

    def __init__(self, inner: Any = None) -> None:
        super().__init__(inner or CrashingStorage())
        self.seen: Callable[[Operation], object] = lambda operation: None

    def perform(self, operation: Operation, *how: Any, **more: Any) -> Any:
        """See FaultyStorage."""
        self.seen(operation)
        return super().perform(operation, *how, **more)


def is_fetch(operation: Operation) -> bool:
    """Say whether an operation on a payload log begins to fetch values."""
    return operation.name == "open" and operation.file.endswith(".segment")
