"""The body: columns there and back, and every malformed body refused."""

from __future__ import annotations

import mmap
import struct
from array import array
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.format.plain_reader import PlainRecord, read_frame
from tests.support import makers
from tests.support.makers import (
    JOINED,
    MANY,
    ONE,
    STAMPED,
    TRANSACTION,
    forged,
    frame_of,
    joined_flags,
    judged,
    plain_rows,
    rows_of,
)
from walkit.errors import CorruptionError
from walkit.format.body import (
    COLUMN_BYTES_PER_RECORD,
    KIND_BYTES,
    Columns,
    DecodedColumns,
    decode_body,
    encode_body,
    encode_puts,
    to_arrow,
)
from walkit.format.frame import (
    FrameFault,
    FrameHeader,
    PreparedBody,
    check_header,
    decode_frame,
    prepare_body,
    prepare_puts,
)
from walkit.format.layout import HAS_KEY, HAS_VALUE, RECORDS_PER_FRAME_MAX
from walkit.record import RECORD_SCHEMA, Kind


def decoded(frame: bytes) -> tuple[int, DecodedColumns]:
    """(first LSN, columns) of a whole frame."""
    header = FrameHeader.parse(frame)
    return header.first_lsn, decode_frame(header, memoryview(frame))


@given(
    rows=makers.record_lists(), codec=st.sampled_from([None, "zstd"]), alignment=st.sampled_from([64, 4096])
)
def test_round_trip(rows: list[PlainRecord], codec: str | None, alignment: int) -> None:
    """F-5.1 to F-5.5: any records are the same through a frame and Arrow, and to the reader made from FORMAT.md."""
    frame = frame_of(rows, codec=codec, alignment=alignment)
    batch = judged(frame, alignment=alignment)
    assert not isinstance(batch, FrameFault)
    batch.validate(full=True)
    assert batch.schema.equals(RECORD_SCHEMA)
    assert rows_of(batch) == plain_rows(rows)
    head, plain = read_frame(frame)
    assert plain == rows and head["footprint"] == len(frame)
    assert joined_flags(decoded(frame)[1]).tolist() == [r.joined for r in rows]


@given(
    kind=st.one_of(st.integers(0, 255), st.sampled_from([kind for kind in KIND_BYTES if kind & HAS_VALUE])),
    rows=st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=40)), min_size=1, max_size=20),
    even=st.booleans(),
    missing=st.booleans(),
)
def test_puts_take_the_short_way_to_the_same_bytes(
    kind: int, rows: list[tuple[bytes, bytes]], even: bool, missing: bool
) -> None:
    """F-5: encode_puts encodes records of one kind byte as encode_body does their columns, errors included."""
    values = [b"value" if even else value for _, value in rows]
    keys = [key for key, _ in rows] if kind & HAS_KEY else []
    if missing and keys:
        keys[:] = keys[1:] or [b"key"] * 2
    made: list[object] = []
    for short in (True, False):
        try:
            if short:
                flags, buffers = encode_puts(kind, keys, values)
            else:
                flags, buffers = encode_body(Columns(len(values), kind, keys or None, values))
        except ValueError as error:
            made.append(str(error))
        else:
            made.append((flags, b"".join(buffers)))
    assert made[0] == made[1]


@given(
    values=st.lists(st.binary(max_size=9), min_size=1, max_size=20),
    even=st.sampled_from([None, 0, 5, 900, 2000]),
    keyed=st.booleans(),
    codec=st.sampled_from([None, "zstd"]),
)
def test_a_batch_is_prepared_as_its_columns_are(
    values: list[bytes], even: int | None, keyed: bool, codec: str | None
) -> None:
    """F-5: prepare_puts makes the body that prepare_body makes, of one length and of many, up to 40 kB, compressed."""
    values = values if even is None else [bytes([n]) * even for n in range(len(values))]
    kind = Kind.PUT.value | HAS_VALUE | (HAS_KEY if keyed else 0)
    keys = [b"key %d" % n for n in range(len(values))] if keyed else []
    short = prepare_puts(kind, keys, values, codec)
    long = prepare_body(Columns(len(values), kind, keys or None, values), codec)
    assert b"".join(short.buffers) == b"".join(long.buffers)
    fields = [name for name in PreparedBody.__slots__ if name != "buffers"]
    assert [getattr(short, name) for name in fields] == [getattr(long, name) for name in fields]


@given(
    rows=makers.record_lists(),
    gaps=st.lists(st.integers(1, 1 << 20), min_size=8, max_size=8),
    behind=st.integers(0, 99),
    codec=st.sampled_from([None, "zstd"]),
)
def test_sparse_round_trip(rows: list[PlainRecord], gaps: list[int], behind: int, codec: str | None) -> None:
    """F-6.1: records with any gaps between their LSNs keep them, and the frame covers the LSNs after the last."""
    lsns = np.cumsum(gaps).tolist()
    rows = [r._replace(lsn=lsn) for r, lsn in zip(rows, lsns, strict=False)]
    span = rows[-1].lsn - rows[0].lsn + 1 + behind
    frame = frame_of(rows, sparse=True, span=span, codec=codec)
    batch = judged(frame)
    assert not isinstance(batch, FrameFault)
    assert rows_of(batch) == plain_rows(rows)
    assert read_frame(frame)[1] == rows
    assert FrameHeader.parse(frame).last_lsn == rows[-1].lsn + behind


def test_sparse_frames_may_be_empty() -> None:
    """F-6.2: a sparse frame without records has no body, covers its LSNs, and decodes to nothing."""
    frame = frame_of([], sparse=True, first_lsn=30, span=1000)
    header, fault = check_header(frame, 0, 64, 1 << 20)
    assert fault is None and header is not None
    assert (len(frame), header.body_raw_bytes, header.first_lsn, header.last_lsn) == (128, 0, 30, 1029)
    assert to_arrow([decoded(frame)]).num_rows == 0 and not header.flags & ~32


@given(groups=st.lists(makers.record_lists(min_size=0), min_size=0, max_size=6), sparse=st.booleans())
def test_frames_become_one_batch(groups: list[list[PlainRecord]], sparse: bool) -> None:
    """F-5.1: frames of every shape, marks and sparse ones among them, stack to the batch of all their records."""
    frames, wanted, lsn = [], [], 1
    for i, rows in enumerate(groups):
        step = 3 if sparse and i % 2 else 1
        placed = [r._replace(lsn=lsn + j * step) for j, r in enumerate(rows)]
        frames.append(decoded(frame_of(placed, first_lsn=lsn, sparse=step > 1)))
        wanted += plain_rows(placed)
        lsn += 3 * len(rows) + 1
    batch = to_arrow(frames)
    batch.validate(full=True)
    assert batch.schema.equals(RECORD_SCHEMA)
    assert rows_of(batch) == wanted


@pytest.mark.parametrize(
    ("rows", "flags"),
    [(ONE, 0b111), (TRANSACTION, 0), (MANY, 0b11111), (STAMPED, 0b1110)],
    ids=["one", "transaction", "many alike", "stamped"],
)
def test_uniform_columns_are_one_value(rows: list[PlainRecord], flags: int) -> None:
    """F-5.8: a column in which all is equal is stored once, and said so by its flag."""
    frame = frame_of(rows)
    n = len(rows)
    assert FrameHeader.parse(frame).flags == flags
    sizes = [1 if flags & 1 else n, 4 if flags & 2 else 4 * n, 4 if flags & 4 else 4 * n]
    sizes += [(8 if flags & 16 else 8 * n) if flags & 8 else 0]
    sizes += [len(r.key or b"") + len(r.value or b"") for r in rows]
    assert FrameHeader.parse(frame).body_raw_bytes == sum(sizes)


def test_a_reader_takes_uniform_values_spelled_out() -> None:
    """F-5.8: the same records with every column written in full decode to the same batch."""
    n = len(MANY)
    body = b"".join(
        [
            struct.pack(f"<{n}I", *[len(r.key or b"") for r in MANY]),
            struct.pack(f"<{n}I", *[len(r.value or b"") for r in MANY]),
            struct.pack(f"<{n}q", *[r.timestamp_us or 0 for r in MANY]),
            bytes(makers.kind_byte(r) for r in MANY),
            b"".join(r.key or b"" for r in MANY),
            b"".join(r.value or b"" for r in MANY),
        ]
    )
    frame = frame_of(MANY)
    spelled = forged(frame, body, flags=8)
    assert judged(spelled) == judged(frame) and read_frame(spelled)[1] == MANY


def test_absence_is_in_the_kind_byte_alone() -> None:
    """F-5.4: bytes at an absent key are not seen, and do not shift the keys after it."""
    body = struct.pack("<IIIBB", 3, 2, 2, 0x21, 0x31) + b"ghokey" + b"v1v2"
    frame = forged(frame_of(TRANSACTION), body, flags=2)
    batch = judged(frame)
    assert not isinstance(batch, FrameFault)
    assert rows_of(batch) == [(1, 1, None, b"v1", None), (2, 1, b"key", b"v2", None)]


HEAD = struct.pack("<II", 1, 2)
MALFORMED: dict[str, tuple[bytes, int, int]] = {
    # a body, its number of records, its flags; 7 is: everything uniform
    "no body for its records": (b"\x31", 1, 7),
    "a length column cut short": (b"\1\0\0\0\2\0", 1, 7),
    "no kind byte": (HEAD, 1, 7),
    "keys reach beyond": (struct.pack("<IIB", 5, 0, 0x31) + b"abc", 1, 7),
    "values reach beyond": (HEAD + b"\x31ab", 1, 7),
    "lengths of 4 GiB": (struct.pack("<IIB", 0xFFFFFFFF, 0xFFFFFFFF, 0x31), 1, 7),
    "4 GiB for each of a million": (struct.pack("<IIB", 0xFFFFFFFF, 1, 0x31), RECORDS_PER_FRAME_MAX, 7),
    "a million lengths": (HEAD + b"\x31" + bytes(99), RECORDS_PER_FRAME_MAX, 5),
    "a million timestamps": (HEAD + b"\x31" + bytes(99), RECORDS_PER_FRAME_MAX, 15),
    "a million offsets": (HEAD + b"\x31" + bytes(99), RECORDS_PER_FRAME_MAX, 39),
    "a million kinds": (struct.pack("<II", 0, 0) + b"\x31" * 99, RECORDS_PER_FRAME_MAX, 6),
    "lengths that sum to more": (struct.pack("<IIIBB", 2, 3, 0, 0x31, 0x31) + b"abcd", 2, 4),
    "lengths that sum to less": (struct.pack("<IIIBB", 2, 1, 0, 0x31, 0x31) + b"abcd", 2, 4),
    "lengths that sum to 2^32": (struct.pack("<IIIBB", 0xFFFFFFFF, 1, 0, 0x31, 0x31), 2, 4),
    "a byte left over": (HEAD + b"\x31abc" + b"x", 1, 7),
    "kind 0": (HEAD + b"\x30abc", 1, 7),
    "kind 5": (HEAD + b"\x35abc", 1, 7),
    "kind 15": (HEAD + b"\x3fabc", 1, 7),
    "kind 9 of the second": (HEAD + b"\x31\x39" + b"abcdef", 2, 6),
    "a timestamp without a column": (HEAD + b"\x71abc", 1, 7),
    "a timestamp after the year 9999": (HEAD + struct.pack("<qB", 253402300800000000, 0x71) + b"abc", 1, 31),
    "one of two before the year 1": (HEAD + struct.pack("<qqB", 0, -(1 << 63), 0x71) + b"abcdef", 2, 15),
    "the last is joined": (HEAD + b"\xb1abc", 1, 7),
    "all are joined": (HEAD + b"\xb1" + b"abcdef", 2, 7),
    "the last of two is joined": (HEAD + b"\x31\xb1" + b"abcdef", 2, 6),
    "offsets that stand still": (HEAD + struct.pack("<IIB", 1, 1, 0x31) + b"abcdef", 2, 39),
    "offsets that go back": (HEAD + struct.pack("<IIB", 1, 0, 0x31) + b"abcdef", 2, 39),
    "offsets beyond the span": (HEAD + struct.pack("<IIB", 0, 10, 0x31) + b"abcdef", 2, 39),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bodies(name: str) -> None:
    """F-5.3 to F-5.6, F-6.1, F-7.3: a malformed body is a CorruptionError with its place, and allocates nothing."""
    body, count, flags = MALFORMED[name]
    span = 10 if flags & 32 and count == 2 else count
    frame = forged(frame_of(ONE, position=640), body, records=count, span=span, first_lsn=77, flags=flags)

    def refuse() -> CorruptionError:
        with pytest.raises(CorruptionError, match="malformed") as caught:
            judged(frame)
        return caught.value

    error = refuse()
    assert (error.position, error.first_lost_lsn) == (640, 77)
    assert error.expected is not None and error.found is not None
    assert makers.peak_bytes(refuse) < 100_000


def packed_body(raw: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(level=3, **options).compress(raw)


RAW_BODY = b"".join(encode_body(makers.columns_of(MANY))[1])
LIAR = bytearray(packed_body(bytes(1 << 20)))
LIAR[5:9] = len(RAW_BODY).to_bytes(4, "little")
BAD_ZSTD: dict[str, bytes] = {
    "no zstd at all": b"\x31" * 40,
    "an empty frame": packed_body(b""),
    "another size": packed_body(RAW_BODY + b"x"),
    "a bomb of another size": packed_body(bytes(1 << 20)),
    "a bomb that lies about its size": bytes(LIAR),
    "no size": packed_body(RAW_BODY, write_content_size=False),
    "bytes after it": packed_body(RAW_BODY) + b"x",
    "a frame after it": packed_body(RAW_BODY) + packed_body(b"y"),
    "cut short": packed_body(RAW_BODY)[:-3],
    "a skippable frame": b"\x50\x2a\x4d\x18\x04\0\0\0abcd",
    "a header alone": packed_body(RAW_BODY)[:8],
}


@pytest.mark.parametrize("name", BAD_ZSTD)
def test_bad_compressed_bodies(name: str) -> None:
    """F-5.9, F-7.3: zstd data of another size, without a size, with more after it: refused before it takes memory."""
    packed = BAD_ZSTD[name]
    header = FrameHeader.parse(frame_of(MANY))
    same = {"records": header.records, "span": header.span, "flags": header.flags}
    frame = forged(frame_of(MANY), packed, codec=1, body_raw_bytes=len(RAW_BODY), **same)
    assert len(packed) < len(RAW_BODY)

    def refuse() -> CorruptionError:
        with pytest.raises(CorruptionError, match="compressed") as caught:
            judged(frame)
        return caught.value

    assert refuse().first_lost_lsn == 1
    assert makers.peak_bytes(refuse) < 100_000


def test_lies_about_the_size_are_found_out() -> None:
    """F-5.9: the test above has a real liar: its header agrees with the frame's, its content is a mebibyte."""
    assert zstandard.frame_content_size(bytes(LIAR)) == len(RAW_BODY)


def test_zstd_only_where_smaller() -> None:
    """F-5.9: bytes that do not get smaller, or are smaller than a header, are stored as they are."""
    noise = np.random.default_rng(7).bytes(2000)
    for value, codec in ((noise, 0), (b"ab" * 8, 0), (b"ab" * 1000, 1)):
        header = FrameHeader.parse(frame_of([PlainRecord(1, 1, None, value, None, False)], codec="zstd"))
        assert header.codec == codec
        assert (header.body_stored_bytes < header.body_raw_bytes) == (codec == 1)


def test_one_frame_becomes_arrow_without_a_copy() -> None:
    """F-5.1: the key and value data of a frame's batch are the bytes of the frame itself."""
    frame = frame_of(MANY)
    batch = judged(frame)
    assert not isinstance(batch, FrameFault)
    start = pa.py_buffer(frame).address
    for name in ("key", "value"):
        data = batch.column(name).buffers()[2]
        assert start < data.address and data.address + data.size <= start + len(frame)


def test_a_million_empty_records() -> None:
    """F-7.3: 128 bytes that stand for 2^20 records are legal, and cost at most 100 bytes for each record."""
    n = RECORDS_PER_FRAME_MAX
    frame = forged(frame_of(ONE), struct.pack("<IIB", 0, 0, 0x31), records=n, span=n)
    batch = judged(frame)
    assert not isinstance(batch, FrameFault) and (len(frame), batch.num_rows) == (128, n)
    assert makers.peak_bytes(lambda: judged(frame)) + batch.nbytes < 100 * n


def test_more_than_arrow_holds() -> None:
    """F-7.3: frames whose values do not fit the 32-bit offsets of one batch are refused before they are joined."""
    half = memoryview(mmap.mmap(-1, 1 << 30))  # never touched, so it takes no memory
    columns = DecodedColumns(1, 0x21, 0, 1 << 30, None, None, memoryview(b""), half)
    with pytest.raises(ValueError, match="fewer frames"):
        to_arrow([(1, columns), (2, columns)])


ABSURD: dict[str, Columns] = {
    "a key too many": Columns(1, 1, [b"a", b"b"], None),
    "a value too few": Columns(2, 1, None, [b"a"]),
    "a kind too many": Columns(1, [1, 1], None, None),
    "a kind too few": Columns(2, [1], None, None),
    "a timestamp too few": Columns(2, 0x41, None, None, [1]),
    "an offset too many": Columns(1, 1, None, None, None, [0, 1]),
    "offsets that do not grow": Columns(2, 1, None, None, None, [3, 3]),
    "kind 0": Columns(1, 0, None, None),
    "kind 7": Columns(2, [1, 7], None, None),
    "kind 256": Columns(2, [1, 256], None, None),
    "a kind below zero": Columns(1, -1, None, None),
    "a timestamp bit without a column": Columns(1, 0x41, None, None),
    "the last is joined": Columns(1, 1 | JOINED, None, None),
    "the last of two is joined": Columns(2, [1, 1 | JOINED], None, None),
    "all are joined": Columns(2, 1 | JOINED, None, None),
    "a timestamp of 65 bits": Columns(1, 0x41, None, None, [1 << 63]),
    "another timestamp of 65 bits": Columns(2, 0x41, None, None, [0, -(1 << 63) - 1]),
    "an offset of 33 bits": Columns(2, 1, None, None, None, [0, 1 << 32]),
}


@pytest.mark.parametrize("name", ABSURD)
def test_the_encoder_refuses_what_the_decoder_would(name: str) -> None:
    """F-5.3 to F-5.7, F-6.1: columns that contradict each other or the format are refused before there are bytes."""
    with pytest.raises((ValueError, OverflowError)):
        encode_body(ABSURD[name])


class Longer(bytes):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return 99


def test_lengths_that_do_not_add_up() -> None:
    """F-5.7: lengths that are not those of the bytes are refused by the encoder itself."""
    for wrong in (Longer(b"abc"), memoryview(array("i", range(4)))):
        for keys, values in (([wrong], None), (None, [wrong])):
            with pytest.raises(ValueError, match="plain bytes"):
                encode_body(Columns(1, 1, keys, values))  # type: ignore[arg-type]


@given(rows=makers.record_lists())
def test_the_bound_on_columns(rows: list[PlainRecord]) -> None:
    """F-7.4: COLUMN_BYTES_PER_RECORD bounds a record's share of a body, by which writers refuse large records."""
    plain = sum(len(r.key or b"") + len(r.value or b"") for r in rows)
    for sparse in (False, True):
        body = prepare_body(makers.columns_of(rows, sparse=sparse))
        assert body.raw_bytes <= plain + COLUMN_BYTES_PER_RECORD * len(rows)


@given(
    body=st.binary(max_size=80), count=st.integers(1, 6), flags=st.integers(0, 63), span=st.integers(0, 40)
)
def test_arbitrary_bodies(body: bytes, count: int, flags: int, span: int) -> None:
    """F-13.5: any bytes as a body are columns that fill it exactly, or a CorruptionError."""
    try:
        columns = decode_body(memoryview(body), count, flags, span)
    except CorruptionError:
        return
    batch = to_arrow([(1, columns)])
    batch.validate(full=True)
    assert batch.num_rows == count
