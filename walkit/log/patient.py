"""Reading a file of which some pages cannot be read."""

from __future__ import annotations

import errno

from walkit.errors import StorageError
from walkit.storage.base import StorageFile

PAGE_BYTES = 4096
PASSING_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.EBUSY})
"""What says nothing of the file: with these a file is never taken for lost."""


class PatientFile:
    """A file whose unreadable pages read as zeros, which are never a frame; `unreadable` tells where they are."""

    def __init__(self, file: StorageFile) -> None:
        self._file = file
        self.unreadable: dict[int, str] = {}

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`, with zeros for each page that the storage cannot read."""
        try:
            return self._file.read(offset, size)
        except StorageError as error:
            if error.errno in PASSING_ERRNOS:
                raise
        parts, until = [], min(offset + size, self._file.size())
        while offset < until:
            step = min(PAGE_BYTES - offset % PAGE_BYTES, until - offset)
            try:
                parts.append(self._file.read(offset, step))
            except StorageError as error:
                if error.errno in PASSING_ERRNOS:
                    raise
                self.unreadable[offset] = str(error)
                parts.append(bytes(step))
            offset += step
        return b"".join(parts)

    @property
    def name(self) -> str:
        """The file's name."""
        return self._file.name

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self._file.size()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
