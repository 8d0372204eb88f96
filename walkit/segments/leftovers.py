"""Files that trimming and compaction leave when a crash comes between the manifest and the removal, or before both."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from walkit.errors import StorageError
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import Manifest
from walkit.format.names import UNFINISHED_NAMES
from walkit.format.segment import SegmentHeader
from walkit.segments.manifest_store import LOST_FOLDER, NEW_NAME
from walkit.storage.interface import Storage

KEPT_NEW_NAME: Final = f"{LOST_FOLDER}/kept.new"
"""Bytes that are being kept, until they are whole and durable."""


def unfinished_in(storage: Storage, names: Iterable[str]) -> list[str]:
    """Return which of a log's files a writer left half written when it ended: nothing reads or continues them.

    Those of cursors and claims are not among them: a consumer in another process may be writing one now.
    """
    names = set(names)
    found = [name for name in (NEW_NAME, *UNFINISHED_NAMES) if name in names]
    with suppress(StorageError):  # a file system's own lost+found may not be ours to look into
        if f"{LOST_FOLDER}/" in names and KEPT_NEW_NAME in storage.names(LOST_FOLDER):
            found.append(KEPT_NEW_NAME)
    return found


def leftover_of(header: SegmentHeader, manifest: Manifest) -> str | None:
    """Say which work left a segment that the manifest does not name; None where it may hold what nothing else holds.

    "trimming": it begins below the log, or it is a copy of the end of a segment, whose place it never took.
    "compaction": it was compacted and never published, so that what it was made of is still the log, or a compacted
    segment has taken its place.
    """
    if header.log_id != manifest.log_id:
        return None
    oldest = min((s.start_position for s in manifest.sealed), default=manifest.end.position)
    if header.start_position < oldest and header.first_lsn <= manifest.low_watermark:
        return "trimming"
    if header.flags & SegmentFlag.COMPACTED:
        return "compaction"
    epoch = manifest.epoch_of(header.epoch)
    ours = epoch is not None and epoch.id == header.epoch_id and header.number < manifest.next_segment
    for record in manifest.sealed:
        same_place = record.epoch == header.epoch and header.start_position < record.end_position
        covered = record.first_lsn <= header.first_lsn <= record.last_lsn
        if record.flags & SegmentFlag.COMPACTED and same_place and covered:
            return "compaction"
        if ours and same_place and record.start_position < header.start_position:
            return "trimming"
    return None
