"""Addresses of logs: a path, a URL or a storage, and the storage that each of them means."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from walkit.errors import NotALogError, OptionsError
from walkit.storage.file import FileStorage
from walkit.storage.interface import Storage

if TYPE_CHECKING:
    from walkit.storage.memory import MemoryStorage

Place = str | os.PathLike[str] | Storage

_memories: dict[str, MemoryStorage] = {}


def storage_at(place: Place) -> Storage:
    """Return the storage that a path, a URL (`file://`, `memory://name`) or a storage means."""
    if not isinstance(place, str | os.PathLike):
        if not hasattr(place, "sync_directory"):
            what = type(place).__name__
            hint = "; of an open log or store give its .location" if hasattr(place, "location") else ""
            raise OptionsError(
                f"a place is a path, a URL or a storage, not {what}{hint}", option="path", wanted=place
            )
        return place
    path = os.fspath(place)
    if isinstance(path, bytes) or "\0" in path:
        raise OptionsError(
            f"{path!r} cannot be a path: text without a zero character", option="path", wanted=path
        )
    if not path:
        raise OptionsError("the path is empty; '.' is the folder you are in", option="path", wanted=path)
    if path.startswith("memory://"):
        from walkit.storage.memory import MemoryStorage

        return _memories.setdefault(path, MemoryStorage())
    if path.startswith("file://"):
        path = path[len("file://") :]
    elif "://" in path:
        raise OptionsError(
            f"{path}: a place is a path, file://PATH or memory://NAME", option="path", wanted=path
        )
    path = os.path.abspath(os.path.expanduser(path))
    if os.path.exists(path) and not os.path.isdir(path):
        raise NotALogError(path, "it is a file, and a log is a folder")
    return FileStorage(path)
