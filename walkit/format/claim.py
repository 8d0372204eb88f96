"""The claim file: from which record on a consumer of another process needs the log (FORMAT.md F-18)."""

from __future__ import annotations

from typing import NamedTuple

from walkit.format.consumer_file import ConsumerFile
from walkit.format.layout import CLAIM_FILE, CLAIM_LEASE_US_MAX, CLAIM_MAGIC, LSN_MAX

_FILE = ConsumerFile("claim", CLAIM_FILE, CLAIM_MAGIC)


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
    return _FILE.encode(mark)


def decode_claim(data: bytes, name: str) -> ClaimMark:
    """Return what a claim file says; `name` is the file's.

    CorruptionError where it is damaged, cut short, too long or no claim; FormatVersionError where a newer walkit has
    written it.
    """
    mark = ClaimMark._make(_FILE.decode(data, name))
    if not 1 <= mark.first_lsn <= LSN_MAX:
        raise _FILE.damaged(name, "names an LSN that no record has", f"1 to {LSN_MAX}", mark.first_lsn)
    if not 1 <= mark.lease_us <= CLAIM_LEASE_US_MAX:
        raise _FILE.damaged(name, "has a lease that none has", f"1 to {CLAIM_LEASE_US_MAX}", mark.lease_us)
    return mark
