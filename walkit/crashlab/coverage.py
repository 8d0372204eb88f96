"""Names of all that can be under way when the power is cut, and how the unsynced changes of a moment show it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from walkit.format.file_names import (
    BOOTSTRAP_PREFIX,
    COMPACTION_NEW_NAME,
    SALVAGE_NEW_NAME,
    SNAPSHOT_NEW_NAME,
    TRIM_NEW_NAME,
)
from walkit.format.manifest import MANIFEST_NAME
from walkit.models import PendingChange
from walkit.segments.manifest_store import NEW_NAME
from walkit.storage.object_files import PUT

NAMES = ("create", "replace", "remove")
"""Kinds of changes that are about names."""
COVERAGE = {
    "append": "a frame is being written and synced",
    "in flight": "two frames or more are being written at once",
    "two open": "the log is synced while a full segment waits for its seal beside the one in use",
    "manifest": "a new base of the manifest is half written, or its name is not durable",
    "edit": "an edit of the manifest is half written",
    "snapshot": "a snapshot is half written",
    "compaction": "a compacted segment is half written",
    "trim rewrite": "the copy of a trimmed segment is half written",
    "salvage": "a salvaged segment is half written",
    "copy": "a copy is half written",
    "cursor": "a cursor's position is half written",
    "claim": "a claim is half written",
    "removal": "the removal of a segment is not durable",
    "seal": "the maintenance thread seals a segment",
    "prepare": "the maintenance thread makes a segment",
    "zero": "the maintenance thread zeroes ahead",
    "retain": "the maintenance thread enforces the retention",
    "seal fails": "the sync of a seal has failed",
    "zero fails": "the sync of a zeroing has failed",
    "manifest fails": "the sync of a manifest has failed",
    "snapshot fails": "the sync of a snapshot has failed",
    "sync hangs": "the sync of a seal hangs while the writer goes on",
    "device hangs": "a write or a sync of a segment hangs until the log has failed",
    "claim limits": "a trim drops less than it was asked for, as a claim keeps the rest",
    "retention drops": "retention drops segments",
    "hard cap": "the hard cap of a retention drops claimed records",
    "records kept": "a compaction keeps records of the segments that it rewrites",
    "records dropped": "a compaction drops superseded records",
    "tombstones kept": "a compaction keeps deletions",
    "tombstones dropped": "a compaction drops deletions",
    "checkpoint": "a checkpoint is taken",
    "transaction rotates": "a transaction or a batch does not fit into its segment, so that it rotates",
    "recovery": "a recovery is under way",
    "second recovery": "a recovery is under way after one that was cut in its midst",
    "repair": "a repair is under way",
    "import": "a replica imports frames",
    "bootstrap": "a replica gathers its primary's log, and replaces its own by it",
    "promotion": "a replica is promoted",
    "rewind": "a log is rewound",
    "put": "an object is half written, or its name is not durable",
    "fence": "a second writer opens a log on object storage",
}
"""By name. Crash states are counted that were cut while it happened."""

_BY_FILE = {
    NEW_NAME: "manifest",
    MANIFEST_NAME: "manifest",
    SNAPSHOT_NEW_NAME: "snapshot",
    COMPACTION_NEW_NAME: "compaction",
    TRIM_NEW_NAME: "trim rewrite",
    SALVAGE_NEW_NAME: "salvage",
}


def seen_in(changes: Iterable[PendingChange]) -> set[str]:
    """Return the names of all that is under way if these changes are not durable."""
    seen: set[str] = set()
    unsynced: list[str] = []
    for change in changes:
        file = change.file.rpartition("/")[2]
        if file == MANIFEST_NAME and change.kind == "write":
            seen.add("edit")
        elif file in _BY_FILE:
            seen.add(_BY_FILE[file])
        elif file.startswith("cursor-"):
            seen.add("cursor")
        elif file.startswith(BOOTSTRAP_PREFIX):
            seen.add("copy")
        elif file.startswith(PUT):
            seen.add("put")
        elif file.startswith("claim-"):
            seen.add("claim")
        elif file.endswith(".segment"):
            if change.kind == "remove":
                seen.add("removal")
            elif change.kind == "write" and change.sectors:
                unsynced.append(file)
    if unsynced:
        seen.add("append")
    if len(unsynced) > 1:
        seen.add("in flight")
    return seen


def names_in(changes: Iterable[PendingChange]) -> frozenset[tuple[str, ...]]:
    """Return the changes of names among these, with files of one kind under one name."""
    found = ((c.kind, c.file, c.target) for c in changes if c.kind in NAMES)
    return frozenset(tuple(re.sub("[0-9]+", "#", part) for part in change) for change in found)
