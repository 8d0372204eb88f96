"""Where the frames of a log on object storage go: each is one object, put once, and many are under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from walkit.commit.frame import SealedFrame
from walkit.config import LogOptions
from walkit.errors import LogExhaustedError, LogFencedError
from walkit.format.checksum import crc32c_of
from walkit.format.frame import FrameHeader
from walkit.format.layout import ALIGNMENT_BUFFERED, SEGMENT_HEADER_BYTES, SEGMENT_NUMBER_MAX
from walkit.objects.layout import AHEAD_MAX, BulkHeader, Claims, LogPlace, damaged, foreign, object_key
from walkit.objects.requests import put_own
from walkit.objects.vouched import VouchedEnd

SAVE_OBJECTS: Final = AHEAD_MAX // 2
"""After so many bulks the vouched end is saved in the background."""


class ObjectSink:
    """Puts frames as bulks: see `commit.ports.FrameSink`. One request for each frame that meets no fault.

    The core acknowledges in append order, so a frame is acknowledged when `write` has returned for it and for all
    before it; a `write` that raises fails its frame and all after it. The proof in `opening.Opening.fence` needs just
    that, and that `write` returns only if the own bulk is there.
    """

    def __init__(
        self,
        vouched: VouchedEnd,
        refuse_newer: Callable[[], Claims],
        options: LogOptions,
        window: int,
    ) -> None:
        """`refuse_newer` raises LogFencedError if the claims object shows a newer epoch."""
        self.vouched = vouched
        self.window, self.alignment = window, ALIGNMENT_BUFFERED
        self.frame_bytes_max = int(options.frame_bytes_max)
        self._segment_bytes = options.segment_bytes
        self.segment_begun: Callable[[], object] = lambda: None
        """Called when a segment is full and the next one follows."""
        self._refuse_newer, self._bulks = refuse_newer, vouched.reads.bulks()
        self.save_soon: Callable[[], object] = lambda: None
        """Called, by one thread at a time, to save the vouched end in the background."""
        self.begin_saving: Callable[[], object] = lambda: None
        """Called with the first frame: from now on the vouched end is saved from time to time."""
        self._number, self._save_requested_at = vouched.saved.number, 0
        self._epoch = vouched.saved.epoch
        # Appended by `assign`, whose calls are serial; taken from the left by `publish`, under the commit lock.
        self._assigned: deque[LogPlace] = deque()

    def begin_segment(self, *, position: int, first_lsn: int, chain: int) -> int:
        """See FrameSink: a segment is a stretch of bulks here, and beginning one costs nothing."""
        if self.vouched.begin(LogPlace(self._number, position, first_lsn - 1, chain, self._epoch)):
            self.segment_begun()
        return position + self._segment_bytes - SEGMENT_HEADER_BYTES

    def assign(self, frame: SealedFrame) -> None:
        """Give the frame the next number, and wait if that is too far after the vouched end.

        An opening reads every bulk after the saved vouched end, so its time is bounded by AHEAD_MAX. At most `window`
        frames are not acknowledged yet, and those cannot be saved.
        """
        number = self._number + 1
        if number > SEGMENT_NUMBER_MAX:
            raise LogExhaustedError("segment", number, SEGMENT_NUMBER_MAX)
        if number - self.vouched.saved.number > AHEAD_MAX - self.window:
            self.vouched.save()
        elif not self._save_requested_at:
            self._save_requested_at = number
            self.begin_saving()
        elif number - max(self._save_requested_at, self.vouched.saved.number) >= SAVE_OBJECTS:
            self._save_requested_at = number
            self.save_soon()
        self._number = number
        end = LogPlace(number, frame.next_position, frame.last_lsn, frame.header_crc, self._epoch)
        self._assigned.append(end)
        frame.target = number

    def write(self, frame: SealedFrame, *, sync: bool) -> None:
        """Put the bulk of a frame; it is there on return. LogFencedError if a newer writer has its number."""
        number = frame.target
        header = self._header(frame, number)
        data = b"".join((header.encode(), *frame.buffers))
        tag: str | None = None
        # An absent bulk is put again only while no newer epoch is noted in the claims object: a newer writer may have
        # trimmed that number, and the put would succeed below its floor.
        while (
            put_own(self.vouched.reads, object_key(number), data, tag, before_repeat=self._refuse_newer)
            is None
        ):
            found = self._bulks.get(number)
            if found is None:
                self._refuse_newer()
            elif found.data != data:
                self._refuse_unless_stale(found.header)
            # Stale: all bulks of the log after the fence of this epoch have this epoch or a newer one (`follows`), so
            # one of an older epoch is not part of it and never will be. Replaced by its tag: if another writer
            # replaces it first, the tag is another one.
            tag = None if found is None else found.tag

    def _header(self, frame: SealedFrame, number: int) -> BulkHeader:
        fields = FrameHeader.parse(frame.buffers[0])
        return BulkHeader(
            log_id=fields.log_id,
            epoch=fields.epoch,
            epoch_id=fields.epoch_id,
            number=number,
            start_position=frame.position,
            first_lsn=frame.first_lsn,
            promised_position=fields.durable_position,
            sealed_us=fields.sealed_us,
            body_bytes=frame.footprint,
            records=frame.count,
            span=frame.count,
            chain=fields.chain,
            end_chain=frame.header_crc,
            body_crc=crc32c_of(frame.buffers),
            in_flight=self.window,
            alignment=self.alignment,
            frame_bytes_max=self.frame_bytes_max,
        )

    def _refuse_unless_stale(self, header: BulkHeader) -> None:
        key, location = object_key(header.number), self.vouched.reads.store.location
        if header.log_id != self.vouched.current.log_id:
            raise foreign(key, location, header.first_lsn)
        if header.epoch > self._epoch:
            raise LogFencedError(location, header.epoch)
        if header.epoch == self._epoch:
            raise damaged(key, "has another content of this epoch", "an older epoch", header)

    def passed(self, position: int) -> None:
        """See FrameSink: nothing is sealed."""

    def sync(self) -> None:
        """See FrameSink: a put is durable when it returns."""

    def publish(self, position: int, lsn: int) -> None:
        """Note how far the log is acknowledged; see FrameSink."""
        assigned, acked = self._assigned, None
        while assigned and assigned[0].position <= position:
            acked = assigned.popleft()
        if acked is not None:
            self.vouched.acked = acked
