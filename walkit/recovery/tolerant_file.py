"""Reading a file of which some pages cannot be read."""

from __future__ import annotations

import errno

from walkit.errors import StorageError
from walkit.storage.bulk import BulkThrough
from walkit.storage.interface import StorageFile
from walkit.storage.io_errors import OUT_OF_PROCESS

PAGE_BYTES = 4096
PASSING_ERRNOS = OUT_OF_PROCESS | {errno.EINTR, errno.EAGAIN, errno.EBUSY}
"""What says nothing of the file: with these a file is never taken for lost."""


class TolerantFile(BulkThrough):
    """A file whose unreadable pages read as zeros, which are never a frame; `unreadable` tells where they are."""

    def __init__(self, file: StorageFile) -> None:
        self.inner: StorageFile = file
        self.unreadable: dict[int, str] = {}

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`, with zeros for each page that the storage cannot read."""
        try:
            return self.inner.read(offset, size)
        except StorageError as error:
            if error.errno in PASSING_ERRNOS:
                raise
        parts, until = [], min(offset + size, self.inner.size())
        while offset < until:
            step = min(PAGE_BYTES - offset % PAGE_BYTES, until - offset)
            try:
                parts.append(self.inner.read(offset, step))
            except StorageError as error:
                if error.errno in PASSING_ERRNOS:
                    raise
                self.unreadable[offset] = str(error)
                parts.append(bytes(step))
            offset += step
        return b"".join(parts)

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return where the file has data, which bounds what is read of one that is mostly a hole."""
        try:
            return super().data_ranges(start, end)
        except StorageError as error:
            if error.errno in PASSING_ERRNOS:
                raise
            return [(start, end)] if start < end else []

    @property
    def name(self) -> str:
        """The file's name."""
        return self.inner.name

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self.inner.size()

    def close(self) -> None:
        """Close the file."""
        self.inner.close()
