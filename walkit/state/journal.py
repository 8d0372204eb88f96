"""The journal of a store: a ring of slots, one for each record that no checkpoint has saved, found by `lsn mod slots`.

Iggy's metadata journal is the source (PR #2916, #3692, #4009). There the ring is the index of the log's only copy, so
that a slot taken twice is a record lost. Here the log keeps every record independently of the ring; the ring bounds how
far the log may run ahead of the newest checkpoint, and so how much an opening replays, and it finds a record's frame
without a walk. So admission is arithmetic: a record whose slot still belongs to one that is not saved is refused before
anything of it is queued (`walkit.state.admission`).
"""

from __future__ import annotations

import weakref
from array import array
from dataclasses import dataclass

import numpy as np

from walkit._internal.arguments import refuse
from walkit._internal.report import report_html
from walkit._internal.text import counted
from walkit.commit.frame import SealedFrame
from walkit.config import StoreOptions
from walkit.format.layout import SegmentFlag
from walkit.log.wal import WriteAheadLog
from walkit.read.view import LogView, View, frames_to_batches
from walkit.record import Batch, Kind, Record
from walkit.segments.frame_walk import FrameWalk
from walkit.state.admission import Admission
from walkit.state.applier import FrameFeed
from walkit.state.checkpoint import Checkpointer, CheckpointThread


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Where a record is: its slot in the ring, and the position of the frame that it was written in.

    Compaction may have given the rest of that frame another position since.
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
        """Return the position of the frame that holds this LSN; None if its slot is empty or holds another."""
        slot = lsn % self.slots
        if lsn < 1 or self._lsns[slot] != lsn:
            return None
        position = self._positions[slot]
        return position if self._lsns[slot] == lsn else None

    def _check(self) -> None:
        """Assert that each LSN is in its own slot."""
        entries = np.array(self._lsns)
        taken = np.flatnonzero(entries)
        assert bool((entries[taken] % self.slots == taken).all()), "a record in another one's slot"
        assert len(entries) == len(self._positions) == self.slots


class Journal:
    """The ring of an open store, and the admission to it. Safe from any thread."""

    def __init__(self, log: WriteAheadLog, last_lsn: int, admission: Admission) -> None:
        """Enter the log's records from the newest checkpoint to `last_lsn`, as far back as there are slots.

        Reads headers alone.
        """
        # The log's threads feed this: it must not keep the log from being dropped.
        self._log = weakref.ref(log)
        self._contents = contents = log.parts.contents
        self._admission = admission
        self._ring = Ring(admission.slots)
        first = max(admission.checkpoint_lsn + 1, last_lsn - admission.slots + 1, contents.first_lsn)
        if first <= last_lsn:
            for header, _, _ in contents.view().frames(first, last_lsn, body=False):
                self._ring.put(header.first_lsn, header.last_lsn, header.position)

    def _check(self, acked_lsn: int) -> None:
        """Assert that each record up to there is in its slot, if no checkpoint saved it and no compaction dropped it.

        Only without an append in progress.
        """
        self._ring._check()
        live = range(max(self.checkpoint_lsn + 1, self._contents.view().complete_from_lsn), acked_lsn + 1)
        assert len(live) <= self.slots, "records without a slot"
        assert all(self._ring.position_of(lsn) is not None for lsn in live)

    def feed(self, frame: SealedFrame) -> None:
        """Take a frame that is acknowledged; see AcknowledgementSink."""
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
        """Return the place of an acknowledged record; None if the ring or the log no longer has it, or never had.

        A record that is saved may be found until another one takes its slot.
        """
        position = self._ring.position_of(lsn)
        if position is None or lsn < self._contents.first_lsn:
            return None
        return JournalEntry(lsn, lsn % self.slots, position)

    def record(self, lsn: int) -> Record | None:
        """Read the record of an LSN, one frame of the log alone; None if `lookup` finds nothing.

        If it was compacted since, a segment is read; None if the record was superseded and dropped. CorruptionError if
        the frame is not intact, GapError if the log drops it meanwhile. A value in a payload log is fetched when it is
        used, as `read` does.
        """
        entry, log = self.lookup(lsn), self._log()
        record = None if entry is None else _read(self._contents.view(), entry)
        is_link = record is not None and record.kind is Kind.LINK
        return log.payloads.record(record) if record and is_link and log else record

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


def _read(view: View, entry: JournalEntry) -> Record | None:
    if not isinstance(view, LogView):
        return next(view.records(entry.lsn, entry.lsn), None)
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


def check_slots(options: StoreOptions, restored_lsn: int, checkpoint_lsn: int, last_lsn: int) -> None:
    """Refuse a ring in which two records that are in no checkpoint would have one slot (Iggy #4009).

    A snapshot that is there and cannot be read counts here: an older one was restored then, and the first thing that
    the opening does is to take another.
    """
    slots = options.journal_slots
    saved_lsn = max(restored_lsn, checkpoint_lsn)
    live = last_lsn - saved_lsn
    if slots is not None and live > slots:
        text = f"{live:,} records are in no checkpoint (LSN {saved_lsn + 1:,} to {last_lsn:,}), and each needs a slot"
        remedy = f"Open with {live:,} slots or more, or without a journal, and take a checkpoint; then fewer are enough"
        refuse("journal_slots", slots, f"{text}. Nothing was dropped. {remedy}", live)


def admission_of(options: StoreOptions, on_full: str) -> Admission | None:
    """Return the gate that the log of a store with a journal is opened with; None for a store without one."""
    slots = options.journal_slots
    return None if slots is None else Admission(slots, options.margin, refuses=on_full == "raise")


def start_journal(
    log: WriteAheadLog,
    checkpointer: Checkpointer,
    options: StoreOptions,
    feed: FrameFeed,
    admission: Admission | None,
) -> Journal | None:
    """Start the parts that the options add to the table: a journal, and a thread that takes checkpoints."""
    parts, journal, after = log.parts, None, options.checkpoint_after
    core = parts.core
    if admission is not None:
        admission.begin(checkpointer.snapshot_lsn)
        checkpointer.on_snapshot = admission.saved
        parts.lifetime.on_close(admission.end, first=True)
        journal = Journal(log, core.acked_lsn, admission)
        feed.add(journal.feed)
    if after is not None:
        by_itself = CheckpointThread(
            checkpointer, after, parts.storage.location, core, parts.lifetime, parts.events, admission
        )
        feed.add(by_itself.feed)
    return journal
