"""The newest records of each key, in memory of a fixed bound: what a reader has seen lately is not read again.

AutoMQ's SnapshotReadCache is the source of the idea: what was replayed is kept, and where something is missing between
two ranges the older one goes, so that no answer has a hole.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from walkit._internal.locks import once
from walkit.record import Record

RECORD_BYTES = 256
"""What a record takes beside its key and value, about: its tuple, its numbers, its places in two queues."""
KEY_BYTES = 800
"""What a key that has records here takes beside them, about: its queue, and its place in the table."""


@dataclass(slots=True)
class _Kept:
    """The records of one key, the oldest first: all that the log has from `from_lsn` on."""

    from_lsn: int
    records: deque[Record] = field(default_factory=deque)


class RecordCache:
    """Keeps the newest records that have a key, in at most `bytes_max` bytes. Safe from any thread.

    The oldest record goes first. Each key knows from which LSN on all its records are here, so an answer is whole or
    there is none. Records are put in the order of the log; one that does not continue drops all that is kept.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.RLock()
        self._by_key: dict[bytes, _Kept] = {}
        self._order: deque[bytes] = deque()
        """The key of each record, by LSN."""
        self._from_lsn, self._next_lsn = 1, 1
        """Of a key that has nothing here all records from `_from_lsn` on are known: there are none."""
        self._size_bytes = 0
        self.hits, self.misses = 0, 0

    @property
    def size_bytes(self) -> int:
        """Bytes that are kept now, about."""
        return self._size_bytes

    def begin(self, next_lsn: int) -> None:
        """Drop all; the next record that is put is this one."""
        with once(self._lock), self._lock:
            self._drop_locked(next_lsn)
            self._check()

    def put(self, first_lsn: int, records: Iterable[Record], last_lsn: int) -> None:
        """Keep these, which are all that the log has with these LSNs (inclusive); those without a key are not kept."""
        with once(self._lock), self._lock:
            if first_lsn != self._next_lsn:
                self._drop_locked(first_lsn)
            for record in records:
                if record.key is not None:
                    self._keep_locked(record.key, record)
            self._next_lsn = last_lsn + 1
            self._check()

    def records_of(self, key: bytes, first_lsn: int) -> list[Record] | None:
        """Return all records of a key from this LSN on, in order; None where not all of them are here, or none may."""
        with once(self._lock), self._lock:
            kept = self._by_key.get(key)
            if not self.bytes_max or first_lsn < (self._from_lsn if kept is None else kept.from_lsn):
                self.misses += 1
                return None
            self.hits += 1
            return [] if kept is None else [record for record in kept.records if record.lsn >= first_lsn]

    def _keep_locked(self, key: bytes, record: Record) -> None:
        kept = self._by_key.get(key)
        if kept is None:
            kept = self._by_key[key] = _Kept(self._from_lsn)
            self._size_bytes += KEY_BYTES
        kept.records.append(record)
        self._order.append(key)
        self._size_bytes += _size_of(record)
        while self._size_bytes > self.bytes_max:
            self._forget_locked()

    def _forget_locked(self) -> None:
        key = self._order.popleft()
        kept = self._by_key[key]
        oldest = kept.records.popleft()
        self._from_lsn = kept.from_lsn = oldest.lsn + 1
        self._size_bytes -= _size_of(oldest)
        if not kept.records:
            del self._by_key[key]
            self._size_bytes -= KEY_BYTES

    def _drop_locked(self, next_lsn: int) -> None:
        self._by_key.clear()
        self._order.clear()
        self._size_bytes, self._from_lsn, self._next_lsn = 0, next_lsn, next_lsn

    def _check(self) -> None:
        """Assert that what is kept is bounded, and none of it is unknown; in constant time, with the lock held."""
        assert 0 <= self._size_bytes <= self.bytes_max
        assert len(self._by_key) <= len(self._order) and self._from_lsn <= self._next_lsn
        assert bool(self._order) == bool(self._size_bytes)


def _size_of(record: Record) -> int:
    return RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
