"""`walkit.replication.heal`: damaged ranges of a log get the frames of a peer that has the same (FORMAT.md F-20)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from walkit._report import Cells, TableReport
from walkit._text import counted
from walkit.commit.to_end import relayed, run_to_end
from walkit.config import check_progress
from walkit.errors import (
    CorruptionError,
    FormatVersionError,
    GapError,
    LogLockedError,
    StorageError,
    WalkitError,
)
from walkit.format.durable_slot import DurableSlot
from walkit.format.manifest import LogEnd, Manifest, SegmentState
from walkit.recovery.plan import make_plan
from walkit.recovery.scan import read_durable_slot, scan_log
from walkit.replication.connection import Destination, destination_of
from walkit.replication.frame_batch import FrameRun
from walkit.replication.heal_ranges import DamagedRange, DamagedSegment, find_damage
from walkit.replication.heal_write import HealedFile
from walkit.replication.range_link import RangeLink
from walkit.replication.tls import ClientTLS
from walkit.segments.index_file import index_segment
from walkit.segments.manifest_store import LOCK_NAME, load_manifest
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import LockHolder, Storage

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
    why_not: str
    """Why it is as it was, in words; "" where it is healed."""
    kept_as: str
    """Where the damaged file is kept; "" where there was none, or nothing was changed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealReport(TableReport):
    """What healing a log from a peer did or, of a dry run, would do."""

    bench: ClassVar[str] = "heal"
    title: ClassVar[str] = "Healed from a peer"

    location: str
    source: str
    dry_run: bool
    segments: tuple[HealedSegment, ...]
    """The damaged ones, in log order."""
    segments_checked: int
    duration_s: float

    @property
    def ok(self) -> bool:
        """Whether no damage is left, as far as frames are concerned."""
        return all(segment.healed for segment in self.segments)

    @property
    def changed(self) -> bool:
        """Whether any file was, or would be, changed."""
        return any(segment.healed for segment in self.segments)

    @property
    def notes(self) -> list[str]:
        """What was done, in one sentence."""
        healed = sum(segment.healed for segment in self.segments)
        said = f"{counted(self.segments_checked, 'segment')} checked, no damage"
        if self.segments:
            did = "would be healed" if self.dry_run else "healed"
            said = f"{healed:,} of {counted(len(self.segments), 'damaged segment')} {did} from {self.source}"
        return [f"{self.location}: {said}"]

    def _head(self) -> Cells:
        return ("segment", "positions", "bytes fetched", "outcome") if self.segments else ()

    def _cells(self) -> list[Cells]:
        did = "would be healed" if self.dry_run else "healed"
        return [
            (
                s.segment,
                ", ".join(f"{start:,} to {end:,}" for start, end in s.ranges),
                f"{s.bytes_fetched:,}",
                s.why_not or (f"{did}; the damaged file is {s.kept_as}" if s.kept_as else did),
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
    segments, snapshots and the manifest are not healed. `dry_run` fetches and proves, and changes nothing.
    `progress` is called with (bytes read, bytes to read).

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
            duration_s=time.perf_counter() - began,
        )

    return run_to_end(healed, "heal")


def _heal(
    storage: Storage, peer: Destination, progress: Progress | None, dry_run: bool
) -> tuple[tuple[HealedSegment, ...], int]:
    if dry_run:
        if storage.is_locked(LOCK_NAME):
            raise LogLockedError(storage.location, pid=None, command=None, same_process=False)
        return _heal_locked(storage, peer, progress, dry_run=True)
    lock = storage.lock(LOCK_NAME)
    if isinstance(lock, LockHolder):
        raise LogLockedError(
            storage.location, pid=lock.pid, command=lock.command, same_process=lock.same_process
        )
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
        outcomes = [_heal_segment(storage, manifest, link, segment, dry_run) for segment in damaged]
    outcomes += _left_over(storage, manifest, slot, {outcome.segment for outcome in outcomes})
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
            return [
                HealedSegment(
                    segment=segment or "", healed=False, ranges=(), bytes_fetched=0, why_not=why, kept_as=""
                )
            ]
    return []


def _heal_segment(
    storage: Storage, manifest: Manifest, link: RangeLink, damaged: DamagedSegment, dry_run: bool
) -> HealedSegment:
    """Heal one segment, or say why not. DivergenceError, PeerError, StorageError end the whole work."""
    why, kept, fetched = damaged.why_not, "", 0
    if not why:
        new = HealedFile(storage, manifest, damaged, dry_run=dry_run)
        try:
            for wanted in damaged.ranges:
                for run in _frames(link, manifest, damaged, wanted):
                    new.add(run)
                    fetched += len(run.data)
            kept = new.publish()
            if not dry_run and damaged.record.state is SegmentState.SEALED:
                index_segment(storage, manifest, damaged.record)
        except (GapError, CorruptionError) as error:
            why = str(error)
        finally:
            new.close()
    return HealedSegment(
        segment=damaged.record.name,
        healed=not why,
        ranges=tuple((r.before.position, r.after.position) for r in damaged.ranges),
        bytes_fetched=fetched,
        why_not=why,
        kept_as=kept,
    )


def _frames(
    link: RangeLink, manifest: Manifest, damaged: DamagedSegment, wanted: DamagedRange
) -> Iterator[FrameRun]:
    """Yield the frames that fill a range. CorruptionError where the peer's do not fit, or end early."""
    epoch = manifest.epoch_of(damaged.record.epoch)
    lineage = tuple(e for e in manifest.lineage if e.number <= damaged.record.epoch)
    end: LogEnd = wanted.before
    for run in link.runs(manifest.log_id, lineage, wanted.before):
        fits = epoch is not None and (run.identity.epoch, run.identity.epoch_id) == (epoch.number, epoch.id)
        within = [header for header in run.headers if header.end_position <= wanted.after.position]
        if not fits or not within:
            break
        last = within[-1]
        end = LogEnd(last_lsn=last.last_lsn, position=last.end_position, chain=last.header_crc)
        yield run.until(len(within))
        if len(within) < len(run.headers) or end.position == wanted.after.position:
            break
    if wanted.ends_at(end):
        return
    if end.position < wanted.after.position:
        raise CorruptionError(
            f"the peer's frames end at position {end.position:,}, before LSN {end.last_lsn + 1:,}, and those that were "
            f"there end at position {wanted.after.position:,}",
            segment=damaged.record.name,
            position=end.position,
            expected=wanted.after,
            found=end,
            first_lost_lsn=end.last_lsn + 1,
        )
    raise _unfit(damaged, wanted, end)


def _unfit(damaged: DamagedSegment, wanted: DamagedRange, end: LogEnd) -> WalkitError:
    return CorruptionError(
        f"the peer's frames end in {end}, and {wanted.after} stands after the damage: they are not the ones that were "
        "there",
        segment=damaged.record.name,
        position=end.position,
        expected=wanted.after,
        found=end,
        first_lost_lsn=wanted.before.last_lsn + 1,
    )
