"""Rewriting segments: the records that are kept, in sparse frames, as one new segment file (FORMAT.md F-6).

The new segment ends at the position where the old ones ended, so that everything after it stays as it is. Where it
begins is known only when all its frames are; so the bodies are written first, at file offsets that do not depend on
it, then the headers of the frames, then the header of the segment. Memory holds one frame.

Records are kept by the reconciliation rule, asked of every record of the segments that are rewritten. A record is
superseded by a newer one of its key. A tombstone that is the newest of its key goes once every snapshot is newer, and
no older record of its key is left in the log. Records without a key are events, and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walkit.format.body import Columns, DecodedColumns, to_arrow
from walkit.format.frame import (
    FrameHeader,
    FrameIdentity,
    PreparedBody,
    decode_frame,
    prepare_body,
    seal_frame,
)
from walkit.format.layout import (
    CODEC_ZSTD,
    FRAME_HEADER_BYTES,
    HAS_TIMESTAMP,
    JOINED,
    RECORDS_PER_FRAME_MAX,
    SEGMENT_HEADER_BYTES,
    ZEROS,
    SegmentFlag,
)
from walkit.format.manifest import LogEnd, SegmentRecord, sealed_record
from walkit.format.segment import SegmentHeader
from walkit.read.view import View
from walkit.segments.rewrite import NewSegment
from walkit.state.reconcile import DELETE, reconcile_arrow
from walkit.storage.interface import StorageFile


class KeyMap:
    """The facts on each key: its newest record in the segments to rewrite, and its first one after them.

    Memory grows with the number of keys: about as the keyed table of a store does, without its values.
    """

    def __init__(self) -> None:
        self.newest: dict[bytes, int] = {}
        self.later: dict[bytes, int] = {}
        self.tombstones: dict[bytes, int] = {}
        """The keys whose newest record in the segments is a tombstone, and its LSN."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in records of the segments to rewrite, in LSN order."""
        winners = reconcile_arrow(batch)
        keys, lsns = winners.column("key").to_pylist(), winners.column("lsn").to_pylist()
        self.newest.update(zip(keys, lsns, strict=True))
        deleted = pc.equal(winners.column("kind"), DELETE)
        if self.tombstones:
            for key in keys:
                self.tombstones.pop(key, None)
        gone = winners.filter(deleted)
        self.tombstones.update(
            zip(gone.column("key").to_pylist(), gone.column("lsn").to_pylist(), strict=True)
        )

    def add_later(self, batch: pa.RecordBatch) -> None:
        """Add records after the segments to rewrite, in LSN order."""
        keys, lsns = batch.column("key").to_pylist(), batch.column("lsn").to_pylist()
        keys.reverse()
        lsns.reverse()
        for key, lsn in dict(zip(keys, lsns, strict=True)).items():
            if key in self.newest and key not in self.later:
                self.later[key] = lsn

    def is_superseded(self, key: bytes, lsn: int) -> bool:
        """Say whether a newer record of its key is known."""
        return lsn != self.newest[key] or key in self.later

    def kept_lsns(self, horizon_lsn: int) -> list[int]:
        """Return the LSNs of the keyed records that are kept, in order, if all that can go goes."""
        gone = self.later.keys() | {k for k, lsn in self.tombstones.items() if lsn <= horizon_lsn}
        return sorted(lsn for key, lsn in self.newest.items() if key not in gone)


@dataclass(slots=True)
class Selection:
    """Selects the records of one group, and notes the effect on history."""

    keys: KeyMap
    low_watermark: int
    horizon_lsn: int
    """Tombstones up to here may go."""
    blocked: frozenset[bytes] = frozenset()
    """Keys of which a superseded record is left in the log: their tombstones stay."""
    exact_from_lsn: int = 1
    """From here on states can still be restored without the dropped records."""
    tombstones_from_lsn: int = 1
    """Below, a tombstone has been dropped."""
    tombstones: int = 0
    superseded: set[bytes] = field(default_factory=set)
    """Keys of which a record was dropped that a newer one supersedes."""

    def keep_all(self) -> None:
        """Note that nothing was dropped after all; `superseded` stays, as those records are left in the log."""
        self.exact_from_lsn = self.tombstones_from_lsn = 1
        self.tombstones = 0

    def keeps(self, key: bytes | None, lsn: int, kind: int) -> bool:
        """Say whether a record is kept."""
        if lsn <= self.low_watermark:
            return False
        if key is None:
            return True
        if self.keys.is_superseded(key, lsn):
            newest, later = self.keys.newest[key], self.keys.later.get(key)
            self.exact_from_lsn = max(self.exact_from_lsn, newest if later is None else later)
            self.superseded.add(key)
            return False
        if kind == DELETE and lsn <= self.horizon_lsn and key not in self.blocked:
            self.tombstones_from_lsn = max(self.tombstones_from_lsn, lsn + 1)
            self.tombstones += 1
            return False
        return True


FRAME_GOAL_BYTES = 256 * 1024
FRAME_GOAL_RECORDS = 64 * 1024
"""A frame is written once it has so many bytes or records: small records are objects of many times their bytes here."""
SPAN_MAX = 1 << 31


@dataclass(frozen=True, slots=True)
class _Placed:
    """A frame whose body is written, and whose header is not."""

    body: PreparedBody
    offset: int
    first_lsn: int
    span: int
    sealed_us: int


class FrameGatherer:
    """Gathers kept records into frames and writes their bodies. The kept records of one old frame stay in one frame."""

    def __init__(self, file: StorageFile, first_lsn: int, alignment: int, codec: str | None) -> None:
        self.placed: list[_Placed] = []
        self.records = 0
        self.size_bytes = 0
        """Bytes of the frames placed so far."""
        self.bytes_max = FRAME_HEADER_BYTES
        """The largest footprint and raw body."""
        self._file, self._alignment, self._codec = file, alignment, codec
        self._first_lsn = first_lsn
        self._sealed_us = 0
        self._packed = False
        self._waiting_bytes = 0
        self._begin()

    def _begin(self) -> None:
        self._kinds: list[int] = []
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._stamps: list[int] = []
        self._lsns: list[int] = []
        self._waiting_bytes = 0

    def add(self, header: FrameHeader, columns: DecodedColumns, selection: Selection) -> None:
        """Take the kept records of one frame."""
        batch = to_arrow([(header.first_lsn, columns)])
        keys, lsns, kinds = (batch.column(n).to_pylist() for n in ("key", "lsn", "kind"))
        kept = [i for i in range(len(lsns)) if selection.keeps(keys[i], lsns[i], kinds[i])]
        if (
            header.last_lsn - self._first_lsn >= SPAN_MAX
            or len(self._lsns) + len(kept) > RECORDS_PER_FRAME_MAX
        ):
            self.flush(header.first_lsn - 1)
        self._sealed_us = header.sealed_us
        self._packed = self._packed or header.codec == CODEC_ZSTD
        if not kept:
            return
        rows = batch.take(np.array(kept))
        new_keys = [key or b"" for key in rows.column("key").to_pylist()]
        values = [value or b"" for value in rows.column("value").to_pylist()]
        self._kinds += _kinds_left(columns, kept)
        self._keys += new_keys
        self._values += values
        self._stamps += _stamps_of(columns, kept)
        self._lsns += [lsns[i] for i in kept]
        self._waiting_bytes += sum(map(len, new_keys)) + sum(map(len, values))
        if self._waiting_bytes >= FRAME_GOAL_BYTES or len(self._lsns) >= FRAME_GOAL_RECORDS:
            self.flush(header.last_lsn)

    def flush(self, last_lsn: int) -> None:
        """Write the body of a frame that covers everything since the last one, up to `last_lsn`."""
        span = last_lsn - self._first_lsn + 1
        if span <= 0:
            return
        self._check()
        assert not self._lsns or self._lsns[-1] <= last_lsn
        first, count = self._first_lsn, len(self._lsns)
        timed = any(kind & HAS_TIMESTAMP for kind in self._kinds)
        offsets = None if count == span else [lsn - first for lsn in self._lsns]
        columns = Columns(
            count, self._kinds, self._keys, self._values, self._stamps if timed else None, offsets
        )
        body = prepare_body(columns, "zstd" if self._packed else self._codec)
        footprint = body.footprint(self._alignment)
        padding = footprint - FRAME_HEADER_BYTES - body.stored_bytes
        offset = SEGMENT_HEADER_BYTES + self.size_bytes
        self._file.write(offset + FRAME_HEADER_BYTES, [*body.buffers, ZEROS[:padding]])
        self.placed.append(_Placed(replace(body, buffers=[]), offset, first, span, self._sealed_us))
        self.records += count
        self.size_bytes += footprint
        self.bytes_max = max(self.bytes_max, footprint, body.raw_bytes)
        self._first_lsn, self._packed = last_lsn + 1, False
        self._begin()

    def _check(self) -> None:
        """Assert that the columns have equal length, and no record of an earlier frame."""
        columns = (self._kinds, self._keys, self._values, self._stamps)
        assert all(len(column) == len(self._lsns) for column in columns)
        assert not self._lsns or self._first_lsn <= self._lsns[0]


def _kinds_left(columns: DecodedColumns, kept: Sequence[int]) -> list[int]:
    """Return the kind bytes of kept records; JOINED only if the next kept one belongs to the same transaction."""
    kinds = np.broadcast_to(np.asarray(columns.kinds, np.uint8), (columns.count,))
    ends = (kinds & JOINED) == 0
    transaction = np.cumsum(ends) - ends
    index = np.asarray(kept)
    left = kinds[index] & ~np.uint8(JOINED)
    same = transaction[index][1:] == transaction[index][:-1]
    left[:-1][same] |= JOINED
    result: list[int] = left.tolist()
    return result


def _stamps_of(columns: DecodedColumns, kept: Sequence[int]) -> list[int]:
    if columns.timestamps is None:
        return [0] * len(kept)
    stamps: list[int] = np.broadcast_to(np.asarray(columns.timestamps), (columns.count,))[
        np.asarray(kept)
    ].tolist()
    return stamps


def rewrite(
    file: StorageFile,
    view: View,
    old: Sequence[SegmentRecord],
    headers: Sequence[SegmentHeader],
    selection: Selection,
    *,
    number: int,
    codec: str | None,
    frame_read: Callable[[int], object],
) -> NewSegment | None:
    """Write the `old` segments of a view, whose headers these are, as one segment to an empty file.

    None if it would not be smaller than they are: then the file is useless. `frame_read` is called with the bytes
    of each frame that was read, and its exception ends the work. CorruptionError if a frame of the old segments is
    not intact.
    """
    first, last = old[0], old[-1]
    gathered = FrameGatherer(file, first.first_lsn, headers[0].alignment, codec)
    for frame, data, _ in view.frames(first.first_lsn, last.last_lsn):
        frame_read(frame.footprint)
        gathered.add(frame, decode_frame(frame, data), selection)
    gathered.flush(last.last_lsn)
    new_bytes = SEGMENT_HEADER_BYTES + gathered.size_bytes
    start = last.end_position - gathered.size_bytes
    if new_bytes >= sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in old) or start < headers[0].previous_end:
        return None
    header = replace(
        headers[0],
        number=number,
        start_position=start,
        frame_bytes_max=max(gathered.bytes_max, *(h.frame_bytes_max for h in headers)),
        flags=SegmentFlag.COMPACTED,
        end_chain=last.end_chain,
    )  # its records are as old as before
    header = _write_headers(file, header, gathered)
    end = LogEnd(last_lsn=last.last_lsn, position=last.end_position, chain=last.end_chain)
    return NewSegment(
        header, sealed_record(header, end, records=gathered.records, frames=len(gathered.placed))
    )


def copy_frames(
    file: StorageFile,
    view: View,
    old: Sequence[SegmentRecord],
    headers: Sequence[SegmentHeader],
    *,
    number: int,
    frame_read: Callable[[int], object],
) -> NewSegment:
    """Write the frames of `old` segments of bulks as they are, as one segment to an empty file; see `rewrite`."""
    first, last, frames, bytes_max = old[0], old[-1], 0, FRAME_HEADER_BYTES
    for frame, data, _ in view.frames(first.first_lsn, last.last_lsn):
        frame_read(frame.footprint)
        file.write(SEGMENT_HEADER_BYTES + frame.position - first.start_position, [data])
        frames, bytes_max = frames + 1, max(bytes_max, frame.footprint, frame.body_raw_bytes)
    header = replace(headers[0], number=number, frame_bytes_max=bytes_max)
    file.write(0, [header.encode()])
    end = LogEnd(last_lsn=last.last_lsn, position=last.end_position, chain=last.end_chain)
    records = last.last_lsn - first.first_lsn + 1
    return NewSegment(header, sealed_record(header, end, records=records, frames=frames))


def _write_headers(file: StorageFile, header: SegmentHeader, gathered: FrameGatherer) -> SegmentHeader:
    """Write the headers of all frames, then that of the segment, which says how they end; returns it."""
    identity = FrameIdentity(header.log_id, header.epoch, header.epoch_id)
    chain = header.chain
    for frame in gathered.placed:
        position = header.start_position + frame.offset - SEGMENT_HEADER_BYTES
        buffers, _, chain = seal_frame(
            frame.body,
            identity,
            position=position,
            first_lsn=frame.first_lsn,
            durable_position=header.previous_end,
            chain=chain,
            sealed_us=frame.sealed_us,
            alignment=header.alignment,
            span=None if frame.span == frame.body.count else frame.span,
        )
        file.write(frame.offset, [memoryview(buffers[0])[:FRAME_HEADER_BYTES]])
    header = replace(header, own_end_chain=chain)
    file.write(0, [header.encode()])
    return header
