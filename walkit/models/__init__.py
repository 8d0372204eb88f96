"""Models of hardware: storage that crashes, fails, delays, throttles or is far away; devices, and prices.

The names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from walkit._internal.arrow import load as _load

if TYPE_CHECKING:
    from walkit.models.crash_report import CrashReport as CrashReport
    from walkit.models.crash_report import PendingChange as PendingChange
    from walkit.models.crashing import CrashingStorage as CrashingStorage
    from walkit.models.device import PRESETS as PRESETS
    from walkit.models.device import ConstantLatency as ConstantLatency
    from walkit.models.device import DeviceModel as DeviceModel
    from walkit.models.device import LognormalLatency as LognormalLatency
    from walkit.models.device import MeasuredLatency as MeasuredLatency
    from walkit.models.device import Stalls as Stalls
    from walkit.models.faults import Fault as Fault
    from walkit.models.faults import FaultyStorage as FaultyStorage
    from walkit.models.faults import Operation as Operation
    from walkit.models.object_stores import PRICES as PRICES
    from walkit.models.object_stores import Price as Price
    from walkit.models.object_stores import delays as delays
    from walkit.models.page_cache import CrashOutcome as CrashOutcome
    from walkit.models.page_cache import FileOutcome as FileOutcome
    from walkit.models.remote_storage import REMOTE as REMOTE
    from walkit.models.remote_storage import RemoteStorage as RemoteStorage
    from walkit.models.throttled import ThrottledStorage as ThrottledStorage

_HOMES = {
    "crash_report": ("CrashReport", "PendingChange"),
    "crashing": ("CrashingStorage",),
    "device": ("PRESETS", "ConstantLatency", "DeviceModel", "LognormalLatency", "MeasuredLatency", "Stalls"),
    "faults": ("Fault", "FaultyStorage", "Operation"),
    "object_stores": ("PRICES", "Price", "delays"),
    "page_cache": ("CrashOutcome", "FileOutcome"),
    "remote_storage": ("REMOTE", "RemoteStorage"),
    "throttled": ("ThrottledStorage",),
}

__all__ = [
    "PRESETS",
    "PRICES",
    "REMOTE",
    "ConstantLatency",
    "CrashOutcome",
    "CrashReport",
    "CrashingStorage",
    "DeviceModel",
    "Fault",
    "FaultyStorage",
    "FileOutcome",
    "LognormalLatency",
    "MeasuredLatency",
    "Operation",
    "PendingChange",
    "RemoteStorage",
    "Stalls",
    "ThrottledStorage",
    "delays",
]


def __getattr__(name: str) -> Any:
    for module, its_names in _HOMES.items():
        if name in its_names:
            value = globals()[name] = getattr(_load(f"walkit.models.{module}"), name)
            return value
    raise AttributeError(f"module 'walkit.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
