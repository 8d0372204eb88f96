"""The manifest of an open log on object storage, and the saving of its vouched end."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from walkit._internal.locks import once
from walkit.errors import DivergenceError, LogFencedError
from walkit.format.manifest import Manifest, encode_base, read_manifest
from walkit.objects.layout import MANIFEST_KEY, LogPlace, damaged, epochs_of, vouched_place
from walkit.objects.requests import PatientReads, put_own
from walkit.storage.object_store import ObjectBytes


def encoded(
    manifest: Manifest, nonce: int, extra: Mapping[str, Any], **changes: Any
) -> tuple[Manifest, bytes]:
    """Return the next manifest with these changes, also in `extra`, and its bytes: no other put has the same."""
    marks = {"nonce": nonce, "counter": int(manifest.extra.get("counter", 0)) + 1}
    after = manifest.next(extra={**manifest.extra, **extra, **marks}, **changes)
    return after, encode_base(after)


def manifest_of(found: ObjectBytes | None, location: str, log_id: int | None = None) -> Manifest:
    """Return the manifest of an object; DivergenceError for one of another log than `log_id`."""
    if found is None:
        raise damaged(MANIFEST_KEY, "is missing", "the manifest of an open log", None)
    manifest = read_manifest(found.data, location).manifest
    if log_id is not None and manifest.log_id != log_id:
        raise DivergenceError(f"the manifest of {location} belongs to another log now", first_lsn=1)
    return manifest


class VouchedEnd:
    """The manifest of an open log, as `ManifestStore` shows that of a folder, and how far the log is acknowledged.

    `advance` is called under the commit lock, `save` from any thread.
    """

    lost: BaseException | None = None

    def __init__(
        self,
        reads: PatientReads,
        manifest: Manifest,
        tag: str,
        nonce: int,
        *,
        floor: LogPlace,
    ) -> None:
        self.reads = reads
        self.current = manifest
        self.floor = floor
        self.acked = self.saved = vouched_place(manifest)
        """The end of the newest bulk that is acknowledged, with all before it; and the one that the store has."""
        self._tag, self._nonce = tag, nonce
        # Held through one saving. Taken without the commit lock, and no other lock is taken under it.
        self._saving: Any = threading.RLock()

    def save(self) -> None:
        """Save the vouched end if it has moved. LogFencedError if another writer has opened the log since.

        Only acknowledged bulks are vouched for, and those are part of each later writer's history: its fence has the
        first number that this writer has not acknowledged, or a later one.
        """
        with once(self._saving), self._saving:
            place = self.acked
            if place.number <= self.saved.number:
                return
            tag = None
            while tag is None:
                after, data = encoded(self.current, self._nonce, {"object": place.number}, end=place.end)
                tag = put_own(self.reads, MANIFEST_KEY, data, self._tag)
                if tag is None:
                    self._take_own()
            self.current, self._tag, self.saved = after, tag, place

    def _take_own(self) -> None:
        """Go on from an own save that gave up before its outcome was known; else raise who has replaced the manifest.

        LogFencedError, CorruptionError, DivergenceError.
        """
        location, found = self.reads.store.location, self.reads.find(MANIFEST_KEY)
        manifest = manifest_of(found, location, self.current.log_id)
        newest = max(epochs_of(manifest))
        if newest > self.current.lineage[-1].number:
            raise LogFencedError(location, newest)
        is_own = manifest.extra.get("nonce") == self._nonce
        # An older one that was put back has a counter that was used before.
        if found is None or not is_own or manifest.extra["counter"] <= self.current.extra["counter"]:
            raise damaged(MANIFEST_KEY, "was replaced", "a newer epoch", newest)
        self.current, self._tag = manifest, found.tag

    def close(self) -> None:
        """Nothing is held."""

    def forget(self) -> None:
        """In a forked child: the parent's lock is not ours."""
        self._saving = threading.RLock()
