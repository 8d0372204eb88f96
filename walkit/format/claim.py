"""The claim file: from which record on a consumer of another process needs the log (FORMAT.md F-18)."""

from __future__ import annotations

from typing import NamedTuple

from walkit.errors import CorruptionError
from walkit.format.checksum import crc32c
from walkit.format.layout import CLAIM_FILE, CLAIM_LEASE_US_MAX, CLAIM_MAGIC, FORMAT_VERSION, LSN_MAX
from walkit.format.segment import refuse_newer

_CRC_OFFSET = CLAIM_FILE.size - 4


class ClaimMark(NamedTuple):
    """Records from `first_lsn` on are needed until `written_us + lease_us`, microseconds since 1970.

    `epoch` and `epoch_id` are of the record before `first_lsn` (0 where there is none); `owner` is the consumer's
    random id, 16 bytes.
    """

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


def encode_claim(mark: ClaimMark) -> bytes:
    """Return the bytes of a claim file; struct.error where a number is not in 64 bits."""
    assert len(mark.owner) == 16
    head = CLAIM_FILE.pack(CLAIM_MAGIC, FORMAT_VERSION, CLAIM_FILE.size, 0, 0, *mark, 0)[:_CRC_OFFSET]
    return head + crc32c(head).to_bytes(4, "little")


def decode_claim(data: bytes, name: str) -> ClaimMark:
    """Return what a claim file says; `name` is the file's.

    CorruptionError where it is damaged, cut short, too long or no claim; FormatVersionError where a newer walkit has
    written it.
    """
    if len(data) < CLAIM_FILE.size:
        raise _damaged(name, "is cut short", CLAIM_FILE.size, len(data))
    magic, version, size, critical, _optional, *fields, crc = CLAIM_FILE.unpack_from(data)
    if magic != CLAIM_MAGIC:
        raise _damaged(name, "does not begin with walkit's magic", CLAIM_MAGIC, magic)
    found = crc32c(data[:_CRC_OFFSET])
    if found != crc:
        raise _damaged(name, "has a wrong checksum", f"{crc:#010x}", f"{found:#010x}")
    refuse_newer(f"the claim file {name}", version, size, CLAIM_FILE.size, critical)
    if len(data) != CLAIM_FILE.size:
        raise _damaged(name, "has another length than it says", CLAIM_FILE.size, len(data))
    mark = ClaimMark._make(fields)
    if not 1 <= mark.first_lsn <= LSN_MAX:
        raise _damaged(name, "names an LSN that no record has", f"1 to {LSN_MAX}", mark.first_lsn)
    if not 1 <= mark.lease_us <= CLAIM_LEASE_US_MAX:
        raise _damaged(name, "has a lease that none has", f"1 to {CLAIM_LEASE_US_MAX}", mark.lease_us)
    return mark


def _damaged(name: str, what: str, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"the claim file {name} {what}: expected {expected}, found {found}",
        segment=name,
        expected=expected,
        found=found,
    )
