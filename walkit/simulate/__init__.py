"""Virtual time: the commit path over a modelled device, faster than real and the same again for the same seed."""

from __future__ import annotations

from walkit.models.device import (
    PRESETS,
    ConstantLatency,
    DeviceModel,
    LognormalLatency,
    MeasuredLatency,
    Stalls,
)
from walkit.simulate.commit import Call, CommitSimulation, Host, Step
from walkit.simulate.drive import CallColumns, drive
from walkit.simulate.fit_device import fitted_device
from walkit.simulate.order import order_cost
from walkit.simulate.replicas import Replicas

__all__ = [
    "PRESETS",
    "Call",
    "CallColumns",
    "CommitSimulation",
    "ConstantLatency",
    "DeviceModel",
    "Host",
    "LognormalLatency",
    "MeasuredLatency",
    "Replicas",
    "Stalls",
    "Step",
    "drive",
    "fitted_device",
    "order_cost",
]
