"""Counters by key: an example of a state machine for which every record counts, not the newest of its key alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from walkit._internal.text import counted
from walkit.record import Batch, Kind
from walkit.state.machine import check_follows

DELETE = int(Kind.DELETE)


class Counter:
    """Adds the values of each key: a value is a whole number as decimal text, an absent one counts as one.

    A tombstone takes the counter away; records without a key count for nothing. It does not take Arrow, because nothing
    of its work is done in columns. Replay of a compacted log gives the right counts only from `log.complete_from_lsn`
    on. Not thread-safe.
    """

    snapshot_format = "counter/1"

    def __init__(self) -> None:
        self.applied_lsn = 0
        self._counts: dict[bytes, int] = {}
        self._lsns: dict[bytes, int] = {}

    def apply(self, batch: Batch) -> None:
        """See `StateMachine.apply`. A value other than a number is a ValueError, and changes nothing."""
        if not len(batch):
            return
        check_follows(self.applied_lsn, batch.first_lsn)
        rows = [
            (lsn, key, None if kind == DELETE else 1 if value is None else number_of(value))
            for lsn, kind, key, value in batch.rows()
            if key is not None
        ]
        for lsn, key, number in rows:
            if number is None:
                self._counts.pop(key, None)
                self._lsns.pop(key, None)
            else:
                self._counts[key] = self._counts.get(key, 0) + number
                self._lsns[key] = lsn
        self.applied_lsn = batch.last_lsn

    def __getitem__(self, key: bytes) -> int:
        return self._counts.get(key, 0)

    def __len__(self) -> int:
        return len(self._counts)

    def items(self) -> list[tuple[bytes, int]]:
        """Return the counters in order of keys."""
        return sorted(self._counts.items())

    def snapshot(self) -> Iterator[Batch]:
        """See `StateMachine.snapshot`: a put of its count for each key."""
        items, lsns = self.items(), dict(self._lsns)
        if not items:
            return iter(())
        keys = [key for key, _ in items]
        return iter([Batch([lsns[k] for k in keys], int(Kind.PUT), keys, [b"%d" % n for _, n in items])])

    def restore(self, batches: Iterable[Batch], lsn: int) -> None:
        """See `StateMachine.restore`."""
        self._counts, self._lsns = {}, {}
        for batch in batches:
            for at, _, key, value in batch.rows():
                if key is None or value is None:
                    raise ValueError("a snapshot of counters holds a key and a number in every record")
                self._counts[key], self._lsns[key] = number_of(value), at
        self.applied_lsn = lsn

    def checksum(self) -> int:
        """Return a hash of keys and counts in order of keys."""
        digest = blake2b(digest_size=8)
        for key, number in self.items():
            digest.update(b"%d:%b=%d;" % (len(key), key, number))
        return int.from_bytes(digest.digest(), "little")

    def __repr__(self) -> str:
        return f"<Counter of {counted(len(self), 'key')} at LSN {self.applied_lsn}>"


def number_of(value: bytes) -> int:
    """Return the whole number in a value; ValueError without one."""
    digits = value[1:] if value[:1] == b"-" else value
    if not digits.isdigit():
        raise ValueError(f"{value!r} is not a whole number as decimal text")
    return int(value)
