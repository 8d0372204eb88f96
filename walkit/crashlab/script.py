"""The calls that a scenario makes to a log; each notes in the ledger which records it was given and promised."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from walkit.commit.ticket import Ticket
from walkit.compaction.compactor import CompactionProgress
from walkit.compaction.report import CompactionReport
from walkit.config import LogOptions, StoreOptions
from walkit.crashlab.coverage import COVERAGE
from walkit.crashlab.crash_rules import quiet, repaired_in
from walkit.crashlab.promises import Ledger, Row
from walkit.crashlab.recording import RecordingStorage
from walkit.crashlab.turns import Turns
from walkit.format.segment import segment_name
from walkit.log.trim import TrimReport
from walkit.log.wal import WriteAheadLog
from walkit.models import CrashingStorage
from walkit.models.faults import Operation, OperationName
from walkit.objects.entrance import claim as take_claim
from walkit.objects.entrance import open_log
from walkit.read.claim import Claim
from walkit.record import Kind
from walkit.recovery.repair import repair
from walkit.segments.segment_set import SegmentSet
from walkit.storage.address import AnyPlace
from walkit.storage.object_files import FileObjectStore
from walkit.store import Store

IDLE_S = 30.0


class Script:
    """Calls a log or a Store, and notes each call's input and promises in the ledger."""

    def __init__(self, options: LogOptions, seed: int) -> None:
        self.options = options
        self.ledger = Ledger()
        self.chance = random.Random(seed)
        self.storage = RecordingStorage(CrashingStorage(), self.ledger, Turns(seed))
        self.is_on_objects = False
        """Whether the log is on object storage, whose objects are files of the disk."""

    @property
    def place(self) -> AnyPlace:
        """The place of the log, as another process has it."""
        return FileObjectStore(self.storage) if self.is_on_objects else self.storage

    def open(self) -> WriteAheadLog:
        """Open the log."""
        return self._watched(open_log(storage=self.place, options=self.options, events=quiet))

    def open_store(self, store_options: StoreOptions | None = None) -> Store:
        """Open the Store."""
        store = Store.open(
            storage=self.place, options=self.options, store_options=store_options, events=quiet
        )
        self._watched(store.log)
        return store

    def _watched(self, log: WriteAheadLog) -> WriteAheadLog:
        maintenance = log.parts.segments.maintenance
        self.storage.job = lambda: maintenance.doing
        return log

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Count the crash states that are cut within the block as cut during `name`, one of `COVERAGE`."""
        assert name in COVERAGE
        since = len(self.storage.points)
        yield
        self.storage.note(name, since)

    def value(self, size: int) -> bytes:
        """Return bytes that no compression makes smaller, and none of which is zero."""
        return bytes(self.chance.choices(range(1, 256), k=size))

    def append(self, log: WriteAheadLog, size: int, key: bytes | None = None) -> None:
        """Append one record."""
        value = self.value(size)
        self._perform([(Kind.PUT, key, value)], lambda: log.append(value, key))

    def delete(self, log: WriteAheadLog | Store, key: bytes) -> None:
        """Append a deletion."""
        self._perform([(Kind.DELETE, key, None)], lambda: log.delete(key))

    def append_many(self, log: WriteAheadLog, count: int, size: int) -> None:
        """Append several records with one call."""
        values = [self.value(size) for _ in range(count)]
        self._perform([(Kind.PUT, None, value) for value in values], lambda: log.append_many(values))

    def transaction(self, log: WriteAheadLog | Store, count: int, size: int) -> None:
        """Append records that are all or nothing."""
        rows: list[Row] = [(Kind.PUT, b"key %d" % number, self.value(size)) for number in range(count)]

        def commit() -> None:
            with log.transaction() as tx:
                for _, key, value in rows:
                    tx.put(key, value)

        self._perform(rows, commit, together=True)

    def put(self, store: Store, key: bytes, size: int) -> None:
        """Put a value into a Store."""
        value = self.value(size)
        self._perform([(Kind.PUT, key, value)], lambda: store.put(key, value))

    def _perform(self, rows: list[Row], call: Callable[[], object], *, together: bool = False) -> None:
        lsn = self.ledger.submit(*rows, together=together)
        call()
        if self.options.durability == "sync":
            self.ledger.keep(lsn)

    def submit(self, log: WriteAheadLog, count: int, size: int) -> None:
        """Submit records that are in flight together, and wait for each."""
        tickets: list[tuple[int, Ticket]] = []
        for _ in range(count):
            value = self.value(size)
            tickets.append((self.ledger.submit((Kind.PUT, None, value)), log.submit(value)))
        for lsn, ticket in tickets:
            ticket.result()
            if self.options.durability != "sync":
                continue
            if self.options.ack_order == "completion":
                self.ledger.keep_also(lsn, lsn)
            else:
                self.ledger.keep(lsn)

    def sync(self, log: WriteAheadLog) -> None:
        """Make all that was appended durable."""
        since, opened = len(self.storage.points), len(log.parts.segments.open_segments)
        self.ledger.keep(log.sync())
        if opened > 1:
            self.storage.note("two open", since)

    @contextmanager
    def beside(self, call: Callable[[], object]) -> Iterator[None]:
        """Make a call on another thread while the block runs; both take turns. It is over at the end of the block."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - it is raised again on the script's thread
                errors.append(error)

        thread = threading.Thread(target=run, name="walkit-beside")
        thread.start()
        try:
            yield
        finally:
            thread.join()
        if errors:
            raise errors[0]

    def keep_from(self, name: str, first_lsn: int) -> None:
        """Note that nothing from this LSN on may be dropped, until `let_go` of the name."""
        self.ledger.kept_from[name] = first_lsn

    def let_go(self, name: str) -> None:
        """Note that a hold or claim keeps nothing more."""
        del self.ledger.kept_from[name]

    def claim(self, name: str, first_lsn: int) -> Claim:
        """Take a claim, as a consumer in another process does."""
        claim = take_claim(self.place, name, first_lsn, events=quiet)
        self.keep_from(name, first_lsn)
        return claim

    def may_drop(self, lsn: int) -> None:
        """Note that records up to this LSN may be gone from now on, except those that are kept."""
        lsn = min([lsn, *(first - 1 for first in self.ledger.kept_from.values())])
        self.ledger.trimmed = max(self.ledger.trimmed, lsn)

    def trim(self, log: WriteAheadLog, lsn: int, waste_ratio: float = 0.1) -> TrimReport:
        """Trim the log; a segment that straddles the new low watermark is rewritten if so much of it is waste."""
        self.may_drop(lsn)
        since = len(self.storage.points)
        report = log.trim(lsn, waste_ratio=waste_ratio)
        if report.limit.startswith("claim"):
            self.storage.note("claim limits", since)
        return report

    def checkpoint(self, store: Store, *, trim: bool = True) -> None:
        """Take a checkpoint, which trims the log or not; its state is durable on return."""
        if trim:
            self.may_drop(len(self.ledger.rows))
        with self.during("checkpoint"):
            self.ledger.keep(store.checkpoint(trim=trim).lsn)

    def compact(self, store: Store, meanwhile: CompactionProgress | None = None) -> CompactionReport:
        """Compact the log of a Store; `meanwhile` is its progress callback, and may do something."""
        self.ledger.compacted = True
        since, deletions = len(self.storage.points), sum(r[0] == Kind.DELETE for r in self.ledger.rows)
        before = [record.lsn for record in store.log.read()]
        report = store.compact(progress=meanwhile)
        if self.ledger.kept_from:
            needed, after = min(self.ledger.kept_from.values()), {record.lsn for record in store.log.read()}
            assert after.issuperset(lsn for lsn in before if lsn >= needed), (
                "it drops held or claimed records"
            )
        happened = {
            "records kept": report.segments_rewritten and report.records_after,
            "records dropped": report.records_dropped,
            "tombstones dropped": report.tombstones_dropped,
            "tombstones kept": report.segments_rewritten and deletions - report.tombstones_dropped,
        }
        for name, count in happened.items():
            if count:
                self.storage.note(name, since)
        return report

    def damage(self, name: str, offset: int, *, lost: int = 0, data: bytes = b"\xff" * 16) -> None:
        """Damage a file of a closed log, durably; note the record that this hits."""
        disk = self.storage.inner
        file = disk.open(name, "write" if name in disk.names() else "create")
        file.write(offset, [data], sync=True)
        file.close()
        disk.sync_directory()
        self.ledger.is_damaged = True
        if lost:
            self.ledger.lost |= {lost}

    def foresee_repair(self) -> None:
        """Note the result of a repair of the damage, if nothing cuts it short."""
        whole = self.storage.inner.process_kill()
        if self.options.recovery == "salvage":
            open_log(storage=whole, options=self.options, events=quiet).close()
        else:
            repair(whole, policy="salvage")
        self.ledger.repaired = repaired_in(whole)

    def fail_at(self, name: OperationName, file: str, *faults: tuple[OperationName, str]) -> None:
        """Set these faults once an operation on a file, or on its earlier name, begins."""

        def meet(operation: Operation) -> None:
            if (operation.name, operation.source or operation.file) == (name, file):
                self.storage.watch = lambda operation: None
                for fault in faults:
                    self.storage.fail(*fault)

        self.storage.watch = meet

    def cut_power(self, seed: int) -> None:
        """Cut the power, and continue on one state that this leaves: the next opening is a recovery."""
        self.storage.inner = self.storage.inner.crash(keep="random", seed=seed)

    def restarted(self, log: WriteAheadLog) -> WriteAheadLog:
        """Note where a log that was opened after a cut ends."""
        self.ledger.restart(log.acked_lsn)
        return log

    def check_segments(self, opened: WriteAheadLog | Store) -> None:
        """Assert that the manifest names each segment, except those of creations that failed."""
        self.settle(opened)
        disk, log = self.storage.inner, opened.log if isinstance(opened, Store) else opened
        named = {segment.name for segment in log.parts.manifest_store.current.segments}
        segments = log.parts.segments
        assert isinstance(segments, SegmentSet), "a log in a folder"
        named |= {segment_name(number) for number in segments.left}
        left = {name for name in disk.names() if name.endswith(".segment")} - named
        assert not any(disk.open(name, "read").size() for name in left), f"no manifest names {left}"

    def settle(self, opened: WriteAheadLog | Store) -> None:
        """Wait until the maintenance thread rests."""
        log = opened.log if isinstance(opened, Store) else opened
        log.wait_idle(IDLE_S)
