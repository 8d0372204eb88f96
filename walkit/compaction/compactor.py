"""Compaction of a log that is open for writing: survey, rewrite, publish, group by group, oldest first.

Each group is published by itself: in one replacement of the manifest the new segment takes the place of the old ones.
A crash leaves the old set or the new; the state of the log is the same at every moment, because a record goes
only after, or together with, its successor has become durable, and a tombstone only after the records it suppresses.

A limit in bytes per second leaves the device to foreground work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from walkit._internal.arguments import check_number, check_progress, check_whole
from walkit._internal.locks import WORK, alone, marked, once
from walkit._internal.report import PhaseClock
from walkit._internal.threads import Latch
from walkit._main_thread import end_if_abandoned, ending_early, run_uninterrupted
from walkit.compaction.planner import (
    Group,
    SegmentLoad,
    candidates,
    file_bytes,
    frame_bytes,
    plan_groups,
)
from walkit.compaction.report import CompactionReport, merged
from walkit.compaction.rewriter import KeyMap, Selection, copy_frames, rewrite
from walkit.config import LogOptions
from walkit.errors import GapError, LogClosedError
from walkit.events import EventSink
from walkit.format.file_names import COMPACTION_NEW_NAME
from walkit.format.layout import IN_BULKS, SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord
from walkit.log.claims import ClaimTable
from walkit.log.live_log import Contents, Lifetime, Segments
from walkit.read.view import View
from walkit.segments.index_file import index_segment
from walkit.segments.manifest_store import Manifests
from walkit.segments.orphan_files import Orphans
from walkit.segments.rewrite import NewSegment, SegmentReplacer
from walkit.storage.interface import Storage, StorageFile


class Throttle:
    """Waits after each piece of work for as long as its bytes may take; without a rate it never waits.

    Time that was not used is not saved up: after a pause the work does not go faster than the rate. For one thread.
    """

    def __init__(
        self,
        bytes_per_s: float | None,
        wait: Callable[[float], object],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._rate, self._wait, self._clock = bytes_per_s, wait, clock or time.monotonic
        self._due_s = 0.0
        self.bytes = 0
        """Bytes of work so far."""

    def spend(self, size_bytes: int) -> None:
        """Note work that was done, and wait until more may be."""
        self.bytes += size_bytes
        if self._rate is None:
            return
        now = self._clock()
        self._due_s = max(self._due_s, now) + size_bytes / self._rate
        self._wait(self._due_s - now)


CompactionProgress = Callable[[str, int, int], None]
"""Called with ("survey", bytes of frames done, bytes in all), then with ("rewrite", the same of rewritten ones)."""


@dataclass(slots=True)
class _Work:
    """One compaction under way."""

    view: View
    exact_lsn: int
    """No state above it may be changed, and no record above it supersedes."""
    horizon_lsn: int
    segments: Group
    throttle: Throttle
    progress: CompactionProgress | None
    waste_ratio: float
    keys: KeyMap = field(default_factory=KeyMap)
    blocked: set[bytes] = field(default_factory=set)
    rewritten: list[tuple[Group, SegmentRecord]] = field(default_factory=list)
    kept: int = 0
    left: int = 0
    written: int = 0
    tombstones: int = 0


class Compactor:
    """Compacts the log of a store; one compaction at a time, from any thread.

    `sync_and_apply()` makes acknowledged records durable, applies them to the state, and returns their last LSN;
    `snapshot_lsns()` returns those of the snapshots that exist or are being written. Closing the log ends a compaction
    between two frames.
    """

    def __init__(
        self,
        storage: Storage,
        options: LogOptions,
        manifest_store: Manifests,
        segments: Segments,
        contents: Contents,
        claims: ClaimTable,
        orphan_files: Orphans,
        lifetime: Lifetime,
        events: EventSink,
        *,
        sync_and_apply: Callable[[], int],
        snapshot_lsns: Callable[[], Sequence[int]],
    ) -> None:
        self._storage, self._options, self._events = storage, options, events
        self._manifest_store, self._segments, self._contents = manifest_store, segments, contents
        self._claims, self._orphan_files, self._lifetime = claims, orphan_files, lifetime
        self._sync_and_apply, self._snapshot_lsns = sync_and_apply, snapshot_lsns
        # Held through one compaction. Taken first, before the claims' lock, that of the orphan files and the
        # manifest's; `end` takes it to wait for the compaction under way.
        self._lock = threading.Lock()
        self._ended = Latch()
        self._replacer = SegmentReplacer(storage, manifest_store, orphan_files, COMPACTION_NEW_NAME)
        lifetime.on_close(self.end, first=True)

    def end(self) -> None:
        """End a running compaction between two frames, and refuse later ones."""
        self._ended.set()
        with marked(WORK), self._lock:
            pass

    def compact(
        self,
        exact_from_lsn: int | None = None,
        *,
        waste_ratio: float = 0.0,
        bytes_per_s: float | None = None,
        progress: CompactionProgress | None = None,
    ) -> CompactionReport:
        """Compact; see `Store.compact`."""
        check_whole(exact_from_lsn, "exact_from_lsn", 0, or_none=True)
        check_number(waste_ratio, "waste_ratio", 0, 1)
        check_number(bytes_per_s, "bytes_per_s", 1, or_none=True)
        check_progress(progress, "(phase, done, total)")
        throttle = Throttle(bytes_per_s, self._ended.wait)
        self._refuse_closed()  # in a forked child no thread ever frees the lock

        def work() -> CompactionReport:
            guarded = ending_early(progress)
            return self._compact(exact_from_lsn, waste_ratio, throttle, guarded)

        return run_uninterrupted(work, "compact", events=self._events)

    def _compact(
        self,
        exact_from_lsn: int | None,
        waste_ratio: float,
        throttle: Throttle,
        progress: CompactionProgress | None,
    ) -> CompactionReport:
        clock = PhaseClock()
        self._segments.maintenance.refuse_current()
        with self._events.held(), alone(WORK), self._lock:
            self._refuse_closed()
            with clock.phase("log"):
                upto = self._sync_and_apply()
            with clock.phase("survey") as detail:
                self._replacer.clear()
                self._segments.settle()
                exact = upto if exact_from_lsn is None else min(upto, exact_from_lsn)
                while True:
                    before = self._manifest_store.current.sealed
                    work = self._survey(exact, throttle, progress, waste_ratio)
                    try:
                        groups = self._plan(work)
                        break
                    except GapError:  # trimmed meanwhile: the rest is surveyed
                        if self._after_trim().low_watermark == work.view.manifest.low_watermark:
                            raise
                detail["segments"], detail["groups"] = len(work.segments), len(groups)
            total, done = sum(frame_bytes(g) for g in groups), 0
            for group in groups:
                if progress is not None:
                    progress("rewrite", done, total)
                done += frame_bytes(group)
                if not self._compact_group(work, group, clock):
                    break
            if progress is not None and groups:
                progress("rewrite", total, total)
            with clock.phase("tidy"), once(self._orphan_files.lock), self._orphan_files.lock:
                self._orphan_files.remove()
        return self._report(work, before, clock)

    def _refuse_closed(self) -> None:
        if self._ended.is_set() or self._lifetime.closed:
            raise LogClosedError(f"the log at {self._storage.location} is closed; compaction ended")

    def _refuse_ended(self) -> None:
        """End between two frames if the log closes, or the caller was interrupted."""
        end_if_abandoned()
        self._refuse_closed()

    # -- the survey

    def _survey(
        self, upto: int, throttle: Throttle, progress: CompactionProgress | None, waste_ratio: float
    ) -> _Work:
        """Decide which records may be rewritten or supersede others, and up to where tombstones may go."""
        snapshots = self._snapshot_lsns()
        view = self._contents.view()
        manifest = view.manifest
        needed = self._claims.oldest_needed(manifest)
        exact = upto if needed is None else min(upto, needed - 1)
        horizon = min(snapshots) if snapshots else 0 if manifest.low_watermark else exact
        segments = candidates(manifest.sealed, exact)
        return _Work(view, exact, horizon, segments, throttle, progress, waste_ratio)

    def _plan(self, work: _Work) -> list[Group]:
        """Read the keys of all candidates and of later segments, and return the groups that are worth rewriting."""
        low, view = work.view.manifest.low_watermark, work.view
        counts: list[tuple[SegmentRecord, int]] = []
        total, done = frame_bytes(work.segments), 0
        for record in work.segments:
            events = 0
            if work.progress is not None:
                work.progress("survey", done, total)
            for batch in view.batches(max(record.first_lsn, low + 1), record.last_lsn):
                self._refuse_ended()
                events += batch.column("key").null_count
                work.keys.add(batch)
            done += record.size_bytes
            work.throttle.spend(record.size_bytes)
            counts.append((record, events))
        if not work.segments:
            return []
        after = work.segments[-1].last_lsn + 1
        for batch in view.batches(after, work.exact_lsn):
            self._refuse_ended()
            work.keys.add_later(batch)
            work.throttle.spend(batch.nbytes)
        kept = work.keys.kept_lsns(work.horizon_lsn)
        loads, at = [], 0
        for record, events in counts:
            begun = at
            while at < len(kept) and kept[at] <= record.last_lsn:
                at += 1
            loads.append(SegmentLoad(record, record.records - events - (at - begun)))
        groups = plan_groups(loads, self._options.segment_bytes - SEGMENT_HEADER_BYTES, work.waste_ratio)
        rewritten = {record.number for group in groups for record in group}
        for load in loads:
            if load.droppable and load.record.number not in rewritten:
                work.left += 1
                self._block(work, load.record)
        return groups

    def _block(self, work: _Work, record: SegmentRecord) -> None:
        """Note the keys of which a superseded record stays, because its segment does: their tombstones stay as well."""
        first = max(record.first_lsn, work.view.manifest.low_watermark + 1)
        for batch in work.view.batches(first, record.last_lsn):
            self._refuse_ended()
            work.throttle.spend(batch.nbytes)
            pairs = zip(batch.column("key").to_pylist(), batch.column("lsn").to_pylist(), strict=True)
            work.blocked |= {
                key for key, lsn in pairs if key is not None and work.keys.is_superseded(key, lsn)
            }

    # -- one group

    def _compact_group(self, work: _Work, group: Group, clock: PhaseClock) -> bool:
        """Rewrite and publish one group; False if it stays, as a claim needs it, or a trim has changed it.

        Then those after it stay, too: their tombstones suppress its records, and bulks go from the oldest on.
        """
        selection = Selection(
            work.keys, work.view.manifest.low_watermark, work.horizon_lsn, frozenset(work.blocked)
        )
        try:
            with clock.phase("rewrite"):
                new = self._rewrite(work, group, selection)
        except GapError:
            now = self._after_trim()
            if now.low_watermark == work.view.manifest.low_watermark and set(group) <= set(now.sealed):
                raise  # else a trim has moved the watermark, or copied the segment that straddles it
            return group[-1].last_lsn <= now.low_watermark
        if new is None:
            work.blocked |= selection.superseded
            work.kept += len(group)
            return True
        with clock.phase("publish"):
            outcome = self._publish(work, group, new, selection)
        if outcome:
            work.rewritten.append((group, new.record))
            work.tombstones += selection.tombstones
            self._events.emit(
                "walkit.compaction.publish",
                number=new.record.number,
                segments=len(group),
                bytes_before=sum(s.size_bytes for s in group),
                bytes_after=new.record.size_bytes,
            )
        return outcome or group[-1].last_lsn <= self._manifest_store.current.low_watermark

    def _after_trim(self) -> Manifest:
        """Return the manifest after a trim under way: on object storage, the claims object has that before it."""
        with self._claims.locked():
            return self._manifest_store.current

    def _rewrite(self, work: _Work, group: Group, selection: Selection) -> NewSegment | None:
        """Write the group under the temporary name, then under that of a new segment; None if it stays as it is."""
        view, number = work.view, self._replacer.number()
        headers = [view.segment_header(record) for record in group]

        def frame_read(size_bytes: int) -> None:
            self._refuse_ended()
            work.throttle.spend(size_bytes)

        def write(file: StorageFile) -> NewSegment | None:
            new = rewrite(
                file,
                view,
                group,
                headers,
                selection,
                number=number,
                codec=self._options.codec,
                frame_read=frame_read,
            )
            if new is None and group[0].flags & IN_BULKS:
                file.shorten(0)  # if they stayed, so would all later bulks, see `_publish`
                new = copy_frames(file, view, group, headers, number=number, frame_read=frame_read)
                selection.keep_all()
                work.blocked |= selection.superseded
            size = file.size()
            work.written += size
            work.throttle.spend(size if new is None else 2 * size)  # written and read back
            return new

        return self._replacer.write(write)

    def _publish(self, work: _Work, group: Group, new: NewSegment, selection: Selection) -> bool:
        """Replace the old segments by the new one, unless they are trimmed or claimed by now."""

        def facts(manifest: Manifest) -> dict[str, int] | None:
            needed = self._claims.oldest_needed(manifest)
            if needed is not None and needed <= work.exact_lsn:
                return None
            # Bulks are found by their numbers, so the files that replace some of them replace all before, too.
            low, mine = manifest.low_watermark, [s for s in group if s.flags & IN_BULKS]
            bulks = [s for s in manifest.segments if s.flags & IN_BULKS and s.last_lsn > low]
            if bulks[: len(mine)] != mine:
                return None
            return {
                "exact_from_lsn": max(manifest.exact_from_lsn, selection.exact_from_lsn),
                "tombstones_from_lsn": max(manifest.tombstones_from_lsn, selection.tombstones_from_lsn),
            }

        with (
            self._events.held(),
            self._claims.shut() as shut,
            once(self._orphan_files.lock),
            self._orphan_files.lock,
        ):
            self._refuse_closed()
            self._claims.save_below(work.exact_lsn)
            published = self._replacer.publish(group, new, facts)
            shut.reopen()
            self._orphan_files.remove()
        if published and not self._claims.takes_turns:
            index_segment(self._storage, self._manifest_store.current, new.record)
        return published

    def _report(self, work: _Work, before: Sequence[SegmentRecord], clock: PhaseClock) -> CompactionReport:
        old = [s for group, _ in work.rewritten for s in group]
        new = [record for _, record in work.rewritten]
        manifest = self._manifest_store.current
        records, size = sum(s.records for s in before), file_bytes(before)
        return CompactionReport(
            location=self._storage.location,
            records_before=records,
            records_after=records - sum(s.records for s in old) + sum(s.records for s in new),
            bytes_before=size,
            bytes_after=size - file_bytes(old) + file_bytes(new),
            segments_before=len(before),
            segments_after=len(before) - len(old) + len(new),
            segments_rewritten=len(old),
            segments_kept=work.kept,
            segments_left=work.left,
            bytes_read=work.throttle.bytes - work.written,
            bytes_written=work.written,
            tombstones_dropped=work.tombstones,
            exact_from_lsn=manifest.exact_from_lsn,
            complete_from_lsn=manifest.complete_from_lsn,
            phases=merged(clock.phases),
        )
