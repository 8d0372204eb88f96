"""Object stores that are modelled: requests in memory that take a device's time, and the prices of requests."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from walkit._internal.locks import once
from walkit.models.device import Device, DeviceModel, device_model
from walkit.storage.object_memory import ObjectFault, ObjectRequest, Plan

MILLION = 1_000_000
GB = 1e9
DAYS_OF_A_MONTH = 30


@dataclass(frozen=True, kw_only=True)
class Price:
    """US dollars for a place that holds a log, as its seller's page had them on a date. Requests, gigabytes of 1e9."""

    put: float = 0.0
    get: float = 0.0
    """For one request."""
    sent_gb: float = 0.0
    read_gb: float = 0.0
    """For bytes that requests carry, beside their own price."""
    month_gb: float
    """For bytes that are kept for 30 days."""
    date: str
    source: str

    def usd(self, *, puts: float = 0, gets: float = 0, sent: float = 0, read: float = 0) -> float:
        """Return the price of requests, and of the bytes that they sent and read."""
        return puts * self.put + gets * self.get + (sent * self.sent_gb + read * self.read_gb) / GB

    def kept_usd(self, size_bytes: float, days: float) -> float:
        """Return the price of keeping bytes for so many days."""
        return size_bytes / GB * self.month_gb * days / DAYS_OF_A_MONTH


PRICES = {
    "s3-standard": Price(
        put=0.005 / 1000,
        get=0.0004 / 1000,
        month_gb=0.023,
        date="2025-04-10",
        source="https://aws.amazon.com/s3/pricing/",
    ),
    "s3-express": Price(
        put=0.00113 / 1000,
        get=0.00003 / 1000,
        sent_gb=0.0032,
        read_gb=0.0006,
        month_gb=0.11,
        date="2025-04-10",
        source="https://aws.amazon.com/s3/faqs/",
    ),
    "gp3": Price(month_gb=0.08, date="2025-04-10", source="https://aws.amazon.com/ebs/pricing/"),
}
"""Prices by preset, in US East (N. Virginia). Of gp3 the bytes alone: its 3,000 IOPS and 125 MB/s cost nothing more."""


def delays(device: str | DeviceModel, *, seed: int = 0) -> Plan:
    """Return a plan for `MemoryObjectStore`: each request takes the time of a modelled store, in real time.

    Requests share the rate of the store. A plan does not see bytes, so they take no time.
    """
    model, lock = Device(device_model(device), seed), threading.RLock()

    def plan(request: ObjectRequest) -> ObjectFault:
        with once(lock), lock:
            now_ns = time.monotonic_ns()
            return ObjectFault(delay_s=(model.submit(now_ns, 0).done_ns - now_ns) / 1e9)

    return plan
