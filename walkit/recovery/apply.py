"""Applying a recovery plan: the only code of an opening that changes files; lost+found keeps removed bytes.

The manifest comes first, then the files. Doing it again, also after a crash at any operation, changes nothing more.
A part that leaves the log is durable under lost+found before it leaves the place where it was. Memory does not grow
with a file: it is copied in steps, and of one that is mostly a hole only the data.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count

from walkit.errors import CorruptionError, StorageError
from walkit.format.file_names import SALVAGE_NEW_NAME
from walkit.format.layout import MANIFEST_BYTES_MAX, SEGMENT_HEADER_BYTES
from walkit.format.manifest import Gap, Manifest, SegmentRecord, encode_base
from walkit.recovery.decision import Decision
from walkit.recovery.log_scan import SegmentFinding
from walkit.recovery.plan import RecoveryPlan
from walkit.recovery.survey import PASSING_ERRNOS, TolerantFile, nonzero_until
from walkit.segments.frame_walk import Readable
from walkit.segments.history import header_of
from walkit.segments.manifest_store import LOST_FOLDER, ManifestStore
from walkit.segments.orphan_files import KEPT_NEW_NAME, orphaned_by
from walkit.segments.rewrite import NewSegment, copy_part, copy_segment, new_file, steps_of, write_segment
from walkit.storage.interface import BACK_PRESSURE, Storage, StorageFile


def keep_part(storage: Storage, name: str, file: Readable, start: int, until: int) -> None:
    """Keep bytes [start, until) of an open file under lost+found, durably; whole under their name or not at all.

    Bytes that are there already are not kept twice; if others have the name, a number is added to it.
    """
    there = set(storage.names(LOST_FOLDER))
    for target in numbered(f"{LOST_FOLDER}/{name}"):
        if target not in there:
            break
        if is_kept(storage, target, file, start, until):
            return
    # On a full disk no part of the copy stays, so the disk has room for the remedy.
    with new_file(storage, KEPT_NEW_NAME) as kept:
        copy_part(file, start, until, kept, 0)
        kept.sync()
    _move(storage, KEPT_NEW_NAME, target)


def move_whole(storage: Storage, name: str) -> None:
    """Rename a file that cannot be read into lost+found, under a name that nothing there has; durable on return."""
    kept = set(storage.names(LOST_FOLDER))
    _move(storage, name, next(n for n in numbered(f"{LOST_FOLDER}/{name}") if n not in kept))


def _move(storage: Storage, name: str, target: str) -> None:
    storage.replace(name, target)
    storage.sync_directory(LOST_FOLDER)
    storage.sync_directory()


def numbered(name: str) -> Iterator[str]:
    """Yield a name, and then the name with each number from 1 on."""
    yield name
    yield from (f"{name}.{number}" for number in count(1))


def is_kept(storage: Storage, name: str, file: Readable, start: int, until: int) -> bool:
    """Say whether a file under lost+found holds these bytes; one that cannot be opened or read holds none."""
    try:
        kept = storage.open(name, "read")
        try:
            return kept.size() == until - start and _same(kept, file, start, until)
        finally:
            kept.close()
    except StorageError as error:
        if error.name != name or error.errno in PASSING_ERRNOS:
            raise
        return False


def _same(kept: StorageFile, file: Readable, start: int, until: int) -> bool:
    places = [*((at - start, n) for at, n in steps_of(file, start, until)), *steps_of(kept, 0, until - start)]
    return all(kept.read(at, n) == file.read(start + at, n) for at, n in places)


def apply_plan(storage: Storage, store: ManifestStore, plan: RecoveryPlan) -> None:
    """Make the plan true: the manifest first, then the files. Doing it again, also after a crash, changes nothing more.

    Bytes that are cut off or set aside are kept under lost+found, durably, before they leave their place. If
    lost+found lacks room, they stay after the sealed end, or in a file that the manifest does not name, until an
    opening has room. CorruptionError, and no change, if a salvage gives up more ranges than a manifest has room for.
    """
    if plan.policy == "salvage":
        _refuse_without_room(plan.manifest)
    for step in plan.steps:
        if step.finding.header_rebuilt and step.sealed is not None:
            _rebuild(storage, step.finding, step.sealed, plan.manifest.gaps_of(step.sealed))
    if plan.manifest is not plan.findings.manifest:
        store.update(lambda _: plan.manifest)
    changed, salvage = False, plan.policy == "salvage"
    for name in plan.foreign:
        changed |= _set_aside(storage, name, keep=True, unreadable=True, orphan=True)
    for finding in plan.findings.sealed:
        changed |= _cut_tail(storage, finding, finding.end_position, tolerant=salvage)
    for step in plan.steps:
        finding = step.finding
        if step.sealed is not None:
            _cut_tail(storage, finding, step.end_position, tolerant=salvage)
        else:
            keep = step.row.decision not in (Decision.DROP, Decision.SEAL)
            changed |= _set_aside(
                storage, finding.name, keep=keep, unreadable=salvage, orphan=finding.other is not None
            )
    for name in plan.findings.orphans:
        try:
            orphaned = _is_orphaned(storage, name, plan.manifest)
        except StorageError:
            if not salvage:
                raise
            orphaned = False
        # It was found not to be needed, so that one that cannot be read goes as it is, by any policy.
        changed |= _set_aside(
            storage, name, keep=salvage or plan.keeps_orphans or not orphaned, unreadable=True, orphan=True
        )
    for name in plan.findings.obsolete:
        with suppress(StorageError):  # it costs its bytes, and nothing reads it
            storage.remove(name)
    if changed:
        storage.sync_directory()


def _refuse_without_room(manifest: Manifest) -> None:
    try:
        encode_base(manifest)
    except ValueError as error:
        raise CorruptionError(
            f"the log is damaged in {len(manifest.lost):,} places, which a manifest has no room for; "
            f"`walkit dump` writes what can be read. Nothing was changed ({error})",
            expected=f"a manifest of at most {MANIFEST_BYTES_MAX} bytes",
            found=len(manifest.lost),
        ) from error


def _cut_tail(storage: Storage, finding: SegmentFinding, end_position: int, *, tolerant: bool) -> bool:
    """Keep the bytes after the sealed end under lost+found, then shorten the file; say whether there was anything.

    With `tolerant` pages that the storage cannot read are kept as zeros.
    """
    assert finding.header is not None
    end = finding.header.offset_of(end_position)
    if finding.file_bytes <= end:
        return False
    file = storage.open(finding.name, "write")
    try:
        size, source = file.size(), TolerantFile(file) if tolerant else file
        until = nonzero_until(source, end, size)
        if until > end and not _is_room(storage, f"{finding.name}.{end_position}.tail", source, end, until):
            return False
        file.shorten(end)
        file.sync()
    finally:
        file.close()
    return True


def _is_room(storage: Storage, name: str, file: Readable, start: int, until: int) -> bool:
    """Keep a part of a file under lost+found, durably; False if disk or process has no room for it now."""
    try:
        keep_part(storage, name, file, start, until)
    except StorageError as error:
        if error.errno not in BACK_PRESSURE:
            raise
        return False
    return True


def _set_aside(
    storage: Storage, name: str, *, keep: bool, unreadable: bool = False, orphan: bool = False
) -> bool:
    """Take a whole file out of the log: under lost+found if it holds anything to keep, else away.

    With `unreadable` one that cannot be read goes there by being renamed, as it is. An `orphan` may belong to another
    history.
    """
    try:
        file = storage.open(name, "read")
        try:
            until = nonzero_until(file, 0, file.size()) if keep else 0
            # A step that was interrupted may have kept it already, up to its last byte that is not zero.
            kept = not until or (orphan and is_kept(storage, f"{LOST_FOLDER}/{name}", file, 0, until))
            # The last frame of another history ends in zeros, and has to stay readable in lost+found.
            if not kept and not _is_room(storage, name, file, 0, file.size() if orphan else until):
                return False
        finally:
            file.close()
    except StorageError as error:
        if error.name != name:
            raise  # keeping it has failed
        if error.errno == errno.ENOENT:
            return False
        if not unreadable or error.errno in PASSING_ERRNOS:
            raise
        move_whole(storage, name)
        return True
    storage.remove(name)
    return True


def _rebuild(storage: Storage, finding: SegmentFinding, sealed: SegmentRecord, gaps: Sequence[Gap]) -> None:
    """Replace a segment with a damaged header by a copy with a right one; the old header is kept.

    The copy is whole, proved and durable before it takes the name, so there is the old file or the new one, and no
    manifest has to know of it: done twice it finds a right header. Pages that the storage cannot read are zeros in the
    copy.
    """
    header = finding.header
    assert header is not None
    source = TolerantFile(storage.open(finding.name, "read"))

    def write(file: StorageFile) -> NewSegment:
        copy_segment(source, file, header, SEGMENT_HEADER_BYTES, finding.file_bytes)
        return NewSegment(header, sealed, gaps)

    try:
        if any(source.read(0, SEGMENT_HEADER_BYTES)):
            keep_part(storage, f"{finding.name}.header", source, 0, SEGMENT_HEADER_BYTES)
        write_segment(storage, SALVAGE_NEW_NAME, write)
    finally:
        source.close()
    storage.replace(SALVAGE_NEW_NAME, finding.name)
    storage.sync_directory()


def _is_orphaned(storage: Storage, name: str, manifest: Manifest) -> bool:
    """Say whether an unnamed segment is a remainder of trimming or compaction: nothing in it is needed."""
    try:
        header = header_of(storage, name)
    except CorruptionError:
        return False
    return header is not None and orphaned_by(header, manifest) is not None


def sync_unsealed(storage: Storage, manifest: Manifest, *, salvage: bool = False) -> None:
    """Before anything of an unsealed segment is trusted: see `sync_segments`."""
    sync_segments(storage, (record.name for record in manifest.unsealed), salvage=salvage)


def sync_segments(storage: Storage, names: Iterable[str], *, salvage: bool = False) -> None:
    """Sync segments and drop their cached pages.

    Bytes that were only in the page cache, of a killed writer or after a failed fsync, must not be sealed as if they
    were on disk: after a failed fsync the pages look clean, and only the device knows its content. With `salvage` a
    file that does not open is passed over; one that opens and does not sync never is.
    """
    for name in names:
        try:
            file = storage.open(name, "write")
        except StorageError as error:
            if error.errno == errno.ENOENT or (salvage and error.errno not in PASSING_ERRNOS):
                continue
            raise
        try:
            file.sync()
            file.drop_cached()
        finally:
            file.close()
