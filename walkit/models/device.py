"""A block device as arithmetic on its writes: one model for real and for virtual time.

`ThrottledStorage` waits for the times of a `Device`; `walkit.simulate` moves its clock there. A device is a first-in,
first-out queue after two token buckets, as cloud volumes sell them: I/Os per second and bytes per second. An I/O
begins when both buckets and a slot of the queue have room for it, and takes a latency drawn from a distribution plus
the time its bytes need. A stall holds back everything the device has under way. No thread, clock or file here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import NamedTuple, Protocol

from walkit._internal import plugins
from walkit._internal.arguments import check_number, check_whole, refuse
from walkit._internal.html import options, shown

NS_PER_S = 1_000_000_000
NS_PER_US = 1_000
MIB = 1024 * 1024
COSTS_MAX = 4096
"""Sizes of I/Os whose cost a device keeps."""


class Latency(Protocol):
    """How long the device takes for one I/O that waits for nothing: a distribution."""

    def draw_ns(self, random: Random) -> int:
        """Return one latency in nanoseconds, taken from `random` alone."""

    @property
    def mean_us(self) -> float:
        """The distribution's mean in microseconds."""


@dataclass(frozen=True)
class ConstantLatency:
    """Every I/O takes `us` microseconds."""

    us: float

    def __post_init__(self) -> None:
        check_number(self.us, "us")

    def draw_ns(self, random: Random) -> int:
        """Return the latency; draws nothing."""
        return round(self.us * NS_PER_US)

    @property
    def mean_us(self) -> float:
        """The latency itself."""
        return self.us


@dataclass(frozen=True)
class LognormalLatency:
    """Half of all I/Os take at most `median_us`; `sigma` is the deviation of the logarithm."""

    median_us: float
    sigma: float

    def __post_init__(self) -> None:
        check_number(self.median_us, "median_us", above=True)
        check_number(self.sigma, "sigma")

    def draw_ns(self, random: Random) -> int:
        """Return one latency in nanoseconds."""
        return round(random.lognormvariate(math.log(self.median_us), self.sigma) * NS_PER_US)

    @property
    def mean_us(self) -> float:
        """The mean in microseconds: above the median."""
        return self.median_us * math.exp(self.sigma**2 / 2)


@dataclass(frozen=True)
class MeasuredLatency:
    """A measured distribution: `quantiles_us` at equal steps from smallest to largest, straight lines between."""

    quantiles_us: tuple[float, ...]

    def __post_init__(self) -> None:
        quantiles = self.quantiles_us
        if len(quantiles) < 2 or quantiles[0] < 0 or any(b < a for a, b in pairwise(quantiles)):
            refuse("quantiles_us", quantiles, "two or more numbers from 0, none below the one before it")

    def draw_ns(self, random: Random) -> int:
        """Return one latency in nanoseconds."""
        at = random.random() * (len(self.quantiles_us) - 1)
        low = int(at)
        below, above = self.quantiles_us[low], self.quantiles_us[low + 1]
        return round((below + (above - below) * (at - low)) * NS_PER_US)

    @property
    def mean_us(self) -> float:
        """The mean in microseconds."""
        steps = pairwise(self.quantiles_us)
        return sum((a + b) / 2 for a, b in steps) / (len(self.quantiles_us) - 1)


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """The device stalls now and then: at exponential intervals of mean `every_s`, for `duration_ms`."""

    every_s: float
    duration_ms: float

    def __post_init__(self) -> None:
        check_number(self.every_s, "every_s", above=True)
        check_number(self.duration_ms, "duration_ms", above=True)


@dataclass(frozen=True, kw_only=True)
class DeviceModel:
    """A device in numbers. None means no limit. Its behaviour follows from these and a seed."""

    name: str
    latency: Latency
    iops: float | None = None
    """I/Os a second. An I/O of more than `io_bytes_max` counts as several."""
    bytes_per_s: float | None = None
    """Bytes a second; an I/O's bytes also take this long to arrive."""
    io_bytes_max: int = 256 * 1024
    """The most bytes that count as one I/O."""
    queue_depth: int | None = None
    """I/Os in service at the same time; the others wait in order."""
    stalls: Stalls | None = None
    failure_rate: float = 0.0
    """How likely each I/O fails, from 0 to 1."""

    def __post_init__(self) -> None:
        if not hasattr(self.latency, "mean_us"):
            refuse("latency", self.latency, "a distribution, such as walkit.models.ConstantLatency(us=700)")
        for option in ("iops", "bytes_per_s"):
            check_number(getattr(self, option), option, above=True, or_none=True)
        for option in ("io_bytes_max", "queue_depth"):
            check_whole(getattr(self, option), option, or_none=True)
        check_number(self.failure_rate, "failure_rate", 0, 1)

    def with_latency(self, latency: Latency, *, stalls: Stalls | None = None) -> DeviceModel:
        """Return the same device with another latency, and with these stalls or none."""
        return replace(self, latency=latency, stalls=stalls)

    def writes_per_s(self, size_bytes: int) -> float:
        """Return the most I/Os of this size that the buckets and the queue let through in a second."""
        limits = [math.inf]
        if self.iops is not None:
            limits.append(self.iops / self.ios(size_bytes))
        if self.bytes_per_s is not None:
            limits.append(self.bytes_per_s / size_bytes)
        if self.queue_depth is not None:
            limits.append(self.queue_depth * 1e6 / self.service_us(size_bytes))
        return min(limits)

    def service_us(self, size_bytes: int) -> float:
        """Return the mean time in microseconds that an I/O of this size takes once it has started, stalls left out."""
        transfer = 0.0 if self.bytes_per_s is None else size_bytes * 1e6 / self.bytes_per_s
        return self.latency.mean_us + transfer

    def ios(self, size_bytes: int) -> int:
        """Return how many I/Os a write of this size counts as."""
        return max(1, -(-size_bytes // self.io_bytes_max))

    def _repr_html_(self) -> str:
        latency = f"{shown(self.latency)}, mean {self.latency.mean_us:,.6g} µs"
        return options(f"Device {self.name}", self, {"latency": latency})


class Service(NamedTuple):
    """The times of one I/O, in nanoseconds of the caller's clock."""

    begins_ns: int
    done_ns: int
    failed: bool


@dataclass
class Device:
    """A model at work: its buckets, its queue and its random numbers. Not thread-safe.

    The same calls with the same seed give the same services.
    """

    model: DeviceModel
    seed: int = 0
    _random: Random = field(init=False, repr=False)
    _next_io_ns: int = field(default=0, init=False, repr=False)
    _next_byte_ns: int = field(default=0, init=False, repr=False)
    _stall_begins_ns: int = field(default=-1, init=False, repr=False)
    _stall_ends_ns: int = field(default=-1, init=False, repr=False)
    _busy_until_ns: list[int] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        # Latencies and stalls have numbers of their own, so that stalls do not change the latencies around them.
        self._random = Random(self.seed)
        self._stall_random = Random(self.seed + 1)
        latency = self.model.latency
        self._constant_ns = latency.draw_ns(self._random) if isinstance(latency, ConstantLatency) else None
        self._costs: dict[int, tuple[int, int]] = {}

    def submit(self, now_ns: int, size_bytes: int) -> Service:
        """Give the device one I/O at `now_ns`, which never goes back; return when it begins and when it is done."""
        model = self.model
        io_ns, transfer_ns = self._costs.get(size_bytes) or self._cost_of(size_bytes)
        begins = max(now_ns, self._next_io_ns, self._next_byte_ns)
        depth = model.queue_depth
        if depth is not None and len(self._busy_until_ns) >= depth:
            begins = max(begins, heappop(self._busy_until_ns))
        if model.stalls is not None:
            begins = self._after_stall(begins, model.stalls)
        self._next_io_ns = begins + io_ns
        self._next_byte_ns = begins + transfer_ns
        latency_ns = self._constant_ns
        if latency_ns is None:
            latency_ns = model.latency.draw_ns(self._random)
        done = begins + transfer_ns + latency_ns
        if begins <= self._stall_begins_ns < done:
            done += self._stall_ends_ns - self._stall_begins_ns
        if depth is not None:
            heappush(self._busy_until_ns, done)
        failed = model.failure_rate > 0 and self._random.random() < model.failure_rate
        return Service(begins, done, failed)

    def _cost_of(self, size_bytes: int) -> tuple[int, int]:
        """Return the share that an I/O of this size takes from the buckets, in nanoseconds of I/Os and bytes; kept."""
        model = self.model
        io_ns = transfer_ns = 0
        if model.iops is not None:
            io_ns = round(model.ios(size_bytes) * NS_PER_S / model.iops)
        if model.bytes_per_s is not None:
            transfer_ns = round(size_bytes * NS_PER_S / model.bytes_per_s)
        if len(self._costs) >= COSTS_MAX:
            self._costs.clear()
        self._costs[size_bytes] = (io_ns, transfer_ns)
        return io_ns, transfer_ns

    def _after_stall(self, ready_ns: int, stalls: Stalls) -> int:
        """Return when an I/O may begin that is ready at `ready_ns`; makes the stalls up to there."""
        while self._stall_ends_ns <= ready_ns:
            gap_ns = round(self._stall_random.expovariate(1 / stalls.every_s) * NS_PER_S)
            self._stall_begins_ns = max(self._stall_ends_ns, 0) + gap_ns
            self._stall_ends_ns = self._stall_begins_ns + round(stalls.duration_ms * 1_000_000)
        return self._stall_ends_ns if ready_ns >= self._stall_begins_ns else ready_ns


DISKS: dict[str, DeviceModel] = {
    model.name: model
    for model in (
        DeviceModel(
            name="essd-pl1-20g",
            iops=2_800,
            bytes_per_s=120 * MIB,
            latency=ConstantLatency(200),
        ),
        DeviceModel(name="gp3", iops=3_000, bytes_per_s=125e6, latency=ConstantLatency(700)),
        DeviceModel(
            name="local-nvme", iops=400_000, bytes_per_s=2e9, queue_depth=64, latency=ConstantLatency(25)
        ),
    )
}
"""Disks by name. Limits as sold: the volume of AutoMQ #1718 (2,800 IOPS, 120 MiB/s), and Amazon's gp3 without extras.

Latencies are this project's choice: sellers promise none, or "under a millisecond" and the like.
"""
WHOLE_OBJECT = 5 << 30
"""The largest object of a single PUT, which is one request whatever its size."""
OBJECT_STORES: dict[str, DeviceModel] = {
    model.name: model
    for model in (
        DeviceModel(
            name="s3-standard",
            iops=3_500,
            bytes_per_s=1.25e9,
            io_bytes_max=WHOLE_OBJECT,
            latency=MeasuredLatency((100_000, 200_000)),
        ),
        DeviceModel(
            name="s3-express",
            iops=100_000,
            bytes_per_s=1.25e9,
            io_bytes_max=WHOLE_OBJECT,
            latency=MeasuredLatency((1_000, 10_000)),
        ),
    )
}
"""Object stores by name, as Amazon's user guide describes them; between the published bounds latencies are even.

s3-standard: small objects in "roughly 100-200 milliseconds", 3,500 PUTs per second for a prefix
(docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html). s3-express: "single-digit millisecond"
reads and writes, 100,000 writes per second for a bucket (.../userguide/s3-express-performance.html). The even
distribution and a link of 10 Gbit/s are this project's choice.
"""
PRESETS = {**DISKS, **OBJECT_STORES}
"""Devices by name: disks and object stores."""


def device_model(device: str | DeviceModel) -> DeviceModel:
    """Return the model itself, or the one of this name; OptionsError for an unknown one.

    Presets come first. Packages offer others as entry points of the group `walkit.devices`: a DeviceModel, or a
    callable that returns one, which is loaded now.
    """
    if isinstance(device, DeviceModel):
        return device
    if device in PRESETS:
        return PRESETS[device]
    offered = plugins.load("walkit.devices", device, "device", PRESETS)
    made = offered if isinstance(offered, DeviceModel) or not callable(offered) else offered()
    if not isinstance(made, DeviceModel):
        refuse("device", device, f"it makes {made!r}, not a DeviceModel")
    return made
