"""The files of consumers, cursors and claims: fixed fields between one head and one checksum (FORMAT.md F-17, F-18).

A cursor says how far a consumer has come, in 64 bytes. A claim says from which record on a consumer needs the log, in
two places that take turns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from walkit.errors import CorruptionError
from walkit.format.checksum import crc32c
from walkit.format.layout import (
    CLAIM_FILE_BYTES,
    CLAIM_LABEL_CHARS_MAX,
    CLAIM_LEASE_US_MAX,
    CLAIM_MAGIC,
    CLAIM_PLACE,
    CLAIM_PLACE_STRIDE,
    CURSOR_FILE,
    CURSOR_MAGIC,
    FORMAT_VERSION,
    LSN_MAX,
    POSITION_MAX,
)
from walkit.format.manifest import LogEnd
from walkit.format.segment import refuse_newer

_CRC_BYTES = 4


class ConsumerFile:
    """One kind of these files: magic, version, size, critical and optional feature bits, its own fields, CRC-32C."""

    def __init__(self, kind: str, layout: struct.Struct, magic: bytes) -> None:
        """`kind` is the word for it in errors."""
        self._kind, self._layout, self._magic = kind, layout, magic

    def encode(self, fields: Iterable[Any]) -> bytes:
        """Return the bytes of a file with these fields; struct.error if one does not fit."""
        size = self._layout.size
        head = self._layout.pack(self._magic, FORMAT_VERSION, size, 0, 0, *fields, 0)[: size - _CRC_BYTES]
        return head + crc32c(head).to_bytes(_CRC_BYTES, "little")

    def decode(self, data: bytes, name: str) -> tuple[Any, ...]:
        """Return the fields of a file; `name` is the file's.

        CorruptionError if it is damaged, cut short, too long or of another kind; FormatVersionError if a newer
        walkit has written it.
        """
        size = self._layout.size
        if len(data) < size:
            raise self.damaged(name, "is cut short", size, len(data))
        magic, version, declared_bytes, critical, _optional, *fields, crc = self._layout.unpack_from(data)
        if magic != self._magic:
            raise self.damaged(name, "does not start with walkit's magic", self._magic, magic)
        found = crc32c(data[: size - _CRC_BYTES])
        if found != crc:
            raise self.damaged(name, "has a wrong checksum", f"{crc:#010x}", f"{found:#010x}")
        refuse_newer(f"the {self._kind} file {name}", version, declared_bytes, size, critical)
        if len(data) != size:
            raise self.damaged(name, "has another length than it says", size, len(data))
        return tuple(fields)

    def damaged(self, name: str, what: str, expected: object, found: object) -> CorruptionError:
        """Return the error of a file that is not as it has to be."""
        return CorruptionError(
            f"the {self._kind} file {name} {what}: expected {expected}, found {found}",
            segment=name,
            expected=expected,
            found=found,
        )


_PLACE = ConsumerFile("claim", CLAIM_PLACE, CLAIM_MAGIC)


class ClaimRecord(NamedTuple):
    """Records from `first_lsn` on are needed until `written_us + lease_us`, microseconds since 1970.

    `generation` grows by one with each writing. `epoch` and `epoch_id` are those of the record before `first_lsn` (0
    without one); `owner` is the consumer's random id, 16 bytes. `acked` and `label` are for a
    replica: how far it has acknowledged, and its own name for itself.
    """

    generation: int
    log_id: int
    owner: bytes
    epoch: int
    epoch_id: int
    first_lsn: int
    lease_us: int
    written_us: int
    acked: LogEnd = LogEnd()
    label: str = ""

    @property
    def lease_until_us(self) -> int:
        """When the lease is over, microseconds since 1970."""
        return self.written_us + self.lease_us


def encode_claim(mark: ClaimRecord) -> tuple[int, bytes]:
    """Return (offset in the file, bytes): one place; struct.error if a number exceeds 64 bits."""
    assert len(mark.owner) == 16 and is_label(mark.label)
    *numbers, acked, label = mark
    fields = (*numbers, acked.last_lsn, acked.position, acked.chain, label.encode())
    return mark.generation % 2 * CLAIM_PLACE_STRIDE, _PLACE.encode(fields)


def is_label(text: str) -> bool:
    """Return whether a claim may have this label; all but those of replicas have the empty one."""
    return len(text) <= CLAIM_LABEL_CHARS_MAX and text.isprintable()


def whole_claim(mark: ClaimRecord) -> bytes:
    """Return the bytes of a new claim file: this mark in its place, and zeros."""
    offset, data = encode_claim(mark)
    return (bytes(offset) + data).ljust(CLAIM_FILE_BYTES, b"\0")


def decode_claim(data: bytes, name: str) -> ClaimRecord:
    """Return the newest mark that is whole in a claim file; `name` is the file's.

    CorruptionError if no place has one, or the file is too long or too short; FormatVersionError if a newer
    walkit has written a place.
    """
    found, fault = list[ClaimRecord](), None
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
        return max(found, key=lambda mark: mark.generation)
    assert fault is not None
    raise fault


def _decode_place(data: bytes, name: str) -> ClaimRecord:
    *numbers, lsn, position, chain, text = _PLACE.decode(data, name)
    label = text.rstrip(b"\0").decode("utf-8", "replace")
    acked = LogEnd(last_lsn=lsn, position=position, chain=chain)
    mark = ClaimRecord._make((*numbers, acked, label))
    if lsn > LSN_MAX or position > POSITION_MAX or not is_label(label):
        raise _PLACE.damaged(
            name, "has an impossible end or label", "the end of a log, printable text", (lsn, position, label)
        )
    if not 1 <= mark.first_lsn <= LSN_MAX:
        raise _PLACE.damaged(name, "names an LSN that no record has", f"1 to {LSN_MAX}", mark.first_lsn)
    if not 1 <= mark.lease_us <= CLAIM_LEASE_US_MAX:
        raise _PLACE.damaged(name, "has a lease that none has", f"1 to {CLAIM_LEASE_US_MAX}", mark.lease_us)
    return mark


_FILE = ConsumerFile("cursor", CURSOR_FILE, CURSOR_MAGIC)


class CursorRecord(NamedTuple):
    """All up to `lsn` is done; `epoch` and `epoch_id` are those of the record at that LSN (0 at LSN 0)."""

    log_id: int
    epoch: int
    epoch_id: int
    lsn: int
    moved_us: int


def encode_cursor(mark: CursorRecord) -> bytes:
    """Return the bytes of a cursor file; struct.error if a number exceeds 64 bits."""
    return _FILE.encode(mark)


def decode_cursor(data: bytes, name: str) -> CursorRecord:
    """Return the record of a cursor file; `name` is the file's.

    CorruptionError if it is damaged, cut short, too long or no cursor; FormatVersionError if a newer walkit has
    written it.
    """
    mark = CursorRecord._make(_FILE.decode(data, name))
    if mark.lsn > LSN_MAX:
        raise _FILE.damaged(name, "names an LSN that no record has", f"at most {LSN_MAX}", mark.lsn)
    return mark
