"""The manifest in its place: read once, replaced atomically, never on the path of an acknowledgement."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Protocol

from walkit._locks import once
from walkit._text import counted
from walkit.errors import (
    CorruptionError,
    LogClosedError,
    LogExhaustedError,
    LogNotFoundError,
    NotALogError,
    StorageError,
)
from walkit.format.layout import MANIFEST_BYTES_MAX, MANIFEST_HEADER, SEGMENT_NUMBER_MAX
from walkit.format.manifest import MANIFEST_NAME, Manifest, decode_manifest, encode_manifest
from walkit.format.names import CLAIMS_LOCK_NAME
from walkit.storage.interface import Storage, remove_if_there

LOCK_NAME = "lock"
DURABLE_NAME = "durable"
NEW_NAME = "manifest.new"
LOST_FOLDER = "lost+found"
OWN_NAMES = (MANIFEST_NAME, NEW_NAME, LOCK_NAME, DURABLE_NAME, CLAIMS_LOCK_NAME)
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)

IDENTITY_NAME, REGISTRY_NAME = "replica-identity", "replica-registry"
"""Who this replica is, from before there is a log in the folder; the replicas that a primary knows."""
REGISTRY_LOCK_NAME = "replica-registry.lock"
REPLICATION_NAMES = (
    *(IDENTITY_NAME, f"{IDENTITY_NAME}.new"),
    *(REGISTRY_NAME, f"{REGISTRY_NAME}.new", REGISTRY_LOCK_NAME),
)
"""What stands beside a log of those who follow it."""


def load_manifest(storage: Storage) -> Manifest:
    """Return the manifest of a log.

    LogNotFoundError where there is nothing, NotALogError where there is something else, SegmentMissing where segments
    are without a manifest (then `walkit.repair` can rebuild it), and what `decode_manifest` raises.
    """
    try:
        file = storage.open(MANIFEST_NAME, "read")
    except StorageError as error:
        if error.errno not in _NO_FILE:
            raise
        names = storage.names() if storage.exists() else []
        if MANIFEST_NAME not in names:
            raise _why_there_is_none(storage, names) from None
        # It was made meanwhile; a link to nothing is refused again.
        file = storage.open(MANIFEST_NAME, "read")
    try:
        data = file.read(0, MANIFEST_BYTES_MAX + 1)
    finally:
        file.close()
    try:
        return decode_manifest(data, storage.location)
    except NotALogError as error:
        if not any(n.endswith(".segment") for n in storage.names()):
            raise
        raise CorruptionError(
            f"the manifest of {storage.location} does not begin with walkit's magic, and segments are beside it; "
            "nothing was changed",
            segment=MANIFEST_NAME,
            expected="walkit's magic",
            found=data[:8],
        ) from error


def _why_there_is_none(
    storage: Storage, names: list[str]
) -> LogNotFoundError | NotALogError | CorruptionError:
    """Return the error for a place without a manifest, in which these names are."""
    segments = [n for n in names if n.endswith(".segment")]
    if segments:
        return CorruptionError(
            f"{storage.location} has {counted(len(segments), 'segment')} and no manifest; nothing was changed",
            segment=MANIFEST_NAME,
            expected="a manifest",
            found=counted(len(segments), "segment"),
        )
    others = [n for n in names if n not in (*OWN_NAMES, *REPLICATION_NAMES)]
    if others == [f"{LOST_FOLDER}/"]:
        others = storage.names(LOST_FOLDER)  # an empty one is made with some file systems
    if others:
        return NotALogError(storage.location, f"it holds other files ({others[0]}) and no manifest")
    return LogNotFoundError(storage.location)


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

    def __init__(self, storage: Storage, manifest: Manifest, place: Place | None = None) -> None:
        """`place` is looked at before each change; None for who has the folder for one change alone."""
        self._storage = storage
        self._lock = threading.RLock()
        self._closed = False
        self._next_number = 0
        self._place = place if place is not None and place.looks else None
        self._heads: set[bytes] = set()
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
        head = read_if_there(self._storage, MANIFEST_NAME, MANIFEST_HEADER.size)
        if head in self._heads:
            return
        try:
            found = load_manifest(self._storage)
        except (CorruptionError, NotALogError, LogNotFoundError):
            found = None
        if found != self.current:
            raise replaced_error(self._storage.location, MANIFEST_NAME)
        assert head is not None
        self._heads.add(head)

    def _write_locked(self, manifest: Manifest) -> None:
        self._look_locked()
        data = encode_manifest(manifest)
        head = data[: MANIFEST_HEADER.size]
        self._heads.add(head)
        write_whole(self._storage, MANIFEST_NAME, NEW_NAME, data)
        self._heads = {head}
        self.current = manifest

    def take_number(self) -> int:
        """Return a segment number that is given once; it enters the manifest with its segment.

        LogExhaustedError where there is none left.
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

    def forget(self) -> None:
        """In a forked child: close without waiting for a thread that only the parent has."""
        self._lock = threading.RLock()
        self._closed = True

    def update(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Replace the manifest by `change` of it; durable on return. LogClosedError once the log is closed.

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
            self._write_locked(manifest)
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
        numbers = [segment.number for segment in following.segments]
        assert len(set(numbers)) == len(numbers), "two segments of one number"


def write_whole(storage: Storage, name: str, temporary: str, data: bytes) -> None:
    """Put `data` in place of file `name`, atomically and durably: write, sync, rename, sync the directory."""
    remove_if_there(storage, temporary)
    file = storage.open(temporary, "create")
    try:
        file.write(0, [data])
        file.sync()
    finally:
        file.close()
    storage.replace(temporary, name)
    storage.sync_directory(name.rpartition("/")[0])


def read_if_there(storage: Storage, name: str, bytes_max: int) -> bytes | None:
    """Return at most so many bytes from the beginning of a file; None where there is no such file. StorageError."""
    try:
        file = storage.open(name, "read")
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return None
    try:
        return file.read(0, bytes_max)
    finally:
        file.close()
