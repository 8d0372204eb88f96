"""The cursor file: how far a consumer has come, in 64 bytes under one checksum (FORMAT.md F-17)."""

from __future__ import annotations

from typing import NamedTuple

from walkit.errors import CorruptionError
from walkit.format.checksum import crc32c
from walkit.format.layout import CURSOR_FILE, CURSOR_MAGIC, FORMAT_VERSION, LSN_MAX
from walkit.format.segment import refuse_newer

_CRC_OFFSET = CURSOR_FILE.size - 4


class CursorMark(NamedTuple):
    """All up to `lsn` is done; `epoch` and `epoch_id` are of the record at that LSN (0 at LSN 0)."""

    log_id: int
    epoch: int
    epoch_id: int
    lsn: int
    moved_us: int


def encode_cursor(mark: CursorMark) -> bytes:
    """Return the bytes of a cursor file; struct.error where a number is not in 64 bits."""
    head = CURSOR_FILE.pack(CURSOR_MAGIC, FORMAT_VERSION, CURSOR_FILE.size, 0, 0, *mark, 0)[:_CRC_OFFSET]
    return head + crc32c(head).to_bytes(4, "little")


def decode_cursor(data: bytes, name: str) -> CursorMark:
    """Return what a cursor file says; `name` is the file's.

    CorruptionError where it is damaged, cut short, too long or no cursor; FormatVersionError where a newer walkit has
    written it.
    """
    if len(data) < CURSOR_FILE.size:
        raise _damaged(name, "is cut short", CURSOR_FILE.size, len(data))
    magic, version, size, critical, _optional, *fields, crc = CURSOR_FILE.unpack_from(data)
    if magic != CURSOR_MAGIC:
        raise _damaged(name, "does not begin with walkit's magic", CURSOR_MAGIC, magic)
    found = crc32c(data[:_CRC_OFFSET])
    if found != crc:
        raise _damaged(name, "has a wrong checksum", f"{crc:#010x}", f"{found:#010x}")
    refuse_newer(f"the cursor file {name}", version, size, CURSOR_FILE.size, critical)
    if len(data) != CURSOR_FILE.size:
        raise _damaged(name, "has another length than it says", CURSOR_FILE.size, len(data))
    mark = CursorMark._make(fields)
    if mark.lsn > LSN_MAX:
        raise _damaged(name, "names an LSN that no record has", f"at most {LSN_MAX}", mark.lsn)
    return mark


def _damaged(name: str, what: str, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"the cursor file {name} {what}: expected {expected}, found {found}",
        segment=name,
        expected=expected,
        found=found,
    )
