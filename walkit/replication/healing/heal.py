"""`walkit.replication.heal`: damaged sealed segments of a log get the frames of a peer that has the same ones.

A segment is asked for as the range of positions that the manifest says it has, since a peer cuts its segments
elsewhere. The received frames follow the log before that range, and end as the manifest says, by chain, LSN and
position: so they are the frames that were there (FORMAT.md F-20).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from walkit._internal.arguments import check_progress
from walkit._internal.report import Cells, TableReport
from walkit._internal.text import counted, unread
from walkit._main_thread import end_if_abandoned, ending_early, run_uninterrupted
from walkit.copier.segment_check import check_segment
from walkit.errors import CorruptionError, FormatVersionError, GapError, StorageError
from walkit.format.file_names import HEAL_NEW_NAME
from walkit.format.layout import ALIGNMENT_BUFFERED, SEGMENT_HEADER_BYTES, SegmentFlag, align_up
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.recovery.apply import keep_part
from walkit.recovery.log_scan import read_durable_slot, scan_log
from walkit.recovery.plan import make_plan
from walkit.recovery.repair import snapshots_not_read
from walkit.recovery.survey import PASSING_ERRNOS, TolerantFile
from walkit.replication.healing.link import RangeLink
from walkit.replication.logs.folder_role import is_replica
from walkit.replication.protocol.frame_run import FrameRun
from walkit.replication.transport.connection import Destination, destination_of
from walkit.replication.transport.tls import ClientTLS
from walkit.segments.index_file import index_segment
from walkit.segments.manifest_store import LOST_FOLDER, load_manifest
from walkit.segments.rewrite import NewSegment, write_segment
from walkit.segments.writer_lock import refuse_a_writer, take_writer_lock
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import Storage, StorageFile

Progress = Callable[[int, int], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class HealedSegment:
    """The outcome for one damaged segment. LSNs are inclusive, positions half-open."""

    segment: str
    healed: bool
    """Whether it is whole now or, of a dry run, would be."""
    ranges: tuple[tuple[int, int], ...]
    """Fetched positions of the segment, from and until; empty if nothing was fetched."""
    bytes_fetched: int
    reason: str
    """Why it was not healed; "" if it was."""
    kept_as: str
    """Where the damaged file is kept; "" if it was missing, or nothing was changed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealReport(TableReport):
    """The outcome of healing a log from a peer; after a dry run, the outcome to expect."""

    title: ClassVar[str] = "Healed from a peer"

    location: str
    source: str
    dry_run: bool
    segments: tuple[HealedSegment, ...]
    """The damaged ones, in log order."""
    segments_checked: int
    not_read: str
    """The parts that were not read, for people; empty if all were read."""
    duration_s: float

    @property
    def ok(self) -> bool | None:
        """Whether no damage is left; None for no damage found if not all was read."""
        return False if not all(s.healed for s in self.segments) else None if self.not_read else True

    @property
    def changed(self) -> bool:
        """Whether any file was, or would be, changed."""
        return any(segment.healed for segment in self.segments)

    @property
    def notes(self) -> list[str]:
        """The outcome, in one sentence."""
        healed = sum(segment.healed for segment in self.segments)
        said = f"the frames of {counted(self.segments_checked, 'segment')} checked, no damage"
        if self.segments:
            did = "would be healed" if self.dry_run else "healed"
            said = f"{healed:,} of {counted(len(self.segments), 'damaged segment')} {did} from {self.source}"
        return [f"{self.location}: {said}{unread(self.not_read)}"]

    def _head(self) -> Cells:
        return ("segment", "positions", "bytes fetched", "outcome") if self.segments else ()

    def _cells(self) -> list[Cells]:
        did = "would be healed" if self.dry_run else "healed"
        return [
            (
                s.segment,
                ", ".join(f"{start:,} to {end:,}" for start, end in s.ranges),
                f"{s.bytes_fetched:,}",
                s.reason or (f"{did}; the damaged file is {s.kept_as}" if s.kept_as else did),
            )
            for s in self.segments
        ]

    def _facts(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.ok, "changed": self.changed}


def heal(
    log: Place,
    source: str,
    *,
    dry_run: bool = False,
    token: str | None = None,
    tls: ClientTLS | None = None,
    insecure: bool = False,
    progress: Progress | None = None,
) -> HealReport:
    """Give the damaged sealed segments of a log that is not open the frames of a peer; durable on return.

    `log` may be a primary's folder or a replica's, `source` is HOST:PORT of a `Primary` of the same log: of its
    primary, of a replica, of a copy. Every frame of a sealed segment is read; a damaged or missing one is fetched
    whole. A peer's frames are used only if they follow the log before them, and end as the manifest says, by chain,
    LSN, position and epoch; the damaged file is kept under lost+found. A crash leaves each segment as it was or healed,
    and the same call does the rest. `dry_run` fetches and checks the same frames, and changes nothing.

    Not healed, and named in the report, are compacted segments, those with a recorded hole or lost range, and an
    unsealed one that the next opening refuses: which of its frames there were, no peer can prove. Snapshots and the
    manifest are not healed either. `progress` is called with (bytes read, bytes to read).

    A peer that lacks a range, has compacted it, or has other frames there, leaves that segment as it was; the report
    has the reason. DivergenceError if the peer has another log or history, LogLockedError while a writer is open,
    PeerError for a failure that another try may fix; OptionsError, LogNotFoundError, NotALogError, CorruptionError (the
    manifest), StorageError.
    """
    destination = destination_of(source, token, tls, insecure)
    check_progress(progress, "(bytes read, bytes to read)")
    storage = storage_at(log)
    load_manifest(storage)  # a folder without a log gets no lock file
    began = time.perf_counter()

    def healed() -> HealReport:
        segments, checked = _heal(storage, destination, ending_early(progress), dry_run)
        return HealReport(
            location=storage.location,
            source=destination.address,
            dry_run=dry_run,
            segments=segments,
            segments_checked=checked,
            not_read=snapshots_not_read(storage),
            duration_s=time.perf_counter() - began,
        )

    return run_uninterrupted(healed, "heal")


def _heal(
    storage: Storage, peer: Destination, progress: Progress | None, dry_run: bool
) -> tuple[tuple[HealedSegment, ...], int]:
    if dry_run:
        refuse_a_writer(storage)
        return _heal_locked(storage, peer, progress, dry_run=True)
    lock = take_writer_lock(storage)
    try:
        return _heal_locked(storage, peer, progress, dry_run=False)
    finally:
        lock.release()


def _heal_locked(
    storage: Storage, peer: Destination, progress: Progress | None, *, dry_run: bool
) -> tuple[tuple[HealedSegment, ...], int]:
    manifest = load_manifest(storage)
    damaged = _damaged(storage, manifest, progress)
    outcomes = [_outcome(record, reason) for record, reason in damaged if reason]
    healable = [record for record, reason in damaged if not reason]
    if healable:
        with RangeLink(peer, max(record.size_bytes for record in healable)) as link:
            healer = _Healer(storage, manifest, link, dry_run)
            outcomes += [healer.heal(record) for record in healable]
    outcomes.sort(key=lambda outcome: outcome.segment)
    if not damaged or not dry_run:  # of a log that is as damaged as before an opening says no more than that
        known = {outcome.segment for outcome in outcomes if not outcome.healed}
        outcomes += _left_over(storage, manifest, known)
    return tuple(outcomes), len(manifest.segments)


def _damaged(
    storage: Storage, manifest: Manifest, progress: Progress | None
) -> list[tuple[SegmentRecord, str]]:
    """Return the damaged sealed segments, each with the reason to skip it, or "". Reads every frame."""
    found, done = [], 0
    total = sum(record.size_bytes for record in manifest.sealed)
    for record in manifest.sealed:
        try:
            check_segment(storage, manifest, record, step=end_if_abandoned)
        except FormatVersionError as error:
            found.append((record, str(error)))
        except (CorruptionError, StorageError) as error:
            if isinstance(error, StorageError) and error.errno in PASSING_ERRNOS:
                raise
            found.append((record, _skip_reason(manifest, record)))
        done += record.size_bytes
        if progress is not None:
            progress(done, total)
    return found


def _skip_reason(manifest: Manifest, record: SegmentRecord) -> str:
    if record.flags & SegmentFlag.COMPACTED:
        return "it was compacted: a peer has other frames there, or none"
    if manifest.epoch_of(record.epoch) is None:
        return "the manifest does not know its epoch"
    return "a hole or a lost range is recorded within it" if manifest.gaps_of(record) else ""


def _left_over(storage: Storage, manifest: Manifest, known: set[str]) -> list[HealedSegment]:
    """Return the segment for which the next opening refuses the log, if it is not a known one."""
    try:
        make_plan(scan_log(storage, manifest, read_durable_slot(storage)), "prefix")
    except (CorruptionError, StorageError, FormatVersionError) as refusal:
        name = refusal.name if isinstance(refusal, StorageError) else getattr(refusal, "segment", None)
        record = next((record for record in manifest.segments if record.name == name), None)
        if name not in known:
            reason = str(refusal)
            if record in manifest.unsealed:
                reason = f"{reason}. {NEW_REPLICA if is_replica(storage, manifest) else PROMOTE_OR_SALVAGE}"
            return [_outcome(record or name or "", reason)]
    return []


PROMOTE_OR_SALVAGE = (
    "No peer can prove which frames an unsealed segment had. Promoting a replica (`walkit promote`) loses the "
    "acknowledged records that had not been sent to it; `walkit repair --policy salvage` of this log keeps all that "
    "are intact here"
)
NEW_REPLICA = "An unsealed segment of a replica is not healed: begin the replica in an empty folder"


def _outcome(
    segment: SegmentRecord | str,
    reason: str,
    *,
    positions: tuple[int, int] | None = None,
    bytes_fetched: int = 0,
    kept_as: str = "",
) -> HealedSegment:
    return HealedSegment(
        segment=segment if isinstance(segment, str) else segment.name,
        healed=not reason,
        ranges=() if positions is None else (positions,),
        bytes_fetched=bytes_fetched,
        reason=reason,
        kept_as=kept_as,
    )


@dataclass(frozen=True, slots=True)
class _Healer:
    """Heals one segment after the other of a log whose lock is held."""

    storage: Storage
    manifest: Manifest
    link: RangeLink
    dry_run: bool

    def heal(self, record: SegmentRecord) -> HealedSegment:
        """Heal a segment, or return the reason. DivergenceError, PeerError and StorageError end the whole work."""
        fetched, reason, kept = 0, "", ""
        try:
            if self.dry_run:
                fetched = sum(len(run.data) for run in self._frames(record))
            else:
                write_segment(self.storage, HEAL_NEW_NAME, lambda file: self._fetch(file, record))
                fetched = record.size_bytes
                kept = self._take_place(record)
        except (GapError, CorruptionError) as error:
            reason = str(error)
        positions = (self._begin(record).position, record.end_position)
        return _outcome(record, reason, positions=positions, bytes_fetched=fetched, kept_as=kept)

    def _begin(self, record: SegmentRecord) -> LogEnd:
        """Return the end that a segment's first frame follows: that of the one before, if no gap is between them."""
        sealed, position = self.manifest.sealed, record.start_position
        index = sealed.index(record)
        if index and self.manifest.gap_after(end := sealed[index - 1].end_position) == end:
            position = end
        return LogEnd(last_lsn=record.first_lsn - 1, position=position, chain=record.start_chain)

    def _frames(self, record: SegmentRecord) -> Iterator[FrameRun]:
        """Yield the peer's frames of a segment. CorruptionError if they are not all that were there, and no others."""
        epoch = self.manifest.epoch_of(record.epoch)
        lineage = tuple(e for e in self.manifest.lineage if e.number <= record.epoch)
        reached = self._begin(record)
        wanted = LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
        for run in self.link.runs(self.manifest.log_id, lineage, reached):
            within = [header for header in run.headers if header.end_position <= wanted.position]
            ours = epoch is not None and run.identity[1:] == (epoch.number, epoch.id)
            begins = run.start_position == max(reached.position, record.start_position)
            if not (ours and begins and within):
                break
            taken = run.until(len(within))
            reached = taken.end
            yield taken
            if reached.position == wanted.position:
                break
        if reached != wanted:
            raise CorruptionError(
                f"the peer's frames end in {reached}, and those that were there in {wanted}",
                segment=record.name,
                position=reached.position,
                expected=wanted,
                found=reached,
                first_lost_lsn=reached.last_lsn + 1,
            )

    def _fetch(self, file: StorageFile, record: SegmentRecord) -> NewSegment:
        """Write a segment of the peer's frames, so that it is read back from the device.

        Its header has the facts of the manifest and a limit that its frames need; of the peer's word it has only the
        alignment, which each frame has shown.
        """
        epoch = self.manifest.epoch_of(record.epoch)
        assert epoch is not None, "its epoch is in the manifest, or it was skipped"
        largest, alignment = 0, ALIGNMENT_BUFFERED
        for run in self._frames(record):
            offset = SEGMENT_HEADER_BYTES + run.start_position - record.start_position
            file.write(offset, [run.data])
            alignment = run.limits.alignment
            largest = max(largest, *(max(h.footprint, h.body_raw_bytes) for h in run.headers))
        header = SegmentHeader(
            log_id=self.manifest.log_id,
            epoch=epoch.number,
            epoch_id=epoch.id,
            number=record.number,
            start_position=record.start_position,
            previous_end=self._begin(record).position,
            first_lsn=record.first_lsn,
            chain=record.start_chain,
            alignment=alignment,
            frame_bytes_max=max(align_up(largest, alignment), alignment),
            created_us=record.created_us,
            flags=SegmentFlag(record.flags),
        )
        file.write(0, [header.encode()])
        file.sync()
        file.drop_cached()
        return NewSegment(header, record)

    def _take_place(self, record: SegmentRecord) -> str:
        """Let the new segment take its name, durably; return where the damaged file is kept, "" for a missing one."""
        try:
            kept = self._keep(record)
            self.storage.replace(HEAL_NEW_NAME, record.name)
        except StorageError:
            with suppress(StorageError):  # it costs its bytes, and nothing reads it
                self.storage.remove(HEAL_NEW_NAME)
            raise
        self.storage.sync_directory()
        index_segment(self.storage, self.manifest, record)
        return kept

    def _keep(self, record: SegmentRecord) -> str:
        try:
            old = TolerantFile(self.storage.open(record.name, "read"))
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return ""
        try:
            keep_part(self.storage, f"{record.name}.damaged", old, 0, old.size())
        finally:
            old.close()
        return f"{LOST_FOLDER}/{record.name}.damaged"
