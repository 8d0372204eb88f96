"""The ledger of one examination: what was read, what it is, what is wrong. Written by the other modules here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from walkit.errors import CorruptionError, WalkitError
from walkit.format.durable import DurableMark
from walkit.format.frame import FrameFault
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import Gap, Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.log.behind import nonzero_until
from walkit.log.examine.survey import FrameSeen, SegmentSurvey, Stretch
from walkit.log.examine.verdicts import Problem, RangeVerdict, SegmentFacts, SegmentUse, Verdict, worst
from walkit.log.scan import Progress
from walkit.storage.base import Storage, StorageFile
from walkit.text import counted


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameSpan:
    """Positions of one segment whose frames were surveyed: enough to survey them again."""

    name: str
    header: SegmentHeader
    end_position: int
    bodies: bool
    last_chain: int | None = None
    """Header checksum of the frame that ends at `end_position`, where the segment's own header tells it."""
    gaps: tuple[Gap, ...] = ()

    def survey(
        self,
        file: StorageFile,
        *,
        decode: bool = False,
        seen: FrameSeen | None = None,
        watched_position: int | None = None,
        reached: Callable[[int], object] | None = None,
    ) -> SegmentSurvey:
        """Return the survey of the span in its open file."""
        return SegmentSurvey(
            file,
            self.header,
            start_position=self.header.start_position,
            end_position=self.end_position,
            next_lsn=self.header.first_lsn,
            chain=self.header.chain,
            last_chain=self.last_chain,
            bodies=self.bodies,
            decode=decode,
            seen=seen,
            watched_position=watched_position,
            reached=reached,
            gaps=self.gaps,
        )


class StoppedError(Exception):
    """The examination was told to end by who began it; nobody else sees this."""


class Ledger:
    """Ranges, segments, problems and notes of one pass over a log, and how far its frames were promised."""

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        mark: DurableMark,
        *,
        live: bool,
        bodies: bool,
        decode: bool,
        progress: Progress | None = None,
    ) -> None:
        self.storage, self.manifest, self.mark = storage, manifest, mark
        self.live, self.bodies, self.decode = live, bodies, decode
        self.ranges: list[RangeVerdict] = []
        self.segments: list[SegmentFacts] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.spans: list[FrameSpan] = []
        self.bytes_done = 0
        self.stopped = False
        """Set by another thread: the examination ends at its next step."""
        self.mark_known = mark.epoch_id in {e.id for e in manifest.lineage}
        self.promised = max(manifest.end.position, mark.position if self.mark_known else 0)
        """How far anything that can be trusted promises the log to be on stable storage."""
        self.end = manifest.end
        """Where the intact log ends, as far as it has been examined."""
        self.lsn_at_mark: int | None = None
        """The last LSN of the intact frame that ends where the durable file says, once one was seen."""
        self._progress = progress
        self._bytes_to_do = sum(s.size_bytes for s in manifest.sealed)

    def survey(self, file: StorageFile, span: FrameSpan) -> Iterator[Stretch]:
        """Yield the stretches of a span, noting promises and progress."""
        self.spans.append(span)
        watched = self.mark.position if self.mark_known and self.decode else None
        before = self.bytes_done - span.header.start_position
        survey = span.survey(
            file,
            decode=self.decode,
            watched_position=watched,
            reached=lambda position: self.tell(before + position),
        )
        for stretch in survey:
            if survey.lsn_at_watched is not None:
                self.lsn_at_mark = survey.lsn_at_watched
            if not span.header.flags & SegmentFlag.IMPORTED:
                self.promised = max(self.promised, survey.promised_position)
            yield stretch
            self.tell(before + stretch.end_position)

    def tell(self, bytes_done: int) -> None:
        """Note how many bytes were read, and tell who wants to know. StoppedError: the examination is to end."""
        self.bytes_done = bytes_done
        if self.stopped:
            raise StoppedError
        if self._progress is not None:
            self._progress(bytes_done, max(bytes_done, self._bytes_to_do))

    def part(self) -> Ledger:
        """Return a ledger of the same log for some of its segments; `join` takes what is in it."""
        return Ledger(
            self.storage, self.manifest, self.mark, live=self.live, bodies=self.bodies, decode=self.decode
        )

    def join(self, part: Ledger) -> None:
        """Add what another ledger has of the segments behind those of this one; `tell` says how many bytes that is."""
        self.ranges += part.ranges
        self.segments += part.segments
        self.problems += part.problems
        self.notes += part.notes
        self.spans += part.spans
        self.promised = max(self.promised, part.promised)
        self.lsn_at_mark = part.lsn_at_mark if self.lsn_at_mark is None else self.lsn_at_mark

    # -- writing it down

    def problem(self, error: WalkitError, *, segment: str | None = None, position: int | None = None) -> None:
        """Note a fault."""
        self.problems.append(Problem.of(error, segment=segment, position=position))

    def add(
        self,
        segment: str,
        start_position: int,
        end_position: int,
        verdict: Verdict,
        reason: str = "",
        lsns: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Note what positions [start_position, end_position) are."""
        first, last = lsns
        if first is not None and last is not None and last < first:
            first = last = None
        self.ranges.append(
            RangeVerdict(
                segment=segment,
                start_position=start_position,
                end_position=end_position,
                verdict=verdict,
                first_lsn=first,
                last_lsn=last,
                reason=reason,
            )
        )

    def add_stretch(self, segment: str, stretch: Stretch, verdict: Verdict, reason: str = "") -> None:
        """Note what a surveyed stretch is."""
        lsns = stretch.first_lsn, stretch.last_lsn
        self.add(segment, stretch.start_position, stretch.end_position, verdict, reason, lsns)
        self.ranges[-1] = replace(self.ranges[-1], frames=stretch.frames, records=stretch.records)

    def lose(self, record: SegmentRecord, verdict: Verdict, error: WalkitError) -> None:
        """Note a sealed segment of which nothing can be read."""
        self.problem(error, segment=record.name, position=record.start_position)
        lsns = record.first_lsn, record.last_lsn
        self.add(record.name, record.start_position, record.end_position, verdict, str(error), lsns)

    def fault(self, segment: str, stretch: Stretch, last_lost_lsn: int | None = None) -> None:
        """Note damage of what was promised: a problem and its range.

        A newer format and a place that cannot be read say so themselves; the rest is corruption. `last_lost_lsn` stands
        in where the damage leaves open how far it reaches.
        """
        fault, error, header = stretch.fault or FrameFault.END, stretch.error, stretch.at_fault
        verdict = Verdict.UNKNOWN
        if error is None or isinstance(error, CorruptionError):
            verdict = Verdict.CORRUPT
            what = fault.value if error is None else str(error)
            wanted = (
                "an intact frame"
                if stretch.first_lsn is None
                else f"an intact frame with LSN {stretch.first_lsn}"
            )
            claim = "" if header is None else f" (LSN {header.first_lsn}, position {header.position})"
            error = CorruptionError(
                f"segment {segment} is damaged at position {stretch.start_position:,}: {what}. "
                f"Frames were promised up to position {self.promised:,}",
                segment=segment,
                position=stretch.start_position,
                expected=wanted,
                found=fault.name + claim,
                first_lost_lsn=stretch.first_lsn,
            )
        self.problem(error, segment=segment, position=stretch.start_position)
        last = last_lost_lsn if stretch.last_lsn is None else stretch.last_lsn
        reason = str(error) if verdict is Verdict.UNKNOWN else fault.value
        self.add_stretch(segment, replace(stretch, last_lsn=last), verdict, reason)

    def add_behind(self, file: StorageFile, header: SegmentHeader, end_position: int) -> None:
        """Note what stands behind the end of a segment: zeros, or stale bytes that the next opening sets aside."""
        size, offset = file.size(), header.offset_of(end_position)
        until = nonzero_until(file, offset, size) if size > offset else offset
        at = end_position + until - offset
        if at > end_position:
            self.add(file.name, end_position, at, Verdict.STALE, "bytes behind the end of the segment")
            self.notes.append(
                f"segment {file.name}: {counted(until - offset, 'byte')} behind its end: not of the log; "
                "the next opening keeps them in lost+found"
            )
        if size > until:
            self.add(file.name, at, at + size - until, Verdict.UNUSED)

    def add_segment(
        self,
        record: SegmentRecord,
        use: SegmentUse,
        ranges: list[RangeVerdict],
        *,
        file_bytes: int,
        header: SegmentHeader | None = None,
        verdict: Verdict | None = None,
        name: str = "",
    ) -> None:
        """Note the facts of a segment, from its ranges. `name` is that of its file where the record's is not."""
        held = [r for r in ranges if r.frames]
        lsns = [lsn for r in held for lsn in (r.first_lsn, r.last_lsn) if lsn is not None]
        start = record.start_position if header is None else header.start_position
        self.segments.append(
            SegmentFacts(
                name=name or record.name,
                state=use,
                epoch=record.epoch,
                start_position=start,
                end_position=record.end_position or max((r.end_position for r in held), default=start),
                first_lsn=record.first_lsn or min(lsns, default=None),
                last_lsn=record.last_lsn or max(lsns, default=None),
                frames=sum(r.frames for r in held),
                records=sum(r.records for r in held),
                file_bytes=file_bytes,
                created_us=record.created_us or (0 if header is None else header.created_us),
                verdict=verdict or worst(ranges),
            )
        )


def whole_header(block: bytes) -> SegmentHeader | None:
    """Return the undamaged header that a block holds, of whatever segment it is; None where there is none."""
    try:
        return SegmentHeader.decode(
            block, ""
        )  # an undamaged one is refused for its name, and says which it has
    except CorruptionError as error:
        name = error.found
    except WalkitError:
        return None
    try:
        return (
            SegmentHeader.decode(block, name) if isinstance(name, str) and name.endswith(".segment") else None
        )
    except WalkitError:
        return None
