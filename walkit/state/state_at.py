"""The state as it was at an LSN: a keyed table, or columns without an object for each key.

It comes from the nearest snapshot and a replay, or from the log alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from walkit._internal.arguments import as_lsn, check_whole, refuse
from walkit._internal.report import report_html
from walkit._internal.text import counted
from walkit.errors import FormatVersionError, GapError, HistoryTrimmedError, SnapshotError
from walkit.read.read_api import ReadApi
from walkit.read.view import View
from walkit.record import Link, LinkBytes
from walkit.state.latest_reducer import FinalState
from walkit.state.load_snapshot import base_at, base_of_all
from walkit.state.reconcile import DELETE
from walkit.state.replay import replay
from walkit.state.snapshot import identity_at, read_snapshot, snapshot_batches, snapshot_lsns
from walkit.state.table import KeyedTable
from walkit.storage.interface import ReadableFiles

StateProgress = Callable[[int, int], None]
"""Called after each batch with (LSNs passed, LSNs to pass). Its error ends the work."""


class ExactState(NamedTuple):
    """A state of a log, and the snapshot at its base."""

    records: FinalState
    """The newest record of each key; a snapshot's are all puts, those of the log deletes, too."""
    base_lsn: int
    """LSN of the snapshot; 0 if the state comes from the log alone."""


def exact_state(log: ReadApi, at_lsn: int | None = None, progress: StateProgress | None = None) -> ExactState:
    """Return the state of a log after `at_lsn` (default: its newest record; 0: before the first).

    Made of the records from the log's first one on if they are all there, else of the newest usable snapshot at or
    below `at_lsn` and the records after it. HistoryTrimmedError if neither gives it exactly; OptionsError for an
    LSN that the log has not reached; the newest snapshot's own error if every one that would do is damaged.
    """
    while True:
        view, newest = log._now()
        try:
            return _state_of(view, _wanted(view, newest, at_lsn), progress)
        except (GapError, SnapshotError):
            # A trim, a compaction or a checkpoint has removed a file of the view. The rest has the state, or not.
            if log._now()[0].manifest.generation == view.manifest.generation:
                raise


def _state_of(view: View, wanted: int, progress: StateProgress | None) -> ExactState:
    state = FinalState()
    if wanted == 0:
        return ExactState(state, 0)
    base = base_at(view, wanted)
    if base:
        for batch in snapshot_batches(view.storage, base, identity_at(view.manifest, base)):
            state.add(batch)
    if base < wanted:
        for batch in view.batches(base + 1, wanted):
            state.add(batch)
            if progress is not None and len(batch):
                progress(batch.column("lsn")[-1].as_py() - base, wanted - base)
    return ExactState(state, base)


DELETIONS_SCHEMA: pa.Schema = pa.schema([("key", pa.large_binary()), ("lsn", pa.int64())])


def deletions(log: ReadApi, keys: pa.Array, up_to: int) -> pa.Table:
    """Return key and LSN of the newest delete of each of `keys` that the log has up to `up_to`, in no order.

    It is looked for from the log's first record on, or from the oldest snapshot from which the log continues: as far
    back as the log holds states. Dropped records (trimming, compaction) are not found, without an error.
    """
    while True:
        view, newest = log._now()
        try:
            return _deletions_in(view, base_of_all(view, newest), up_to, keys)
        except (HistoryTrimmedError, SnapshotError, FormatVersionError):
            return DELETIONS_SCHEMA.empty_table()
        except GapError:
            if log._now()[0].manifest.generation == view.manifest.generation:
                raise


def _deletions_in(view: View, base: int, up_to: int, keys: pa.Array) -> pa.Table:
    found = [DELETIONS_SCHEMA.empty_table()]
    for batch in view.batches(base + 1, up_to) if base < up_to else ():
        deletes = pa.Table.from_batches([batch]).filter(pc.equal(batch.column("kind"), DELETE))
        part = deletes.select(DELETIONS_SCHEMA.names).cast(DELETIONS_SCHEMA)
        found.append(part.filter(pc.is_in(part["key"], value_set=keys)))
    newest = pa.concat_tables(found).group_by("key").aggregate([("lsn", "max")])
    return newest.select(["key", "lsn_max"]).rename_columns(DELETIONS_SCHEMA.names)


def _wanted(view: View, newest: int, at_lsn: int | None) -> int:
    if at_lsn is None:
        return newest
    check_whole(at_lsn, "at_lsn", 0)
    if at_lsn > newest:
        refuse("at_lsn", at_lsn, f"the log at {view.storage.location} ends at {newest:,}", newest)
    return at_lsn


def resolved_value(log: ReadApi | None, table: KeyedTable, key: bytes, value: bytes | None) -> bytes | None:
    """Return the value of a key; from its payload log, if it is a link. PayloadGoneError, PayloadUnreachableError."""
    if type(value) is not LinkBytes or log is None:
        return value
    return log.payloads.value(table.lsn_of(key) or 0, Link.decode(value))


class PastState(Mapping[bytes, bytes | None]):
    """The live keys and values at one LSN. Read-only, in memory, in order of keys.

    A value in a payload log is fetched when it is used: PayloadGoneError if the log has freed it by then, since the
    newest state does not have it. A claim on its record keeps it.
    """

    def __init__(self, lsn: int, table: KeyedTable, snapshot_lsn: int, log: ReadApi | None = None) -> None:
        """`log` is asked for values that are kept in payload logs, as long as it is open."""
        self._log = log
        self.lsn = lsn
        """The state is that of the log with everything up to here."""
        self.snapshot_lsn = snapshot_lsn
        """LSN of the snapshot that it was restored from; 0 if it was the log alone."""
        self._table = table

    def __getitem__(self, key: bytes) -> bytes | None:
        return resolved_value(self._log, self._table, key, self._table[key])

    def __contains__(self, key: object) -> bool:
        return key in self._table

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the live keys, in order."""
        return iter(self._table)

    def lsn_of(self, key: bytes) -> int | None:
        """Return the LSN of the record that set a live key; None if it was not live."""
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


def state_at(log: ReadApi, storage: ReadableFiles, lsn: int, newest_lsn: int) -> PastState:
    """Return the keyed state with everything up to `lsn`, and nothing after it.

    OptionsError for an LSN without a record yet; HistoryTrimmedError if the state is no longer known; CorruptionError
    if damage is reached.
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
            return PastState(lsn, table, base, log)
        except (SnapshotError, FormatVersionError):
            continue
        except (HistoryTrimmedError, GapError):
            refused = HistoryTrimmedError(lsn, exact_from(log, storage))
    assert refused is not None, "the log alone is tried last, and ends in a state or in this"
    raise refused


def exact_from(log: ReadApi, storage: ReadableFiles) -> int:
    """Return the LSN from which on every state is known: from the whole log, or from a snapshot that it reaches."""
    manifest = log._now()[0].manifest
    if not manifest.low_watermark:
        return manifest.exact_from_lsn
    reached = max(manifest.low_watermark, manifest.tombstones_from_lsn - 1)
    base = next((lsn for lsn in snapshot_lsns(storage) if lsn >= reached), None)
    if base is None:
        return manifest.exact_from_lsn
    return base if base + 1 >= manifest.exact_from_lsn else manifest.exact_from_lsn
