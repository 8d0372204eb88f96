"""Calls with `progress=` take usable values, and refuse others by name before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.stores import memory_store
from walkit.bench import bench_order
from walkit.bench.matrix import bench_write
from walkit.bench.recovery import bench_recovery
from walkit.bench.replication import bench_replication
from walkit.bench.spark import bench_spark
from walkit.errors import OptionsError
from walkit.models import CrashingStorage
from walkit.state import KeyedTable
from walkit.store import Store
from walkit.workload import OpenLoop, Workload, drive, sweep

CALLED: dict[str, Callable[[Store, Path, Any], object]] = {
    "open": lambda _, path, given: walkit.open(path / "new", progress=given),
    "Store.open": lambda _, path, given: Store.open(path / "new", progress=given),
    "scan": lambda store, _, given: walkit.scan(store.log.parts.storage, progress=given),
    "verify": lambda store, _, given: walkit.verify(store.log.parts.storage, progress=given),
    "repair": lambda _, path, given: walkit.repair(path / "new", progress=given),
    "copy": lambda store, path, given: walkit.copy(store.log.parts.storage, path / "new", given),
    "enforce_retention": lambda store, _, given: store.log.enforce_retention(progress=given),
    "compact": lambda store, _, given: store.compact(progress=given),
    "replay": lambda store, _, given: walkit.replay(store.log, KeyedTable(), progress=given),
    "diff": lambda store, _, given: walkit.diff(store, store, progress=given),
    "bench_replication": lambda _, path, given: bench_replication(path=path, progress=given),
    "bench_spark": lambda _, path, given: bench_spark(path=str(path), progress=given),
}
SHOWN: dict[str, Callable[[Store, Path, Any], object]] = {
    "drive": lambda store, _, given: drive(store, Workload(operations=1), progress=given),
    "sweep": lambda store, _, given: sweep(
        lambda: store, Workload(arrival=OpenLoop(rate=1)), [1.0], progress=given
    ),
    "bench_write": lambda _, path, given: bench_write(writers=[1], tasks=[], path=str(path), progress=given),
    "bench_order": lambda _, path, given: bench_order(path=str(path), progress=given),
    "bench_recovery": lambda _, path, given: bench_recovery(path=path, progress=given),
}
WRONG: list[tuple[str, object]] = [(name, given) for name in CALLED for given in (5, True, "bar")]
WRONG += [(name, given) for name in SHOWN for given in (5, None, print)]


@pytest.mark.parametrize(("name", "given"), WRONG, ids=str)
def test_progress_that_cannot_be_called_is_refused_first(name: str, given: Any, tmp_path: Path) -> None:
    """Give a number, a text and the other kind of progress: OptionsError by name; no byte and no folder is made."""
    store = memory_store(CrashingStorage())
    with store, pytest.raises(OptionsError, match="progress=") as found:
        (CALLED | SHOWN)[name](store, tmp_path, given)
    assert (found.value.option, found.value.wanted) == ("progress", given)
    assert list(tmp_path.iterdir()) == [] and store.log.acked_lsn == 0
