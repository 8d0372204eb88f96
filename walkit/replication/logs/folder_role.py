"""The role of a log's folder in replication: a replica, a promoted one, or neither (FORMAT.md, `extra`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walkit.format.manifest import Manifest
from walkit.segments.manifest_store import IDENTITY_NAME
from walkit.storage.interface import Storage

REPLICA_KEY, PROMOTED_KEY = "replica", "promoted"


def is_promoted(manifest: Manifest) -> bool:
    """Return whether the log is a replica that was promoted, and follows no primary since."""
    return PROMOTED_KEY in manifest.extra


def is_replica(storage: Storage, manifest: Manifest) -> bool:
    """Return whether the folder is a replica's.

    One that began with a copy of a log, and has imported nothing yet, is known by its identity alone.
    """
    if is_promoted(manifest):
        return False
    return REPLICA_KEY in manifest.extra or IDENTITY_NAME in storage.names()


def as_replica(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras of a log that imports frames from now on."""
    return {key: value for key, value in extra.items() if key != PROMOTED_KEY} | {
        REPLICA_KEY: extra.get(REPLICA_KEY, {})
    }


def as_promoted(extra: Mapping[str, Any], epoch: int, first_lsn: int) -> dict[str, Any]:
    """Return the extras of a replica that is a primary of its own from this epoch on, which begins at this LSN."""
    rest = {key: value for key, value in extra.items() if key != REPLICA_KEY}
    return rest | {PROMOTED_KEY: {"epoch": epoch, "first_lsn": first_lsn}}
