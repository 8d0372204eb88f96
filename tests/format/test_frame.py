"""The frame: damage is noticed, absurd headers are refused, newer formats are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.format.plain_reader import PlainRecord, read_frame
from tests.support import makers
from tests.support.makers import MANY, ONE, STAMPED, TRANSACTION, flipped, forged, frame_of, judged
from walkit.errors import CorruptionError, FormatVersionError
from walkit.format.body import Columns, one_record
from walkit.format.checksum import crc32c
from walkit.format.frame import (
    MARKER_BODY,
    FrameFault,
    FrameHeader,
    check_body,
    check_header,
    prepare_body,
    prepare_one,
    seal_frame,
)
from walkit.format.layout import (
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    HAS_KEY,
    HAS_VALUE,
    LSN_MAX,
    POSITION_MAX,
    RECORDS_PER_FRAME_MAX,
)

GAPS = [PlainRecord(10, 1, b"a", b"b", None, False), PlainRecord(14, 1, b"a", b"b", None, False)]
FRAMES = {
    "one record": frame_of(ONE),
    "a transaction": frame_of(TRANSACTION, position=128, durable_position=64, first_lsn=9, chain=0xABCD),
    "timestamps": frame_of(STAMPED),
    "zstd": frame_of(MANY, codec="zstd"),
    "sparse": frame_of(GAPS, sparse=True, span=9),
    "sparse and empty": frame_of([], sparse=True, first_lsn=5, span=70),
    "a mark": frame_of([], first_lsn=8, position=640, durable_position=640),
    "direct": frame_of(ONE, alignment=4096),
}


@pytest.mark.parametrize("name", FRAMES)
def test_every_bit_flip_is_noticed(name: str) -> None:
    """F-1.3, F-1.6: each bit of header, body and padding turned in turn gives the fault of its part, never records."""
    frame = FRAMES[name]
    alignment = 4096 if name == "direct" else 64
    body_end = FRAME_HEADER_BYTES + FrameHeader.parse(frame).body_stored_bytes
    assert not isinstance(judged(frame, alignment=alignment), FrameFault)
    for bit in range(len(frame) * 8):
        byte = bit >> 3
        wanted = (
            FrameFault.MAGIC
            if byte < 4
            else FrameFault.HEADER
            if byte < FRAME_HEADER_BYTES
            else FrameFault.BODY
            if byte < body_end
            else FrameFault.PADDING
        )
        assert judged(flipped(frame, bit), alignment=alignment) is wanted, f"bit {bit}"


@pytest.mark.parametrize("name", FRAMES)
def test_cut_at_every_byte(name: str) -> None:
    """F-13.1: a frame cut at any byte is SHORT, and with zeros instead of the cut bytes it is not whole either."""
    frame = FRAMES[name]
    alignment = 4096 if name == "direct" else 64
    for size in range(len(frame)):
        assert judged(frame[:size], alignment=alignment) is FrameFault.SHORT
        torn = frame[:size].ljust(len(frame), b"\0")
        if torn != frame:
            assert isinstance(judged(torn, alignment=alignment), FrameFault), f"cut at {size}"


def test_zero_is_never_a_frame() -> None:
    """F-1.5: zeros of any size are END or SHORT, and a zero header with a right checksum is not a frame either."""
    for size in (0, 1, 95, 96, 128, 4096, 1 << 20):
        assert judged(bytes(size)) is (FrameFault.END if size >= 96 else FrameFault.SHORT)
    sealed_zero = bytes(92) + crc32c(bytes(92)).to_bytes(4, "little")
    assert judged(sealed_zero.ljust(128, b"\0")) is FrameFault.MAGIC


def test_a_frame_is_judged_in_place() -> None:
    """F-2.4: check_header reads at an offset of a longer buffer, bytes and memoryview alike, and not beyond its end."""
    frame = FRAMES["one record"]
    for buffer in (b"\7" * 64 + frame, bytearray(b"\7" * 64 + frame), memoryview(b"\7" * 64 + frame)):
        header, fault = check_header(buffer, 64, 64, 1 << 20)
        assert fault is None and header == FrameHeader.parse(frame)
        assert check_header(buffer, 0, 64, 1 << 20)[1] is FrameFault.MAGIC
        assert check_header(buffer, len(buffer) - 95, 64, 1 << 20)[1] is FrameFault.SHORT


BASE = frame_of(MANY, position=6400, durable_position=64, first_lsn=10)
RAW = FrameHeader.parse(BASE).body_raw_bytes
IMPOSSIBLE: dict[str, dict[str, int]] = {
    "footprint too small": {"footprint": 128},
    "footprint too large": {"footprint": FrameHeader.parse(BASE).footprint + 64},
    "footprint zero": {"footprint": 0},
    "footprint of 4 GiB": {"footprint": 0xFFFFFFC0},
    "stored and footprint over the limit": {"footprint": 1 << 21, "body_stored_bytes": (1 << 21) - 96},
    "stored of 4 GiB": {"body_stored_bytes": 0xFFFFFFFF},
    "raw over the limit": {"codec": 1, "body_raw_bytes": (1 << 20) + 1},
    "raw of 4 GiB": {"codec": 1, "body_raw_bytes": 0xFFFFFFFF},
    "raw unlike stored without a codec": {"body_raw_bytes": RAW + 1},
    "raw not above stored with a codec": {"codec": 1},
    "records over the limit": {"records": RECORDS_PER_FRAME_MAX + 1, "span": RECORDS_PER_FRAME_MAX + 1},
    "records of 32 bits": {"records": 0xFFFFFFFF, "span": 0xFFFFFFFF},
    "span below records": {"span": 11},
    "span above records in a dense frame": {"span": 13},
    "span below records in a sparse frame": {"span": 11, "flags": FrameHeader.parse(BASE).flags | 32},
    "no records and a body": {"records": 0, "span": 0},
    "LSN 0": {"first_lsn": 0},
    "an LSN beyond 63 bits": {"first_lsn": LSN_MAX - 11},
    "an LSN of 64 bits": {"first_lsn": (1 << 64) - 1},
    "a position off the alignment": {"position": 6401},
    "a position beyond 63 bits": {"position": POSITION_MAX - 63},
    "a position of 64 bits": {"position": (1 << 64) - 64},
    "a promise above its own position": {"durable_position": 6401},
    "uniform timestamps without timestamps": {"flags": 16},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_headers(name: str) -> None:
    """F-7.2: a right checksum over an impossible header is LENGTH, and costs no memory."""
    frame = forged(BASE, **IMPOSSIBLE[name])
    assert judged(frame) is FrameFault.LENGTH
    assert makers.peak_bytes(lambda: judged(frame)) < 16_384


def test_possible_headers_at_the_limits() -> None:
    """F-7.2: the last LSN and position below 2^63, a promise up to the position, a footprint at the limit: fine."""
    footprint = len(BASE)
    last = forged(
        BASE, first_lsn=LSN_MAX - 12, position=POSITION_MAX + 1 - 64 - footprint, durable_position=0
    )
    batch = judged(last)
    assert not isinstance(batch, FrameFault)
    assert batch.column("lsn").to_pylist() == list(range(LSN_MAX - 12, LSN_MAX))
    assert not isinstance(judged(forged(BASE, durable_position=6400)), FrameFault)
    assert not isinstance(judged(BASE, frame_bytes_max=footprint), FrameFault)
    assert judged(BASE, frame_bytes_max=footprint - 1) is FrameFault.LENGTH


@pytest.mark.parametrize("version", [1, 2, 127, 255])
def test_newer_version(version: int) -> None:
    """F-11.2: a newer version under a right checksum is a FormatVersionError; under a wrong one it is damage."""
    newer = forged(BASE, version=version)
    with pytest.raises(FormatVersionError) as caught:
        judged(newer)
    assert (caught.value.found, caught.value.supported) == (version, 0)
    damaged = bytearray(BASE)
    damaged[4] = version
    assert judged(bytes(damaged)) is FrameFault.HEADER


@pytest.mark.parametrize(
    "fields",
    [{"flags": 1 << bit} for bit in range(6, 16)] + [{"codec": codec} for codec in (2, 3, 255)],
    ids=str,
)
def test_unknown_flags_and_codecs(fields: dict[str, int]) -> None:
    """F-11.4: an unknown frame flag or codec is a FormatVersionError, also where other fields are beyond the limits."""
    with pytest.raises(FormatVersionError) as caught:
        judged(forged(BASE, **fields))
    (value,) = fields.values()
    assert f"flags {value:#x}" in str(caught.value) or f"codec {value}" in str(caught.value)
    with pytest.raises(FormatVersionError):
        judged(forged(BASE, records=0xFFFFFFFF, **fields))


def test_the_checksum_is_judged_first() -> None:
    """F-1.3, F-13.1: with a wrong checksum no field decides anything, however absurd or new it is."""
    for fields in ({"version": 9}, {"flags": 0xFFFF}, {"codec": 9}, {"footprint": 0}, {"first_lsn": 0}):
        frame = bytearray(forged(BASE, **fields))
        frame[92] ^= 1
        assert judged(bytes(frame)) is FrameFault.HEADER


NUMBERS = (
    st.integers(0, 3) | st.integers(0, (1 << 64) - 1) | st.sampled_from([64, 128, 1 << 20, (1 << 32) - 1])
)


@given(
    numbers=st.lists(NUMBERS, min_size=17, max_size=17), head=st.binary(max_size=140), sealed=st.booleans()
)
def test_arbitrary_headers(numbers: list[int], head: bytes, sealed: bool) -> None:
    """F-13.5: any bytes, and any fields under a right checksum, give a fault, records or a typed error."""
    frame = head
    if sealed:
        widths = [8, 8, 16, *[64] * 5, *[32] * 6, 64, 64, 32]
        fields = [n % (1 << width) for n, width in zip(numbers, widths, strict=True)]
        packed = FRAME_HEADER.pack(FRAME_MAGIC, 0, *fields[1:], 0)[:-4]
        frame = packed + crc32c(packed).to_bytes(4, "little") + head
    try:
        found = judged(frame)
    except (FormatVersionError, CorruptionError):
        return
    assert isinstance(found, FrameFault) or found.num_rows == FrameHeader.parse(frame).records


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "flags": st.integers(0, 63),
        "records": st.integers(0, 40),
        "span": st.integers(0, 40),
        "codec": st.integers(0, 1),
        "body_raw_bytes": st.integers(0, 700),
        "first_lsn": NUMBERS,
        "durable_position": NUMBERS,
    },
)


@given(rows=makers.record_lists(), codec=st.sampled_from([None, "zstd"]), fields=FIELDS)
def test_forged_headers(rows: list[PlainRecord], codec: str | None, fields: dict[str, int]) -> None:
    """F-13.5: a right frame whose header lies under a right checksum gives a fault, records or a CorruptionError."""
    frame = forged(frame_of(rows, codec=codec), **fields)
    try:
        found = judged(frame)
    except CorruptionError:
        return
    if isinstance(found, FrameFault):
        assert found is FrameFault.LENGTH
    else:
        found.validate(full=True)
        assert makers.rows_of(found) == makers.plain_rows(read_frame(frame)[1])


def test_every_header_field_reads_back() -> None:
    """F-2.3, F-3.1, F-3.2: the header holds the arguments of seal_frame, by the codec's names and by plain offsets."""
    body = prepare_body(makers.columns_of(TRANSACTION))
    buffers, footprint, crc = seal_frame(
        body,
        makers.IDENTITY,
        position=1 << 40,
        first_lsn=77,
        durable_position=(1 << 40) - 64,
        chain=0xDEADBEEF,
        sealed_us=123,
        alignment=64,
    )
    frame = b"".join(buffers)
    header = FrameHeader.parse(frame)
    assert tuple(header[4:7]) == tuple(makers.IDENTITY)
    assert (header.position, header.first_lsn, header.records, header.span) == (1 << 40, 77, 2, 2)
    assert (header.durable_position, header.chain, header.sealed_us) == ((1 << 40) - 64, 0xDEADBEEF, 123)
    assert (header.last_lsn, header.end_position, header.is_marker) == (78, (1 << 40) + footprint, False)
    assert (header.header_crc, header.body_crc, len(frame)) == (crc, body.crc, footprint)
    plain, _ = read_frame(frame)
    assert list(plain.values()) == list(header)


def test_a_mark_has_nothing_but_its_promise() -> None:
    """F-3.5: a mark is 128 bytes, has no records, and the LSN that the next record will have."""
    mark = FRAMES["a mark"]
    header, fault = check_header(mark, 0, 64, 1 << 20)
    assert fault is None and header is not None and len(mark) == 128
    assert (header.is_marker, header.last_lsn, header.durable_position) == (True, 7, 640)
    assert check_body(header, memoryview(mark)) is None
    batch = judged(mark)
    assert not isinstance(batch, FrameFault) and batch.num_rows == 0
    made = prepare_body(Columns(0, 0, None, None))
    assert (made.flags, made.stored_bytes, made.crc) == (
        MARKER_BODY.flags,
        MARKER_BODY.stored_bytes,
        MARKER_BODY.crc,
    )


@given(
    kind=st.integers(0, 255),
    key=st.binary(max_size=40),
    value=st.one_of(st.binary(max_size=200), st.sampled_from([bytes(n) for n in (4086, 4087, 4088, 9000)])),
    stamp=st.integers(-(1 << 63), (1 << 63) - 1),
    codec=st.sampled_from([None, "zstd"]),
)
def test_one_record_takes_the_short_way_to_the_same_bytes(
    kind: int, key: bytes, value: bytes, stamp: int, codec: str | None
) -> None:
    """F-5: prepare_one gives any one record the body that prepare_body gives a column of one, or its error."""
    key, value = key if kind & HAS_KEY else b"", value if kind & HAS_VALUE else b""
    made: list[object] = []
    for short in (True, False):
        try:
            if short:
                body = prepare_one(kind, key, value, stamp, codec)
            else:
                body = prepare_body(one_record(kind, key, value, stamp), codec)
        except ValueError as error:
            made.append(str(error))
        else:
            made.append(
                (body.count, body.flags, body.codec, b"".join(body.buffers), body.crc, body.raw_bytes)
            )
            assert body.stored_bytes == len(b"".join(body.buffers))
    assert made[0] == made[1]


def test_span_belongs_to_sparse_frames() -> None:
    """F-6.1: seal_frame refuses a span for a dense frame, and one below the number of records."""
    with pytest.raises(ValueError, match="not sparse"):
        frame_of(TRANSACTION, span=5)
    with pytest.raises(ValueError, match="cannot cover"):
        frame_of(GAPS, sparse=True, span=1)


def test_padding_reaches_the_alignment() -> None:
    """F-2.4: for bodies of every size around the border a frame ends at the first multiple of its alignment."""
    for alignment in (64, 128, 4096):
        for size in range(140):
            frame = frame_of([PlainRecord(1, 1, None, b"x" * size, None, False)], alignment=alignment)
            used = FRAME_HEADER_BYTES + 9 + size
            assert len(frame) % alignment == 0 and 0 <= len(frame) - used < alignment
            assert not isinstance(judged(frame, alignment=alignment), FrameFault)
    assert FRAME_HEADER.size == FRAME_HEADER_BYTES
