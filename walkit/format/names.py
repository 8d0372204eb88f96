"""Names of the files that stand beside a log's segments, so that every room can tell whose a file is (FORMAT.md)."""

from __future__ import annotations

from typing import Final

COMPACTION_NEW_NAME: Final = "compaction.new"
"""A compacted segment that is being written; becomes a segment by being renamed. Never read."""
SNAPSHOT_NEW_NAME: Final = "snapshot.new"
"""A snapshot that is being written; becomes one by being renamed. Never read."""
UNFINISHED_NAMES: Final = (COMPACTION_NEW_NAME, SNAPSHOT_NEW_NAME)

INDEX_SUFFIX: Final = ".index"
"""Behind a segment's whole file name: its index (FORMAT.md F-10)."""

_SNAPSHOT_PREFIX = "snapshot-"
_SNAPSHOT_DIGITS = 20


def snapshot_name(lsn: int) -> str:
    """Return the file name of the snapshot at this LSN: twenty digits, so that names sort as numbers."""
    return f"{_SNAPSHOT_PREFIX}{lsn:0{_SNAPSHOT_DIGITS}d}"


def lsn_of_name(name: str) -> int | None:
    """Return the LSN in a snapshot's file name; None for any other name."""
    digits = name.removeprefix(_SNAPSHOT_PREFIX)
    if digits == name or len(digits) != _SNAPSHOT_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)
