"""An object store in a folder: every put is durable, and several processes may use it at the same time.

One folder has a file for each object, named by its key with "%2F" for "/". The first bytes of a file are the number
that is the tag; no other put of the folder has or will have it. A put writes an exclusive temporary, syncs it, gives it
the name of the object if that is free, and syncs the folder. A process that dies leaves the old object or the new one,
and perhaps a temporary, which the next process that puts something removes.

The names of own files start with "=", as no quoted key does: the temporaries, a counter, and locks. A process takes a
block of numbers from the counter, and has a lock for its life, so that others leave its temporaries alone. A
replacement and a deletion hold the lock of the store for a moment; a creation and a read take no lock.

A process that puts and deletes has the folder in which it has its lock: another one that takes its place is refused,
whatever numbers it has.

A reader may see an object just before its put returns, when a power cut may still undo it. The next put or deletion in
the folder makes it durable.
"""

from __future__ import annotations

import errno
import itertools
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote

from walkit._internal.locks import once
from walkit.errors import (
    ObjectConflictError,
    ObjectDeniedError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectRangeError,
    ObjectStoreError,
    ObjectThrottledError,
    ObjectUnknownError,
    StorageError,
)
from walkit.record import Buffer
from walkit.storage.bulk import read_if_there, write_whole
from walkit.storage.file import FileStorage
from walkit.storage.interface import (
    ExclusiveNames,
    LockHolder,
    NumberedFile,
    Storage,
    StorageFile,
    StorageLock,
    checked_name,
    remove_if_there,
    storage_error,
)
from walkit.storage.object_store import ObjectBytes, ObjectEntry, checked_range

_HEADER = struct.Struct("<8sQ")
_MAGIC = b"walkitob"
LOCK, COUNTER, PUT, LIFE = "=lock", "=counter", "=put-", "=life-"
_BLOCK_BITS = 32
"""A number is that of its block, and so many bits within the block."""
_LOCK_WAIT_S, _LOCK_PAUSE_S = 10.0, 0.001
_KINDS: dict[int | None, type[ObjectStoreError]] = {
    errno.ENOENT: ObjectMissingError,
    errno.EEXIST: ObjectExistsError,
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), ObjectDeniedError),
}


class FileObjectStore:
    """Objects as files of one folder: see `walkit.storage.ObjectStore`. `place` is a path, or a storage."""

    def __init__(self, place: str | os.PathLike[str] | Storage) -> None:
        self._storage = FileStorage(place) if isinstance(place, str | os.PathLike) else place
        # Guards the block of numbers, and lets one thread of this process wait for the lock of the store. Taken first.
        self._guard: Any = threading.RLock()
        self._pid = 0
        """The process that has taken the block: a forked child takes its own."""
        self._numbers = itertools.count()
        self._unsynced: set[str] = set()
        """Tags of own puts of which the sync of the folder has failed."""
        self._life: StorageLock | LockHolder | None = None
        self._life_name = ""
        self._compares = False
        """Whether the number of the lock's file shows that the folder is still the same."""

    pause_s = 0.0

    @property
    def location(self) -> str:
        """The URL of the folder."""
        return f"objects:{self._storage.location}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.location}>"

    def put_if_absent(self, key: str, data: Buffer) -> str:
        """Create an object; return its tag."""

        def publish(temporary: str, name: str) -> None:
            if not isinstance(self._storage, ExclusiveNames):
                raise storage_error("create", name, self._storage.location, errno.EOPNOTSUPP)
            self._storage.rename_new(temporary, name)

        return self._put("create", key, data, publish)

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str:
        """Replace the object that has this tag; return the new tag."""

        def publish(temporary: str, name: str) -> None:
            with self._alone():
                try:
                    with self._opened(key) as (_, found):
                        matches = found == tag
                except ObjectMissingError:
                    matches = False
                if not matches:
                    raise self._error(ObjectConflictError, "replace", key, "its tag is another")
                self._storage.replace(temporary, name)

        return self._put("replace", key, data, publish)

    def get(self, key: str) -> ObjectBytes:
        """Return all bytes of an object, and its tag."""
        with self._opened(key) as (file, tag):
            return ObjectBytes(file.read(_HEADER.size, file.size() - _HEADER.size), tag)

    def get_range(self, key: str, start: int, stop: int) -> ObjectBytes:
        """Return bytes [start, stop) of an object, fewer if it is shorter, and its tag."""
        checked_range(start, stop)
        with self._opened(key) as (file, tag):
            data = file.read(_HEADER.size + start, stop - start)
        if not data:
            raise self._error(ObjectRangeError, "read", key, f"it has no byte {start:,}")
        return ObjectBytes(data, tag)

    def list_after(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """Yield the objects below a folder of keys whose keys sort after `after`."""
        folder = f"{checked_name(prefix, self.location)}/" if prefix else ""
        for name in self._storage.names():
            key = unquote(name)
            if quote(key, safe="") == name and key.startswith(folder) and key > after:
                try:
                    with self._opened(key) as (file, tag):
                        entry = ObjectEntry(key, file.size() - _HEADER.size, tag)
                except StorageError as error:
                    if error.errno not in (errno.ENOENT, errno.EILSEQ):  # removed since, or a stray file
                        raise
                else:
                    yield entry

    def delete(self, key: str) -> None:
        """Remove an object, whatever its tag, if there is one."""
        self.delete_many([key])

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove objects under one lock and one sync."""
        names = [self._name(key) for key in keys]
        if not names or not self._storage.exists():
            return
        with self._answers("delete", keys[0]), self._alone():
            self._refuse_exchanged("delete", keys[0])
            for name in names:
                remove_if_there(self._storage, name)
        self._sync("delete", keys[0])

    def close(self) -> None:
        """Give the block of numbers up; the next put takes another."""
        with once(self._guard), self._guard:
            self._release()

    def _release(self) -> None:
        self._pid, self._compares = 0, False
        if self._life is not None and not isinstance(self._life, LockHolder):
            self._life.release()
        self._life = None

    def _put(self, action: str, key: str, data: Buffer, publish: Callable[[str, str], None]) -> str:
        name = self._name(key)
        with self._answers(action, key):
            number = self._number()
            temporary = f"{PUT}{number:016x}"
            try:
                file = self._storage.open(temporary, "create")
                try:
                    file.write(0, [_HEADER.pack(_MAGIC, number), data])
                    file.sync()
                finally:
                    file.close()
                # The temporary is in this folder, and cannot be published in one that takes its place from now on.
                self._refuse_exchanged(action, key)
                publish(temporary, name)
            except BaseException:
                with suppress(StorageError):  # the first error is raised
                    remove_if_there(self._storage, temporary)
                raise
        self._sync(action, key, str(number))
        return str(number)

    def _sync(self, action: str, key: str, tag: str = "") -> None:
        try:
            self._storage.sync_directory()
        except StorageError as error:
            self._unsynced.add(tag)
            raise self._error(ObjectUnknownError, action, key, error) from error
        self._unsynced.discard(tag)

    def _number(self) -> int:
        """Return a number that no other put has; the first call of a process takes a block of them, and cleans up."""
        if self._pid != os.getpid():
            self._storage.create()
            with self._alone():
                if self._pid != os.getpid():
                    self._take_block()
        return next(self._numbers)

    def _take_block(self) -> None:
        self._release()  # a forked child has a copy of its parent's
        storage = self._storage
        block = int.from_bytes(read_if_there(storage, COUNTER, 8) or b"", "big") + 1
        write_whole(storage, COUNTER, f"{COUNTER}.new", block.to_bytes(8, "big"))
        self._life_name = f"{LIFE}{block:08x}"
        self._life = storage.lock(self._life_name)
        self._compares = self._is_same()
        for name in storage.names():
            if name.startswith((PUT, LIFE)):
                its_block = name.removeprefix(PUT).removeprefix(LIFE)[:8]
                if not storage.is_locked(f"{LIFE}{its_block}"):
                    remove_if_there(storage, name)
        self._numbers = itertools.count(block << _BLOCK_BITS)
        self._pid = os.getpid()

    def _is_same(self) -> bool:
        """Say whether the folder has the lock of this process."""
        if not isinstance(self._life, NumberedFile):
            return False
        try:
            with closing(self._storage.open(self._life_name, "read")) as file:
                return isinstance(file, NumberedFile) and file.number() == self._life.number()
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return False

    def _refuse_exchanged(self, action: str, key: str) -> None:
        if self._compares and not self._is_same():
            reason = "another folder has taken the place of the one in which this store puts objects"
            raise self._error(ObjectStoreError, action, key, reason)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Have the lock of the store for the block; ObjectThrottledError if another process does not give it up."""
        with once(self._guard), self._guard:
            deadline_s = time.monotonic() + _LOCK_WAIT_S
            while isinstance(lock := self._storage.lock(LOCK), LockHolder):
                if time.monotonic() > deadline_s:
                    raise self._error(ObjectThrottledError, "lock", LOCK, f"process {lock.pid} has the lock")
                time.sleep(_LOCK_PAUSE_S)
            try:
                yield
            finally:
                lock.release()

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[StorageFile, str]]:
        """Have the file of an object, and its tag, for the block."""
        name = self._name(key)
        with self._answers("read", key):
            file = self._storage.open(name, "read")
            try:
                header = file.read(0, _HEADER.size)
                if len(header) < _HEADER.size or not header.startswith(_MAGIC):
                    raise storage_error(
                        "read", name, self._storage.location, errno.EILSEQ, "it holds no object"
                    )
                tag = str(_HEADER.unpack(header)[1])
                if tag in self._unsynced:  # who put it reads it back, and takes what it finds for durable
                    self._sync("read", key, tag)
                yield file, tag
            finally:
                file.close()

    def _name(self, key: str) -> str:
        return quote(checked_name(key, self.location), safe="")

    def _error(self, kind: type[ObjectStoreError], action: str, key: str, reason: object) -> ObjectStoreError:
        return kind(f"cannot {action} {key!r} in {self.location}: {reason}", store=self.location, key=key)

    @contextmanager
    def _answers(self, action: str, key: str) -> Iterator[None]:
        """Give an error of the storage the class that its errno has among the answers of a store, if it has one."""
        try:
            yield
        except StorageError as error:
            kind = _KINDS.get(error.errno)
            if kind is None or isinstance(error, ObjectStoreError):
                raise
            raise self._error(kind, action, key, error) from error
