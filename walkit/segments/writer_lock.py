"""A writer's hold on its folder, so that no name decides who it is: the folder itself, `lock`, the unsealed segments.

The kernel decides first: each of the three locks keeps a second writer out by itself. Looks come second: they notice
that another process has removed or replaced the writer's files, whose records would then be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from walkit.errors import LogLockedError, StorageError, WalkitError
from walkit.format.manifest import Manifest
from walkit.segments.manifest_store import LOCK_NAME, load_manifest, replaced_error
from walkit.storage.interface import (
    OUT_OF_PROCESS,
    FileNumber,
    FolderHold,
    HoldableStorage,
    LockHolder,
    NumberedFile,
    Storage,
    StorageFile,
    StorageLock,
    hold_file,
    hold_folder,
    is_held,
)

if TYPE_CHECKING:
    from walkit.segments.segment_set import SegmentSet


_held: set[WriterLock] = set()
"""Those that were not given up: one that is dropped is not free, as a hung call may still write there."""


def take_writer_lock(
    storage: Storage, again: FileNumber | None = None, *, manifest: Manifest | None = None
) -> WriterLock:
    """Take the folder, `lock` and the unsealed segments. LogLockedError, which names the holder, if another has one.

    `again` is the number of the folder of which a lock was released: StorageError (ESTALE) if the location leads to
    another one by now. `manifest` is that of the log, if the caller has read it.
    """
    taken = WriterLock(storage)
    try:
        taken._take(again, manifest)
        _held.add(taken)
    except BaseException:
        taken.release()
        raise
    return taken


class WriterLock:
    """A writer's hold on its folder; a `StorageLock`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._folder: FolderHold | None = None
        # Locks between processes, one writer at a time: the folder is taken first, then `lock`, then unsealed segments.
        self._lock: StorageLock | None = None
        self._recovered: list[StorageFile] = []
        self._compares = self._is_followed = False
        self.moved_to: str | None = None
        """Where the folder is, if the location no longer leads to it."""
        self.on_move: Callable[[str], object] = lambda _: None
        """Called by a look that finds the folder moved, with its new place; it must only note it."""
        self.files: Callable[[], Iterable[StorageFile]] = lambda: ()
        """Returns the open segments of the log."""

    @property
    def looks(self) -> bool:
        """Whether there is anything to look at: a folder, in which names can change."""
        return self._folder is not None

    def folder(self) -> FileNumber | None:
        """Return the number of the folder, to take the lock of the same one again. StorageError."""
        return None if self._folder is None else self._folder.number()

    def _take(self, again: FileNumber | None, manifest: Manifest | None) -> None:
        folder = hold_folder(self._storage, LOCK_NAME)
        if isinstance(folder, LockHolder):
            raise self._refusal(folder)
        self._folder = folder
        if again is not None and self.folder() != again:
            raise replaced_error(self._storage.location, "")
        lock = self._storage.lock(LOCK_NAME)
        if isinstance(lock, LockHolder):
            raise self._refusal(lock)
        self._lock = lock
        if folder is None:
            return
        self._take_unsealed(manifest)
        # Where an untouched folder has other numbers by name than by descriptor, comparing them says nothing.
        self._compares = _number(lock) == folder.number_of(LOCK_NAME)
        self._is_followed = folder.number() == folder.number_of("")

    def _take_unsealed(self, manifest: Manifest | None) -> None:
        """Take each segment that no manifest seals, until the log is recovered; one in use means a living writer."""
        with suppress(WalkitError):  # then all are asked; the code that needs the manifest reports the error
            manifest = manifest or load_manifest(self._storage)
        unsealed = set() if manifest is None else {record.name for record in manifest.unsealed}
        sealed = set() if manifest is None else {record.name for record in manifest.sealed}
        for name in self._storage.names():
            if not name.endswith(".segment") or name in sealed:
                continue
            try:
                file = self._storage.open(name, "write")
            except StorageError as error:
                if error.errno in OUT_OF_PROCESS:
                    raise  # it may have a writer
                continue  # the recovery reports it
            self._recovered.append(file)
            if not hold_file(file):
                raise self._refusal(LockHolder(pid=None, command=None, same_process=False))
            if name not in unsealed:
                self._recovered.pop().close()

    def _refusal(self, holder: LockHolder) -> LogLockedError:
        return LogLockedError(
            self._storage.location, pid=holder.pid, command=holder.command, same_process=holder.same_process
        )

    def watch(self, segments: SegmentSet, poison: Callable[[BaseException], None]) -> None:
        """Look at the open segments, too, and report its findings: on the log's maintenance thread."""
        submit, events, location = segments.maintenance.submit, segments.events, self._storage.location
        self.files = segments.files
        self.on_move = lambda place: submit(
            "index", lambda: events.emit("walkit.log.move", location=location, place=place)
        )
        segments.store.on_lost = lambda error: submit("seal", lambda: poison(error))

    def recovered(self) -> None:
        """Leave the segments that the recovery has sealed."""
        while self._recovered:
            self._recovered.pop().close()

    def look(self) -> None:
        """Look whether folder, `lock` and open segments still are the writer's. StorageError (ESTALE) if not.

        A folder that was only renamed, or a link that leads elsewhere, changes nothing for the writer.
        """
        folder = self._folder
        if folder is None or self._lock is None:
            return
        if folder.number() is None:
            raise replaced_error(self._storage.location, "")
        if not self._compares:
            return
        if folder.number_of(LOCK_NAME) != _number(self._lock):
            raise replaced_error(self._storage.location, LOCK_NAME)
        for file in self.files():
            # A segment is closed before its name goes: one that is closed by now was sealed meanwhile.
            if folder.number_of(file.name) != _number(file) and _number(file) is not None:
                raise replaced_error(self._storage.location, file.name)
        if self._is_followed:
            is_here = folder.number_of("") == folder.number()
            before, self.moved_to = self.moved_to, None if is_here else folder.place()
            if self.moved_to is not None and before is None:
                self.on_move(self.moved_to)

    def release(self) -> None:
        """Give all of it up. Releasing twice does nothing."""
        _held.discard(self)
        try:
            self.recovered()
        finally:
            try:
                if self._lock is not None:
                    self._lock.release()
            finally:
                if self._folder is not None:
                    self._folder.release()

    def forget(self) -> None:
        """In a forked child: drop this copy without releasing the parent's lock."""
        _held.discard(self)
        self.recovered()
        for lock in (self._lock, self._folder):
            if lock is not None:
                lock.forget()


def has_writer(storage: Storage, manifest: Manifest | None) -> bool:
    """Say whether a living writer has `lock` or an unsealed segment of the manifest. Takes nothing. StorageError."""
    if storage.is_locked(LOCK_NAME):
        return True
    if manifest is None or not isinstance(storage, HoldableStorage):
        return False
    return any(_is_held(storage, record.name) for record in manifest.unsealed)


def _is_held(storage: Storage, name: str) -> bool:
    try:
        file = storage.open(name, "read")
    except StorageError:
        return False  # reading it reports the error
    try:
        return is_held(file)
    finally:
        file.close()


def refuse_a_writer(storage: Storage) -> None:
    """Raise LogLockedError if the log has a writer, named if the storage knows it."""
    try:
        manifest = load_manifest(storage)
    except WalkitError:
        manifest = None
    if not has_writer(storage, manifest):
        return
    try:
        lock = take_writer_lock(storage)
    except StorageError:  # a folder that can only be read does not say it
        raise LogLockedError(storage.location, pid=None, command=None, same_process=False) from None
    lock.release()  # the writer has left meanwhile


def _number(held: object) -> FileNumber | None:
    """Return the number of an open file or lock; None if it is closed or has no number."""
    try:
        return held.number() if isinstance(held, NumberedFile) else None
    except StorageError:
        return None
