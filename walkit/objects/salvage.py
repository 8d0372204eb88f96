"""Salvage of a log on object storage: its bulks become segments of a new folder, and `repair` makes the log there.

The header of a bulk has its place, so neither the manifest nor the claims object is needed. `repair` judges the folder
as any other that has no manifest. No object is changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from walkit._internal.arguments import check_progress, refuse
from walkit._internal.text import counted
from walkit._main_thread import ending_early, run_uninterrupted
from walkit.errors import CorruptionError, LogNotFoundError, NotALogError
from walkit.format.durable_slot import DurableSlot, encode_slot
from walkit.format.file_names import SALVAGE_NEW_NAME
from walkit.format.layout import DURABLE_SLOTS_BYTES, SEGMENT_HEADER_BYTES
from walkit.format.segment import segment_name
from walkit.objects.entrance import object_store_of
from walkit.objects.layout import (
    AHEAD_MAX,
    BULK_HEADER_BYTES,
    CLAIMS_KEY,
    LOG_PREFIX,
    MANIFEST_KEY,
    START,
    BulkHeader,
    Claims,
    number_of_key,
    object_key,
    segment_of,
    vouched_place,
)
from walkit.objects.requests import Patience, PatientReads
from walkit.objects.view import READ_S, place_before
from walkit.objects.vouched import manifest_of
from walkit.recovery.log_scan import Progress
from walkit.recovery.repair import RepairReport, repair
from walkit.segments.manifest_store import DURABLE_NAME
from walkit.storage.address import AnyPlace, Place, storage_at
from walkit.storage.bulk import write_whole
from walkit.storage.interface import Storage

SEGMENT_BYTES: Final = 64 << 20
"""A segment of the new folder ends with the bulk with which it has so many bytes."""
UNLISTED: Final = 256
"""So many numbers after the last listed one are read, too: as many as a writer may have under way."""


def salvage(
    path: AnyPlace,
    target: Place,
    progress: Progress | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> RepairReport:
    """Make a log in a new folder of all that is intact in a log on object storage, whose objects stay as they are.

    The manifest, the claims object and any bulks may be missing or damaged. The report is that of
    `repair(policy="salvage")`: the lost ranges are recorded, and each further history becomes a log of its own beside
    it. Snapshots, cursors and claims stay behind. `progress` is called with (bulks read, bulks to read).

    OptionsError for a folder, and for a target that has files; LogNotFoundError if no bulk is there; what `repair`
    raises. After an error or a crash the target has no manifest, so nothing opens it: remove it and call again.
    """
    check_progress(progress, "(bulks read, bulks to read)")
    store = object_store_of(path, storage_options)
    if store is None:
        refuse("path", path, 'the URL of an object store; `repair(policy="salvage")` salvages a folder')
    folder = storage_at(target)
    if folder.exists() and folder.names():
        refuse("target", folder.location, "a new folder: this one has files")
    work = _Salvage(PatientReads(store, lambda: Patience(READ_S)), folder, ending_early(progress))
    run_uninterrupted(work.run, "salvage")
    report = repair(folder, policy="salvage")
    if not work.stale:
        return report
    left = f"{counted(work.stale, 'bulk')} of older writers, which nothing acknowledged, stayed behind"
    return replace(report, notes=(*report.notes, left))


class _Salvage:
    """Writes the bulks of one log into segments, in the order of their numbers."""

    def __init__(self, reads: PatientReads, folder: Storage, progress: Progress | None) -> None:
        self._reads, self._folder = reads, folder
        self._progress = progress or (lambda done, known: None)
        self._parts: list[bytes] = []
        """The header of the next segment, and its frames."""
        self._segments = self._size = self.stale = 0
        self._before: BulkHeader | None = None
        """The bulk that it ends with."""
        self._newest: dict[int, int] = {}
        """By log: the newest epoch so far. A later bulk of an older one is stale."""
        self._log_id, self._vouched = 0, START

    def run(self) -> None:
        """Write the segments, and the durable slot if the vouched end is known. Durable on return."""
        floor = self._floor()
        listed = (number_of_key(entry.key) for entry in self._reads.store.list_after(LOG_PREFIX.rstrip("/")))
        # In any order, so all numbers are held: 8 bytes for each object.
        numbers = array("Q", sorted(n for n in listed if n is not None and n > floor))
        if not numbers:
            raise LogNotFoundError(self._reads.store.location, "it has no bulks")
        self._folder.create()
        self._vouch()
        # A listing may lack some. Before a long row of missing numbers stands a fence from before a trim.
        rows = [(a, b) for a, b in pairwise(numbers) if b - a > AHEAD_MAX]
        firsts, lasts = (b for _, b in rows), (a for a, _ in rows)
        for first, last in zip((numbers[0], *firsts), (*lasts, numbers[-1] + UNLISTED), strict=True):
            self._read(first, last, numbers[-1])
        self._begin()

    def _floor(self) -> int:
        found = self._reads.find(CLAIMS_KEY)
        with suppress(CorruptionError):
            return 0 if found is None else Claims.decode(found.data).floor.number
        return 0

    def _vouch(self) -> None:
        """Put the vouched end into the durable slot of the folder, so that a loss before it is known as one."""
        with suppress(CorruptionError, NotALogError):
            manifest = manifest_of(self._reads.find(MANIFEST_KEY), self._reads.store.location)
            self._log_id, self._vouched = manifest.log_id, vouched_place(manifest)
            for epoch in manifest.lineage[-1:]:
                slot = DurableSlot(2, epoch.number, epoch.id, self._vouched.position, self._vouched.lsn)
                data = encode_slot(slot)[1].ljust(DURABLE_SLOTS_BYTES, b"\0")
                write_whole(self._folder, DURABLE_NAME, SALVAGE_NEW_NAME, data)

    def _read(self, number: int, last: int, newest: int) -> None:
        """Read these numbers; whatever a damaged object has goes into a segment, where the repair looks at it."""
        while number <= last:
            try:
                with closing(self._reads.bulks().ahead(number, last)) as ahead:
                    for bulk in ahead:
                        if bulk is not None:
                            self._take(bulk.header, bulk.data)
                        number += 1
                        self._progress(min(number, newest), newest)
            except CorruptionError:
                found = self._reads.find(object_key(number))
                # `repair` takes the place of its frames from their own headers.
                head, data = b"\xff" * SEGMENT_HEADER_BYTES, b"" if found is None else found.data
                self._begin(head, data[BULK_HEADER_BYTES:])
                number += 1

    def _take(self, header: BulkHeader, data: bytes) -> None:
        newest = self._newest.get(header.log_id, 0)
        if header.log_id == self._log_id and header.number > self._vouched.number:
            newest = max(newest, self._vouched.epoch)
        self._newest[header.log_id] = max(newest, header.epoch)
        if header.epoch < newest:
            self.stale += 1
        elif not header.is_fence:
            before = self._before
            follows = before is not None and before.end == place_before(header)
            if not follows or self._size >= SEGMENT_BYTES:
                number = self._segments + 1 + bool(self._parts)
                self._begin(replace(segment_of(header), number=number).encode())
            self._parts.append(data[BULK_HEADER_BYTES:])
            self._before, self._size = header, self._size + header.body_bytes

    def _begin(self, *parts: bytes) -> None:
        """Write the segment that was gathered, if there is one, and begin the next with these parts."""
        if self._parts:
            self._segments += 1
            write_whole(self._folder, segment_name(self._segments), SALVAGE_NEW_NAME, b"".join(self._parts))
        self._parts, self._before, self._size = [*parts], None, 0
