"""The load of `walkit bench recovery`, whose writer is killed.

The same operations for walkit and for its peers: puts of uniformly chosen keys, so many to a frame (a batch, a
transaction). The child says one line when all are written, and waits to be killed. Nothing was closed, flushed or
merged by then: peers get buffers that hold everything, so that they also reopen a log.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from walkit.bench.peers import _import
from walkit.config import LogOptions
from walkit.objects.entrance import open_log
from walkit.store import Store
from walkit.workload.role import LineReporter

Batch = tuple[list[bytes], list[bytes]]
"""Keys and values of one frame."""

LAST_KEY = b"the-last-put-key"
BLOCK_BYTES = 1 << 20
BUFFER_FACTOR = 4
"""A peer's buffer, in bytes of all keys and values: its overhead is not known here."""
BUFFER_BYTES_MIN = 64 << 20


@dataclass(frozen=True, kw_only=True)
class RecoveryLoad:
    """Puts of one writer. The last one has a distinct key, by which a check sees whether all are there."""

    operations: int
    keys: int
    record_bytes: int
    frame_records: int
    checkpoint_age: float = 1.0
    """Share of the operations after the checkpoint; 1 means no checkpoint."""
    seed: int = 0
    segment_bytes: int | None = None
    """Of walkit's segments; None: the default of LogOptions."""

    @property
    def last_value(self) -> bytes:
        """The value of the last key if nothing is missing."""
        return self._block()[: self.record_bytes]

    @property
    def buffer_bytes(self) -> int:
        """Room for everything in a peer's memory."""
        return max(BUFFER_FACTOR * self.operations * (self.record_bytes + len(LAST_KEY)), BUFFER_BYTES_MIN)

    def batches(self) -> Iterator[Batch]:
        """Yield the puts, batch by batch: the same for the same seed."""
        rng, block = np.random.default_rng(self.seed), self._block()
        for first in range(0, self.operations, self.frame_records):
            count = min(self.frame_records, self.operations - first)
            keys = [b"user%012d" % number for number in rng.integers(0, self.keys, count).tolist()]
            at = rng.integers(0, BLOCK_BYTES, count).tolist()
            values = [block[begin : begin + self.record_bytes] for begin in at]
            if first + count == self.operations:
                keys[-1], values[-1] = LAST_KEY, self.last_value
            yield keys, values

    def _block(self) -> bytes:
        return np.random.default_rng([self.seed, 1]).bytes(BLOCK_BYTES + self.record_bytes)


def fill_walkit(path: str, load: RecoveryLoad) -> Callable[[], object]:
    """Fill a log, or a Store if there is to be a checkpoint; return the open object."""
    options = LogOptions(durability="none")
    if load.segment_bytes is not None:
        options = LogOptions(durability="none", segment_bytes=load.segment_bytes)
    store = Store.open(path, options) if load.checkpoint_age < 1 else None
    log = open_log(path, "a", options) if store is None else store.log
    checkpoint_at = round(load.operations * (1 - load.checkpoint_age))
    done = 0
    for keys, values in load.batches():
        if load.frame_records == 1:
            log.append(values[0], key=keys[0])
        else:
            log.append_many(values, keys=keys)
        before, done = done, done + len(keys)
        if store is not None and before < checkpoint_at <= done:
            store.checkpoint()
    log.sync()
    log.wait_idle()  # full segments are sealed, so the same ones are open after each kill
    return log.close if store is None else store.close


def fill_leveldb(path: str, load: RecoveryLoad) -> Callable[[], object]:
    """Fill LevelDB: a write batch for each frame."""
    db = leveldb(path, load)
    for keys, values in load.batches():
        with db.write_batch() as batch:
            for key, value in zip(keys, values, strict=True):
                batch.put(key, value)
    return lambda: db


def fill_rocksdb(path: str, load: RecoveryLoad) -> Callable[[], object]:
    """Fill RocksDB: a write batch for each frame."""
    rocksdict, db = _import("rocksdict"), rocksdb(path, load)
    for keys, values in load.batches():
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in zip(keys, values, strict=True):
            batch.put(key, value)
        db.write(batch)
    return lambda: db


def fill_sqlite(path: str, load: RecoveryLoad) -> Callable[[], object]:
    """Fill SQLite: a transaction for each frame, and no checkpoint."""
    db = sqlite(path)
    db.execute("CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
    for keys, values in load.batches():
        db.execute("BEGIN")
        db.executemany("INSERT OR REPLACE INTO records VALUES (?, ?)", zip(keys, values, strict=True))
        db.execute("COMMIT")
    return lambda: db


def leveldb(path: str, load: RecoveryLoad) -> Any:
    """Open LevelDB with a write buffer for everything, of at most 1 GiB."""
    return _import("plyvel").DB(path, create_if_missing=True, write_buffer_size=load.buffer_bytes)


def rocksdb(path: str, load: RecoveryLoad) -> Any:
    """Open RocksDB with a write buffer for everything."""
    rocksdict = _import("rocksdict")
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(load.buffer_bytes)
    return rocksdict.Rdict(path, options)


def sqlite(path: str) -> sqlite3.Connection:
    """Open SQLite in WAL mode, whose log is not merged into the database by itself."""
    db = sqlite3.connect(path, isolation_level=None)
    (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
    assert mode == "wal"
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("PRAGMA wal_autocheckpoint=0")
    return db


FILLS: dict[str, Callable[[str, RecoveryLoad], Callable[[], object]]] = {
    "walkit": fill_walkit,
    "leveldb": fill_leveldb,
    "rocksdb": fill_rocksdb,
    "sqlite": fill_sqlite,
}


def fill(lines: LineReporter, store: str, path: str, load: dict[str, Any]) -> None:
    """Fill a store, report it, and wait for the kill: the role of the child."""
    lines.leash()
    still_open = FILLS[store](path, RecoveryLoad(**load))
    lines.write(done=load["operations"])
    threading.Event().wait()
    still_open()
