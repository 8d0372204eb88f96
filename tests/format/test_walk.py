"""Frames in a file: a walk over a damaged segment, byte by byte and bit by bit."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import makers
from tests.support.makers import (
    IDENTITY,
    MANY,
    ONE,
    TRANSACTION,
    flipped,
    forged,
    frame_of,
    plain_rows,
    rows_of,
)
from walkit.errors import FormatVersionError
from walkit.format.body import to_arrow
from walkit.format.frame import FrameFault, FrameHeader, decode_frame
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.segments.frame_walk import FrameWalk, last_chain_of
from walkit.storage.interface import StorageFile

START, FIRST_LSN, CHAIN = 640, 100, 0xC4A1
SEGMENT = SegmentHeader(
    log_id=IDENTITY.log_id,
    epoch=IDENTITY.epoch,
    epoch_id=IDENTITY.epoch_id,
    number=1,
    start_position=START,
    previous_end=START,
    first_lsn=FIRST_LSN,
    chain=CHAIN,
    alignment=64,
    frame_bytes_max=makers.FRAME_BYTES_MAX,
    created_us=1,
)


def chained(*groups: list[Any], codec: str | None = None, sparse: bool = False) -> list[bytes]:
    """Frames that follow each other from the segment's start."""
    frames, position, lsn, chain = [], START, FIRST_LSN, CHAIN
    for rows in groups:
        frame = frame_of(
            rows,
            position=position,
            first_lsn=lsn,
            chain=chain,
            durable_position=position,
            codec=codec,
            sparse=sparse,
        )
        frames.append(frame)
        header = FrameHeader.parse(frame)
        position, lsn, chain = position + len(frame), lsn + header.span, header.header_crc
    return frames


def segment_file(frames: bytes, header: SegmentHeader = SEGMENT) -> StorageFile:
    """A segment file on memory storage."""
    return makers.memory_file(header.encode() + frames)


@dataclass
class Walked:
    rows: list[tuple[Any, ...]]
    frames: int
    fault: FrameFault | None
    position: int
    promised: int


def walked(file: StorageFile, segment: SegmentHeader = SEGMENT, **start: Any) -> Walked:
    """The findings of a walk from the segment's start to the end of its file."""
    end = segment.start_position + file.size() - SEGMENT_HEADER_BYTES
    first = {"position": segment.start_position, "next_lsn": segment.first_lsn, "chain": segment.chain}
    walk = FrameWalk(file, segment, end_position=end, **{**first, **start})
    frames = [(header.first_lsn, decode_frame(header, frame)) for header, frame in walk]
    return Walked(rows_of(to_arrow(frames)), walk.frames, walk.fault, walk.position, walk.promised_position)


def rows_from(lsn: int, *groups: list[Any]) -> list[tuple[Any, ...]]:
    rows = [row for group in groups for row in group]
    return plain_rows([r._replace(lsn=lsn + i) for i, r in enumerate(rows)])


GROUPS: tuple[list[Any], ...] = (TRANSACTION, [], ONE, MANY)
FRAMES = chained(*GROUPS)
WHOLE = b"".join(FRAMES)
BORDERS = [START + sum(map(len, FRAMES[:n])) for n in range(len(FRAMES) + 1)]


def prefix(count: int) -> list[tuple[Any, ...]]:
    return rows_from(FIRST_LSN, *GROUPS[:count])


def test_whole_segment() -> None:
    """F-2.5, F-2.6, F-3.1: frames that follow each other are walked to the end, marks included, without a fault."""
    found = walked(segment_file(WHOLE))
    assert found == Walked(prefix(4), 4, None, BORDERS[4], BORDERS[3])


def test_a_flip_in_every_byte_ends_the_walk_there() -> None:
    """F-1.3, F-13.2: a bit of each byte turned: exactly the frames before it, and a verdict instead of an error."""
    file = segment_file(WHOLE)
    for at in range(len(WHOLE)):  # test_frame turns each bit of a frame
        file.write(SEGMENT_HEADER_BYTES + at, [flipped(WHOLE[at : at + 1], at % 8)])
        found = walked(file)
        hit = max(n for n in range(4) if BORDERS[n] - START <= at)
        assert (found.frames, found.position, found.rows) == (hit, BORDERS[hit], prefix(hit)), f"byte {at}"
        assert found.fault in (FrameFault.MAGIC, FrameFault.HEADER, FrameFault.BODY, FrameFault.PADDING)
        file.write(SEGMENT_HEADER_BYTES + at, [WHOLE[at : at + 1]])


def test_cut_at_every_byte() -> None:
    """F-13.1: a file that ends at any byte, bare or with zeros behind: the whole frames before the cut, no others."""
    for size in range(len(WHOLE)):
        whole = max(n for n in range(5) if BORDERS[n] - START <= size)
        found = walked(segment_file(WHOLE[:size]))
        assert (found.frames, found.rows) == (whole, prefix(whole))
        assert found.fault is (None if BORDERS[whole] - START == size else FrameFault.SHORT)
        found = walked(segment_file(WHOLE[:size] + bytes(512)))
        lost = WHOLE[size : BORDERS[min(whole + 1, 4)] - START]
        assert found.frames == whole or not any(lost), f"cut at {size}"
        assert found.fault is not None


def test_zeros_and_noise_after_the_last_frame() -> None:
    """F-1.5, F-8.4: zeros after the frames are END, anything else is a fault too, and nothing is read from either."""
    noise = random.Random(7)
    for behind in (bytes(96), bytes(1 << 16), b"\xff" * 200, noise.randbytes(4096), b"WLKF" + bytes(200)):
        found = walked(segment_file(WHOLE + behind))
        assert found.rows == prefix(4) and found.position == BORDERS[4]
        assert found.fault is (
            FrameFault.END if not any(behind) else FrameFault.MAGIC if behind[0] != 87 else FrameFault.HEADER
        )


MISPLACED: dict[str, tuple[dict[str, int], FrameFault]] = {
    "of another log": ({"log_id": 5}, FrameFault.FOREIGN),
    "of another epoch": ({"epoch": 4}, FrameFault.EPOCH),
    "of another opening": ({"epoch_id": 4}, FrameFault.EPOCH),
    "from a later position": ({"position": BORDERS[1] + 64}, FrameFault.POSITION),
    "from an earlier position": ({"position": START, "durable_position": 0}, FrameFault.POSITION),
    "with a repeated LSN": ({"first_lsn": FIRST_LSN + 1}, FrameFault.LSN),
    "with a skipped LSN": ({"first_lsn": FIRST_LSN + 3}, FrameFault.LSN),
    "of another history": ({"chain": 1}, FrameFault.CHAIN),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_misplaced_frames(name: str) -> None:
    """F-2.3, F-2.6, F-3.1: a whole frame at a wrong place ends the walk before it."""
    fields, fault = MISPLACED[name]
    second = frame_of(
        ONE, position=BORDERS[1], first_lsn=FIRST_LSN + 2, chain=FrameHeader.parse(FRAMES[0]).header_crc
    )
    assert walked(segment_file(FRAMES[0] + second)).frames == 2
    found = walked(segment_file(FRAMES[0] + forged(second, **fields)))
    assert (found.frames, found.fault, found.position) == (1, fault, BORDERS[1])


def test_lost_repeated_and_swapped_frames() -> None:
    """F-2.3, F-2.5: a frame that is missing, there twice, or in its neighbour's place is never read as another."""
    a, b, c, d = chained(ONE, ONE, ONE, ONE)
    assert len({len(f) for f in (a, b, c, d)}) == 1
    for order, whole in (
        ([a, c, d], 1),
        ([a, a, b, c], 1),
        ([a, c, b, d], 1),
        ([b, a], 0),
        ([a, b, c, b], 3),
    ):
        found = walked(segment_file(b"".join(order)))
        assert (found.frames, found.fault) == (whole, FrameFault.POSITION)


def test_a_stale_frame_of_a_cut_history() -> None:
    """F-3.1: after a cut LSN and position are given again; a frame of the old history is known by its chain."""
    old = chained(TRANSACTION, ONE, ONE)
    new = chained([TRANSACTION[0]._replace(value=b"other text"), TRANSACTION[1]])
    assert len(old[0]) == len(new[0]) and old[0] != new[0]
    found = walked(segment_file(new[0] + old[1] + old[2]))
    assert (found.frames, found.fault) == (1, FrameFault.CHAIN)


def test_the_chain_within_a_compacted_segment_is_its_own() -> None:
    """F-6.3: frames chain from the header's chain on; LSNs follow by the span of sparse frames."""
    rows = [ONE[0]._replace(lsn=FIRST_LSN), ONE[0]._replace(lsn=FIRST_LSN + 5)]
    first = frame_of(rows, position=START, sparse=True, span=20, chain=CHAIN)
    chain = FrameHeader.parse(first).header_crc
    second = frame_of(ONE, position=START + len(first), first_lsn=FIRST_LSN + 20, chain=chain)
    compacted = replace(SEGMENT, flags=SegmentFlag.COMPACTED, end_chain=77)
    found = walked(segment_file(first + second, compacted), compacted)
    assert (found.frames, [r[0] for r in found.rows], found.fault) == (
        2,
        [FIRST_LSN, FIRST_LSN + 5, FIRST_LSN + 20],
        None,
    )
    other = forged(second, chain=chain ^ 1)
    assert walked(segment_file(first + other, compacted), compacted).fault is FrameFault.CHAIN


def test_the_last_frame_is_the_one_that_the_segment_was_finished_with() -> None:
    """F-6.6: another intact frame instead of the last one is LAST, by the manifest or the header."""
    first = frame_of(ONE, position=START, first_lsn=FIRST_LSN, chain=CHAIN)
    chain = FrameHeader.parse(first).header_crc
    place: dict[str, Any] = {"position": START + len(first), "first_lsn": FIRST_LSN + 1, "chain": chain}
    second, other = frame_of(ONE, **place), frame_of([ONE[0]._replace(value=b"older")], **place)
    assert len(second) == len(other)
    last, end = FrameHeader.parse(second).header_crc, START + len(first + second)
    for frames, fault, count in ((first + second, None, 2), (first + other, FrameFault.LAST, 1)):
        found = walked(segment_file(frames), last_chain=last)
        assert (found.fault, found.frames) == (fault, count)
        assert walked(segment_file(frames + bytes(128)), last_chain=last).fault is FrameFault.END
    sealed = SegmentRecord(number=1, state=SegmentState.SEALED, end_position=end, end_chain=last)
    compacted = replace(SEGMENT, flags=SegmentFlag.COMPACTED, end_chain=last, own_end_chain=99)
    assert last_chain_of(sealed, SEGMENT, end) == last
    assert last_chain_of(sealed, SEGMENT, end - 64) is None
    assert last_chain_of(sealed._replace(state=SegmentState.PREPARED), SEGMENT, end) is None
    assert last_chain_of(sealed, compacted, end) == 99
    assert last_chain_of(sealed, replace(compacted, own_end_chain=0), end) is None


def test_a_gap_before_a_segment() -> None:
    """F-2.4, F-2.5: a segment of a larger alignment begins after a gap that its header names."""
    direct = replace(SEGMENT, alignment=4096, start_position=8192, previous_end=BORDERS[4])
    frame = frame_of(ONE, position=8192, first_lsn=FIRST_LSN, chain=CHAIN, alignment=4096)
    assert len(frame) == 4096
    found = walked(segment_file(frame, direct), direct)
    assert (found.frames, found.fault, found.position) == (1, None, 12288)


@pytest.mark.parametrize("fields", [{"version": 1}, {"flags": 64}, {"codec": 2}], ids=str)
def test_newer_frames_stop_the_walk(fields: dict[str, int]) -> None:
    """F-11.2, F-11.4: a frame of a newer format is a FormatVersionError, not the end of the log."""
    with pytest.raises(FormatVersionError):
        walked(segment_file(FRAMES[0] + forged(FRAMES[1], **fields)))


def test_absurd_lengths_read_nothing() -> None:
    """F-7.3: a footprint beyond the end of the file, within the limit or not, allocates nothing."""
    small = replace(SEGMENT, frame_bytes_max=1 << 30)
    for footprint in (1 << 20, 1 << 29, 0xFFFFFFC0):
        stored = footprint - 96
        frame = forged(FRAMES[0], footprint=footprint, body_stored_bytes=stored, body_raw_bytes=stored)[:4096]
        file = segment_file(frame, small)
        found = walked(file, small)
        assert found.fault is (FrameFault.LENGTH if footprint > 1 << 30 else FrameFault.SHORT)
        assert makers.peak_bytes(lambda file=file: walked(file, small)) < 100_000  # type: ignore[misc]


@given(data=st.binary(max_size=400), at=st.integers(0, len(WHOLE)))
def test_arbitrary_bytes_in_a_segment(data: bytes, at: int) -> None:
    """F-13.5: any bytes over any part of a segment: a prefix of its records and a verdict, never another error."""
    changed = WHOLE[:at] + data + WHOLE[at + len(data) :]
    found = walked(segment_file(changed))
    assert found.rows == prefix(found.frames)
    assert (found.fault is None) == (changed == WHOLE)


@given(
    groups=st.lists(makers.record_lists(min_size=0), min_size=1, max_size=5),
    codec=st.sampled_from([None, "zstd"]),
    skip=st.integers(0, 4),
)
def test_any_frames_walk(groups: list[list[Any]], codec: str | None, skip: int) -> None:
    """F-2.5, F-5.9: whatever records, from the start or from the middle, a walk yields them all."""
    frames = chained(*groups, codec=codec)
    file = segment_file(b"".join(frames))
    found = walked(file)
    assert (found.rows, found.fault) == (rows_from(FIRST_LSN, *groups), None)
    skip = min(skip, len(frames) - 1)
    middle = START + sum(map(len, frames[:skip]))
    later = walked(file, position=middle, next_lsn=None, chain=None)
    assert later.rows == found.rows[sum(map(len, groups[:skip])) :] and later.fault is None
