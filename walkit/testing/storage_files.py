"""The part of the storage suite about bytes in one file."""

from __future__ import annotations

import errno
import pickle
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from walkit.errors import StorageError
from walkit.storage import BulkReads, StorageFile
from walkit.testing.storage_hooks import Refused, StorageHooks, skip


class FileTests(StorageHooks):
    """Read, write, growth and closing."""

    def test_written_bytes_are_there(self, tmp_path: Path) -> None:
        """Writes with and without sync reach the file: read back past the code under test."""
        storage, file = self.with_file(tmp_path)
        file.write(0, [b"hello "])
        file.write(6, [b"world"], sync=True)
        file.sync()
        assert self.raw_read(storage, "file") == b"hello world"

    def test_foreign_bytes_are_read(self, tmp_path: Path) -> None:
        """Bytes that were put there without the code under test come back in every mode that reads."""
        storage = self.created(tmp_path)
        self.raw_write(storage, "file", b"from elsewhere")
        for mode in ("read", "write"):
            file = self.opened(storage, "file", mode)
            assert (file.read(0, 100), file.size(), file.name) == (b"from elsewhere", 14, "file")
            file.close()

    def test_reads_are_short_only_at_the_end(self, tmp_path: Path) -> None:
        """A table of offsets and sizes against the slice that a bytes object gives."""
        data = bytes(range(200))
        _, file = self.with_file(tmp_path, data)
        for offset, size in [
            (0, 200),
            (0, 0),
            (0, 201),
            (199, 1),
            (199, 2),
            (200, 1),
            (500, 5),
            (10, 1 << 40),
        ]:
            assert file.read(offset, size) == data[offset : offset + size], (offset, size)

    def test_large_reads_are_whole(self, tmp_path: Path) -> None:
        """A read of some MiB comes back in one piece, also when more is asked for than there is."""
        data = bytes(range(256)) * (3 << 12)
        _, file = self.with_file(tmp_path, data)
        assert file.read(0, len(data)) == data
        assert file.read(1 << 20, 1 << 30) == data[1 << 20 :]

    def test_holes_read_as_zero(self, tmp_path: Path) -> None:
        """A write far past the end grows the file; what was never written is zero."""
        storage, file = self.with_file(tmp_path, b"ab")
        file.write(10_000, [b"z"], sync=True)
        assert file.size() == 10_001
        assert self.raw_read(storage, "file") == b"ab" + bytes(9_998) + b"z"

    def test_what_is_outside_the_data_is_zero(self, tmp_path: Path) -> None:
        """Reserve space, write two places of it, synced and not: no byte outside of the ranges is other than zero."""
        _, file = self.with_file(tmp_path)
        if not isinstance(file, BulkReads):
            skip("this backend reads plainly")
        file.allocate(1 << 20)
        file.write(5_000, [b"x" * 3_000], sync=True)
        file.write(700_000, [b"y" * 10])
        for start, end in [(0, 1 << 20), (0, 2 << 20), (6_000, 700_005), (8_000, 8_000), (1 << 20, 1 << 21)]:
            covered, before = bytearray(end - start), start
            for begin, behind in file.data_ranges(start, end):
                assert before <= begin < behind <= end
                covered[begin - start : behind - start] = b"\1" * (behind - begin)
                before = behind
            data = file.read(start, end - start)
            assert all(covered[at] for at in range(len(data)) if data[at]), (start, end)

    def test_reads_into_memory_are_reads(self, tmp_path: Path) -> None:
        """A table of offsets and sizes, read ahead and then into a buffer: the bytes that read returns."""
        data = bytes(range(200))
        _, file = self.with_file(tmp_path, data)
        if not isinstance(file, BulkReads):
            skip("this backend reads plainly")
        for offset, size in [(0, 200), (0, 0), (150, 100), (200, 1), (500, 5)]:
            buffer = bytearray(b"." * size)
            file.read_ahead(offset, size)
            count = file.read_into(offset, memoryview(buffer))
            assert bytes(buffer[:count]) == file.read(offset, size)
            assert set(buffer[count:]) <= set(b".")

    def test_overwriting_keeps_the_rest(self, tmp_path: Path) -> None:
        """Writes inside and over the end change their own bytes only."""
        storage, file = self.with_file(tmp_path, b"0123456789")
        file.write(3, [b"abc"])
        file.write(8, [b"XYZ"])
        assert self.raw_read(storage, "file") == b"012abc67XYZ"

    def test_every_kind_of_buffer(self, tmp_path: Path) -> None:
        """Bytes, bytearrays and views, of items larger than a byte too, are written as their bytes, in order."""
        buffers: list[Any] = [
            b"bytes",
            bytearray(b"array"),
            b"",
            memoryview(b"--view--")[2:6],
            memoryview(array("I", [1, 2, 3])),
            memoryview(bytearray(b"abcdefgh")).cast("B", (2, 4)),
        ]
        expected = b"".join(memoryview(buffer).tobytes() for buffer in buffers)
        storage, file = self.with_file(tmp_path)
        for sync in (False, True):
            file.shorten(0)
            file.write(0, buffers, sync=sync)
            file.write(len(expected), tuple(buffers), sync=sync)
            assert self.raw_read(storage, "file") == expected * 2
        file.write(3, [])
        file.write(3, [b""], sync=True)
        assert self.raw_read(storage, "file") == expected * 2

    def test_bad_buffers_write_nothing(self, tmp_path: Path) -> None:
        """A buffer that is not contiguous is refused, after any others in the list; the file keeps its bytes."""
        storage, file = self.with_file(tmp_path, b"kept")
        bad: list[Any] = ["text", 7, None, memoryview(b"abcdef")[::2]]
        for buffer in bad:
            for sync in (False, True):
                try:
                    file.write(0, [b"new", buffer], sync=sync)
                except (TypeError, BufferError):
                    assert self.raw_read(storage, "file") == b"kept", buffer
                else:
                    raise AssertionError(f"{buffer!r} was taken")

    def test_more_buffers_than_one_call_takes(self, tmp_path: Path) -> None:
        """Three thousand buffers (a Linux call takes 1024) land one after the other, synced and not."""
        buffers = [bytes([i % 251]) * (i % 7) for i in range(3000)]
        expected = b"".join(buffers)
        storage, file = self.with_file(tmp_path)
        for sync in (False, True):
            file.shorten(0)
            file.write(5, buffers, sync=sync)
            assert self.raw_read(storage, "file") == bytes(5) + expected

    def test_allocated_space_reads_as_zero(self, tmp_path: Path) -> None:
        """Allocation grows the file by zeros, keeps what is there, and never makes it shorter."""
        storage, file = self.with_file(tmp_path, b"head")
        file.allocate(70_000)
        assert self.raw_read(storage, "file") == b"head" + bytes(69_996)
        file.allocate(10)
        assert file.size() == 70_000

    def test_shortened_bytes_do_not_come_back(self, tmp_path: Path) -> None:
        """Shortening drops the end, leaves a shorter file alone, and growth afterwards brings zeros."""
        storage, file = self.with_file(tmp_path, b"0123456789")
        file.shorten(20)
        assert file.size() == 10
        file.shorten(4)
        assert (file.size(), file.read(0, 100)) == (4, b"0123")
        file.allocate(8)
        file.write(9, [b"z"])
        assert self.raw_read(storage, "file") == b"0123" + bytes(5) + b"z"

    def test_dropping_the_cache_drops_no_bytes(self, tmp_path: Path) -> None:
        """Synced and unsynced bytes read the same after drop_cached."""
        _, file = self.with_file(tmp_path, b"unsynced ")
        file.write(9, [b"synced"], sync=True)
        file.drop_cached()
        assert file.read(0, 100) == b"unsynced synced"

    def test_openings_of_one_file_agree(self, tmp_path: Path) -> None:
        """Bytes that one opening wrote are read by the others at once; closing one leaves the others usable."""
        storage, file = self.with_file(tmp_path, b"one")
        reader = self.opened(self.reopen(storage), "file", "read")
        file.write(0, [b"two"])
        assert reader.read(0, 3) == b"two"
        file.close()
        assert reader.read(0, 3) == b"two"

    def test_a_reader_cannot_write(self, tmp_path: Path) -> None:
        """Every change through a file opened for reading is a StorageError and changes nothing."""
        storage, _ = self.with_file(tmp_path, b"kept")
        reader = self.opened(storage, "file", "read")
        with Refused(errno.EBADF) as caught:
            reader.write(0, [b"lost"])
        with Refused(errno.EBADF):
            reader.write(0, [b"lost"], sync=True)
        assert caught.error.name == "file"
        assert self.raw_read(storage, "file") == b"kept"

    def test_negative_numbers_are_refused(self, tmp_path: Path) -> None:
        """A negative offset or size is EINVAL, before anything is done."""
        storage, file = self.with_file(tmp_path, b"kept")
        for call in (lambda: file.write(-1, [b"x"]), lambda: file.read(-1, 1), lambda: file.read(0, -1)):
            with Refused(errno.EINVAL):
                call()
        assert self.raw_read(storage, "file") == b"kept"

    def test_closed_files(self, tmp_path: Path) -> None:
        """Closing twice does nothing; every other call on a closed file is EBADF and changes nothing."""
        storage, file = self.with_file(tmp_path, b"kept")
        file.close()
        file.close()
        calls: list[Callable[[], object]] = [
            lambda: file.read(0, 1),
            lambda: file.write(0, [b"x"]),
            lambda: file.write(0, [b"x"], sync=True),
            file.sync,
            lambda: file.allocate(100),
            lambda: file.shorten(0),
            file.size,
            file.drop_cached,
        ]
        if isinstance(file, BulkReads):
            calls += [
                lambda: file.data_ranges(0, 1),
                lambda: file.read_into(0, memoryview(bytearray(1))),
                lambda: file.read_ahead(0, 1),
            ]
        for call in calls:
            with Refused(errno.EBADF):
                call()
        assert self.raw_read(storage, "file") == b"kept"

    def test_threads_write_their_own_ranges(self, tmp_path: Path) -> None:
        """Eight threads write, sync and read disjoint ranges of one file at once; every byte is in its place."""
        storage, file = self.with_file(tmp_path)
        wrong: list[str] = []

        def work(file: StorageFile, number: int) -> None:
            piece = bytes([number + 1]) * 100
            for turn in range(20):
                offset = (turn * 8 + number) * 100
                file.write(offset, [piece[:50], piece[50:]], sync=turn % 5 == 0)
                if file.read(offset, 100) != piece:
                    wrong.append(f"thread {number} turn {turn}")

        threads = [threading.Thread(target=work, args=(file, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert self.raw_read(storage, "file") == b"".join(bytes([i + 1]) * 100 for i in range(8)) * 20

    def test_errors_are_data(self, tmp_path: Path) -> None:
        """An error has operation, file and reason, and keeps errno and name through a pickle."""
        storage = self.created(tmp_path)
        with Refused(errno.ENOENT) as caught:
            storage.open("missing", "read")
        error = caught.error
        twin = pickle.loads(pickle.dumps(error))  # noqa: S301 - the pickle is our own
        assert (twin.errno, twin.name, str(twin)) == (errno.ENOENT, "missing", str(error))
        assert "missing" in str(error)
        assert storage.location in str(error)
        assert isinstance(error, OSError)


class SpaceTests(StorageHooks):
    """A full disk, on a small device."""

    def test_a_full_disk_shows_in_allocate(self, tmp_path: Path) -> None:
        """On a small device, allocating too much is ENOSPC and keeps size and bytes; less still works afterwards."""
        with self.small_storage(tmp_path) as storage:
            file = storage.open("file", "create")
            file.write(0, [b"head"], sync=True)
            with Refused(errno.ENOSPC) as caught:
                file.allocate(64 << 20)
            assert (caught.error.name, file.size(), file.read(0, 9)) == ("file", 4, b"head")
            file.allocate(64 << 10)
            file.write(4, [bytes(60 << 10)], sync=True)
            file.close()

    def test_a_full_disk_refuses_a_write(self, tmp_path: Path) -> None:
        """On a small device, a write that does not fit is a StorageError, whether nothing or a part was taken."""
        with self.small_storage(tmp_path) as storage:
            file = storage.open("file", "create")
            refusals: list[StorageError] = []
            for turn in range(64):
                try:
                    file.write(turn << 20, [bytes(1 << 20)], sync=True)
                except StorageError as error:
                    refusals.append(error)
            file.close()
            assert refusals
            assert {error.errno for error in refusals} <= {errno.ENOSPC, errno.EIO}
