"""Bulks of frames that another log has: a copy and a replica put them at the same positions, with the same chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Final

from walkit.errors import LogFencedError
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameHeader, FrameIdentity
from walkit.format.layout import ALIGNMENT_BUFFERED, FRAME_HEADER_BYTES, align_up
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.objects.layout import BulkHeader, Fit, LogPlace, Stretches, follows, foreign, object_key
from walkit.objects.requests import PatientReads, put_own
from walkit.record import Buffer

FENCE_LIMITS: Final = (ALIGNMENT_BUFFERED, FRAME_HEADER_BYTES)


class VerbatimBulks:
    """Puts bulks after a place, each when the one before is there. Used by one thread."""

    def __init__(self, reads: PatientReads, log_id: int, taken: Stretches) -> None:
        self.reads, self._log_id, self.taken = reads, log_id, taken
        self._bulks = reads.bulks()

    @property
    def place(self) -> LogPlace:
        """The end of the newest bulk."""
        return self.taken.place

    def read_on(self, epochs: Mapping[int, int], step: Callable[[], object] = lambda: None) -> Fit | None:
        """Take the bulks that are there and follow; return how the first other one stands to the place, if any."""
        with closing(self._bulks.ahead(self.place.number + 1)) as following:
            for bulk in following:
                fit = None if bulk is None else follows(bulk.header, self.place, self._log_id, epochs)
                if bulk is None or fit is not Fit.FITS:
                    return fit
                step()
                self.taken.take(bulk.header)
        raise AssertionError("it has no end")

    def header(self, identity: FrameIdentity, alignment: int, frame_bytes_max: int) -> BulkHeader:
        """Return the header of a bulk that follows the place, without frames yet."""
        place = self.place
        return BulkHeader(
            log_id=identity.log_id,
            epoch=identity.epoch,
            epoch_id=identity.epoch_id,
            number=place.number + 1,
            start_position=align_up(place.position, alignment),
            first_lsn=place.lsn + 1,
            promised_position=place.position,
            sealed_us=self.taken.sealed_us,
            body_bytes=0,
            records=0,
            span=0,
            chain=place.chain,
            end_chain=place.chain,
            body_crc=0,
            alignment=alignment,
            frame_bytes_max=frame_bytes_max,
        )

    def put(self, header: BulkHeader, body: Buffer, records: int, end: LogEnd) -> None:
        """Put a bulk of these frames; it is there on return, and the place is its end.

        A stale bulk, which an older writer has put and nothing acknowledged, is replaced. LogFencedError if another
        writer's bulk is there; DivergenceError, CorruptionError, StorageError.
        """
        span = end.last_lsn - header.first_lsn + 1
        facts = {"body_bytes": len(body), "body_crc": crc32c(body) if body else 0, "end_chain": end.chain}
        if body:
            facts["sealed_us"] = FrameHeader.parse(body).sealed_us
        header = header._replace(records=records, span=span, **facts)
        key, data = object_key(header.number), b"".join((header.encode(), body))
        location, tag = self.reads.store.location, None
        while put_own(self.reads, key, data, tag) is None:
            found = self._bulks.get(header.number)
            if found is not None and found.header.log_id != self._log_id:
                raise foreign(key, location, header.first_lsn)
            # No bulk of an older epoch follows the fence of this one.
            if found is not None and found.header.epoch >= header.epoch:
                raise LogFencedError(location, found.header.epoch)
            tag = None if found is None else found.tag
        self.taken.take(header)

    def begin_epochs(self, epochs: Iterable[EpochRecord]) -> None:
        """Put the fences of the epochs that are later than that of the place."""
        for epoch in epochs:
            if epoch.number > self.place.epoch:
                identity = FrameIdentity(self._log_id, epoch.number, epoch.id)
                self.put(self.header(identity, *FENCE_LIMITS), b"", 0, self.place.end)
