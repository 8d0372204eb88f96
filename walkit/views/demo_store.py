"""The store of a dashboard's session: written, held, compacted, trimmed, one step after the other. No panel."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from dataclasses import dataclass
from typing import Literal

from walkit._internal.text import counted
from walkit.compaction import CompactionReport
from walkit.config import LogOptions
from walkit.errors import OptionsError, WalkitError
from walkit.log.trim import TrimPreview, TrimReport
from walkit.plots import Amplification
from walkit.read.claim import Claim
from walkit.read.inventory import LogInventory
from walkit.state.checkpoint import CheckpointReport
from walkit.store import Store

logger = logging.getLogger("walkit")

Step = Literal["write", "hold", "cursor", "checkpoint", "compact", "trim"]
STEPS: dict[Step, str] = {
    "write": "writing records to the store",
    "hold": "taking or releasing a hold",
    "cursor": "moving the cursor",
    "checkpoint": "taking a checkpoint",
    "compact": "compacting",
    "trim": "trimming",
}
RECORDS = 6_000
"""Records of one writing."""
KEYS = 1_500
KEY_BYTES = 9
VALUE_BYTES = 160
STEPS_MAX = 60
"""Steps whose amplification is kept."""
OPTIONS = LogOptions(segment_bytes=256 * 1024, frame_bytes_max=64 * 1024, idle_marker_ms=0)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The effect of one step on the store's log."""

    step: Step
    words: str
    """The outcome, as a sentence."""
    before: LogInventory
    after: LogInventory
    report: CheckpointReport | CompactionReport | TrimReport | None = None
    preview: TrimPreview
    """The effect of the largest possible trim now."""
    history: tuple[Amplification, ...] = ()
    """After each of the last STEPS_MAX steps, this one included."""


class Shelf:
    """A store in a folder, made by its first step. Steps come from one thread; `close` may come from any."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._closed = False
        self._begin(1)

    def _begin(self, number: int) -> None:
        """Forget all of a store; the next one has this number."""
        self._number = number
        self._path = self._path_of(number)
        self._store: Store | None = None
        self._hold: Claim | None = None
        self._history: tuple[Amplification, ...] = ()
        self._upkeep_bytes = 0

    def _path_of(self, number: int) -> str:
        return os.path.join(self._folder, "store" if number == 1 else f"store-{number}")

    def _check(self) -> None:
        """Assert the invariants between two steps: nothing is kept of a store that is not open."""
        with self._lock:
            assert self._path == self._path_of(self._number)
            is_open = self._store is not None
            assert not (self._closed and is_open), "a store is open that nothing closes"
            is_fresh = self._hold is None and not self._history and not self._upkeep_bytes
            assert is_open or is_fresh or self._closed
            assert len(self._history) <= STEPS_MAX and self._upkeep_bytes >= 0

    def do(self, step: Step) -> StepReport:
        """Do one step and return its effect. Raises the store's errors; LogClosedError after `close`."""
        store = self._opened()
        before = store.inventory()
        report: CheckpointReport | CompactionReport | TrimReport | None = None
        if step == "checkpoint":
            report = store.checkpoint(trim=False)
            words = f"There is a snapshot at LSN {report.lsn:,}; an opening replays the records after it."
        elif step == "compact":
            report = store.compact()
            words = f"{counted(report.records_dropped, 'record')} and {counted(report.bytes_saved, 'byte')} are gone."
        elif step == "trim":
            report = store.log.trim(store.log.acked_lsn)
            words = (
                f"The low watermark is {report:,}: never past a hold, nor past the newest snapshot, which the state "
                f"needs. {report.bytes_saved:,} bytes are gone."
            )
        else:
            words = {
                "write": self._write,
                "hold": self._turn_hold,
                "cursor": self._cursor,
            }[step](store)
        after = store.inventory()
        self._note(store, step, after, report)
        self._check()
        return StepReport(
            step=step,
            words=words,
            before=before,
            after=after,
            report=report,
            preview=store.log.parts.trimmer.preview(store.log.acked_lsn),
            history=self._history,
        )

    def _note(
        self,
        store: Store,
        step: Step,
        after: LogInventory,
        report: CheckpointReport | CompactionReport | TrimReport | None,
    ) -> None:
        """Add the log's current cost to the history."""
        if isinstance(report, CheckpointReport):
            self._upkeep_bytes += report.snapshot_bytes
        elif isinstance(report, CompactionReport):
            self._upkeep_bytes += report.bytes_written
        elif report is not None:
            self._upkeep_bytes += report.rewritten.bytes_written
        measured = store.log.statistics()
        live_bytes = len(store) * (KEY_BYTES + VALUE_BYTES)
        if live_bytes and measured.user_bytes:
            written = (measured.frame_bytes + self._upkeep_bytes) / measured.user_bytes
            made = Amplification(step, after.size_bytes / live_bytes, written)
            self._history = (*self._history, made)[-STEPS_MAX:]

    def renew(self) -> None:
        """Close and remove the store, whatever has become of it; the next step makes another one."""
        with self._lock:
            store, path = self._store, self._path
            self._begin(self._number + 1)
        self._check()
        try:
            if store is not None:
                store.close()
        except WalkitError:
            logger.info("a store that is given up did not close in order", exc_info=True)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _opened(self) -> Store:
        with self._lock:
            if self._closed:
                raise OptionsError("the session has ended")
            if self._store is None:
                self._store = Store.open(self._path, options=OPTIONS)
            return self._store

    def _write(self, store: Store) -> str:
        first = store.log.acked_lsn + 1
        numbers = range(first, first + RECORDS)
        store.put_many([b"key %05d" % (n % KEYS) for n in numbers], [b"%010d" % n * 16 for n in numbers])
        store.log.wait_idle()
        return (
            f"LSN {first:,} to {store.log.acked_lsn:,} were written: {RECORDS:,} records over {KEYS:,} keys."
        )

    def _turn_hold(self, store: Store) -> str:
        if self._hold is not None:
            self._hold.release()
            self._hold = None
            return "The claim is released: it no longer keeps records."
        first = max((store.log.first_lsn + store.log.acked_lsn) // 2, store.log.first_lsn)
        self._hold = store.log.hold("auditor", first)
        return f"The claim needs LSN {first:,} and later ones: no trim or compaction touches them."

    @staticmethod
    def _cursor(store: Store) -> str:
        store.log.drop_cursor("exporter")
        cursor = store.log.cursor("exporter", start_lsn=store.log.acked_lsn + 1)
        return f"The cursor is at LSN {cursor.lsn:,}. It records progress, and keeps no records."

    def close(self) -> None:
        """Close the store. Closing twice does nothing."""
        with self._lock:
            self._closed = True
            store, self._store = self._store, None
        if store is not None:
            store.close()
