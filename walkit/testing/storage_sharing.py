"""The part of the storage suite about what processes share: locks and cells."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import closing
from pathlib import Path

from walkit.storage import Cell, LockHolder, Storage, StorageLock
from walkit.testing.storage_hooks import OtherProcess, Refused, StorageHooks, skip

HOLD = """
asked = "at once"
while asked:
    lock = storage.lock("lock")
    print("free" if hasattr(lock, "release") else "held", flush=True)
    asked = sys.stdin.readline()
"""
HOLD_AND_FORK = """
import os
lock = storage.lock("lock")
if os.fork() == 0:
    lock.forget()
    print("forked", flush=True)
sys.stdin.read()
"""


class LockTests(StorageHooks):
    """Locks exclude, die with their process and survive a forked child."""

    def test_a_lock_excludes_every_opening(self, tmp_path: Path) -> None:
        """The same object and another opening are refused with the holder's facts until the lock is released."""
        storage = self.created(tmp_path)
        other = self.reopen(storage)
        lock = taken(storage)
        for opening in (storage, other):
            holder = opening.lock("lock")
            assert isinstance(holder, LockHolder)
            assert (holder.pid, holder.same_process) == (os.getpid(), True)
            assert holder.command
            assert opening.is_locked("lock")
        lock.release()
        lock.release()
        assert not storage.is_locked("lock")
        taken(other).release()

    def test_locks_of_different_names_are_apart(self, tmp_path: Path) -> None:
        """Two names can be held at once; releasing one keeps the other; the files of both stay."""
        storage = self.created(tmp_path)
        first, second = taken(storage, "one"), taken(storage, "folder/two")
        first.release()
        assert not storage.is_locked("one")
        assert storage.is_locked("folder/two")
        second.release()
        assert (storage.names(), storage.names("folder")) == (["folder/", "one"], ["folder/two"])

    def test_asking_makes_no_file(self, tmp_path: Path) -> None:
        """A lock that was never taken is not held, and the question makes no file."""
        storage = self.created(tmp_path)
        assert not storage.is_locked("lock")
        assert storage.names() == []

    def test_one_of_many_threads_gets_the_lock(self, tmp_path: Path) -> None:
        """Eight threads with their own openings try at once: one has it, seven learn that this process holds it."""
        storage = self.created(tmp_path)
        start = threading.Barrier(8)
        answers: list[StorageLock | LockHolder] = []

        def work() -> None:
            opening = self.reopen(storage)
            start.wait()
            answers.append(opening.lock("lock"))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        holders = [answer for answer in answers if isinstance(answer, LockHolder)]
        for answer in answers:
            if not isinstance(answer, LockHolder):
                answer.release()
        assert len(holders) == 7
        assert all(holder.same_process for holder in holders)

    def test_asking_does_not_disturb_a_taking(self, tmp_path: Path) -> None:
        """While a thread asks without pause, every taking succeeds and every asked-for answer is true."""
        if not self.asks_without_disturbing:
            skip("this way of locking can only ask by trying")
        storage = self.created(tmp_path)
        asking, stop = threading.Event(), threading.Event()

        def ask() -> None:
            other = self.reopen(storage)
            while not stop.is_set():
                other.is_locked("lock")
                asking.set()

        thread = threading.Thread(target=ask)
        thread.start()
        asking.wait()
        try:
            for _ in range(300):
                taken(storage).release()
        finally:
            stop.set()
            thread.join()

    def test_another_process_holds_the_lock(self, tmp_path: Path) -> None:
        """A child holds the lock: we are refused with its pid and command, see it held, and get it once it exits."""
        storage = self.created(tmp_path)
        with OtherProcess(self.other_opening(storage), HOLD) as child:
            assert child.line() == "free"
            holder = storage.lock("lock")
            assert isinstance(holder, LockHolder)
            assert (holder.pid, holder.same_process) == (child.pid, False)
            assert holder.command
            assert "-c" in holder.command
            assert storage.is_locked("lock")
        taken(storage).release()

    def test_our_lock_stops_another_process(self, tmp_path: Path) -> None:
        """We hold the lock: a child is refused; after our release it gets the lock."""
        storage = self.created(tmp_path)
        lock = taken(storage)
        with OtherProcess(self.other_opening(storage), HOLD) as child:
            assert child.line() == "held"
            lock.release()
            child.send("again")
            assert child.line() == "free"

    def test_a_killed_process_frees_its_lock(self, tmp_path: Path) -> None:
        """SIGKILL to the child that holds the lock: it is free as soon as the child is gone."""
        storage = self.created(tmp_path)
        with OtherProcess(self.other_opening(storage), HOLD) as child:
            assert child.line() == "free"
            child.kill()
            assert not storage.is_locked("lock")
            taken(storage).release()

    def test_a_forked_child_cannot_free_the_lock(self, tmp_path: Path) -> None:
        """A forked child that forgets, or by mistake releases, its copy leaves the parent's lock held."""
        storage = self.created(tmp_path)
        if self.in_other_process(storage) is None:
            skip("nothing of this storage is shared with a forked child")
        lock = taken(storage)
        for name in ("forget", "release"):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    getattr(lock, name)()
                    holder = storage.lock("lock")
                    if (
                        isinstance(holder, LockHolder)
                        and not holder.same_process
                        and holder.pid == os.getppid()
                    ):
                        status = 0 if storage.is_locked("lock") else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert storage.is_locked("lock")
            assert isinstance(storage.lock("lock"), LockHolder)
        lock.release()
        assert not storage.is_locked("lock")

    def test_a_release_counts_although_a_forked_child_lives(self, tmp_path: Path) -> None:
        """A child forked while the lock was held continues with its copy; the parent releases: the lock is free."""
        storage = self.created(tmp_path)
        if self.in_other_process(storage) is None:
            skip("nothing of this storage is shared with a forked child")
        lock = taken(storage)
        end, other_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(other_end)
            os.read(end, 1)
            os._exit(0)
        os.close(end)
        lock.release()
        held = storage.is_locked("lock")
        os.close(other_end)
        os.waitpid(pid, 0)
        assert not held

    def test_a_forked_child_does_not_keep_a_dead_parents_lock(self, tmp_path: Path) -> None:
        """The holder is killed while its forked child, which forgot its copy, lives on: the lock is free."""
        storage = self.created(tmp_path)
        with OtherProcess(self.other_opening(storage), HOLD_AND_FORK) as parent:
            assert parent.line() == "forked"
            assert storage.is_locked("lock")
            parent.kill()
            assert not storage.is_locked("lock")


class CellTests(StorageHooks):
    """Cells are seen everywhere at once."""

    def test_a_missing_cell(self, tmp_path: Path) -> None:
        """A reader gets None for a missing cell, and zeros past the end of a short one; a writer makes a new one."""
        storage = self.created(tmp_path)
        assert storage.cell("cell", 64, writable=False) is None
        assert storage.names() == []
        self.raw_write(storage, "cell", b"short")
        with closing(opened(storage, 64)) as reader:
            assert reader.read() == b"short" + bytes(59)
        with closing(made(storage, 64)) as cell:
            assert cell.read() == bytes(64)
        assert storage.names() == ["cell"]

    def test_a_cell_is_seen_by_every_opening(self, tmp_path: Path) -> None:
        """Readers of other openings see a stored value at once, and a later opening still finds it."""
        storage = self.created(tmp_path)
        cell = made(storage, 64)
        with closing(opened(self.reopen(storage), 64)) as reader:
            for turn in range(3):
                cell.write(8 * turn, b"%08d" % turn)
            assert reader.read() == b"000000000000000100000002" + bytes(40)
            cell.close()
            cell.close()
            assert reader.read()[:8] == b"00000000"
            with closing(made(storage, 64)) as again, closing(opened(storage, 8)) as smaller:
                assert again.read() == reader.read()
                assert smaller.read() == b"00000000"

    def test_a_cell_has_bounds(self, tmp_path: Path) -> None:
        """Stores outside the cell, through a reader's cell, or after close, are refused and change nothing."""
        storage = self.created(tmp_path)
        cell = made(storage, 16)
        cell.write(0, b"0123456789abcdef")
        for offset in (-1, -16, 15, 16, 17):
            with Refused(errno.EINVAL) as caught:
                cell.write(offset, b"xx")
            assert caught.error.name == "cell"
        with closing(opened(storage, 16)) as reader:
            with Refused(errno.EACCES):
                reader.write(0, b"x")
            cell.write(16, b"")
            cell.close()
            with Refused(errno.EBADF):
                cell.write(0, b"x")
            with Refused(errno.EBADF):
                cell.read()
            assert reader.read() == b"0123456789abcdef"

    def test_a_cell_is_shared_with_another_process(self, tmp_path: Path) -> None:
        """Parent and child store into one cell in turn; each sees the other's bytes without any file call."""
        storage = self.created(tmp_path)
        source = """
cell = storage.cell("cell", 16, writable=True)
for line in sys.stdin:
    print(cell.read()[:8].decode(), flush=True)
    cell.write(8, line.strip().encode())
    print("stored", flush=True)
"""
        with closing(made(storage, 16)) as cell, OtherProcess(self.other_opening(storage), source) as child:
            for turn in range(3):
                cell.write(0, b"parent %d" % turn)
                child.send(f"child  {turn}")
                assert child.line() == f"parent {turn}"
                assert child.line() == "stored"
                assert cell.read() == b"parent %dchild  %d" % (turn, turn)

    def test_a_cell_outlives_a_killed_writer(self, tmp_path: Path) -> None:
        """A child stores into the cell and is killed: its bytes are there."""
        storage = self.created(tmp_path)
        source = """
cell = storage.cell("cell", 16, writable=True)
cell.write(0, b"last words")
print("stored", flush=True)
sys.stdin.read()
"""
        with OtherProcess(self.other_opening(storage), source) as child:
            assert child.line() == "stored"
            child.kill()
        with closing(opened(storage, 16)) as reader:
            assert reader.read() == b"last words" + bytes(6)


def taken(storage: Storage, name: str = "lock") -> StorageLock:
    """Take a lock that must be free."""
    lock = storage.lock(name)
    assert not isinstance(lock, LockHolder), f"held by {lock}"
    return lock


def opened(storage: Storage, size: int) -> Cell:
    """Return the cell of the tests for reading."""
    cell = storage.cell("cell", size, writable=False)
    assert cell is not None
    return cell


def made(storage: Storage, size: int) -> Cell:
    """Return the writable cell of the tests."""
    cell = storage.cell("cell", size, writable=True)
    assert cell is not None
    return cell
