"""The claim file: from which record on a consumer needs the log, in two places that take turns (FORMAT.md F-18)."""

from __future__ import annotations

from typing import NamedTuple

from walkit.errors import CorruptionError
from walkit.format.consumer_file import ConsumerFile
from walkit.format.layout import (
    CLAIM_FILE_BYTES,
    CLAIM_LEASE_US_MAX,
    CLAIM_MAGIC,
    CLAIM_PLACE,
    CLAIM_PLACE_STRIDE,
    LSN_MAX,
)

_PLACE = ConsumerFile("claim", CLAIM_PLACE, CLAIM_MAGIC)


class ClaimMark(NamedTuple):
    """Records from `first_lsn` on are needed until `written_us + lease_us`, microseconds since 1970.

    `generation` grows by one with each writing. `epoch` and `epoch_id` are of the record before `first_lsn` (0 where
    there is none); `owner` is the consumer's random id, 16 bytes.
    """

    generation: int
    log_id: int
    owner: bytes
    epoch: int
    epoch_id: int
    first_lsn: int
    lease_us: int
    written_us: int

    @property
    def lease_until_us(self) -> int:
        """When the lease is over, microseconds since 1970."""
        return self.written_us + self.lease_us


def encode_claim(mark: ClaimMark) -> tuple[int, bytes]:
    """Return (offset in the file, bytes): one place; struct.error where a number is not in 64 bits."""
    assert len(mark.owner) == 16
    return mark.generation % 2 * CLAIM_PLACE_STRIDE, _PLACE.encode(mark)


def whole_claim(mark: ClaimMark) -> bytes:
    """Return the bytes of a new claim file: this mark in its place, and zeros."""
    offset, data = encode_claim(mark)
    return (bytes(offset) + data).ljust(CLAIM_FILE_BYTES, b"\0")


def decode_claim(data: bytes, name: str) -> ClaimMark:
    """Return the newest mark that is whole in a claim file; `name` is the file's.

    CorruptionError where no place has one, or the file is too long or too short; FormatVersionError where a newer
    walkit has written a place.
    """
    found, fault = list[ClaimMark](), None
    for offset in (0, CLAIM_PLACE_STRIDE):
        place = data[offset : offset + CLAIM_PLACE.size]
        try:
            found.append(_decode_place(place, name))
        except CorruptionError as error:  # it was being written when the power was cut: the other one stands
            if fault is None or any(place):
                fault = error
    if len(data) != CLAIM_FILE_BYTES:
        what = "is cut short" if len(data) < CLAIM_FILE_BYTES else "is too long"
        fault = _PLACE.damaged(name, what, CLAIM_FILE_BYTES, len(data))
        found.clear()
    if found:
        return max(found)
    assert fault is not None
    raise fault


def _decode_place(data: bytes, name: str) -> ClaimMark:
    mark = ClaimMark._make(_PLACE.decode(data, name))
    if not 1 <= mark.first_lsn <= LSN_MAX:
        raise _PLACE.damaged(name, "names an LSN that no record has", f"1 to {LSN_MAX}", mark.first_lsn)
    if not 1 <= mark.lease_us <= CLAIM_LEASE_US_MAX:
        raise _PLACE.damaged(name, "has a lease that none has", f"1 to {CLAIM_LEASE_US_MAX}", mark.lease_us)
    return mark
