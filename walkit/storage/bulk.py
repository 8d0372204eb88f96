"""Much of a file at once: read by its own means (`interface.BulkReads`) or plain reads, or written and read whole."""

from __future__ import annotations

import errno
from typing import Protocol, TypeGuard

from walkit.errors import StorageError
from walkit.storage.interface import BulkReads, ReadableFiles, Storage, remove_if_there


class PlainReads(Protocol):
    """All that is asked of a file here."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""


_kinds: dict[type, bool] = {}


def _has_means(file: object) -> TypeGuard[BulkReads]:
    """Say whether files of this class have means of their own. The protocol is slow to ask each time."""
    kind = type(file)
    found = _kinds.get(kind)
    if found is None:
        found = _kinds[kind] = issubclass(kind, BulkReads)
    return found


def data_ranges(file: PlainReads, start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges of [start, end) that may hold something else than zeros; all of it if that is not known."""
    if _has_means(file):
        return file.data_ranges(start, end)
    return [(start, end)] if start < end else []


def read_into(file: PlainReads, offset: int, buffer: memoryview) -> int:
    """Fill `buffer` from `offset` on; return how many bytes were there, fewer only at the end of the file."""
    if _has_means(file):
        return file.read_into(offset, buffer)
    return copy_into(buffer, file.read(offset, len(buffer)))


def read_ahead(file: PlainReads, offset: int, size: int) -> None:
    """Say that a range is read soon, to a file that wants to know."""
    if _has_means(file):
        file.read_ahead(offset, size)


class BulkThrough:
    """The `BulkReads` of a file over another, its `inner`: bytes come through its own `read`, never around it."""

    inner: PlainReads

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        return self.inner.read(offset, size)

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return where the inner file has data."""
        return data_ranges(self.inner, start, end)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Read into `buffer`; return how many bytes were there."""
        return copy_into(buffer, self.read(offset, len(buffer)))

    def read_ahead(self, offset: int, size: int) -> None:
        """Announce the next reads to the inner file."""
        read_ahead(self.inner, offset, size)


def copy_into(buffer: memoryview, data: bytes) -> int:
    """Put data at the beginning of a buffer; return how much it is."""
    buffer[: len(data)] = data
    return len(data)


def write_whole(storage: Storage, name: str, temporary: str, data: bytes) -> None:
    """Replace file `name` by `data`, atomically and durably: write, sync, rename, sync the directory."""
    remove_if_there(storage, temporary)
    file = storage.open(temporary, "create")
    try:
        file.write(0, [data])
        file.sync()
    finally:
        file.close()
    storage.replace(temporary, name)
    storage.sync_directory(name.rpartition("/")[0])


def read_if_there(storage: ReadableFiles, name: str, bytes_max: int) -> bytes | None:
    """Return at most so many bytes from the beginning of a file; None if the file is missing. StorageError."""
    try:
        file = storage.open(name, "read")
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return None
    try:
        return file.read(0, bytes_max)
    finally:
        file.close()
