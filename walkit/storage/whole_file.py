"""Small files that are written and read whole."""

from __future__ import annotations

import errno

from walkit.errors import StorageError
from walkit.storage.interface import Storage, remove_if_there


def write_whole(storage: Storage, name: str, temporary: str, data: bytes) -> None:
    """Replace file `name` by `data`, atomically and durably: write, sync, rename, sync the directory."""
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
    """Return at most so many bytes from the beginning of a file; None if the file is missing. StorageError."""
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
