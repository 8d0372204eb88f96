"""Logs with payload logs for these tests."""

from __future__ import annotations

from typing import Any

import walkit
from tests.support.logs import tiny

OVER = 100


def linked(payload_log: Any, **options: Any) -> walkit.LogOptions:
    """Return the options of a small log that keeps values over 100 bytes elsewhere."""
    return tiny(link_over=OVER, payload_log=payload_log, **options)


def value_of(number: int, size: int = 300) -> bytes:
    """Return a large value; each number has another."""
    return b"%06d" % number * (size // 6)
