"""A manifest made of the segments' own headers, for a log whose manifest is damaged or missing. Changes nothing.

A segment header says where the segment begins and what it follows, so the next header says where it ends. What only
the manifest knew is set so that it promises too little rather than too much; `Rebuilt.doubts` names it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from walkit.errors import CorruptionError, FormatVersionError, StorageError, WalkitError
from walkit.format.durable import DurableMark
from walkit.format.frame import check_header
from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    ALIGNMENT_DIRECT,
    FRAME_BYTES_LIMIT,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    SegmentFlag,
)
from walkit.format.manifest import EpochRecord, LogEnd, Manifest, SegmentRecord, SegmentState, sealed_record
from walkit.format.names import lsn_of_name
from walkit.format.segment import SegmentHeader, segment_name
from walkit.log.behind import PROBE_BYTES, follows_exactly
from walkit.log.patient import PatientFile
from walkit.log.scan import header_of, read_mark
from walkit.log.walk import FrameWalk
from walkit.log.wreck import look_at, survey
from walkit.storage.base import Storage

_MAGIC = FRAME_MAGIC.to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A manifest from the headers, and in words what it cannot know."""

    manifest: Manifest
    doubts: tuple[str, ...]
    unaccounted_lsns: int = 0
    """How many LSNs before the oldest segment stand in none, and in no snapshot: trimmed or lost, nothing tells."""


def manifest_from_headers(storage: Storage) -> Rebuilt | None:
    """Return what the segments' own headers tell; None where there is no segment of walkit's with a whole header.

    The segments at the front of the log that are whole up to where the next one begins are sealed there, and compacted
    ones also damaged, since they were whole before they became the log; the others are left to recovery's judgement.
    Originals and the compacted segment that has taken their place are told apart: one of both is the log.
    """
    headers, headless = _headers_of(storage)
    if not headers:
        return None
    ids = [h.log_id for h in headers]
    log_id = max(ids, key=ids.count)
    ours = _without_leftovers(storage, [h for h in headers if h.log_id == log_id])
    if not ours:
        return None
    by_frames = {n: e for n in headless if (e := _epoch_by_frames(storage, n, log_id)) is not None}
    begin = _begin_of(storage, ours, headless, by_frames)
    sealed, end = _sealed_front(storage, ours, begin)
    lineage = _lineage_of(ours, end, read_mark(storage), by_frames)
    done = {s.number for s in sealed}
    epochs = {h.number: h for h in ours if h.number not in done}
    unsealed = [
        SegmentRecord(
            number=number,
            state=SegmentState.PREPARED,
            epoch=_epoch_number(epochs.get(number) or by_frames.get(number))
            or _epoch_near(ours, lineage, number),
            created_us=epochs[number].created_us if number in epochs else 0,
        )
        for number in sorted((*epochs, *headless))
    ]
    first = ours[0]
    snapshots = [lsn for n in storage.names() if (lsn := lsn_of_name(n)) is not None]
    compacted = max((s.last_lsn for s in sealed if s.flags & SegmentFlag.COMPACTED), default=0)
    completion = any(h.flags & SegmentFlag.COMPLETION_ORDER for h in ours)
    manifest = Manifest(
        log_id=log_id,
        created_us=first.created_us,
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
    # A checkpoint trims up to its snapshot, so that one is no worse off without the records that it holds.
    unaccounted = 0 if manifest.checkpoint_lsn >= begin.last_lsn else begin.last_lsn
    return Rebuilt(manifest, tuple(_doubts(manifest, compacted, unaccounted)), unaccounted)


def _headers_of(storage: Storage) -> tuple[list[SegmentHeader], list[int]]:
    """Return the whole headers by place, and the numbers of the segment files that have none."""
    headers: list[SegmentHeader] = []
    headless: list[int] = []
    for name in storage.names():
        digits = name.removesuffix(".segment")
        if not digits.isdecimal() or name != segment_name(int(digits)):
            continue
        try:
            header = header_of(storage, name)
        except (CorruptionError, StorageError):
            header = None
        if header is None:
            headless.append(int(digits))
        else:
            headers.append(header)
    return sorted(headers, key=lambda h: (h.start_position, h.number)), headless


def _without_leftovers(storage: Storage, ours: list[SegmentHeader]) -> list[SegmentHeader]:
    """Drop what compaction left: the originals of a whole compacted segment, or one that is not whole beside them."""
    left = list(ours)
    for header in sorted(ours, key=lambda h: -h.number):
        if not header.flags & SegmentFlag.COMPACTED or header not in left:
            continue
        walk = _walk(storage, header, None)
        last_lsn = (walk.next_lsn or 1) - 1
        covered = [h for h in left if h is not header and header.first_lsn <= h.first_lsn <= last_lsn]
        whole = walk.frames > 0 and header.own_end_chain in (0, walk.chain)
        if whole:
            left = [h for h in left if h not in covered]
        elif any(h.first_lsn == header.first_lsn for h in covered):
            left.remove(header)
    return left


def _begin_of(
    storage: Storage, ours: list[SegmentHeader], headless: list[int], by_frames: dict[int, EpochRecord]
) -> LogEnd:
    """Return what the first frame of the log follows. A segment without a header may be the first: its frames tell."""
    first = ours[0]
    begin = LogEnd(last_lsn=first.first_lsn - 1, position=first.previous_end, chain=first.chain)
    epochs = _lineage_of(ours, begin, read_mark(storage), by_frames)
    stand_in = Manifest(log_id=first.log_id, lineage=epochs)
    for number in headless:
        if number > first.number:
            break
        for epoch in epochs:
            record = SegmentRecord(number=number, state=SegmentState.PREPARED, epoch=epoch.number)
            wreck = look_at(storage, stand_in, record)
            survey(storage, stand_in, wreck, None)
            frame = next((s.first for s in wreck.stretches if s.first is not None), None)
            if frame is not None and wreck.start < begin.position:
                whole = frame.position == wreck.start
                last_lsn = frame.first_lsn - 1 if whole or wreck.start else 0
                begin = LogEnd(last_lsn=last_lsn, position=wreck.start, chain=frame.chain if whole else 0)
            elif number == 1 and wreck.finding.nonzero_until:
                begin = LogEnd()  # every log begins with segment 1, at position 0
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
            walk = _walk(storage, header, following)
        except WalkitError:
            break
        ends = (walk.next_lsn, walk.end_chain) == (following.first_lsn, following.chain)
        until = LogEnd(
            last_lsn=following.first_lsn - 1, position=following.previous_end, chain=following.chain
        )
        if header.flags & SegmentFlag.COMPACTED and header.end_chain != following.chain:
            # One between them has no header: this one ends where its own frames do.
            walk = _walk(storage, header, None)
            if not walk.frames or header.own_end_chain not in (0, walk.chain):
                break
            until = LogEnd(last_lsn=(walk.next_lsn or 1) - 1, position=walk.position, chain=header.end_chain)
        elif not (walk.fault is None and ends) and not header.flags & SegmentFlag.COMPACTED:
            break
        end = until
        sealed.append(sealed_record(header, end, records=walk.records, frames=walk.frames))
    return sealed, end


def _walk(storage: Storage, header: SegmentHeader, following: SegmentHeader | None) -> FrameWalk:
    """Walk a segment's frames up to where the next one begins, or to the end of its file."""
    file = PatientFile(storage.open(header.name, "read"))
    try:
        room = max(file.size() - SEGMENT_HEADER_BYTES, 0)
        until = header.start_position + room - room % header.alignment
        last_chain = None
        if following is not None:
            until = following.previous_end
            compacted = header.flags & SegmentFlag.COMPACTED
            last_chain = (header.own_end_chain or None) if compacted else following.chain
        walk = FrameWalk(
            file,
            header,
            position=header.start_position,
            end_position=until,
            next_lsn=header.first_lsn,
            chain=header.chain,
            last_chain=last_chain,
        )
        for _ in walk:
            pass
        return walk
    finally:
        file.close()


def _lineage_of(
    ours: list[SegmentHeader], end: LogEnd, mark: DurableMark, by_frames: dict[int, EpochRecord]
) -> tuple[EpochRecord, ...]:
    """Return each epoch as its oldest segment tells it; of one whose headers are gone, as a frame or the cell does."""
    lineage: dict[int, EpochRecord] = {}
    for h in ours:
        began = {"first_lsn": h.first_lsn, "position": h.previous_end, "chain": h.chain}
        lineage.setdefault(h.epoch, EpochRecord(number=h.epoch, id=h.epoch_id, **began))
    for epoch in by_frames.values():
        lineage.setdefault(epoch.number, epoch)
    if mark.turn and mark.epoch > max(lineage):
        lineage[mark.epoch] = EpochRecord(
            number=mark.epoch,
            id=mark.epoch_id,
            first_lsn=end.last_lsn + 1,
            position=end.position,
            chain=end.chain,
        )
    return tuple(lineage[number] for number in sorted(lineage))


def _epoch_by_frames(storage: Storage, number: int, log_id: int) -> EpochRecord | None:
    """Return the epoch that the first intact frame header of a segment without a header names; None without one."""
    try:
        file = PatientFile(storage.open(segment_name(number), "read"))
    except StorageError:
        return None
    try:
        block = file.read(SEGMENT_HEADER_BYTES, PROBE_BYTES)
    finally:
        file.close()
    for alignment in (ALIGNMENT_BUFFERED, ALIGNMENT_DIRECT):
        for at in range(0, len(block) - FRAME_HEADER_BYTES + 1, alignment):
            if block[at : at + 4] != _MAGIC:
                continue
            try:
                frame, fault = check_header(block, at, alignment, FRAME_BYTES_LIMIT)
            except FormatVersionError:
                continue
            if frame is not None and fault is None and frame.log_id == log_id:
                return EpochRecord(
                    number=frame.epoch,
                    id=frame.epoch_id,
                    first_lsn=frame.first_lsn,
                    position=frame.position,
                    chain=frame.chain,
                )
    return None


def _epoch_number(known: SegmentHeader | EpochRecord | None) -> int:
    if known is None:
        return 0
    return known.epoch if isinstance(known, SegmentHeader) else known.number


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
    doubts.append("holds of readers and replicas are forgotten; who is connected renews its own")
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
            "how far compaction had made history inexact is not known: only the newest state is told as exact"
        )
    if manifest.ack_order == "completion":
        doubts.append("a hole that an earlier opening had kept cannot be told from a loss")
    return doubts


def completed(manifest: Manifest) -> Manifest:
    """Return a rebuilt manifest after its plan: with what only the plan could tell.

    After a compaction only the last state is exact; an epoch may begin with a segment whose header was made anew.
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
