"""Exclusive locks between processes, which the kernel frees when the holder dies.

On Linux they are open file description locks (fcntl(2), F_OFD_SETLK): held by the open file and not by the process,
so two openings in one process exclude each other, and `F_OFD_GETLK` can ask without taking anything. Elsewhere, and
on file systems that refuse those, flock(2) does the same except that asking means to try: a question and a taking
that meet can make the taking fail, so a taking is tried again a few times before it is believed.

The two kinds do not see each other on a local file system. So where the file system is known to be local, the holder of
the first lock takes the second too, after it and on the same open file: a program that holds the lock's file by flock
alone keeps a writer out, and a writer keeps it out. Not on NFS, where the kernel makes one of the other and both of one
open file would exclude each other, nor where the file system is not known. `lock_is_held` asks about the first kind
alone: every writer of walkit has it, and to ask about the other would mean to take it.

The lock's file holds one JSON line about its holder, for people only; the kernel alone knows the holder of the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import sys
import threading
import time

from walkit.storage.interface import LockHolder
from walkit.storage.io_errors import Translated, open_regular
from walkit.storage.mounts import mount_of

_HAS_OFD = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
_FLOCK_STRUCT = (
    "hhqqi0q"  # struct flock: l_type, l_whence, l_start, l_len, l_pid, padded as the C compiler does
)
_BUSY = (errno.EAGAIN, errno.EACCES)
_NO_FLOCK = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_FLOCK_TRIES = 4
_FLOCK_PAUSE_S = 0.001
_COMMAND_LENGTH_MAX = 1000
_INFORMATION_BYTES_MAX = 64 * 1024

_guard = threading.Lock()
_held: dict[tuple[int, int], int] = {}
"""Lock files held through this module, by (device, inode), with the pid that took each: a forked child inherits the
table, and the parent's pid in it says that the lock is not the child's."""


class FileLock:
    """A held lock: see `walkit.storage.StorageLock`."""

    __slots__ = ("_fd", "_key", "_location", "_name", "_pid")

    def __init__(self, fd: int, key: tuple[int, int], name: str, location: str) -> None:
        self._fd, self._key, self._name, self._location = fd, key, name, location
        self._pid = os.getpid()

    def release(self) -> None:
        """Free the lock. In a forked child this is `forget`: the lock is its parent's."""
        if self._pid != os.getpid():
            self.forget()
            return
        with _guard:
            if self._fd < 0:
                return
            fd, self._fd = self._fd, -1
            _held.pop(self._key, None)
            _taken.discard(self)
            with Translated("release the lock", self._name, self._location):
                try:
                    _write_information(fd, b"")
                    # Closing alone would leave the lock to a child that was forked and has not called forget() yet.
                    _unlock(fd)
                finally:
                    os.close(fd)

    def forget(self) -> None:
        """Close this process's copy; the lock stays with every other copy, and with the last of them it goes."""
        with _guard:
            if self._fd < 0:
                return
            fd, self._fd = self._fd, -1
            _taken.discard(self)
            if _held.get(self._key) == os.getpid():
                del _held[self._key]
            os.close(fd)


_taken: set[FileLock] = set()
"""The locks of this process that are held: what a forked child has of them, it drops."""


def _after_fork_in_child() -> None:
    """Drop the copies of the parent's locks: a child that outlives it would keep them, in the name of a dead process.

    A child forked while another thread was taking a lock would find the guard taken for ever, too.
    """
    global _guard
    _guard = threading.Lock()
    for lock in tuple(_taken):
        lock.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


def take_lock(path: str, name: str, location: str) -> FileLock | LockHolder:
    """Take the lock whose file is at `path`, made where missing, or return its holder. Never waits for the holder."""
    with _guard, Translated("lock", name, location):
        fd = open_regular(path, os.O_RDWR | os.O_CREAT, "lock", name, location)
        try:
            status = os.fstat(fd)
            key = (status.st_dev, status.st_ino)
            if not _try_lock(fd):
                holder = _holder(fd, same_process=_held.get(key) == os.getpid())
                os.close(fd)
                return holder
            if _HAS_OFD and not _try_flock_too(fd, path):
                os.close(fd)
                # The content of the file is of a writer that is gone: this holder has written nothing there.
                return LockHolder(pid=None, command=None, same_process=False)
            _write_information(fd, lock_information())
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(fd)
            raise
        _held[key] = os.getpid()
        lock = FileLock(fd, key, name, location)
        _taken.add(lock)
        return lock


def lock_is_held(path: str, name: str, location: str) -> bool:
    """Say whether a living process holds the lock whose file is at `path`; False where there is no such file."""
    with Translated("ask about the lock", name, location):
        try:
            fd = open_regular(path, os.O_RDONLY, "ask about the lock", name, location)
        except FileNotFoundError:
            return False
        try:
            return _ask(fd)
        finally:
            os.close(fd)


def _try_lock(fd: int) -> bool:
    if _HAS_OFD:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
            return True
        except OSError as error:
            if error.errno in _BUSY:
                return False
            if error.errno != errno.EINVAL:
                raise
    return _try_flock(fd)


def _try_flock_too(fd: int, path: str) -> bool:
    """Take flock beside the lock that is held, where the two are known to be apart; False where another has it."""
    mount = mount_of(path)
    if mount is None or not mount.is_local:
        return True
    try:
        return _try_flock(fd)
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        return True


def _try_flock(fd: int) -> bool:
    for attempt in range(_FLOCK_TRIES):
        if attempt:
            time.sleep(_FLOCK_PAUSE_S)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            continue
    return False


def _unlock(fd: int) -> None:
    if _HAS_OFD:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_UNLCK))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    fcntl.flock(fd, fcntl.LOCK_UN)


def _ask(fd: int) -> bool:
    if _HAS_OFD:
        try:
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
            return bool(struct.unpack(_FLOCK_STRUCT, answer)[0] != fcntl.F_UNLCK)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _whole_file(kind: int) -> bytes:
    return struct.pack(_FLOCK_STRUCT, kind, os.SEEK_SET, 0, 0, 0)


def own_command() -> str:
    """Return this process's command line as one line, for people; a long one is cut short."""
    return _one_line(" ".join(sys.orig_argv) or sys.executable)


def _one_line(text: str) -> str:
    """Return a text without what a terminal acts upon: a program that is given with -c has lines."""
    shown = "".join(c if c.isprintable() else " " for c in text[:_COMMAND_LENGTH_MAX])
    return " ".join(shown.split())


def lock_information() -> bytes:
    """Return the line that this process writes into a lock's file."""
    return json.dumps({"pid": os.getpid(), "command": own_command()}).encode() + b"\n"


def _write_information(fd: int, line: bytes) -> None:
    # The lock holds without this line, and a full disk must not keep a log from being opened to make room.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, line, 0)


def _holder(fd: int, *, same_process: bool) -> LockHolder:
    try:
        facts = json.loads(os.pread(fd, _INFORMATION_BYTES_MAX, 0))
        pid, command = facts["pid"], facts["command"]
    except (OSError, ValueError, KeyError, TypeError):
        pid = command = None
    return LockHolder(
        pid=pid if isinstance(pid, int) else None,
        command=_one_line(command) if isinstance(command, str) else None,
        same_process=same_process,
    )
