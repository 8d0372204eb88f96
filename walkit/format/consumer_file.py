"""The files of consumers, cursors and claims: fixed fields between one head and one checksum (FORMAT.md F-17, F-18)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from walkit.errors import CorruptionError
from walkit.format.checksum import crc32c
from walkit.format.layout import FORMAT_VERSION
from walkit.format.segment import refuse_newer

_CRC_BYTES = 4


class ConsumerFile:
    """One kind of these files: magic, version, size, critical and optional feature bits, its own fields, CRC-32C."""

    def __init__(self, kind: str, layout: struct.Struct, magic: bytes) -> None:
        """`kind` is the word for it in errors."""
        self._kind, self._layout, self._magic = kind, layout, magic

    def encode(self, fields: Iterable[Any]) -> bytes:
        """Return the bytes of a file with these fields; struct.error where one does not fit."""
        size = self._layout.size
        head = self._layout.pack(self._magic, FORMAT_VERSION, size, 0, 0, *fields, 0)[: size - _CRC_BYTES]
        return head + crc32c(head).to_bytes(_CRC_BYTES, "little")

    def decode(self, data: bytes, name: str) -> tuple[Any, ...]:
        """Return the fields of a file; `name` is the file's.

        CorruptionError where it is damaged, cut short, too long or of another kind; FormatVersionError where a newer
        walkit has written it.
        """
        size = self._layout.size
        if len(data) < size:
            raise self.damaged(name, "is cut short", size, len(data))
        magic, version, said, critical, _optional, *fields, crc = self._layout.unpack_from(data)
        if magic != self._magic:
            raise self.damaged(name, "does not begin with walkit's magic", self._magic, magic)
        found = crc32c(data[: size - _CRC_BYTES])
        if found != crc:
            raise self.damaged(name, "has a wrong checksum", f"{crc:#010x}", f"{found:#010x}")
        refuse_newer(f"the {self._kind} file {name}", version, said, size, critical)
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
