"""A file whose unreadable pages read as zeros, for salvage."""

from __future__ import annotations

import errno

import pytest

from walkit.errors import StorageError
from walkit.recovery.survey import TolerantFile


class Refusing:
    """A file that does not know its ranges with data."""

    name = "file"

    def __init__(self, code: int) -> None:
        self.code = code

    def read(self, offset: int, size: int) -> bytes:
        """Return zeros."""
        return bytes(size)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Leave the buffer as it is."""
        return len(buffer)

    def read_ahead(self, offset: int, size: int) -> None:
        """Do nothing."""

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Refuse."""
        raise StorageError("refused", errno=self.code, name=self.name)


def test_a_file_with_unknown_holes_is_read_whole() -> None:
    """Fail the query for data ranges: all may be data; but a passing error is raised."""
    assert TolerantFile(Refusing(errno.EIO)).data_ranges(4096, 8192) == [(4096, 8192)]  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        TolerantFile(Refusing(errno.EMFILE)).data_ranges(4096, 8192)  # type: ignore[arg-type]
