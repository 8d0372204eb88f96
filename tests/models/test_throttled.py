"""ThrottledStorage: the shared suite through it, and the use of the device's time."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import walkit
from tests.storage import test_memory
from walkit.models import ConstantLatency, CrashingStorage, DeviceModel, ThrottledStorage
from walkit.storage import Storage
from walkit.testing.storage_hooks import Refused

FAST = DeviceModel(name="fast", latency=ConstantLatency(1))
SLOW = DeviceModel(name="slow", latency=ConstantLatency(500), iops=1_000)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_ns = 0

    def read(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


class TestThrottledOverMemory(test_memory.TestMemoryStorage):
    """The suite through a device that holds nothing up."""

    def make_storage(self, place: Path) -> Storage:
        return ThrottledStorage(CrashingStorage(), FAST)

    def bare(self, storage: Storage) -> Storage:
        assert isinstance(storage, ThrottledStorage)
        return storage.inner


def throttled(model: DeviceModel = SLOW) -> tuple[ThrottledStorage, Clock]:
    """A storage on a clock of its own."""
    clock = Clock()
    storage = ThrottledStorage(CrashingStorage(), model, clock_ns=clock.read, sleep=clock.sleep)
    storage.create()
    return storage, clock


def test_only_what_reaches_stable_storage_takes_time() -> None:
    """On a clock that sleeping alone moves: plain writes and reads are free, synced writes and syncs are I/Os."""
    storage, clock = throttled()
    file = storage.open("file", "create")
    file.write(0, [b"abc"])
    assert file.read(0, 3) == b"abc"
    assert clock.now_ns == 0
    file.sync()
    assert clock.now_ns == 500_000
    file.write(3, [b"d"], sync=True)
    assert clock.now_ns == 1_500_000  # the bucket holds the second I/O back until 1 ms
    assert storage.busy_ns == 1_500_000


def test_a_sync_pays_for_the_bytes_before_it() -> None:
    """With a bandwidth of 1 MB/s, 100 kB written in ten parts cost 0.1 s at the sync, and nothing at the next one."""
    storage, clock = throttled(DeviceModel(name="d", latency=ConstantLatency(0), bytes_per_s=1e6))
    file = storage.open("file", "create")
    for n in range(10):
        file.write(n * 10_000, [b"x" * 10_000])
    file.sync()
    assert clock.now_ns == 100_000_000
    file.sync()
    assert clock.now_ns == 100_000_000


def test_a_failing_device_writes_nothing() -> None:
    """A device that always fails: StorageError with EIO, and the bytes are not there."""
    storage, _ = throttled(DeviceModel(name="broken", latency=ConstantLatency(1), failure_rate=1))
    file = storage.open("file", "create")
    with Refused(errno.EIO):
        file.write(0, [b"abc"], sync=True)
    assert file.read(0, 3) == b""
    with Refused(errno.EIO):
        file.sync()


def test_a_log_on_a_throttled_storage_keeps_its_word() -> None:
    """A log over it takes records, tells the device in its facts, and opens again."""
    storage = ThrottledStorage(CrashingStorage(), "local-nvme")
    with walkit.open(storage=storage) as log:
        for n in range(20):
            log.append(b"%d" % n)
    assert storage.facts()["modelled_device"] == "local-nvme"
    with walkit.open(storage=storage) as log:
        assert [record.value for record in log.read()] == [b"%d" % n for n in range(20)]


def test_an_unknown_device_is_refused() -> None:
    """An unknown preset is an OptionsError that names those there are."""
    with pytest.raises(walkit.OptionsError, match="essd-pl1-20g"):
        ThrottledStorage(CrashingStorage(), "floppy")
