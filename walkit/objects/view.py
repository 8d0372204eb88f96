"""Reading a log on object storage: its end as far as it is known, and views of it up to there. Changes no object."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NoReturn

from walkit._internal.locks import once
from walkit.errors import (
    CorruptionError,
    GapError,
    LogClosedError,
    LogFencedError,
    LogNotFoundError,
    ObjectMissingError,
    SegmentMissingError,
    WalkitError,
)
from walkit.format.frame import FrameHeader
from walkit.format.layout import ALIGNMENT_BUFFERED, FRAME_BYTES_LIMIT, IN_BULKS
from walkit.format.manifest import EpochRecord, Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.objects.bulks import Bulk
from walkit.objects.claims_object import ClaimsObject
from walkit.objects.folder import ObjectFolder
from walkit.objects.layout import (
    AHEAD_MAX,
    CLAIMS_KEY,
    MANIFEST_KEY,
    START,
    BulkHeader,
    Claims,
    Fit,
    LogPlace,
    as_manifest,
    claims_of,
    damaged,
    epoch_record,
    epochs_of,
    follows,
    foreign,
    frames_of,
    object_key,
    stretch,
    vouched_place,
)
from walkit.objects.requests import Patience, PatientReads
from walkit.objects.vouched import manifest_of, refuse_removed
from walkit.read.reader import ReaderView
from walkit.read.view import LogView, Span, View
from walkit.segments.frame_walk import FrameWalk
from walkit.segments.history import identity_at
from walkit.storage.object_store import ObjectStore

POLL_S = 0.05
READ_S = 10.0
"""How long one request of a reader is repeated."""
LOOK_EVERY = 20
"""Of so many polls of a quiet log, one looks at the vouched end and the floor, too."""
LOOKS_MAX = 8
"""So often a log is read again if its records are dropped meanwhile."""


@dataclass(frozen=True, slots=True)
class ObjectView(View):
    """The `View` of a log on object storage: its bulks after the floor, up to `end`."""

    storage: ObjectFolder
    manifest: Manifest
    floor: LogPlace
    end: LogPlace
    source: ObjectEnd

    @property
    def first_lsn(self) -> int:
        """See View."""
        return self.manifest.low_watermark + 1

    def frames(
        self, first_lsn: int, last_lsn: int | None = None, *, body: bool = True
    ) -> Iterator[tuple[FrameHeader, memoryview, str]]:
        """See View. Without `body` whole bulks are read, too, and their bodies are not looked at."""
        last = self.end.lsn if last_lsn is None else min(last_lsn, self.end.lsn)
        first = max(first_lsn, self.first_lsn)
        if self.files.spans and first <= min(last, self.floor.lsn):
            try:
                yield from self.files.frames(first, min(last, self.floor.lsn), body=body)
            except (GapError, ObjectMissingError) as error:
                raise self.source.file_gone(first, error) from error
            first = self.floor.lsn + 1
        if first > last:
            return
        number = self.number_of(first)
        before = self.floor if number == self.floor.number + 1 else None
        with closing(self.source.bulks.ahead(number, self.end.number)) as found:
            for bulk in found:
                if bulk is None:
                    self.source.refuse_missing(number, first)
                header, before = bulk.header, before or place_before(bulk.header)
                if self.source.judged(header, before) is not Fit.FITS or not self._is_of_its_epoch(header):
                    self.source.refuse_trimmed(number, first)  # then another bulk may have come late
                    raise damaged(object_key(number), "does not follow the one before", before, header)
                walk = frames_of(header, bulk.data, body=body)
                for frame, data in walk:
                    if frame.records and frame.last_lsn >= first:
                        yield frame, data, object_key(number)
                        first = frame.last_lsn + 1
                    if frame.last_lsn >= last:
                        return
                if walk.fault is not None:
                    raise fault_of(number, walk)
                number, before = number + 1, header.end

    def unsaved(self) -> Iterator[SegmentRecord]:
        """Yield the bulks after the newest stretch as further stretches: one for each epoch."""
        place, sealed = self.floor, self.manifest.sealed
        if sealed:
            last = sealed[-1]
            place = LogPlace(0, last.end_position, last.last_lsn, last.end_chain, last.epoch)
        later_epochs = [e for e in self.manifest.lineage if e.number > place.epoch]
        ends = [LogPlace(0, e.position, e.first_lsn - 1, e.chain, e.number) for e in later_epochs]
        for end in (*ends, self.end):
            if end.position > place.position:
                yield stretch(place, end._replace(epoch=place.epoch), self.manifest.next_segment, 0)
            place = end

    def parts(self) -> tuple[Span, ...]:
        """See View: files, stretches of bulks, and the bulks after them."""
        unsaved = (s._replace(state=SegmentState.PREPARED) for s in self.unsaved())
        return tuple(Span(s, s.end_position, s.last_lsn) for s in (*self.manifest.sealed, *unsaved))

    @property
    def files(self) -> LogView:
        """The segments by which compaction has replaced bulks."""
        files = (s for s in self.manifest.sealed if not s.flags & IN_BULKS)
        return LogView(self.storage, self.manifest, tuple(Span(s, s.end_position, s.last_lsn) for s in files))

    def segment_header(self, record: SegmentRecord) -> SegmentHeader:
        """See View. The manifest has all fields of a stretch of bulks."""
        if not record.flags & IN_BULKS:
            return self.files.segment_header(record)
        epoch = self.manifest.epoch_of(record.epoch)
        assert epoch is not None, "the lineage has the epoch of each stretch"
        return SegmentHeader(
            log_id=self.manifest.log_id,
            epoch=epoch.number,
            epoch_id=epoch.id,
            number=record.number,
            start_position=record.start_position,
            previous_end=record.start_position,
            first_lsn=record.first_lsn,
            chain=record.start_chain,
            alignment=ALIGNMENT_BUFFERED,
            frame_bytes_max=FRAME_BYTES_LIMIT,
            created_us=record.created_us,
        )

    def _is_of_its_epoch(self, header: BulkHeader) -> bool:
        """Whether the lineage has the epoch of a bulk at its LSN: one that came late, below the floor, has an older."""
        return header.is_fence or identity_at(self.manifest, header.first_lsn).epoch == header.epoch

    def number_of(self, lsn: int) -> int:
        """Return the number of the bulk that has an LSN of the view, by requests for a few headers."""
        assert lsn > self.floor.lsn, "no bulk has it"
        if lsn == self.floor.lsn + 1:
            return self.floor.number + 1
        return self.source.number_where(self, lambda end: end.lsn >= lsn)

    def lsn_at(self, position: int) -> int:
        """See View. Reads the bulk that the position is in."""
        if position >= self.end.position:
            return self.end.lsn
        if position <= self.floor.position:
            return self.files.lsn_at(position)
        number = self.source.number_where(self, lambda end: end.position > position)
        header = self.source.header(number, self.first_lsn)
        frames = (frame for frame, _, _ in self.frames(header.first_lsn, header.end.lsn))
        ended = (frame.last_lsn for frame in frames if frame.end_position <= position)
        return max(ended, default=header.first_lsn - 1)


def place_before(header: BulkHeader) -> LogPlace:
    """Return the place that a bulk follows by its own header."""
    number, lsn = header.number - 1, header.first_lsn - 1
    return LogPlace(number, header.start_position, lsn, header.chain, header.epoch - header.is_fence)


def fault_of(number: int, walk: FrameWalk) -> CorruptionError:
    """Return the error of a bulk whose frames are not what its header says."""
    fault = "" if walk.fault is None else walk.fault.value
    what = f"is damaged at position {walk.position:,}: {fault}"
    return damaged(object_key(number), what, f"an intact frame with LSN {walk.next_lsn}", fault)


class ObjectEnd:
    """Follows the end of a log on object storage; where a `LogReader` has its views from. Safe from any thread.

    From a place that is known the next number is asked for, until it is missing or does not follow: the end. Before a
    caller waits there, the vouched end and the floor are read, which say whether a bulk is missing that was there.
    """

    poll_s = POLL_S
    writer = 0
    """The epoch of the open log that reads, if one does: a record that a newer writer dropped is a LogFencedError."""

    def __init__(self, store: ObjectStore, *, planned: Manifest | None = None, bodies: bool = True) -> None:
        """Read manifest and claims. LogNotFoundError, CorruptionError, StorageError.

        With the manifest that a view was `planned` by, nothing is read: for the view's bulks alone. Without `bodies`
        the end is followed by headers: a damaged body is found by who reads it.
        """
        self.location, self._pid, self._bodies = store.location, os.getpid(), bodies
        self.reads = PatientReads(store, lambda: Patience(READ_S))
        self.bulks = self.reads.bulks()
        # Guards what is known of the end, and is held through its requests.
        self._lock = threading.RLock()
        self._place = START
        self.floor = START
        """The end of the last bulk that may be gone."""
        self._known: dict[int, LogPlace] = {}
        """Ends of bulks, one for each thousand numbers: derived, to find a place with few requests."""
        self._epochs: list[EpochRecord] = []
        """The epochs whose fence was seen: the manifest may not have them in its lineage yet."""
        self._quiet = 0
        """How many times in a row nothing new was found."""
        self._expected = START
        """Where a frame ends that came another way, without the number of its bulk."""
        self.manifest = self._stored_manifest() if planned is None else planned
        self._place = vouched_place(self.manifest)
        self.claims = Claims(log_id=self.manifest.log_id)
        self._claims_object = ClaimsObject(self.reads, self.manifest.log_id)
        self._folder = ObjectFolder(self._claims_object, self._manifest_now, lambda: self.now().last_lsn)
        if planned is None:
            self._read_floor()

    def folder(self) -> ObjectFolder:
        """See ViewSource."""
        return self._folder

    def files(self) -> LogView:
        """Return the view of the segments by which compaction has replaced bulks, as far as is known here."""
        manifest = as_manifest(self.manifest, self.claims)
        return ObjectView(self._folder, manifest, self.floor, self._place, self).files

    def _manifest_now(self) -> Manifest:
        """Return the manifest as the store has it at this moment, for a consumer that decides by it."""
        claims = self._claims_object.read()
        # Afterwards: what it vouches for is not before the floor.
        return as_manifest(self._stored_manifest(self.manifest.log_id), claims)

    def now(self) -> ReaderView[ObjectView]:
        """See ViewSource. While nothing new comes these are two requests. LogClosedError in a forked child.

        GapError if trims were faster than this reader, eight times in a row.
        """
        return self._look(exact=True)

    def poll(self) -> ReaderView[ObjectView]:
        """See ViewSource. While nothing new comes this is one request. LogClosedError in a forked child."""
        return self._look(exact=False)

    def _look(self, *, exact: bool) -> ReaderView[ObjectView]:
        if self._pid != os.getpid():
            # A thread that is not in the child may have had the lock, and clients of clouds have threads of their own.
            raise LogClosedError(f"the reader of {self.location} is the parent's: open the log in this child")
        with once(self._lock), self._lock:
            self._go_to_expected()
            for number in range(LOOKS_MAX):
                was_behind, found = self._is_behind(), self._take_following()
                self._quiet = 0 if found else self._quiet + 1
                # All is there of which the claims spoke; later ones speak of later records.
                caught_up = number > 0 and was_behind and not self._is_behind()
                place, is_due = self._place, self._quiet % LOOK_EVERY == 1
                if exact or is_due or was_behind:
                    self._read_floor()
                if is_due:
                    self._read_manifest()
                if self._place == place and (caught_up or not self._is_behind()):
                    break  # no trim has taken the bulk that is absent: this is the end
                if self._place == place and was_behind and not found:
                    raise self.missing(place.number + 1, place.lsn + 1)
            else:  # what was missing had been trimmed, each time
                raise self.gap(self._place.lsn + 1)
            place, floor = self._place, self.floor
            known = self.manifest.lineage
            lineage = (*known, *(e for e in self._epochs if all(e.number > each.number for each in known)))
            manifest = replace(as_manifest(self.manifest, self.claims), lineage=lineage, end=place.end)
        view = ObjectView(self._folder, manifest, floor, place, self)
        return ReaderView(view, place.lsn, place.position, place.position)

    def expect(self, frame: FrameHeader) -> None:
        """Note a verified frame of the log that came another way: the next look begins at its end. Takes no lock."""
        self._expected = LogPlace(0, frame.end_position, frame.last_lsn, frame.header_crc, frame.epoch)

    def fit(self, header: BulkHeader, place: LogPlace) -> Fit:
        """Say how a bulk stands to a place, by the epochs that are known here."""
        return follows(header, place, self.manifest.log_id, epochs_of(self.manifest))

    def judged(self, header: BulkHeader, place: LogPlace) -> Fit:
        """Say how a bulk stands to a place, by the epochs that there are now. DivergenceError, CorruptionError."""
        fit = self.fit(header, place)
        if fit is Fit.NEWER:
            self._read_manifest()
            fit = self.fit(header, place)
        if fit is Fit.FOREIGN:
            raise foreign(object_key(header.number), self.location, header.first_lsn)
        if fit is Fit.WRONG:
            raise damaged(object_key(header.number), "does not follow the one before", place, header)
        return fit

    def _go_to_expected(self) -> None:
        """Go to the end of a frame that came another way, by headers alone, unless an epoch begins before it.

        The position, LSN and chain of the bulk that ends there prove that all bulks before it belong to this log.
        """
        wanted, low = self._expected, self._place.number
        # The number if each bulk has one record; with more of them it is lower.
        number = high = low + wanted.lsn - self._place.lsn
        while wanted.epoch == self._place.epoch and low < number:
            header = self.bulks.header(number)
            if (
                header
                and header.log_id == self.manifest.log_id
                and header.end == wanted._replace(number=number)
            ):
                self._place = header.end
                return
            is_after = header is None or header.end.lsn >= wanted.lsn
            low, high = (low, number) if is_after else (number, high)
            number = (low + high) // 2

    def _take_following(self) -> bool:
        """Take the bulks that follow, all that there are when it begins; say whether there was one."""
        began = self._place
        with closing(self.bulks.there(began.number + 1, bodies=self._bodies)) as found:
            for bulk in found:
                if bulk is None or not self._take(bulk):
                    break
        return self._place != began

    def _take(self, bulk: Bulk) -> bool:
        """Make a bulk the end; False if it is not part of the log, or not yet."""
        header = bulk.header
        if self.judged(header, self._place) is not Fit.FITS:
            return False
        if header.is_fence:
            self._epochs.append(epoch_record(header))
        self._place = header.end
        self._known.setdefault(header.number // AHEAD_MAX, header.end)
        if self._bodies:
            self.bulks.keep(bulk)
        return True

    def _is_behind(self) -> bool:
        """Whether the log is longer than is known here, by its vouched end or a checkpoint."""
        vouched, checkpoint_lsn = vouched_place(self.manifest), self.claims.checkpoint_lsn
        return self._place.number < vouched.number or self._place.lsn < checkpoint_lsn

    def _read_manifest(self) -> None:
        self.manifest = self._stored_manifest(self.manifest.log_id)

    def _stored_manifest(self, log_id: int | None = None) -> Manifest:
        found = self.reads.find(MANIFEST_KEY)
        if found is None:
            if self.reads.find(CLAIMS_KEY) is None:
                raise LogNotFoundError(self.location)
            # The manifest of a log is put first and never deleted: it is there by now, unless it was lost.
            found = self.reads.find(MANIFEST_KEY)
        manifest = manifest_of(found, self.location, log_id)
        refuse_removed(manifest, self.location)
        return manifest

    def _read_floor(self) -> None:
        found = self.reads.find(CLAIMS_KEY)
        if found is None:
            return  # the log is being made
        claims = claims_of(found, self.location, self.manifest.log_id)
        if claims.counter >= self.claims.counter:
            self.claims = claims
        if claims.epoch > max((epoch.number for epoch in self.manifest.lineage), default=0):
            self._read_manifest()  # files may belong to a newer epoch
        self.floor = max(self.floor, claims.floor)
        if self.floor.number > self._place.number:
            self._place = self.floor

    def refuse_missing(self, number: int, wanted_lsn: int) -> NoReturn:
        """Raise GapError if the bulk of this number was trimmed, else SegmentMissingError."""
        self.refuse_trimmed(number, wanted_lsn)
        raise self.missing(number, wanted_lsn)

    def refuse_trimmed(self, number: int, wanted_lsn: int) -> None:
        """Raise GapError if the bulk of this number was trimmed.

        LogNotFoundError or DivergenceError if the log itself was removed, or is another one now.
        """
        with once(self._lock), self._lock:
            self._read_manifest()
            self._read_floor()
            if number <= self.floor.number:
                raise self.missing(number, wanted_lsn)

    def missing(self, number: int, wanted_lsn: int) -> GapError | LogFencedError | SegmentMissingError:
        """Return the error for a bulk of the log that is not there."""
        if number <= self.floor.number:
            return self.gap(wanted_lsn)
        key = object_key(number)
        return SegmentMissingError(
            f"the object {key} is missing from {self.location}: a later part of the log vouches for it",
            segment=key,
            expected="an object",
            found=None,
            first_lost_lsn=wanted_lsn,
        )

    def file_gone(self, wanted_lsn: int, error: GapError | ObjectMissingError) -> WalkitError:
        """Return the error for a file of a compaction that was not there: SegmentMissingError if it is still named."""
        with once(self._lock), self._lock:
            self._read_floor()
        named = {key: name for name, (key, _) in self.claims.files.items()}
        key = error.key if isinstance(error, ObjectMissingError) else ""
        name = named.get(key)
        if name is None:
            return self.gap(wanted_lsn)  # replaced or dropped since the view was taken
        name = named[key]
        return SegmentMissingError(
            f"the object {key} is missing from {self.location}: it is the segment {name}",
            segment=name,
            expected="an object",
            found=None,
            first_lost_lsn=wanted_lsn,
        )

    def gap(self, wanted_lsn: int) -> GapError | LogFencedError:
        """Return the error for records of an older view that were dropped or compacted since."""
        if self.writer not in (0, self.claims.epoch):
            return LogFencedError(self.location, self.claims.epoch)
        manifest = as_manifest(self.manifest, self.claims)
        oldest = max(manifest.complete_from_lsn, self.claims.dropped_lsn + 1)
        return GapError(wanted_lsn, oldest, "open again to read what is left")

    def number_where(self, view: ObjectView, is_reached: Callable[[LogPlace], bool]) -> int:
        """Return the first number of a view at whose end a condition holds, which holds from there on.

        GapError if the bulk was dropped or compacted since the view was taken.
        """
        while True:
            floor = max(view.floor, self.floor)
            if floor > view.floor and is_reached(floor):
                raise self.gap(view.first_lsn)
            try:
                return self._searched(view, floor.number, is_reached)
            except GapError:
                if self.floor <= floor:
                    raise

    def _searched(self, view: ObjectView, low: int, is_reached: Callable[[LogPlace], bool]) -> int:
        high = view.end.number
        for place in list(self._known.values()):
            if low < place.number < high:
                low, high = (low, place.number) if is_reached(place) else (place.number, high)
        while high - low > 1:
            middle = (low + high) // 2
            header = self.header(middle, view.first_lsn)
            self._known.setdefault(middle // AHEAD_MAX, header.end)
            low, high = (low, middle) if is_reached(header.end) else (middle, high)
        return high

    def header(self, number: int, wanted_lsn: int) -> BulkHeader:
        """Return the header of a bulk of the log. GapError, SegmentMissingError, DivergenceError, CorruptionError."""
        header = self.bulks.header(number)
        if header is None:
            self.refuse_missing(number, wanted_lsn)
        if header.log_id != self.manifest.log_id:
            raise foreign(object_key(header.number), self.location, header.first_lsn)
        return header
