"""The segment header: every field there and back, damage noticed, newer formats named."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.format.plain_reader import read_segment_header
from tests.support import makers
from tests.support.makers import flipped
from walkit import config
from walkit.errors import CorruptionError, FormatVersionError
from walkit.format import layout
from walkit.format.checksum import crc32c
from walkit.format.layout import SegmentFlag
from walkit.format.segment import EXTENSION_BYTES_MAX, SegmentHeader, segment_name

PLAIN = SegmentHeader(
    log_id=0x1111,
    epoch=3,
    epoch_id=0xE1E1,
    number=42,
    start_position=6400,
    previous_end=6336,
    first_lsn=77,
    chain=0xABCD,
    alignment=64,
    frame_bytes_max=1 << 20,
    created_us=1_700_000_000_000_000,
    reorder_window_bytes=5,
    end_chain=6,
    own_end_chain=7,
    flags=SegmentFlag.COMPACTED,
    optional_features=1 << 30,
    extension=b"more",
)
OFFSETS = {
    "version": (8, 2),
    "header_bytes": (10, 2),
    "critical": (12, 4),
    "optional": (16, 4),
    "flags": (84, 4),
}


def resealed(block: bytes, **changes: int) -> bytes:
    """The header block with other bytes at these places (by name or `at_N`) and a right checksum."""
    changed = bytearray(block)
    for name, value in changes.items():
        offset, size = OFFSETS.get(name) or (int(name.removeprefix("at_")), 8)
        changed[offset : offset + size] = value.to_bytes(size, "little")
    return bytes(changed[:4092]) + crc32c(changed[:4092]).to_bytes(4, "little")


U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)


@st.composite
def headers(draw: st.DrawFn) -> SegmentHeader:
    alignment = draw(st.sampled_from([64, 128, 256, 512, 1024, 2048, 4096]))
    start = draw(st.integers(0, layout.POSITION_MAX // alignment)) * alignment
    return SegmentHeader(
        log_id=draw(U64),
        epoch=draw(U64),
        epoch_id=draw(U64),
        number=draw(U64),
        start_position=start,
        previous_end=draw(st.integers(0, start)),
        first_lsn=draw(st.integers(1, layout.LSN_MAX)),
        chain=draw(U32),
        alignment=alignment,
        frame_bytes_max=draw(st.integers(layout.FRAME_HEADER_BYTES, layout.FRAME_BYTES_LIMIT)),
        created_us=draw(U64),
        reorder_window_bytes=draw(U64),
        end_chain=draw(U32),
        own_end_chain=draw(U32),
        flags=SegmentFlag(draw(st.integers(0, 7))),
        optional_features=draw(U32),
        extension=draw(st.binary(max_size=EXTENSION_BYTES_MAX)),
    )


@given(header=headers())
def test_round_trip(header: SegmentHeader) -> None:
    """F-2.2: every header that can be comes back whole, and the reader made from FORMAT.md sees the same fields."""
    block = header.encode()
    assert len(block) == layout.SEGMENT_HEADER_BYTES
    assert SegmentHeader.decode(block, header.name) == header
    assert SegmentHeader.decode(block + b"frames", header.name) == header
    plain = read_segment_header(block)
    for field in fields(header):
        assert plain[field.name] == getattr(header, field.name)


def test_every_bit_flip_is_noticed() -> None:
    """F-1.3, F-1.6: each of 32,768 bits turned, unused space included, is a CorruptionError with its segment."""
    block = PLAIN.encode()
    for bit in range(len(block) * 8):
        with pytest.raises(CorruptionError) as caught:
            SegmentHeader.decode(flipped(block, bit), PLAIN.name)
        assert caught.value.segment == PLAIN.name


def test_cut_at_every_byte() -> None:
    """F-13.3: a header that ends too soon, or in zeros too soon, is a CorruptionError."""
    block = PLAIN.encode()
    for size in range(len(block)):
        with pytest.raises(CorruptionError):
            SegmentHeader.decode(block[:size], PLAIN.name)
        if size:
            with pytest.raises(CorruptionError):
                SegmentHeader.decode(block[:size].ljust(4096, b"\0"), PLAIN.name)


def test_zero_is_a_prepared_segment() -> None:
    """F-1.5: 4096 zeros are not a header; zeros with a right checksum are damage."""
    assert SegmentHeader.decode(bytes(4096), PLAIN.name) is None
    assert SegmentHeader.decode(bytes(1 << 20), PLAIN.name) is None
    with pytest.raises(CorruptionError, match="magic"):
        SegmentHeader.decode(resealed(bytes(4096)), PLAIN.name)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"version": 1}, 1),
        ({"version": 65535}, 65535),
        ({"header_bytes": 8192}, "0 with a header of 8192 bytes"),
        ({"critical": 1}, "with critical features 0x1"),
        ({"critical": 1 << 31}, "with critical features 0x80000000"),
        ({"flags": 8}, "with flags 0x8"),
        ({"flags": 0xFFFFFFFF}, "with flags 0xffffffff"),
    ],
    ids=str,
)
def test_newer_formats(changes: dict[str, int], found: int | str) -> None:
    """F-11.2 to F-11.4: a newer header under a right checksum is a FormatVersionError, under a wrong one damage."""
    newer = resealed(PLAIN.encode(), **changes)
    with pytest.raises(FormatVersionError) as caught:
        SegmentHeader.decode(newer, PLAIN.name)
    assert caught.value.found == found and PLAIN.name in caught.value.where
    with pytest.raises(CorruptionError):
        SegmentHeader.decode(newer[:-4] + PLAIN.encode()[-4:], PLAIN.name)
    with pytest.raises(FormatVersionError):
        SegmentHeader.decode(resealed(newer, at_56=(1 << 64) - 1), PLAIN.name)


def test_unknown_optional_features_are_ignored() -> None:
    """F-11.3, F-11.5: with every optional bit set and the extension area full, the rest reads as before."""
    full = replace(PLAIN, optional_features=0xFFFFFFFF, extension=b"?" * EXTENSION_BYTES_MAX)
    header = SegmentHeader.decode(full.encode(), PLAIN.name)
    assert header is not None and replace(header, optional_features=1 << 30, extension=b"more") == PLAIN


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "alignment 0": {"alignment": 0},
    "alignment 1": {"alignment": 1},
    "alignment 32": {"alignment": 32},
    "alignment 96": {"alignment": 96},
    "alignment 8192": {"alignment": 8192, "start_position": 8192},
    "frames smaller than a header": {"frame_bytes_max": 95},
    "frames of a GiB and a byte": {"frame_bytes_max": layout.FRAME_BYTES_LIMIT + 1},
    "frames of 2^64 bytes": {"frame_bytes_max": (1 << 64) - 1},
    "a start off the alignment": {"start_position": 6401},
    "a start before the previous end": {"previous_end": 6401},
    "a position of 64 bits": {"start_position": 1 << 63},
    "LSN 0": {"first_lsn": 0},
    "an LSN of 64 bits": {"first_lsn": 1 << 63},
    "a generation of 64 bits": {"manifest_generation": 1 << 63},
}
PLACES = {"alignment": (20, 4), "frame_bytes_max": (88, 8), "start_position": (56, 8)}
PLACES |= {"previous_end": (64, 8), "first_lsn": (72, 8), "manifest_generation": (120, 8)}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_headers(name: str) -> None:
    """F-2.5, F-7.1: a header that cannot be is neither written nor, with a right checksum, believed."""
    with pytest.raises(ValueError, match="no segment has such a header"):
        replace(PLAIN, **IMPOSSIBLE[name]).encode()
    block = bytearray(PLAIN.encode())
    for field, value in IMPOSSIBLE[name].items():
        offset, size = PLACES[field]
        block[offset : offset + size] = value.to_bytes(size, "little")
    with pytest.raises(CorruptionError, match="limits"):
        SegmentHeader.decode(resealed(bytes(block)), PLAIN.name)


def test_extensions_that_do_not_fit() -> None:
    """F-7.1: an extension of more bytes than the area has is refused both ways."""
    with pytest.raises(ValueError, match="extension"):
        replace(PLAIN, extension=bytes(EXTENSION_BYTES_MAX + 1)).encode()
    for size in (EXTENSION_BYTES_MAX + 1, 0xFFFFFFFF):
        block = PLAIN.encode()[:132] + size.to_bytes(4, "little") + PLAIN.encode()[136:]
        with pytest.raises(CorruptionError, match="extension"):
            SegmentHeader.decode(resealed(block), PLAIN.name)


def test_a_segment_under_another_name() -> None:
    """F-2.2: a header in a file of another number is refused, and both names are said."""
    with pytest.raises(CorruptionError) as caught:
        SegmentHeader.decode(PLAIN.encode(), segment_name(43))
    assert (caught.value.expected, caught.value.found) == (segment_name(43), PLAIN.name)


def test_names_sort_as_numbers() -> None:
    """F-2.2: twenty digits hold every number, so that names in order are segments in order."""
    numbers = [0, 1, 9, 10, 99, 1 << 32, (1 << 64) - 1]
    names = [segment_name(n) for n in numbers]
    assert names == sorted(names) and {len(n) for n in names} == {28}


def test_positions_and_offsets() -> None:
    """F-2.1: position p of a segment is at 4096 + p - start_position."""
    assert PLAIN.offset_of(6400) == 4096 and PLAIN.offset_of(6400 + 128) == 4224


def test_limits_of_options_and_format_agree() -> None:
    """F-7.1, F-7.4: no option asks for a segment that the format refuses."""
    assert config.FRAME_BYTES_MAX_MAX <= layout.FRAME_BYTES_LIMIT
    assert config.ALIGNMENT_BUFFERED == layout.ALIGNMENT_BUFFERED
    assert config.SEGMENT_BYTES_MAX < layout.POSITION_MAX


@given(head=st.binary(max_size=200), sealed=st.booleans())
def test_arbitrary_headers(head: bytes, sealed: bool) -> None:
    """F-13.5: any bytes, also under a right magic and checksum, are a header, nothing, or a typed error."""
    block = head.ljust(4096, b"\0")
    if sealed:
        block = resealed(layout.SEGMENT_MAGIC + block[8:])
    try:
        header = SegmentHeader.decode(block, PLAIN.name)
    except (CorruptionError, FormatVersionError):
        return
    assert header is None or header.encode() == block


def test_absurd_headers_allocate_nothing() -> None:
    """F-7.3: refusing a header takes less than a few of its own size, whatever it says."""
    block = resealed(PLAIN.encode(), at_88=(1 << 64) - 1, at_116=(1 << 64) - 1)

    def refuse() -> None:
        with pytest.raises(CorruptionError):
            SegmentHeader.decode(block, PLAIN.name)

    assert makers.peak_bytes(refuse) < 65_536
