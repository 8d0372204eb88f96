"""The file of the durable slot is a file like any other: another program may cut it, and a store may fail."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import walkit
from tests.support.logs import run_python, tiny
from walkit.errors import StorageError
from walkit.models import FaultyStorage
from walkit.segments.manifest_store import DURABLE_NAME
from walkit.storage import Cell, FileStorage

CUT_WHILE_IN_USE = """
    import os, sys
    import walkit
    for path, size in zip(sys.argv[1:], (0, 1, 64, 100)):
        log = walkit.open(path)
        log.append(b"before")
        reader = walkit.open(path, mode="r")
        assert reader.durable_lsn == 1
        os.truncate(f"{path}/durable", size)
        reader.durable_lsn
        log.append(b"after")
        log.append(b"last")
        assert [record.value for record in reader.read()] == [b"before", b"after", b"last"]
        log.close()
        print(size)
"""


class FailingCell:
    """A cell whose stores fail while `fails` is set."""

    def __init__(self, inner: Cell) -> None:
        self.inner, self.fails = inner, False

    def read(self) -> bytes:
        return self.inner.read()

    def write(self, offset: int, data: bytes) -> None:
        if self.fails:
            raise StorageError("no store", errno=errno.EIO, name=DURABLE_NAME)
        self.inner.write(offset, data)

    def close(self) -> None:
        self.inner.close()


class FailingSlot(FaultyStorage):
    """A folder whose writable cell can be made to fail."""

    cells: list[FailingCell]

    def cell(self, name: str, size: int, *, writable: bool) -> Any:
        found = self.inner.cell(name, size, writable=writable)
        if not writable or found is None:
            return found
        self.cells = [FailingCell(found)]
        return self.cells[0]


def end_seen_by_readers(path: Path) -> int:
    with walkit.open(path, mode="r") as reader:
        return reader.durable_lsn


def test_a_slot_cut_by_another_program_ends_no_process(tmp_path: Path) -> None:
    """Cut the slot's file while a writer and a reader have it open: both continue, and every record is there."""
    places = [tmp_path / str(number) for number in range(4)]
    assert run_python(CUT_WHILE_IN_USE, *places).stdout.split() == ["0", "1", "64", "100"]
    for place in places:
        with walkit.open(place) as log:
            assert [record.value for record in log.read()] == [b"before", b"after", b"last"]


def test_no_file_of_a_log_is_mapped(tmp_path: Path) -> None:
    """Open a log and a reader, append and read: no mapping of this process names a file in the folder."""
    with walkit.open(tmp_path / "log") as log, walkit.open(tmp_path / "log", mode="r") as reader:
        log.append_many([b"value"] * 100)
        log.sync()
        assert len(list(reader.read())) == 100
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
        assert any(
            os.readlink(f"/proc/self/fd/{n}").startswith(str(tmp_path))
            for n in os.listdir("/proc/self/fd")[:-1]
        )


def test_a_slot_that_cannot_be_written_is_one_event_and_no_poison(tmp_path: Path) -> None:
    """Fail stores twice in a row, with ten appends each: each row is one event, and readers see the older value."""
    events: list[tuple[str, dict[str, Any]]] = []
    storage = FailingSlot(FileStorage(tmp_path / "log"))
    with walkit.open(storage=storage, options=tiny(), events=lambda *event: events.append(event)) as log:
        log.append(b"first")
        for rows in (1, 2):
            durable = end_seen_by_readers(tmp_path / "log")
            storage.cells[0].fails = True
            for _ in range(10):
                log.append(b"value")
            assert end_seen_by_readers(tmp_path / "log") == durable < log.durable_lsn
            log.wait_idle()
            storage.cells[0].fails = False
            log.append(b"stored")
            assert end_seen_by_readers(tmp_path / "log") == log.durable_lsn
            failed = [facts for name, facts in events if name == "walkit.slot.fail"]
            assert len(failed) == rows
            assert "no store" in failed[-1]["error"]
    assert "walkit.log.poison" not in dict(events)
    with walkit.open(tmp_path / "log") as log:
        assert log.acked_lsn == 23
