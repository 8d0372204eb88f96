"""The file that takes the place of a damaged segment: what is intact of it, and frames of a peer between."""

from __future__ import annotations

from walkit.errors import CorruptionError
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import Manifest, SegmentState
from walkit.format.names import HEAL_NEW_NAME
from walkit.format.segment import SegmentHeader
from walkit.recovery.lost_found import copy_part, keep_part
from walkit.recovery.tolerant_file import TolerantFile
from walkit.replication.frame_batch import FrameRun
from walkit.replication.heal_ranges import DamagedSegment
from walkit.segments.frame_walk import walk_segment
from walkit.segments.manifest_store import LOST_FOLDER
from walkit.storage.interface import Storage, StorageFile, remove_if_there


class HealedFile:
    """Gathers one segment anew beside the damaged one. Used by one thread; to be closed.

    With `dry_run` nothing is written, and `publish` changes nothing.
    """

    def __init__(
        self, storage: Storage, manifest: Manifest, damaged: DamagedSegment, *, dry_run: bool
    ) -> None:
        self._storage, self._manifest, self._damaged, self._dry_run = storage, manifest, damaged, dry_run
        self._header = damaged.header
        self._file: StorageFile | None = None

    def add(self, run: FrameRun) -> None:
        """Write frames of a peer to their place; the first ones say what a header that is made anew has to say."""
        if self._header is None:
            self._header = _header_of(self._manifest, self._damaged, run)
        if not self._dry_run:
            self._begun().write(self._header.offset_of(run.start_position), [run.data])

    def publish(self) -> str:
        """Check the whole segment as the device has it, and let it take its name; durable on return.

        Returns where the damaged file is kept; "" where there was none. CorruptionError where the frames that were kept
        and those that came are no whole: then nothing was changed.
        """
        if self._dry_run:
            return ""
        file = self._begun()
        file.sync()
        file.drop_cached()
        self.close()
        self._check()
        record, kept = self._damaged.record, ""
        if self._damaged.present:
            kept = f"{record.name}.damaged"
            old = TolerantFile(self._storage.open(record.name, "read"))
            try:
                keep_part(self._storage, kept, old, 0, old.size())
            finally:
                old.close()
            kept = f"{LOST_FOLDER}/{kept}"
        self._storage.replace(HEAL_NEW_NAME, record.name)
        self._storage.sync_directory()
        return kept

    def close(self) -> None:
        """Close the file; what was not published is overwritten by the next try, or goes with the next opening."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _begun(self) -> StorageFile:
        """Return the new file, made at the first call: the header, and everything of the old one that is kept."""
        if self._file is not None:
            return self._file
        header, damaged = self._header, self._damaged
        assert header is not None
        remove_if_there(self._storage, HEAL_NEW_NAME)
        self._file = file = self._storage.open(HEAL_NEW_NAME, "create")
        file.write(0, [header.encode()])
        sealed = damaged.record.state is SegmentState.SEALED
        end = header.offset_of(damaged.end_position)
        size = end if sealed else max(damaged.file_bytes, damaged.record.reserved_bytes, end)
        if damaged.header is not None and damaged.present:
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
        assert header is not None
        record, end = damaged.record, damaged.end_position
        file = self._storage.open(HEAL_NEW_NAME, "read")
        try:
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
    """Return the header of a sealed segment made anew, of what the manifest says of it and the peer of its frames."""
    record, begin = damaged.record, damaged.ranges[0].before
    epoch = manifest.epoch_of(record.epoch)
    if epoch is None or run.start_position != record.start_position:
        raise CorruptionError(
            f"the peer's frames begin at position {run.start_position:,}, and segment {record.name} at "
            f"{record.start_position:,}",
            segment=record.name,
            position=record.start_position,
            found=run.start_position,
        )
    return SegmentHeader(
        log_id=manifest.log_id,
        epoch=epoch.number,
        epoch_id=epoch.id,
        number=record.number,
        start_position=record.start_position,
        previous_end=begin.position,
        first_lsn=record.first_lsn,
        chain=record.start_chain,
        alignment=run.limits.alignment,
        frame_bytes_max=run.limits.frame_bytes_max,
        created_us=record.created_us,
        flags=SegmentFlag(record.flags),
    )
