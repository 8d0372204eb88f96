"""Applying a recovery plan: the only code of an opening that changes files.

The manifest comes first, then the files. Doing it again, also after a crash at any operation, changes nothing more.
"""

from __future__ import annotations

import errno
from contextlib import suppress

from walkit.errors import CorruptionError, StorageError
from walkit.format.layout import SEGMENT_HEADER_BYTES, ZEROS
from walkit.format.manifest import Manifest
from walkit.format.segment import SegmentHeader
from walkit.log.behind import nonzero_until
from walkit.log.decision import Decision
from walkit.log.findings import SegmentFinding
from walkit.log.leftover import leftover_of
from walkit.log.manifest_store import LOST_FOLDER, ManifestStore
from walkit.log.recovery import RecoveryPlan
from walkit.storage.base import Storage


def apply_plan(storage: Storage, store: ManifestStore, plan: RecoveryPlan) -> None:
    """Make the plan true: the manifest first, then the files. Doing it again, also after a crash, changes nothing more.

    Bytes that are cut off or set aside are kept under lost+found, durably, before they go from where they were.
    """
    if plan.manifest is not plan.findings.manifest:
        store.update(lambda _: plan.manifest)
    changed = False
    for finding in plan.findings.sealed:
        changed |= _tidy_end(storage, finding, finding.end_position)
    for step in plan.steps:
        finding = step.finding
        if step.sealed is not None:
            _tidy_end(storage, finding, step.end_position)
        else:
            changed |= _set_aside(storage, finding.name, keep=step.row.decision is Decision.CUT_WHOLE)
    for name in plan.findings.strays:
        changed |= _set_aside(storage, name, keep=not _is_leftover(storage, name, plan.manifest))
    for name in plan.findings.orphans:
        with suppress(StorageError):  # it costs its bytes, and nothing reads it
            storage.remove(name)
    if changed:
        storage.sync_directory()


def _tidy_end(storage: Storage, finding: SegmentFinding, end_position: int) -> bool:
    """Keep what stands behind the sealed end under lost+found, then shorten the file."""
    assert finding.header is not None
    end = finding.header.offset_of(end_position)
    if finding.file_bytes <= end:
        return False
    file = storage.open(finding.name, "write")
    try:
        size = file.size()
        until = nonzero_until(file, end, size)
        if until > end:
            _keep(storage, f"{finding.name}.{end_position}.tail", file.read(end, until - end))
        file.shorten(end)
        file.sync()
    finally:
        file.close()
    return True


def _set_aside(storage: Storage, name: str, *, keep: bool) -> bool:
    """Take a whole file out of the log: under lost+found where it holds anything to keep, else away."""
    try:
        file = storage.open(name, "read")
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    try:
        until = nonzero_until(file, 0, file.size()) if keep else 0
        data = file.read(0, until)
    finally:
        file.close()
    if data:
        _keep(storage, name, data)
    storage.remove(name)
    return True


def _keep(storage: Storage, name: str, data: bytes) -> None:
    number = 0
    while True:
        target = f"{LOST_FOLDER}/{name}" + (f".{number}" if number else "")
        try:
            file = storage.open(target, "create")
            break
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
            if _holds(storage, target, data):
                return
            number += 1
    try:
        for offset in range(0, len(data), len(ZEROS)):
            file.write(offset, [data[offset : offset + len(ZEROS)]])
        file.sync()
    finally:
        file.close()
    storage.sync_directory(LOST_FOLDER)
    storage.sync_directory()


def _holds(storage: Storage, name: str, data: bytes) -> bool:
    file = storage.open(name, "read")
    try:
        return file.size() == len(data) and file.read(0, len(data)) == data
    finally:
        file.close()


def _is_leftover(storage: Storage, name: str, manifest: Manifest) -> bool:
    """Say whether an unnamed segment is what trimming or compaction left: nothing in it is needed."""
    file = storage.open(name, "read")
    try:
        header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), name)
    except CorruptionError:
        return False
    finally:
        file.close()
    return header is not None and leftover_of(header, manifest) is not None


def settle_unsealed(storage: Storage, manifest: Manifest) -> None:
    """Before anything of an unsealed segment is trusted: sync it and drop its cached pages.

    What was only in the page cache, of a killed writer or behind a failed fsync, must not be sealed as if it were on
    disk: after a failed fsync the pages look clean, and only the device says what is there.
    """
    for record in manifest.unsealed:
        try:
            file = storage.open(record.name, "write")
        except StorageError as error:
            if error.errno == errno.ENOENT:
                continue
            raise
        try:
            file.sync()
            file.drop_cached()
        finally:
            file.close()
