"""Shared by the tests of the Store: small stores in memory, threads, files moved between storages."""

from __future__ import annotations

import threading
from collections.abc import Callable

import walkit
from walkit.errors import HistoryTrimmedError
from walkit.models import CrashingStorage, FaultyStorage
from walkit.store import Store

SMALL = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=0)


def memory_store(storage: CrashingStorage | FaultyStorage | None = None) -> Store:
    """A store in memory, with small segments."""
    return Store.open(storage=storage or CrashingStorage(), options=SMALL)


def run_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(number)` in threads, and raise what any of them raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def copy(source: CrashingStorage, target: CrashingStorage, name: str, change: bytes | None = None) -> None:
    """Put a file of one storage into another."""
    file = source.open(name, "read")
    data = file.read(0, file.size()) if change is None else change
    if name in target.names():
        target.remove(name)
    target.open(name, "create").write(0, [data])


def filled(storage: CrashingStorage, count: int, snapshots: tuple[int, ...] = ()) -> None:
    """Put that many keys, with snapshots at some LSNs, and close."""
    with memory_store(storage) as store:
        for i in range(1, count + 1):
            store.put(b"%02d" % i, b"v%d" % i)
            if i in snapshots:
                store.snapshot()


def state_or_border(store: Store, lsn: int) -> dict[bytes, bytes | None] | int:
    """The state at an LSN, or the first known state of the refusal."""
    try:
        return dict(store.state_at(lsn))
    except HistoryTrimmedError as error:
        return error.exact_from_lsn
