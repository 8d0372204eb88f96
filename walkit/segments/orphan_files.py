"""Files that the manifest of a log does not name: orphans, which are removed, and a staged log's, which wait.

Orphans are removed again after a failure. Files of a staged log (FORMAT.md F-19) have their names in the folder
before a manifest has them: between their renames and that manifest the log in the folder is the one of before. Readers,
an examination and an opening continue with it; the next opening as a replica puts the staged log in its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from walkit._internal.locks import once
from walkit.errors import StorageError, WalkitError
from walkit.format.file_names import BOOTSTRAP_READY_NAME, INDEX_SUFFIX, TEMPORARY_NAMES
from walkit.format.layout import MANIFEST_BYTES_MAX, SegmentFlag
from walkit.format.manifest import Manifest, SegmentRecord, decode_manifest
from walkit.format.segment import SegmentHeader, segment_name
from walkit.segments.manifest_store import LOST_FOLDER, NEW_NAME, ManifestStore
from walkit.storage.bulk import read_if_there
from walkit.storage.interface import ReadableFiles, Storage, remove_if_there

KEPT_NEW_NAME: Final = f"{LOST_FOLDER}/kept.new"
"""Bytes that are being kept, until they are whole and durable."""


def temporary_in(storage: Storage, names: Iterable[str]) -> list[str]:
    """Return which of a log's files a writer left half written when it ended: nothing reads or continues them.

    Those of cursors and claims are not among them: a consumer in another process may be writing one now.
    """
    names = set(names)
    found = [name for name in (NEW_NAME, *TEMPORARY_NAMES) if name in names]
    with suppress(StorageError):  # a file system's own lost+found may not be ours to look into
        if f"{LOST_FOLDER}/" in names and KEPT_NEW_NAME in storage.names(LOST_FOLDER):
            found.append(KEPT_NEW_NAME)
    return found


def orphan_indexes(names: Iterable[str], manifest: Manifest) -> list[str]:
    """Return the indexes among the names whose segment is not in the log."""
    suffix = f".segment{INDEX_SUFFIX}"
    indexes = [n for n in names if n.endswith(suffix)]
    sealed = {record.name for record in manifest.sealed} if indexes else ()
    return [n for n in indexes if n.removesuffix(INDEX_SUFFIX) not in sealed]


def orphaned_by(header: SegmentHeader, manifest: Manifest) -> str | None:
    """Name the work that left a segment outside the manifest; None if the segment may hold unique records.

    "trimming": it begins below the log, or it is a copy of the end of a segment, whose place it never took.
    "compaction": it was compacted and never published, so its source is still the log, or a compacted
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


class Orphans(Protocol):
    """The files and objects that an open log removes, as its manifest no longer names them. Safe from any thread."""

    lock: Any
    """Held by the thread that gives something up, from taking it out of the manifest until it is removed."""

    def add(self, names: Iterable[str]) -> None:
        """Note files that the manifest does not name. Needs the lock held."""

    def give_up(self, names: list[str]) -> None:
        """Note segments whose publishing failed, and empty `names`."""

    def remove(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Remove the orphans; after a StorageError the next call removes the rest. Needs the lock held."""

    def forget(self) -> None:
        """In a forked child: forget a lock that a thread of the parent may hold."""


class OrphanFiles:
    """The files of an open log that are to be removed. The next opening removes the rest.

    `lock` is held by the thread that gives files up: from taking them, or the records in them, out of the manifest
    until they are noted and removed. Holds are taken under it, too.
    """

    def __init__(self, storage: Storage, manifest_store: ManifestStore) -> None:
        # Guards `_names`. Taken after the claims' lock and before the manifest's.
        self.lock = threading.RLock()
        self._storage, self._manifest_store = storage, manifest_store
        self._names: list[str] = []

    def add(self, names: Iterable[str]) -> None:
        """Note files; only once the manifest on stable storage does not name them. Needs the lock held."""
        self._names.extend(names)

    def give_up(self, names: list[str]) -> None:
        """Note segments whose publishing failed, and empty `names`; the manifest is written first.

        Where the failure was that of the manifest, the one on stable storage may name them. The next one does not.
        """
        if names:
            self._manifest_store.update(lambda manifest: manifest.next())
            with once(self.lock), self.lock:
                self.add(names)
                names.clear()

    def remove(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Remove them. After a StorageError the next call removes the rest. Needs the lock held.

        The next sync of the folder makes it durable. A power cut before that may bring one back: no manifest names it,
        and the next opening removes it. The manifest then gets space for edits, if it has little.
        `progress` is called with (files removed, files to remove).
        """
        total = len(self._names)
        if total:
            self._manifest_store.look()
        while self._names:
            remove_if_there(self._storage, self._names[0])
            del self._names[0]
            if progress is not None:
                progress(total - len(self._names), total)
        if total:
            self._manifest_store.renew()

    def forget(self) -> None:
        """In a forked child: forget a lock that a thread of the parent may hold."""
        self.lock = threading.RLock()


SNAPSHOT_KEY: Final = "snapshot_lsn"


@dataclass(frozen=True, slots=True)
class StagedLog:
    """The files of a staged log, by the names that they get in this one's place."""

    segments: Mapping[str, SegmentRecord] = field(default_factory=dict)
    """The plan's record of each segment, by the name that it gets."""
    snapshot_lsn: int = 0
    """LSN of its snapshot; 0 without one."""

    def has(self, name: str, header: SegmentHeader) -> bool:
        """Say whether the segment of this name is one of it."""
        record = self.segments.get(name)
        return record is not None and (record.start_position, record.first_lsn, record.start_chain) == (
            header.start_position,
            header.first_lsn,
            header.chain,
        )


NOTHING_STAGED: Final = StagedLog()


def staged_in(storage: ReadableFiles, manifest: Manifest) -> StagedLog:
    """Return the log that is staged to replace the log of this manifest; empty without one. StorageError."""
    data = read_if_there(storage, BOOTSTRAP_READY_NAME, MANIFEST_BYTES_MAX + 1)
    if data is None:
        return NOTHING_STAGED
    try:
        ready = decode_manifest(data, BOOTSTRAP_READY_NAME)
    except WalkitError:
        return NOTHING_STAGED
    lsn = ready.extra.get(SNAPSHOT_KEY, 0)
    if ready.log_id != manifest.log_id or not isinstance(lsn, int):
        return NOTHING_STAGED
    first = manifest.next_segment
    return StagedLog(
        {segment_name(first + i): record for i, record in enumerate(ready.sealed)}, snapshot_lsn=lsn
    )
