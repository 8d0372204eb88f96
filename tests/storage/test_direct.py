"""Files written past the page cache: the shared suite on them, and their own features."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from tests.storage.test_file import FileHooks
from walkit.errors import StorageError
from walkit.storage import DirectStorage, FileStorage, MemoryStorage, Storage, StorageFile
from walkit.storage import file as direct_module
from walkit.storage.file import BUFFER_BYTES_MAX, O_DIRECT, AlignedBuffers
from walkit.storage.interface import OpenMode
from walkit.testing.storage import FileTests, NameTests, SpaceTests


class EveryFileDirect(FileStorage):
    """A folder in which every file that is written is a direct one."""

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        return super().open(name, mode) if mode == "read" else self.open_direct(name, mode)


@pytest.fixture
def direct(tmp_path: Path) -> EveryFileDirect:
    """A folder on a file system that takes direct writes; skips without one."""
    storage = EveryFileDirect(tmp_path / "log")
    storage.create()
    why_not = storage.direct_io_refusal()
    if why_not is not None:
        pytest.skip(f"no direct I/O here: {why_not}")
    return storage


@pytest.mark.usefixtures("direct")
class TestDirectFiles(FileHooks, FileTests, SpaceTests, NameTests):
    """The suite on direct files: nothing of the contract is another. Locks and cells are never direct."""

    def make_storage(self, place: Path) -> Storage:
        return EveryFileDirect(place / "deep" / "log")

    def reopen(self, storage: Storage) -> Storage:
        return EveryFileDirect(storage.location)


class Ways:
    """Notes of each pwritev whether it went past the page cache, its offset and size."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[bool, int, int]] = []
        real = os.pwritev

        def pwritev(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
            past = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & O_DIRECT)
            self.calls.append((past, offset, sum(len(b) for b in buffers)))
            return real(fd, buffers, offset, flags)

        monkeypatch.setattr(os, "pwritev", pwritev)


def test_aligned_writes_go_past_the_page_cache_and_others_through_it(
    direct: EveryFileDirect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write aligned and unaligned ranges over one another, in many buffers: the way is as told, and reads see all."""
    ways = Ways(monkeypatch)
    model = bytearray(64 * 1024)
    file, reader = direct.open("file", "create"), None
    file.allocate(len(model))
    reader = direct.open("file", "read")
    for number, (offset, size) in enumerate(
        ((0, 4096), (8192, 8192), (100, 50), (4096, 4096), (4000, 200), (0, 65536), (61440, 4096), (1, 4096))
    ):
        data = bytes([number + 1]) * size
        for sync in (True, False):
            file.write(offset, [data[:7], memoryview(bytearray(data[7:]))], sync=sync)
            assert ways.calls[-1] == (offset % 4096 == 0 and size % 4096 == 0, offset, size)
        model[offset : offset + size] = data
        assert file.read(0, len(model)) == reader.read(0, len(model)) == bytes(model)
    file.sync()
    file.drop_cached()
    assert reader.read(0, len(model)) == bytes(model)
    for open_file in (file, reader):
        open_file.close()


def test_a_write_larger_than_a_buffer_is_done_in_parts(
    direct: EveryFileDirect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write two buffers and a half in odd pieces: aligned parts, each past the page cache, and the bytes are right."""
    ways = Ways(monkeypatch)
    size = 2 * BUFFER_BYTES_MAX + BUFFER_BYTES_MAX // 2
    data = os.urandom(1 << 16) * (size >> 16)
    file = direct.open("file", "create")
    file.write(4096, [data[:5], data[5 : BUFFER_BYTES_MAX + 3], data[BUFFER_BYTES_MAX + 3 :]], sync=True)
    assert [c[2] for c in ways.calls] == [BUFFER_BYTES_MAX, BUFFER_BYTES_MAX, BUFFER_BYTES_MAX // 2]
    assert all(past for past, _, _ in ways.calls)
    assert file.read(4096, size) == data
    file.close()


def test_buffers_are_aligned_and_used_again() -> None:
    """Take, give back and take: the same memory within the limit, page-aligned, and never the same twice at a time."""
    buffers = AlignedBuffers(bytes_max=16 * 1024)
    first, second = buffers.take(1), buffers.take(4096)
    assert first is not second and len(first) == len(second) == 4096
    assert len(buffers.take(4097)) == 8192
    buffers.give(first)
    assert buffers.take(100) is first
    large = buffers.take(20_000)
    buffers.give(large)
    assert buffers.take(20_000) is not large


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_refusing_file_system_is_reported(
    direct: EveryFileDirect, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Refuse O_DIRECT at opening, then at the first write: the reason is reported, and no file remains."""
    real_open, real_write = os.open, os.pwritev

    def refusing(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & O_DIRECT:
            raise OSError(code, os.strerror(code))
        return real_open(path, flags, *rest, **named)

    def unwilling(fd: int, *rest: Any) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & O_DIRECT:
            raise OSError(code, os.strerror(code))
        return real_write(fd, *rest)

    assert direct.direct_io_refusal() is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", unwilling)
        assert errno.errorcode[code] in str(direct.direct_io_refusal())
    monkeypatch.setattr(os, "open", refusing)
    assert errno.errorcode[code] in str(direct.direct_io_refusal())
    with pytest.raises(StorageError) as caught:
        direct.open_direct("file", "create")
    assert caught.value.errno == code
    assert direct.names() == []


def test_memory_has_no_way_past_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the memory storage, a file system in memory, and a platform without O_DIRECT: none of them claims it."""
    assert not isinstance(MemoryStorage(), DirectStorage)
    storage = FileStorage(tmp_path)
    monkeypatch.setattr(direct_module, "O_DIRECT", 0)
    assert "platform" in str(storage.direct_io_refusal()) or "memory" in str(storage.direct_io_refusal())
    with pytest.raises(StorageError):
        storage.open_direct("file", "create")
    shm = Path("/dev/shm")
    if shm.is_dir():
        assert "memory" in str(FileStorage(shm).direct_io_refusal())
