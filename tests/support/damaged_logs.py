"""Shared by the tests of salvage and repair: logs in memory of four segments, and ways to damage a copy of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import walkit
from walkit.format.frame import FrameHeader
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage
from walkit.read.ranges import plan_ranges, read_range
from walkit.segments.manifest_store import DURABLE_NAME, load_manifest
from walkit.storage.interface import Storage

OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=32 * 1024, idle_marker_ms=0)
RECORDS = 8
"""Of 24 KB each, one a frame: two fit a segment, so that there are four."""
Rows = list[tuple[int, bytes | None]]


def value_of(lsn: int) -> bytes:
    """Return the value of a record: no multiple of the alignment, so that its frame has padding."""
    return b"%03d " % lsn * 6000 + b"end"


@cache
def _written(closed: bool) -> CrashingStorage:
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=OPTIONS)
    for lsn in range(1, RECORDS + 1):
        log.append(value_of(lsn), b"key %d" % (lsn % 3))
    log.wait_idle()
    if closed:
        log.close()
    image = storage.process_kill()
    log.close()
    return image


def crash_image(*, closed: bool, without_cell: bool = False) -> CrashingStorage:
    """Return a copy of a log that was closed, or whose writer was killed; as after a power cut without its cell."""
    image = _written(closed).process_kill()
    if without_cell:
        image.remove(DURABLE_NAME)
    return image


def rows_of(log: walkit.WriteAheadLog | walkit.LogReader) -> Rows:
    """Return (LSN, value) of every record."""
    return [(r.lsn, r.value) for r in log.read()]


def rows_by_ranges(storage: Storage) -> Rows:
    """Read the log as Spark's workers do: range by range, each apart."""
    rows: Rows = []
    for part in plan_ranges(storage, parts=3):
        for batch in read_range(storage, part):
            rows += zip(batch.column("lsn").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return rows


def rows_without(*lost: int) -> Rows:
    """Return the rows of all records but these."""
    return [(lsn, value_of(lsn)) for lsn in range(1, RECORDS + 1) if lsn not in lost]


def options(policy: str) -> walkit.LogOptions:
    """Return the options of these logs with a recovery policy."""
    from dataclasses import replace

    return replace(OPTIONS, recovery=policy)  # type: ignore[arg-type]


def opened(storage: Storage, policy: str = "prefix") -> walkit.WriteAheadLog:
    """Open a log for writing with a recovery policy."""
    return walkit.open(storage=storage, options=options(policy))


def contents(storage: CrashingStorage) -> dict[str, bytes]:
    """Return the bytes of every file, those in lost+found too, except the locks and the durable slot."""
    names = [
        n for n in (*storage.names(), *(f"{n}" for n in storage.names("lost+found"))) if not n.endswith("/")
    ]
    return {n: read(storage, n) for n in names if n not in ("lock", "claims.lock", DURABLE_NAME)}


def read(storage: Storage, name: str) -> bytes:
    """Return the bytes of a file."""
    file = storage.open(name, "read")
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def patch(storage: Storage, name: str, offset: int, data: bytes) -> None:
    """Write over a part of a file, durably."""
    file = storage.open(name, "write")
    file.write(offset, [data], sync=True)
    file.close()


def flip(storage: Storage, name: str, offset: int, bit: int = 5) -> None:
    """Flip one bit."""
    patch(storage, name, offset, bytes([read(storage, name)[offset] ^ (1 << bit)]))


def shorten(storage: Storage, name: str, size: int) -> None:
    """Cut a file."""
    file = storage.open(name, "write")
    file.shorten(size)
    file.sync()
    file.close()


def wipe(storage: Storage, name: str, size: int) -> None:
    """Replace all bytes after `size` by zeros, as if writes never came to the disk."""
    file = storage.open(name, "write")
    file.write(size, [bytes(file.size() - size)], sync=True)
    file.close()


def overwrite(storage: Storage, name: str, data: bytes) -> None:
    """Replace a file by other bytes."""
    storage.remove(name)
    file = storage.open(name, "create")
    file.write(0, [data], sync=True)
    file.close()
    storage.sync_directory()


def frames_of(storage: Storage, name: str) -> list[tuple[int, FrameHeader]]:
    """Return (file offset, header) of the frames of an undamaged segment."""
    data, offset, found = read(storage, name), SEGMENT_HEADER_BYTES, []
    while offset + 96 <= len(data) and any(data[offset : offset + 96]):
        header = FrameHeader.parse(data, offset)
        found.append((offset, header))
        offset += header.footprint
    return found


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One way to damage a log, and what salvage gives up of it."""

    name: str
    do: Callable[[CrashingStorage], object]
    lost: tuple[int, ...] = ()
    """The LSNs that cannot be read afterwards."""
    rows: tuple[str, ...] = ()
    """Rows of the decision table that apply."""
    closed: bool = True
    mended: bool = False
    """Whether a segment's header is rebuilt."""
    given_again: int = 0
    """The first LSN of a new record if the tail was never promised; 0 for the one after all."""


def _frame(storage: CrashingStorage, number: int, index: int) -> tuple[str, int, FrameHeader]:
    name = segment_name(number)
    offset, header = frames_of(storage, name)[index]
    return name, offset, header


def in_frame(number: int, index: int, within: int) -> Callable[[CrashingStorage], None]:
    """Return a function that flips a bit in a frame of a segment; a negative `within` counts from the frame's end."""

    def do(storage: CrashingStorage) -> None:
        name, offset, header = _frame(storage, number, index)
        flip(storage, name, offset + (within if within >= 0 else header.footprint + within))

    return do


def zeroed(number: int, index: int) -> Callable[[CrashingStorage], None]:
    """Return what writes zeros over a frame."""

    def do(storage: CrashingStorage) -> None:
        name, offset, header = _frame(storage, number, index)
        patch(storage, name, offset, bytes(header.footprint))

    return do


def both(*steps: Callable[[CrashingStorage], object]) -> Callable[[CrashingStorage], None]:
    """Return what does all of these."""

    def do(storage: CrashingStorage) -> None:
        for step in steps:
            step(storage)

    return do


def gone(number: int) -> Callable[[CrashingStorage], None]:
    """Return what removes a segment."""
    return both(lambda s: s.remove(segment_name(number)), lambda s: s.sync_directory())


def foreign(storage: CrashingStorage) -> None:
    """Replace the second segment by one of another log."""
    other = CrashingStorage()
    with walkit.open(storage=other, options=OPTIONS) as log:
        for lsn in range(1, 5):
            log.append(value_of(lsn))
    overwrite(storage, segment_name(2), read(other, segment_name(2)))


def ends(storage: Storage) -> list[int]:
    """Return where the sealed segments end."""
    return [s.end_position for s in load_manifest(storage).sealed]


HEAD = 50
"""An offset within a segment's header."""

DAMAGES: tuple[Damage, ...] = (
    Damage(name="nothing", do=lambda s: None),
    Damage(name="a flip in the header of a first frame", do=in_frame(1, 0, 41), lost=(1,), rows=("P",)),
    Damage(name="a flip in the body of a last frame", do=in_frame(2, 1, 300), lost=(4,), rows=("P",)),
    Damage(name="a flip in the padding", do=in_frame(2, 0, -1), lost=(3,), rows=("P",)),
    Damage(name="a flip in the very last frame", do=in_frame(4, 1, 300), lost=(8,), rows=("P",)),
    Damage(name="a zeroed frame", do=zeroed(3, 0), lost=(5,), rows=("P",)),
    Damage(
        name="damage in two segments", do=both(in_frame(1, 1, 300), in_frame(4, 0, 41)), lost=(2, 7), rows=("P", "P")
    ),
    Damage(
        name="all frames of a segment", do=both(in_frame(2, 1, 41), in_frame(2, 0, 41)), lost=(3, 4), rows=("P",)
    ),
    Damage(name="a segment missing", do=gone(2), lost=(3, 4), rows=("L",)),
    Damage(name="the first segment missing", do=gone(1), lost=(1, 2), rows=("L",)),
    Damage(name="the last segment missing", do=gone(4), lost=(7, 8), rows=("L",)),
    Damage(name="two segments missing", do=both(gone(2), gone(3)), lost=(3, 4, 5, 6), rows=("L", "L")),
    Damage(
        name="a segment cut in a frame", do=lambda s: shorten(s, segment_name(2), 40_000), lost=(4,), rows=("P",)
    ),
    Damage(
        name="a segment cut to its header", do=lambda s: shorten(s, segment_name(2), 4096), lost=(3, 4), rows=("P",)
    ),
    Damage(name="a segment cut to nothing", do=lambda s: shorten(s, segment_name(2), 0), lost=(3, 4), rows=("L",)),
    Damage(name="a segment of another log", do=foreign, lost=(3, 4), rows=("M",)),
    Damage(
        name="a segment copied over another",
        do=lambda s: overwrite(s, segment_name(2), read(s, segment_name(1))),
        lost=(3, 4), rows=("M",),
    ),
    Damage(name="a flip in a segment header", do=lambda s: flip(s, segment_name(2), HEAD), rows=("N",), mended=True),
    Damage(
        name="a zeroed segment header", do=lambda s: patch(s, segment_name(1), 0, bytes(4096)), rows=("N",),
        mended=True,
    ),
    Damage(
        name="the header of another segment",
        do=lambda s: patch(s, segment_name(2), 0, read(s, segment_name(1))[:4096]), rows=("N",), mended=True,
    ),
    Damage(
        name="the header of a segment that is missing",
        do=both(lambda s: patch(s, segment_name(2), 0, read(s, segment_name(1))[:4096]), gone(1)),
        lost=(1, 2), rows=("L", "N"), mended=True,
    ),
    Damage(
        name="a segment header and a frame",
        do=both(in_frame(3, 0, 300), lambda s: flip(s, segment_name(3), HEAD)),
        lost=(5,), rows=("N",), mended=True,
    ),
    Damage(name="left by a killed writer", closed=False, do=lambda s: None, rows=("E",)),
    Damage(
        name="killed: a flip below a promise", closed=False, do=in_frame(4, 0, 300), lost=(7,), rows=("P",)
    ),
    Damage(
        name="killed: the last frame, promised by the cell", closed=False, do=in_frame(4, 1, 300), lost=(8,),
        rows=("P",),
    ),
    Damage(
        name="killed: the last frame, promised by nothing", closed=False,
        do=both(in_frame(4, 1, 300), lambda s: s.remove(DURABLE_NAME)), lost=(8,), rows=("P",), given_again=8,
    ),
    Damage(name="killed: the open segment missing", closed=False, do=gone(4), lost=(7, 8), rows=("L",)),
    Damage(
        name="killed: a flip in the open segment's header", closed=False,
        do=lambda s: flip(s, segment_name(4), HEAD), rows=("N",), mended=True,
    ),
    Damage(
        name="killed: the open segment's header and first frame", closed=False,
        do=both(in_frame(4, 0, 300), lambda s: flip(s, segment_name(4), HEAD)), lost=(7,), rows=("N",), mended=True,
    ),
    Damage(
        name="killed: header and all frames", closed=False,
        do=both(in_frame(4, 1, 41), in_frame(4, 0, 41), lambda s: flip(s, segment_name(4), HEAD)),
        lost=(7, 8), rows=("M",),
    ),
    Damage(
        name="killed: sealed and open damage", closed=False, do=both(in_frame(2, 0, 300), in_frame(4, 0, 300)),
        lost=(3, 7), rows=("P", "P"),
    ),
)  # fmt: skip
