"""The files beside a log on object storage, as a `Storage`: claims, cursors, snapshots and segments by their names.

So everything that keeps a file beside a log does the same wherever the log is. Claims and the names of snapshots are
entries of the claims object, and change in its turns; the content of a snapshot is an object with a key of its own, put
before it has its name. A cursor is an object that its consumer replaces. Turns replace locks: see `ClaimsObject`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final, TypeVar

from walkit.errors import ObjectMissingError, ObjectRangeError
from walkit.format.consumer_file import decode_claim, encode_claim
from walkit.format.file_names import (
    claim_file_name,
    claim_of_name,
    cursor_of_name,
    is_temporary_name,
    lsn_of_name,
)
from walkit.format.layout import CLAIM_FILE_BYTES
from walkit.format.manifest import MANIFEST_NAME, Manifest, encode_base
from walkit.objects.claims_object import ClaimsObject
from walkit.objects.layout import Claims
from walkit.objects.requests import put_own
from walkit.record import Buffer
from walkit.storage.interface import Cell, LockHolder, OpenMode, StorageFile, StorageLock, storage_error

CURSORS: Final = "cursors"
FILES: Final = "files"
T = TypeVar("T")


def file_key(epoch: int, name: str) -> str:
    """Return a new key for the content of a file; no other file ever has it."""
    return f"{FILES}/{epoch:020d}-{token_hex(8)}-{name}"


def epoch_of_key(key: str) -> int | None:
    """Return the epoch of the writer that has put a file; None for any other key."""
    folder, _, rest = key.partition("/")
    digits = rest[:20]
    return int(digits) if folder == FILES and len(digits) == 20 and digits.isdigit() else None


class MemoryFile:
    """A file in memory; `sync` hands its bytes to who keeps them."""

    def __init__(self, name: str, data: bytes = b"", keep: Callable[[bytes], object] | None = None) -> None:
        self.name, self.data, self._keep = name, bytearray(data), keep

    def read(self, offset: int, size: int) -> bytes:
        """See StorageFile."""
        return bytes(self.data[offset : offset + size])

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """See StorageFile."""
        for buffer in buffers:
            part = memoryview(buffer).cast("B")
            self.data.extend(bytes(max(offset + len(part) - len(self.data), 0)))
            self.data[offset : offset + len(part)] = part
            offset += len(part)
        if sync:
            self.sync()

    def sync(self) -> None:
        """See StorageFile."""
        if self._keep is not None:
            self._keep(bytes(self.data))

    def allocate(self, size: int) -> None:
        """See StorageFile."""
        self.data.extend(bytes(max(size - len(self.data), 0)))

    def shorten(self, size: int) -> None:
        """See StorageFile."""
        del self.data[size:]

    def size(self) -> int:
        """See StorageFile."""
        return len(self.data)

    def drop_cached(self) -> None:
        """See StorageFile."""

    def close(self) -> None:
        """See StorageFile."""


class _Object(MemoryFile):
    """A file that is an object, read by ranges."""

    def __init__(self, name: str, claims_object: ClaimsObject, key: str, size: int) -> None:
        super().__init__(name)
        self._claims_object, self._key, self._size = claims_object, key, size

    def read(self, offset: int, size: int) -> bytes:
        """See StorageFile. ObjectMissingError (ENOENT) if it is gone; LogFencedError if a newer writer deleted it."""
        size = min(size, self._size - offset)
        try:
            return (
                self._claims_object.reads.get_range(self._key, offset, offset + size).data
                if size > 0
                else b""
            )
        except ObjectRangeError:
            return b""
        except ObjectMissingError:
            if self._claims_object.epoch:
                self._claims_object.read()
            raise

    def size(self) -> int:
        """See StorageFile."""
        return self._size


class _NoLock:
    """Stands for a lock: turns of the claims object do its work."""

    def release(self) -> None:
        """See StorageLock."""

    def forget(self) -> None:
        """See StorageLock."""


class ObjectFolder:
    """The `Storage` of a log on object storage. Only the writer (an epoch in its claims_object) makes snapshots.

    `manifest` returns the log's manifest at this moment, as a log in a folder has it; `end_lsn` returns the last LSN
    that the log is known to have.
    """

    def __init__(
        self, claims_object: ClaimsObject, manifest: Callable[[], Manifest], end_lsn: Callable[[], int]
    ) -> None:
        self.claims_object, self._manifest, self._end_lsn = claims_object, manifest, end_lsn
        self.location = claims_object.reads.store.location
        self._new: dict[str, MemoryFile] = {}
        """Files that have no name yet."""

    # -- turns

    def in_turn(self, do: Callable[[], T]) -> T:
        """See TakesTurns."""
        return self.claims_object.in_turn(do)

    def last_lsn(self) -> int:
        """See EndKnown."""
        return self._end_lsn()

    # -- files

    def names(self, folder: str = "") -> list[str]:
        """See Storage. Cursors are those that a listing shows."""
        if folder:
            return []
        claims = self.claims_object.read()
        names = {MANIFEST_NAME, *map(claim_file_name, claims.claims), *claims.files}
        if not self.claims_object.is_current:  # a turn is short, and decides nothing by a listing
            names |= {
                key.removeprefix(f"{CURSORS}/") for key in self.claims_object.reads.keys_after(CURSORS, "")
            }
        return sorted(names)

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """See Storage."""
        if mode == "create":
            if not is_temporary_name(name):
                raise storage_error("create", name, self.location, errno.ENOTSUP)
            self._new[name] = MemoryFile(name)
            return self._new[name]
        found = self._found(name)
        if found is None:
            raise storage_error("open", name, self.location, errno.ENOENT)
        return found

    def _found(self, name: str) -> StorageFile | None:
        if name == MANIFEST_NAME:
            return MemoryFile(name, encode_base(self._manifest()))
        if cursor_of_name(name) is not None:
            stored = self.claims_object.reads.find(f"{CURSORS}/{name}")
            return None if stored is None else MemoryFile(name, stored.data)
        claims, claim = self.claims_object.read(), claim_of_name(name)
        if claim is not None:
            text = claims.claims.get(claim)
            return None if text is None else MemoryFile(name, _claim_file(text), self._keeper(claim))
        key, size = claims.files.get(name) or self.claims_object.ready.get(name, ("", 0))
        return _Object(name, self.claims_object, key, size) if key else None

    def _keeper(self, claim: str) -> Callable[[bytes], object]:
        def keep(data: bytes) -> None:
            text = encode_claim(decode_claim(data, claim_file_name(claim)))[1].hex()

            def change() -> None:
                draft = self.claims_object.read()
                self.claims_object.draft = replace(draft, claims={**draft.claims, claim: text})

            self.claims_object.in_turn(change)

        return keep

    def replace(self, source: str, target: str) -> None:
        """See Storage. It is durable on return, except for the name of a snapshot: see `sync_directory`."""
        file = self._new.pop(source, None)
        if file is None:
            raise storage_error("rename", source, self.location, errno.ENOENT)
        data, claim = bytes(file.data), claim_of_name(target)
        if claim is not None:
            self._keeper(claim)(data)
        elif cursor_of_name(target) is not None:
            self._put_cursor(f"{CURSORS}/{target}", data)
        else:
            epoch, entry = self.claims_object.epoch, (file_key(self.claims_object.epoch, target), len(data))
            assert epoch, "only a writer makes snapshots"
            put_own(self.claims_object.reads, entry[0], data, None)
            if lsn_of_name(target) is None:  # a segment gets its name with its place in the log
                self.claims_object.ready[target] = entry
                return
            # Another opening may have come before the name is given: the swap then finds its epoch, and gives none (E).
            self.claims_object.later(
                lambda draft: (
                    replace(draft, files={**draft.files, target: entry}) if draft.epoch == epoch else draft
                )
            )

    def _put_cursor(self, key: str, data: bytes) -> None:
        found = self.claims_object.reads.find(key)
        while put_own(self.claims_object.reads, key, data, None if found is None else found.tag) is None:
            found = self.claims_object.reads.find(key)

    def remove(self, name: str) -> None:
        """See Storage: `sync_directory`, or the next change, makes it durable; then the content goes."""
        if self._new.pop(name, None) is not None:
            return
        if is_temporary_name(name) or self._found(name) is None:
            raise storage_error("remove", name, self.location, errno.ENOENT)
        if cursor_of_name(name) is not None:
            self.claims_object.reads.repeat(
                lambda: self.claims_object.reads.store.delete(f"{CURSORS}/{name}")
            )
            return
        epoch, claim = self.claims_object.epoch, claim_of_name(name)

        def change(draft: Claims) -> Claims:
            if claim is not None:
                return replace(draft, claims=_without(draft.claims, claim))
            return replace(draft, files=_without(draft.files, name)) if draft.epoch == epoch else draft

        def turn() -> None:
            self.claims_object.draft = change(self.claims_object.read())

        if claim is None and not self.claims_object.is_current:
            self.claims_object.later(change)
        else:
            self.claims_object.in_turn(turn)

    def sync_directory(self, folder: str = "") -> None:
        """See Storage."""
        self.claims_object.flush()

    # -- what there is not

    def exists(self) -> bool:
        """See Storage."""
        return True

    def create(self) -> None:
        """See Storage."""

    def lock(self, name: str) -> StorageLock | LockHolder:
        """See Storage: every lock is free."""
        return _NoLock()

    def is_locked(self, name: str) -> bool:
        """See Storage. Whether a writer lives is not known."""
        return False

    def cell(self, name: str, size: int, *, writable: bool) -> Cell | None:
        """See Storage: cells do not exist here."""
        return None

    def facts(self) -> dict[str, Any]:
        """See Storage."""
        return {"store": self.location}

    def close(self) -> None:
        """See Storage."""


def _without(entries: Any, name: str) -> Any:
    return {key: value for key, value in entries.items() if key != name}


def _claim_file(text: str) -> bytes:
    """Return a claim as its file has it; damaged bytes stay damaged."""
    try:
        return bytes.fromhex(text).ljust(CLAIM_FILE_BYTES, b"\0")
    except ValueError:
        return text.encode()
