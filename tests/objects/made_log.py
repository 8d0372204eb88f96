"""A log on object storage as its writer leaves it, made object by object; and with what goes wrong on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from walkit.format.body import one_record
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameIdentity, prepare_body, seal_frame
from walkit.format.manifest import EpochRecord, Manifest, encode_base
from walkit.objects.layout import (
    CLAIMS_KEY,
    MANIFEST_KEY,
    START,
    BulkHeader,
    Claims,
    LogPlace,
)
from walkit.storage.object_memory import MemoryObjectStore

LOG_ID = 0x41


class MadeLog:
    """Puts the objects of a log. `place` is the end of its last bulk; the epoch of number n has the id 0xE0 + n."""

    def __init__(self, store: MemoryObjectStore | None = None, log_id: int = LOG_ID) -> None:
        self.store = store or MemoryObjectStore()
        self.place, self.log_id = START, log_id
        self.manifest = Manifest(log_id=log_id, extra={"object": 0})
        self.claims = Claims(log_id=log_id)
        self.fence()

    def put(self, key: str, data: bytes) -> None:
        """Put an object over what is there."""
        self.store.delete(key)
        self.store.put_if_absent(key, data)

    def save(self, **extra: object) -> None:
        """Vouch for all that is there."""
        facts = {"object": self.place.number, **extra}
        self.manifest = self.manifest.next(end=self.place.end, extra=facts)
        self.put(MANIFEST_KEY, encode_base(self.manifest))

    def trim(self, floor: LogPlace) -> None:
        """Move the floor; what is below it may be deleted."""
        self.claims = replace(self.claims, floor=floor)
        self.put(CLAIMS_KEY, self.claims.encode())

    def fence(self) -> None:
        """Begin the next epoch, as an opening does."""
        at, number = self.place, self.place.epoch + 1
        epoch = EpochRecord(
            number=number, id=0xE0 + number, first_lsn=at.lsn + 1, position=at.position, chain=at.chain
        )
        self.save(opening=[[number, epoch.id]])
        self.trim(self.claims.floor)
        data = self.bulk((), at, epoch=number)
        self.put(at.key, data)
        self.place = BulkHeader.decode(data).end
        self.manifest = replace(self.manifest, lineage=(*self.manifest.lineage, epoch))
        self.save()

    def append(self, values: Sequence[bytes], keys: Sequence[bytes] | None = None) -> LogPlace:
        """Put the bulk of one frame for each value, and return its end."""
        data = self.bulk(values, self.place, keys=keys)
        self.put(self.place.key, data)
        self.place = BulkHeader.decode(data).end
        return self.place

    def bulk(
        self,
        values: Sequence[bytes],
        place: LogPlace,
        *,
        epoch: int | None = None,
        keys: Sequence[bytes] | None = None,
    ) -> bytes:
        """Return the bulk that follows a place; a fence without values."""
        number = place.epoch if epoch is None else epoch
        identity = FrameIdentity(self.log_id, number, 0xE0 + number)
        frames, position, chain = b"", place.position, place.chain
        for lsn, value in enumerate(values, place.lsn + 1):
            key = b"" if keys is None else keys[lsn - place.lsn - 1]
            buffers, footprint, header_crc = seal_frame(
                prepare_body(one_record(0x21 if keys is None else 0x31, key, value, 0)),
                identity,
                position=position,
                first_lsn=lsn,
                durable_position=place.position,
                chain=chain,
                sealed_us=5,
                alignment=64,
            )
            frames += b"".join(bytes(b) for b in buffers)
            position, chain = position + footprint, header_crc
        header = BulkHeader(
            log_id=self.log_id,
            epoch=number,
            epoch_id=0xE0 + number,
            number=place.number + 1,
            start_position=place.position,
            first_lsn=place.lsn + 1,
            promised_position=place.position,
            sealed_us=5,
            body_bytes=len(frames),
            records=len(values),
            span=len(values),
            chain=place.chain,
            end_chain=chain,
            body_crc=crc32c(frames),
            in_flight=16,
            frame_bytes_max=1 << 20,
        )
        return header.encode() + frames
