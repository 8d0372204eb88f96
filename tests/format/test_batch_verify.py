"""Frames checked many at once: the same verdict as one by one, whatever stands in the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.format.makers import MANY, ONE, STAMPED, TRANSACTION, flipped, forged
from tests.format.test_walk import CHAIN, FIRST_LSN, FRAMES, SEGMENT, START, WHOLE, chained, segment_file
from walkit.errors import CorruptionError
from walkit.format.batch_verify import HEADER, VerifiedFrames
from walkit.format.body import to_arrow
from walkit.format.frame import FrameHeader, decode_frame
from walkit.format.layout import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, FrameFlag
from walkit.segments.frame_walk import FrameWalk
from walkit.storage.interface import StorageFile

MIXED = chained(ONE, ONE, [], MANY, STAMPED, ONE, TRANSACTION, ONE)
STAMPS = FrameFlag.TIMESTAMPS | FrameFlag.UNIFORM_TIMESTAMPS
PACKED = chained(MANY * 3, ONE, codec="zstd")


def verdict(file: StorageFile, *, rows: bool, **given: Any) -> tuple[object, ...]:
    """What a walk says in the end, every body taken apart; with `rows` many at once."""
    seen: list[VerifiedFrames] = []
    walk = FrameWalk(
        file,
        SEGMENT,
        position=START,
        end_position=START + file.size() - SEGMENT_HEADER_BYTES,
        **{"next_lsn": FIRST_LSN, "chain": CHAIN, "decode": True, **given},
        row_seen=seen.append if rows else None,
    )
    malformed = None
    try:
        for header, frame in walk:
            decode_frame(header, frame)
    except CorruptionError as error:
        malformed = (error.position, str(error))
    return (walk.frames, walk.records, walk.position, walk.next_lsn, walk.chain, walk.promised_position,
            walk.fault, walk.at_fault, malformed)  # fmt: skip


def test_a_row_tells_what_its_frames_say() -> None:
    """Eight frames of all shapes in one row: ends, LSNs, records, chain and promise are those of the headers."""
    seen: list[VerifiedFrames] = []
    file = segment_file(b"".join(MIXED))
    end = START + sum(map(len, MIXED))
    walk = FrameWalk(
        file, SEGMENT, position=START, end_position=end, next_lsn=FIRST_LSN, chain=CHAIN, row_seen=seen.append
    )
    assert list(walk) == [] and walk.fault is None
    heads = [FrameHeader.parse(frame) for frame in MIXED]
    assert len(seen) == 1
    assert seen[0].ends.tolist() == [head.end_position for head in heads]
    assert seen[0].last_lsns.tolist() == [head.last_lsn for head in heads]
    assert (seen[0].records, seen[0].first_lsn) == (sum(head.records for head in heads), FIRST_LSN)
    assert (seen[0].chain, walk.chain) == (heads[-1].header_crc,) * 2
    assert seen[0].promised_position == max(head.durable_position for head in heads)


def test_bit_flips_are_told_as_one_by_one() -> None:
    """Every fifth bit of four frames turned: the same frames, end, fault and damaged header as a walk without rows."""
    file = segment_file(WHOLE)
    for bit in range(0, len(WHOLE) * 8, 5):
        at = bit >> 3
        file.write(SEGMENT_HEADER_BYTES + at, [flipped(WHOLE[at : at + 1], bit & 7)])
        assert verdict(file, rows=True) == verdict(file, rows=False), f"bit {bit}"
        file.write(SEGMENT_HEADER_BYTES + at, [WHOLE[at : at + 1]])


@pytest.mark.parametrize("tail", [b"", bytes(512)])
def test_a_cut_at_every_byte_is_told_as_one_by_one(tail: bytes) -> None:
    """A file that ends at any byte, bare or with zeros behind: the same verdict."""
    for size in range(len(WHOLE)):
        file = segment_file(WHOLE[:size] + tail)
        assert verdict(file, rows=True) == verdict(file, rows=False), f"cut at {size}"


NUMBERS = st.sampled_from([0, 1, 63, 64, 65, 255, (1 << 20) + 1, 1 << 31, (1 << 32) - 1])
WIDE = NUMBERS | st.sampled_from([START, FIRST_LSN, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
FORGERIES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("flags", "span", "records", "footprint", "body_raw_bytes", "chain"), NUMBERS),
        **dict.fromkeys(("position", "first_lsn", "durable_position", "log_id", "epoch", "epoch_id"), WIDE),
        "body_stored_bytes": NUMBERS,
    },
)


@given(which=st.integers(0, 3), fields=FORGERIES)
def test_forged_fields_are_told_as_one_by_one(which: int, fields: dict[str, int]) -> None:
    """Any fields under right checksums, in any frame of four: the same verdict as one by one, and no error but it."""
    fields = {name: value & 0xFFFF if name == "flags" else value for name, value in fields.items()}
    frames = [*FRAMES]
    frames[which] = forged(frames[which], **fields)
    try:
        expected: object = verdict(segment_file(b"".join(frames)), rows=False)
    except Exception as error:
        expected = (type(error), str(error))
    try:
        found: object = verdict(segment_file(b"".join(frames)), rows=True)
    except Exception as error:
        found = (type(error), str(error))
    assert found == expected


@given(body=st.binary(min_size=1, max_size=40), flags=st.integers(0, 31))
def test_bodies_that_do_not_decode_are_told_as_one_by_one(body: bytes, flags: int) -> None:
    """Any body under right checksums: taken apart many at once or alone, the same error or none."""
    frame = forged(chained(ONE)[0], body, flags=flags)
    file = segment_file(frame + bytes(128))
    assert verdict(file, rows=True) == verdict(file, rows=False)


def row_of(frames: list[bytes]) -> VerifiedFrames:
    """The frames as one row, whose bodies nobody has looked at yet."""
    rows: list[VerifiedFrames] = []
    end = START + sum(map(len, frames))
    walk = FrameWalk(
        segment_file(b"".join(frames)), SEGMENT, position=START, end_position=end, row_seen=rows.append
    )
    assert list(walk) == [] and len(rows) == 1
    return rows[0]


def test_the_columns_of_a_row_are_those_of_its_frames() -> None:
    """Uniform frames, which come as one, and mixed ones: the same Arrow batch as frame by frame; marks have none."""
    for frames in (chained(ONE, [], ONE, ONE), chained(MANY, ONE), MIXED, chained([])):
        heads = [(FrameHeader.parse(frame), memoryview(frame)) for frame in frames]
        expected = to_arrow([(head.first_lsn, decode_frame(head, f)) for head, f in heads if head.records])
        assert to_arrow(list(row_of(frames).columns())).equals(expected)
    assert len(list(row_of(chained(ONE, [], ONE, ONE)).columns())) == 1


@given(body=st.binary(min_size=1, max_size=40), flags=st.integers(0, 31))
def test_columns_of_a_row_tell_a_malformed_body(body: bytes, flags: int) -> None:
    """Any body under right checksums behind a good frame: the columns, or the error, that the frame alone gives."""
    assume(not flags & FrameFlag.SPARSE and flags & STAMPS != FrameFlag.UNIFORM_TIMESTAMPS)
    first, second = chained(ONE, ONE)
    second = forged(second, body, flags=flags)
    header = FrameHeader.parse(second)
    found: list[object] = []
    try:
        for item in row_of([first, second]).columns():
            found.append(to_arrow([item]).num_rows)
    except CorruptionError as error:
        found.append((str(error), error.position, error.first_lost_lsn))
    told: list[object] = []
    try:
        decode_frame(header, memoryview(second))
    except CorruptionError as error:
        told = [1, (str(error), header.position, header.first_lsn)]
    assert found in ([told] if told else [[1, 1], [2]])


def test_compressed_frames_are_left_to_whoever_iterates() -> None:
    """A compressed frame between plain ones: it is yielded, those around it are not, and nothing is missing."""
    file = segment_file(b"".join(PACKED))
    rows: list[VerifiedFrames] = []
    end = START + sum(map(len, PACKED))
    walk = FrameWalk(file, SEGMENT, position=START, end_position=end, row_seen=rows.append)
    yielded = [header.codec for header, _ in walk]
    assert walk.fault is None and walk.frames == 2
    assert yielded and all(yielded[:1])
    assert len(yielded) + sum(len(row.ends) for row in rows) == 2


def test_the_last_frame_of_a_segment_is_held_to_its_end() -> None:
    """A right end takes the whole row; a wrong one leaves the last frame to be told as the fault it is."""
    last = FrameHeader.parse(MIXED[-1]).header_crc
    file = segment_file(b"".join(MIXED))
    for chain in (last, last ^ 1):
        assert verdict(file, rows=True, last_chain=chain) == verdict(file, rows=False, last_chain=chain)
    single = segment_file(MIXED[0])
    wrong = {"last_chain": 1}
    assert verdict(single, rows=True, **wrong) == verdict(single, rows=False, **wrong)


def test_a_frame_larger_than_what_is_read_at_once_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of 200 bytes: frames that reach beyond them are found all the same."""
    monkeypatch.setattr("walkit.segments.frame_walk.ROW_READ_BYTES", 200)
    file = segment_file(b"".join(MIXED))
    found = verdict(file, rows=True)
    assert found == verdict(file, rows=False) and found[0] == len(MIXED)


def test_header_offsets_are_those_of_the_codec() -> None:
    """The array's fields stand where FrameHeader has them, in the same order and with the same values."""
    assert HEADER.itemsize == FRAME_HEADER_BYTES
    head = FrameHeader.parse(MIXED[3])
    assert np.frombuffer(MIXED[3][:FRAME_HEADER_BYTES], HEADER)[0].item() == tuple(head)


def test_records_without_key_and_value_pass() -> None:
    """The shortest uniform body there is: lengths of 0 and a kind, the same verdict."""
    rows = [row._replace(key=None, value=None) for row in ONE]
    file = segment_file(b"".join(chained(rows, rows)))
    found = verdict(file, rows=True)
    assert found == verdict(file, rows=False) and found[0] == 2
