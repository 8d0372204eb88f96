"""Files that are written past the page cache, and read through it.

A write whose offset and size are multiples of 4096 goes to the device as it is (O_DIRECT, with `sync` as O_DSYNC
does); any other goes through the page cache. Linux keeps the two coherent on one file: a direct write first writes back
and then drops the cached pages of its range, so a read that begins after it sees it. Direct writes to different places
of one file run in parallel, which is what makes several frames in flight worth while.

The device reads memory that begins at a page, so the bytes are copied once, into page-aligned buffers that are reused.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import threading
from collections.abc import Sequence
from typing import Final

from walkit._internal.locks import once
from walkit.storage.folder import Folder, open_raw, open_regular
from walkit.storage.interface import Buffer, Translated, storage_error
from walkit.storage.mounts import mount_of
from walkit.storage.openfile import FileStorageFile

DIRECT_BYTES: Final = 4096
"""Direct writes begin and end at multiples of this: no device has larger logical blocks."""
BUFFER_BYTES_MAX: Final = 8 << 20
"""A longer write is done in parts of this size."""
POOL_BYTES_MAX: Final = 32 << 20
O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)


class AlignedBuffers:
    """Page-aligned memory for writes, kept for the next one; safe from any thread."""

    def __init__(self, bytes_max: int = POOL_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        # Guards `_free` and `_free_bytes`. Taken alone, for a few steps of Python.
        self._lock = threading.RLock()
        self._free: dict[int, list[mmap.mmap]] = {}
        self._free_bytes = 0

    def take(self, size: int) -> mmap.mmap:
        """Return memory of at least `size` bytes, of any content; give it back after use."""
        capacity = 1 << max(size - 1, DIRECT_BYTES - 1).bit_length()
        with once(self._lock), self._lock:
            free = self._free.get(capacity)
            if free:
                self._free_bytes -= capacity
                return free.pop()
        # Private: a forked child must not share what the parent is just writing from.
        return mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _check(self) -> None:
        """Assert that what is kept is counted, and bounded; needs the lock held."""
        assert self._free_bytes == sum(len(m) for kept in self._free.values() for m in kept) <= self.bytes_max
        assert all(len(memory) == size for size, kept in self._free.items() for memory in kept)

    def give(self, memory: mmap.mmap) -> None:
        """Keep the memory for the next write, or drop it where enough is kept."""
        with once(self._lock), self._lock:
            if self._free_bytes + len(memory) <= self.bytes_max:
                self._free_bytes += len(memory)
                self._free.setdefault(len(memory), []).append(memory)
            else:  # rarely: what is kept is enough
                self._check()


_buffers = AlignedBuffers()


class DirectFile(FileStorageFile):
    """An open file with two descriptors: one past the page cache for aligned writes, one through it for all else."""

    __slots__ = ("_direct",)

    def __init__(self, raw: io.FileIO, direct: io.FileIO, name: str, location: str) -> None:
        super().__init__(raw, name, location)
        self._raws.append(direct)
        self._direct = direct.fileno()

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all bytes of `buffers` at `offset`; past the page cache where offset and size are aligned."""
        pieces = [memoryview(buffer).cast("B") for buffer in buffers]
        size = sum(map(len, pieces))
        if offset % DIRECT_BYTES or size % DIRECT_BYTES or not size or offset < 0 or self._fd < 0:
            super().write(offset, pieces, sync=sync)
            return
        memory = _buffers.take(min(size, BUFFER_BYTES_MAX))
        try:
            with memoryview(memory)[: min(size, BUFFER_BYTES_MAX)] as room:
                self._write_parts(offset, pieces, room, sync)
        finally:
            _buffers.give(memory)

    def _write_parts(self, offset: int, pieces: list[memoryview], room: memoryview, sync: bool) -> None:
        filled = 0
        for piece in pieces:
            taken = 0
            while taken < len(piece):
                count = min(len(piece) - taken, len(room) - filled)
                room[filled : filled + count] = piece[taken : taken + count]
                taken, filled = taken + count, filled + count
                if filled == len(room):
                    self._write_once(offset, [room], filled, sync, self._direct)
                    offset, filled = offset + filled, 0
        if filled:
            with room[:filled] as rest:
                self._write_once(offset, [rest], filled, sync, self._direct)

    def close(self) -> None:
        """Close the file."""
        self._direct = -1
        super().close()


def open_direct(folder: Folder, flags: int, name: str) -> DirectFile:
    """Open a file with both descriptors; what `flags` created is removed again where that fails."""
    action = "open past the page cache"
    if not O_DIRECT:
        raise storage_error(action, name, folder.path, errno.EINVAL, "this platform cannot")
    with Translated(action, name, folder.path):
        raw = open_regular(folder, name, flags, action)
        try:
            direct = open_raw(folder, name, os.O_RDWR | O_DIRECT)
            direct.name = raw.name
        except BaseException:
            raw.close()
            if flags & os.O_CREAT:
                with contextlib.suppress(OSError):  # what is raised is the first error
                    os.unlink(folder.at(name), dir_fd=folder.fd)
            raise
        if not os.path.sameopenfile(raw.fileno(), direct.fileno()):
            raw.close()
            direct.close()
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))  # another file took the name meanwhile
    return DirectFile(raw, direct, name, folder.path)


def why_not_direct(folder: Folder) -> str | None:
    """Return why files in this folder cannot be written past the page cache; None where they can.

    Asks by a synced write of one block to a file without a name, so nothing is left, also after a crash.
    """
    mount = mount_of(folder.path)
    if mount is not None and mount.in_memory:
        return f"{mount.file_system} is in memory"  # newer kernels take the flag there, and it means nothing
    if not O_DIRECT or not hasattr(os, "O_TMPFILE"):
        return "this platform has no direct I/O"
    memory = _buffers.take(DIRECT_BYTES)
    try:
        with (
            open_raw(folder, "", os.O_TMPFILE | os.O_RDWR | O_DIRECT, 0o600) as raw,
            memoryview(memory)[:DIRECT_BYTES] as block,
        ):
            written = os.pwritev(raw.fileno(), [block], 0, getattr(os, "RWF_DSYNC", 0))
    except OSError as error:
        return f"the file system refuses it ({errno.errorcode.get(error.errno or 0, error.errno)})"
    finally:
        _buffers.give(memory)
    return None if written == DIRECT_BYTES else "the file system took a part of a block"
