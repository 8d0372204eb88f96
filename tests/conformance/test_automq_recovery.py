"""AutoMQ's vectors of recovery after a disaster (version 0: acknowledged as landed), each by its name, on walkit.

A vector says which blocks of a device hold a record, what was trimmed, and how far behind a hole recovery looks. Here a
block of 4096 bytes is one unit, a record a frame of as many units, a block without a record a frame that never came to
the disk, and the end of the device the end of a segment. What was trimmed was durable and went with its segment, or,
within a frame, lies below the low watermark. So each vector is opened twice: in append order under the policy "holes",
and in completion order, where that policy is the default.

Where walkit answers otherwise, the vector says why:
- The window is counted from the first hole, also where the next file begins behind it; AutoMQ begins anew there.
- A frame is whole or it is none. AutoMQ keeps the records before the first bad one of a block that several share.
- What was trimmed was durable: where its block is torn, that is damage to what was promised, and refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import walkit
from tests.format.makers import HAS_VALUE, PUT
from walkit.errors import CorruptionError
from walkit.format.body import Columns
from walkit.format.durable_slot import DurableSlot, encode_slot
from walkit.format.frame import FrameHeader, FrameIdentity, prepare_body, seal_frame
from walkit.format.layout import DURABLE_SLOTS_BYTES, SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import (
    MANIFEST_NAME,
    EpochRecord,
    LogEnd,
    Manifest,
    SegmentRecord,
    SegmentState,
    encode_manifest,
)
from walkit.format.segment import SegmentHeader, segment_name
from walkit.models import CrashingStorage
from walkit.segments.manifest_store import DURABLE_NAME, NEW_NAME, write_whole

UNIT = 4096
IDENTITY = FrameIdentity(0x5EED, 1, 0xABCD)
FRAME_BYTES_MAX = 4 * UNIT
CHAIN = 0x1234
ORDERS = (("append", "holes"), ("completion", "prefix"))


@dataclass(frozen=True, kw_only=True)
class Vector:
    """One vector of single records. Everything is in units.

    `written` in the order of the writes. `trim` is the place of the last thing trimmed. `turn` is where the device
    begins anew. `stale` holds records of the turn before.
    """

    size: int
    window: int
    written: tuple[int, ...]
    kept: tuple[int, ...]
    trim: int | None = None
    turn: int | None = None
    stale: tuple[int, ...] = ()

    @property
    def start(self) -> int:
        """Where what is left after the trim begins."""
        if self.trim is None:
            return 0
        return self.trim + (self.size if self.trim in self.written else 1)


VECTORS = {
    "base": Vector(size=2, window=50, written=(0, 2, 4), kept=(0, 2, 4)),
    "trimmed at zero": Vector(size=2, trim=0, window=50, written=(0, 2, 4), kept=(2, 4)),
    "trimmed": Vector(size=2, trim=2, window=50, written=(0, 2, 4, 6), kept=(4, 6)),
    "WAL header flushed slow": Vector(
        size=2, trim=2, window=50, written=tuple(range(0, 21, 2)), kept=tuple(range(4, 21, 2))
    ),
    "many invalid records": Vector(
        size=2, trim=2, window=50, written=(0, 2, 8, 10, 14, 20), kept=(8, 10, 14, 20)
    ),
    "write in random order": Vector(
        size=2, trim=2, window=50, written=(14, 8, 10, 20, 0, 2), kept=(8, 10, 14, 20)
    ),
    "big logic offset": Vector(
        size=2,
        trim=20_230_920,
        window=50,
        written=tuple(20_230_900 + n for n in (0, 10, 16, 20, 30, 40, 50, 60, 70, 80)),
        kept=tuple(20_230_900 + n for n in (30, 40, 50, 60, 70)),
    ),
    # AutoMQ keeps 220 and 230, too: at the end of the device its window begins anew.
    "round robin": Vector(
        size=2,
        trim=180,
        window=30,
        turn=200,
        written=(150, 160, 170, 180, 190, 200, 202, 210, 220, 230, 240),
        kept=(190, 200, 202, 210),
    ),
    # Two blocks at the end of the device are left unused there; here the next file begins where the record ended.
    "round robin - no place for the last record": Vector(
        size=3,
        trim=192,
        window=3,
        turn=198,
        written=(192, 195, 198, 201, 204, 207, 210, 213),
        kept=(195, 198, 201, 204, 207, 210, 213),
    ),
    "overwrite": Vector(
        size=2,
        trim=210,
        window=50,
        written=(210, 215, 220, 230, 240, 250, 260, 270, 280, 290),
        kept=(215, 220, 230, 240, 250, 260),
        stale=(113, 115, 117, 119, 120, 130),
    ),
    "small window - record size not aligned": Vector(size=2, window=1, written=(0, 2, 5, 7), kept=(0, 2)),
    "invalid record in window - record size not aligned": Vector(
        size=2, trim=10, window=3, written=(10, 12, 15, 17, 19), kept=(12, 15)
    ),
    "trim at an invalid record - record size not aligned": Vector(
        size=2, trim=10, window=9, written=(9, 14, 18, 20), kept=(14, 18)
    ),
    "small window - record size aligned": Vector(size=1, window=1, written=(0, 1, 3, 4, 5), kept=(0, 1)),
    "invalid record in window - record size aligned": Vector(
        size=1, trim=10, window=3, written=(10, 11, 13, 14, 15, 16), kept=(11, 13, 14)
    ),
    "trim at an invalid record - record size aligned": Vector(
        size=1, trim=10, window=5, written=(9, 11, 13, 15, 16, 17), kept=(11, 13, 15, 16)
    ),
    "zero window": Vector(size=1, trim=10, window=0, written=(10, 11, 12, 14), kept=(11, 12)),
}


@dataclass(frozen=True, kw_only=True)
class Merged:
    """One vector of blocks that several records share: (place, records, whole or torn), in units and counts.

    `trim` counts the records of the first block that were trimmed. `kept` are (place, number) of what is recovered;
    None where it is refused. `stale` has the device filled with an older turn's records.
    """

    blocks: tuple[tuple[int, int, bool], ...]
    window: int
    kept: tuple[tuple[int, int], ...] | None
    trim: int = 0
    turn: int | None = None
    stale: bool = False


WHOLE, TORN = True, False
TORN_BYTES = 200
"""What comes to the disk of a torn frame: its header, and less of its body than any here has."""

MERGED = {
    "merge write - base": Merged(blocks=((0, 3, WHOLE),), window=2, kept=((0, 0), (0, 1), (0, 2))),
    "merge write - trimmed": Merged(blocks=((0, 4, WHOLE),), trim=2, window=2, kept=((0, 2), (0, 3))),
    "merge write - some invalid records": Merged(
        blocks=((0, 5, TORN), (1, 4, TORN)), trim=2, window=2, kept=None
    ),
    "merge write - random order": Merged(blocks=((1, 4, TORN), (0, 5, TORN)), trim=2, window=2, kept=None),
    "merge write - record in the middle": Merged(blocks=((0, 8, TORN),), trim=3, window=2, kept=None),
    "merge write - round robin": Merged(
        blocks=((3, 5, TORN), (4, 4, TORN)), trim=2, turn=4, window=2, kept=None
    ),
    "merge write - overwrite": Merged(
        blocks=((2, 7, WHOLE),), trim=4, window=2, kept=((2, 4), (2, 5), (2, 6)), stale=True
    ),
    "merge write - small window": Merged(
        blocks=((0, 4, TORN), (1, 4, TORN), (3, 4, TORN), (4, 1, WHOLE)), window=1, kept=()
    ),
    "merge write - invalid record in window": Merged(
        blocks=((2, 4, TORN), (4, 4, TORN), (5, 4, TORN), (6, 4, TORN), (7, 4, TORN), (8, 1, WHOLE)),
        trim=1,
        window=4,
        kept=None,
    ),
    "merge write - trim at an invalid record": Merged(
        blocks=((2, 4, TORN), (3, 4, TORN), (5, 4, TORN), (6, 4, TORN), (7, 1, WHOLE)),
        trim=3,
        window=2,
        kept=None,
    ),
    "merge write - zero window": Merged(
        blocks=((2, 4, TORN), (3, 4, TORN), (5, 4, TORN), (6, 1, WHOLE)), trim=1, window=0, kept=None
    ),
}


def value_of(place: int, number: int = 0, units: int = 1) -> bytes:
    """A value that says where it was written; incompressible it need not be, logs here have no codec."""
    return b"%d/%d " % (place, number) + b"." * ((units - 1) * UNIT)


class Device:
    """A log that is written frame by frame: what is given a place, and which bytes come to the disk."""

    def __init__(self, *, start: int, base_lsn: int, turn: int | None, window: int, order: str) -> None:
        self.start, self.turn, self.window, self.order = start, turn, window, order
        self.base_lsn, self.next_lsn, self.chain = base_lsn, base_lsn + 1, CHAIN if start else 0
        self.begin = LogEnd(last_lsn=base_lsn, position=start * UNIT, chain=self.chain)
        self.frames: dict[int, tuple[FrameHeader, bytes]] = {}
        self.turned: SegmentHeader | None = None
        self.first = self._header(1, start, start)
        self.end = start

    def _header(self, number: int, place: int, previous: int) -> SegmentHeader:
        return SegmentHeader(
            log_id=IDENTITY.log_id,
            epoch=IDENTITY.epoch,
            epoch_id=IDENTITY.epoch_id,
            number=number,
            start_position=place * UNIT,
            previous_end=previous * UNIT,
            first_lsn=self.next_lsn,
            chain=self.chain,
            alignment=UNIT,
            frame_bytes_max=FRAME_BYTES_MAX,
            created_us=1,
            reorder_window_bytes=self.window * UNIT,
            flags=SegmentFlag.COMPLETION_ORDER if self.order == "completion" else SegmentFlag(0),
        )

    def give(self, place: int, values: list[bytes]) -> FrameHeader:
        """Seal the next frame, which stands at this place; whether it comes to the disk is said later."""
        if place == self.turn:
            self.turned = self._header(2, place, self.end)
        assert place == self.end
        buffers, footprint, self.chain = seal_frame(
            prepare_body(Columns(len(values), PUT | HAS_VALUE, None, values)),
            IDENTITY,
            position=place * UNIT,
            first_lsn=self.next_lsn,
            durable_position=self.start * UNIT,
            chain=self.chain,
            sealed_us=1_700_000_000_000_000,
            alignment=UNIT,
        )
        data = b"".join(buffers)
        header = FrameHeader.parse(data)
        self.frames[place] = header, data
        self.next_lsn = header.last_lsn + 1
        self.end = place + footprint // UNIT
        return header

    def store(
        self, writes: list[tuple[int, bytes]], *, low_watermark: int, durable: FrameHeader | None = None
    ) -> CrashingStorage:
        """Return the disk after these writes of (place, bytes), in this order."""
        storage = CrashingStorage()
        storage.create()
        headers = [self.first, *([] if self.turned is None else [self.turned])]
        manifest = Manifest(
            log_id=IDENTITY.log_id,
            ack_order=self.order,
            lineage=(EpochRecord(number=1, id=IDENTITY.epoch_id, first_lsn=1, position=0, chain=0),),
            segments=tuple(
                SegmentRecord(number=h.number, state=SegmentState.PREPARED, epoch=1) for h in headers
            ),
            next_segment=len(headers) + 1,
            end=self.begin,
            low_watermark=low_watermark,
        )
        write_whole(storage, MANIFEST_NAME, NEW_NAME, encode_manifest(manifest))
        for header in headers:
            file = storage.open(segment_name(header.number), "create")
            file.allocate(SEGMENT_HEADER_BYTES + (self.end - self.start) * UNIT)
            file.write(0, [header.encode()])
            for place, data in writes:
                if (self.turned is not None and place * UNIT >= self.turned.start_position) == (
                    header.number == 2
                ):
                    file.write(header.offset_of(place * UNIT), [data])
            file.sync()
            file.close()
        if durable is not None:
            mark = DurableSlot(1, 1, IDENTITY.epoch_id, durable.end_position, durable.last_lsn)
            cell = storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=True)
            assert cell is not None
            cell.write(*encode_slot(mark))
            cell.close()
        storage.sync_directory()
        return storage


def image_of(vector: Vector, order: str) -> CrashingStorage:
    """Lay a vector of single records out."""
    start, base_lsn = vector.start, 0 if vector.trim is None else 7
    device = Device(start=start, base_lsn=base_lsn, turn=vector.turn, window=vector.window, order=order)
    stale_device = Device(start=0, base_lsn=0, turn=None, window=vector.window, order=order)
    written = [place for place in vector.written if place >= start]
    place = start
    while place <= max(written):
        units = vector.size if place in written else 1
        device.give(place, [value_of(place, units=units)])
        place += units
    writes = []
    for (
        stale
    ) in vector.stale:  # on a ring of a hundred blocks they stand where the records of the next turn go
        stale_device.end = stale
        stale_device.give(stale, [value_of(stale, units=vector.size)])
        if stale + 100 >= start:
            writes.append((stale + 100, stale_device.frames[stale][1]))
    writes += [(place, device.frames[place][1]) for place in written]
    return device.store(writes, low_watermark=base_lsn)


def merged_image(vector: Merged, order: str, *, trimmed: bool) -> CrashingStorage:
    """Lay a vector of shared blocks out; without what it trimmed, nothing says that the first block was durable."""
    start = min(place for place, _, _ in vector.blocks)
    device = Device(start=start, base_lsn=0, turn=vector.turn, window=vector.window, order=order)
    blocks = {place: (records, whole) for place, records, whole in vector.blocks}
    while device.end <= max(blocks):
        place = device.end
        records, _ = blocks.get(place, (1, TORN))
        device.give(place, [value_of(place, number) + b"." * 300 for number in range(records)])
    writes = [(start, b"\xa5" * UNIT * (device.end - start))] if vector.stale else []
    for place, _, whole in vector.blocks:
        data = device.frames[place][1]
        writes.append((place, data if whole else data[:TORN_BYTES]))
    first = device.frames[start][0]
    return device.store(
        writes,
        low_watermark=vector.trim if trimmed else 0,
        durable=first if trimmed and vector.trim else None,
    )


def opened(image: CrashingStorage, policy: str) -> walkit.WriteAheadLog:
    """Open under a policy."""
    return walkit.open(storage=image, options=walkit.LogOptions(recovery=policy))  # type: ignore[arg-type]


def places(records: Iterator[walkit.Record]) -> list[tuple[int, int]]:
    """Where records say that they were written: (place, number)."""
    found = []
    for record in records:
        place, _, number = (record.value or b"").split()[0].partition(b"/")
        found.append((int(place), int(number)))
    return found


@pytest.mark.parametrize(("order", "policy"), ORDERS, ids=str)
@pytest.mark.parametrize("name", VECTORS)
def test_single_records(name: str, order: str, policy: str) -> None:
    """Open each vector: what is recovered is its list, in order; a second opening, and verify, say the same."""
    vector = VECTORS[name]
    image = image_of(vector, order)
    wanted = [(place, 0) for place in vector.kept]
    with opened(image, policy) as log:
        assert places(log.read()) == wanted
        next_lsn = log.append(b"0/0").first_lsn
        assert next_lsn == log.recovery.last_lsn + 1
    with opened(image, policy) as log:
        assert places(log.read()) == [*wanted, (0, 0)]
        assert not log.recovery.cuts
    assert walkit.verify(image).ok


@pytest.mark.parametrize(("order", "policy"), ORDERS, ids=str)
@pytest.mark.parametrize("name", MERGED)
def test_blocks_that_records_share(name: str, order: str, policy: str) -> None:
    """Open each vector, with its trim and without: its list, or a refusal that names what is lost; no half frame."""
    vector = MERGED[name]
    if vector.kept is None:
        image = merged_image(vector, order, trimmed=True)
        with pytest.raises(CorruptionError) as refused:
            opened(image, policy)
        assert refused.value.first_lost_lsn == 1
    else:
        with opened(merged_image(vector, order, trimmed=True), policy) as log:
            assert places(log.read()) == list(vector.kept)
    whole = {place for place, _, is_whole in vector.blocks if is_whole}
    with opened(merged_image(vector, order, trimmed=False), policy) as log:
        found = places(log.read())
        assert {place for place, _ in found} <= whole
        assert all((place, number) in found for place, number in vector.kept or ())


def test_every_vector_is_here() -> None:
    """Count them: seventeen of single records, eleven of shared blocks."""
    assert (len(VECTORS), len(MERGED)) == (17, 11)
