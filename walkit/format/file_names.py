"""Names of the files beside a log's segments, so every room knows each file's owner (FORMAT.md)."""

from __future__ import annotations

import re
from typing import Final

COMPACTION_NEW_NAME: Final = "compaction.new"
"""A compacted segment that is being written; becomes a segment by being renamed. Never read."""
SNAPSHOT_NEW_NAME: Final = "snapshot.new"
"""A snapshot that is being written; becomes one by being renamed. Never read."""
SALVAGE_NEW_NAME: Final = "salvage.new"
"""A copy of a segment with a rebuilt header; a rename replaces the damaged one. Never read."""
TRIM_NEW_NAME: Final = "trim.new"
"""The rest of a trimmed segment while it is being written; a rename makes it a segment. Never read."""
HEAL_NEW_NAME: Final = "heal.new"
"""A segment with a peer's frames instead of damaged ones; a rename replaces the old one. Never read."""
TEMPORARY_NAMES: Final = (
    COMPACTION_NEW_NAME,
    SNAPSHOT_NEW_NAME,
    SALVAGE_NEW_NAME,
    TRIM_NEW_NAME,
    HEAL_NEW_NAME,
)

BOOTSTRAP_PREFIX: Final = "bootstrap-"
"""Parts of another log that a replica or a copy gathers. No log reads them (FORMAT.md F-19)."""
BOOTSTRAP_READY_NAME: Final = f"{BOOTSTRAP_PREFIX}ready"
"""The manifest of a gathered log, once all of it is there, verified and on stable storage: the next opening of the
replica takes it."""

INDEX_SUFFIX: Final = ".index"
"""After a segment's whole file name: its index (FORMAT.md F-10)."""

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


_CURSOR_PREFIX = "cursor-"
_NEW_SUFFIX = ".new"
_CURSOR_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_cursor_name(name: str) -> bool:
    """Say whether a consumer's cursor or claim may have this name: 1 to 64 letters, digits, "_" and "-" of ASCII."""
    return _CURSOR_NAME.fullmatch(name) is not None


def cursor_file_name(name: str, *, new: bool = False) -> str:
    """Return the name of a cursor's file, or with `new` of the one that is written to take its place."""
    return f"{_CURSOR_PREFIX}{name}{_NEW_SUFFIX if new else ''}"


def cursor_of_name(file_name: str) -> str | None:
    """Return whose cursor file this is; None for any other file."""
    name = file_name.removeprefix(_CURSOR_PREFIX)
    return name if name != file_name and is_cursor_name(name) else None


CLAIMS_LOCK_NAME: Final = "claims.lock"
"""Held while claims are written, and while they are read and the manifest is replaced (FORMAT.md F-18)."""
_CLAIM_PREFIX = "claim-"


def claim_file_name(name: str, *, new: bool = False) -> str:
    """Return the name of a claim's file, or with `new` of the one that is written to take its place."""
    return f"{_CLAIM_PREFIX}{name}{_NEW_SUFFIX if new else ''}"


def claim_of_name(file_name: str) -> str | None:
    """Return which claim's file this is; None for any other file."""
    name = file_name.removeprefix(_CLAIM_PREFIX)
    return name if name != file_name and is_cursor_name(name) else None


def is_temporary_claim(file_name: str) -> bool:
    """Say whether this is a claim's file that never took its place."""
    name = file_name.removesuffix(_NEW_SUFFIX)
    return name != file_name and claim_of_name(name) is not None


def is_temporary_name(file_name: str) -> bool:
    """Say whether this is a file that is being written and takes its place by being renamed. Never read."""
    name = file_name.removesuffix(_NEW_SUFFIX)
    is_cursor = name != file_name and cursor_of_name(name) is not None
    return file_name in TEMPORARY_NAMES or is_cursor or is_temporary_claim(file_name)
