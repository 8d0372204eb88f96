"""Removing a log from object storage: a mark that stays, then a swap that ends all claims, then the deletions.

Manifest and claims are never deleted. So whatever a process of the old log puts later, no log is made beside it: names
of bulks would be given twice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from walkit.errors import ClaimError, CorruptionError, FormatVersionError, LogNotFoundError, StorageError
from walkit.format.consumer_file import decode_claim
from walkit.format.layout import CLAIM_FILE_BYTES, LSN_MAX
from walkit.objects.folder import CURSORS, FILES
from walkit.objects.layout import CLAIMS_KEY, LOG_PREFIX, MANIFEST_KEY, Claims, epochs_of
from walkit.objects.requests import Patience, PatientReads, put_own
from walkit.objects.vouched import encoded, manifest_of
from walkit.record import wall_us
from walkit.storage.object_store import ObjectStore

LISTS_MAX: Final = 20
"""A listing may lag: it is read at most so many times until it shows nothing."""
PAGE_KEYS: Final = 1000
"""So many keys are in memory, and in one request if the store has requests for many."""
REQUEST_S: Final = 30.0


def remove_log(store: ObjectStore) -> int:
    """Remove a log; return how many objects were deleted. The next call finishes one that was interrupted.

    The mark comes first, so no opening and no reader takes a log of which a part is gone. An open writer fails at its
    next save of the vouched end, after 500 bulks or a minute: close it before, as nothing that it writes is kept.
    What such a writer puts later is deleted by another call.

    LogNotFoundError; ClaimError if a consumer needs the log; ObjectUnsupportedError if the store cannot list. Then
    nothing was deleted.
    """
    reads = PatientReads(store, lambda: Patience(REQUEST_S))
    next(_listed(store), None)  # refused before anything is changed
    while not _mark(reads, True):
        pass  # another writer has replaced the manifest meanwhile
    try:
        while not _end_claims(reads):
            pass
    except ClaimError:
        while not _mark(reads, False):
            pass
        raise
    deleted = 0
    for _ in range(LISTS_MAX):
        before, keys = deleted, _listed(store)
        while page := [*islice(keys, PAGE_KEYS)]:
            store.delete_many(page)
            deleted += len(page)
        if deleted == before:
            return deleted
        time.sleep(0.05)
    raise StorageError(f"{store.location} still lists objects that were deleted: remove the log again later")


def _listed(store: ObjectStore) -> Iterator[str]:
    """Yield the keys of bulks, files and cursors."""
    for prefix in (LOG_PREFIX.rstrip("/"), FILES, CURSORS):
        yield from (entry.key for entry in store.list_after(prefix))


def _mark(reads: PatientReads, removed: bool) -> bool:
    """Put or drop the mark in the manifest; False if another writer has replaced the manifest meanwhile."""
    location, found = reads.store.location, reads.find(MANIFEST_KEY)
    if found is None:
        raise LogNotFoundError(location, "it has no manifest")
    manifest = manifest_of(found, location)
    if manifest.extra.get("removed", False) is removed:
        return True
    nonce = secrets.randbits(64) | 1
    opening = [*manifest.extra.get("opening", []), [max(epochs_of(manifest), default=0) + 1, nonce]]
    _, data = encoded(manifest, nonce, {"removed": removed, "opening": opening})
    return put_own(reads, MANIFEST_KEY, data, found.tag) is not None


def _end_claims(reads: PatientReads) -> bool:
    """Move the low watermark past all records; ClaimError if a claim lives. False if the object has changed meanwhile.

    A claim that comes after this swap is refused like one below a trim (D in `claims_object`).
    """
    location, found = reads.store.location, reads.find(CLAIMS_KEY)
    if found is None:
        return True  # no opening has come so far, and none of a marked log does
    claims = Claims.decode(found.data)
    if claims.low_watermark == LSN_MAX:
        return True
    for name, mark in claims.claims.items():
        if _lives(mark, name):
            what = f"the claim {name!r} needs the log at {location}: nothing was deleted"
            raise ClaimError(what, name=name, reason="taken")
    ended = replace(
        claims,
        low_watermark=LSN_MAX,
        claims={},
        files={},
        segments=(),
        nonce=secrets.randbits(63) | 1,
        counter=claims.counter + 1,
    )
    return put_own(reads, CLAIMS_KEY, ended.encode(), found.tag) is not None


def _lives(mark: str, name: str) -> bool:
    """Whether the lease of a claim is not over; True for one that cannot be read."""
    try:
        return (
            decode_claim(bytes.fromhex(mark).ljust(CLAIM_FILE_BYTES, b"\0"), name).lease_until_us > wall_us()
        )
    except (ValueError, CorruptionError, FormatVersionError):
        return True
