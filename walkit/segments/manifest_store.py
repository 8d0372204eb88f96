"""The manifest in its place: a base and edits (FORMAT.md F-12), never on the path of an acknowledgement.

A change is one synced write into the zeroed space after the base. When that is used up, a new base replaces the file
atomically. A part of the space is reserved for changes that drop or seal segments, which need no room so.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from walkit._locks import once
from walkit.errors import (
    CorruptionError,
    LogClosedError,
    LogExhaustedError,
    LogNotFoundError,
    NotALogError,
    StorageError,
)
from walkit.format.layout import EDIT_ALIGNMENT, MANIFEST_HEADER, SEGMENT_NUMBER_MAX
from walkit.format.manifest import MANIFEST_NAME, Manifest
from walkit.format.manifest_file import ManifestFile, encode_base, encode_edit, new_file
from walkit.segments.manifest_edits import RESERVE_OPENING_BYTES, reserved_bytes, space_bytes
from walkit.segments.manifest_load import IDENTITY_NAME as IDENTITY_NAME
from walkit.segments.manifest_load import LOCK_NAME as LOCK_NAME
from walkit.segments.manifest_load import LOST_FOLDER as LOST_FOLDER
from walkit.segments.manifest_load import NEW_NAME as NEW_NAME
from walkit.segments.manifest_load import OWN_NAMES as OWN_NAMES
from walkit.segments.manifest_load import REGISTRY_LOCK_NAME as REGISTRY_LOCK_NAME
from walkit.segments.manifest_load import REGISTRY_NAME as REGISTRY_NAME
from walkit.segments.manifest_load import REPLICATION_NAMES as REPLICATION_NAMES
from walkit.segments.manifest_load import load_manifest as load_manifest
from walkit.segments.manifest_load import load_manifest_file as load_manifest_file
from walkit.segments.manifest_load import settle_manifest as settle_manifest
from walkit.segments.slot_store import DURABLE_NAME as DURABLE_NAME
from walkit.segments.slot_store import SlotStore
from walkit.storage.interface import HoldableFile, Storage, StorageFile, remove_if_there
from walkit.storage.io_errors import BACK_PRESSURE
from walkit.storage.whole_file import write_whole

SCARCE_BYTES = 1024
"""So much space for edits beyond the reserve is little: a rotation takes that much, nearly."""


def replaced_error(location: str, name: str) -> StorageError:
    """Return the error of a writer whose folder (""), or one of whose files, is no longer what it has open."""
    what = f"{name!r} in {location}" if name else f"the folder {location}"
    return StorageError(
        f"{what} was removed or replaced under its writer, which stops: what it writes now would be lost",
        errno=errno.ESTALE,
        name=name,
    )


class Place(Protocol):
    """Where a writer's files are: see `WriterLock`."""

    @property
    def looks(self) -> bool:
        """Whether there is anything to look at."""

    def look(self) -> None:
        """Raise a StorageError (ESTALE) if the place is not what the writer has taken."""


class ManifestStore:
    """The manifest of an open log. `current` is an immutable snapshot; `update` is safe from any thread."""

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        place: Place | None = None,
        slots: SlotStore | None = None,
        file: ManifestFile | None = None,
    ) -> None:
        """`place` is looked at before each change; None for who has the folder for one change alone.

        `slots` gets each manifest that is durable. Without it each change is a new base, as nothing could promise
        an edit. `file` is the one that has this manifest, if the caller has read it.
        """
        self._storage = storage
        self._lock = threading.RLock()
        self._closed = False
        self._next_number = 0
        self._place = place if place is not None and place.looks else None
        self._slots = slots
        self._file = file
        """The file as it was read or written; None before, and after a write that failed: then comes a new base."""
        self._heads = set() if file is None else {file.data[: MANIFEST_HEADER.size]}
        """The header of the file, as this writer has read or written it; two after a failed replacement."""
        self.lost: StorageError | None = None
        """The error of the look that found a loss: from then on nothing is written."""
        self.on_lost: Callable[[StorageError], object] = lambda _: None
        """Called when a look has failed, under the caller's locks: it must only note it."""
        self.current = manifest

    def look(self, *, wait: bool = True) -> None:
        """Look whether folder, `lock`, open segments and manifest are those of this writer. StorageError (ESTALE).

        Without `wait` nothing is done beside a replacement of the manifest, which looks itself.
        """
        if self._place is None:
            return
        with once(self._lock):
            if self._lock.acquire(blocking=wait):
                try:
                    self._look_locked()
                finally:
                    self._lock.release()

    def _look_locked(self) -> None:
        if self._place is None or self._closed:
            return
        if self.lost is None:
            try:
                self._place.look()
                self._look_at_manifest()
            except StorageError as error:
                if error.errno != errno.ESTALE:
                    raise
                self.lost = error
                self.on_lost(error)
        if self.lost is not None:
            raise replaced_error(self._storage.location, self.lost.name or "")

    def _look_at_manifest(self) -> None:
        head, following = self._read_around()
        if head not in self._heads or any(following):
            self._take_file(head)

    def _read_around(self) -> tuple[bytes, bytes]:
        """Return the header of the file, and the bytes of the next edit: zeros, unless another writer was there."""
        try:
            file = self._storage.open(MANIFEST_NAME, "read")
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return b"", b""
        try:
            known = self._file
            clean = known is not None and not known.torn_until
            following = file.read(known.offset, EDIT_ALIGNMENT) if known is not None and clean else b""
            return file.read(0, MANIFEST_HEADER.size), following
        finally:
            file.close()

    def _take_file(self, head: bytes) -> None:
        """Read the whole file: it must be this writer's. StorageError (ESTALE)."""
        try:
            found = load_manifest_file(self._storage)
        except (CorruptionError, NotALogError, LogNotFoundError):
            found = None
        if found is None or found.manifest != self.current:
            raise replaced_error(self._storage.location, MANIFEST_NAME)
        self._file = found
        self._heads.add(head)

    def _write_locked(self, manifest: Manifest, *, opening: bool = False) -> None:
        self._look_locked()
        made = self._edit_of(manifest, opening=opening)
        if made is None or not self._write_edit(*made):
            self._write_base(manifest)
        self.current = manifest
        if self._slots is not None:
            self._slots.promise(manifest)

    def _edit_of(self, manifest: Manifest, *, opening: bool) -> tuple[bytes, ManifestFile] | None:
        """Return the edit that makes this manifest of the current one; None if it has to be a new base.

        One that lessens what is kept in reserve may use it, and one of an opening may use the part that is for it.
        """
        if self._slots is None or not manifest.lineage:
            return None
        if not self._heads:
            self._take_file(self._read_around()[0])
        if self._file is None:
            return None
        made = encode_edit(self._file, manifest)
        if made is None:
            return None
        left, kept = made[1].end - made[1].offset, reserved_bytes(manifest)
        if left < kept - (RESERVE_OPENING_BYTES if opening else 0) and kept >= reserved_bytes(self.current):
            return None
        return made

    def _write_edit(self, data: bytes, after: ManifestFile) -> bool:
        """Write an edit, durably; False, and nothing was written, if the file is another log's as well."""
        before, file = self._file, self._storage.open(MANIFEST_NAME, "write")
        assert before is not None
        try:
            if _is_shared(file):
                return False
            self._file = None  # until it is known to be durable
            if before.torn_until:
                # An unfinished edit of an earlier writer must not become whole by a part of this one.
                file.write(before.offset, [bytes(before.torn_until - before.offset)], sync=True)
            file.write(before.offset, [data], sync=True)
        finally:
            file.close()
        self._file = replace(after, torn_until=0)
        return True

    def _write_base(self, manifest: Manifest) -> None:
        data = encode_base(manifest, space_bytes(manifest))
        head, before, heads = data[: MANIFEST_HEADER.size], self._file, self._heads
        self._heads = {*heads, head}
        self._file = None  # until it is known to be durable
        try:
            write_whole(self._storage, MANIFEST_NAME, NEW_NAME, data)
        except StorageError as error:
            with suppress(StorageError):
                if error.errno in BACK_PRESSURE:
                    remove_if_there(self._storage, NEW_NAME)  # it would keep the space that others need
                if self._read_around()[0] in heads:
                    self._file, self._heads = before, heads  # it has its name still: edits go on
            raise
        self._heads = {head}
        self._file = new_file(manifest, data)

    @property
    def is_scarce(self) -> bool:
        """Whether the space for edits is used up but for its reserve, nearly."""
        file = self._file
        return file is not None and file.end - file.offset - reserved_bytes(self.current) < SCARCE_BYTES

    def renew(self) -> None:
        """Write a new base if the space for edits is scarce, while files were removed and there may be room for it."""
        with once(self._lock), self._lock, suppress(StorageError):  # without room the reserve is there still
            if self.is_scarce and not self._closed:
                self._look_locked()
                self._write_base(self.current)

    def take_number(self) -> int:
        """Return a segment number that is given once; it enters the manifest with its segment.

        LogExhaustedError if all are given.
        """
        with once(self._lock), self._lock:
            number = max(self._next_number, self.current.next_segment)
            if number > SEGMENT_NUMBER_MAX:
                raise LogExhaustedError("segment", number, SEGMENT_NUMBER_MAX)
            self._next_number = number + 1
            return number

    def close(self) -> None:
        """Wait for the update under way and let no other begin: the log may get another writer now."""
        with once(self._lock), self._lock:
            self._closed = True
            if self._slots is not None:
                self._slots.close()

    def forget(self) -> None:
        """In a forked child: close without waiting for a thread that only the parent has."""
        self._lock = threading.RLock()
        self._closed = True

    def update(self, change: Callable[[Manifest], Manifest], *, opening: bool = False) -> Manifest:
        """Replace the manifest by `change` of it; durable on return. LogClosedError once the log is closed.

        With `opening` it may use the space for edits that is kept for an opening.

        On a StorageError the log continues with the manifest it had. The file may be either one then: the change must
        be such that it may be made again. With errno ESTALE nothing was written, and nothing will be.
        """
        with once(self._lock), self._lock:
            if self._closed:
                raise LogClosedError(
                    f"the log at {self._storage.location} is closed; its manifest was not changed"
                )
            manifest = change(self.current)
            if manifest is self.current:
                return manifest
            self._check(manifest)
            self._write_locked(manifest, opening=opening)
            return manifest

    def put_back(self, manifest: Manifest) -> None:
        """Replace the manifest by that of the same log with an earlier end; durable on return.

        For a rewind alone: nothing else of the log may be under way, and nothing may read its records meanwhile.
        """
        with once(self._lock), self._lock:
            current = self.current
            assert not self._closed and manifest.generation > current.generation
            assert manifest.log_id == current.log_id and manifest.next_segment >= current.next_segment
            assert manifest.low_watermark <= manifest.end.last_lsn <= current.end.last_lsn
            self._write_locked(manifest)

    def _check(self, following: Manifest) -> None:
        """Assert that a manifest may follow the current one: what only grows has grown."""
        current = self.current
        assert following.generation > current.generation
        assert following.log_id == current.log_id, "another log"
        assert following.next_segment >= current.next_segment, "a segment's number would be given again"
        assert following.low_watermark >= current.low_watermark
        assert following.checkpoint_lsn >= current.checkpoint_lsn


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Replace the manifest by a new base, atomically and durably."""
    write_whole(storage, MANIFEST_NAME, NEW_NAME, encode_base(manifest, space_bytes(manifest)))


def _is_shared(file: StorageFile) -> bool:
    """Say whether a file has another name: a copy of hard links is another log, whose manifest must not change."""
    return isinstance(file, HoldableFile) and file.status_call()().st_nlink > 1
