"""Places: where bytes are kept, and what "durable" means there; files in a folder, or objects in a store.

The names load on first use: a log on a file system needs no memory. Wrappers that crash, fail, delay or throttle are
in `models`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from walkit._internal.arrow import load as _load

if TYPE_CHECKING:
    from walkit.storage.address import StorageOptions as StorageOptions
    from walkit.storage.address import open_store as open_store
    from walkit.storage.conditional_puts import prove_conditional_writes as prove_conditional_writes
    from walkit.storage.file import FileStorage as FileStorage
    from walkit.storage.interface import Buffer as Buffer
    from walkit.storage.interface import BulkReads as BulkReads
    from walkit.storage.interface import Cell as Cell
    from walkit.storage.interface import DirectStorage as DirectStorage
    from walkit.storage.interface import LockHolder as LockHolder
    from walkit.storage.interface import Storage as Storage
    from walkit.storage.interface import StorageFile as StorageFile
    from walkit.storage.interface import StorageLock as StorageLock
    from walkit.storage.memory import MemoryStorage as MemoryStorage
    from walkit.storage.mounts import Mount as Mount
    from walkit.storage.mounts import mount_of as mount_of
    from walkit.storage.object_files import FileObjectStore as FileObjectStore
    from walkit.storage.object_memory import MemoryObjectStore as MemoryObjectStore
    from walkit.storage.object_memory import ObjectFault as ObjectFault
    from walkit.storage.object_memory import ObjectRequest as ObjectRequest
    from walkit.storage.object_store import ObjectBytes as ObjectBytes
    from walkit.storage.object_store import ObjectEntry as ObjectEntry
    from walkit.storage.object_store import ObjectStore as ObjectStore

_HOMES = {
    "address": ("StorageOptions", "open_store"),
    "conditional_puts": ("prove_conditional_writes",),
    "interface": (
        "BulkReads",
        "Buffer",
        "Cell",
        "DirectStorage",
        "LockHolder",
        "Storage",
        "StorageFile",
        "StorageLock",
    ),
    "file": ("FileStorage",),
    "memory": ("MemoryStorage",),
    "mounts": ("Mount", "mount_of"),
    "object_files": ("FileObjectStore",),
    "object_memory": ("MemoryObjectStore", "ObjectFault", "ObjectRequest"),
    "object_store": ("ObjectBytes", "ObjectEntry", "ObjectStore"),
}

__all__ = [
    "Buffer",
    "BulkReads",
    "Cell",
    "DirectStorage",
    "FileObjectStore",
    "FileStorage",
    "LockHolder",
    "MemoryObjectStore",
    "MemoryStorage",
    "Mount",
    "ObjectBytes",
    "ObjectEntry",
    "ObjectFault",
    "ObjectRequest",
    "ObjectStore",
    "Storage",
    "StorageFile",
    "StorageLock",
    "StorageOptions",
    "mount_of",
    "open_store",
    "prove_conditional_writes",
]


def __getattr__(name: str) -> Any:
    for module, its_names in _HOMES.items():
        if name in its_names:
            value = globals()[name] = getattr(_load(f"walkit.storage.{module}"), name)
            return value
    raise AttributeError(f"module 'walkit.storage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
