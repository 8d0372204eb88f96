"""CRC-32C (Castagnoli), in hardware, over any buffer without a copy."""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c as crc32c

from walkit.record import Buffer

__all__ = ["crc32c", "crc32c_of"]


def crc32c_of(buffers: Iterable[Buffer]) -> int:
    """Return the CRC-32C of several buffers as if they were one."""
    value = 0
    for buffer in buffers:
        value = crc32c(buffer, value)
    return value
