"""RemoteStorage: the shared suite through it, and the cost of a request, on a clock that sleeping alone moves."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import walkit
from tests.models.test_throttled import Clock
from tests.storage import test_memory
from walkit.models import REMOTE, ConstantLatency, CrashingStorage, DeviceModel, FaultyStorage, RemoteStorage
from walkit.models.device import Device
from walkit.storage import Storage

NEAR = DeviceModel(name="near", latency=ConstantLatency(1))
FAR = DeviceModel(name="far", latency=ConstantLatency(10_000), bytes_per_s=1e6, queue_depth=2)
MS = 1_000_000


class TestRemoteOverMemory(test_memory.TestMemoryStorage):
    """The suite through a storage that is nearly here."""

    def make_storage(self, place: Path) -> Storage:
        return RemoteStorage(CrashingStorage(), NEAR)

    def bare(self, storage: Storage) -> Storage:
        assert isinstance(storage, RemoteStorage)
        return storage.inner


def remote(model: DeviceModel = FAR, seed: int = 0) -> tuple[RemoteStorage, Clock]:
    """Return a storage on a clock of its own."""
    clock = Clock()
    inner = CrashingStorage()
    inner.create()
    return RemoteStorage(inner, model, seed=seed, clock_ns=clock.read, sleep=clock.sleep), clock


def test_each_request_waits_for_its_first_byte_and_its_bytes() -> None:
    """Write, sync and read 1,000 bytes at 1 MB/s and 10 ms: 10 ms to open, 11 to sync and to read."""
    storage, clock = remote()
    steps = []
    file = storage.open("file", "create")
    steps.append(clock.now_ns)
    file.write(0, [bytes(600), bytes(400)])
    steps.append(clock.now_ns)
    file.sync()
    steps.append(clock.now_ns)
    assert file.read(0, 1 << 20) == bytes(1000)
    steps.append(clock.now_ns)
    assert steps == [10 * MS, 10 * MS, 21 * MS, 32 * MS]
    assert (storage.requests, storage.bytes_written, storage.bytes_read) == (3, 1000, 1000)


def test_one_large_read_is_cheaper_than_many_small_ones() -> None:
    """Read 64 KiB at once and in 16 parts: the parts pay the first byte sixteen times."""
    took = []
    for parts in (1, 16):
        storage, clock = remote()
        file = storage.open("file", "create")
        file.write(0, [bytes(1 << 16)])
        began, size = clock.now_ns, (1 << 16) // parts
        for part in range(parts):
            file.read(part * size, size)
        took.append(clock.now_ns - began)
    assert took[1] - took[0] == 150 * MS


def test_requests_beyond_what_is_served_at_once_wait_in_order() -> None:
    """Begin three requests at the same moment where two are served: the third begins when the first is done."""
    device = Device(FAR)
    assert [device.submit(0, 0).done_ns for _ in range(3)] == [10 * MS, 10 * MS, 20 * MS]


def test_the_first_byte_is_within_bounds_and_follows_the_seed() -> None:
    """Draw many requests of the default model: 10 to 30 ms each, equal for equal seeds and others for other seeds."""

    def times(seed: int) -> list[int]:
        storage, clock = remote(replace(REMOTE, bytes_per_s=None), seed)
        taken = []
        for _ in range(200):
            began = clock.now_ns
            storage.names()
            taken.append(clock.now_ns - began)
        return taken

    first = times(1)
    assert first == times(1) != times(2)
    assert 10 * MS <= min(first) < 12 * MS
    assert 28 * MS < max(first) <= 30 * MS + 1000


def test_a_request_that_fails_takes_its_time_and_does_nothing() -> None:
    """Let every request fail: a StorageError after 10 ms, and the file is not made."""
    storage, clock = remote(replace(FAR, failure_rate=1.0))
    with pytest.raises(walkit.StorageError) as caught:
        storage.open("file", "create")
    assert (caught.value.errno, clock.now_ns, storage.failures) == (errno.EIO, 10 * MS, 1)
    assert storage.inner.names() == []


def test_a_sync_that_fails_leaves_its_bytes_to_the_next() -> None:
    """Write 1,000 bytes and fail a sync, then sync: the second has them to send, 1 ms of the link after its 10 ms."""
    clock, faulty = Clock(), FaultyStorage(CrashingStorage())
    faulty.create()
    storage = RemoteStorage(faulty, FAR, clock_ns=clock.read, sleep=clock.sleep)
    file = storage.open("file", "create")
    file.write(0, [bytes(1000)])
    faulty.fail("sync")
    with pytest.raises(walkit.StorageError):
        file.sync()
    began_ns = clock.now_ns
    file.sync()
    assert clock.now_ns - began_ns == 11 * MS and storage.bytes_written == 1000


def test_requests_of_several_threads_wait_side_by_side() -> None:
    """Read on two threads in real time: both are asleep at the same moment, which a barrier in the sleep shows."""
    barrier = threading.Barrier(2, timeout=30)
    inner = CrashingStorage()
    inner.create()
    inner.open("file", "create").close()
    storage = RemoteStorage(inner, replace(FAR, queue_depth=None), sleep=lambda _: barrier.wait())
    read: list[list[str]] = []
    threads = [threading.Thread(target=lambda: read.append(storage.names())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [["file"], ["file"]]


def test_a_log_is_read_through_it() -> None:
    """Write a log near, read it from afar: the same records, at some requests, and the time is the model's."""
    inner = CrashingStorage()
    with walkit.open(storage=inner) as log:
        log.append_many([b"%d" % n for n in range(1000)])
    clock = Clock()
    storage = RemoteStorage(inner, seed=3, clock_ns=clock.read, sleep=clock.sleep)
    with walkit.open(storage=storage, mode="r") as reader:
        assert [record.value for record in reader.read()] == [b"%d" % n for n in range(1000)]
    assert storage.requests > 1
    assert clock.now_ns >= storage.requests * 10 * MS
    assert storage.facts()["modelled_device"] == "remote-object"
