"""Addresses of logs: paths, URLs, storages and object stores, and the place that each of them means."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from walkit._internal.arguments import refuse
from walkit.errors import NotALogError
from walkit.storage.file import FileStorage
from walkit.storage.interface import Storage
from walkit.storage.object_files import FileObjectStore
from walkit.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from walkit.storage.memory import MemoryStorage

Place = str | os.PathLike[str] | Storage
AnyPlace: TypeAlias = Place | ObjectStore

FILES = "objects:"
_CLOUD = re.compile(r"(s3|gs|az)://[^/?#@]+(/[^?#]*)?")

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

        return _memories.setdefault(path, MemoryStorage(path))
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


class StorageOptions(dict[str, Any]):
    """Options of a store, credentials among them: the repr has the names alone."""

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(f'{name}=***' for name in self)})"


def is_object_url(place: object) -> bool:
    """Say whether this is the URL of an object store."""
    return isinstance(place, str) and place.startswith((FILES, "s3://", "gs://", "az://"))


def absolute(place: Any) -> Any:
    """Return a place so that it means the same whatever the current folder is: paths and `objects:` become absolute."""
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not text or not isinstance(text, str) or "://" in text:
        return place
    return open_store(text).location if text.startswith(FILES) else os.path.abspath(os.path.expanduser(text))


def open_store(url: str, storage_options: Mapping[str, Any] | None = None) -> ObjectStore:
    """Return the object store of a URL: `s3://bucket/folder`, `gs://`, `az://` (obstore), or `objects:/folder`.

    `storage_options` are those of obstore: endpoint, region, credentials, timeouts; the environment has the others. No
    request is made. OptionsError, which does not show the options; MissingExtraError.
    """
    given: object = {} if storage_options is None else storage_options
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        refuse("storage_options", "...", "a mapping of names to values")
    options = StorageOptions(given)
    if url.startswith(FILES) and len(url) > len(FILES):
        if options:
            refuse("storage_options", sorted(options), f"a store in a folder ({FILES}) has none")
        return FileObjectStore(os.path.expanduser(url.removeprefix(FILES)))
    if not _CLOUD.fullmatch(url):
        # It may have a password in it, or a signature.
        shown = f"{url.partition(':')[0]}:..."
        refuse("url", shown, "s3://BUCKET/FOLDER, gs:// or az:// without credentials, or objects:/FOLDER")
    from walkit.storage.object_obstore import ObstoreObjectStore

    return ObstoreObjectStore(url, options)
