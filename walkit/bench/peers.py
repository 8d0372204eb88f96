"""The peers of `walkit bench write --peers`: SQLite, LevelDB, RocksDB and LMDB, each made to sync.

All of them put one record a call under a key of eight bytes, which walkit's rows do without. Each is driven as its own
documentation has it for durable writes from many threads of one process.
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from walkit.bench.write_report import BenchRow
from walkit.errors import MissingExtraError
from walkit.measure import LatencyHistogram, ThreadRecorder
from walkit.measure.recorder import TickFunction
from walkit.workload.closedloop import drive_threads

LMDB_MAP_BYTES = 1 << 34
"""Address space, not disk: the file grows with its content."""


class Peer(Protocol):
    """A store that puts one record a call, durably on return unless it says otherwise. Any thread may call `put`."""

    durability: str

    def put(self, key: bytes, value: bytes) -> None:
        """Put one record."""

    def close(self) -> None:
        """Close the store."""


class Sqlite:
    """SQLite in WAL mode with synchronous=FULL: one connection, whose writers take turns, a transaction a record."""

    durability = "sync"

    def __init__(self, folder: str) -> None:
        self._db = sqlite3.connect(f"{folder}/peer.db", check_same_thread=False, isolation_level=None)
        (mode,) = self._db.execute("PRAGMA journal_mode=WAL").fetchone()
        assert mode == "wal"
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        self._turn = threading.Lock()

    def put(self, key: bytes, value: bytes) -> None:
        """See Peer."""
        with self._turn:
            self._db.execute("INSERT INTO records VALUES (?, ?)", (key, value))

    def close(self) -> None:
        """See Peer."""
        self._db.close()


class LevelDb:
    """LevelDB by plyvel: `put(sync=True)`; writers that wait are grouped by LevelDB itself."""

    def __init__(self, folder: str, *, sync: bool = True) -> None:
        plyvel = _import("plyvel")
        self.durability = "sync" if sync else "none"
        self._sync = sync
        self._db = plyvel.DB(f"{folder}/peer", create_if_missing=True)

    def put(self, key: bytes, value: bytes) -> None:
        """See Peer."""
        self._db.put(key, value, sync=self._sync)

    def close(self) -> None:
        """See Peer."""
        self._db.close()


class RocksDb:
    """RocksDB by rocksdict, in raw mode with synced writes."""

    durability = "sync"

    def __init__(self, folder: str) -> None:
        rocksdict = _import("rocksdict")
        self._db = rocksdict.Rdict(f"{folder}/peer", rocksdict.Options(raw_mode=True))
        options = rocksdict.WriteOptions()
        options.sync = True
        self._db.set_write_options(options)

    def put(self, key: bytes, value: bytes) -> None:
        """See Peer."""
        self._db[key] = value

    def close(self) -> None:
        """See Peer."""
        self._db.close()


class Lmdb:
    """LMDB with its default sync: one write transaction a record, one at a time."""

    durability = "sync"

    def __init__(self, folder: str) -> None:
        lmdb = _import("lmdb")
        self._db = lmdb.open(f"{folder}/peer", map_size=LMDB_MAP_BYTES)

    def put(self, key: bytes, value: bytes) -> None:
        """See Peer."""
        with self._db.begin(write=True) as transaction:
            transaction.put(key, value)

    def close(self) -> None:
        """See Peer."""
        self._db.close()


PEERS: dict[str, Callable[[str], Peer]] = {
    "sqlite": Sqlite,
    "leveldb": LevelDb,
    "rocksdb": RocksDb,
    "lmdb": Lmdb,
}
"""By the name their rows have. LevelDB without sync is beside them, for one caller, as a queue alone."""


def _import(package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(package)
    except ImportError as error:
        raise MissingExtraError("peers", package) from error


def require_peers() -> None:
    """Import every peer, so that a missing one raises before anything is measured."""
    for package in ("plyvel", "rocksdict", "lmdb"):
        _import(package)


def measure_peer(name: str, peer: Peer, callers: int, value: bytes, seconds: float) -> BenchRow:
    """`put` by threads, each waiting for its own before the next; the way walkit's `append` is measured.

    It takes `seconds` and a tenth more, and longer if the device is so slow that no record would be counted.
    """
    recorders = [ThreadRecorder() for _ in range(callers)]
    numbers = itertools.count(1)

    def loop(going: Collection[object], tick: TickFunction) -> None:
        put, now = peer.put, perf_counter_ns
        tick(now())
        while going:
            put(next(numbers).to_bytes(8, "big"), value)
            tick(now())

    def count() -> int:
        return sum(recorder.records for recorder in recorders)

    def begin() -> int:
        now = perf_counter_ns()
        before.append(count())  # a later count has ended after `now`
        return now

    before: list[int] = []
    start_ns, end_ns = drive_threads(
        loop, recorders, seconds, begin, perf_counter_ns, enough=lambda: count() > before[0]
    )
    began, ended, counts = np.concatenate([np.stack(r.samples()) for r in recorders], axis=1)
    inside = (ended > start_ns) & (ended <= end_ns)
    histogram = LatencyHistogram.from_samples((ended - began)[inside])
    row = BenchRow(
        way=name,
        callers=callers,
        records=int(counts[inside].sum()),
        seconds=(end_ns - start_ns) / 1e9,
        p50_us=histogram.percentile(50) / 1000,
        p99_us=histogram.percentile(99) / 1000,
        latency_of="a record",
    )
    return replace(row, durability=peer.durability)
