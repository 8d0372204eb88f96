"""Small private files beside a log: one line with its kind, then JSON under a checksum; for its owner alone.

A file that identifies its folder holds its own number: a copy holds the same one, but is another file.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple

from walkit.errors import CorruptionError, FormatVersionError, StorageError
from walkit.format.checksum import crc32c
from walkit.storage.interface import (
    FileNumber,
    NumberedFile,
    PrivateFiles,
    Storage,
    StorageFile,
    remove_if_there,
)

VERSION = 1
FILE_BYTES_MAX = 4 << 20
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)


class SecretFacts(NamedTuple):
    """The facts of a private file, and the number of that file."""

    facts: dict[str, Any]
    written: FileNumber | None
    """The file it was written in; None if it does not say that, or files had no numbers there."""
    found: FileNumber | None
    """The file it was read from; None if files have no numbers here."""

    @property
    def is_copy(self) -> bool:
        """Whether it is known to be in another file than it was written in."""
        return None not in (self.written, self.found) and self.written != self.found


def write_private(storage: Storage, name: str, facts: Mapping[str, Any]) -> None:
    """Replace `name`, atomically and durably; its owner alone may read it.

    It holds its own number, so that a copy of it is known as one.
    """
    aside = f"{name}.new"
    remove_if_there(storage, aside)
    with closing(_create(storage, aside)) as file:
        device, inode = number_of(file) or (None, None)
        said = {"device": device, "inode": inode, **facts}
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
        body = text.encode("utf-8", "surrogatepass")
        file.write(0, [b"%s %d %08x\n" % (_title(name), VERSION, crc32c(body)), body])
        file.sync()
    storage.replace(aside, name)
    storage.sync_directory()


def read_private(storage: Storage, name: str) -> SecretFacts | None:
    """Return the facts of a private file; None if it is missing.

    CorruptionError if it is damaged, FormatVersionError if a newer walkit has written it.
    """
    try:
        opened = storage.open(name, "read")
    except StorageError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    with closing(opened) as file:
        data, number = file.read(0, FILE_BYTES_MAX + 1), number_of(file)
    where = f"{storage.location}/{name}"
    head, _, body = data.partition(b"\n")
    words = head.split(b" ")
    if len(data) > FILE_BYTES_MAX or len(words) != 3 or words[0] != _title(name) or not words[1].isdigit():
        raise _damaged(where, "does not begin as one", _title(name).decode(), "something else")
    if int(words[1][:9]) > VERSION:
        raise FormatVersionError(where, found=int(words[1][:9]), supported=VERSION)
    computed = b"%08x" % crc32c(body)
    if words[2] != computed:
        raise _damaged(
            where, "has a wrong checksum", words[2][:8].decode("ascii", "replace"), computed.decode()
        )
    # Raised without the decoder's error, which has the whole text with it, and the id in that.
    fault, facts = "", None
    try:
        facts = json.loads(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        fault = type(error).__name__
    if fault:
        raise _damaged(where, "cannot be read", "JSON", fault)
    if not isinstance(facts, dict):
        raise _damaged(where, "holds no facts", "an object", type(facts).__name__)
    try:
        is_numbered = facts.get("inode") is not None
        written = FileNumber(int(facts["device"]), int(facts["inode"])) if is_numbered else None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _damaged(where, "names no file", "two numbers", repr(error)) from None
    return SecretFacts(facts, written, number)


def number_of(file: StorageFile) -> FileNumber | None:
    """Return the number of an open file; None if its storage has no numbers."""
    return file.number() if isinstance(file, NumberedFile) else None


def _create(storage: Storage, name: str) -> StorageFile:
    if isinstance(storage, PrivateFiles):
        return storage.create_private(name)
    return storage.open(name, "create")


def _title(name: str) -> bytes:
    return b"walkit-" + name.encode()


def _damaged(where: str, what: str, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"the file {where} {what}: expected {expected}, found {found!r}",
        segment=where,
        expected=expected,
        found=found,
    )
