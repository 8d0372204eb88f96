"""This machine as a modelled device, from its own raw baseline."""

from __future__ import annotations

from walkit.measure import Baseline
from walkit.models.device import DeviceModel, MeasuredLatency

QUANTILES = 200


def fitted_device(baseline: Baseline, *, name: str = "this-machine", queue_depth: int = 1) -> DeviceModel:
    """Return a device whose writes take what the baseline's took.

    The baseline is one thread's: how many writes the device serves at once is not in it. `queue_depth` says so; 1, one
    after the other, is what buffered synced writes into one file come to on ext4.
    """
    histogram = baseline.latencies
    quantiles = [histogram.percentile(100 * step / QUANTILES) / 1_000 for step in range(QUANTILES + 1)]
    return DeviceModel(name=name, latency=MeasuredLatency(tuple(quantiles)), queue_depth=queue_depth)
