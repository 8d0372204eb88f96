"""Places: where bytes are kept, and what "durable" means there."""

from __future__ import annotations

from walkit.storage.base import Buffer, Cell, DirectStorage, LockHolder, Storage, StorageFile, StorageLock
from walkit.storage.crash import CrashReport
from walkit.storage.device import (
    PRESETS,
    ConstantLatency,
    DeviceModel,
    LognormalLatency,
    MeasuredLatency,
    Stalls,
)
from walkit.storage.faults import Fault, FaultyStorage, Operation
from walkit.storage.file import FileStorage
from walkit.storage.memory import MemoryStorage
from walkit.storage.mounts import Mount, mount_of
from walkit.storage.pages import FileFate
from walkit.storage.throttled import ThrottledStorage

__all__ = [
    "PRESETS",
    "Buffer",
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
