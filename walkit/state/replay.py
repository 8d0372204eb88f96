"""Replay: a log's records, in order, into a state machine, read ahead by another thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar, cast

import pyarrow as pa

from walkit._internal.arguments import as_lsn, check_progress, refuse
from walkit._internal.report import report_html
from walkit._internal.threads import LogThread
from walkit._main_thread import Uninterrupted, on_main_thread, uninterrupted
from walkit.errors import GapError, HistoryTrimmedError
from walkit.read.read_api import ReadApi, has_links
from walkit.read.resumable_scan import ResumableScan
from walkit.read.vectorised import row_batches
from walkit.read.view import View
from walkit.record import Batch
from walkit.state.machine import ArrowStateMachine, StateMachine
from walkit.state.table import KeyedTable

T = TypeVar("T")

END = object()


def prefetched(items: Iterator[T], depth: int) -> Generator[T]:
    """Yield the items of `items`, of which a thread has up to `depth` ready; raises its errors, at their place.

    Worth it if drawing an item releases the interpreter's lock, as reading and checksums of large frames do. The
    thread ends with the items, or when this generator is closed; `items` is closed by it then, if it can be.
    """
    ready: SimpleQueue[object] = SimpleQueue()
    room: SimpleQueue[None] = SimpleQueue()
    """One item for each that may be drawn. A Semaphore is Python code: Ctrl-C in it can leave its lock taken."""
    for _ in range(depth):
        room.put(None)
    ended = False
    failure: BaseException | None = None

    def draw() -> None:
        nonlocal failure
        try:
            while room.get() is None and not ended:
                item = next(items, END)
                ready.put(item)
                if item is END:
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the items are taken
            failure = error
        finally:
            if isinstance(items, Generator):
                items.close()
            ready.put(END)

    thread = LogThread(target=draw, name="walkit-read-ahead", daemon=True)
    try:
        with uninterrupted():
            thread.start()
        while (item := ready.get()) is not END:
            yield cast(T, item)
            del item
            room.put(None)
        if failure is not None:
            raise failure
    finally:
        ended = True
        room.put(None)
        if thread.ident is not None:
            thread.join()


ARROW_RECORDS = 1 << 18
ARROW_BYTES = 1 << 20
"""Records and bytes of one batch if the machine takes Arrow. A frame of that size is a batch without a copy; a
keyed table gathers them."""

AHEAD = 4
"""Batches that are read, verified and decoded while the machine is busy."""

HELD_S_MAX = 0.5
"""Aim for the time that one call of the machine takes: an interrupt waits for its end."""
PIECE_RECORDS_FIRST = 1 << 16
PIECE_RECORDS_MIN = 256
"""Records of the first such call, and the fewest of any: how fast a machine is shows only when it runs."""

ReplayProgress = Callable[[int, int], None]
"""Called after each batch with (LSNs passed, LSNs to pass). Its error ends the replay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayReport:
    """The result of one replay. `size_bytes` counts the records as Arrow columns."""

    first_lsn: int
    """The first LSN asked for."""
    applied_lsn: int
    """The machine's LSN at the end."""
    records: int
    batches: int
    size_bytes: int
    duration_s: float
    apply_s: float = 0.0
    """Of it in the machine; the rest is waiting for records to be read and decoded, which continues beside it."""

    @property
    def records_per_s(self) -> float:
        """Records applied in a second, reading included."""
        return self.records / self.duration_s if self.duration_s else 0.0

    def _repr_html_(self) -> str:
        return report_html(
            "Replay",
            [
                ("from LSN", f"{self.first_lsn:,}"),
                ("applied up to LSN", f"{self.applied_lsn:,}"),
                ("records", f"{self.records:,}"),
                ("bytes", f"{self.size_bytes:,}"),
                ("time", f"{self.duration_s * 1000:,.1f} ms"),
                ("of it in the machine", f"{self.apply_s * 1000:,.1f} ms"),
                ("records/s", f"{self.records_per_s:,.0f}"),
            ],
        )


def replay(
    log: ReadApi,
    machine: StateMachine,
    first_lsn: int | None = None,
    last_lsn: int | None = None,
    progress: ReplayProgress | None = None,
) -> ReplayReport:
    """Apply the records of [first_lsn, last_lsn] to `machine`, in order; bounds inclusive.

    `log` is open for writing or for reading. By default from the machine's `applied_lsn` to the newest record there is
    at the call. In bounded memory: one batch at a time, as Arrow if the machine takes it. Ctrl-C (a stopped cell)
    ends it within a second, if the machine applies 256 records in that time; an error from `progress` ends it between
    two batches. Calling again continues from there.

    Of a compacted log the records are replayed that are left; a machine for which superseded records count gives the
    right state only from `log.complete_from_lsn` on.

    Raises HistoryTrimmedError if the machine would have to start with records that are gone (restore a snapshot first)
    or is to end below `log.exact_from_lsn`, where records superseded later are missing already; GapError if an explicit
    `first_lsn` is gone, or the rest of the log after a concurrent trim or compaction does not lead to the right state
    (the machine is at its `applied_lsn` then); OptionsError if the machine has it already, CorruptionError when damage
    is reached.
    """
    check_arguments(log, machine, progress)
    began = time.perf_counter()
    view, first, last = _range(log, machine.applied_lsn, first_lsn, last_lsn)
    pieces = Pieces(machine)
    records = batches = size = 0
    apply_s = 0.0
    if first <= last:
        _require_exact(view, machine.applied_lsn, last)
        found = ResumableScan(
            log._now,
            view,
            first,
            last,
            _row_batches if pieces.arrow else View.batches,
            to_newest=last_lsn is None,
            exact=True,
            started=machine.applied_lsn > 0,
        )
        with closing(prefetched(iter(found), AHEAD if pieces.arrow else 1)) as drawn:
            for batch in drawn:
                handed = time.perf_counter()
                whole = isinstance(machine, KeyedTable) or not has_links(batch)
                for part in (batch,) if whole else log.payloads.batches(batch):
                    pieces.apply(part)
                apply_s += time.perf_counter() - handed
                records += len(batch)
                batches += 1
                size += batch.nbytes
                if progress is not None:
                    progress(machine.applied_lsn - first + 1, found.last_lsn - first + 1)
    handed = time.perf_counter()
    pieces.settle()
    apply_s += time.perf_counter() - handed
    return ReplayReport(
        first_lsn=first,
        applied_lsn=machine.applied_lsn,
        records=records,
        batches=batches,
        size_bytes=size,
        duration_s=time.perf_counter() - began,
        apply_s=apply_s,
    )


SAVED = ("snapshot_format", "snapshot", "restore", "checksum")
"""The members that a machine has beside `apply` and `applied_lsn` if its state is saved and restored."""


def check_saved(machine: object) -> None:
    """Refuse a machine whose state cannot be saved and restored: OptionsError."""
    absent = [name for name in SAVED if not hasattr(machine, name)]
    if absent:
        text = f"a machine that is saved has {', '.join(SAVED)}, apply and applied_lsn (walkit.StateMachine)"
        refuse("machine", machine, f"it has no {', '.join(absent)}; {text}")


def check_arguments(log: object, machine: object, progress: object) -> None:
    """Refuse an object that cannot be replayed: OptionsError."""
    if not isinstance(log, ReadApi):
        refuse("log", log, "an open log, such as walkit.open(path, mode='r')")
    if not hasattr(machine, "applied_lsn"):
        refuse(
            "machine",
            machine,
            "a walkit.StateMachine, with apply, applied_lsn, snapshot, restore and checksum",
        )
    check_progress(progress, "(LSNs passed, LSNs to pass)")


def _row_batches(view: View, first_lsn: int, last_lsn: int) -> Iterator[pa.RecordBatch]:
    return row_batches(view, first_lsn, last_lsn, records=ARROW_RECORDS, whole_bytes=ARROW_BYTES)


class Pieces:
    """Applies Arrow batches in pieces that hold an interrupt back for a moment only; each whole or not at all."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self.arrow = isinstance(machine, ArrowStateMachine)
        self._then: Callable[[], object] | None = None
        self._take: Callable[[pa.RecordBatch], object] = lambda piece: machine.apply(Batch.from_arrow(piece))
        if isinstance(machine, KeyedTable):
            self._take = machine.gather
            self._then = machine.reduce  # which may take long, and bears an interrupt
        elif isinstance(machine, ArrowStateMachine):
            self._take = machine.apply_arrow
        self._guard = Uninterrupted if on_main_thread() else nullcontext
        self.records = PIECE_RECORDS_FIRST

    def apply(self, batch: pa.RecordBatch) -> None:
        """Apply a batch of RECORD_SCHEMA. KeyboardInterrupt comes between two pieces."""
        start = 0
        while start < len(batch):
            piece = batch.slice(start, self.records)
            began = time.perf_counter()
            with self._guard():
                self._take(piece)
            if self._then is not None:
                self._then()
            self.learn(len(piece), time.perf_counter() - began)
            start += len(piece)

    def settle(self) -> None:
        """Apply the batches that a keyed table has gathered."""
        if isinstance(self._machine, KeyedTable):
            self._machine.settle()

    def learn(self, records: int, took_s: float) -> None:
        """Size the next pieces by how long one took."""
        if records >= PIECE_RECORDS_MIN:
            fitting = int(records * HELD_S_MAX / max(took_s, 1e-6))
            self.records = min(max(fitting, PIECE_RECORDS_MIN), ARROW_RECORDS)


def _require_exact(view: View, applied_lsn: int, last_lsn: int) -> None:
    """Refuse replays that a compacted log would give wrong: inexact states, and bases older than dropped tombstones."""
    manifest = view.manifest
    if last_lsn < manifest.exact_from_lsn:
        raise HistoryTrimmedError(last_lsn, manifest.exact_from_lsn)
    if 0 < applied_lsn < manifest.tombstones_from_lsn - 1:
        raise HistoryTrimmedError(applied_lsn + 1, manifest.tombstones_from_lsn)


def _range(
    log: ReadApi, applied_lsn: int, first_lsn: int | None, last_lsn: int | None
) -> tuple[View, int, int]:
    """Return the range to read, or refuse a beginning that cannot give the right state."""
    if first_lsn is None:
        try:
            return log._range(applied_lsn + 1, last_lsn)
        except GapError as gap:
            raise HistoryTrimmedError(gap.wanted, gap.oldest) from None
    first_lsn = as_lsn(first_lsn, "first_lsn")
    if first_lsn <= applied_lsn:
        refuse(
            "first_lsn",
            first_lsn,
            f"the machine has applied LSN {applied_lsn}; leave first_lsn out to continue",
            applied_lsn,
        )
    return log._range(first_lsn, last_lsn)
