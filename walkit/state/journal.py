"""The journal of a store: a ring of slots, one for each record that no checkpoint has saved, found by `lsn mod slots`.

Iggy's metadata journal is the source (PR #2916, #3692, #4009). There the ring is the index of the log's only copy, so
that a slot taken twice is a record lost. Here the log keeps every record whatever the ring holds; the ring bounds how
far the log may run ahead of the newest checkpoint, and so how much an opening replays, and it finds a record's frame
without a walk. So admission is arithmetic: a record whose slot still belongs to one that is not saved is refused before
anything of it is queued (`walkit.state.admission`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from walkit.commit.frame import SealedFrame
from walkit.config import StoreOptions
from walkit.errors import OptionsError
from walkit.format.layout import SegmentFlag
from walkit.log.engine import LogEngine
from walkit.log.reader import LogView, frames_to_batches
from walkit.log.report import report_html
from walkit.log.wal import WriteAheadLog
from walkit.log.walk import FrameWalk
from walkit.record import Batch, Record
from walkit.state.admission import Admission
from walkit.state.checkpoint import Checkpointer, CheckpointThread
from walkit.text import counted


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Where a record is: its slot in the ring, and the position of the frame that it was written in.

    Compaction may have given what is left of that frame another position since.
    """

    lsn: int
    slot: int
    position: int


class Ring:
    """Slots of (LSN, position), indexed by `lsn mod slots`; 16 bytes each. A newer LSN takes the place of an older one.

    One thread at a time puts, any may look up meanwhile: an entry is emptied before it is changed.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._lsns = array("q", bytes(8 * slots))
        self._positions = array("q", bytes(8 * slots))

    def put(self, first_lsn: int, last_lsn: int, position: int) -> None:
        """Enter the records of one frame."""
        lsns, positions = self._lsns, self._positions
        if first_lsn == last_lsn:
            slot = first_lsn % self.slots
            lsns[slot] = 0
            positions[slot] = position
            lsns[slot] = first_lsn
            return
        numbers = np.arange(max(first_lsn, last_lsn - self.slots + 1), last_lsn + 1)
        taken = numbers % self.slots
        entries = np.frombuffer(lsns, np.int64)
        entries[taken] = 0
        np.frombuffer(positions, np.int64)[taken] = position
        entries[taken] = numbers

    def position_of(self, lsn: int) -> int | None:
        """Return the position of the frame that holds this LSN; None where its slot holds another one, or none."""
        slot = lsn % self.slots
        if lsn < 1 or self._lsns[slot] != lsn:
            return None
        position = self._positions[slot]
        return position if self._lsns[slot] == lsn else None


class Journal:
    """The ring of an open store, and who may still enter it. Safe from any thread."""

    def __init__(self, engine: LogEngine, admission: Admission) -> None:
        """Enter what is in the log above the newest checkpoint, as far back as there are slots; reads headers alone."""
        self._engine = engine
        self._admission = admission
        self._ring = Ring(admission.slots)
        last = engine.core.acked_lsn
        first = max(admission.checkpoint_lsn + 1, last - admission.slots + 1, engine.first_lsn)
        if first <= last:
            for header, _, _ in engine.view().frames(first, last, body=False):
                self._ring.put(header.first_lsn, header.last_lsn, header.position)
        engine.core.sinks = (*engine.core.sinks, self._feed)

    def _feed(self, frame: SealedFrame) -> None:
        """Take a frame that is acknowledged: the log's sink."""
        self._ring.put(frame.first_lsn, frame.last_lsn, frame.position)

    @property
    def slots(self) -> int:
        """How many records after the newest checkpoint there may be."""
        return self._ring.slots

    @property
    def checkpoint_lsn(self) -> int:
        """Records up to here are saved in a snapshot; their slots may be taken."""
        return self._admission.checkpoint_lsn

    @property
    def remaining_capacity(self) -> int:
        """How many records may be appended before the next checkpoint."""
        return self._admission.remaining()

    def lookup(self, lsn: int) -> JournalEntry | None:
        """Return where an acknowledged record is; None where the ring has it no more, the log has dropped it, or never.

        A record that is saved may be found until another one takes its slot.
        """
        position = self._ring.position_of(lsn)
        if position is None or lsn < self._engine.first_lsn:
            return None
        return JournalEntry(lsn, lsn % self.slots, position)

    def record(self, lsn: int) -> Record | None:
        """Read the record of an LSN, one frame of the log alone; None where `lookup` finds nothing.

        Of what was compacted since, a segment is read; None where the record was superseded and dropped.
        CorruptionError where the frame is not intact, GapError where the log drops it meanwhile.
        """
        entry = self.lookup(lsn)
        return None if entry is None else _read(self._engine.view(), entry)

    def __repr__(self) -> str:
        return f"<Journal of {counted(self.slots, 'slot')}, {self.remaining_capacity:,} free>"

    def _repr_html_(self) -> str:
        return report_html(
            "Journal",
            [
                ("slots", f"{self.slots:,}"),
                ("checkpoint at LSN", f"{self.checkpoint_lsn:,}"),
                ("room for records", f"{self.remaining_capacity:,}"),
                ("a checkpoint is forced at room for", f"{self._admission.margin:,}"),
            ],
        )


def _read(view: LogView, entry: JournalEntry) -> Record | None:
    span = next((s for s in view.spans if s.record.start_position <= entry.position < s.end_position), None)
    if span is None or span.record.flags & SegmentFlag.COMPACTED:
        return next(view.records(entry.lsn, entry.lsn), None)
    file, segment = view.opened(span)
    try:
        if entry.position < segment.start_position:
            return None  # trimmed meanwhile
        walk = FrameWalk(file, segment, position=entry.position, end_position=span.end_position)
        for frame in walk:
            for batch in frames_to_batches(iter([frame]), entry.lsn, entry.lsn):
                return next(iter(Batch.from_arrow(batch)), None)
        view.refuse(walk, span)
    finally:
        file.close()
    return None


def check_slots(options: StoreOptions, engine: LogEngine, restored_lsn: int) -> None:
    """Refuse a ring in which two records that are in no checkpoint would have one slot (Iggy #4009).

    A snapshot that stands and cannot be read counts here: an older one was restored then, and the first thing that
    the opening does is to take another.
    """
    slots, last_lsn = options.journal_slots, engine.core.acked_lsn
    saved_lsn = max(restored_lsn, engine.store.current.checkpoint_lsn)
    live = last_lsn - saved_lsn
    if slots is not None and live > slots:
        raise OptionsError(
            f"journal_slots={slots:,}, and {live:,} records are in no checkpoint (LSN {saved_lsn + 1:,} to "
            f"{last_lsn:,}): two of them would have one slot. Nothing was dropped. Open the store with {live:,} slots "
            "or more, or without a journal, take a checkpoint, and open it again with fewer",
            option="journal_slots",
            wanted=slots,
            stored=live,
        )


def start_journal(log: WriteAheadLog, checkpointer: Checkpointer, options: StoreOptions) -> Journal | None:
    """Begin what the options ask for beside the table: a journal, and a thread that takes checkpoints."""
    engine, slots, after = checkpointer.engine, options.journal_slots, options.checkpoint_after
    journal = admission = None
    if slots is not None:
        admission = Admission(engine, slots, options.margin, checkpointer.snapshot_lsn)
        checkpointer.on_snapshot = admission.saved
        journal = Journal(engine, admission)
        log.admit_through(admission, max(slots // 4, 1))
    if after is not None:
        by_itself = CheckpointThread(checkpointer, after, log.location, admission)
        engine.core.sinks = (*engine.core.sinks, by_itself.feed)
    return journal
