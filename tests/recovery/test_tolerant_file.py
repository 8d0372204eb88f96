"""A file whose unreadable pages read as zeros: what salvage reads by."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import walkit
from tests.support.logs import tiny
from tests.support.threads import Task
from walkit.errors import StorageError
from walkit.recovery.survey import TolerantFile


def test_salvage_does_not_read_the_hole_of_a_file(tmp_path: Path) -> None:
    """Grow a damaged segment by a terabyte that is a hole, and salvage its log: it is done, and the log goes on."""
    path = tmp_path / "log"
    with walkit.open(path, options=tiny()) as log:
        log.append_many([b"lost"] * 5)
    (segment,) = path.glob("*.segment")
    with open(segment, "r+b") as file:
        file.seek(4096 + 40)
        file.write(b"damaged")
    try:
        os.truncate(segment, 1 << 40)
    except OSError as error:
        pytest.skip(f"the file system has no file of that size: {error}")
    opened = Task(lambda: walkit.open(path, options=tiny(recovery="salvage"))).result()
    assert opened.append(b"after").first_lsn == 6
    opened.close()


class Refusing:
    """A file that cannot tell where it has data."""

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


def test_where_nobody_can_say_what_is_a_hole_all_of_it_is_read() -> None:
    """Fail the question where data is: all may be data; but an error that may pass is told."""
    assert TolerantFile(Refusing(errno.EIO)).data_ranges(4096, 8192) == [(4096, 8192)]  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        TolerantFile(Refusing(errno.EMFILE)).data_ranges(4096, 8192)  # type: ignore[arg-type]
