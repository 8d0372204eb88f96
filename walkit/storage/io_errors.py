"""The border between walkit and the operating system: one typed error for what it refuses, one rule for names.

What is under the name of a file may be something else: a pipe, a socket, a device. `open_regular` refuses it, and
does not wait for it as a plain open(2) of a pipe does.
"""

from __future__ import annotations

import errno as errno_codes
import os
import stat
from types import TracebackType

from walkit.errors import StorageError


def storage_error(action: str, name: str, location: str, code: int | None, reason: str = "") -> StorageError:
    """Return the error that says what could not be done, to which file, where, and why.

    `code` is an errno; `reason` replaces the operating system's text for it.
    """
    symbol = errno_codes.errorcode.get(code, "") if code is not None else ""
    why = reason or (os.strerror(code) if code is not None else "refused")
    what = f"{name!r} in {location}" if name else location
    return StorageError(
        f"cannot {action} {what}: {why}" + (f" ({symbol})" if symbol else ""), errno=code, name=name
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
        """Translate what the block raised, unless it is a StorageError already."""
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


_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def open_regular(
    path: str, flags: int, action: str, name: str, location: str, *, permissions: int = 0o666
) -> int:
    """Return a descriptor of a regular file; never waits. OSError, where something else is there a StorageError.

    Its errno is EISDIR for a folder, else EINVAL. A file that is made gets `permissions`, less the process's umask.
    """
    try:
        # A pipe without the other end is waited for, unless O_NONBLOCK is set; a regular file does not care.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, permissions)
    except OSError as error:
        if error.errno == errno_codes.ENXIO:  # a socket, or a pipe that nothing reads
            _refuse_irregular(os.stat(path).st_mode, action, name, location)
        raise
    try:
        _refuse_irregular(os.fstat(fd).st_mode, action, name, location)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _refuse_irregular(mode: int, action: str, name: str, location: str) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise storage_error(action, name, location, errno_codes.EISDIR)
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    raise storage_error(action, name, location, errno_codes.EINVAL, f"it is {kind}, not a regular file")
