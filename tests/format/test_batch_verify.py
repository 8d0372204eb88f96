"""Frames checked many at once: the same verdict as one by one, whatever the file holds."""

from __future__ import annotations

from functools import reduce
from itertools import product
from operator import and_, or_
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.format.plain_reader import PlainRecord
from tests.format.test_walk import CHAIN, FIRST_LSN, FRAMES, SEGMENT, START, WHOLE, chained, segment_file
from tests.support.makers import LINK, MANY, ONE, PUT, STAMPED, TRANSACTION, flipped, forged, frame_of
from walkit.errors import CorruptionError
from walkit.format.batch_verify import HEADER, UNPACKED_BYTES_MAX, VerifiedFrames
from walkit.format.body import to_arrow
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameHeader, decode_frame
from walkit.format.layout import (
    CODEC_NAMES,
    FRAME_FLAGS_KNOWN,
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    FrameFlag,
)
from walkit.record import Buffer
from walkit.segments.frame_walk import FrameWalk
from walkit.storage.interface import StorageFile

MIXED = chained(ONE, ONE, [], MANY, STAMPED, ONE, TRANSACTION, ONE)
STAMPS = FrameFlag.TIMESTAMPS | FrameFlag.UNIFORM_TIMESTAMPS
PACKED = chained(MANY * 3, ONE, [], MANY * 2, STAMPED, codec="zstd")
HOLEY = [row._replace(lsn=row.lsn * row.lsn) for row in MANY]
SPARSE = chained(HOLEY, ONE, HOLEY, codec="zstd", sparse=True)
UNIFORM = [PlainRecord(n + 1, PUT, b"key", b"the same words " * 9, None, False) for n in range(9)]
ALL_KINDS = (MIXED, PACKED, SPARSE, chained(ONE, UNIFORM, UNIFORM, ONE, codec="zstd"))


def verdict(file: StorageFile, *, rows: bool, **given: Any) -> tuple[object, ...]:
    """The verdict of a walk, every body taken apart; with `rows` many at once."""
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


def test_a_row_has_the_facts_of_its_frames() -> None:
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


def test_bit_flips_have_the_same_verdict_in_rows() -> None:
    """Bits turned in frames of all kinds: the same frames, end, fault and damaged header as a walk without rows."""
    for whole, step in ((WHOLE, 5), (b"".join(PACKED), 37), (b"".join(SPARSE), 37)):
        file = segment_file(whole)
        for bit in range(0, len(whole) * 8, step):
            at = bit >> 3
            file.write(SEGMENT_HEADER_BYTES + at, [flipped(whole[at : at + 1], bit & 7)])
            assert verdict(file, rows=True) == verdict(file, rows=False), f"bit {bit}"
            file.write(SEGMENT_HEADER_BYTES + at, [whole[at : at + 1]])


@pytest.mark.parametrize("tail", [b"", bytes(512)])
def test_a_cut_at_every_byte_has_the_same_verdict_in_rows(tail: bytes) -> None:
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
        "codec": st.sampled_from([0, 1, 2, 255]),
    },
)


@given(kind=st.sampled_from([FRAMES, PACKED, SPARSE]), which=st.integers(0, 4), fields=FORGERIES)
def test_forged_fields_have_the_same_verdict_in_rows(
    kind: list[bytes], which: int, fields: dict[str, int]
) -> None:
    """Any fields under right checksums, in any frame of some: the same verdict as one by one, and no error but it."""
    fields = {name: value & 0xFFFF if name == "flags" else value for name, value in fields.items()}
    frames, which = [*kind], which % len(kind)
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


BODIES = st.binary(min_size=1, max_size=40)
RAW_BYTES = st.none() | st.integers(41, 300)
"""The size that a header gives for the decompressed body; None for a body that is not compressed."""


def with_body(frame: bytes, body: bytes, flags: int, raw_bytes: int | None) -> bytes:
    """The frame with another body, plain or as if it was compressed, or really: none from an honest writer."""
    if raw_bytes is None:
        return forged(frame, body, flags=flags)
    honest = zstandard.compress(body.ljust(raw_bytes, b"\0")) if raw_bytes % 2 else body
    packed = honest if len(honest) < raw_bytes else body
    return forged(frame, packed, flags=flags, codec=1, body_raw_bytes=raw_bytes)


@given(body=BODIES, flags=st.integers(0, 63), raw_bytes=RAW_BYTES)
def test_undecodable_bodies_have_the_same_verdict_in_rows(
    body: bytes, flags: int, raw_bytes: int | None
) -> None:
    """Any body under right checksums: taken apart many at once or alone, the same error or none."""
    first, second = chained(ONE, ONE)
    file = segment_file(first + with_body(second, body, flags, raw_bytes) + bytes(128))
    assert verdict(file, rows=True) == verdict(file, rows=False)


def row_of(frames: list[bytes]) -> VerifiedFrames:
    """The frames as one row, whose bodies are not read yet."""
    rows: list[VerifiedFrames] = []
    end = START + sum(map(len, frames))
    walk = FrameWalk(
        segment_file(b"".join(frames)), SEGMENT, position=START, end_position=end, row_seen=rows.append
    )
    assert list(walk) == [] and len(rows) == 1
    return rows[0]


def test_the_columns_of_a_row_are_those_of_its_frames() -> None:
    """Uniform frames, which come as one, and others of all kinds: the same Arrow batch as frame by frame."""
    for frames in (chained(ONE, [], ONE, ONE), chained(MANY, ONE), *ALL_KINDS, chained([])):
        heads = [(FrameHeader.parse(frame), memoryview(frame)) for frame in frames]
        expected = to_arrow([(head.first_lsn, decode_frame(head, f)) for head, f in heads if head.records])
        assert to_arrow(list(row_of(frames).columns())).equals(expected)
    for one in (chained(ONE, [], ONE, ONE), chained(ONE, UNIFORM, [], UNIFORM, codec="zstd")):
        assert len(list(row_of(one).columns())) == 1


def test_frames_of_one_value_with_lsns_left_out_between_them_keep_their_own() -> None:
    """A sparse frame without records between uniform ones takes LSNs: the records after it have the right ones."""
    first = chained(ONE)[0]
    head = FrameHeader.parse(first)
    at, lsn = head.end_position, FIRST_LSN + 1
    hole = frame_of([], sparse=True, span=7, position=at, first_lsn=lsn, chain=head.header_crc)
    chain = FrameHeader.parse(hole).header_crc
    last = frame_of(ONE, position=START + len(first) + len(hole), first_lsn=FIRST_LSN + 8, chain=chain)
    assert [lsn for lsn, _ in row_of([first, hole, last]).columns()] == [FIRST_LSN, FIRST_LSN + 8]


def test_columns_end_at_the_given_end() -> None:
    """A malformed body after the last LSN that is wanted raises no error; a frame that begins before it is whole."""
    frames = chained(MANY, ONE, ONE)
    frames[2] = forged(frames[2], b"nothing")
    row = row_of(frames)
    for last_lsn, counts in ((FIRST_LSN, [12]), (FIRST_LSN + 11, [12]), (FIRST_LSN + 12, [12, 1])):
        assert [columns.count for _, columns in row.columns(last_lsn)] == counts
    with pytest.raises(CorruptionError):
        list(row.columns(FIRST_LSN + 13))


@given(body=BODIES, flags=st.integers(0, 63), raw_bytes=RAW_BYTES)
def test_columns_of_a_row_show_a_malformed_body(body: bytes, flags: int, raw_bytes: int | None) -> None:
    """Any body under right checksums after a good frame: the columns, or the error, that the frame alone gives."""
    assume(flags & STAMPS != FrameFlag.UNIFORM_TIMESTAMPS)
    first, second = chained(ONE, ONE)
    second = with_body(second, body, flags, raw_bytes)
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


@pytest.mark.parametrize("decode", [True, False])
def test_rows_take_every_frame_that_is_right_by_itself(decode: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mix frames of every codec and flag that the format has: rows take all of them, and check each byte once."""
    # A frame that rows do not take ends one, and all bytes after it are checked again: many such frames among others
    # cost the square of their number. A new flag or codec that rows do not know fails here.
    stamps: list[list[int] | None] = [None, [7, 8], [7, 7]]
    frames: list[bytes] = []
    position, lsn, chain = START, FIRST_LSN, CHAIN
    for codec, sparse, time, keys, values, kinds in product(
        (None, "zstd"), (False, True), stamps, (2, 3), (2, 3), (PUT, LINK)
    ):
        rows = [
            PlainRecord(n, kind, b"k" * key, b"v" * (40 * value), None if time is None else time[n], False)
            for n, kind, key, value in ((0, PUT, 2, 2), (1, kinds, keys, values))
        ]
        frames.append(
            frame_of(rows, position=position, first_lsn=lsn, chain=chain, codec=codec, sparse=sparse)
        )
        head = FrameHeader.parse(frames[-1])
        position, lsn, chain = head.end_position, head.last_lsn + 1, head.header_crc
    heads = [FrameHeader.parse(frame) for frame in frames]
    assert {head.codec for head in heads} == set(CODEC_NAMES)
    flags = reduce(or_, (head.flags for head in heads))
    assert flags == FRAME_FLAGS_KNOWN and reduce(and_, (head.flags for head in heads)) == 0
    checked = [0]

    def counting(data: Buffer, *more: int) -> int:
        checked[0] += len(data)
        return crc32c(data, *more)

    monkeypatch.setattr("walkit.format.batch_verify.crc32c", counting)
    seen: list[VerifiedFrames] = []
    file = segment_file(b"".join(frames))
    walk = FrameWalk(
        file, SEGMENT, position=START, end_position=position, decode=decode, row_seen=seen.append
    )
    assert [header.flags for header, _ in walk] == [] and walk.fault is None
    assert walk.frames == len(frames) == sum(len(row.ends) for row in seen)
    assert checked[0] <= sum(map(len, frames))


def test_a_row_ends_before_its_bodies_take_too_much_memory() -> None:
    """Zeros packed into little: no row decompresses more than is allowed, every frame is taken, and checked once."""
    zeros = [PlainRecord(1, PUT, b"key", bytes(300_000), None, False)]
    frames = chained(*[zeros] * 20, codec="zstd")
    rows: list[VerifiedFrames] = []
    end = START + sum(map(len, frames))
    file = segment_file(b"".join(frames))
    walk = FrameWalk(file, SEGMENT, position=START, end_position=end, row_seen=rows.append)
    assert list(walk) == [] and walk.fault is None and walk.frames == 20
    raw = [int(row.heads["raw"].sum()) for row in rows]
    assert sum(raw) >= 20 * 300_000 and max(raw) < UNPACKED_BYTES_MAX + 300_100


def test_the_last_frame_of_a_segment_is_held_to_its_end() -> None:
    """A right end takes the whole row; a wrong one leaves the last frame to be told as the fault it is."""
    last = FrameHeader.parse(MIXED[-1]).header_crc
    file = segment_file(b"".join(MIXED))
    for chain in (last, last ^ 1):
        assert verdict(file, rows=True, last_chain=chain) == verdict(file, rows=False, last_chain=chain)
    single = segment_file(MIXED[0])
    wrong = {"last_chain": 1}
    assert verdict(single, rows=True, **wrong) == verdict(single, rows=False, **wrong)


def test_a_frame_larger_than_one_read_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of 200 bytes: frames that reach beyond them are found anyway."""
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
