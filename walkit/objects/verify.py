"""Scanning and verifying a log: one on object storage here, one in a folder by `recovery`. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Literal, TypeAlias, cast

import walkit.recovery.verify as folder_logs
from walkit._internal.arguments import check_progress, refuse
from walkit._internal.text import counted
from walkit.errors import CorruptionError, DivergenceError, GapError, ObjectMissingError, WalkitError
from walkit.format.frame import decode_frame
from walkit.format.layout import FORMAT_VERSION
from walkit.objects.bulks import Bulk
from walkit.objects.entrance import object_store_of
from walkit.objects.layout import (
    LOG_PREFIX,
    Fit,
    LogPlace,
    as_manifest,
    foreign,
    frames_of,
    number_of_key,
    object_key,
    vouched_place,
)
from walkit.objects.payload_check import check_payloads
from walkit.objects.view import LOOKS_MAX, ObjectEnd, fault_of, place_before
from walkit.recovery.judge import verdict_of
from walkit.recovery.log_scan import Progress
from walkit.recovery.scan_report import FrameRow, Problem, RangeVerdict, ScanReport, Verdict
from walkit.storage.address import AnyPlace, Place
from walkit.storage.object_store import ObjectStore

Tool: TypeAlias = Literal["scan", "verify"]


def scan(path: AnyPlace, *, bodies: bool = True, progress: Progress | None = None) -> ScanReport:
    """Return a report on a log: a verdict per range, facts per segment, problems, notes; `.frames` is a table.

    Every frame is read and checked against its checksums, its place and its predecessor, and each snapshot. With
    `bodies=False` only the frame headers of sealed segments are read, which is faster if frames are large: then these
    segments and the snapshots are "not read", and `ok` is None unless a problem was found. The segments after the last
    seal are read whole in any case, because only that finds their end. `progress` is called with
    (bytes read, bytes to read).

    Works on a live log (what is at or below its durable position is judged, the rest is in progress), a closed one, one
    whose writer was killed, and a damaged one. `path` is what `walkit.open` takes. Memory does not grow with the log.

    On object storage every bulk is read, or with `bodies=False` those after the vouched end, and the bulks that are
    listed after the end of the log are looked at. The report has no segments then, `progress` counts bulks, and a
    living writer cannot be recognised. GapError if its oldest records are dropped eight times before it has read them.

    Raises LogNotFoundError, NotALogError, FormatVersionError (of the manifest) and StorageError if there is nothing to
    report on.
    """
    store = object_store_of(path)
    if store is None:
        return folder_logs.scan(cast(Place, path), bodies=bodies, progress=progress)
    return examine_objects(store, "scan", bodies=bodies, progress=progress)


def verify(
    path: AnyPlace,
    *,
    payloads: bool = False,
    payload_log: AnyPlace | None = None,
    progress: Progress | None = None,
) -> ScanReport:
    """Check everything that can be checked without a writer: what `scan` checks, and more.

    Beyond `scan`: that every body decodes, that the manifest's facts agree with each other and with the frames
    (counts, LSNs, chains, epochs), and that the durable slot agrees with them. Claims, cursors and other files are
    noted. Raises what `scan` raises.

    With `payloads` the values in payload logs are read, too, of each link in a record or a snapshot, and checked by
    length and CRC-32C; `payload_log` is where to look first. Each one that is lost is a problem with a
    PayloadGoneError, up to 1,000, which are counted from then on. Each payload log that cannot be reached is one with a
    PayloadUnreachableError, and its other values are counted. About 8 MiB of values are in memory, or one larger value;
    `progress` is then called with (LSNs passed, LSNs to pass).
    """
    if payload_log is not None and not payloads:
        refuse("payload_log", payload_log, "only with payloads=True")
    store = object_store_of(path)
    if store is None:
        report = folder_logs.verify(cast(Place, path), progress=progress)
    else:
        report = examine_objects(store, "verify", progress=progress)
    return check_payloads(report, path, progress, payload_log=payload_log) if payloads else report


def examine_objects(
    store: ObjectStore, tool: Tool, *, bodies: bool = True, progress: Progress | None = None
) -> ScanReport:
    """Return the report on a log on object storage."""
    check_progress(progress, "(bulks read, bulks known)")
    began = time.perf_counter()
    for left in reversed(range(LOOKS_MAX)):
        found = _Examination(ObjectEnd(store), progress, decode=tool == "verify")
        try:
            found.read(bodies=bodies)
            found.look_after()
            break
        except GapError:  # a trim or a compaction was faster
            if not left:
                raise
    manifest, end = found.end.manifest, found.place
    intact = [r for r in found.ranges if r.verdict is Verdict.INTACT]
    return ScanReport(
        location=store.location,
        tool=tool,
        state="closed" if end == found.vouched else "unclosed",
        bodies_read=bodies,
        format_version=FORMAT_VERSION,
        log_id=manifest.log_id,
        generation=manifest.generation,
        epochs=len(manifest.lineage),
        low_watermark=manifest.low_watermark,
        first_lsn=found.end.claims.dropped_lsn + 1,
        last_lsn=end.lsn,
        end_position=end.position,
        promised_position=max(found.vouched.position, found.promised),
        frames_checked=sum(r.frames for r in intact),
        records_checked=sum(r.records for r in intact),
        bytes_checked=sum(r.size_bytes for r in intact),
        duration_s=time.perf_counter() - began,
        verdict=tuple(found.ranges),
        segments=(),
        problems=tuple(found.problems),
        notes=tuple(found.notes),
        frame_rows=found.rows,
    )


class _Examination:
    """One reading of all bulks, in order. `place` is how far it came."""

    def __init__(self, end: ObjectEnd, progress: Progress | None, *, decode: bool) -> None:
        self.end, self._decode = end, decode
        self._progress = progress or (lambda done, known: None)
        self.place, self.vouched = end.floor, vouched_place(end.manifest)
        self._start = self.place
        """Where the last range ends that was noted."""
        self.promised = self._frames = 0
        self.ranges: list[RangeVerdict] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def read(self, *, bodies: bool) -> None:
        """Read the files of a compaction, then the bulks, from the floor or the vouched end on, past damage."""
        self._read_files(bodies=bodies)
        if not bodies:
            fences = sum(epoch.position >= self.place.position for epoch in self.end.manifest.lineage)
            self._frames = self.vouched.number - self.place.number - fences
            self._go_to(max(self.place, self.vouched), Verdict.NOT_READ)
        while (error := self._read_on()) is not None and self._pass(error):
            pass
        if bodies and self.end.claims.files:
            manifest = as_manifest(self.end.manifest, self.end.claims)
            self.problems += folder_logs.check_snapshots(self.end.folder(), manifest, self.notes)

    def _read_files(self, *, bodies: bool) -> None:
        view = self.end.files()
        for span in view.parts():
            record, verdict, reason = span.record, Verdict.INTACT if bodies else Verdict.NOT_READ, ""
            try:
                for found in view.span_frames(span, record.first_lsn, None) if bodies else ():
                    if self._decode and found is not None:
                        decode_frame(*found)
            except (CorruptionError, DivergenceError, ObjectMissingError) as fault:
                error: WalkitError = fault
                if isinstance(fault, ObjectMissingError):
                    error = self.end.file_gone(record.first_lsn, fault)
                if not isinstance(error, CorruptionError | DivergenceError):
                    raise error from fault
                verdict, reason = verdict_of(error), str(error)
                self.problems.append(Problem.of(error, segment=record.name, position=record.start_position))
            self.ranges.append(
                RangeVerdict(
                    segment=record.name,
                    start_position=record.start_position,
                    end_position=record.end_position,
                    verdict=verdict,
                    first_lsn=record.first_lsn,
                    last_lsn=record.last_lsn,
                    frames=record.frames,
                    records=record.records,
                    reason=reason,
                )
            )

    def _read_on(self) -> CorruptionError | DivergenceError | None:
        """Read as long as bulks are intact and follow each other; return what is wrong then, or None at the end."""
        error = None
        try:
            with closing(self.end.bulks.there(self.place.number + 1)) as ahead:
                for bulk in ahead:
                    if bulk is None and self.place.number < self.vouched.number:
                        raise self.end.missing(self.place.number + 1, self.place.lsn + 1)
                    if bulk is None or self.end.judged(bulk.header, self.place) is not Fit.FITS:
                        break
                    self._take(bulk)
        except (CorruptionError, DivergenceError) as fault:
            error = fault
        self._go_to(self.place, Verdict.INTACT)
        self.end.refuse_trimmed(self.place.number + 1, self.place.lsn + 1)
        return error

    def _take(self, bulk: Bulk) -> None:
        walk = frames_of(bulk.header, bulk.data)
        for frame, data in walk:
            if self._decode:
                decode_frame(frame, data)
        if walk.fault is not None:
            raise fault_of(bulk.header.number, walk)
        self.place, self._frames = bulk.header.end, self._frames + walk.frames
        self.promised = max(self.promised, bulk.header.promised_position)
        self._progress(self.place.number, max(self.place.number, self.vouched.number))

    def _pass(self, error: CorruptionError | DivergenceError) -> bool:
        """Note what is wrong with the next number, and go past it; False if no later bulk is known."""
        number, following = self.place.number + 1, None
        self.problems.append(Problem.of(error, segment=object_key(number), position=self.place.position))
        while following is None and number < self.vouched.number:
            number += 1
            with suppress(CorruptionError):
                following = self.end.bulks.header(number)
        end = max(self.place, self.vouched) if following is None else place_before(following)
        self._go_to(end, verdict_of(error), str(error))
        return following is not None

    def _go_to(self, end: LogPlace, verdict: Verdict, reason: str = "") -> None:
        """Note what is between the last range and `end`, and go there."""
        start, self.place, self._start = self._start, end, end
        frames, self._frames = self._frames, 0
        if end.number > start.number:
            records = end.lsn - start.lsn
            found = RangeVerdict(
                segment=start.key,
                start_position=start.position,
                end_position=end.position,
                verdict=verdict,
                first_lsn=start.lsn + 1 if records else None,
                last_lsn=end.lsn if records else None,
                frames=frames,
                records=records if frames else 0,
                reason=reason,
            )
            self.ranges.append(found)

    def look_after(self) -> None:
        """Look at the bulks that are listed after the end: one that promises more than there is, is a problem."""
        unpromised = 0
        listed = self.end.reads.keys_after(LOG_PREFIX[:-1], object_key(self.place.number))
        try:
            for number in sorted((n for n in map(number_of_key, listed) if n is not None), reverse=True):
                header = self.end.bulks.header(number)
                promises = header is not None and header.promised_position > self.place.position
                if promises and (fault := self._read_on()):  # a writer that lives has put more since
                    raise fault
                if number <= self.place.number:
                    break  # and so are all the others
                if header is not None and header.log_id != self.end.manifest.log_id:
                    raise foreign(object_key(number), self.end.location, self.place.lsn + 1)
                if header is not None and header.promised_position > self.place.position:
                    self.end.refuse_trimmed(self.place.number + 1, self.place.lsn + 1)
                    raise self.end.missing(self.place.number + 1, self.place.lsn + 1)
                unpromised += header is not None
        except (CorruptionError, DivergenceError) as error:
            self.problems.append(Problem.of(error))
        if unpromised:
            self.notes.append(f"after the end: {counted(unpromised, 'object')} that nothing promises")

    def rows(self) -> Iterator[FrameRow]:
        """Yield a row for every frame of the log, which is read again."""
        view = self.end.now().view
        for frame, _, key in view.frames(view.first_lsn):
            yield FrameRow.of(key, frame, True)
