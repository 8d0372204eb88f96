"""Addresses of logs: a path, a URL or a storage, and the storage that each of them means."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from walkit._internal.arguments import refuse
from walkit.errors import NotALogError
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
            hint = "; an open log or store has its own in .location" if hasattr(place, "location") else ""
            refuse("path", place, f"a path, a URL or a storage{hint}")
        return place
    path = os.fspath(place)
    if isinstance(path, bytes) or "\0" in path:
        refuse("path", path, "text without a zero character")
    if not path:
        refuse("path", path, "not empty; '.' is the current folder")
    if path.startswith("memory://"):
        from walkit.storage.memory import MemoryStorage

        return _memories.setdefault(path, MemoryStorage())
    if path.startswith("file://"):
        path = path[len("file://") :]
    elif "://" in path or path.startswith("objects:"):
        refuse(
            "path", path, "a path, file://PATH or memory://NAME: a log on object storage cannot do this yet"
        )
    path = os.path.abspath(os.path.expanduser(path))
    if os.path.exists(path) and not os.path.isdir(path):
        raise NotALogError(path, "it is a file, and a log is a folder")
    return FileStorage(path)
