"""Folders of files, found by path or by a descriptor that follows them, and the one way in which files are opened.

Opening a descriptor and owning it is one C call: no interrupt, and no lack of stack or memory, comes between the two.
The name of a file may lead to something else: a pipe, a socket, a device. `open_regular` refuses it, and
does not wait for it as a plain open(2) of a pipe does.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from walkit.storage.interface import FileNumber
from walkit.storage.io_errors import storage_error

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_WRITING = os.O_RDWR | os.O_WRONLY | os.O_CREAT
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class Folder:
    """A folder that is found by its path at each call. `at(name)` and `fd` are what the os calls take."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def fd(self) -> int | None:
        """The descriptor to look names up in; None if the path says the folder."""
        return None

    def at(self, name: str = "") -> str:
        """Return where a file of the folder is; "" is the folder itself."""
        return f"{self.path}/{name}" if name else self.path


class HeldFolder(Folder):
    """A folder that is held by a descriptor: a call reaches the same folder, whatever the path leads to by now.

    A call of the system with `fd` keeps a reference to the object: the descriptor is closed with the last one.
    """

    __slots__ = ("_opened",)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._opened: list[int] = []
        _open_into(self._opened, path, _FOLDER_FLAGS)

    @property
    def fd(self) -> int:
        """The descriptor of the folder."""
        return self._opened[0]

    def at(self, name: str = "") -> str:
        """Return the name of a file, relative to the descriptor."""
        return name or "."

    def close(self) -> None:
        """Close the descriptor, for who knows that no call has it; closing twice does nothing."""
        opened = getattr(self, "_opened", ())  # an interrupted making has none
        while opened:
            next(map(os.close, map(opened.pop, (0,))), None)  # one C call

    __del__ = close


def _open_into(
    opened: list[int], path: str, flags: int, permissions: int = 0o666, dir_fd: int | None = None
) -> None:
    """Open a path and put its descriptor into a list, in one C call, so that closing what the list has is enough."""
    opened.extend(map(partial(os.open, dir_fd=dir_fd), (path,), (flags,), (permissions,)))


@contextmanager
def opened_folder(folder: Folder, name: str = "") -> Iterator[int]:
    """Have a descriptor of a folder, or of one in it, for the block. OSError."""
    opened: list[int] = []
    try:
        _open_into(opened, folder.at(name), _FOLDER_FLAGS, dir_fd=folder.fd)
        yield opened[0]
    finally:
        if opened:
            os.close(opened[0])


def number_of(fd: int) -> FileNumber:
    """Return the number of the file or folder that a descriptor has open. OSError."""
    status = os.fstat(fd)
    return FileNumber(status.st_dev, status.st_ino)


def number_at(folder: Folder, name: str) -> FileNumber | None:
    """Return the number of the file or folder that a name leads to now; None if it leads nowhere. OSError."""
    try:
        status = os.stat(folder.at(name), dir_fd=folder.fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileNumber(status.st_dev, status.st_ino)


def open_raw(folder: Folder, name: str, flags: int, permissions: int = 0o666) -> io.FileIO:
    """Open a file and return its owner: of any kind but a folder, which is an IsADirectoryError. OSError.

    A symbolic link is refused (ELOOP) if it is to be written, made or replaced: it would lead out of the folder.
    The owner's `close` marks it as closed and closes it in one step of the interpreter: no descriptor is closed twice,
    or never. One that is dropped open closes itself, with a warning.
    """
    if name and flags & _WRITING:
        flags |= os.O_NOFOLLOW
    opened: list[int] = []
    owners: list[io.FileIO] = []
    try:
        _open_into(opened, folder.at(name), flags | os.O_CLOEXEC, permissions, folder.fd)
        owners.extend(map(io.FileIO, opened))
        return owners[0]
    finally:
        # FileIO takes no folder, and leaves its descriptor to us.
        if opened and not owners:
            os.close(opened[0])


def open_regular(
    folder: Folder, name: str, flags: int, action: str, *, permissions: int = 0o666
) -> io.FileIO:
    """Return the owner of a regular file; never waits. OSError, where something else is there a StorageError.

    Its errno is EISDIR for a folder, else EINVAL. A file that is made gets `permissions`, less the process's umask.
    """
    try:
        # A pipe without the other end is waited for, unless O_NONBLOCK is set; a regular file does not care.
        raw = open_raw(folder, name, flags | os.O_NONBLOCK | os.O_NOCTTY, permissions)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a pipe that nothing reads
            mode = os.stat(folder.at(name), dir_fd=folder.fd).st_mode
            _refuse_irregular(mode, action, name, folder.path)
        if error.errno == errno.EISDIR:
            raise storage_error(action, name, folder.path, errno.EISDIR) from error
        if error.errno == errno.ELOOP:
            raise storage_error(action, name, folder.path, errno.ELOOP, "it is a symbolic link") from error
        raise
    try:
        _refuse_irregular(os.fstat(raw.fileno()).st_mode, action, name, folder.path)
        raw.name = f"{name} in {folder.path}"
    except BaseException:
        raw.close()
        raise
    return raw


def _refuse_irregular(mode: int, action: str, name: str, location: str) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise storage_error(action, name, location, errno.EISDIR)
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    raise storage_error(action, name, location, errno.EINVAL, f"it is {kind}, not a regular file")
