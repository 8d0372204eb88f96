"""Places: where bytes are kept, and what "durable" means there.

The names load on first use: a log on a file system needs no memory, faults or modelled devices.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walkit.storage.base import Buffer as Buffer
    from walkit.storage.base import BulkReads as BulkReads
    from walkit.storage.base import Cell as Cell
    from walkit.storage.base import DirectStorage as DirectStorage
    from walkit.storage.base import LockHolder as LockHolder
    from walkit.storage.base import Storage as Storage
    from walkit.storage.base import StorageFile as StorageFile
    from walkit.storage.base import StorageLock as StorageLock
    from walkit.storage.crash import CrashReport as CrashReport
    from walkit.storage.device import PRESETS as PRESETS
    from walkit.storage.device import ConstantLatency as ConstantLatency
    from walkit.storage.device import DeviceModel as DeviceModel
    from walkit.storage.device import LognormalLatency as LognormalLatency
    from walkit.storage.device import MeasuredLatency as MeasuredLatency
    from walkit.storage.device import Stalls as Stalls
    from walkit.storage.faults import Fault as Fault
    from walkit.storage.faults import FaultyStorage as FaultyStorage
    from walkit.storage.faults import Operation as Operation
    from walkit.storage.file import FileStorage as FileStorage
    from walkit.storage.memory import MemoryStorage as MemoryStorage
    from walkit.storage.mounts import Mount as Mount
    from walkit.storage.mounts import mount_of as mount_of
    from walkit.storage.pages import FileFate as FileFate
    from walkit.storage.throttled import ThrottledStorage as ThrottledStorage

_HOMES = {
    "base": (
        "BulkReads",
        "Buffer",
        "Cell",
        "DirectStorage",
        "LockHolder",
        "Storage",
        "StorageFile",
        "StorageLock",
    ),
    "crash": ("CrashReport",),
    "device": ("PRESETS", "ConstantLatency", "DeviceModel", "LognormalLatency", "MeasuredLatency", "Stalls"),
    "faults": ("Fault", "FaultyStorage", "Operation"),
    "file": ("FileStorage",),
    "memory": ("MemoryStorage",),
    "mounts": ("Mount", "mount_of"),
    "pages": ("FileFate",),
    "throttled": ("ThrottledStorage",),
}

__all__ = [
    "PRESETS",
    "Buffer",
    "BulkReads",
    "Cell",
    "ConstantLatency",
    "CrashReport",
    "DeviceModel",
    "DirectStorage",
    "Fault",
    "FaultyStorage",
    "FileFate",
    "FileStorage",
    "LockHolder",
    "LognormalLatency",
    "MeasuredLatency",
    "MemoryStorage",
    "Mount",
    "Operation",
    "Stalls",
    "Storage",
    "StorageFile",
    "StorageLock",
    "ThrottledStorage",
    "mount_of",
]


def __getattr__(name: str) -> Any:
    for module, its_names in _HOMES.items():
        if name in its_names:
            value = globals()[name] = getattr(importlib.import_module(f"walkit.storage.{module}"), name)
            return value
    raise AttributeError(f"module 'walkit.storage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
