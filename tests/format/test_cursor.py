"""The cursor file: 64 bytes with a consumer's progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.format.plain_reader import crc, fields_of
from tests.support.makers import flipped
from walkit.errors import CorruptionError, FormatVersionError
from walkit.format.checksum import crc32c
from walkit.format.consumer_file import CursorRecord, decode_cursor, encode_cursor
from walkit.format.layout import LSN_MAX

U64 = st.integers(0, (1 << 64) - 1)
MARKS = st.builds(CursorRecord, U64, U64, U64, st.integers(0, LSN_MAX), U64)
MARK = CursorRecord(0x1111, 3, 0xE1E1, 42, 1_357_034_400_000_000)


@given(mark=MARKS)
def test_round_trip(mark: CursorRecord) -> None:
    """F-17.1: an encoded cursor comes back, and every field is at the offset of FORMAT.md."""
    data = encode_cursor(mark)
    assert len(data) == 64 and decode_cursor(data, "c") == mark
    plain = {name: data[at : at + size] for at, size, name in fields_of("cursor file")}
    assert plain["magic"] == b"WALKITCU" and int.from_bytes(plain["file_bytes"], "little") == 64
    for name in CursorRecord._fields:
        assert int.from_bytes(plain[name], "little") == getattr(mark, name)
    assert int.from_bytes(plain["crc"], "little") == crc(data[:60])


def test_every_flipped_bit_is_damage() -> None:
    """F-17.1: flip each bit of a cursor file: damage, and never a newer version or another LSN."""
    for bit in range(64 * 8):
        with pytest.raises(CorruptionError):
            decode_cursor(flipped(encode_cursor(MARK), bit), "c")


def test_every_other_length_is_damage() -> None:
    """F-17.1: cut a cursor file at every byte, and add to it: damage."""
    for size in (*range(64), 65, 4096):
        with pytest.raises(CorruptionError):
            decode_cursor(encode_cursor(MARK).ljust(size, b"\0")[:size], "c")


@pytest.mark.parametrize(("offset", "value"), [(8, 1), (10, 72), (12, 1)])
@pytest.mark.parametrize("behind", [b"", b"more fields"])
def test_a_newer_version_differs_from_damage(offset: int, value: int, behind: bytes) -> None:
    """F-17.1: another version, size or critical feature under a right checksum: a FormatVersionError."""
    data = bytearray(encode_cursor(MARK))
    data[offset] = value
    data[60:] = crc32c(data[:60]).to_bytes(4, "little")
    with pytest.raises(FormatVersionError):
        decode_cursor(bytes(data) + behind, "c")


def test_an_lsn_that_no_record_has_is_damage() -> None:
    """F-17.1: an LSN of 2^63 or more under a right checksum: damage."""
    with pytest.raises(CorruptionError, match="LSN"):
        decode_cursor(encode_cursor(MARK._replace(lsn=LSN_MAX + 1)), "c")
