"""The file that takes the place of a damaged segment: what is intact of it, and frames of a peer between."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace

from walkit.errors import CorruptionError, StorageError
from walkit.format.durable_slot import DurableSlot, encode_promise, encode_slot
from walkit.format.layout import (
    DURABLE_SLOTS_BYTES,
    FRAME_BYTES_LIMIT,
    SEGMENT_HEADER_BYTES,
    SegmentFlag,
    align_up,
)
from walkit.format.manifest import LogEnd, Manifest, SegmentState
from walkit.format.names import HEAL_NEW_NAME
from walkit.format.segment import SegmentHeader
from walkit.recovery.lost_found import keep_part
from walkit.recovery.tolerant_file import TolerantFile
from walkit.replication.healing.ranges import NO_WINDOW, DamagedSegment
from walkit.replication.protocol.frame_run import FrameRun
from walkit.segments.frame_walk import walk_segment
from walkit.segments.manifest_store import DURABLE_NAME, LOST_FOLDER
from walkit.segments.rewrite import copy_part
from walkit.storage.file import FileStorage
from walkit.storage.interface import Storage, StorageFile, remove_if_there


class HealedFile:
    """Gathers one segment anew beside the damaged one. Used by one thread; to be closed.

    With `dry_run` it is gathered and checked in a temporary folder of the system, and `publish` changes nothing.
    """

    def __init__(
        self, storage: Storage, manifest: Manifest, damaged: DamagedSegment, *, dry_run: bool
    ) -> None:
        self._storage, self._manifest, self._damaged, self._dry_run = storage, manifest, damaged, dry_run
        self._header = damaged.header
        self._file: StorageFile | None = None
        self._aside = tempfile.TemporaryDirectory(prefix="walkit-heal-") if dry_run else None
        self._beside: Storage = storage if self._aside is None else FileStorage(self._aside.name)
        self._end_position = damaged.end_position
        self._is_left = False
        """Whether the new file stands beside the log under its own name."""
        self._largest = 0
        """Bytes of the largest frame that came, or of the body of one before it was compressed."""

    @property
    def has_header(self) -> bool:
        """Whether it is known where its frames belong: there was a header, or a frame has come."""
        return self._header is not None

    def add(self, run: FrameRun) -> None:
        """Write frames of a peer to their place; the first ones say where a header that is made anew belongs."""
        if self._header is None:
            self._header = _header_of(self._manifest, self._damaged, run)
        self._largest = max(self._largest, *(max(h.footprint, h.body_raw_bytes) for h in run.headers))
        self._begun().write(self._header.offset_of(run.start_position), [run.data])

    def ends_at(self, position: int) -> None:
        """Say where the last frame ends, now that all that a peer has has come."""
        self._end_position = position

    def publish(self) -> str:
        """Check the whole segment as the device has it, and let it take its name; durable on return.

        Returns where the damaged file is kept; "" where there was none. CorruptionError where the frames that were kept
        and those that came are no whole: then nothing was changed.
        """
        file = self._begun()
        if self._damaged.header is None and self._header is not None:
            file.write(0, [self._proved_header().encode()])
        file.sync()
        file.drop_cached()
        self._close_file()
        self._check()
        record, kept = self._damaged.record, ""
        if self._dry_run:
            return ""
        if self._damaged.present:
            kept = f"{record.name}.damaged"
            old = TolerantFile(self._storage.open(record.name, "read"))
            try:
                keep_part(self._storage, kept, old, 0, old.size())
            finally:
                old.close()
            kept = f"{LOST_FOLDER}/{kept}"
        self._storage.replace(HEAL_NEW_NAME, record.name)
        self._is_left = False
        self._storage.sync_directory()
        return kept

    def _proved_header(self) -> SegmentHeader:
        """Return the header made anew with limits that its frames and the segments of its epoch bear out.

        Of what the peer says of its own segment nothing is taken over but the alignment, which each frame has shown.
        """
        header, limits = self._header, self._damaged.limits
        assert header is not None
        known = header.alignment if limits is None else limits.frame_bytes_max
        return replace(header, frame_bytes_max=max(known, align_up(self._largest, header.alignment)))

    def close(self) -> None:
        """Close the file, and remove it where it was not published; after a crash the next opening does that."""
        self._close_file()
        if self._is_left and not self._dry_run:
            with suppress(StorageError):  # it costs its bytes, and nothing reads it
                self._storage.remove(HEAL_NEW_NAME)
        if self._aside is not None:
            self._aside.cleanup()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _begun(self) -> StorageFile:
        """Return the new file, made at the first call: the header, if there is one, and all of the old that is kept."""
        if self._file is not None:
            return self._file
        header, damaged = self._header, self._damaged
        remove_if_there(self._beside, HEAL_NEW_NAME)
        self._is_left = True
        self._file = file = self._beside.open(HEAL_NEW_NAME, "create")
        if header is not None:
            file.write(0, [header.encode()])
        sealed = damaged.record.state is SegmentState.SEALED
        end = 0 if header is None else header.offset_of(damaged.end_position)
        size = end if sealed else max(damaged.file_bytes, damaged.record.reserved_bytes, end)
        if header is not None and damaged.header is not None and damaged.present:
            until = damaged.file_bytes if damaged.torn else min(damaged.file_bytes, end)
            self._copy_intact(file, header, until)
        if file.size() < size:
            file.write(size - 1, [b"\0"])
        return file

    def _copy_intact(self, file: StorageFile, header: SegmentHeader, until: int) -> None:
        """Copy what lies between the ranges that are fetched. After the last frame only a torn tail is copied."""
        old = TolerantFile(self._storage.open(self._damaged.record.name, "read"))
        try:
            at = SEGMENT_HEADER_BYTES
            for wanted in self._damaged.ranges:
                start = max(header.offset_of(max(wanted.before.position, header.start_position)), at)
                if start > at:
                    copy_part(old, at, min(start, until), file, at)
                at = max(at, header.offset_of(wanted.after.position))
            if at < until:
                copy_part(old, at, until, file, at)
        finally:
            old.close()

    def _check(self) -> None:
        """Walk every frame of the new file. CorruptionError where they are not one chain up to the end."""
        damaged, header = self._damaged, self._header
        if header is None:
            return  # space alone, in which no frame stood
        record, end = damaged.record, self._end_position
        file = self._beside.open(HEAL_NEW_NAME, "read")
        try:
            header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name) or header
            gaps = self._manifest.gaps_of(record)
            walk = walk_segment(file, header, record, end, gaps=gaps)
            for _ in walk.steps():
                pass
        finally:
            file.close()
        if walk.error is not None:
            raise walk.error
        if walk.fault is not None or walk.position != end:
            fault = "it ends early" if walk.fault is None else walk.fault.value
            raise CorruptionError(
                f"segment {record.name} with the peer's frames is no whole at position {walk.position:,}: {fault}",
                segment=record.name,
                position=walk.position,
                found=fault,
                first_lost_lsn=walk.next_lsn,
            )


def _header_of(manifest: Manifest, damaged: DamagedSegment, run: FrameRun) -> SegmentHeader:
    """Return the header of a segment made anew, of what this log says of it and the peer of where its frames stand.

    Its frame limit is as wide as the format allows, until the frames have come.
    """
    record, begin, alignment = damaged.record, damaged.ranges[0].before, run.limits.alignment
    sealed = record.state is SegmentState.SEALED
    if not sealed and manifest.ack_order != "append":
        raise CorruptionError(
            f"the peer has frames after position {begin.position:,}: {NO_WINDOW}",
            segment=record.name,
            position=begin.position,
            first_lost_lsn=begin.last_lsn + 1,
        )
    epoch = manifest.epoch_of(record.epoch)
    start = record.start_position if sealed else align_up(begin.position, alignment)
    if epoch is None or run.start_position != start:
        raise CorruptionError(
            f"the peer's frames begin at position {run.start_position:,}, and segment {record.name} at {start:,}",
            segment=record.name,
            position=start,
            found=run.start_position,
        )
    if damaged.limits is not None and damaged.limits.alignment != alignment:
        raise CorruptionError(
            f"the peer's frames stand at multiples of {alignment:,}, and those of this epoch here at multiples of "
            f"{damaged.limits.alignment:,}",
            segment=record.name,
            position=start,
            expected=damaged.limits.alignment,
            found=alignment,
        )
    return SegmentHeader(
        log_id=manifest.log_id,
        epoch=epoch.number,
        epoch_id=epoch.id,
        number=record.number,
        start_position=start,
        previous_end=begin.position,
        first_lsn=record.first_lsn if sealed else begin.last_lsn + 1,
        chain=record.start_chain if sealed else begin.chain,
        alignment=alignment,
        frame_bytes_max=FRAME_BYTES_LIMIT,
        created_us=record.created_us,
        flags=SegmentFlag(record.flags) | (SegmentFlag.IMPORTED if damaged.imported else SegmentFlag(0)),
    )


def lower_slot(storage: Storage, slot: DurableSlot, end: LogEnd) -> None:
    """Store the durable slot with the position of `end`, which has the slot's LSN.

    What it promised after that were frames without records. Its file is made anew, as a power cut may bring back any
    earlier content of the old one. Both places are written, as a reader may find one of them half written.
    """
    assert end.last_lsn == slot.lsn
    remove_if_there(storage, DURABLE_NAME)
    storage.sync_directory()
    cell = storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=True)
    assert cell is not None
    try:
        for turn in (1, 2):
            lowered = slot._replace(generation=slot.generation + turn, position=end.position)
            cell.write(*encode_slot(lowered))
            cell.write(*encode_promise(slot.promise, turn))
    finally:
        cell.close()
