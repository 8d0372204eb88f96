"""Shared by the tests of holes: logs whose writer was lost while several frames were in flight.

The frames are written here one by one, in any subset, by the rules of FORMAT.md F-2.7, so that every state that
parallel writes can leave is made on purpose, whatever a driver does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property

from tests.support.makers import HAS_KEY, HAS_VALUE, PUT
from walkit.format.body import Columns
from walkit.format.durable_slot import DurableSlot, encode_slot
from walkit.format.frame import MARKER_BODY, FrameHeader, FrameIdentity, prepare_body, seal_frame
from walkit.format.layout import DURABLE_SLOTS_BYTES, SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import (
    MANIFEST_NAME,
    EpochRecord,
    Manifest,
    SegmentRecord,
    SegmentState,
    encode_base,
)
from walkit.format.segment import SegmentHeader, segment_name
from walkit.models import CrashingStorage
from walkit.segments.manifest_store import DURABLE_NAME, NEW_NAME
from walkit.storage.bulk import write_whole

IDENTITY = FrameIdentity(0x1234, 1, 0xABCD)
FILE_BYTES = 64 * 1024
FRAME_BYTES_MAX = 16 * 1024
WINDOW = 8 * 4096


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A log of `base` durable frames and `flying` ones after them, of two records each.

    Frames from number `second` on (base included) are in a second segment; those in `marks` hold no record. `promises`
    gives the number of frames that a frame says are durable; the base by default.
    """

    order: str = "append"
    base: int = 2
    flying: int = 3
    second: int | None = None
    marks: Collection[int] = ()
    window: int = WINDOW
    alignment: int = 64
    promises: dict[int, int] = field(default_factory=dict)

    @cached_property
    def frames(self) -> list[tuple[FrameHeader, bytes]]:
        """Return (header, bytes) of every frame, in order."""
        made: list[tuple[FrameHeader, bytes]] = []
        position, lsn, chain = 0, 1, 0
        for number in range(self.base + self.flying):
            promised = self.promises.get(number, min(number, self.base))
            values = [b"%02d-%d " % (number, i) * (3 + 11 * number) for i in range(2)]
            columns = Columns(2, PUT | HAS_KEY | HAS_VALUE, [b"key %d" % number] * 2, values)
            buffers, footprint, crc = seal_frame(
                MARKER_BODY if number in self.marks else prepare_body(columns),
                IDENTITY,
                position=position,
                first_lsn=lsn,
                durable_position=made[promised - 1][0].end_position if promised else 0,
                chain=chain,
                sealed_us=1_700_000_000_000_000,
                alignment=self.alignment,
            )
            frame = b"".join(buffers)
            made.append((FrameHeader.parse(frame), frame))
            position, chain = position + footprint, crc
            lsn = made[-1][0].last_lsn + 1
        return made

    def rows(self, numbers: Collection[int]) -> list[tuple[int, bytes | None]]:
        """Return (LSN, value) of the records of these frames."""
        rows: list[tuple[int, bytes | None]] = []
        for number, (header, _) in enumerate(self.frames):
            if number in numbers and header.records:
                rows += [
                    (header.first_lsn + i, b"%02d-%d " % (number, i) * (3 + 11 * number)) for i in range(2)
                ]
        return rows

    def headers(self) -> list[SegmentHeader]:
        """Return the headers of the segments."""
        frames = self.frames
        starts = [0] if self.second is None else [0, self.second]
        headers = []
        for number, start in enumerate(starts, 1):
            before = frames[start - 1][0] if start else None
            headers.append(
                SegmentHeader(
                    log_id=IDENTITY.log_id,
                    epoch=IDENTITY.epoch,
                    epoch_id=IDENTITY.epoch_id,
                    number=number,
                    start_position=before.end_position if before else 0,
                    previous_end=before.end_position if before else 0,
                    first_lsn=before.last_lsn + 1 if before else 1,
                    chain=before.header_crc if before else 0,
                    alignment=self.alignment,
                    frame_bytes_max=FRAME_BYTES_MAX,
                    created_us=1,
                    reorder_window_bytes=self.window,
                    flags=SegmentFlag.COMPLETION_ORDER if self.order == "completion" else SegmentFlag(0),
                )
            )
        return headers

    def landed(
        self,
        numbers: Collection[int],
        damage: Callable[[bytes], bytes] | None = None,
        marked: int | None = None,
    ) -> CrashingStorage:
        """Return what is on the disk when these of the flying frames came to it whole; of the others `damage` of them.

        The durable slot says that the first `marked` frames are durable; None if a power cut took it.
        """
        storage = CrashingStorage()
        storage.create()
        headers = self.headers()
        manifest = Manifest(
            log_id=IDENTITY.log_id,
            ack_order=self.order,
            lineage=(EpochRecord(number=1, id=IDENTITY.epoch_id, first_lsn=1, position=0, chain=0),),
            segments=tuple(
                SegmentRecord(number=h.number, state=SegmentState.PREPARED, epoch=1) for h in headers
            ),
            next_segment=len(headers) + 1,
        )
        write_whole(storage, MANIFEST_NAME, NEW_NAME, encode_base(manifest))
        for header in headers:
            file = storage.open(segment_name(header.number), "create")
            file.allocate(FILE_BYTES)
            file.write(0, [header.encode()])
            for number, (frame, data) in enumerate(self.frames):
                if (self.second is not None and number >= self.second) == (header.number == 1):
                    continue
                came = data
                if number >= self.base and number not in numbers:
                    came = b"" if damage is None else damage(data)
                file.write(SEGMENT_HEADER_BYTES + frame.position - header.start_position, [came])
            file.sync()
            file.close()
        storage.sync_directory()
        if marked:
            last = self.frames[marked - 1][0]
            mark = DurableSlot(1, 1, IDENTITY.epoch_id, last.end_position, last.last_lsn)
            cell = storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=True)
            assert cell is not None
            cell.write(*encode_slot(mark))
            cell.close()
        return storage


def torn(data: bytes) -> bytes:
    """The beginning of a frame: header whole, body not; of a mark, which has no body, half of the header."""
    return data[: len(data) // 2 if len(data) <= 128 else max(96, len(data) // 2)]


def headless(data: bytes) -> bytes:
    """The second half of a frame."""
    half = len(data) // 2
    return bytes(half) + data[half:]
