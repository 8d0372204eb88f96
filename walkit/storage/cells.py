"""Cells in mapped files: a few bytes that processes of one machine share without a system call."""

from __future__ import annotations

import errno
import mmap
import os

from walkit.errors import StorageError
from walkit.storage.border import open_regular, storage_error


class FileCell:
    """A mapped file of a few bytes: see `walkit.storage.Cell`."""

    __slots__ = ("_location", "_map", "_name", "_size")

    def __init__(self, mapping: mmap.mmap, name: str, location: str) -> None:
        self._map, self._name, self._location, self._size = mapping, name, location, len(mapping)

    def read(self) -> bytes:
        """Return all bytes of the cell."""
        try:
            return self._map[:]
        except ValueError as error:
            raise self._refused("read", errno.EBADF, "it is closed") from error

    def write(self, offset: int, data: bytes) -> None:
        """Store `data` at `offset`: a copy into shared memory, no system call."""
        end = offset + len(data)
        if offset < 0 or end > self._size:
            raise self._refused("write", errno.EINVAL, f"bytes {offset} to {end} of a cell of {self._size}")
        try:
            self._map[offset:end] = data
        except TypeError as error:
            raise self._refused("write", errno.EACCES, "it was opened for reading") from error
        except ValueError as error:
            raise self._refused("write", errno.EBADF, "it is closed") from error

    def close(self) -> None:
        """Unmap the cell; its bytes stay. Closing twice does nothing."""
        self._map.close()

    def _refused(self, action: str, code: int, reason: str) -> StorageError:
        return storage_error(f"{action} the cell", self._name, self._location, code, reason)


def map_cell(path: str, size: int, name: str, location: str, *, writable: bool) -> mmap.mmap | None:
    """Map the first `size` bytes of a file, shared; None where it is missing or shorter."""
    try:
        fd = open_regular(path, os.O_RDWR if writable else os.O_RDONLY, "map the cell", name, location)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(fd).st_size < size:
            return None
        return mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    finally:
        os.close(fd)


def make_cell(path: str, size: int, name: str, location: str) -> None:
    """Put a file of `size` zero bytes at `path`, in one step for everybody else."""
    temporary = f"{path}.tmp"
    fd = open_regular(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, "make the cell", name, location)
    try:
        # Written and not only sized: a store into a page without a block would kill the process on a full disk.
        if os.pwrite(fd, bytes(size), 0) != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # The rename comes last, so that no reader maps a file that is still growing.
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)
