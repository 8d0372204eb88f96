"""A manifest made of the segments' own headers, for a log whose manifest is damaged or missing. Changes nothing.

A segment header has the segment's start and its predecessor, so the next header shows its end. Facts that
only the manifest had are set to promise too little rather than too much; `Rebuilt.doubts` names it.

The headers may tell more than one history. Two writers whose folders were mixed, or an old manifest that was put back
and written on, leave epochs that branch: they follow one record, and none follows the other. Each header names the
frame that its epoch follows, by position, LSN and chain, so the frames of an older epoch prove it or disprove it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise

from walkit.errors import CorruptionError, NotALogError, StorageError
from walkit.format.durable_slot import NOTHING_DURABLE, DurableSlot
from walkit.format.file_names import lsn_of_name
from walkit.format.frame import FrameHeader
from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    ALIGNMENT_DIRECT,
    FRAME_BYTES_LIMIT,
    LSN_LAST,
    SEGMENT_HEADER_BYTES,
    SEGMENT_NUMBER_MAX,
    SegmentFlag,
)
from walkit.format.manifest import EpochRecord, LogEnd, Manifest, SegmentRecord, SegmentState, sealed_record
from walkit.format.segment import SegmentHeader, segment_name
from walkit.recovery.log_scan import (
    follows_exactly,
    read_durable_slot,
    salvaged_segment,
    start_of,
    survey_salvaged,
)
from walkit.recovery.survey import (
    PASSING_ERRNOS,
    PROBE_BYTES,
    FrameSpan,
    Region,
    SegmentSurvey,
    TolerantFile,
    frame_headers,
)
from walkit.segments.history import header_of
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage


@dataclass(frozen=True, slots=True)
class EpochRun:
    """One epoch, as its segments tell it. They are in position order."""

    segments: tuple[SegmentHeader, ...]
    end: LogEnd
    """Where its last intact frame ends; the start of the epoch if it has none."""

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


def first_frame(storage: Storage, name: str, log_id: int | None = None) -> FrameHeader | None:
    """Return the first right frame header in a file, of this log or any: it names log and epoch. None without one."""
    try:
        file = TolerantFile(storage.open(name, "read"))
    except StorageError:
        return None
    try:
        until = min(file.size(), SEGMENT_HEADER_BYTES + PROBE_BYTES)
        for alignment in (ALIGNMENT_BUFFERED, ALIGNMENT_DIRECT):
            for _, frame in frame_headers(file, alignment, FRAME_BYTES_LIMIT, SEGMENT_HEADER_BYTES, until):
                if log_id in (None, frame.log_id):
                    return frame
        return None
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A manifest from the headers, and in words the facts that it cannot know."""

    manifest: Manifest
    doubts: tuple[str, ...]
    unaccounted_lsns: int
    """How many LSNs before the oldest segment are in no segment and no snapshot: trimmed or lost."""
    line: Lineage
    """The history that the manifest is made of."""
    branches: tuple[Lineage, ...]
    """The other histories that hold a record."""
    foreign_snapshots: frozenset[str]
    """Snapshots of other histories."""


def manifest_of(
    storage: Storage,
) -> tuple[Manifest, Rebuilt | None, CorruptionError | NotALogError | None]:
    """Return the manifest; if it is damaged or missing, one made from the segments' headers, and the damage."""
    try:
        return load_manifest(storage), None, None
    except (CorruptionError, NotALogError) as error:
        rebuilt = manifest_from_headers(storage)
        if rebuilt is None:
            raise
        return rebuilt.manifest, rebuilt, error


def refuse_without_log(storage: Storage) -> None:
    """Raise the error of `load_manifest` if neither a manifest nor a segment header can be read."""
    try:
        load_manifest(storage)
    except (CorruptionError, NotALogError):
        if not headers_of(storage)[0]:
            raise


def manifest_from_headers(storage: Storage) -> Rebuilt | None:
    """Return a manifest from the segments' own headers; None if no segment of walkit's has a whole header.

    Of several histories it is the one that `lineages_of` puts first. The segments at its front that are whole up to
    where the next one begins are sealed there, and compacted ones also damaged, since they were whole before they
    became the log; the others are left to recovery's judgement. Of originals and the compacted segment that has taken
    their place, one is the log.
    """
    headers, headless = headers_of(storage)
    if not headers:
        return None
    slot = read_durable_slot(storage)
    promised = slot.promise.generation
    line, *others = lineages_of(storage, headers, slot)
    log_id, branches = line.tip.log_id, [o for o in others if o.records_beside(line)]
    ours = _without_orphans(storage, line.headers)
    if not ours:
        return None
    by_frames = {n: f for n in headless if (f := first_frame(storage, segment_name(n), log_id)) is not None}
    elsewhere = {run.id for other in others for run in other.runs} - {run.id for run in line.runs}
    headless = [n for n in headless if n not in by_frames or by_frames[n].epoch_id not in elsewhere]
    by_frames = {n: by_frames[n] for n in headless if n in by_frames}
    if slot.epoch_id in elsewhere:
        slot = NOTHING_DURABLE
    begin = _begin_of(storage, ours, headless, by_frames, slot)
    sealed, end = _sealed_front(storage, ours, begin)
    lineage = _lineage_of(ours, end, slot, by_frames)
    done = {s.number for s in sealed}
    epochs = {h.number: h for h in ours if h.number not in done}
    known: dict[int, SegmentHeader | FrameHeader] = {**by_frames, **epochs}
    unsealed = [
        SegmentRecord(
            number=number,
            state=SegmentState.PREPARED,
            epoch=known[number].epoch if number in known else _epoch_near(ours, lineage, number),
            created_us=epochs[number].created_us if number in epochs else 0,
        )
        for number in sorted((*epochs, *headless))
    ]
    foreign = foreign_snapshots(storage, line, others)
    named = [n for n in storage.names() if n not in foreign]
    snapshots = [lsn for n in named if (lsn := lsn_of_name(n)) is not None and lsn <= LSN_LAST]
    compacted = max((s.last_lsn for s in sealed if s.flags & SegmentFlag.COMPACTED), default=0)
    completion = any(h.flags & SegmentFlag.COMPLETION_ORDER for h in ours)
    manifest = Manifest(
        log_id=log_id,
        generation=max([promised, *(h.manifest_generation for h in headers)]),
        created_us=ours[0].created_us,
        ack_order="completion" if completion else "append",
        lineage=lineage,
        segments=(*sealed, *unsealed),
        next_segment=max([h.number for h in headers] + headless) + 1,
        end=end,
        low_watermark=begin.last_lsn,
        checkpoint_lsn=max(snapshots, default=0),
        exact_from_lsn=max(begin.last_lsn + 1, end.last_lsn if compacted else 1),
        tombstones_from_lsn=min([compacted, *snapshots]) + 1 if compacted else 1,
    )
    # A checkpoint trims up to its snapshot, so a state with that snapshot does not need the records in it.
    unaccounted = 0 if manifest.checkpoint_lsn >= begin.last_lsn else begin.last_lsn
    doubts = tuple(_doubts(manifest, compacted, unaccounted))
    return Rebuilt(manifest, doubts, unaccounted, line, tuple(branches), frozenset(foreign))


def foreign_snapshots(storage: Storage, line: Lineage, others: Iterable[Lineage]) -> set[str]:
    """Return the snapshots whose frames name another log than this history's, or a record of another history alone."""
    found = set()
    for name in storage.names():
        lsn = lsn_of_name(name)
        frame = None if lsn is None else first_frame(storage, name)
        if lsn is None or frame is None:
            continue
        other = any(o.holds(frame.epoch_id, lsn) for o in others) and not line.holds(frame.epoch_id, lsn)
        if frame.log_id != line.tip.log_id or other:
            found.add(name)
    return found


def _without_orphans(storage: Storage, ours: list[SegmentHeader]) -> list[SegmentHeader]:
    """Drop the remains of a compaction: the originals of a whole compacted segment, or a partial one beside them."""
    left = list(ours)
    for header in sorted(ours, key=lambda h: -h.number):
        if not header.flags & SegmentFlag.COMPACTED or header not in left:
            continue
        held = _frames_of(storage, header, None)
        end = start_of(header) if held is None else held.after
        covered = [h for h in left if h is not header and header.first_lsn <= h.first_lsn <= end.last_lsn]
        whole = held is not None and header.own_end_chain in (0, end.chain)
        if whole:
            left = [h for h in left if h not in covered]
        elif any(h.first_lsn == header.first_lsn for h in covered):
            left.remove(header)
    return left


def _begin_of(
    storage: Storage,
    ours: list[SegmentHeader],
    headless: list[int],
    by_frames: dict[int, FrameHeader],
    slot: DurableSlot,
) -> LogEnd:
    """Return the predecessor of the log's first frame. A segment without a header may be the first, by its frames."""
    first = ours[0]
    begin = LogEnd(last_lsn=first.first_lsn - 1, position=first.previous_end, chain=first.chain)
    epochs = _lineage_of(ours, begin, slot, by_frames)
    stand_in = Manifest(log_id=first.log_id, lineage=epochs)
    for number in headless:
        if number > first.number:
            break
        for epoch in epochs:
            record = SegmentRecord(number=number, state=SegmentState.PREPARED, epoch=epoch.number)
            finding = salvaged_segment(storage, stand_in, record)
            start = 0
            if finding.header is not None:
                start = finding.header.start_position
                survey_salvaged(storage, stand_in, finding, None)
            frame = next((r.before for r in finding.regions if r.intact), None)
            if frame is not None and start < begin.position:
                whole = frame.position == start
                last_lsn = frame.last_lsn if whole or start else 0
                begin = LogEnd(last_lsn=last_lsn, position=start, chain=frame.chain if whole else 0)
            elif number == 1 and finding.nonzero_until:
                begin = LogEnd()  # every log starts with segment 1, at position 0
    return begin


def _sealed_front(
    storage: Storage, ours: list[SegmentHeader], end: LogEnd
) -> tuple[list[SegmentRecord], LogEnd]:
    """Return the segments at the front that end where the next one begins, and where the last of them ends."""
    sealed: list[SegmentRecord] = []
    for header, following in pairwise(ours):
        if not follows_exactly(header, end) or following.previous_end <= header.start_position:
            break
        try:
            held = _frames_of(storage, header, following)
        except StorageError:
            break
        compacted = bool(header.flags & SegmentFlag.COMPACTED)
        until = replace(start_of(following), position=following.previous_end)
        if compacted and header.end_chain != following.chain:
            # One between them has no header: this one ends where its own frames do.
            held = _frames_of(storage, header, None)
            if held is None or header.own_end_chain not in (0, held.after.chain):
                break
            until = replace(held.after, chain=header.end_chain)
        elif not compacted and (held is None or held.after != until):
            break
        end = until
        frames, records = (0, 0) if held is None else (held.frames, held.records)
        sealed.append(sealed_record(header, end, records=records, frames=frames))
    return sealed, end


def _frames_of(storage: Storage, header: SegmentHeader, following: SegmentHeader | None) -> Region | None:
    """Return the intact frames at the start of a segment, up to where the next one begins or its file ends."""
    until = last_chain = None
    if following is not None:
        until = following.previous_end
        compacted = header.flags & SegmentFlag.COMPACTED
        last_chain = (header.own_end_chain or None) if compacted else following.chain
    with closing(regions_of(storage, header, until, last_chain)) as regions:
        first = next(regions, None)
    return first if first is not None and first.intact else None


def _lineage_of(
    ours: list[SegmentHeader], end: LogEnd, slot: DurableSlot, by_frames: dict[int, FrameHeader]
) -> tuple[EpochRecord, ...]:
    """Return each epoch as its oldest segment says; without headers, as a frame or the slot says."""
    lineage: dict[int, EpochRecord] = {}

    def begins(number: int, epoch_id: int, at: LogEnd) -> None:
        began = {"first_lsn": at.last_lsn + 1, "position": at.position, "chain": at.chain}
        lineage.setdefault(number, EpochRecord(number=number, id=epoch_id, **began))

    for h in ours:
        begins(h.epoch, h.epoch_id, _follows(h))
    for f in by_frames.values():
        begins(f.epoch, f.epoch_id, LogEnd(last_lsn=f.first_lsn - 1, position=f.position, chain=f.chain))
    if slot.generation and slot.epoch > max(lineage):
        begins(slot.epoch, slot.epoch_id, end)
    return tuple(lineage[number] for number in sorted(lineage))


def _epoch_near(ours: list[SegmentHeader], lineage: tuple[EpochRecord, ...], number: int) -> int:
    """Return the epoch that a segment without a header most likely is of: that of the next newer one, else the last."""
    newer = [h for h in ours if h.number > number and not h.flags & SegmentFlag.COMPACTED]
    return min(newer, key=lambda h: h.number).epoch if newer else lineage[-1].number


def _doubts(manifest: Manifest, compacted_lsn: int, unaccounted_lsns: int) -> list[str]:
    doubts = []
    if unaccounted_lsns:
        doubts.append(
            f"LSN 1 to {unaccounted_lsns:,} are in no segment and no snapshot: they were trimmed, or their segments "
            "are missing, and only the manifest knew which"
        )
    if manifest.unsealed:
        doubts.append(
            "how much space was reserved for the segments in use is not known, so that a file which was cut short "
            "looks like a torn tail"
        )
    if manifest.low_watermark:
        doubts.append(
            f"the low watermark is LSN {manifest.low_watermark:,}, just below the oldest segment; epochs whose "
            "segments were all dropped are not in the lineage, so that a replica from then may be refused"
        )
    if compacted_lsn:
        doubts.append(
            "how far compaction had made history inexact is not known: only the newest state counts as exact"
        )
    if manifest.ack_order == "completion":
        doubts.append("a hole that an earlier opening had kept looks like a loss")
    return doubts


def completed(manifest: Manifest) -> Manifest:
    """Return a rebuilt manifest after its plan: with the facts that only the plan has.

    After a compaction only the last state is exact; an epoch may start with a segment whose header was rebuilt.
    """
    lineage = []
    for epoch in manifest.lineage:
        oldest = next((s for s in manifest.sealed if s.epoch == epoch.number), None)
        if oldest is None or oldest.start_position >= epoch.position:
            lineage.append(epoch)
            continue
        began = {
            "first_lsn": oldest.first_lsn,
            "position": oldest.start_position,
            "chain": oldest.start_chain,
        }
        lineage.append(replace(epoch, **began))
    compacted = any(s.flags & SegmentFlag.COMPACTED for s in manifest.sealed)
    exact = max(manifest.exact_from_lsn, manifest.end.last_lsn if compacted else 0)
    return replace(manifest, lineage=tuple(lineage), exact_from_lsn=exact)
