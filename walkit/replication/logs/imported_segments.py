"""The segments of a replica's log: they hold the frames of its primary, and a flag in their headers."""

from __future__ import annotations

from walkit._internal.locks import once
from walkit.commit.frame import SealedFrame
from walkit.format.frame import FrameIdentity
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import EpochRecord, Manifest, prepared_record
from walkit.format.segment import SegmentHeader
from walkit.replication.logs.folder_role import as_replica
from walkit.replication.protocol.frame_run import FrameRun
from walkit.segments.segment_set import SegmentSet


class ImportedSegments(SegmentSet):
    """Segments that hold the frames of another log. One thread imports."""

    lineage: tuple[EpochRecord, ...] = ()
    """The primary's epochs up to the one of the frames that are imported now."""
    run: FrameRun | None = None

    def take_epoch(self, identity: FrameIdentity, lineage: tuple[EpochRecord, ...]) -> None:
        """Frames of this epoch come next; a segment that was made ahead for another one is dropped."""
        with once(self._prepare_lock), self._prepare_lock:
            self.identity, self.lineage = identity, lineage
            prepared, self._prepared = self._prepared, None
            if prepared is not None:
                prepared.file.close()
                self._drop_prepared(prepared)

    def write_run(self, run: FrameRun) -> None:
        """Write the frames of a run, durable on return, into as many segments as they need."""
        first = 0
        while first < len(run.headers):
            stop = self._fitting(run, first)
            if stop == first:
                self._begin(run, first)
                stop = max(self._fitting(run, first), first + 1)  # a segment takes one frame, however large
            self._write_frames(run, first, stop)
            first = stop

    def _fitting(self, run: FrameRun, first: int) -> int:
        """Return the index after the last frame, from `first` on, that the segment in use has room for."""
        room, stop = self._room_for(run, first), first
        while stop < len(run.headers) and run.headers[stop].end_position <= room:
            stop += 1
        return stop

    def _room_for(self, run: FrameRun, first: int) -> int:
        """Return the position up to which the segment in use takes frames of the run; 0 if it takes none."""
        segment, header = self.current, None if self.current is None else self.current.header
        if segment is None or header is None:
            return 0
        same = (header.epoch, header.epoch_id) == (run.identity.epoch, run.identity.epoch_id)
        limits = (header.alignment, header.frame_bytes_max) == (
            run.limits.alignment,
            run.limits.frame_bytes_max,
        )
        if not (same and limits and segment.end_position == run.headers[first].position):
            return 0
        return header.start_position + segment.size - SEGMENT_HEADER_BYTES

    def _begin(self, run: FrameRun, first: int) -> None:
        header = run.headers[first]
        self.run = run
        self.begin_segment(position=header.position, first_lsn=header.first_lsn, chain=header.chain)

    def _write_frames(self, run: FrameRun, first: int, stop: int) -> None:
        headers = run.headers[first:stop]
        begin, end = headers[0].position, headers[-1].end_position
        data = run.data[begin - run.start_position : end - run.start_position]
        last = headers[-1]
        frames = SealedFrame(
            (),
            first_lsn=headers[0].first_lsn,
            count=last.last_lsn - headers[0].first_lsn + 1,
            position=begin,
            footprint=end - begin,
            header_crc=last.header_crc,
            buffers=[data],
            user_bytes=0,
            columns=None,
        )
        self.assign(frames)
        self.write(frames, sync=True)
        self.passed(end)
        assert self.current is not None
        self.current.frames += len(headers) - 1

    def _new_header(self, number: int, position: int, first_lsn: int, chain: int) -> SegmentHeader:
        run = self.run
        assert run is not None
        return SegmentHeader(
            log_id=self.identity.log_id,
            epoch=self.identity.epoch,
            epoch_id=self.identity.epoch_id,
            number=number,
            start_position=position,
            previous_end=run.after.position if position == run.start_position else position,
            first_lsn=first_lsn,
            chain=chain,
            alignment=run.limits.alignment,
            frame_bytes_max=run.limits.frame_bytes_max,
            created_us=self.time.us(),
            flags=SegmentFlag.IMPORTED,
        )

    def _with_prepared(self, manifest: Manifest, number: int) -> Manifest:
        """Name a prepared segment in the manifest, and with it the epochs that the log has come to."""
        record = prepared_record(number, self.identity.epoch, self.options.segment_bytes)
        following = max(manifest.next_segment, number + 1)
        return manifest.next(
            segments=(*manifest.segments, record),
            next_segment=following,
            lineage=self.lineage,
            extra=as_replica(manifest.extra),
        )
