"""The cursor file: how far a consumer has come, in 64 bytes under one checksum (FORMAT.md F-17)."""

from __future__ import annotations

from typing import NamedTuple

from walkit.format.consumer_file import ConsumerFile
from walkit.format.layout import CURSOR_FILE, CURSOR_MAGIC, LSN_MAX

_FILE = ConsumerFile("cursor", CURSOR_FILE, CURSOR_MAGIC)


class CursorMark(NamedTuple):
    """All up to `lsn` is done; `epoch` and `epoch_id` are of the record at that LSN (0 at LSN 0)."""

    log_id: int
    epoch: int
    epoch_id: int
    lsn: int
    moved_us: int


def encode_cursor(mark: CursorMark) -> bytes:
    """Return the bytes of a cursor file; struct.error where a number is not in 64 bits."""
    return _FILE.encode(mark)


def decode_cursor(data: bytes, name: str) -> CursorMark:
    """Return what a cursor file says; `name` is the file's.

    CorruptionError where it is damaged, cut short, too long or no cursor; FormatVersionError where a newer walkit has
    written it.
    """
    mark = CursorMark._make(_FILE.decode(data, name))
    if mark.lsn > LSN_MAX:
        raise _FILE.damaged(name, "names an LSN that no record has", f"at most {LSN_MAX}", mark.lsn)
    return mark
