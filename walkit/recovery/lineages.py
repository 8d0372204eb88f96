"""Which histories the segment headers of a folder tell, and which of them is the log. Changes nothing.

Two writers whose folders were mixed, or an old manifest that was put back and written on, leave epochs that branch:
they follow one record, and none follows the other. Each header names the frame that its epoch follows, by position,
LSN and chain, so the frames of an older epoch prove it or disprove it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from walkit.errors import CorruptionError, StorageError
from walkit.format.durable_slot import DurableSlot
from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    ALIGNMENT_DIRECT,
    FRAME_BYTES_LIMIT,
    SEGMENT_HEADER_BYTES,
    SEGMENT_NUMBER_MAX,
    SegmentFlag,
)
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.format.segment import SegmentHeader, segment_name
from walkit.recovery.findings import start_of
from walkit.recovery.probe import PROBE_BYTES, frame_headers
from walkit.recovery.survey import FrameSpan, Region, SegmentSurvey
from walkit.recovery.tolerant_file import PASSING_ERRNOS, TolerantFile
from walkit.segments.identity import header_of
from walkit.storage.interface import Storage


@dataclass(frozen=True, slots=True)
class EpochRun:
    """One epoch, as its segments tell it. They are in position order."""

    segments: tuple[SegmentHeader, ...]
    end: LogEnd
    """Where its last intact frame ends; where the epoch begins if it has none."""

    @property
    def log_id(self) -> int:
        """Of which log it is."""
        return self.segments[0].log_id

    @property
    def number(self) -> int:
        """The epoch's number."""
        return self.segments[0].epoch

    @property
    def id(self) -> int:
        """The epoch's identity: two writers may give one number."""
        return self.segments[0].epoch_id

    @property
    def begin(self) -> LogEnd:
        """The end of the frame that its first one follows."""
        return _follows(self.segments[0])


@dataclass(frozen=True, slots=True)
class Lineage:
    """One history: epochs, oldest first, of which each follows a frame of the one before."""

    runs: tuple[EpochRun, ...]

    @property
    def tip(self) -> EpochRun:
        """The newest epoch."""
        return self.runs[-1]

    @property
    def end(self) -> LogEnd:
        """Where the last intact frame ends."""
        return self.tip.end

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that its segments may hold."""
        return self.runs[0].segments[0].first_lsn

    @property
    def headers(self) -> list[SegmentHeader]:
        """Its segments, in position order."""
        return sorted((h for h, _ in self.parts()), key=_place)

    def parts(self) -> Iterator[tuple[SegmentHeader, int | None]]:
        """Yield each segment, and the position from which on it is another history's, or None."""
        for run, child in pairwise((*self.runs, None)):
            assert run is not None
            fork = None if child is None or run.end.position <= child.begin.position else child.begin.position
            for header in run.segments:
                if fork is None or header.start_position < fork:
                    yield header, fork

    def holds(self, epoch_id: int, lsn: int) -> bool:
        """Say whether the record at this LSN, written in this epoch, is one of this history."""
        for run, child in pairwise((*self.runs, None)):
            if run is not None and run.id == epoch_id:
                return child is None or lsn <= child.begin.last_lsn
        return False

    def shared_lsn(self, other: Lineage) -> int:
        """Return the last LSN that both histories have, or 0."""
        ours = [run.id for run in self.runs]
        common = [i for i, run in enumerate(other.runs) if run.id in ours]
        if not common:
            return 0
        ends = []
        for line in (self, other):
            at = [run.id for run in line.runs].index(other.runs[common[-1]].id)
            ends.append(line.runs[at + 1].begin if at + 1 < len(line.runs) else line.runs[at].end)
        return min(end.last_lsn for end in ends)

    def records_beside(self, other: Lineage) -> bool:
        """Say whether it has a record that the other history does not have."""
        return self.end.last_lsn > max(self.shared_lsn(other), self.first_lsn - 1)


def headers_of(storage: Storage) -> tuple[list[SegmentHeader], list[int]]:
    """Return the whole headers by place, and the numbers of the segment files that have none."""
    headers: list[SegmentHeader] = []
    headless: list[int] = []
    for name in storage.names():
        digits = name.removesuffix(".segment")
        if not digits.isdecimal() or name != segment_name(int(digits)):
            continue
        if int(digits) > SEGMENT_NUMBER_MAX:  # no writer gives it: a stray file, as any other
            continue
        try:
            header = header_of(storage, name)
        except CorruptionError:
            header = None
        except StorageError as error:
            if error.errno in PASSING_ERRNOS:
                raise  # it says nothing of the file
            header = None
        if header is None:
            headless.append(int(digits))
        else:
            headers.append(header)
    return sorted(headers, key=_place), headless


def log_id_of(headers: list[SegmentHeader], slot: DurableSlot) -> int:
    """Return of which log a folder is: the one that its durable slot names, else the one of most segments."""
    for header in headers:
        if slot.generation and header.epoch_id == slot.epoch_id:
            return header.log_id
    ids = [h.log_id for h in headers]
    return max(ids, key=ids.count)


def lineages_of(storage: Storage, headers: list[SegmentHeader], slot: DurableSlot) -> list[Lineage]:
    """Return the histories that these headers tell, of all logs. The first is the log that a rebuild follows.

    It belongs to the log whose folder this is, and has the highest end that intact frames prove.
    """
    by_epoch: dict[tuple[int, int, int], list[SegmentHeader]] = {}
    for header in headers:
        by_epoch.setdefault((header.log_id, header.epoch, header.epoch_id), []).append(header)
    runs = [_run_of(storage, sorted(h, key=_place)) for h in by_epoch.values()]
    parents = {run: _parent(storage, run, runs) for run in runs}
    lines = []
    for run in runs:
        children = [child for child, parent in parents.items() if parent is run]
        ahead = max((c.begin for c in children), key=lambda e: e.position, default=None)
        # An epoch with frames after the last point that another one follows was continued by another writer.
        if ahead is None or (run.end.position > ahead.position and run.end.last_lsn > ahead.last_lsn):
            lines.append(Lineage(tuple(reversed(list(_upwards(run, parents))))))
    log_id = log_id_of(headers, slot)

    def rank(line: Lineage) -> tuple[bool, int, int, int]:
        return line.tip.log_id == log_id, line.end.last_lsn, line.end.position, line.tip.number

    return sorted(lines, key=rank, reverse=True)


def _place(header: SegmentHeader) -> tuple[int, int]:
    return header.start_position, header.number


def _follows(header: SegmentHeader) -> LogEnd:
    return replace(start_of(header), position=header.previous_end)


def _upwards(run: EpochRun, parents: dict[EpochRun, EpochRun | None]) -> Iterator[EpochRun]:
    above: EpochRun | None = run
    while above is not None:
        yield above
        above = parents[above]


def _run_of(storage: Storage, segments: list[SegmentHeader]) -> EpochRun:
    end = _follows(segments[0])
    for header in reversed(segments):
        held = [r.after for r in regions_of(storage, header, None) if r.intact]
        if held:
            end = held[-1]
            break
    return EpochRun(tuple(segments), end)


def _parent(storage: Storage, run: EpochRun, runs: Iterable[EpochRun]) -> EpochRun | None:
    """Return the epoch that this one follows: one whose frames prove it, else one that does not disprove it."""
    best, most = None, (False, -1, -1)
    for other in runs:
        if other.log_id != run.log_id or other.number >= run.number:
            continue
        proved = _holds(storage, other, run.begin)
        rank = (proved is True, other.begin.position, other.number)
        if proved is not False and rank > most:
            best, most = other, rank
    return best


def _holds(storage: Storage, run: EpochRun, point: LogEnd) -> bool | None:
    """Say whether a frame of this epoch ends at this point; None if damage or missing frames leave it open."""
    if point.position <= run.begin.position:
        return point == run.begin and run.end.position == run.begin.position
    around = [s for s in run.segments if s.start_position < point.position]
    if not around:
        return None
    segment = around[-1]
    if segment.flags & SegmentFlag.COMPACTED:
        return True if segment.end_chain == point.chain else None
    ends = [r.after for r in regions_of(storage, segment, point.position) if r.intact]
    if ends and ends[-1].position == point.position:
        return ends[-1] == point
    if run.end.position <= point.position:
        return None
    whole = (r for r in regions_of(storage, segment, None) if r.intact)
    crossed = any(r.start_position < point.position < r.end_position for r in whole)
    return False if crossed else None


def regions_of(
    storage: Storage,
    header: SegmentHeader,
    until: int | None,
    last_chain: int | None = None,
    begin: LogEnd | None = None,
) -> Generator[Region, None, None]:
    """Yield the regions of a segment from `begin` or its start up to position `until` or the end of its file."""
    file = TolerantFile(storage.open(header.name, "read"))
    try:
        room = max(file.size() - SEGMENT_HEADER_BYTES, 0)
        span = FrameSpan(
            name=header.name,
            header=header,
            begin=begin or start_of(header),
            end_position=header.start_position + room - room % header.alignment if until is None else until,
            last_chain=last_chain,
        )
        yield from SegmentSurvey(file, span)
    finally:
        file.close()


def epoch_by_frames(storage: Storage, name: str, log_id: int | None = None) -> tuple[int, EpochRecord] | None:
    """Return log id and epoch of the first right frame header in a file, of this log or any; None without one."""
    try:
        file = TolerantFile(storage.open(name, "read"))
    except StorageError:
        return None
    try:
        until = min(file.size(), SEGMENT_HEADER_BYTES + PROBE_BYTES)
        for alignment in (ALIGNMENT_BUFFERED, ALIGNMENT_DIRECT):
            found = frame_headers(file, alignment, FRAME_BYTES_LIMIT, SEGMENT_HEADER_BYTES, until)
            frame = next((frame for _, frame in found if log_id in (None, frame.log_id)), None)
            if frame is not None:
                return frame.log_id, EpochRecord(
                    number=frame.epoch,
                    id=frame.epoch_id,
                    first_lsn=frame.first_lsn,
                    position=frame.position,
                    chain=frame.chain,
                )
        return None
    finally:
        file.close()
