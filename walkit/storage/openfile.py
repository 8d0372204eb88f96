"""The open objects of a storage of files: files, through the page cache, and cells, which processes share.

Durability is the file system's: RWF_DSYNC and fdatasync for bytes (macOS: F_FULLFSYNC). Nothing here buffers or retries
a failed sync.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import resource
from collections.abc import Callable, Sequence
from functools import partial

from walkit.errors import StorageError
from walkit.storage.folder import Folder, number_of, open_regular
from walkit.storage.interface import Buffer, FileNumber, Translated, storage_error
from walkit.storage.locks import is_locked, try_lock, unlock

_WRITE_BYTES_MAX = 0x7FFF_F000
"""Most bytes one write or read call takes on Linux (MAX_RW_COUNT, write(2)); more is split."""
_BUFFERS_MAX = max(16, os.sysconf("SC_IOV_MAX"))
_READ_AT_ONCE = 1 << 20
_DSYNC: int = getattr(os, "RWF_DSYNC", 0)
_NO_SUCH_CALL = (errno.EOPNOTSUPP, errno.ENOSYS)
_NO_LOCKS = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_SEEK_DATA: int = getattr(os, "SEEK_DATA", -1)
_SEEK_HOLE: int = getattr(os, "SEEK_HOLE", -1)
"""Without them, lseek refuses the calls with EINVAL."""


_FULLFSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: its fsync leaves bytes in the drive's cache, and only this call does not (fcntl(2) there)."""


def _sync_data(fd: int) -> None:
    if _FULLFSYNC is None:
        os.fdatasync(fd)
    else:
        fcntl.fcntl(fd, _FULLFSYNC)


class FileStorageFile:
    """An open file: see `walkit.storage.StorageFile`.

    A buffer is anything contiguous with the buffer protocol; another object is a TypeError or BufferError before
    anything is written. `close` must not run while another call on this file does: the descriptor's number could
    be another file's by then.
    """

    __slots__ = ("_fd", "_location", "_locker", "_name", "_raws")

    def __init__(self, raw: io.FileIO, name: str, location: str) -> None:
        self._raws = [raw]
        self._fd, self._name, self._location = raw.fileno(), name, location
        self._locker = 0
        """The process that holds the file by `lock`: a forked child's copy of it frees nothing."""

    @property
    def name(self) -> str:
        """The file's name within its storage."""
        return self._name

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""
        try:
            if size > _READ_AT_ONCE:
                # pread allocates the size asked for before it looks at the file.
                size = max(0, min(size, os.fstat(self._fd).st_size - offset))
            data = os.pread(self._fd, size, offset)
            if len(data) == size or not data:
                return data
            parts = [data]
            offset, size = offset + len(data), size - len(data)
            while size and (data := os.pread(self._fd, size, offset)):
                parts.append(data)
                offset, size = offset + len(data), size - len(data)
            return b"".join(parts)
        except OSError as error:
            raise self._refused("read", error) from error

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Read into `buffer`: the pages of memory that is used again are there already, those of new bytes are not."""
        done = 0
        try:
            while done < len(buffer):
                count = os.preadv(self._fd, [buffer[done:] if done else buffer], offset + done)
                if not count:
                    break
                done += count
        except OSError as error:
            raise self._refused("read", error) from error
        return done

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return where the file system has data in [start, end): not in holes, nor in space that is only reserved.

        Pages in the cache over reserved space count as data (lseek(2), SEEK_DATA). Where the file system cannot
        say, everything is.
        """
        ranges: list[tuple[int, int]] = []
        at = start
        try:
            while at < end:
                begin = os.lseek(self._fd, at, _SEEK_DATA)
                if begin >= end:
                    break
                at = os.lseek(self._fd, begin, _SEEK_HOLE)
                ranges.append((begin, min(at, end)))
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data from there on
                return ranges
            if error.errno in (errno.EINVAL, *_NO_SUCH_CALL):
                return [(start, end)]
            raise self._refused("look for data in", error) from error
        return ranges

    def read_ahead(self, offset: int, size: int) -> None:
        """Let the kernel begin to read (a hint; does nothing without fadvise)."""
        if hasattr(os, "posix_fadvise"):
            with Translated("read ahead in", self._name, self._location):
                os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_WILLNEED)

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all bytes of `buffers` at `offset`, with `sync` durably: one pwritev in all but extreme cases."""
        if offset < 0:
            # pwritev2 takes -1 as "at the descriptor's offset", and would write.
            raise storage_error("write", self._name, self._location, errno.EINVAL, "a negative offset")
        if len(buffers) == 1 and type(only := buffers[0]) is bytes:
            size = len(only)
            if size <= _WRITE_BYTES_MAX:
                self._write_once(offset, buffers, size, sync)
                return
        elif memoryview in map(type, buffers):
            size = _byte_count(buffers)
        else:
            size = sum(map(len, buffers))
        if size > _WRITE_BYTES_MAX or len(buffers) > _BUFFERS_MAX:
            self._write_split(offset, buffers, sync)
        else:
            self._write_once(offset, buffers, size, sync)

    def sync(self) -> None:
        """Put everything that was written before this call on stable storage, the file's size included."""
        try:
            if self._fd < 0:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # os.fdatasync has a ValueError for this
            _sync_data(self._fd)
        except OSError as error:
            raise self._refused("sync", error) from error

    def allocate(self, size: int) -> None:
        """Reserve space up to `size` bytes; new space reads as zero.

        This counts as a write of the range from the old size to the new one: after a full disk the file is brought
        back to its old size. Holes below the old size stay holes. Where the file system cannot reserve, the file
        only grows.
        """
        with Translated("allocate space for", self._name, self._location):
            old = os.fstat(self._fd).st_size
            if size <= old:
                return
            try:
                os.posix_fallocate(self._fd, old, size - old)
            except AttributeError:
                os.ftruncate(self._fd, size)
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                    os.ftruncate(self._fd, size)
                    return
                # ext4 keeps the part it could reserve.
                os.ftruncate(self._fd, old)
                raise

    def shorten(self, size: int) -> None:
        """Drop all bytes from `size` on, unless the file has another name. See `StorageFile`."""
        with Translated("shorten", self._name, self._location):
            status = os.fstat(self._fd)
            if status.st_size > size and status.st_nlink <= 1:
                os.ftruncate(self._fd, size)

    def size(self) -> int:
        """Return the file's size in bytes."""
        # A fifth of the time of an fstat; the offset that it moves is used by nothing.
        with Translated("read the size of", self._name, self._location):
            return os.lseek(self._fd, 0, os.SEEK_END)

    def number(self) -> FileNumber:
        """Return the device and the inode of the open file. See `NumberedFile`."""
        with Translated("read the number of", self._name, self._location):
            return number_of(self._fd)

    def status_call(self) -> Callable[[], os.stat_result]:
        """Return one fstat of the file, without a frame of Python: it is called for each frame. See `HoldableFile`."""
        return partial(os.fstat, self._fd)

    def hold(self) -> bool:
        """Lock the file for this opening; False if another has it. See `HoldableFile`."""
        with Translated("lock", self._name, self._location):
            try:
                held = try_lock(self._fd)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                return True
        if held:
            self._locker = os.getpid()
        return held

    def is_held(self) -> bool:
        """Say whether another opening of the file has its lock; takes nothing. See `HoldableFile`."""
        with Translated("ask about the lock of", self._name, self._location):
            return is_locked(self._fd)

    def free(self) -> None:
        """Free the lock of this opening, also for the copies that a forked child has. See `HoldableFile`."""
        locker, self._locker = self._locker, 0
        if locker == os.getpid():
            with Translated("unlock", self._name, self._location):
                unlock(self._fd)

    def drop_cached(self) -> None:
        """Drop the clean pages of the file from the page cache (a hint; does nothing without fadvise)."""
        if hasattr(os, "posix_fadvise"):
            with Translated("drop the cached pages of", self._name, self._location):
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file. Where it is interrupted, closing again finishes it, and so does the end of the object."""
        if self._locker:
            # Closing alone would leave the lock to a child that was forked and has not closed its copy yet.
            with contextlib.suppress(StorageError):
                self.free()
        self._fd = -1
        failed: OSError | None = None
        for raw in self._raws:
            try:
                raw.close()
            except OSError as error:
                failed = error
        if failed is not None:
            raise storage_error("close", self._name, self._location, failed.errno) from failed

    def _write_once(
        self, offset: int, buffers: Sequence[Buffer], size: int, sync: bool, fd: int | None = None
    ) -> None:
        fd = self._fd if fd is None else fd
        try:
            written = os.pwritev(fd, buffers, offset, _DSYNC if sync else 0)
        except OSError as error:
            if not (sync and error.errno in _NO_SUCH_CALL):
                raise self._refused("write", error) from error
            written = self._write_then_sync(offset, buffers, fd)
        if written != size and written != (size := _byte_count(buffers)):
            # A full disk takes a part: the same errno as if it takes no byte, so that both are back-pressure.
            limited = offset + written == resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            reason = f"only {written:,} of {size:,} bytes were taken"
            code = errno.EFBIG if limited else errno.ENOSPC
            raise storage_error("write", self._name, self._location, code, reason)
        if sync and not _DSYNC:
            self.sync()

    def _write_split(self, offset: int, buffers: Sequence[Buffer], sync: bool) -> None:
        batch: list[memoryview] = []
        batch_bytes = 0
        for view in [memoryview(buffer).cast("B") for buffer in buffers]:
            rest = view
            while rest:
                if len(batch) == _BUFFERS_MAX or batch_bytes == _WRITE_BYTES_MAX:
                    self._write_once(offset, batch, batch_bytes, sync)
                    offset, batch, batch_bytes = offset + batch_bytes, [], 0
                batch.append(rest[: _WRITE_BYTES_MAX - batch_bytes])
                batch_bytes += len(batch[-1])
                rest = rest[len(batch[-1]) :]
        self._write_once(offset, batch, batch_bytes, sync)

    def _write_then_sync(self, offset: int, buffers: Sequence[Buffer], fd: int) -> int:
        """Replace RWF_DSYNC, on a kernel or file system that refuses the flag (it has written nothing then)."""
        try:
            written = os.pwritev(fd, buffers, offset)
        except OSError as error:
            raise self._refused("write", error) from error
        self.sync()
        return written

    def _refused(self, action: str, error: OSError) -> StorageError:
        reason = "the file is closed" if self._fd < 0 else ""
        return storage_error(action, self._name, self._location, error.errno, reason)


def _byte_count(buffers: Sequence[Buffer]) -> int:
    """Return the bytes of all buffers, also of views whose len() counts something else."""
    return sum(memoryview(buffer).nbytes for buffer in buffers)


class FileCell:
    """A file of a few bytes that processes of one machine share through the page cache: see `walkit.storage.Cell`.

    It is never mapped: a store into a mapped page that another program has cut off ends the process by SIGBUS.
    """

    __slots__ = ("_location", "_name", "_raw", "_size", "_writable")

    def __init__(self, raw: io.FileIO, size: int, name: str, location: str, *, writable: bool) -> None:
        self._raw = raw
        self._size, self._name, self._location, self._writable = size, name, location, writable

    def read(self) -> bytes:
        """Return all bytes of the cell; bytes that another program has cut off are zero."""
        try:
            return os.pread(self._raw.fileno(), self._size, 0).ljust(self._size, b"\0")
        except ValueError as error:
            raise self._refused("read", errno.EBADF, "it is closed") from error
        except OSError as error:
            raise self._refused("read", error.errno) from error

    def write(self, offset: int, data: bytes) -> None:
        """Store `data` at `offset` by one system call."""
        end = offset + len(data)
        if offset < 0 or end > self._size:
            raise self._refused("write", errno.EINVAL, f"bytes {offset} to {end} of a cell of {self._size}")
        if not self._writable:
            raise self._refused("write", errno.EACCES, "it was opened for reading")
        try:
            written = os.pwrite(self._raw.fileno(), data, offset)
        except ValueError as error:
            raise self._refused("write", errno.EBADF, "it is closed") from error
        except OSError as error:
            raise self._refused("write", error.errno) from error
        if written != len(data):
            raise self._refused("write", errno.ENOSPC, f"only {written} of {len(data)} bytes were taken")

    def close(self) -> None:
        """Close the cell; its bytes stay. Closing twice does nothing."""
        self._raw.close()

    def _refused(self, action: str, code: int | None, reason: str = "") -> StorageError:
        return storage_error(f"{action} the cell", self._name, self._location, code, reason)


def open_cell(folder: Folder, size: int, name: str, *, writable: bool) -> FileCell | None:
    """Open the first `size` bytes of a file as a cell; None if it is missing or, to be written, shorter or shared.

    A file with another name, too, is also that of a copy made of hard links: a store would reach into its log.
    """
    try:
        raw = open_regular(folder, name, os.O_RDWR if writable else os.O_RDONLY, "open the cell")
    except FileNotFoundError:
        return None
    if writable:
        status = os.fstat(raw.fileno())
        if status.st_size < size or status.st_nlink > 1:
            raw.close()
            return None
    return FileCell(raw, size, name, folder.path, writable=writable)


def make_cell(folder: Folder, size: int, name: str) -> None:
    """Put a file of `size` zero bytes under a name, in one step for everybody else."""
    temporary = f"{name}.new"
    raw = open_regular(folder, temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, "make the cell")
    try:
        # Written and not only sized: a store must not need a block that a full disk does not have.
        if os.pwrite(raw.fileno(), bytes(size), 0) != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # The rename comes last, so that no reader opens a file that is still growing.
        os.replace(folder.at(temporary), folder.at(name), src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
    except BaseException:
        # It may have its name by now, and the first error is the one raised.
        with contextlib.suppress(OSError):
            os.unlink(folder.at(temporary), dir_fd=folder.fd)
        raise
    finally:
        raw.close()
