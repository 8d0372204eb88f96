"""The Store: a log, and the keyed table that its records give.

Every change is a record of the log, acknowledged as the log's durability promises; the table follows what is
acknowledged, in LSN order, and is never ahead of it. A caller notified of a record, by a return, a ticket or a
callback, finds it in the table. Opening restores the newest good snapshot and replays the log from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import numpy as np

from walkit._internal.arguments import check_choice, check_kind, check_progress, refuse
from walkit._internal.locks import STATE, alone
from walkit._internal.report import Phase, report_html
from walkit._internal.text import counted
from walkit._main_thread import ending_early, run_uninterrupted
from walkit.commit.ports import LogPorts
from walkit.commit.ticket import Ticket
from walkit.compaction import CompactionProgress, CompactionReport, Compactor
from walkit.config import LogOptions, StoreOptions
from walkit.errors import LogClosedError, RecordTypeError
from walkit.events import EventCallback
from walkit.log.append import Transaction
from walkit.log.columns import Items, checked
from walkit.log.scratch import open_scratch
from walkit.log.validate import Values
from walkit.log.wal import WriteAheadLog
from walkit.metrics import StoreStatistics
from walkit.objects.entrance import writer_at
from walkit.read.inventory import LogInventory
from walkit.record import AppendResult
from walkit.recovery.report import RecoveryReport
from walkit.state.admission import Admission
from walkit.state.applier import Follower, FrameFeed
from walkit.state.checkpoint import Checkpointer, CheckpointReport, checkpointer_on
from walkit.state.diff import changes_of
from walkit.state.journal import Journal, admission_of, check_slots, start_journal
from walkit.state.load_snapshot import restore_newest
from walkit.state.mapping_api import MappingApi
from walkit.state.replay import replay
from walkit.state.snapshot import SnapshotInfo
from walkit.state.state_at import PastState, exact_from, state_at
from walkit.state.table import KeyedTable
from walkit.storage.address import AnyPlace

FRAMES_SUBMITTED_MAX = 64
"""Acknowledged frames that may wait to be applied before a caller of `submit` applies them."""

StoreProgress = Callable[[str, int, int], None]
"""Called while a store opens: ("scan", bytes done, bytes in all), then ("replay", LSNs done, LSNs in all)."""


class Store(MappingApi):
    """A durable dict of bytes to bytes. Made by `Store.open`; a context manager. Safe from any thread.

    `put` and `delete` return when the change is acknowledged (by default: on stable storage). Reading sees every change
    whose acknowledgement was delivered, and none that is not acknowledged. A key that a record without a value was
    appended for (`store.log.append(None, key=...)`) has the value None. The log's other records are in `store.log`:
    events, history.
    """

    def __init__(
        self,
        log: WriteAheadLog,
        feed: FrameFeed,
        admission: Admission | None,
        options: StoreOptions,
        progress: StoreProgress | None = None,
    ) -> None:
        """Take over a log just opened with this `ack_sink` and gate, and not appended to; `Store.open` does that."""
        if log.parts.core.completion_order:
            refuse(
                "ack_order",
                "completion",
                "a store needs 'append', as it applies records in LSN order",
                "completion",
            )
        self.log = log
        self.options = options
        self._core, self._lifetime = log.parts.core, log.parts.lifetime
        self._table = KeyedTable()
        self._recovery = log.recovery
        restored = self._restore()
        manifest = log.parts.manifest_store.current
        check_slots(options, 0 if restored is None else restored.lsn, manifest.checkpoint_lsn, log.acked_lsn)
        self._replay(progress)
        # The log's threads know the follower, and not the Store: one that is dropped can close itself.
        self._follower = Follower(self._table, log.acked_lsn)
        self._frames = self._follower.frames
        feed.add(self._follower.feed)
        self._checkpointer = self._make_checkpointer(restored)
        self._compactor = self._make_compactor()
        self._journal = start_journal(log, self._checkpointer, options, feed, admission)

    def _make_checkpointer(self, restored: SnapshotInfo | None) -> Checkpointer:
        return checkpointer_on(
            self.log.parts, machine=self._table, follower=self._follower, restored=restored
        )

    def _make_compactor(self) -> Compactor:
        parts = self.log.parts
        return Compactor(
            parts.storage,
            parts.options,
            parts.manifest_store,
            parts.segments,
            parts.contents,
            parts.claims,
            parts.orphan_files,
            parts.lifetime,
            parts.events,
            sync_and_apply=self._checkpointer.sync_and_apply,
            snapshot_lsns=self._checkpointer.snapshot_lsns,
        )

    @classmethod
    def open(
        cls,
        path: AnyPlace | None = None,
        options: LogOptions | None = None,
        store_options: StoreOptions | None = None,
        mode: str = "a",
        events: EventCallback | None = None,
        *,
        storage: AnyPlace | None = None,
        storage_options: Mapping[str, Any] | None = None,
        progress: StoreProgress | None = None,
    ) -> Store:
        """Open a store, or make it (mode "x": only make it), in a folder, at a URL, or in any `storage`.

        Raises the errors of `walkit.open`; CorruptionError if the log ends before its newest snapshot;
        HistoryTrimmedError or SnapshotError if neither a snapshot nor the log reaches back to the beginning. Then
        nothing is held, and nothing was changed except by the log's recovery.
        """
        reading = "walkit.replay(walkit.open(path, mode='r'), walkit.state.KeyedTable()) reads the state"
        check_choice(mode, ("a", "x"), "mode", f"; {reading}")
        check_kind(store_options, StoreOptions, "store_options")
        check_progress(progress, "(phase, done, total)")

        def work() -> Store:
            guarded = ending_early(progress)
            scanned = None if guarded is None else lambda done, total: guarded("scan", done, total)
            feed, wanted = FrameFeed(), store_options or StoreOptions()
            gate = admission_of(wanted, options.on_full if isinstance(options, LogOptions) else "block")
            ports = LogPorts(ack_sink=feed, gate=gate)
            log = writer_at(path, storage, storage_options, mode, options, events, scanned, ports)
            try:
                return cls(log, feed, gate, wanted, guarded)
            except BaseException:
                log.close()
                raise

        return run_uninterrupted(work, "open", undo=cls.close)

    @classmethod
    def scratch(
        cls,
        name: str = "store",
        options: LogOptions | None = None,
        store_options: StoreOptions | None = None,
        events: EventCallback | None = None,
    ) -> Store:
        """Return a new, empty Store on temporary files: as `walkit.scratch` for a log, with shared names."""
        return open_scratch(
            name, lambda place: cls.open(place, options, store_options, "x", events), lambda store: store.log
        )

    # -- opening

    def _restore(self) -> SnapshotInfo | None:
        began, started_s = time.perf_counter(), self._recovery.duration_s
        restored = restore_newest(
            self.log.parts.storage,
            self.log.parts.manifest_store.current,
            self._table,
            self.log.events,
            first_lsn=self.log.first_lsn,
            last_lsn=self.log.acked_lsn,
        )
        self._add_phase(
            "snapshot",
            started_s,
            time.perf_counter() - began,
            lsn=restored.lsn,
            records=len(self._table),
            skipped=[str(error) for error in restored.refused],
        )
        return restored.info

    def _replay(self, progress: StoreProgress | None) -> None:
        started_s = self._recovery.duration_s
        report = replay(
            self.log,
            self._table,
            progress=None if progress is None else lambda done, total: progress("replay", done, total),
        )
        self._add_phase(
            "replay",
            started_s,
            report.duration_s,
            first_lsn=report.first_lsn,
            records=report.records,
            bytes=report.size_bytes,
            decode_s=report.duration_s - report.apply_s,
            apply_s=report.apply_s,
        )

    def _add_phase(self, name: str, started_s: float, duration_s: float, **detail: Any) -> None:
        phase = Phase(name=name, started_s=started_s, duration_s=duration_s, detail=detail)
        self._recovery = self._recovery.with_phase(phase)

    # -- writing

    def put(
        self, key: Any, value: Any, timestamp: datetime | int | None = None, timeout: float | None = None
    ) -> AppendResult:
        """Set a key to a value, and return when that is acknowledged. Both are bytes or other buffers (copied).

        `timestamp` and `timeout` as in `log.append`. RecordTypeError for a key or value of another type, None too;
        otherwise raises the errors of `log.append`.
        """
        _require(key, "key")
        _require(value, "value")
        result = self.log.append(value, key, timestamp, timeout)
        if self._follower.applied_lsn < result.last_lsn:
            self._follower.apply_if_free()
        return result

    def delete(self, key: Any, timestamp: datetime | int | None = None) -> AppendResult:
        """Append a tombstone for a key, live or not, and return when it is acknowledged."""
        _require(key, "key")
        result = self.log.delete(key, timestamp)
        if self._follower.applied_lsn < result.last_lsn:
            self._follower.apply_if_free()
        return result

    def submit(self, key: Any, value: Any, timestamp: datetime | int | None = None) -> Ticket:
        """Queue a put and return its Ticket at once; see `log.submit`. Once the ticket is done, the put is seen.

        CallbackError, with nothing queued, if the store has a journal and the caller is a finaliser or signal handler
        that has interrupted a step of the store on its thread: a slot of the journal is counted under a lock.
        """
        _require(key, "key")
        _require(value, "value")
        ticket = self.log.submit(value, key, timestamp)
        self._bound_waiting()
        return ticket

    def put_many(self, keys: Values, values: Values) -> AppendResult:
        """Set many keys (lists of bytes, or Arrow binary arrays); see `log.append_many`. Not atomic."""
        limit_bytes = self.log.options.frame_bytes_max
        result = self.log.append_many(
            keys=_all_present(checked(keys, "key", limit_bytes), "key"),
            values=_all_present(checked(values, "value", limit_bytes), "value"),
        )
        self._follower.apply_if_free()
        return result

    async def put_async(self, key: Any, value: Any, timestamp: datetime | int | None = None) -> AppendResult:
        """Set a key without blocking the event loop; see `log.append_async`."""
        _require(key, "key")
        _require(value, "value")
        result = await self.log.append_async(value, key, timestamp)
        self._bound_waiting()
        return result

    def transaction(self) -> Transaction:
        """Return a context manager whose puts and deletes are acknowledged, and seen, all or not at all."""
        self._bound_waiting()
        return self.log.transaction()

    def apply_patch(self, diff: Any) -> AppendResult | None:
        """Make the changes of a `walkit.diff(left, right)`: a store equal to its left side becomes its right.

        All or nothing, in one transaction; RecordTooLargeError if it does not fit one frame (apply its slices then).
        None if nothing changes. OptionsError if it is not a diff, or a key differs here from the left; concurrent
        writers are not waited for. Otherwise raises the errors of a transaction.
        """
        changes = changes_of(diff, self.get)
        with self.transaction() as tx:
            for change in changes:
                if change.deleted:
                    tx.delete(change.key)
                else:
                    tx.append(change.value, change.key)
        return tx.result

    def _bound_waiting(self) -> None:
        """Bound the frames that no reader has applied. Never waits."""
        if len(self._frames) > FRAMES_SUBMITTED_MAX:
            self._follower.apply_if_free()

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        """Delete a live key; KeyError for another, and nothing is written."""
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    # -- reading

    def _see_acknowledged(self) -> None:
        if self._lifetime.closed:
            raise LogClosedError(f"the store at {self.log.location} is closed, or is a forked child's copy")
        if self._follower.applied_lsn < self._core.acked_lsn:
            self._follower.catch_up()

    # -- positions, maintenance

    @property
    def applied_lsn(self) -> int:
        """The table's LSN now. The next read applies later acknowledged records."""
        return self._follower.applied_lsn

    @property
    def recovery(self) -> RecoveryReport:
        """The report of this opening: the log's, with the phases "snapshot" and "replay"."""
        return self._recovery

    @property
    def journal(self) -> Journal | None:
        """The ring of the records that no checkpoint has saved; None without `journal_slots`."""
        return self._journal

    @property
    def remaining_capacity(self) -> int | None:
        """How many records may be appended before the next checkpoint; None without `journal_slots`."""
        return None if self._journal is None else self._journal.remaining_capacity

    @property
    def closed(self) -> bool:
        """Whether the store has been closed."""
        return self.log.closed

    def snapshot(self) -> SnapshotInfo:
        """Write the state of this moment beside the log; durable on return. Writers continue meanwhile.

        The next opening replays only later records. Older snapshots stay, in case this one is damaged.
        SnapshotError names the stage that failed and the stage to retry; the store continues as before.
        """
        return self._checkpointer.snapshot()

    def checkpoint(self, *, trim: bool = True) -> CheckpointReport:
        """Save the state, and drop the log before it: snapshot, low watermark, trim, in this order.

        Durable on return; writers continue meanwhile. The log keeps records that a claim needs, and its newest segment,
        whose records below the low watermark can no longer be read. `state_at` reaches back to the oldest snapshot that
        stays. A claim keeps its records, and the snapshot at the LSN before them if there is one. With `trim=False`
        nothing of the log is dropped. Three kinds of older snapshots from which the log continues stay: the newest,
        those at the LSN before a claim, and the first one after the oldest claim.

        SnapshotError names the stage that failed; StorageError, LogClosedError. The next checkpoint
        does the rest; the store continues as before.
        """
        return self._checkpointer.checkpoint(trim=trim)

    def compact(
        self,
        *,
        exact_from_lsn: int | None = None,
        waste_ratio: float = 0.0,
        bytes_per_s: float | None = None,
        progress: CompactionProgress | None = None,
    ) -> CompactionReport:
        """Rewrite the sealed log with the newest record of each key; its state stays the same.

        Records without a key are events, and stay. Tombstones stay until every snapshot is newer. The newest sealed
        segment, and every segment that a claim needs, stays as it is. Writers and readers continue; a reader
        that comes upon a segment that is gone continues in the new one, or gets a GapError if that would give
        another state.

        History is exact from the newest record on that superseded a dropped one (`exact_from_lsn` of the report): up to
        the end of the log at most, and never past a claim. With `exact_from_lsn` states from there on stay
        exact: nothing newer supersedes then, and only segments that end at or below it are rewritten. `log.read`
        shows the remaining records below `log.complete_from_lsn`; `log.follow` begins only above it.

        Segments of which less than `waste_ratio` (0 to 1, by records) can be dropped are left alone. At most about
        `bytes_per_s` are read and written a second; closing the store does not wait for that. `progress` is called with
        ("survey", bytes done, bytes in all), then ("rewrite", ...); its error ends the compaction.

        LogClosedError, StorageError, CorruptionError: each segment is then the old one or the new, and compacting again
        continues. A log compacted in part has the same state.
        """
        report = self._compactor.compact(
            exact_from_lsn, waste_ratio=waste_ratio, bytes_per_s=bytes_per_s, progress=progress
        )
        if report.segments_rewritten:
            self.log.parts.trimmer.on_dropped(counts=True)
        return report

    def state_at(self, lsn: int) -> PastState:
        """Return the state as it was with everything up to `lsn`: a read-only mapping, in memory, of keys to values.

        Takes the nearest snapshot at or below it and replays the rest, or the whole log. OptionsError for an LSN that
        is not acknowledged yet; HistoryTrimmedError, with `exact_from_lsn`, if trimming or compaction dropped
        what would be needed; CorruptionError if damage is reached.
        """
        self._see_acknowledged()
        return state_at(self.log, self.log.parts.storage, lsn, self.log.acked_lsn)

    @property
    def exact_from_lsn(self) -> int:
        """From this LSN on `state_at` can restore every state."""
        self._see_acknowledged()
        return exact_from(self.log, self.log.parts.storage)

    def inventory(self) -> LogInventory:
        """Return `log.inventory()`, with the live keys of each segment: those whose newest record is in it."""
        found = self.log.inventory()
        with alone(STATE), self._follower.lock:
            lsns = np.fromiter(self._table.live_lsns(), np.int64)
        firsts = np.array([s.first_lsn for s in found.segments], np.int64)
        where = np.searchsorted(firsts, lsns[lsns <= found.last_lsn], side="right") - 1
        counts = np.bincount(where[where >= 0], minlength=len(firsts))
        stocked = (replace(s, live_keys=int(n)) for s, n in zip(found.segments, counts, strict=True))
        return replace(found, segments=tuple(stocked))

    def statistics(self) -> StoreStatistics:
        """Return a frozen snapshot of the named metrics of the log and the table."""
        return StoreStatistics(
            **asdict(self.log.statistics()),
            keys=len(self._table),
            applied_lsn=self._follower.applied_lsn,
            frames_waiting=len(self._frames),
            snapshot_lsn=self._checkpointer.snapshot_lsn,
            journal_slots=self.options.journal_slots or 0,
        )

    def close(self) -> None:
        """Close the log; see `log.close`. The table's records are in the log. Closing twice does nothing."""
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Store {self.log.location} {state}: {counted(len(self._table), 'key')} at LSN {self.applied_lsn}>"

    def _repr_html_(self) -> str:
        facts = [
            ("live keys", f"{len(self._table):,}"),
            ("applied LSN", f"{self.applied_lsn:,}"),
            (
                "newest snapshot at LSN",
                f"{self._checkpointer.snapshot_lsn:,}" if self._checkpointer.snapshot_lsn else "none",
            ),
        ]
        return report_html(f"store {self.log.location}", facts) + self.log._repr_html_()


def _require(item: object, what: str) -> None:
    if item is None:
        raise RecordTypeError(what, item)


def _all_present(items: Items, what: str) -> Items:
    """Return the items, of which none may be absent."""
    if items.count(None) if isinstance(items, list) else items.null_count:
        raise RecordTypeError(what, None)
    return items
