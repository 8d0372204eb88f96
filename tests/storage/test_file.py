"""FileStorage: the shared suite on real files, and features of files alone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import socket
import stat
import subprocess
import sys
import warnings
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.support.mounts import mounted
from tests.support.threads import Task
from walkit.errors import StorageError
from walkit.models import FaultyStorage
from walkit.storage import FileStorage, LockHolder, Storage
from walkit.storage import locks as locks_module
from walkit.storage import openfile as file_module
from walkit.storage.interface import NumberedFile
from walkit.testing.storage import FileTests, LockTests, NameTests, SpaceTests, StorageHooks, StorageTests
from walkit.testing.storage_hooks import Refused


class FileHooks(StorageHooks):
    """How the suite reaches a FileStorage."""

    def make_storage(self, place: Path) -> Storage:
        return FileStorage(place / "deep" / "log")

    def reopen(self, storage: Storage) -> Storage:
        return FileStorage(storage.location)

    def raw_read(self, storage: Storage, name: str) -> bytes:
        return (Path(storage.location) / name).read_bytes()

    def raw_write(self, storage: Storage, name: str, data: bytes) -> None:
        (Path(storage.location) / name).write_bytes(data)

    def in_other_process(self, storage: Storage) -> str | None:
        return f"from walkit.storage import FileStorage\nstorage = FileStorage({storage.location!r})"

    @contextlib.contextmanager
    def small_storage(self, place: Path) -> Iterator[Storage]:
        with mounted(place, "-t", "tmpfs", "-o", "size=1m", "tmpfs") as folder:
            storage = FileStorage(folder / "log")
            storage.create()
            yield storage


class TestFileStorage(FileHooks, StorageTests):
    """The suite as it is."""


class TestFaultyOverFile(FileHooks, FileTests, SpaceTests, NameTests):
    """Files and names through a wrapper that has no faults; its locks and cells are the wrapped ones."""

    def make_storage(self, place: Path) -> Storage:
        return FaultyStorage(super().make_storage(place))

    def reopen(self, storage: Storage) -> Storage:
        return FaultyStorage(super().reopen(storage))


class TestOnSmallExt4(FileHooks, SpaceTests):
    """The full-disk tests on a real ext4: it keeps a part of an allocation that fails, and tmpfs does not."""

    @contextlib.contextmanager
    def small_storage(self, place: Path) -> Iterator[Storage]:
        disk = place / "disk"
        with disk.open("wb") as file:
            file.truncate(4 << 20)
        tool = shutil.which("mkfs.ext4", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if tool is None:
            pytest.skip("no mkfs.ext4 here")
        made = subprocess.run([tool, "-q", "-O", "^has_journal", disk], capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip(f"cannot make an ext4 here: {made.stderr.strip()}")
        with mounted(place, "-o", "loop", str(disk)) as folder:
            storage = FileStorage(folder / "log")
            storage.create()
            yield storage


class TestFlock(FileHooks, LockTests):
    """Without open file description locks: flock, by the same tests of locks."""

    asks_without_disturbing = False

    @pytest.fixture(autouse=True)
    def without_ofd(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(locks_module, "_HAS_OFD", False)

    def in_other_process(self, storage: Storage) -> str | None:
        return f"""
from walkit.storage import FileStorage, locks
locks._HAS_OFD = False
storage = FileStorage({storage.location!r})"""


class Spy:
    """Passes calls of an `os` function on and writes them down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.calls: list[tuple[Any, ...]] = []
        inner = getattr(os, name)

        def call(*arguments: Any) -> Any:
            fd = arguments[0]
            place = os.readlink(f"/proc/self/fd/{fd}") if isinstance(fd, int) else fd
            result = inner(*arguments)
            self.calls.append((place, *arguments[1:], result))
            return result

        monkeypatch.setattr(os, name, call)


linux = pytest.mark.skipif(sys.platform != "linux", reason="names Linux calls")


@linux
def test_a_synced_write_is_one_system_call(storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A synced write is one pwritev with RWF_DSYNC and no other sync; a plain one is pwritev without it."""
    file = storage.open("file", "create")
    writes, syncs = Spy(monkeypatch, "pwritev"), Spy(monkeypatch, "fdatasync")
    file.write(8, [b"ab", b"c"], sync=True)
    file.write(0, [b"x"])
    assert [call[2:] for call in writes.calls] == [(8, os.RWF_DSYNC, 3), (0, 0, 1)]
    assert not syncs.calls
    file.sync()
    assert len(syncs.calls) == 1
    file.close()


@linux
def test_without_the_flag_a_synced_write_is_write_and_sync(
    storage: FileStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that refuses RWF_DSYNC, and a platform without it: the bytes are written once and then synced."""
    file = storage.open("file", "create")
    real = os.pwritev

    def old_kernel(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", old_kernel)
    syncs = Spy(monkeypatch, "fdatasync")
    file.write(0, [b"one"], sync=True)
    assert (file.read(0, 9), len(syncs.calls)) == (b"one", 1)
    monkeypatch.setattr(file_module, "_DSYNC", 0)
    file.write(3, [b"two"], sync=True)
    assert (file.read(0, 9), len(syncs.calls)) == (b"onetwo", 2)
    file.close()


def test_writes_over_the_limits_are_split(storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """With limits of 7 bytes and 3 buffers a call, every split leaves the same bytes and no call is over a limit."""
    monkeypatch.setattr(file_module, "_WRITE_BYTES_MAX", 7)
    monkeypatch.setattr(file_module, "_BUFFERS_MAX", 3)
    file = storage.open("file", "create")
    data = bytes(range(100))
    for cuts in ([0, 100], [0, 7, 14, 100], list(range(101)), [0, 1, 1, 1, 1, 30, 31, 32, 99, 100]):
        buffers = [memoryview(data)[start:end] for start, end in itertools.pairwise(cuts)]
        with monkeypatch.context() as patch:
            writes = Spy(patch, "pwritev")
            file.shorten(0)
            file.write(5, buffers, sync=True)
        assert file.read(5, 200) == data
        assert all(call[4] <= 7 and len(call[1]) <= 3 for call in writes.calls)
    file.close()


def test_a_short_read_continues(storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system gives at most 7 bytes per call: a read is still whole, and short only at the end."""
    file = storage.open("file", "create")
    file.write(0, [bytes(range(100))])
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: real(fd, min(size, 7), offset))
    assert file.read(3, 50) == bytes(range(3, 53))
    assert file.read(90, 50) == bytes(range(90, 100))
    file.close()


def test_a_short_write_is_an_error(storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system takes fewer bytes than it was given: ENOSPC, and no second attempt."""
    file = storage.open("file", "create")
    real = os.pwritev
    calls = []

    def short(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        calls.append(offset)
        return real(fd, [b"".join(buffers)[:4]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    for buffers, size in (([b"abc", b"def"], 6), ([memoryview(array("H", range(4)))], 8)):
        for sync in (False, True):
            calls.clear()
            with Refused(errno.ENOSPC) as caught:
                file.write(0, buffers, sync=sync)
            assert calls == [0]
            assert f"4 of {size}" in str(caught.error)
    file.close()


@pytest.mark.parametrize("method", ["write", "synced write", "sync", "read", "size"])
def test_what_the_system_refuses_keeps_its_cause(
    storage: FileStorage, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """EIO from the kernel comes out as StorageError with errno, file name, place and the OSError as cause."""
    file = storage.open("file", "create")

    def fail(*arguments: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        for name in ("pwritev", "fdatasync", "pread", "lseek"):
            patch.setattr(os, name, fail)
        calls = {
            "write": lambda: file.write(0, [b"x"]),
            "synced write": lambda: file.write(0, [b"x"], sync=True),
            "sync": file.sync,
            "read": lambda: file.read(0, 1),
            "size": file.size,
        }
        with pytest.raises(StorageError) as caught:
            calls[method]()
    assert (caught.value.errno, caught.value.name) == (errno.EIO, "file")
    assert type(caught.value.__cause__) is OSError
    assert storage.location in str(caught.value)
    file.close()


@linux
def test_create_syncs_each_new_folders_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New folders are synced into their parents from the top; one that is there already, its own record once more."""
    syncs = Spy(monkeypatch, "fsync")
    FileStorage(tmp_path / "a" / "b" / "c").create()
    assert [call[0] for call in syncs.calls] == [str(tmp_path / part) for part in ("", "a", "a/b")]
    syncs.calls.clear()
    FileStorage(tmp_path / "a" / "b" / "c").create()
    assert [call[0] for call in syncs.calls] == [str(tmp_path / "a" / "b")]


@linux
def test_syncing_a_sub_folder_syncs_its_own_record(
    storage: FileStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sync_directory of a sub-folder reaches up to the storage: a new folder's record is in its parent."""
    storage.open("one/two/file", "create").close()
    syncs = Spy(monkeypatch, "fsync")
    storage.sync_directory("one/two")
    root = storage.location
    assert [call[0] for call in syncs.calls] == [f"{root}/one/two", f"{root}/one", root]


def test_a_removed_folder_does_not_come_back(storage: FileStorage) -> None:
    """Somebody removes the folder of an open storage: new files are refused with ENOENT instead of made again."""
    os.rmdir(storage.location)
    for name in ("file", "sub/file"):
        with Refused(errno.ENOENT):
            storage.open(name, "create")
    assert not storage.exists()


def test_a_file_instead_of_the_folder(tmp_path: Path) -> None:
    """A path that is a file is not a storage: ENOTDIR from every first call, and the file is untouched."""
    path = tmp_path / "file"
    path.write_bytes(b"precious")
    storage = FileStorage(path)
    for call in (storage.exists, storage.create, storage.names, lambda: storage.open("x", "create")):
        with Refused(errno.ENOTDIR):
            call()
    assert path.read_bytes() == b"precious"


def test_a_private_file_is_its_owners_and_keeps_its_number_over_a_rename(storage: FileStorage) -> None:
    """Create a private file under an open umask: 0600, never over another; a rename keeps its number, a copy not."""
    before = os.umask(0)
    try:
        with contextlib.closing(storage.create_private("secret")) as file:
            assert isinstance(file, NumberedFile)
            number = file.number()
    finally:
        os.umask(before)
    folder = Path(storage.location)
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    with Refused(errno.EEXIST):
        storage.create_private("secret")
    storage.replace("secret", "renamed")
    (folder / "copy").write_bytes(b"")
    for name, is_same in (("renamed", True), ("copy", False)):
        with contextlib.closing(storage.open(name, "read")) as file:
            assert isinstance(file, NumberedFile)
            assert (file.number() == number) is is_same


def test_the_path_is_fixed_when_the_storage_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the folder it meant at first, whatever the current folder is later."""
    monkeypatch.chdir(tmp_path)
    storage = FileStorage("log")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    storage.create()
    assert (tmp_path / "log").is_dir()
    assert FileStorage(tmp_path / "log").location == storage.location


def test_descriptors_are_not_inherited_by_programs(storage: FileStorage) -> None:
    """Files, locks and cells are closed in a program that is started: none of its descriptors is in the folder."""
    file, lock = storage.open("file", "create"), storage.lock("lock")
    cell = storage.cell("cell", 8, writable=True)
    for fd in map(int, os.listdir("/proc/self/fd") if sys.platform == "linux" else []):
        with contextlib.suppress(OSError):
            if storage.location in os.readlink(f"/proc/self/fd/{fd}"):
                assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert cell is not None
    assert not isinstance(lock, LockHolder)
    cell.close()
    lock.release()
    file.close()


def test_a_dropped_file_is_closed_with_a_warning(storage: FileStorage) -> None:
    """An open file without references closes its descriptor and warns."""
    file = storage.open("file", "create")
    before = len(os.listdir("/dev/fd"))
    with pytest.warns(ResourceWarning, match="file"):
        del file
    assert len(os.listdir("/dev/fd")) == before - 1


def test_facts_name_the_file_system(storage: FileStorage) -> None:
    """On Linux the facts agree with the kernel's answer for this folder by another way (stat -f)."""
    facts = storage.facts()
    assert facts["path"] == storage.location
    if sys.platform == "linux":
        command = ["stat", "-f", "-c", "%T", storage.location]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        assert said.split("/")[0].startswith(facts["file_system"][:3])


def descriptors_of(storage: FileStorage) -> int:
    """How many descriptors of this process are in the storage's folder."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(storage.location)
    return count


class InterruptAt:
    """Raises KeyboardInterrupt before the N-th instruction of whatever Python runs in its `with` block."""

    def __init__(self, point: int) -> None:
        self.left, self.hit = point, False

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and not self.hit:
            self.left -= 1
            if self.left < 0:
                self.hit = True
                raise KeyboardInterrupt
        return self._trace

    def run(self, call: Callable[[], object]) -> bool:
        """Call it; return whether it was interrupted."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        return self.hit


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_an_interrupted_close_leaks_nothing(storage: FileStorage, direct: bool, again: bool) -> None:
    """Interrupt a close before each of its instructions: closed again, or dropped, the file has no descriptor left."""
    if direct and storage.direct_io_refusal() is not None:
        pytest.skip("this file system has no direct I/O")
    point, interrupted = 0, True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of a file that is dropped while it is half closed
        while interrupted:
            name = f"file {point}"
            file = storage.open_direct(name, "create") if direct else storage.open(name, "create")
            interrupted = InterruptAt(point).run(file.close)
            if again:
                file.close()
            del file
            assert descriptors_of(storage) == 0, f"interrupted at instruction {point}"
            point += 1
    assert point > 20


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "link to a device", "link to a folder"])
@pytest.mark.parametrize("mode", ["read", "write", "cell", "lock", "ask", "create"])
def test_other_than_a_file_is_refused_at_once(storage: FileStorage, kind: str, mode: Any) -> None:
    """Put a pipe, socket, folder or device under a file's name: an error that names it, without waiting for it."""
    path = Path(storage.location) / "thing"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)  # a whole path may be too long for one
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null" if kind == "link to a device" else tmp_folder_of(storage))
    calls: dict[str, Callable[[], object]] = {
        "cell": lambda: storage.cell("thing", 8, writable=False),
        "lock": lambda: storage.lock("thing"),
        "ask": lambda: storage.is_locked("thing"),
    }
    opening = Task(calls.get(mode, lambda: storage.open("thing", mode)))
    with pytest.raises(StorageError, match="thing") as refused:
        opening.result()
    wanted = errno.EEXIST if mode == "create" else errno.EISDIR if "folder" in kind else errno.EINVAL
    if "link" in kind and mode in ("write", "lock"):
        wanted = errno.ELOOP
    assert (refused.value.errno, refused.value.name) == (wanted, "thing")
    assert descriptors_of(storage) == 0 or sys.platform != "linux"


def tmp_folder_of(storage: FileStorage) -> Path:
    """A folder beside the storage's."""
    folder = Path(storage.location).parent / "beside"
    folder.mkdir()
    return folder


def test_an_interrupt_is_not_lost_while_a_cell_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise KeyboardInterrupt right after the rename that ends the making: it comes out, and the cell is whole."""
    real_replace = os.replace

    def struck(source: Any, target: Any, **folders: Any) -> None:
        real_replace(source, target, **folders)
        raise KeyboardInterrupt

    storage = FileStorage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", struck)
        with pytest.raises(KeyboardInterrupt):
            storage.cell("cell", 64, writable=True)
    cell = storage.cell("cell", 64, writable=False)
    assert cell is not None and cell.read() == bytes(64)
    cell.close()
    assert storage.names() == ["cell"]
