"""Places: what the log asks of a storage, with its one error, in words that an implementation can be held to.

A storage is one folder of named files. It knows bytes and durability, and nothing of frames. Every implementation
passes `walkit.testing.StorageTests`. Names are relative with "/" between parts (`lost+found/0001.tail`); a missing
parent folder is made when a file is created in it.

The durability contract, which every implementation keeps and every room above relies on:

- The effect of `write` and `allocate` may be lost, kept, or torn at any sector by a power cut, until a `sync` of that
  file which began after they returned has returned. `write(sync=True)` is durable on return for *its own bytes only*;
  bytes written earlier without sync are not covered (as O_DSYNC says, and all that RWF_DSYNC gives).
- A file that was created, replaced or removed may be undone by a power cut until `sync_directory` of its folder has
  returned. `replace` is atomic: after a power cut there is the old file or the new one.
- A failed `write` or `sync` leaves the bytes in an unknown state, and a later successful sync proves nothing about
  them (failed pages look clean in the page cache). A failed `write(sync=True)` makes all unsynced writes to the file
  doubtful: the error may be that of any page. Callers never retry on that file.
- A cell is shared with the other processes of this machine. It is never synced; after a power cut it may hold any
  earlier content, or nothing.

Errors: everything the operating system refuses is a `StorageError` with `errno` and `name`, the cause chained. A file
that is not there is `StorageError` with errno ENOENT. All methods may be called from any thread; two writes to one
range at the same time are the caller's mistake.
"""

from __future__ import annotations

import errno
import errno as errno_codes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from walkit.errors import StorageError
from walkit.record import Buffer as Buffer

T = TypeVar("T")
OpenMode: TypeAlias = Literal["read", "write", "create"]


@runtime_checkable
class StorageFile(Protocol):
    """One open file of bytes, read and written by position."""

    @property
    def name(self) -> str:
        """The file's name within its storage."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file, b"" beyond its end."""

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all bytes of `buffers`, one after the other, at `offset`; the file grows as needed.

        With `sync` these very bytes are on stable storage on return. A short write is a StorageError.
        """

    def sync(self) -> None:
        """Put everything that was written before this call on stable storage (fdatasync, size included)."""

    def allocate(self, size: int) -> None:
        """Reserve space so that the file has at least `size` bytes; new bytes read as zero.

        A full disk shows here: StorageError with errno ENOSPC, and the file keeps its old size.
        """

    def shorten(self, size: int) -> None:
        """Drop all bytes from `size` on. A file that is shorter stays as it is, and one that has another name, too.

        That one may be a copy's, made of hard links: another log's reserved space would go.
        """

    def size(self) -> int:
        """Return the file's size in bytes."""

    def drop_cached(self) -> None:
        """Let the next reads come from the device if the platform can do that; only durable bytes are dropped."""

    def close(self) -> None:
        """Close the file; this syncs nothing. Closing twice does nothing."""


class Cell(Protocol):
    """A few bytes that processes share under a name; see the durability contract above."""

    def read(self) -> bytes:
        """Return all bytes of the cell; bytes that another program cut off are zero.

        A concurrent `write` may be seen in part.
        """

    def write(self, offset: int, data: bytes) -> None:
        """Store `data` at `offset`; other processes see it at once. StorageError if it cannot be stored whole."""

    def close(self) -> None:
        """Release the cell; its bytes stay."""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The holder of a lock: informational, as the holder wrote it. None if it is not known."""

    pid: int | None
    command: str | None
    same_process: bool


class StorageLock(Protocol):
    """An exclusive lock that is held; the kernel frees it when its process dies."""

    def release(self) -> None:
        """Give the lock up. Releasing twice does nothing."""

    def forget(self) -> None:
        """In a forked child: drop this copy without releasing the parent's lock."""


class ReadableFiles(Protocol):
    """Named files that can be listed and read: all that a reader of snapshots needs of a storage."""

    @property
    def location(self) -> str:
        """Where they are, for people: a path or a URL."""

    def names(self, folder: str = "") -> list[str]:
        """See `Storage`."""

    def open(self, name: str, mode: Literal["read"]) -> StorageFile:
        """See `Storage`."""


class Storage(Protocol):
    """One folder of files, with one lock and small shared cells."""

    @property
    def location(self) -> str:
        """Where it is, for people: a path or a URL."""

    def exists(self) -> bool:
        """Say whether the folder is there."""

    def create(self) -> None:
        """Make the folder, durably, if it is missing (its parent folders too)."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names in one folder ("" is the storage itself), sorted; [] if it is missing.

        Files by the name that `open` takes, sub-folders by theirs and a "/" after it. Sub-folders are not read: a path
        without a log may have a whole disk below it.
        """

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file: "read", "write" (it must be there), or "create" (it must not: errno EEXIST)."""

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target` atomically, replacing an existing file."""

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is a StorageError with errno ENOENT."""

    def sync_directory(self, folder: str = "") -> None:
        """Make creations, renames and removals in the folder durable ("" is the storage itself)."""

    def lock(self, name: str) -> StorageLock | LockHolder:
        """Take the exclusive lock of this name, or return its holder. Never waits.

        The lock's file is made if it is missing, and is never removed.
        """

    def is_locked(self, name: str) -> bool:
        """Say whether a living process holds the lock. Does not disturb one that is just taking it."""

    def cell(self, name: str, size: int, *, writable: bool) -> Cell | None:
        """Return the shared cell of this name; a writable one that is missing, too short or has another name is made.

        None if it is missing and not writable. Bytes that a short one lacks are read as zero.
        """

    def facts(self) -> dict[str, Any]:
        """Return the known facts of the place (file system, mount, device) for run records."""

    def close(self) -> None:
        """Release the storage's own resources. Open files, cells and locks stay."""


@runtime_checkable
class BulkReads(Protocol):
    """An optional offer of a file to readers of much of it: see `walkit.storage.bulk`."""

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return ranges of [start, end), in order and apart: every byte of the file outside of them reads as zero.

        They may cover zeros too, and bytes beyond the file's end. Concurrent writes may be left out.
        """

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Read into `buffer`; return how many bytes were there, fewer than asked for only at the end of the file."""

    def read_ahead(self, offset: int, size: int) -> None:
        """Say that this range is read soon. A hint: it does not wait, and raises for a closed file only."""


@runtime_checkable
class DirectStorage(Protocol):
    """A storage that can write past the page cache. Optional: with any other, `direct_io` falls back and reports it.

    The contract of the files is that of all files, reads through the cache included; only the path of the bytes
    differs.
    """

    def direct_io_refusal(self) -> str | None:
        """Return why files cannot be written past the page cache here; None if they can."""

    def open_direct(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file whose writes go past the page cache if offset and size are multiples of 4096."""


class FileNumber(NamedTuple):
    """Distinguishes one file of this machine from each of its copies; a renamed file keeps it."""

    device: int
    inode: int


@runtime_checkable
class NumberedFile(Protocol):
    """A file, or a lock's, that has a number. Optional: a file in memory has none."""

    def number(self) -> FileNumber:
        """Return the number of the open file, whatever its name is by now."""


@runtime_checkable
class HoldableFile(Protocol):
    """A file that one opening can have for itself, until its process dies. Optional: see `hold_file`."""

    def hold(self) -> bool:
        """Take the file's lock for this opening; False if another opening has it. Never waits. StorageError."""

    def free(self) -> None:
        """Give the lock up before the file is closed. Without one this does nothing."""

    def is_held(self) -> bool:
        """Say whether another opening has the lock; takes nothing, and disturbs no taker. StorageError."""

    def status_call(self) -> Callable[[], os.stat_result]:
        """Return a call for the status of the open file; with `st_nlink` 0 its bytes go when it is closed."""


class FolderHold(StorageLock, Protocol):
    """A folder that is held: its storage does everything in this very folder, wherever it is by then."""

    def number(self) -> FileNumber | None:
        """Return the number of the folder; None if it was removed. StorageError."""

    def number_of(self, name: str) -> FileNumber | None:
        """Return the number of the file with this name in the folder now; for "" that of the location's target.

        None if there is nothing. StorageError.
        """

    def place(self) -> str:
        """Return the path that the folder has now, for people."""


@runtime_checkable
class HoldableStorage(Protocol):
    """A storage whose folder can be held, so that no name is taken for it. Optional: see `hold_folder`."""

    def hold(self, lock_name: str) -> FolderHold | LockHolder | None:
        """Hold the folder until the release, or return who holds it, as the file `lock_name` in it says. Never waits.

        One holder has it at a time, by whatever path, also after a rename and where a file in it was removed, if the
        file system has such locks. None if this storage has no folder. StorageError.
        """


@runtime_checkable
class ExclusiveNames(Protocol):
    """A storage that can give a file a name only if it is free. Optional: objects in files need it."""

    def rename_new(self, source: str, target: str) -> None:
        """Rename `source` to `target`, unless something has that name: StorageError with errno EEXIST.

        A power cut may leave the file under both names.
        """


@runtime_checkable
class TakesTurns(Protocol):
    """A storage whose files change together, by turns instead of locks. Optional: that of a log on object storage."""

    def in_turn(self, do: Callable[[], T]) -> T:
        """Call `do`, and keep all that it does to files, or nothing; return its result when that is durable.

        If another process has changed a file meanwhile, `do` is called again. So it does nothing else, and its errors
        are final.
        """


@runtime_checkable
class PrivateFiles(Protocol):
    """A storage whose files have an owner. Optional: through any other, a private file is a plain one."""

    def create_private(self, name: str) -> StorageFile:
        """Create a file that its owner alone may read and write; it must not be there (errno EEXIST)."""

    def create_private_folder(self) -> None:
        """As `create`, but a folder that this makes is for its owner alone; one that is there stays as it is."""


@runtime_checkable
class LimitedSpace(Protocol):
    """A storage that knows how much room is left. Optional: of any other nothing is known before it is full."""

    def free_bytes(self) -> int:
        """Return how many bytes more can be stored. StorageError."""


def create_private(storage: Storage) -> None:
    """Make the place of a storage, for its owner alone if the storage has owners: see `PrivateFiles`. StorageError."""
    if isinstance(storage, PrivateFiles):
        storage.create_private_folder()
    else:
        storage.create()


def hold_folder(storage: Storage, lock_name: str) -> FolderHold | LockHolder | None:
    """Hold the folder of a storage that has one, see `HoldableStorage`; None for any other."""
    return storage.hold(lock_name) if isinstance(storage, HoldableStorage) else None


def hold_file(file: StorageFile) -> bool:
    """Take the lock of a file that has one, see `HoldableFile`; True for any other."""
    return file.hold() if isinstance(file, HoldableFile) else True


def is_held(file: StorageFile) -> bool:
    """Say whether another opening has the lock of a file; False for one that has none."""
    return isinstance(file, HoldableFile) and file.is_held()


def remove_if_there(storage: Storage, name: str) -> bool:
    """Remove a file that may be missing; False if it is. The folder is not synced. StorageError."""
    try:
        storage.remove(name)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True


OUT_OF_PROCESS = frozenset({errno_codes.EMFILE, errno_codes.ENFILE, errno_codes.ENOMEM})
"""The process or the system has too much open or in memory. These say nothing about the file that was asked for."""
BACK_PRESSURE: Mapping[int, tuple[str, str]] = {
    errno_codes.ENOSPC: ("disk", "Make room on the disk"),
    errno_codes.EDQUOT: ("disk", "Make room within the quota"),
    errno_codes.EFBIG: (
        "file-size",
        "Raise the limit on file sizes (ulimit -f), or take smaller segment_bytes",
    ),
    errno_codes.EMFILE: ("descriptors", "Close files, or raise the limit on open files (ulimit -n)"),
    errno_codes.ENFILE: ("descriptors", "Close files: the system has as many open as it may"),
    errno_codes.ENOMEM: ("memory", "Free memory"),
}
"""Errors of a resource that is used up for now, each with the reason of its LogFullError and the remedy."""


def storage_error(action: str, name: str, location: str, code: int | None, reason: str = "") -> StorageError:
    """Return the error with the failed action, the file, the location and the reason.

    `code` is an errno; `reason` replaces the operating system's text for it.
    """
    symbol = errno_codes.errorcode.get(code, "") if code is not None else ""
    detail = reason or (os.strerror(code) if code is not None else "refused")
    what = f"{name!r} in {location}" if name else location
    return StorageError(
        f"cannot {action} {what}: {detail}" + (f" ({symbol})" if symbol else ""), errno=code, name=name
    )


class Translated:
    """Turns an OSError inside its `with` block into a StorageError with the cause chained; see `storage_error`."""

    __slots__ = ("_action", "_location", "_name")

    def __init__(self, action: str, name: str, location: str) -> None:
        self._action, self._name, self._location = action, name, location

    def __enter__(self) -> None:
        """Begin; costs nothing but this call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Translate the block's error, unless it is a StorageError already."""
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise storage_error(self._action, self._name, self._location, error.errno) from error


def checked_name(name: str, location: str) -> str:
    """Return `name` if it stays within its storage; else raise StorageError with errno EINVAL.

    A name is one or more parts with "/" between; no part is empty, "." or "..", and none holds a zero byte. Names
    come out of manifests too, so a damaged one must not reach a file outside.
    """
    parts = name.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in name:
        raise storage_error(
            "use the name", name, location, errno_codes.EINVAL, "not a relative name without . and .."
        )
    return name


def checked_folder(folder: str, location: str) -> str:
    """Return `folder` under the rule of `checked_name`; "" is the storage itself."""
    return checked_name(folder, location) if folder else ""


def parent_folder(name: str) -> str:
    """Return the folder part of a name, "" for the storage itself."""
    return name.rpartition("/")[0]
