"""The claim file: 88 bytes that say which records a consumer of another process needs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.format.makers import flipped
from tests.format.plain_reader import crc, fields_of
from walkit.errors import CorruptionError, FormatVersionError
from walkit.format.checksum import crc32c
from walkit.format.claim import ClaimMark, decode_claim, encode_claim
from walkit.format.layout import CLAIM_FILE, CLAIM_LEASE_US_MAX, LSN_MAX
from walkit.format.names import claim_file_name, claim_of_name, cursor_of_name, is_unfinished_name

U64 = st.integers(0, (1 << 64) - 1)
MARKS = st.builds(
    ClaimMark,
    U64,
    st.binary(min_size=16, max_size=16),
    U64,
    U64,
    st.integers(1, LSN_MAX),
    st.integers(1, CLAIM_LEASE_US_MAX),
    U64,
)
MARK = ClaimMark(0x1111, bytes(range(16)), 3, 0xE1E1, 42, 3_600_000_000, 1_357_034_400_000_000)
SIZE = 88


@given(mark=MARKS)
def test_round_trip(mark: ClaimMark) -> None:
    """F-18.1: what is encoded comes back, and every field stands where FORMAT.md says."""
    data = encode_claim(mark)
    assert len(data) == SIZE == CLAIM_FILE.size and decode_claim(data, "c") == mark
    plain = {name: data[at : at + size] for at, size, name in fields_of("claim file")}
    assert plain["magic"] == b"WALKITCL" and int.from_bytes(plain["file_bytes"], "little") == SIZE
    assert plain["owner"] == mark.owner
    for name in set(ClaimMark._fields) - {"owner"}:
        assert int.from_bytes(plain[name], "little") == getattr(mark, name)
    assert int.from_bytes(plain["crc"], "little") == crc(data[: SIZE - 4])
    assert mark.lease_until_us == mark.written_us + mark.lease_us


@given(data=st.binary(max_size=2 * SIZE))
def test_any_bytes_are_a_claim_or_damage(data: bytes) -> None:
    """F-18.1: decode bytes that are drawn: a claim that encodes to them again, or damage; nothing else is raised."""
    try:
        mark = decode_claim(data, "c")
    except CorruptionError:
        return
    assert encode_claim(mark) == data


def test_every_flipped_bit_is_damage() -> None:
    """F-18.1: flip each bit of a claim file: damage, and never a newer version or another LSN."""
    for bit in range(SIZE * 8):
        with pytest.raises(CorruptionError):
            decode_claim(flipped(encode_claim(MARK), bit), "c")


def test_every_other_length_is_damage() -> None:
    """F-18.1: cut a claim file at every byte, and add to it: damage."""
    for size in (*range(SIZE), SIZE + 1, 4096):
        with pytest.raises(CorruptionError):
            decode_claim(encode_claim(MARK).ljust(size, b"\0")[:size], "c")


@pytest.mark.parametrize(("offset", "value"), [(8, 1), (10, 96), (12, 1)])
@pytest.mark.parametrize("more", [b"", b"more fields"])
def test_a_newer_version_is_told_from_damage(offset: int, value: int, more: bytes) -> None:
    """F-18.1: another version, size or critical feature under a right checksum: a FormatVersionError."""
    data = bytearray(encode_claim(MARK))
    data[offset] = value
    data[SIZE - 4 :] = crc32c(data[: SIZE - 4]).to_bytes(4, "little")
    with pytest.raises(FormatVersionError):
        decode_claim(bytes(data) + more, "c")


@pytest.mark.parametrize(
    "wrong",
    [{"first_lsn": 0}, {"first_lsn": LSN_MAX + 1}, {"lease_us": 0}, {"lease_us": CLAIM_LEASE_US_MAX + 1}],
)
def test_numbers_that_no_claim_has_are_damage(wrong: dict[str, Any]) -> None:
    """F-18.1: an LSN or a lease out of bounds under a right checksum: damage."""
    with pytest.raises(CorruptionError):
        decode_claim(encode_claim(MARK._replace(**wrong)), "c")


def test_names_of_claims_and_of_cursors_are_apart() -> None:
    """F-18.2: a claim's file is no cursor's, and neither the lock nor a half-written one is a claim."""
    for name in ("a", "new", "x" * 64, "lock", "_-"):
        assert claim_of_name(claim_file_name(name)) == name
        assert cursor_of_name(claim_file_name(name)) is None
        assert claim_of_name(claim_file_name(name, new=True)) is None
        assert is_unfinished_name(claim_file_name(name, new=True))
    for name in ("claims.lock", "claim-", "claim-" + "x" * 65, "claim-a b", "claim-a/", "claim"):
        assert claim_of_name(name) is None and not is_unfinished_name(name)
