"""Compaction of a log that is open for writing: survey, rewrite, publish, group by group, oldest first.

Each group is published by itself: in one replacement of the manifest the new segment takes the place of the old ones.
A crash leaves the old set or the new; the state that the log tells is the same at every moment, because a record goes
only after, or together with, what supersedes it has been made durable, and a tombstone only after what it suppresses.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from walkit.compaction.planner import SegmentLoad, candidates, plan_groups
from walkit.compaction.report import CompactionReport, merged
from walkit.compaction.rewriter import rewrite
from walkit.compaction.selection import KeyMap, Selection
from walkit.errors import GapError, LogClosedError, OptionsError, StorageError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord
from walkit.format.names import COMPACTION_NEW_NAME
from walkit.format.segment import SegmentHeader, segment_name
from walkit.log.engine import LogEngine
from walkit.log.holds import live_holds
from walkit.log.reader import LogView, Span
from walkit.log.report import PhaseClock
from walkit.log.segments import segment_order
from walkit.log.sidecar import files_of, index_segment

Group = tuple[SegmentRecord, ...]


@dataclass(slots=True)
class _Work:
    """One compaction under way."""

    view: LogView
    exact_lsn: int
    """No state above it may be changed, and no record above it supersedes."""
    horizon_lsn: int
    segments: Group
    keys: KeyMap = field(default_factory=KeyMap)
    blocked: set[bytes] = field(default_factory=set)
    rewritten: list[tuple[Group, SegmentRecord]] = field(default_factory=list)
    kept: int = 0
    tombstones: int = 0


class Compactor:
    """Compacts the log of a store; one compaction at a time, from any thread.

    `upto()` brings the state to what is acknowledged and durable and returns that LSN; `bases()` returns the LSNs of
    the snapshots that stand or are being written. Closing the log ends a compaction between two frames.
    """

    def __init__(
        self, engine: LogEngine, upto: Callable[[], int], bases: Callable[[], Sequence[int]]
    ) -> None:
        self._engine, self._upto, self._bases = engine, upto, bases
        self._lock = threading.RLock()
        self._ended = False
        self._needless: list[str] = []
        """Segments of compactions that failed; to be removed by the next one."""
        engine.closers.insert(0, self.end)

    def end(self) -> None:
        """End what is under way between two frames, and refuse what comes later."""
        self._ended = True
        with self._lock:
            pass

    def compact(self, exact_from_lsn: int | None = None) -> CompactionReport:
        """Compact; see `Store.compact`."""
        if exact_from_lsn is not None and (type(exact_from_lsn) is not int or exact_from_lsn < 0):
            raise OptionsError(
                f"exact_from_lsn={exact_from_lsn!r}: an LSN, or None",
                option="exact_from_lsn",
                wanted=exact_from_lsn,
            )
        clock = PhaseClock()
        self._go_on()  # in a forked child nobody ever frees the lock
        with self._lock:
            self._go_on()
            with clock.phase("log"):
                upto = self._upto()
            with clock.phase("survey") as detail:
                self._remove_left_over()
                self._engine.segments.upkeep.drain()  # what it is about to seal can be compacted, too
                before = self._engine.store.current.sealed
                work = self._survey(upto if exact_from_lsn is None else min(upto, exact_from_lsn))
                groups = self._plan(work)
                detail["segments"], detail["groups"] = len(work.segments), len(groups)
            for group in groups:
                if not self._compact_group(work, group, clock):
                    break
            with clock.phase("tidy"), self._engine.trimming:
                self._engine.leftovers.remove()
        return self._report(work, before, clock)

    def _go_on(self) -> None:
        if self._ended or self._engine.closed:
            raise LogClosedError(f"the log at {self._engine.storage.location} is closed; compaction ended")

    def _remove_left_over(self) -> None:
        """Remove what a compaction that failed has left, once no manifest on stable storage can name it."""
        storage = self._engine.storage
        try:
            storage.remove(COMPACTION_NEW_NAME)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
        if self._needless:
            # Where the failure was that of the manifest, the one on stable storage may name it. The next one does not.
            self._engine.store.update(lambda manifest: manifest.next())
            with self._engine.trimming:
                self._engine.leftovers.add(self._needless)
            self._needless.clear()

    # -- what there is

    def _survey(self, upto: int) -> _Work:
        """Decide what may be rewritten, what may supersede it, and up to where tombstones may go."""
        engine = self._engine
        bases = self._bases()
        view = engine.view()
        manifest = view.manifest
        holds = live_holds(engine, manifest)
        exact = min([upto, *(h.first_lsn - 1 for h in holds)])
        horizon = min(bases) if bases else 0 if manifest.low_watermark else exact
        segments = candidates(manifest.sealed, exact)
        return _Work(view, exact, horizon, segments)

    def _plan(self, work: _Work) -> list[Group]:
        """Read the keys of all that may be rewritten, and of what is behind it, and say what is worth rewriting."""
        low, view = work.view.manifest.low_watermark, work.view
        counts: list[tuple[SegmentRecord, int]] = []
        for record in work.segments:
            events = 0
            for batch in _part(view, (record,)).batches(max(record.first_lsn, low + 1), record.last_lsn):
                self._go_on()
                events += batch.column("key").null_count
                work.keys.add(batch)
            counts.append((record, events))
        if not work.segments:
            return []
        behind = work.segments[-1].last_lsn + 1
        for batch in view.batches(behind, work.exact_lsn) if behind <= work.exact_lsn else ():
            self._go_on()
            work.keys.add_later(batch)
        kept = work.keys.kept_lsns(work.horizon_lsn)
        loads, at = [], 0
        for record, events in counts:
            begun = at
            while at < len(kept) and kept[at] <= record.last_lsn:
                at += 1
            loads.append(SegmentLoad(record, record.records - events - (at - begun)))
        return plan_groups(loads, self._engine.options.segment_bytes - SEGMENT_HEADER_BYTES)

    # -- one group

    def _compact_group(self, work: _Work, group: Group, clock: PhaseClock) -> bool:
        """Rewrite and publish one group; False where a hold has come that needs it, and so all behind it."""
        engine = self._engine
        selection = Selection(
            work.keys, work.view.manifest.low_watermark, work.horizon_lsn, frozenset(work.blocked)
        )
        try:
            with clock.phase("rewrite"):
                record = self._rewrite(work, group, selection)
        except GapError:
            if self._stands(engine.store.current, group):
                raise
            return True  # trimmed meanwhile: there is nothing left to compact
        if record is None:
            work.blocked |= selection.superseded
            work.kept += len(group)
            return True
        with clock.phase("publish"):
            outcome = self._publish(work, group, record, selection)
        if outcome:
            work.rewritten.append((group, record))
            work.tombstones += selection.tombstones
            engine.events.emit(
                "walkit.compaction.publish",
                number=record.number,
                segments=len(group),
                bytes_before=sum(s.size_bytes for s in group),
                bytes_after=record.size_bytes,
            )
        return outcome or not self._stands(engine.store.current, group)

    @staticmethod
    def _stands(manifest: Manifest, group: Group) -> bool:
        sealed = {s.number for s in manifest.sealed}
        return all(s.number in sealed for s in group)

    def _rewrite(self, work: _Work, group: Group, selection: Selection) -> SegmentRecord | None:
        """Write the group under the temporary name, then under that of a new segment; None where it stays as it is."""
        engine = self._engine
        storage, view = engine.storage, _part(work.view, group)
        number = self._take_number()
        headers = [_header_of(view, record) for record in group]
        file = storage.open(COMPACTION_NEW_NAME, "create")
        done = False
        try:
            record = rewrite(
                file,
                view,
                headers,
                selection,
                number=number,
                codec=engine.options.codec,
                created_us=time.time_ns() // 1000,
                go_on=self._go_on,
            )
            done = record is not None
        finally:
            file.close()
            if not done:
                with suppress(StorageError):
                    storage.remove(COMPACTION_NEW_NAME)
        if record is not None:
            try:
                storage.replace(COMPACTION_NEW_NAME, record.name)
                storage.sync_directory()
            except StorageError:
                self._needless.append(record.name)
                raise
        return record

    def _take_number(self) -> int:
        """Return the number of the new segment; one whose file name somebody else has taken is passed over."""
        engine = self._engine
        while True:
            number = engine.store.take_number()
            try:
                engine.storage.open(segment_name(number), "read").close()
            except StorageError as error:
                if error.errno == errno.ENOENT:
                    return number
                raise

    def _publish(self, work: _Work, group: Group, record: SegmentRecord, selection: Selection) -> bool:
        """Put the new segment in the place of the old ones, unless they have been trimmed or are held by now."""
        engine = self._engine
        published = False

        def change(manifest: Manifest) -> Manifest:
            nonlocal published
            published = False
            holds = live_holds(engine, manifest)
            if not self._stands(manifest, group) or any(h.first_lsn <= work.exact_lsn for h in holds):
                return manifest
            published = True
            others = tuple(s for s in manifest.segments if s not in group)
            return manifest.next(
                segments=tuple(sorted((*others, record), key=segment_order)),
                next_segment=max(manifest.next_segment, record.number + 1),
                exact_from_lsn=max(manifest.exact_from_lsn, selection.exact_from_lsn),
                tombstones_from_lsn=max(manifest.tombstones_from_lsn, selection.tombstones_from_lsn),
                holes=tuple(
                    h
                    for h in manifest.holes
                    if h.end_position <= group[0].start_position or h.start_position >= group[-1].end_position
                ),
                holds=holds,
            )

        with engine.trimming:
            self._go_on()
            self._needless.append(record.name)
            engine.store.update(change)
            self._needless.remove(record.name)
            engine.leftovers.add(files_of(group if published else [record]))
            engine.leftovers.remove()
        if published:
            index_segment(engine.storage, engine.identity.log_id, record)
        return published

    def _report(self, work: _Work, before: Sequence[SegmentRecord], clock: PhaseClock) -> CompactionReport:
        old = [s for group, _ in work.rewritten for s in group]
        new = [record for _, record in work.rewritten]
        manifest = self._engine.store.current
        records, size = sum(s.records for s in before), _file_bytes(before)
        return CompactionReport(
            location=self._engine.storage.location,
            records_before=records,
            records_after=records - sum(s.records for s in old) + sum(s.records for s in new),
            bytes_before=size,
            bytes_after=size - _file_bytes(old) + _file_bytes(new),
            segments_before=len(before),
            segments_after=len(before) - len(old) + len(new),
            segments_rewritten=len(old),
            segments_kept=work.kept,
            tombstones_dropped=work.tombstones,
            exact_from_lsn=manifest.exact_from_lsn,
            complete_from_lsn=manifest.complete_from_lsn,
            phases=merged(clock.phases),
        )


def _part(view: LogView, group: Group) -> LogView:
    """Return the view of these segments alone."""
    return replace(view, spans=tuple(Span(s, s.end_position, s.last_lsn) for s in group))


def _header_of(view: LogView, record: SegmentRecord) -> SegmentHeader:
    file = view.open(record)
    try:
        header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
    finally:
        file.close()
    view.check(record, header)
    assert header is not None
    return header


def _file_bytes(records: Sequence[SegmentRecord]) -> int:
    return sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in records)
