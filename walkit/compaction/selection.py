"""Which records are kept: the reconciliation rule, asked of every record of the segments that are rewritten.

A record is superseded by a newer one of its key. A tombstone that is the newest of its key goes once nothing can be
brought on from before it: every snapshot is newer, and no older record of its key is left in the log. Records without
a key are events, and stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from walkit.state.reconcile import DELETE, reconcile_arrow


class KeyMap:
    """What is known of each key: its newest record in the segments to rewrite, and its first one after them.

    Memory grows with the number of keys: about as the keyed table of a store does, without its values.
    """

    def __init__(self) -> None:
        self.newest: dict[bytes, int] = {}
        self.later: dict[bytes, int] = {}
        self.tombstones: dict[bytes, int] = {}
        """The keys whose newest record in the segments is a tombstone, and its LSN."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in records of the segments to rewrite, in LSN order."""
        winners = reconcile_arrow(batch)
        keys, lsns = winners.column("key").to_pylist(), winners.column("lsn").to_pylist()
        self.newest.update(zip(keys, lsns, strict=True))
        deleted = pc.equal(winners.column("kind"), DELETE)
        if self.tombstones:
            for key in keys:
                self.tombstones.pop(key, None)
        gone = winners.filter(deleted)
        self.tombstones.update(
            zip(gone.column("key").to_pylist(), gone.column("lsn").to_pylist(), strict=True)
        )

    def add_later(self, batch: pa.RecordBatch) -> None:
        """Add records after the segments to rewrite, in LSN order."""
        keys, lsns = batch.column("key").to_pylist(), batch.column("lsn").to_pylist()
        keys.reverse()
        lsns.reverse()
        for key, lsn in dict(zip(keys, lsns, strict=True)).items():
            if key in self.newest and key not in self.later:
                self.later[key] = lsn

    def is_superseded(self, key: bytes, lsn: int) -> bool:
        """Say whether a newer record of its key is known."""
        return lsn != self.newest[key] or key in self.later

    def kept_lsns(self, horizon_lsn: int) -> list[int]:
        """Return the LSNs of the keyed records that are kept, in order, if all that can go goes."""
        gone = self.later.keys() | {k for k, lsn in self.tombstones.items() if lsn <= horizon_lsn}
        return sorted(lsn for key, lsn in self.newest.items() if key not in gone)


@dataclass(slots=True)
class Selection:
    """Selects the records of one group, and notes what that does to history."""

    keys: KeyMap
    low_watermark: int
    horizon_lsn: int
    """Tombstones up to here may go."""
    blocked: frozenset[bytes] = frozenset()
    """Keys of which a superseded record is left in the log: their tombstones stay."""
    exact_from_lsn: int = 1
    """From here on states can still be restored when what was dropped is gone."""
    tombstones_from_lsn: int = 1
    """Below, a tombstone has been dropped."""
    tombstones: int = 0
    superseded: set[bytes] = field(default_factory=set)
    """Keys of which a record was dropped that a newer one supersedes."""

    def keeps(self, key: bytes | None, lsn: int, kind: int) -> bool:
        """Say whether a record is kept."""
        if lsn <= self.low_watermark:
            return False
        if key is None:
            return True
        if self.keys.is_superseded(key, lsn):
            newest, later = self.keys.newest[key], self.keys.later.get(key)
            self.exact_from_lsn = max(self.exact_from_lsn, newest if later is None else later)
            self.superseded.add(key)
            return False
        if kind == DELETE and lsn <= self.horizon_lsn and key not in self.blocked:
            self.tombstones_from_lsn = max(self.tombstones_from_lsn, lsn + 1)
            self.tombstones += 1
            return False
        return True
