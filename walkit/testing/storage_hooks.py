"""The hooks of a backend for the storage suite, and the few helpers that its tests share."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from walkit.errors import StorageError
from walkit.storage import Storage, StorageFile
from walkit.storage.interface import OpenMode


def all_files(storage: Storage, folder: str = "") -> list[str]:
    """Return the names of all files in a folder and below, sorted."""
    files: list[str] = []
    for name in storage.names(folder):
        files += all_files(storage, name[:-1]) if name.endswith("/") else [name]
    return sorted(files)


class StorageHooks(ABC):
    """Override `make_storage`, `reopen`, `raw_read` and `raw_write`; the rest as the backend is.

    `place` is an empty folder for the test's own use (pytest's tmp_path); a backend that needs none ignores it.
    """

    asks_without_disturbing = True
    """Whether `is_locked` can never make a `lock` at the same moment fail."""

    @abstractmethod
    def make_storage(self, place: Path) -> Storage:
        """Return a storage that is not created yet."""

    @abstractmethod
    def reopen(self, storage: Storage) -> Storage:
        """Return another opening of the same place, as another part of the process would have it."""

    @abstractmethod
    def raw_read(self, storage: Storage, name: str) -> bytes:
        """Return a file's bytes without using the storage's own code."""

    @abstractmethod
    def raw_write(self, storage: Storage, name: str, data: bytes) -> None:
        """Make a file of these bytes without using the storage's own code."""

    def in_other_process(self, storage: Storage) -> str | None:
        """Return Python source that sets `storage` to an opening of the same place; None if none is possible."""
        return None

    @contextlib.contextmanager
    def small_storage(self, place: Path) -> Iterator[Storage]:
        """Give a created storage on a device of at most 4 MiB, or skip."""
        skip("this backend has no limit of space")
        yield self.make_storage(place)

    def created(self, place: Path) -> Storage:
        """Return a storage that is ready for files."""
        storage = self.make_storage(place)
        storage.create()
        return storage

    def with_file(self, place: Path, data: bytes = b"", name: str = "file") -> tuple[Storage, StorageFile]:
        """Return a storage with one open, writable file that holds `data`."""
        storage = self.created(place)
        file = self.opened(storage, name, "create")
        if data:
            file.write(0, [data])
        return storage, file

    def opened(self, storage: Storage, name: str, mode: OpenMode) -> StorageFile:
        """Return an open file that is closed when the test is over."""
        file = storage.open(name, mode)
        self._to_close.append(file)
        return file

    def other_opening(self, storage: Storage) -> str:
        """Return the source of `in_other_process`, or skip the test."""
        opening = self.in_other_process(storage)
        if opening is None:
            skip("this storage is not shared between processes")
        return opening or ""

    def setup_method(self) -> None:
        """Begin a test (called by pytest)."""
        self._to_close: list[StorageFile] = []

    def teardown_method(self) -> None:
        """Close what the test opened (called by pytest)."""
        for file in self._to_close:
            file.close()


def skip(reason: str) -> NoReturn:
    """Skip the running test; pytest is needed only here, so that the suite can be imported without it."""
    import pytest

    pytest.skip(reason)


class Refused:
    """Asserts that its block raises StorageError with this errno, and keeps the error as `error`."""

    error: StorageError

    def __init__(self, errno: int) -> None:
        self._errno = errno

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Check what was raised; another kind of error passes through."""
        assert error is not None, f"nothing was raised; wanted a StorageError with errno {self._errno}"
        if not isinstance(error, StorageError):
            return False
        assert error.errno == self._errno, f"errno {error.errno} instead of {self._errno}: {error}"
        self.error = error
        return True


class OtherProcess:
    """A child that runs Python source with `storage` set, and talks in lines: the test is never paced by time."""

    def __init__(self, opening: str, source: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", f"import sys\nsys.path[:] = {sys.path!r}\n{opening}\n{source}\n"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def line(self) -> str:
        """Wait for the next line that the child prints."""
        assert self._child.stdout is not None
        return self._child.stdout.readline().rstrip("\n")

    def send(self, line: str) -> None:
        """Send the child a line."""
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def kill(self) -> None:
        """End the child by SIGKILL and wait until it is gone."""
        self._child.kill()
        self._child.wait()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *args: object) -> None:
        """Close the child's input, which ends it, and wait."""
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()
        self._child.wait()
