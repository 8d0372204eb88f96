"""The writer's lock of a log's folder: a writer has it, and what replaces the log's files."""

from __future__ import annotations

from walkit.errors import LogLockedError, StorageError
from walkit.segments.manifest_store import LOCK_NAME
from walkit.storage.interface import LockHolder, Storage, StorageLock


def take_writer_lock(storage: Storage) -> StorageLock:
    """Take the lock. LogLockedError, which names the holder, where another has it."""
    lock = storage.lock(LOCK_NAME)
    if isinstance(lock, LockHolder):
        raise LogLockedError(
            storage.location, pid=lock.pid, command=lock.command, same_process=lock.same_process
        )
    return lock


def refuse_a_writer(storage: Storage) -> None:
    """Raise LogLockedError where the log has a writer; it names it where the storage can say who it is."""
    if not storage.is_locked(LOCK_NAME):
        return
    try:
        lock = take_writer_lock(storage)
    except StorageError:  # a folder that can only be read does not say it
        raise LogLockedError(storage.location, pid=None, command=None, same_process=False) from None
    lock.release()  # the writer has left meanwhile
