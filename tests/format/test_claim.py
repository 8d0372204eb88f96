"""The claim file: two places of 628 bytes with the records that a consumer of another process needs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.format.plain_reader import crc, fields_of
from tests.support.makers import flipped
from walkit.errors import CorruptionError, FormatVersionError
from walkit.format.checksum import crc32c
from walkit.format.consumer_file import ClaimRecord, decode_claim, encode_claim, whole_claim
from walkit.format.file_names import claim_file_name, claim_of_name, cursor_of_name, is_temporary_name
from walkit.format.layout import (
    CLAIM_FILE_BYTES,
    CLAIM_LEASE_US_MAX,
    CLAIM_PLACE,
    CLAIM_PLACE_STRIDE,
    LSN_MAX,
)
from walkit.format.manifest import LogEnd

U64 = st.integers(0, (1 << 64) - 1)
MARKS = st.builds(
    ClaimRecord,
    U64,
    U64,
    st.binary(min_size=16, max_size=16),
    U64,
    U64,
    st.integers(1, LSN_MAX),
    st.integers(1, CLAIM_LEASE_US_MAX),
    U64,
    st.builds(
        LogEnd,
        last_lsn=st.integers(0, LSN_MAX),
        position=st.integers(0, LSN_MAX),
        chain=st.integers(0, (1 << 32) - 1),
    ),
    st.text(max_size=128).filter(str.isprintable),
)
MARK = ClaimRecord(7, 0x1111, bytes(range(16)), 3, 0xE1E1, 42, 3_600_000_000, 1_357_034_400_000_000)._replace(
    acked=LogEnd(last_lsn=41, position=9_000, chain=0xC4A1), label="a replica"
)
SIZE = 628


def file_of(*marks: ClaimRecord) -> bytes:
    """The file after these writings."""
    data = bytearray(whole_claim(marks[0]))
    for mark in marks[1:]:
        offset, place = encode_claim(mark)
        data[offset : offset + SIZE] = place
    return bytes(data)


@given(mark=MARKS)
def test_round_trip(mark: ClaimRecord) -> None:
    """F-18.1: an encoded claim comes back, and every field is at the offset of FORMAT.md."""
    offset, data = encode_claim(mark)
    assert len(data) == SIZE == CLAIM_PLACE.size and offset == 4096 * (mark.generation % 2)
    whole = whole_claim(mark)
    assert whole[offset : offset + SIZE] == data and len(whole) == CLAIM_FILE_BYTES == 8192
    assert decode_claim(whole, "c") == mark
    plain = {name: data[at : at + size] for at, size, name in fields_of("claim place")}
    assert plain["magic"] == b"WALKITCL" and int.from_bytes(plain["place_bytes"], "little") == SIZE
    assert plain["owner"] == mark.owner
    lsn, position, chain = mark.acked.last_lsn, mark.acked.position, mark.acked.chain
    acked = {"acked_lsn": lsn, "acked_position": position, "acked_chain": chain}
    for name, number in {**mark._asdict(), **acked}.items():
        if name not in ("owner", "acked", "label"):
            assert int.from_bytes(plain[name], "little") == number
    assert plain["label"] == mark.label.encode().ljust(512, b"\0")
    assert int.from_bytes(plain["crc"], "little") == crc(data[: SIZE - 4])
    assert mark.lease_until_us == mark.written_us + mark.lease_us


@given(data=st.binary(max_size=2 * SIZE), other=st.booleans())
def test_any_bytes_are_a_claim_or_damage(data: bytes, other: bool) -> None:
    """F-18.1: decode bytes that are drawn, in one place or in a whole file: damage, or the other place's claim."""
    whole = bytearray(file_of(MARK) if other else bytes(CLAIM_FILE_BYTES))
    whole[: len(data)] = data
    if other:
        assert decode_claim(bytes(whole), "c") == MARK
    for wrong in (data, *([] if other else [bytes(whole)])):
        with pytest.raises(CorruptionError):
            decode_claim(wrong, "c")


def test_a_damaged_place_leaves_the_other() -> None:
    """F-18.1, F-18.2: flip each bit of each place, tear it at each byte: the other mark, or damage."""
    newer = MARK._replace(generation=8, first_lsn=50)
    both, alone = file_of(MARK, newer), file_of(MARK)
    assert decode_claim(both, "c") == newer
    for offset, left in ((0, MARK), (CLAIM_PLACE_STRIDE, newer)):
        for bit in range(offset * 8, (offset + SIZE) * 8):
            assert decode_claim(flipped(both, bit), "c") == left
            if offset:
                with pytest.raises(CorruptionError):
                    decode_claim(flipped(alone, bit), "c")
    third = MARK._replace(generation=9, first_lsn=77)
    for torn in range(SIZE + 1):
        data = bytearray(both)
        data[CLAIM_PLACE_STRIDE : CLAIM_PLACE_STRIDE + torn] = encode_claim(third)[1][:torn]
        assert decode_claim(bytes(data), "c") == (newer if torn < SIZE else third)


def test_every_other_length_is_damage() -> None:
    """F-18.1: cut a claim file, and add to it: damage."""
    for size in (*range(0, CLAIM_FILE_BYTES, 96), CLAIM_FILE_BYTES - 1, CLAIM_FILE_BYTES + 1):
        with pytest.raises(CorruptionError):
            decode_claim(file_of(MARK).ljust(size, b"\0")[:size], "c")


@pytest.mark.parametrize(("offset", "value"), [(8, 1), (10, 104), (12, 1)])
@pytest.mark.parametrize("other", [MARK._replace(generation=7), MARK._replace(generation=9)])
def test_a_newer_version_differs_from_damage(offset: int, value: int, other: ClaimRecord) -> None:
    """F-18.1: another version, size or critical feature under a right checksum, beside any: a FormatVersionError."""
    data = bytearray(file_of(other, MARK._replace(generation=8)))
    data[offset] = value
    data[SIZE - 4 : SIZE] = crc32c(data[: SIZE - 4]).to_bytes(4, "little")
    with pytest.raises(FormatVersionError):
        decode_claim(bytes(data), "c")


@pytest.mark.parametrize(
    "wrong",
    [
        {"acked": LogEnd(last_lsn=LSN_MAX + 1)},
        {"acked": LogEnd(position=LSN_MAX + 1)},
        {"first_lsn": 0},
        {"first_lsn": LSN_MAX + 1},
        {"lease_us": 0},
        {"lease_us": CLAIM_LEASE_US_MAX + 1},
    ],
)
def test_numbers_that_no_claim_has_are_damage(wrong: dict[str, Any]) -> None:
    """F-18.1: an LSN or a lease out of bounds under a right checksum: damage."""
    with pytest.raises(CorruptionError):
        decode_claim(file_of(MARK._replace(**wrong)), "c")


def test_names_of_claims_and_of_cursors_are_apart() -> None:
    """F-18.2: a claim's file is not a cursor's, and neither the lock nor a half-written one is a claim."""
    for name in ("a", "new", "x" * 64, "lock", "_-"):
        assert claim_of_name(claim_file_name(name)) == name
        assert cursor_of_name(claim_file_name(name)) is None
        assert claim_of_name(claim_file_name(name, new=True)) is None
        assert is_temporary_name(claim_file_name(name, new=True))
    for name in ("claims.lock", "claim-", "claim-" + "x" * 65, "claim-a b", "claim-a/", "claim"):
        assert claim_of_name(name) is None and not is_temporary_name(name)
