"""Examining segments that are not sealed: in use by a living writer, or left by one that ended without close().

The judgement is that of recovery's policy "prefix" (`walkit.log.recovery`), told range by range: damage of what was
promised is corruption; from the first damage that nothing promised on, the rest is a torn tail, but for intact frames
within the window in a log in completion order. Of a log with a living
writer only what is at or below its durable position is judged.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace

from walkit.errors import CorruptionError, FormatVersionError, SegmentMissingError, StorageError, WalkitError
from walkit.format.frame import FrameFault
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.log.behind import nonzero_until, promise_without_header
from walkit.log.examine.ledger import FrameSpan, Ledger, whole_header
from walkit.log.examine.survey import Stretch
from walkit.log.examine.verdicts import Verdict
from walkit.log.scan import check_identity


@dataclass(kw_only=True, slots=True)
class _Found:
    """Facts about one segment that the manifest does not seal."""

    record: SegmentRecord
    present: bool = False
    file_bytes: int = 0
    nonzero_until: int = 0
    header: SegmentHeader | None = None
    error: WalkitError | None = None
    """Why its header cannot be trusted."""
    foreign: bool = False
    """Its header is whole, and that of another segment."""
    stretches: list[Stretch] = field(default_factory=list)
    follows: bool = False
    """Whether it begins where the intact log before it ends."""
    limit: int = 0
    """Position where its part of the log ends at the latest: where the next segment begins, or the file ends."""

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def start(self) -> int | None:
        return None if self.header is None else self.header.start_position


class UnsealedPart:
    """Examines all unsealed segments of a ledger's log, in order."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.end = ledger.manifest.end
        """Where the intact log ends so far."""
        self.broken: Verdict | None = None
        """What the first damage was: CORRUPT or TORN."""
        self.hole = 0
        """Where it began, if it was TORN."""
        self.keeps = ledger.manifest.ack_order == "completion"
        """Whether the next opening keeps what stands behind it, as a log in completion order needs (policy holes)."""
        self.unlocated: _Found | None = None
        """A used segment with a damaged header that nothing promised: it must not stand before frames that are kept."""

    def examine(self) -> None:
        """Look at every segment first, because a later frame may promise an earlier one; then judge."""
        ledger = self.ledger
        found = [self._look(record) for record in ledger.manifest.unsealed]
        for index, one in enumerate(found):
            if one.header is not None:
                self._survey(one, one.header, _next_start(found[index + 1 :], one.header.start_position))
        for index, one in enumerate(found):
            begun = len(ledger.ranges)
            if one.header is None:
                self._judge_headless(one, _next_start(found[index + 1 :], self.end.position))
            else:
                self._judge(one, one.header)
            used = one.header is not None or one.error is not None
            ledger.add_segment(
                one.record,
                "open" if used else "prepared",
                ledger.ranges[begun:],
                file_bytes=one.file_bytes,
                header=one.header,
                verdict=None if used else Verdict.UNUSED,
            )
        beside = (Verdict.UNUSED, Verdict.STALE, Verdict.TORN)
        told = max((r.end_position for r in ledger.ranges if r.verdict not in beside), default=0)
        if max(told, self.end.position) < ledger.promised:
            self._missing(found, max(told, self.end.position), ledger.promised)
        if not ledger.live:  # a living writer seals and shortens its files while they are looked at
            self._tell_cut_short(found)
        ledger.end = self.end

    # -- facts

    def _look(self, record: SegmentRecord) -> _Found:
        ledger = self.ledger
        found = _Found(record=record)
        block = b""
        try:
            file = ledger.storage.open(record.name, "read")
        except StorageError as error:
            if error.errno != errno.ENOENT:
                found.present, found.error = True, error
            return found
        found.present = True
        try:
            found.file_bytes = file.size()
            block = file.read(0, SEGMENT_HEADER_BYTES)
            if len(block) == SEGMENT_HEADER_BYTES and any(block):
                header = SegmentHeader.decode(block, record.name)
                check_identity(ledger.manifest, record, header)
                found.header = header
        except WalkitError as error:
            found.error = error
            found.foreign = isinstance(error, CorruptionError) and whole_header(block) is not None
        try:
            if found.header is None and not ledger.live:
                found.nonzero_until = nonzero_until(file, 0, found.file_bytes)
            if found.nonzero_until:
                promise = promise_without_header(file, ledger.manifest, record, found.nonzero_until)
                ledger.promised = max(ledger.promised, promise)
        except StorageError as error:
            found.error = found.error or error
        finally:
            file.close()
        return found

    def _survey(self, found: _Found, header: SegmentHeader, next_start: int | None) -> None:
        ledger = self.ledger
        room = found.file_bytes - SEGMENT_HEADER_BYTES
        file_end = header.start_position + room - room % header.alignment
        found.limit = file_end if next_start is None else min(file_end, next_start)
        stop = min(found.limit, ledger.promised) if ledger.live else found.limit
        span = FrameSpan(name=found.name, header=header, end_position=stop, bodies=True)
        try:
            file = ledger.storage.open(found.name, "read")
        except StorageError as error:
            found.header, found.error = None, error
            return
        try:
            found.stretches = list(ledger.survey(file, span))
        finally:
            file.close()

    # -- judgement

    def _judge(self, found: _Found, header: SegmentHeader) -> None:
        ledger = self.ledger
        in_progress = ledger.live and header.start_position >= ledger.promised
        found.follows = self.broken is None and self._follows(header)
        if self.broken is None and not in_progress and not self._follows(header):
            self._judge_break(found, header)
        for stretch in found.stretches:
            if not stretch.intact:
                self._judge_damage(found.name, stretch)
                continue
            torn = self.broken is Verdict.TORN
            reason = "intact frames behind what was never promised" if torn else ""
            if torn and self.keeps and stretch.end_position <= self.hole + header.window_bytes:
                torn, reason = False, "intact frames behind a hole, which the next opening keeps"
                self._refuse_unlocated()
            ledger.add_stretch(found.name, stretch, Verdict.TORN if torn else Verdict.INTACT, reason)
            if not torn:
                last = self.end.last_lsn if stretch.last_lsn is None else stretch.last_lsn
                self.end = LogEnd(last_lsn=last, position=stretch.end_position, chain=stretch.chain)
        file_end = header.start_position + found.file_bytes - SEGMENT_HEADER_BYTES
        if ledger.live:
            start = max(ledger.promised, header.start_position)
            if found.limit > start:
                reason = "beyond the durable position of the writer"
                ledger.add(found.name, start, found.limit, Verdict.IN_PROGRESS, reason)
        elif file_end > found.limit:
            file = ledger.storage.open(found.name, "read")
            try:
                ledger.add_behind(file, header, found.limit)
            finally:
                file.close()

    def _follows(self, header: SegmentHeader) -> bool:
        end = self.end
        return (header.previous_end, header.first_lsn, header.chain) == (
            end.position,
            end.last_lsn + 1,
            end.chain,
        )

    def _judge_break(self, found: _Found, header: SegmentHeader) -> None:
        """The frames before this segment are not there, or it was made for another past."""
        ledger, end = self.ledger, self.end
        if end.position >= ledger.promised:
            self.broken, self.hole = Verdict.TORN, end.position
            does = "keeps what is intact in it" if self.keeps else "sets it aside"
            ledger.notes.append(
                f"segment {found.name} does not follow where the log ends, and nothing of it was promised; "
                f"the next opening {does}"
            )
            return
        if end.position < header.previous_end:
            self._missing([found], end.position, min(header.previous_end, ledger.promised))
            return
        wanted = LogEnd(last_lsn=header.first_lsn - 1, position=header.previous_end, chain=header.chain)
        ledger.problem(
            CorruptionError(
                f"segment {found.name} does not follow where the log ends: it follows {wanted}, and there is {end}",
                segment=found.name,
                position=end.position,
                expected=str(end),
                found=str(wanted),
                first_lost_lsn=end.last_lsn + 1,
            )
        )
        self.broken = Verdict.CORRUPT

    def _judge_damage(self, name: str, stretch: Stretch) -> None:
        """Split damage where the promise ends: below it corruption, beyond it a torn tail or unused zeros.

        A newer format and a place that cannot be read are problems wherever they are, because the next opening refuses
        them; so is a frame with right checksums that cannot be decoded, because the next opening keeps it.
        """
        ledger = self.ledger
        promised = min(ledger.promised, stretch.end_position)
        if self.broken is Verdict.TORN:
            promised = stretch.start_position
        elif stretch.error is not None:
            promised = stretch.end_position
        if promised > stretch.start_position:
            ledger.fault(name, replace(stretch, end_position=promised))
            self.broken = Verdict.CORRUPT
        rest = replace(stretch, start_position=max(promised, stretch.start_position))
        if rest.start_position >= rest.end_position:
            return
        if rest.zeros:
            ledger.add_stretch(name, replace(rest, first_lsn=None, last_lsn=None), Verdict.UNUSED)
            return
        if self.broken is not Verdict.TORN:
            self.broken, self.hole = Verdict.TORN, rest.start_position
            does = "cuts it off and keeps it in lost+found"
            if self.keeps:
                does = "keeps what is intact behind it, and the rest in lost+found"
            ledger.notes.append(
                f"segment {name} has a torn tail at position {rest.start_position:,}: nothing promised it, so it is an "
                f"unfinished write, unless the device lost what it had synced; the next opening {does}"
            )
        ledger.add_stretch(name, rest, Verdict.TORN, (rest.fault or FrameFault.END).value)

    def _judge_headless(self, found: _Found, next_start: int | None) -> None:
        """A segment without a header that can be trusted: unused, being written just now, or damaged."""
        ledger, at = self.ledger, self.end.position
        refused = isinstance(found.error, FormatVersionError | StorageError)
        written = found.nonzero_until > 0 or found.error is not None
        if not found.present or not written or (ledger.live and not refused):
            return  # whatever was promised and is not there is told when all segments have been judged
        until = ledger.promised if next_start is None else min(ledger.promised, next_start)
        lost = until > at and self.broken is None
        if not lost and not refused:
            what = "it is another segment" if found.foreign else "its header is damaged"
            reason = f"{what}, and nothing of it was promised"
            ledger.add(
                found.name, at, at + max(found.nonzero_until - SEGMENT_HEADER_BYTES, 0), Verdict.TORN, reason
            )
            ledger.notes.append(f"segment {found.name}: {reason}; the next opening sets it aside")
            self.broken = self.broken or Verdict.TORN
            if isinstance(found.error, CorruptionError):
                self.unlocated = self.unlocated or found
            return
        error = found.error or CorruptionError(
            f"segment {found.name} has no header, and frames were promised up to position {ledger.promised:,}",
            segment=found.name,
            expected="a segment header",
            found="zeros",
            first_lost_lsn=self.end.last_lsn + 1,
        )
        ledger.problem(error, segment=found.name, position=at)
        verdict = Verdict.UNKNOWN if refused else Verdict.FOREIGN if found.foreign else Verdict.CORRUPT
        ledger.add(found.name, at, max(until, at), verdict, str(error), (self.end.last_lsn + 1, None))
        self.broken = Verdict.CORRUPT

    def _refuse_unlocated(self) -> None:
        """Tell of the damaged header before frames that would be kept: it was durable before they were written."""
        found, self.unlocated = self.unlocated, None
        if found is not None and found.error is not None:
            self.ledger.problem(found.error, segment=found.name, position=self.end.position)

    def _tell_cut_short(self, found: list[_Found]) -> None:
        """Tell of files that are shorter than what was reserved for them, where the log does not go on behind them."""
        going_on = max((i for i, f in enumerate(found) if f.follows), default=0)
        told = {problem.segment for problem in self.ledger.problems}
        for one in found[going_on:]:
            if one.name in told:
                continue
            reserved = one.record.reserved_bytes
            unused = one.header is None and one.error is None and one.file_bytes >= SEGMENT_HEADER_BYTES
            if not one.present or unused or one.file_bytes >= reserved or isinstance(one.error, StorageError):
                continue
            at = self.end.position
            error = SegmentMissingError(
                f"segment {one.name} was cut short: {one.file_bytes:,} bytes of the {reserved:,} that were reserved "
                f"for it; acknowledged records from LSN {self.end.last_lsn + 1:,} on may have stood in the rest",
                segment=one.name,
                position=at,
                expected=reserved,
                found=one.file_bytes,
                first_lost_lsn=self.end.last_lsn + 1,
            )
            self.ledger.problem(error)
            until = at + reserved - max(one.file_bytes, SEGMENT_HEADER_BYTES)
            lsns = (self.end.last_lsn + 1, None)
            self.ledger.add(one.name, at, until, Verdict.MISSING, str(error), lsns)

    def _missing(self, found: list[_Found], start: int, until: int) -> None:
        """Positions [start, until) were promised, and no file holds them; `found` are the candidates."""
        ledger, end = self.ledger, self.end
        absent = [f.name for f in found if not f.present]
        used = [f.name for f in found if f.header is not None]
        name = (*absent[:1], *used[-1:], "")[0]
        first_lost = end.last_lsn + 1 if start == end.position else None
        last_lost = ledger.mark.lsn if ledger.mark_known and until == ledger.mark.position else None
        error = SegmentMissingError(
            f"frames were promised up to position {ledger.promised:,}, and no file holds {start:,} to {until:,}"
            + ("" if first_lost is None else f": acknowledged data is missing from LSN {first_lost:,} on"),
            segment=name or None,
            position=start,
            expected=f"frames up to position {until}",
            found="no file" if absent else "the end of the file",
            first_lost_lsn=first_lost,
        )
        ledger.problem(error)
        ledger.add(name, start, until, Verdict.MISSING, str(error), (first_lost, last_lost))
        self.broken = Verdict.CORRUPT


def _next_start(later: list[_Found], position: int) -> int | None:
    """Return where the next segment with a header begins, at or after `position`."""
    return min((f.start for f in later if f.start is not None and f.start >= position), default=None)
