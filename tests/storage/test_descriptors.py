"""Descriptors: whatever opens one has it in the same step, and no link is opened to be written."""

from __future__ import annotations

import ast
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.interrupts import Strike
from walkit.errors import StorageError
from walkit.storage import FileStorage, LockHolder

POINTS_MAX = 2000
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def descriptors_in(folder: str) -> list[str]:
    """Return the descriptors that this process has open in a folder, or of it."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            found += [name] * (name.split(" ")[0].rstrip("/") + "/").startswith(f"{folder}/")
    return found


def _lock(storage: FileStorage) -> None:
    lock = storage.lock("a/lock")
    assert not isinstance(lock, LockHolder)
    lock.release()


def _cell(storage: FileStorage) -> None:
    cell = storage.cell("a/cell", 8, writable=True)
    assert cell is not None
    cell.close()


def _direct(storage: FileStorage) -> None:
    if storage.direct_io_refusal() is None:
        storage.open_direct("direct", "create").close()


def _segment(storage: FileStorage) -> None:
    file: Any = storage.open("file", "write")
    assert file.hold()
    file.close()


OPENINGS: dict[str, Callable[[FileStorage], object]] = {
    "read": lambda storage: storage.open("file", "read").close(),
    "write": _segment,
    "create": lambda storage: storage.open("new", "create").close(),
    "private": lambda storage: storage.create_private("new").close(),
    "a folder for a file": lambda storage: storage.open("folder", "read"),
    "direct": _direct,
    "cell": _cell,
    "lock": _lock,
    "ask": lambda storage: storage.is_locked("file"),
    "names": lambda storage: storage.names("folder"),
    "sync": lambda storage: storage.sync_directory("folder"),
    "make": lambda storage: FileStorage(f"{storage.location}/one/two").create(),
    "hold": lambda storage: storage.hold("lock"),
}


@linux_only
@pytest.mark.parametrize(
    ("opening", "held"),
    # Slow: each other one. By default every opening is struck, in turn by path and held: both end in one helper.
    [
        pytest.param(opening, held, marks=[pytest.mark.slow] * ((at + held) % 2))
        for at, opening in enumerate(OPENINGS)
        for held in (False, True)
    ],
)
def test_an_interrupted_opening_leaks_no_descriptor(tmp_path: Path, opening: str, held: bool) -> None:
    """Strike each opening at each point where Python delivers a signal: no descriptor is left, and no lock."""
    # Openings with many points, most of which open nothing, are struck at some of them.
    for number in range(1, POINTS_MAX, {"lock": 17, "direct": 5, "cell": 5, "make": 5}.get(opening, 1)):
        place = str(tmp_path / str(number))
        storage = FileStorage(place)
        storage.create()
        for name in ("file", "folder/below"):
            storage.open(name, "create").close()
        hold = storage.hold("lock") if held and opening != "hold" else None
        strike = Strike(number)
        found: Any = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of a file that the strike drops
            with suppress(KeyboardInterrupt, StorageError):
                found = strike.run(lambda storage=storage: OPENINGS[opening](storage))  # type: ignore[misc]
                hold = found if opening == "hold" else hold
        if hold is not None:
            assert not isinstance(hold, LockHolder)
            hold.release()
        del storage, hold, found
        if opening in ("names", "sync", "make", "cell", "hold"):
            gc.collect(1)  # the frames of an interrupted `with` refer to each other; they are young
        assert descriptors_in(place) == [], strike.where
        lock = FileStorage(place).hold("lock")
        assert not isinstance(lock, LockHolder), strike.where
        lock.release()
        if not strike.where:
            return
    raise AssertionError("it has more points than were tried")


ALLOWED = {
    "walkit/storage/folder.py": 1,
    # The folder of a scratch log, which is removed through its descriptor.
    "walkit/log/scratch.py": 1,
    # The null device, a socket that is handed over, and files of measurements: no log owns them.
    "walkit/cli/output.py": 2,
    "walkit/demo/progress_printer.py": 1,
    "walkit/views/page.py": 1,
    "walkit/measure/baseline.py": 2,
}
"""Where the package opens a descriptor by itself, and how often."""


def _openings(path: Path) -> Iterator[int]:
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text if "os." in text else "")):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.open", "os.dup", "os.fdopen"):
            yield node.lineno


def test_one_module_opens_the_files_of_a_log() -> None:
    """Look for os.open, os.dup and os.fdopen in the package: a log's files are opened by the one helper alone."""
    package = Path(walkit.__file__).parent
    found = {}
    for path in package.rglob("*.py"):
        name = path.relative_to(package.parent).as_posix()
        if lines := list(_openings(path)):
            found[name] = len(lines)
    assert found == ALLOWED


MADE: dict[str, tuple[str, Callable[[FileStorage], object]]] = {
    "write": ("file", lambda storage: storage.open("file", "write")),
    "create": ("file", lambda storage: storage.open("file", "create")),
    "private": ("file", lambda storage: storage.create_private("file")),
    "direct": ("file", lambda storage: storage.open_direct("file", "write")),
    "lock": ("lock", lambda storage: storage.lock("lock")),
    "cell": ("cell", lambda storage: storage.cell("cell", 64, writable=True)),
    "a cell that is made": ("cell.new", lambda storage: storage.cell("cell", 64, writable=True)),
}


@linux_only
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("held", [False, True], ids=["by path", "held"])
def test_nothing_is_written_through_a_link(tmp_path: Path, made: str, held: bool) -> None:
    """Put a link to a precious file under each name that is written or made: refused, and the file is as it was."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    storage = FileStorage(tmp_path / "log")
    storage.create()
    name, call = MADE[made]
    Path(storage.location, name).symlink_to(precious)
    hold = storage.hold("lock" if made != "lock" else "other") if held else None
    with pytest.raises(StorageError):
        call(storage)
    if hold is not None:
        assert not isinstance(hold, LockHolder)
        hold.release()
    assert precious.read_bytes() == b"precious"
    assert descriptors_in(str(tmp_path)) == []
