"""Scanning a log for an opening or a reader: findings of its segments and the files beside them. Changes no byte.

The scan looks at sealed segments as the manifest vouches for them (presence, size, header; every frame with `deep`),
and at every frame of the unsealed ones.
"""

from __future__ import annotations

from collections.abc import Callable

from walkit.errors import CorruptionError, FormatVersionError, SegmentMissingError, StorageError, WalkitError
from walkit.format.durable_slot import NOTHING_DURABLE, DurableSlot, ManifestPromise, decode_slots
from walkit.format.layout import DURABLE_SLOTS_BYTES, SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord
from walkit.format.segment import checked_fields
from walkit.recovery.findings import (
    LogFindings,
    SegmentFinding,
    follows_exactly,
    inspect_segment,
    region_within,
    survey_segment,
)
from walkit.segments.gathered import NOTHING_GATHERED, gathered_in
from walkit.segments.identity import header_of, missing_segment
from walkit.segments.index_file import orphan_indexes
from walkit.segments.manifest_store import DURABLE_NAME, load_manifest
from walkit.segments.orphan_files import leftover_of, unfinished_in
from walkit.storage.interface import Storage

Progress = Callable[[int, int], None]
"""Called with (bytes scanned, bytes to scan)."""
SLOT_TRIES = 8


def read_durable_slot(storage: Storage) -> DurableSlot:
    """Return what the durable slot says; NOTHING_DURABLE where it is missing."""
    cell = storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=False)
    if cell is None:
        return NOTHING_DURABLE
    try:
        # A reader that two stores overtake may find both slots half written; it looks again.
        for _ in range(SLOT_TRIES):
            data = cell.read()
            slot = decode_slots(data)
            if slot.generation or not any(data):
                break
        return slot
    finally:
        cell.close()


def scan_log(
    storage: Storage,
    manifest: Manifest,
    slot: DurableSlot,
    *,
    deep: bool = False,
    progress: Progress | None = None,
) -> LogFindings:
    """Return the findings. Raises SegmentMissingError and CorruptionError only for what the manifest vouches for.

    StorageError where a segment cannot be read, FormatVersionError where one is of a newer format.
    """
    findings = scan_folder(storage, manifest, slot)
    counter = ProgressCounter(progress, sum(s.size_bytes for s in manifest.sealed) if deep else 0)
    epochs = {epoch.number: epoch.id for epoch in manifest.lineage}
    for record in manifest.sealed:
        # Row V of the decision table. There are thousands, so that nothing is noted of one.
        if not deep and _is_as_sealed(storage, manifest, record, epochs.get(record.epoch)):
            continue
        finding = inspect_segment(storage, manifest, record)
        error = sealed_error(storage, manifest, finding)
        if isinstance(error, CorruptionError):
            error.position, error.first_lost_lsn = error.position or record.start_position, record.first_lsn
        if error is not None:
            raise error
        if finding.header is not None:
            refuse_broken_promise(storage, manifest, finding.header.manifest_generation, record.name)
        if deep:
            survey_segment(storage, manifest, finding, reached=counter.within_segment())
        findings.sealed.append(finding)
    for record in manifest.unsealed:
        finding = inspect_segment(storage, manifest, record)
        findings.unsealed.append(finding)
        if finding.header is not None:
            refuse_broken_promise(storage, manifest, finding.header.manifest_generation, record.name)
            survey_segment(storage, manifest, finding, reached=counter.within_segment())
        _refuse_unreadable(finding)
    link_unsealed(storage, findings)
    return findings


def _is_as_sealed(storage: Storage, manifest: Manifest, record: SegmentRecord, epoch_id: int | None) -> bool:
    """Return whether a segment has the size and the header that the manifest means."""
    try:
        file = storage.open(record.name, "read")
        try:
            size, block = file.size(), file.read(0, SEGMENT_HEADER_BYTES)
        finally:
            file.close()
        header = checked_fields(block)
    except WalkitError:
        return False  # a closer look finds the reason
    if header is None or header.manifest_generation > manifest.generation:
        return False
    wanted = (manifest.log_id, record.epoch, epoch_id, record.number, record.start_position, record.first_lsn)
    found = (
        header.log_id,
        header.epoch,
        header.epoch_id,
        header.number,
        header.start_position,
        header.first_lsn,
    )
    return found == wanted and size == SEGMENT_HEADER_BYTES + record.size_bytes


def _refuse_unreadable(finding: SegmentFinding) -> None:
    """Raise what keeps an unsealed segment from being judged: a newer format, or a place that cannot be read."""
    damage = finding.damage
    error = finding.error if damage is None else damage.error
    if isinstance(error, FormatVersionError):
        raise error
    for unread in (finding.error, *(region.error for region in finding.regions)):
        if isinstance(unread, StorageError):
            raise unread


def link_unsealed(storage: Storage, findings: LogFindings) -> None:
    """Note of each unsealed segment whether it follows the log before it, and its frames after a hole."""
    end, hole = findings.manifest.end, False
    for index, finding in enumerate(findings.unsealed):
        if finding.header is None:
            finding.end = end
            continue
        finding.follows = not hole and follows_exactly(finding.header, end)
        if finding.follows:
            end = finding.end
            following = next((f for f in findings.unsealed[index + 1 :] if not f.unused), None)
            header = None if following is None else following.header
            finding.continued = header is not None and follows_exactly(header, end)
        hole = hole or not finding.follows or finding.ends_in_bytes
        if hole:
            _note_beyond(storage, finding, end.position)


def sealed_error(storage: Storage, manifest: Manifest, finding: SegmentFinding) -> WalkitError | None:
    """Return why a sealed segment is not there, not whole, or not the one that the manifest means; None where it is."""
    record, error = finding.record, finding.error
    if not finding.present:
        return missing_segment(storage, record)
    wanted = SEGMENT_HEADER_BYTES + manifest.frames_end_of(record) - record.start_position
    if not finding.unopenable and finding.file_bytes < wanted:
        position = record.start_position + max(finding.file_bytes - SEGMENT_HEADER_BYTES, 0)
        return shortened(finding, wanted, position, record.first_lsn)
    return error


def shortened(
    finding: SegmentFinding, wanted: int, position: int, first_lost_lsn: int
) -> SegmentMissingError:
    """Return the error for a sealed segment whose file is shorter than the frames that it must hold."""
    record, size = finding.record, finding.file_bytes
    return SegmentMissingError(
        f"segment {record.name} is shorter than the manifest says: {size:,} bytes instead of {wanted:,}; "
        f"LSN {first_lost_lsn:,} to {record.last_lsn:,} may be missing",
        segment=record.name,
        position=position,
        expected=wanted,
        found=size,
        first_lost_lsn=first_lost_lsn,
    )


def _note_beyond(storage: Storage, finding: SegmentFinding, hole: int) -> None:
    """Note the intact frames after the hole that begins there, those that end within the window (FORMAT.md F-2.7)."""
    assert finding.header is not None
    until = hole + finding.header.reorder_window_bytes
    for region in finding.regions:
        if region.start_position < finding.end_position and finding.follows:
            continue
        if region.misplaced is not None and region.end_position <= until:
            finding.beyond.append(region)
        elif region.intact and (within := region_within(storage, finding, region, until)) is not None:
            finding.beyond.append(within)


class ProgressCounter:
    """Counts the bytes that were read of segments, one after the other, and reports them."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def within_segment(self) -> Callable[[int], None]:
        """Return what is to be called with the bytes read of the next segment."""
        before = self.done
        return lambda read: self.report(before + read)

    def report(self, done: int) -> None:
        """Note how many bytes were read of all segments."""
        self.done = done
        if self.progress is not None:
            self.progress(done, max(done, self.total))


def scan_folder(
    storage: Storage, manifest: Manifest, slot: DurableSlot, *, salvage: bool = False
) -> LogFindings:
    """Return findings of the files beside the segments, none of these yet. CorruptionError for an older manifest.

    With `salvage` a file beside them that the storage does not read is passed over.
    """
    findings = LogFindings(manifest=manifest, slot=slot)
    named = {s.name for s in manifest.segments}
    names = storage.names()
    findings.strays = [n for n in names if n.endswith(".segment") and n not in named]
    findings.orphan_indexes = orphan_indexes(names, manifest)
    findings.unfinished = unfinished_in(storage, names)
    _refuse_an_older_manifest(storage, findings, salvage)
    return findings


def _refuse_an_older_manifest(storage: Storage, findings: LogFindings, salvage: bool) -> None:
    """Refuse a manifest that was put back from an earlier time: what came after it would be forgotten silently.

    The manifest names a segment before its header is written, and an epoch before the durable slot speaks of it; so a
    used segment with a number that the manifest has not given yet, or a slot of an unknown epoch, is newer than it.
    """
    manifest, slot, promise = findings.manifest, findings.slot, findings.slot.promise
    gathered = gathered_in(storage, manifest) if findings.strays else NOTHING_GATHERED
    if slot.generation and not is_known(manifest, slot):
        raise _older_manifest(DURABLE_NAME, f"epoch {slot.epoch}, durable up to position {slot.position:,}")
    if promise.generation and not is_known(manifest, promise):
        raise _older_manifest(DURABLE_NAME, f"epoch {promise.epoch}, manifest {promise.generation:,}")
    refuse_broken_promise(storage, manifest, promise.generation, DURABLE_NAME)
    for name in findings.strays:
        try:
            header = header_of(storage, name)
        except CorruptionError:
            continue
        except StorageError:
            if not salvage:
                raise
            continue
        if header is None or header.log_id != manifest.log_id:
            continue
        if gathered.has(name, header):
            continue  # a replica's new log, which no manifest has yet: this one is still the log
        refuse_broken_promise(storage, manifest, header.manifest_generation, name)
        if header.number >= manifest.next_segment and leftover_of(header, manifest) is None:
            raise _older_manifest(name, f"segment {header.number} from LSN {header.first_lsn:,} on")


def refuse_broken_promise(storage: Storage, manifest: Manifest, generation: int, name: str) -> None:
    """Refuse a manifest if this file promises that a newer one was on stable storage (FORMAT.md F-12.9)."""
    # Where they differ, a writer changed it meanwhile.
    if generation > manifest.generation == load_manifest(storage).generation:
        raise _older_manifest(name, f"manifest {generation:,}")


def is_known(manifest: Manifest, slot: DurableSlot | ManifestPromise) -> bool:
    """Say whether a slot is of an epoch of the lineage, or older than one: a manifest made anew may not know those."""
    epoch = manifest.epoch_of(slot.epoch)
    if epoch is not None:
        return epoch.id == slot.epoch_id
    return any(slot.epoch < later.number for later in manifest.lineage)


def _older_manifest(name: str, newer: str) -> CorruptionError:
    return CorruptionError(
        f"the manifest is older than {name} ({newer}), which it does not know: it was put back from an earlier time, "
        "its last edit is damaged, or the folder was copied file by file while a writer had it. Nothing was changed. "
        "`walkit copy LOG DIR` makes a copy beside a writer; else put the newest manifest back, or rebuild it by "
        "`walkit repair --policy salvage`",
        segment=name,
        expected="a manifest that knows it",
        found=newer,
    )
