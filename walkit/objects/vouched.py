"""The manifest of an open log on object storage, and the saving of its vouched end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from walkit._internal.locks import once
from walkit.errors import DivergenceError, LogFencedError, LogNotFoundError
from walkit.format.file_names import lsn_of_name
from walkit.format.layout import IN_BULKS
from walkit.format.manifest import Manifest, encode_base, read_manifest
from walkit.objects.claims_object import ClaimsObject
from walkit.objects.layout import (
    MANIFEST_KEY,
    LogPlace,
    Stretches,
    as_manifest,
    cut_at,
    damaged,
    epochs_of,
    is_after,
    vouched_place,
)
from walkit.objects.requests import PatientReads, put_own
from walkit.record import wall_us
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


def refuse_removed(manifest: Manifest, location: str) -> None:
    """Raise LogNotFoundError for a log that was removed, and for an unfinished copy."""
    if manifest.extra.get("removed"):
        reason = "it was removed, or is an unfinished copy: `walkit remove` deletes the rest"
        raise LogNotFoundError(location, reason)


class VouchedEnd:
    """The manifest of an open log, as `ManifestStore` shows that of a folder, and how far the log is acknowledged.

    It is in two objects. The manifest object has the lineage, the vouched end and the segments: stretches of bulks of
    about `segment_bytes`, which a save notes, so a new one costs no request. The claims object has the marks that
    trims, checkpoints and compaction change, beside the claims that limit them (`ClaimsObject`).

    One thread at a time calls `begin`, any thread the others.
    """

    lost: BaseException | None = None
    is_scarce = False

    def __init__(
        self, reads: PatientReads, manifest: Manifest, tag: str, nonce: int, *, claims_object: ClaimsObject
    ) -> None:
        self.reads, self.claims_object = reads, claims_object
        self.stored = manifest
        """The manifest object."""
        self.acked = self.saved = vouched_place(manifest)
        """The end of the newest bulk that is acknowledged, with all before it; and the one that the store has."""
        self.place_at: Callable[[int], LogPlace] = lambda lsn: self.floor
        """Returns the end of the last bulk that ends at or below an LSN, before `saved`."""
        self._tag, self._nonce, self._next_number = tag, nonce, 0
        self._taken = Stretches(manifest, self.saved, wall_us())
        """The segments as far as saves have come."""
        self._newest = self.saved
        """Where the newest segment begins; changed by `begin` alone."""
        self._starts: deque[tuple[LogPlace, int]] = deque()
        """Where segments after those begin, and when they did; taken from the left by saves."""
        # Held through one saving. Taken without the commit lock, and no other lock is taken under it.
        self._saving: Any = threading.RLock()

    @property
    def floor(self) -> LogPlace:
        """The end of the last bulk that may be gone."""
        return self.claims_object.known.floor

    @property
    def current(self) -> Manifest:
        """The manifest of the log, as one in a folder has it; in a turn, with its changes."""
        return as_manifest(
            self.stored,
            self.claims_object.draft if self.claims_object.is_current else self.claims_object.known,
        )

    def begin(self, start: LogPlace) -> bool:
        """Note that a segment begins after a place; False if the one before it is empty. One thread at a time."""
        is_next = start.position > self._newest.position
        if is_next:
            self._newest = start
            self._starts.append((start, wall_us()))
        return is_next

    def save(self) -> None:
        """Save the vouched end if it has moved. LogFencedError if another writer has opened the log since.

        Only acknowledged bulks are vouched for, and those are part of each later writer's history: its fence has the
        first number that this writer has not acknowledged, or a later one.
        """
        with once(self._saving), self._saving:
            place = self.acked
            if place.number <= self.saved.number:
                return
            taken = self._taken
            while self._starts and self._starts[0][0].number < place.number:
                taken.place, created_us = self._starts.popleft()
                taken.begin(created_us)
            taken.place = place
            self._put(lambda: taken.fields(self.floor))
            self.saved = place

    def note(self, facts: Mapping[str, Any]) -> None:
        """See Manifests. LogFencedError if another writer has opened the log since."""
        with once(self._saving), self._saving:
            self._put(lambda: (facts, {}))

    def _put(self, facts: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
        """Replace the manifest object by one with these fields, in `extra` and beside it."""
        tag = None
        while tag is None:
            extra, changes = facts()
            after, data = encoded(self.stored, self._nonce, extra, **changes)
            tag = put_own(self.reads, MANIFEST_KEY, data, self._tag)
            if tag is None:
                self._take_own()
        self.stored, self._tag = after, tag

    def update(self, change: Callable[[Manifest], Manifest], *, opening: bool = False) -> Manifest:
        """Replace the manifest by `change` of it; durable on return. See `ManifestStore.update`.

        `change` is called again if a claim was changed meanwhile. LogFencedError if the log has a newer writer.
        """
        # First: no floor is after the vouched end, so that an opening never begins before what is there.
        self.save()
        return self.claims_object.in_turn(lambda: self._changed(change))

    def _changed(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        claims = self.claims_object.read()
        before = as_manifest(self.stored, claims)
        after = change(before)
        if after is before:
            return before
        low, floor = after.low_watermark, claims.floor
        files = tuple(s for s in after.segments if not s.flags & IN_BULKS)
        done = max([low, *(s.last_lsn for s in files)])
        if done > max(before.low_watermark, floor.lsn):
            floor = max(floor, self.saved if done >= self.saved.lsn else self.place_at(done))
        if low > before.low_watermark:
            # Once more, so that what goes of a segment counts as one.
            after = change(replace(before, segments=tuple(cut_at(before.segments, floor))))
        # Compaction replaces bulks from the oldest on, so that what is left of them is all after the floor.
        assert claims.floor <= floor <= self.saved and low >= before.low_watermark
        assert all(
            s in files or is_after(s, floor) for s in cut_at(after.segments, floor) if s.last_lsn > low
        )
        names = {s.name for s in files}
        content = {**claims.files, **self.claims_object.ready}
        self.claims_object.draft = replace(
            claims,
            floor=floor,
            low_watermark=low,
            checkpoint_lsn=after.checkpoint_lsn,
            exact_from_lsn=after.exact_from_lsn,
            tombstones_from_lsn=after.tombstones_from_lsn,
            next_segment=max([claims.next_segment, *(s.number + 1 for s in files)]),
            segments=files,
            files={n: content[n] for n in content if n in names or lsn_of_name(n) is not None},
        )
        return as_manifest(self.stored, self.claims_object.draft)

    def _take_own(self) -> None:
        """Go on from an own save that gave up before its outcome was known; else raise who has replaced the manifest.

        LogFencedError, LogNotFoundError, CorruptionError, DivergenceError.
        """
        location, found = self.reads.store.location, self.reads.find(MANIFEST_KEY)
        manifest = manifest_of(found, location, self.stored.log_id)
        refuse_removed(manifest, location)
        newest = max(epochs_of(manifest))
        if newest > self.stored.lineage[-1].number:
            raise LogFencedError(location, newest)
        is_own = manifest.extra.get("nonce") == self._nonce
        # An older one that was put back has a counter that was used before.
        if found is None or not is_own or manifest.extra["counter"] <= self.stored.extra["counter"]:
            raise damaged(MANIFEST_KEY, "was replaced", "a newer epoch", newest)
        self.stored, self._tag = manifest, found.tag

    def renew(self) -> None:
        """See Manifests: space is never scarce."""

    def take_number(self) -> int:
        """See Manifests: for a segment that compaction makes. One thread at a time."""
        self._next_number = max(self._next_number, self.claims_object.known.next_segment) + 1
        return self._next_number - 1

    def close(self) -> None:
        """Nothing is held."""

    def forget(self) -> None:
        """In a forked child: the parent's lock is not ours."""
        self._saving = threading.RLock()
        self.claims_object.forget()
