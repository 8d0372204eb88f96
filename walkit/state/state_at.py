"""Time travel: the state as it was at an LSN, from the nearest snapshot and a replay, or from the log alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from walkit._internal.arguments import as_lsn, refuse
from walkit._internal.text import counted
from walkit.errors import FormatVersionError, GapError, HistoryTrimmedError, SnapshotError
from walkit.read.read_api import ReadApi
from walkit.recovery.report import report_html
from walkit.state.replay import replay
from walkit.state.snapshot import identity_at, read_snapshot, snapshot_lsns
from walkit.state.table import KeyedTable
from walkit.storage.interface import Storage


class PastState(Mapping[bytes, bytes | None]):
    """The live keys and values at one LSN. Read-only, in memory, in order of keys; no longer bound to the log."""

    def __init__(self, lsn: int, table: KeyedTable, snapshot_lsn: int) -> None:
        self.lsn = lsn
        """The state is that of the log with everything up to here."""
        self.snapshot_lsn = snapshot_lsn
        """LSN of the snapshot that it was restored from; 0 where it was the log alone."""
        self._table = table

    def __getitem__(self, key: bytes) -> bytes | None:
        return self._table[key]

    def __contains__(self, key: object) -> bool:
        return key in self._table

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the live keys, in order."""
        return iter(self._table)

    def lsn_of(self, key: bytes) -> int | None:
        """Return the LSN of the record that set a live key; None where it was not live."""
        return self._table.lsn_of(key)

    def checksum(self) -> int:
        """Return 64 bits that are equal for equal keys and values, as of `Store.checksum`."""
        return self._table.checksum()

    def __repr__(self) -> str:
        return f"<PastState of {counted(len(self), 'key')} at LSN {self.lsn}>"

    def _repr_html_(self) -> str:
        return report_html(
            f"State at LSN {self.lsn:,}",
            [
                ("live keys", f"{len(self):,}"),
                ("from the snapshot at LSN", f"{self.snapshot_lsn:,}" if self.snapshot_lsn else "none"),
            ],
        )


def state_at(log: ReadApi, storage: Storage, lsn: int, newest_lsn: int) -> PastState:
    """Return the keyed state with everything up to `lsn`, and nothing after it.

    OptionsError for an LSN that is not a record's yet; HistoryTrimmedError where the state is no longer known;
    CorruptionError where damage is reached.
    """
    lsn = as_lsn(lsn)
    if not 0 <= lsn <= newest_lsn:
        refuse("lsn", lsn, f"a whole number up to the newest record's, {newest_lsn:,}", newest_lsn)
    if lsn == 0:
        return PastState(0, KeyedTable(), 0)
    refused: HistoryTrimmedError | None = None
    for base in (*(s for s in reversed(snapshot_lsns(storage)) if s <= lsn), 0):
        table = KeyedTable()
        try:
            if base:
                read_snapshot(storage, base, table, identity=identity_at(log._now()[0].manifest, base))
            if base < lsn:
                replay(log, table, last_lsn=lsn)
            return PastState(lsn, table, base)
        except (SnapshotError, FormatVersionError):
            continue
        except (HistoryTrimmedError, GapError):
            refused = HistoryTrimmedError(lsn, exact_from(log, storage))
    assert refused is not None, "the log alone is tried last, and ends in a state or in this"
    raise refused


def exact_from(log: ReadApi, storage: Storage) -> int:
    """Return the LSN from which on every state is known: from the whole log, or from a snapshot that it reaches."""
    manifest = log._now()[0].manifest
    if not manifest.low_watermark:
        return manifest.exact_from_lsn
    reached = max(manifest.low_watermark, manifest.tombstones_from_lsn - 1)
    base = next((lsn for lsn in snapshot_lsns(storage) if lsn >= reached), None)
    if base is None:
        return manifest.exact_from_lsn
    return base if base + 1 >= manifest.exact_from_lsn else manifest.exact_from_lsn
