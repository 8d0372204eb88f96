"""`walkit.replication.heal`: damaged ranges of a log get the frames of a peer that has the same (FORMAT.md F-20)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from walkit._arguments import check_progress
from walkit._report import Cells, TableReport
from walkit._text import counted, unread
from walkit.commit.to_end import relayed, run_to_end
from walkit.errors import (
    CorruptionError,
    DivergenceError,
    FormatVersionError,
    GapError,
    StorageError,
)
from walkit.format.durable_slot import DurableSlot
from walkit.format.manifest import LogEnd, Manifest, SegmentState
from walkit.recovery.log_scan import read_durable_slot, scan_log
from walkit.recovery.plan import make_plan
from walkit.recovery.repair import snapshots_not_read
from walkit.replication.healing.link import RangeLink
from walkit.replication.healing.ranges import DamagedRange, DamagedSegment, find_damage
from walkit.replication.healing.write import HealedFile, lower_slot
from walkit.replication.protocol.frame_run import FrameRun
from walkit.replication.transport.connection import Destination, destination_of
from walkit.replication.transport.tls import ClientTLS
from walkit.segments.index_file import index_segment
from walkit.segments.manifest_store import load_manifest
from walkit.segments.writer_lock import refuse_a_writer, take_writer_lock
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import Storage

Progress = Callable[[int, int], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class HealedSegment:
    """What became of one damaged segment. LSNs are inclusive, positions half-open."""

    segment: str
    healed: bool
    """Whether it is whole now or, of a dry run, would be."""
    ranges: tuple[tuple[int, int], ...]
    """Positions of the damage, from and until."""
    bytes_fetched: int
    bytes_beyond: int
    """Bytes of frames that only the peer knew of: they come after all that this log knew that it had."""
    markers_given_up: bool
    """Whether the peer lacks frames without records at its end, so that the durable slot promises none of them now."""
    why_not: str
    """Why it is as it was, in words; "" where it is healed."""
    kept_as: str
    """Where the damaged file is kept; "" where there was none, or nothing was changed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealReport(TableReport):
    """What healing a log from a peer did or, of a dry run, would do."""

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
        """What was done, in one sentence."""
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
                s.why_not or f"{did}{_said(s)}",
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
    """Give the damaged ranges of a log that is not open the frames of a peer that has the same; durable on return.

    `log` may be a primary's folder or a replica's, `source` is HOST:PORT of a `Primary` of the same log: of its
    primary, of a replica, of a copy. Every frame is read. What a peer sends is used only where it follows the intact
    frames on both sides, by chain, LSN, position and epoch; the damaged file is kept under lost+found. A crash leaves
    each segment as it was or healed, and the same call does the rest. Holes, lost ranges that are recorded, compacted
    segments, snapshots and the manifest are not healed.

    Of a log that was not closed the peer is asked, too, for frames of the same epoch after all that this log knows of:
    its durable slot may be gone with its tail. As many are taken as its unsealed segments have room for.
    `dry_run` fetches, gathers in a temporary folder of the system, and judges as the real run does; it changes nothing.
    What the next opening refuses beside the damaged segments it says where there are none, the real run in any case.
    `progress` is called with (bytes read, bytes to read). Ctrl-C ends it between two answers of the peer, and between
    two segments.

    A peer that lacks a range, or has other frames there, leaves that segment as it was; the report says why.
    DivergenceError where the peer has another log or history, LogLockedError where a writer lives, PeerError for what
    another try may mend; OptionsError, LogNotFoundError, NotALogError, CorruptionError (the manifest), StorageError.
    """
    destination = destination_of(source, token, tls, insecure)
    check_progress(progress, "(bytes read, bytes to read)")
    storage = storage_at(log)
    load_manifest(storage)  # what is no log gets no lock file
    began = time.perf_counter()

    def healed() -> HealReport:
        segments, checked = _heal(storage, destination, relayed(progress), dry_run)
        return HealReport(
            location=storage.location,
            source=destination.address,
            dry_run=dry_run,
            segments=segments,
            segments_checked=checked,
            not_read=snapshots_not_read(storage),
            duration_s=time.perf_counter() - began,
        )

    return run_to_end(healed, "heal")


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
    total = sum(record.size_bytes for record in manifest.segments)

    def reached(done: int) -> None:
        if progress is not None:
            progress(done, max(done, total))

    slot = read_durable_slot(storage)
    damaged = find_damage(storage, manifest, slot, reached)
    frame_bytes_max = max((d.bytes_damaged for d in damaged), default=0)  # no frame that fits is larger
    with RangeLink(peer, frame_bytes_max) as link:
        healer = _Healer(storage, manifest, slot, link, dry_run)
        outcomes = [found for segment in damaged if (found := healer.heal(segment)) is not None]
    if not outcomes or not dry_run:  # of a log that is as damaged as before an opening says no more than that
        known = {outcome.segment for outcome in outcomes if not outcome.healed}
        outcomes += _left_over(storage, manifest, read_durable_slot(storage), known)
    return tuple(outcomes), len(manifest.segments)


def _left_over(
    storage: Storage, manifest: Manifest, slot: DurableSlot, known: set[str]
) -> list[HealedSegment]:
    """Return the segment for which the next opening refuses the log, where that is none of the known ones."""
    try:
        findings = scan_log(storage, manifest, slot)
        make_plan(findings, "prefix")
    except (CorruptionError, StorageError, FormatVersionError) as refusal:
        segment = refusal.name if isinstance(refusal, StorageError) else getattr(refusal, "segment", None)
        if segment not in known:
            why = str(refusal)
            return [_unhealed(segment or "", why)]
    return []


def _unhealed(segment: str, why: str) -> HealedSegment:
    return HealedSegment(
        segment=segment,
        healed=False,
        ranges=(),
        bytes_fetched=0,
        bytes_beyond=0,
        markers_given_up=False,
        why_not=why,
        kept_as="",
    )


def _said(segment: HealedSegment) -> str:
    """Return what else there is to say of a healed segment."""
    parts = []
    if segment.bytes_beyond:
        parts.append(f"{counted(segment.bytes_beyond, 'byte')} after all that this log knew of")
    if segment.markers_given_up:
        parts.append("frames without records that the peer lacks are promised no more")
    if segment.kept_as:
        parts.append(f"the damaged file is {segment.kept_as}")
    return "".join(f"; {part}" for part in parts)


@dataclass(frozen=True, slots=True)
class _Healer:
    """Heals one segment after the other of a log whose lock is held."""

    storage: Storage
    manifest: Manifest
    slot: DurableSlot
    link: RangeLink
    dry_run: bool

    def heal(self, damaged: DamagedSegment) -> HealedSegment | None:
        """Heal a segment, or say why not; None where it has no damage and the peer has no more.

        DivergenceError, PeerError, StorageError end the whole work.
        """
        if damaged.why_not:
            return _unhealed(damaged.record.name, damaged.why_not)
        new = HealedFile(self.storage, self.manifest, damaged, dry_run=self.dry_run)
        fill = _Fill(self.link, self.manifest, damaged, new)
        why, kept, given_up = "", "", None
        try:
            for wanted in damaged.ranges:
                end = fill.fill(wanted)
                given_up = end if wanted.by_slot and wanted.lacks_markers_alone(end) else None
            if damaged.only_asked and not fill.fetched:
                return None
            kept = self._publish(damaged, new, given_up)
        except (GapError, CorruptionError) as error:
            why = str(error)
        except DivergenceError:
            if not damaged.only_asked:
                raise
            return None  # the peer's history parts from this one before what it was asked for
        finally:
            new.close()
        return HealedSegment(
            segment=damaged.record.name,
            healed=not why,
            ranges=tuple(fill.ranges) or tuple((r.before.position, r.after.position) for r in damaged.ranges),
            bytes_fetched=fill.fetched,
            bytes_beyond=fill.beyond,
            markers_given_up=given_up is not None and not why,
            why_not=why,
            kept_as=kept,
        )

    def _publish(self, damaged: DamagedSegment, new: HealedFile, given_up: LogEnd | None) -> str:
        kept = new.publish() if new.has_header or damaged.too_short else ""
        if not self.dry_run and damaged.record.state is SegmentState.SEALED:
            index_segment(self.storage, self.manifest, damaged.record)
        if not self.dry_run and given_up is not None:
            lower_slot(self.storage, self.slot, given_up)
        return kept


@dataclass(slots=True)
class _Fill:
    """Fetches the frames for the ranges of one segment into its new file."""

    link: RangeLink
    manifest: Manifest
    damaged: DamagedSegment
    new: HealedFile
    fetched: int = 0
    """Bytes of frames that were taken."""
    beyond: int = 0
    """Of them, those after all that the log knew of."""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """Positions of what was filled."""

    def fill(self, wanted: DamagedRange) -> LogEnd:
        """Fill one range; return where its frames end. CorruptionError where the peer's do not fit, or end early.

        They may end early where none with records is missing, and only the durable slot says that there was more.
        """
        end, met = wanted.before, wanted.only_asked
        for run in self._frames(wanted):
            self.new.add(run)
            self.fetched += len(run.data)
            end = run.end
            met = met or any(
                wanted.ends_at(LogEnd(last_lsn=h.last_lsn, position=h.end_position, chain=h.header_crc))
                for h in run.headers
            )
        if not met and not (wanted.by_slot and wanted.lacks_markers_alone(end)):
            raise _unfit(self.damaged, wanted, end)
        self.beyond += max(end.position - wanted.after.position, 0)
        if wanted is self.damaged.ranges[-1] and end.position != wanted.after.position:
            self.new.ends_at(end.position)
        self.ranges.append((wanted.before.position, max(end.position, wanted.after.position)))
        return end

    def _frames(self, wanted: DamagedRange) -> Iterator[FrameRun]:
        """Yield the peer's frames of the segment's epoch after the range's begin, up to its furthest end."""
        epoch = self.manifest.epoch_of(self.damaged.record.epoch)
        lineage = tuple(e for e in self.manifest.lineage if e.number <= self.damaged.record.epoch)
        for run in self.link.runs(self.manifest.log_id, lineage, wanted.before):
            fits = epoch is not None and (run.identity.epoch, run.identity.epoch_id) == (
                epoch.number,
                epoch.id,
            )
            within = [header for header in run.headers if header.end_position <= wanted.furthest]
            if not fits or not within:
                return
            yield run.until(len(within))
            if len(within) < len(run.headers) or within[-1].end_position == wanted.furthest:
                return


def _unfit(damaged: DamagedSegment, wanted: DamagedRange, end: LogEnd) -> CorruptionError:
    """Return the error for frames of a peer that do not fill a range: they end early, or are other ones."""
    text = (
        f"the peer's frames end in {end}, and {wanted.after} stands after the damage: they are not the ones that were "
        "there"
    )
    if end.position < wanted.after.position:
        lost = end.last_lsn + 1
        text = (
            f"the peer's frames end at position {end.position:,}, before LSN {lost:,}, and those that were "
            f"there end at position {wanted.after.position:,}"
        )
        if wanted.lacks_markers_alone(end):
            text += ": what it lacks are frames without records alone"
    return CorruptionError(
        text,
        segment=damaged.record.name,
        position=end.position,
        expected=wanted.after,
        found=end,
        first_lost_lsn=end.last_lsn + 1,
    )
