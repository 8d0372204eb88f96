"""Keeping under lost+found what recovery takes out of a log: durable there before it leaves the place where it was.

Memory does not grow with a file: it is copied in steps, and of one that is mostly a hole only the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from walkit.errors import StorageError
from walkit.format.layout import ZEROS
from walkit.recovery.tolerant_file import PASSING_ERRNOS
from walkit.segments.frame_walk import Readable
from walkit.segments.leftovers import KEPT_NEW_NAME
from walkit.segments.manifest_store import LOST_FOLDER
from walkit.storage.bulk import data_ranges
from walkit.storage.interface import Storage, StorageFile, remove_if_there

STEP_BYTES = len(ZEROS)


def keep_part(storage: Storage, name: str, file: Readable, start: int, until: int) -> None:
    """Keep bytes [start, until) of an open file under lost+found, durably; whole under their name or not at all.

    Bytes that are there already are not kept twice; where others have the name, a number is added to it.
    """
    there = set(storage.names(LOST_FOLDER))
    target, number = f"{LOST_FOLDER}/{name}", 0
    while target in there:
        if is_kept(storage, target, file, start, until):
            return
        number += 1
        target = f"{LOST_FOLDER}/{name}.{number}"
    remove_if_there(storage, KEPT_NEW_NAME)
    kept = storage.open(KEPT_NEW_NAME, "create")
    try:
        try:
            copy_part(file, start, until, kept, 0)
            kept.sync()
        finally:
            kept.close()
    except StorageError:
        with suppress(StorageError):  # a disk that is full has room again for what is done about it
            storage.remove(KEPT_NEW_NAME)
        raise
    storage.replace(KEPT_NEW_NAME, target)
    storage.sync_directory(LOST_FOLDER)
    storage.sync_directory()


def move_whole(storage: Storage, name: str) -> None:
    """Rename a file that cannot be read into lost+found, under a name that nothing there has; durable on return."""
    kept = set(storage.names(LOST_FOLDER))
    target, number = f"{LOST_FOLDER}/{name}", 0
    while target in kept:
        number += 1
        target = f"{LOST_FOLDER}/{name}.{number}"
    storage.replace(name, target)
    storage.sync_directory(LOST_FOLDER)
    storage.sync_directory()


def copy_part(file: Readable, start: int, until: int, copy: StorageFile, offset: int) -> None:
    """Write bytes [start, until) of a file to `offset` of a new one; where the file has no data, neither has the copy.

    The caller syncs.
    """
    end = start
    for at, size in _steps(file, start, until):
        copy.write(offset + at - start, [file.read(at, size)])
        end = at + size
    if end < until:
        copy.write(offset + until - start - 1, [b"\0"])


def _steps(file: Readable, start: int, until: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of the data in [start, until), in pieces of at most `STEP_BYTES`."""
    for first, last in data_ranges(file, start, until):
        for at in range(first, last, STEP_BYTES):
            yield at, min(STEP_BYTES, last - at)


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
    places = [*((at - start, n) for at, n in _steps(file, start, until)), *_steps(kept, 0, until - start)]
    return all(kept.read(at, n) == file.read(start + at, n) for at, n in places)
