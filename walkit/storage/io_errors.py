"""The border between walkit and the operating system: one typed error for what it refuses, one rule for names."""

from __future__ import annotations

import errno as errno_codes
import os
from collections.abc import Mapping
from types import TracebackType

from walkit.errors import StorageError

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
