"""Keeping under lost+found what recovery takes out of a log: durable there before it leaves the place where it was.

Memory does not grow with a file: it is copied in steps, and of one that is mostly a hole only the data.
"""

from __future__ import annotations

from walkit.errors import StorageError
from walkit.recovery.tolerant_file import PASSING_ERRNOS
from walkit.segments.frame_walk import Readable
from walkit.segments.manifest_store import LOST_FOLDER
from walkit.segments.orphan_files import KEPT_NEW_NAME
from walkit.segments.rewrite import copy_part, new_file, steps_of
from walkit.storage.interface import Storage, StorageFile


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
    # Of a disk that is full nothing is left: it has room again for what is done about it.
    with new_file(storage, KEPT_NEW_NAME) as kept:
        copy_part(file, start, until, kept, 0)
        kept.sync()
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
    places = [*((at - start, n) for at, n in steps_of(file, start, until)), *steps_of(kept, 0, until - start)]
    return all(kept.read(at, n) == file.read(start + at, n) for at, n in places)
