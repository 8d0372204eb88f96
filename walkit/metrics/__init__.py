"""Metric names with their units and meaning; `log.statistics()` is a frozen snapshot of them.

Dashboards, notebooks and tests read these names and nothing else (etcd's and raft-wal's metrics files are the model).
`prometheus_text` writes them as Prometheus reads them; `walkit.metrics.telemetry` gives them to OpenTelemetry.
"""

from __future__ import annotations

from walkit.metrics.prometheus import prometheus_text
from walkit.metrics.statistics import (
    DeltaReaderStatistics,
    DeltaServedStatistics,
    LogStatistics,
    PeerStatistics,
    StoreStatistics,
    TrafficStatistics,
)

__all__ = [
    "DeltaReaderStatistics",
    "DeltaServedStatistics",
    "LogStatistics",
    "PeerStatistics",
    "StoreStatistics",
    "TrafficStatistics",
    "prometheus_text",
]
