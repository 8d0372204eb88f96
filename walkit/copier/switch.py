"""The end of a copy and of a bootstrap: the gathered files get their names, then a manifest (FORMAT.md F-19.3).

A copy's folder has no log before that. A replica's log is replaced by one writing of its manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from walkit.copier.gathering import Gathering, part_name, snapshot_part_name
from walkit.copier.snapshot_check import snapshot_lsns
from walkit.errors import CorruptionError, WalkitError
from walkit.events import EventSink
from walkit.format.file_names import BOOTSTRAP_PREFIX, BOOTSTRAP_READY_NAME, snapshot_name
from walkit.format.index import index_name
from walkit.format.layout import MANIFEST_BYTES_MAX, SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord, decode_manifest
from walkit.format.segment import segment_name
from walkit.recovery.apply import move_whole
from walkit.segments.consumer_files import claim_facts, claims_locked, remove_claims
from walkit.segments.history import header_of, whole_header
from walkit.segments.manifest_store import load_manifest, write_manifest
from walkit.segments.orphan_files import SNAPSHOT_KEY, staged_in
from walkit.storage.bulk import read_if_there
from walkit.storage.interface import Storage

TAKEN_KEY = "bootstrapped"


def switch_to_staged(storage: Storage, events: EventSink) -> bool:
    """Replace the replica's log by the one that was gathered, if it is ready; return whether it was replaced.

    The segments get numbers that the replica has not given yet; one writing of the manifest replaces the log; then the
    files of the old one go. A claim in this folder on records that the new log lacks is dropped, with an event.
    Needs the writer's lock. Done again after a crash at any point, it does the rest. StorageError.
    """
    data = read_if_there(storage, BOOTSTRAP_READY_NAME, MANIFEST_BYTES_MAX + 1)
    if data is None:
        return False
    own = load_manifest(storage)
    try:
        ready = decode_manifest(data, BOOTSTRAP_READY_NAME)
    except WalkitError:  # never half written, so it was damaged since
        ready = Manifest(log_id=0)
        _set_aside(storage, own)
    done = own.extra.get(TAKEN_KEY, {})
    if done.get("generation") == ready.generation and done.get("end") == ready.end.position:
        _remove_old(storage, own)
        return True
    fits = own.log_id == ready.log_id and ready.lineage[: len(own.lineage)] == own.lineage
    if not fits or own.end.position > ready.end.position or not _placed(storage, own, ready):
        _take_back(storage, own)
        Gathering(storage).clear()
        return False
    _publish(storage, own, ready, events)
    _remove_old(storage, load_manifest(storage))
    return True


def part_names(
    segments: Iterable[tuple[SegmentRecord, SegmentRecord]], lsns: Iterable[int]
) -> dict[str, str]:
    """Return which name each part gets: of segments, each beside its new record, and of snapshots."""
    names = {part_name(record.number): new.name for record, new in segments}
    return names | {snapshot_part_name(lsn): snapshot_name(lsn) for lsn in lsns}


def place(storage: Storage, names: Mapping[str, str]) -> None:
    """Give parts their names, durably; one that has it already is passed over."""
    there = set(storage.names())
    for part, name in names.items():
        if part in there:
            storage.replace(part, name)
    storage.sync_directory()


def _placed(storage: Storage, own: Manifest, ready: Manifest) -> bool:
    """Give the parts their numbers and names in the log; False if one is gone or torn. No manifest names them yet."""
    segments, lsn, there = _renumbered(own, ready), ready.extra.get(SNAPSHOT_KEY, 0), set(storage.names())
    names = part_names(segments, [lsn] if lsn else [])
    if not all(there & {*pair} for pair in names.items()):
        return False  # before the first one is renamed: a segment that no manifest knows is refused by an opening
    for record, new in segments:
        if part_name(record.number) in there and not _renumber(storage, part_name(record.number), new):
            return False
    place(storage, names)
    return True


def _take_back(storage: Storage, own: Manifest) -> None:
    """Remove the files that a staged log has named here, as it does not replace the log after all."""
    staged, there = staged_in(storage, own), set(storage.names())
    for name in staged.segments.keys() & there:
        # A damaged one does not show its owner, and nothing reads it.
        with suppress(CorruptionError):
            header = header_of(storage, name)
            if header is not None and staged.has(name, header):
                storage.remove(name)
    if staged.snapshot_lsn > own.end.last_lsn:
        for name in {snapshot_name(staged.snapshot_lsn)} & there:
            storage.remove(name)
    storage.sync_directory()


def _set_aside(storage: Storage, own: Manifest) -> None:
    """Move to lost+found the files that have their names in the log already, if `bootstrap-ready` is damaged.

    A segment that continues this log shows that the manifest is an earlier one. It stays, so that the opening refuses
    as ever.
    """
    known = {record.name for record in own.segments}
    placed = [name for name in storage.names() if name.endswith(".segment") and name not in known]
    for name in placed:
        try:
            header = header_of(storage, name)
        except CorruptionError:
            return
        if header is None or header.log_id != own.log_id or header.previous_end == own.end.position:
            return
    snapshots = [snapshot_name(lsn) for lsn in snapshot_lsns(storage) if lsn > own.end.last_lsn]
    for name in (*placed, *snapshots):
        move_whole(storage, name)


def _renumber(storage: Storage, part: str, new: SegmentRecord) -> bool:
    """Write the new number of a segment into the header of its part, durably; False if a power cut has torn it.

    One that has it already is written again: an earlier write may be in the page cache only.
    """
    file = storage.open(part, "write")
    try:
        header = whole_header(file.read(0, SEGMENT_HEADER_BYTES))
        if header is not None:
            # The promise is about the primary's manifest.
            file.write(0, [replace(header, number=new.number, manifest_generation=0).encode()], sync=True)
        return header is not None
    finally:
        file.close()


def _renumbered(own: Manifest, ready: Manifest) -> list[tuple[SegmentRecord, SegmentRecord]]:
    first = own.next_segment
    return [(record, record._replace(number=first + i)) for i, record in enumerate(ready.sealed)]


def _publish(storage: Storage, own: Manifest, ready: Manifest, events: EventSink) -> None:
    segments = tuple(new for _, new in _renumbered(own, ready))
    old = [record.number for record in own.segments]
    taken = {"generation": ready.generation, "end": ready.end.position, "old": old}
    manifest = replace(
        ready,
        generation=own.generation + 1,
        segments=segments,
        next_segment=own.next_segment + len(segments),
        extra={**own.extra, TAKEN_KEY: taken},
    )
    with events.held(), claims_locked(storage):
        passed = [f for f in claim_facts(storage, own) if f.counts and f.needed_lsn <= manifest.low_watermark]
        write_manifest(storage, manifest)
        oldest = manifest.low_watermark + 1
        for fact in passed:
            events.emit(
                "walkit.claim.drop", name=fact.name, first_lsn=fact.first_lsn, oldest=oldest, owner=fact.owner
            )
        remove_claims(storage, [fact.name for fact in passed])


def _remove_old(storage: Storage, manifest: Manifest) -> None:
    """Remove the files of the log that was replaced, then `bootstrap-ready`."""
    there = set(storage.names())
    numbers = manifest.extra.get(TAKEN_KEY, {}).get("old", [])
    kept = {record.number for record in manifest.segments}
    old = [segment_name(number) for number in numbers if number not in kept]
    # Snapshots that the new log does not reach down to: with one of them no state could be made, nor without it.
    passed = [snapshot_name(lsn) for lsn in snapshot_lsns(storage) if lsn < manifest.low_watermark]
    for name in {*old, *map(index_name, old), *passed} & there:
        storage.remove(name)
    for name in sorted(there):
        if name.startswith(BOOTSTRAP_PREFIX) and name != BOOTSTRAP_READY_NAME:
            storage.remove(name)
    storage.sync_directory()
    if BOOTSTRAP_READY_NAME in there:
        storage.remove(BOOTSTRAP_READY_NAME)
        storage.sync_directory()
