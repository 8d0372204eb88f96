"""Another log is gathered in an object store, as bulks that nothing opens until they are whole (FORMAT.md F-21.15).

The manifest is the first object: it says that the log is an unfinished copy, so nothing opens it and no other log is
made there. Its next put makes the log. A copy that was killed is taken up where it was, or removed by `walkit remove`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from walkit._internal.arguments import refuse
from walkit.copier.plan import MissingRange
from walkit.errors import CorruptionError, OptionsError
from walkit.format.frame import FrameFault, FrameIdentity
from walkit.format.layout import ALIGNMENT_DIRECT, SEGMENT_HEADER_BYTES, SegmentFlag, align_up
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.objects.layout import (
    BULK_HEADER_BYTES,
    CLAIMS_KEY,
    MANIFEST_KEY,
    START,
    UNFINISHED,
    Claims,
    LogPlace,
    Stretches,
    frames_of,
    object_key,
    vouched_place,
)
from walkit.objects.requests import Patience, PatientReads, put_own
from walkit.objects.verbatim import VerbatimBulks
from walkit.objects.view import fault_of
from walkit.objects.vouched import encoded, manifest_of, refuse_removed
from walkit.record import Buffer
from walkit.segments.history import check_identity
from walkit.segments.manifest_store import LEVEL_KEY
from walkit.storage.object_store import ObjectStore

REQUEST_S: Final = 30.0
"""How long one request is repeated."""


class ObjectTarget:
    """Does in an object store the work of a `Gathering`, which needs a folder. Used by one thread."""

    def __init__(
        self, store: ObjectStore, step: Callable[[], object] = lambda: None, *, replaces: bool = False
    ) -> None:
        """`step` is called every few frames that are checked, and may end the work by an error.

        With `replaces` the log takes the place of an empty one with the same id: that of a replica.
        """
        self.storage, self._replaces = store, replaces
        self._reads, self._step = PatientReads(store, lambda: Patience(REQUEST_S)), step
        self._location, self._nonce = store.location, secrets.randbits(64) | 1
        self._manifest = self._stored = Manifest(log_id=0)
        self._tag = ""
        self._bulks: VerbatimBulks | None = None
        self._segment: SegmentHeader | None = None
        self._parts: list[Buffer] = []
        """The bytes of a segment that are in no bulk yet, and how many a whole frame needs."""
        self._needed = 0

    def prepare(
        self, manifest: Manifest, sizes: tuple[int, ...], snapshot_lsns: tuple[int, ...] = ()
    ) -> tuple[MissingRange, ...]:
        """Begin to gather this plan, and return its missing parts; parts of an earlier one are used.

        OptionsError for a log that no object store can have, or a place that has something else; then nothing was put.
        """
        self._manifest = manifest
        floor = _floor_of(manifest)
        _refuse_plan(manifest, floor, self._location)
        if self._bulks is None:
            self._bulks = self._begin(manifest, floor)
        there = self._bulks.place.position
        sealed = manifest.sealed
        missing = (MissingRange(i, 0, size) for i, size in enumerate(sizes[: len(sealed)]))
        return tuple(part for part in missing if sealed[part.file].end_position > there)

    def _begin(self, manifest: Manifest, floor: LogPlace) -> VerbatimBulks:
        """Put the manifest of an unfinished copy and the floor, if they are not there, and look which bulks are."""
        reads, log_id = self._reads, manifest.log_id
        found = reads.find(MANIFEST_KEY)
        if found is not None:
            self._stored, self._tag = manifest_of(found, self._location), found.tag
            if self._stored.extra.get("removed") != UNFINISHED:
                refuse_removed(self._stored, self._location)
            is_empty = self._replaces and not vouched_place(self._stored).number
            if (
                not is_empty and self._stored.extra.get("removed") != UNFINISHED
            ) or self._stored.log_id != log_id:
                raise self._exists()
            if is_empty:
                self._put_manifest(self._stored, {"removed": UNFINISHED}, self._tag)
        else:
            if any(reads.find(key) is not None for key in (CLAIMS_KEY, object_key(1))):
                raise self._exists()
            new = Manifest(log_id=log_id, created_us=manifest.created_us)
            self._put_manifest(new, {"object": 0, "opening": [], "removed": UNFINISHED}, None)
        stored = reads.find(CLAIMS_KEY)
        if stored is None:
            last = manifest.lineage[-1] if manifest.lineage else None
            number, epoch_id = (0, 0) if last is None else (last.number, last.id)
            claims = Claims(log_id=log_id, epoch=number, epoch_id=epoch_id, floor=floor, nonce=self._nonce)
            if put_own(reads, CLAIMS_KEY, claims.encode(), None) is None:
                raise self._exists()
        else:
            floor = Claims.decode(stored.data).floor
        bulks = VerbatimBulks(reads, log_id, Stretches(self._stored, floor))
        if bulks.read_on({epoch.number: epoch.id for epoch in manifest.lineage}, self._step) is not None:
            raise self._exists()
        return bulks

    def _put_manifest(self, manifest: Manifest, extra: dict[str, object], tag: str | None) -> None:
        self._stored, data = encoded(manifest, self._nonce, extra)
        new = put_own(self._reads, MANIFEST_KEY, data, tag)
        if new is None:
            raise self._exists()
        self._tag = new

    def _exists(self) -> OptionsError:
        return OptionsError(
            f"{self._location} has a log, an unfinished copy of another one, or objects that no copy leaves: a copy is "
            "made in a new place. Nothing was changed; `walkit remove` removes an unfinished copy",
            option="target",
            wanted=self._location,
        )

    def store(self, index: int, offset: int, data: bytes) -> None:
        """Take bytes of the segment of this index, in order, and put its whole frames as a bulk once they are right.

        CorruptionError, FormatVersionError if it is damaged; LogFencedError if another copier puts here; StorageError.
        """
        record, bulks = self._manifest.sealed[index], self._bulks
        assert bulks is not None
        position = record.start_position + offset - SEGMENT_HEADER_BYTES
        is_last = position + len(data) == record.end_position
        if not offset:
            self._segment = self._segment_of(record, data)
            data, position = data[SEGMENT_HEADER_BYTES:], record.start_position
            self._parts, self._needed = [], 0
        gathered = sum(map(len, self._parts))
        # Bytes before that were put by an earlier copy.
        wanted = max(bulks.place.position, record.start_position) + gathered
        self._parts.append(memoryview(data)[max(wanted - position, 0) :])
        if is_last or gathered + len(self._parts[-1]) >= max(self._needed, 1):
            self._put_frames(bulks, is_last)

    def _segment_of(self, record: SegmentRecord, data: bytes) -> SegmentHeader:
        segment = SegmentHeader.decode(data[:SEGMENT_HEADER_BYTES], record.name)
        check_identity(self._manifest, record, segment)
        assert segment is not None and self._bulks is not None
        self._bulks.begin_epochs(e for e in self._manifest.lineage if e.number <= record.epoch)
        return segment

    def _put_frames(self, bulks: VerbatimBulks, is_last: bool) -> None:
        segment = self._segment
        assert segment is not None
        data = b"".join([bytes(BULK_HEADER_BYTES), *self._parts])
        self._parts, body = [], memoryview(data)[BULK_HEADER_BYTES:]
        identity = FrameIdentity(segment.log_id, segment.epoch, segment.epoch_id)
        header = bulks.header(identity, segment.alignment, segment.frame_bytes_max)
        begun = header._replace(body_bytes=len(body))
        walk = frames_of(begun, data, last_chain=None, row_seen=lambda row: None)
        for _ in walk.steps():
            self._step()
        if walk.fault not in (None, FrameFault.SHORT) or (is_last and walk.fault is not None):
            raise fault_of(header.number, walk)
        whole = walk.position - header.start_position
        if whole:
            end = LogEnd(last_lsn=(walk.next_lsn or 1) - 1, position=walk.position, chain=walk.chain or 0)
            bulks.put(header, body[:whole], walk.records, end)
        self._parts = [bytes(body[whole:])]
        self._needed = 0 if walk.at_fault is None else walk.at_fault.footprint

    def finish(self) -> Manifest:
        """Make the log; durable on return. Returns its manifest as that of a folder.

        CorruptionError if the existing part ends elsewhere than the plan.
        """
        manifest, bulks = self._manifest, self._bulks
        assert bulks is not None
        bulks.begin_epochs(manifest.lineage)
        if bulks.place.end != manifest.end:
            raise CorruptionError(
                f"the unfinished copy at {self._location} ends otherwise than its log: `walkit remove` removes it",
                segment=object_key(bulks.place.number),
                expected=manifest.end,
                found=bulks.place.end,
            )
        extra = {key: value for key, value in manifest.extra.items() if key != LEVEL_KEY}
        kept = {key: value for key, value in self._stored.extra.items() if key != "removed"}
        taken, own = bulks.taken.fields()
        new = replace(manifest, generation=self._stored.generation, extra=kept, **own)
        self._put_manifest(new, {**extra, **taken}, self._tag)
        return manifest

    def close(self) -> None:
        """Nothing is held."""


def _floor_of(manifest: Manifest) -> LogPlace:
    """Return the place that the first bulk of a copy follows."""
    if manifest.sealed:
        first = manifest.sealed[0]
        place = LogPlace(0, first.start_position, first.first_lsn - 1, first.start_chain, first.epoch)
    else:
        end, epoch = manifest.end, manifest.lineage[-1].number if manifest.lineage else 0
        place = LogPlace(0, end.position, end.last_lsn, end.chain, epoch)
    return place if place.position else START


def _refuse_plan(manifest: Manifest, floor: LogPlace, location: str) -> None:
    """OptionsError for a log that bulks cannot have: each of them follows the one before it without a jump."""
    reason = "" if manifest.ack_order == "append" else "it acknowledges in completion order"
    reason = reason or ("" if not manifest.gaps else "it has holes or lost ranges")
    place = floor.end
    ends = {place}
    for record in manifest.sealed:
        start = (record.first_lsn - 1, record.start_chain)
        near = place.position <= record.start_position <= align_up(place.position, ALIGNMENT_DIRECT)
        if record.flags & SegmentFlag.COMPACTED:
            reason = reason or "it is compacted"
        elif start != (place.last_lsn, place.chain) or not near:
            reason = reason or f"segment {record.name} begins after a jump"
        place = LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
        ends.add(place)
    started = [e for e in manifest.lineage if e.number > floor.epoch]
    if any(LogEnd(last_lsn=e.first_lsn - 1, position=e.position, chain=e.chain) not in ends for e in started):
        reason = reason or "one of its epochs begins after a jump"
    if manifest.low_watermark:
        reason = reason or "it was trimmed"
    if reason:
        refuse("target", location, f"no object store can have this log: {reason}; copy it into a folder")
