"""The first files of a log, for an opening and an import (FORMAT.md F-12.13)."""

from __future__ import annotations

from walkit.format.layout import DURABLE_SLOTS_BYTES
from walkit.format.manifest import Manifest
from walkit.segments.claim_files import claims_locked
from walkit.segments.manifest_store import DURABLE_NAME, write_manifest
from walkit.storage.interface import Storage, remove_if_there


def make_log(storage: Storage, manifest: Manifest) -> None:
    """Make the files that a full disk must not refuse later, then write the first manifest; durable on return."""
    if remove_if_there(storage, DURABLE_NAME):
        # A log that was removed by hand left it. A manifest beside its promises would be refused.
        storage.sync_directory()
    with claims_locked(storage):
        cell = storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=True)
        if cell is not None:
            cell.close()
    write_manifest(storage, manifest)
