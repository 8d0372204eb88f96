"""A script whose calls may meet a failing storage, and its notes of their records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from walkit.commit.ticket import Ticket
from walkit.compaction.report import CompactionReport
from walkit.crashlab.crash_rules import Oracle
from walkit.crashlab.promises import Row
from walkit.crashlab.script import Script
from walkit.errors import (
    CommitFailedError,
    LogClosedError,
    LogFullError,
    LogPoisonedError,
    SnapshotError,
    StorageError,
)
from walkit.format.file_names import CLAIMS_LOCK_NAME
from walkit.log.trim import TrimReport
from walkit.log.wal import WriteAheadLog
from walkit.models import CrashingStorage
from walkit.read.reader import LogReader
from walkit.record import Kind, Record, encode_bundle
from walkit.recovery.repair import repair
from walkit.segments.manifest_store import LOCK_NAME
from walkit.store import Store

REFUSED = (LogFullError, LogPoisonedError, LogClosedError)
"""Nothing of the call was written except its acknowledged prefix."""


class FailingScript(Script):
    """A script whose calls may meet a failure: it notes the known facts of their records then."""

    def __init__(self, script: Script) -> None:
        vars(self).update(vars(script))
        self.is_slow = False
        """Whether the failure is a slow device: then no call may raise."""
        self.fails_on = False
        """Whether a call may fail again: the storage fails from then on, or the log has."""

    def begin(self) -> None:
        """Go on with an empty disk."""
        self.storage.inner = CrashingStorage()
        vars(self.ledger).update(vars(type(self.ledger)()))
        self.is_slow = self.fails_on = False

    def _perform(self, rows: list[Row], call: Callable[[], object], *, together: bool = False) -> None:
        before = len(self.ledger.rows)

        def checked() -> None:
            last = getattr(call(), "last_lsn", None)
            assert last in (None, before + len(rows)), f"LSN {last} for {before + len(rows)}"

        try:
            super()._perform(rows, checked, together=together)
        except (CommitFailedError, *REFUSED) as error:
            self._check_cause(error)
            if self.options.durability == "sync" and error.acknowledged_prefix:
                self.ledger.keep(before + error.acknowledged_prefix)
            if not isinstance(error, CommitFailedError):
                self.ledger.take_back(before + error.acknowledged_prefix)

    def submit(self, log: WriteAheadLog, count: int, size: int) -> None:
        """See `Script`; the refused call was the last of it."""
        tickets: list[tuple[int, Ticket]] = []
        refused: list[int] = []
        for _ in range(count):
            value = self.value(size)
            lsn = self.ledger.submit((Kind.PUT, None, value))
            try:
                tickets.append((lsn, log.submit(value)))
            except REFUSED as error:
                self._check_cause(error)
                refused.append(lsn)
        for lsn, ticket in tickets:
            try:
                ticket.result()
            except (CommitFailedError, *REFUSED) as error:
                self._check_cause(error)
                if not isinstance(error, CommitFailedError):
                    refused.append(lsn)
                continue
            assert lsn < min(refused, default=lsn + 1), f"LSN {lsn:,} was written, and not one before it"
            if self.options.durability == "sync" and self.options.ack_order == "completion":
                self.ledger.keep_also(lsn, lsn)
            elif self.options.durability == "sync":
                self.ledger.keep(lsn)
        if refused:
            self.ledger.take_back(min(refused) - 1)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Survive an error of the kinds that a failing storage brings."""
        try:
            yield
        except (StorageError, SnapshotError, CommitFailedError, *REFUSED) as error:
            self._check_cause(error)

    def repeated(self, call: Callable[[], TrimReport | CompactionReport | None]) -> None:
        """Make a call of the maintenance, and once more if the storage has failed it: then it is done."""
        for _ in range(2):
            with self.failing():
                report = call()
                if not isinstance(report, TrimReport) or not report.rewritten.failure:
                    return
        assert self.fails_on, "it fails again, though the storage does not"

    def check_live(self, opened: WriteAheadLog | Store) -> None:
        """Assert that a log reads whole beside its writer, a Store has its state, and no other segment is left."""
        log = opened.log if isinstance(opened, Store) else opened
        if not self.fails_on:
            self.check_segments(log)
        with self.failing():
            lsns = []
            for record in log.read():
                self.check(record)
                lsns.append(record.lsn)
            if isinstance(opened, Store):
                assert dict(opened.items()) == self.ledger.promise().state_at(log.acked_lsn)
            else:
                assert lsns == list(range(log.first_lsn, log.acked_lsn + 1)), f"it reads {lsns}"

    def append_in_other_ways(self, log: WriteAheadLog, size: int) -> None:
        """Append by each call that `Script` has none for."""
        value, other = self.value(size), self.value(size)
        rows: list[Row] = [(Kind.PUT, b"x", value), (Kind.PUT, b"y", other)]
        batch = pa.RecordBatch.from_pydict({"n": [value]})
        table = pa.table({"key": pa.array([b"x", b"y"], pa.binary()), "value": pa.array([value, other])})
        self._perform(rows, lambda: log.append_arrow(table))
        self._perform([(Kind.BUNDLE, b"z", encode_bundle(batch))], lambda: log.append_bundle(batch, b"z"))
        self._perform(rows, lambda: log.submit_many([value, other], [b"x", b"y"]).result())
        self._perform(rows[:1], lambda: asyncio.run(log.append_async(value, b"x")))
        self._perform(rows[1:], lambda: log.append(other, b"y", timeout=20.0))

    def check(self, record: Record) -> None:
        """Assert that a record is the one that was appended under its LSN."""
        row = int(record.kind), record.key, record.value
        assert row == self.ledger.rows[record.lsn - 1], f"LSN {record.lsn:,} is another record"

    def check_left(self, oracle: Oracle) -> None:
        """Assert that a log that was closed has left neither lock nor file, and that a power cut now breaks no rule."""
        inner, files = self.storage.inner, self.storage.open_files
        assert not any(map(inner.is_locked, (LOCK_NAME, CLAIMS_LOCK_NAME))), "a lock is taken"
        assert not files, f"still open: {sorted(file.name for file in files)}"
        oracle.judge(inner.crash(keep="none"), self.ledger.promise())

    def repair(self) -> None:
        """Repair the damage, unless the opening does."""
        if self.ledger.is_damaged and self.options.recovery != "salvage":
            repair(self.storage, policy="salvage")
            self.ledger.is_damaged = False

    def restarted(self, log: WriteAheadLog) -> WriteAheadLog:
        """See `Script`; the opening has repaired the damage."""
        self.ledger.is_damaged = False
        return super().restarted(log)

    def note_durable(self, log: WriteAheadLog | LogReader) -> None:
        """Note that the log's durable records are promised."""
        self.ledger.keep(min(log.durable_lsn, len(self.ledger.rows)))

    def _check_cause(self, error: BaseException) -> None:
        """Assert that the storage caused it, and no error of another kind in one of the log's threads."""
        self.fails_on |= isinstance(error, REFUSED)
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, StorageError):
            cause = cause.__cause__
        assert isinstance(error, LogClosedError) or cause is not None, f"no error of the storage: {error!r}"
        assert cause is None or cause.errno is not None, f"no errno: {cause!r}"
        assert not self.is_slow, f"a slow device raised {error!r}"
