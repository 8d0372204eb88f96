"""The meaning of each byte of a frame, for intact frames and damaged ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.format.plain_reader import PlainRecord, fields_of
from tests.support.makers import flipped, forged, frame_of, record_lists
from walkit.format.frame_fields import frame_fields, header_layout
from walkit.format.layout import FRAME_HEADER_BYTES

ROWS = [
    PlainRecord(1, 1, b"N14228", b"EWR", None, True),
    PlainRecord(2, 1, b"UA1545", b"boarding", None, False),
]


def values_of(frame: bytes) -> dict[str, str]:
    return {field.name: field.value for field in frame_fields(frame)}


def test_the_header_s_fields_are_those_of_the_document() -> None:
    """F-2.3: names, offsets and sizes of the header are the rows of FORMAT.md's table."""
    assert list(header_layout()) == [(name, offset, size) for offset, size, name in fields_of("frame header")]


@given(record_lists(), st.sampled_from([64, 4096]), st.sampled_from([None, "zstd"]))
def test_every_byte_has_one_name(rows: list[PlainRecord], alignment: int, codec: str | None) -> None:
    """Frames of any records, compressed or not: the fields follow one another from the first byte to the last."""
    frame = frame_of(rows, alignment=alignment, codec=codec)
    at = 0
    for field in frame_fields(frame + b"the next frame"):
        assert field.offset == at and field.size > 0
        at = field.end
    assert at == len(frame)
    assert values_of(frame)["header_crc"].endswith("(right)")
    assert values_of(frame)["body_crc"].endswith("(right)")


def test_the_body_s_columns_are_named() -> None:
    """The transaction of FORMAT.md's worked example: the columns are at the example's offsets, with its values."""
    fields = {f.name: (f.offset, f.size, f.value) for f in frame_fields(frame_of(ROWS))}
    assert fields["key lengths"] == (96, 4, "6 for every record")
    assert fields["value lengths"] == (100, 8, "3, 8")
    assert fields["kind bytes"] == (108, 2, "0xb1, 0x31")
    assert fields["keys"] == (110, 12, "b'N14228UA1545'")
    assert fields["values"] == (122, 11, "b'EWRboarding'")
    assert fields["padding"] == (133, 59, "zeros")
    assert fields["magic"][2] == "WLKF" and fields["flags"][2] == "2 (UNIFORM_KEY_LENGTHS)"
    assert fields["codec"][2] == "0 (none)"


@given(st.integers(0, 8 * 192 - 1))
def test_a_flipped_bit_shows_in_a_checksum_or_a_field(bit: int) -> None:
    """Flip any bit of a frame: no error, every byte is named, and some value says that something is wrong."""
    frame = flipped(frame_of(ROWS), bit)
    fields = frame_fields(frame)
    assert sum(field.size for field in fields) == len(frame)
    wrong = [
        f for f in fields if any(word in f.value for word in ("but the bytes give", "no frame", "damaged"))
    ]
    assert wrong, fields


def test_damage_that_hides_the_rest() -> None:
    """A footprint beyond the bytes, another magic, a body that contradicts its header: one field for the rest."""
    frame = frame_of(ROWS)
    for odd in (forged(frame, footprint=2 << 20), forged(frame, magic=7), frame[:150]):
        *head, rest = frame_fields(odd)
        assert [f.name for f in head] == [name for name, _, _ in header_layout()]
        assert (rest.name, rest.offset, rest.end) == ("unknown", FRAME_HEADER_BYTES, len(odd))
    contradicting = {f.name: f for f in frame_fields(forged(frame, records=3, span=3))}
    assert "malformed" in contradicting["body"].value
    assert len(frame_fields(frame[:FRAME_HEADER_BYTES])) == 19
    with pytest.raises(ValueError, match="96 bytes of header"):
        frame_fields(frame[: FRAME_HEADER_BYTES - 1])
