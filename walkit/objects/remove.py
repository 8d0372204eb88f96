"""Removing a log from object storage: first the mark in its manifest, then the bulks, at last the manifest itself."""

from __future__ import annotations

import secrets
import time
from typing import Final

from walkit.errors import ClaimError, LogNotFoundError, StorageError
from walkit.objects.layout import CLAIMS_KEY, LOG_PREFIX, MANIFEST_KEY, Claims, epochs_of
from walkit.objects.requests import Patience, PatientReads, put_own
from walkit.objects.vouched import encoded, manifest_of
from walkit.storage.object_store import ObjectStore

LISTS_MAX: Final = 20
"""A listing may lag: it is read at most so many times until it shows no bulk."""
REQUEST_S: Final = 30.0


def remove_log(store: ObjectStore) -> int:
    """Remove a log; return how many bulks were deleted. The next call finishes one that was interrupted.

    The mark comes first, so no opening and no reader takes a log of which a part is gone. An open writer fails at its
    next save of the vouched end, after 500 bulks or a minute: close it before, as nothing that it writes is kept.

    LogNotFoundError; ClaimError if a consumer needs the log; ObjectUnsupportedError if the store cannot list. Then
    nothing was deleted.
    """
    reads = PatientReads(store, lambda: Patience(REQUEST_S))
    bulks = [entry.key for entry in store.list_after(LOG_PREFIX.rstrip("/"))]
    while not _mark(reads):
        pass  # another writer has replaced the manifest meanwhile
    deleted = 0
    for _ in range(LISTS_MAX):
        store.delete_many(bulks)
        deleted += len(bulks)
        bulks = [entry.key for entry in store.list_after(LOG_PREFIX.rstrip("/"))]
        if not bulks:
            # One by one and the manifest last: the log is marked until nothing else is left of it.
            store.delete(CLAIMS_KEY)
            store.delete(MANIFEST_KEY)
            return deleted
        time.sleep(0.05)
    raise StorageError(f"{store.location} still lists bulks that were deleted: remove the log again later")


def _mark(reads: PatientReads) -> bool:
    """Mark the manifest, unless it is marked; False if another writer has replaced it meanwhile."""
    location, found = reads.store.location, reads.find(MANIFEST_KEY)
    if found is None:
        raise LogNotFoundError(location, "it has no manifest")
    manifest = manifest_of(found, location)
    if manifest.extra.get("removed"):
        return True
    stored = reads.find(CLAIMS_KEY)
    for name in () if stored is None else Claims.decode(stored.data).claims:
        what = f"the claim {name!r} needs the log at {location}: nothing was deleted"
        raise ClaimError(what, name=name, reason="taken")
    nonce = secrets.randbits(64) | 1
    opening = [*manifest.extra.get("opening", []), [max(epochs_of(manifest), default=0) + 1, nonce]]
    _, data = encoded(manifest, nonce, {"removed": True, "opening": opening})
    return put_own(reads, MANIFEST_KEY, data, found.tag) is not None
