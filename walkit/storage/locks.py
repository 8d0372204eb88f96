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

A folder is held by flock on a descriptor of its own: the lock follows the folder when it is renamed, and no removal of
a file in it gives it away. File systems that have no such lock (NFS) leave the folder to the locks of its files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace

from walkit._internal.locks import once
from walkit.storage.folder import Folder, HeldFolder, number_at, number_of, open_regular
from walkit.storage.interface import FileNumber, LockHolder, Translated
from walkit.storage.mounts import mount_of

_HAS_OFD = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
_FLOCK_STRUCT = (
    "hhqqi0q"  # struct flock: l_type, l_whence, l_start, l_len, l_pid, padded as the C compiler does
)
_BUSY = (errno.EAGAIN, errno.EACCES)
_NO_FLOCK = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_FLOCK_TRIES = 4
_NAME_TRIES = 3
_FLOCK_PAUSE_S = 0.001
_COMMAND_LENGTH_MAX = 1000
_INFORMATION_BYTES_MAX = 64 * 1024
_UNKNOWN_HOLDER = LockHolder(pid=None, command=None, same_process=False)

# Guards `_taken`, the locks of this process, and each step that takes or frees one. No other lock is taken under it.
_guard = threading.RLock()


class FileLock:
    """A held lock: see `walkit.storage.StorageLock`."""

    __slots__ = ("__weakref__", "_location", "_name", "_raw", "key", "pid")

    def __init__(self, raw: io.FileIO, key: FileNumber, name: str, location: str) -> None:
        self._raw, self.key, self._name, self._location = raw, key, name, location
        self.pid = os.getpid()

    def number(self) -> FileNumber:
        """Return the number of the lock's file, as the system says it now. See `NumberedFile`."""
        with Translated("read the number of", self._name, self._location):
            return number_of(self._raw.fileno())

    def release(self) -> None:
        """Free the lock. In a forked child this is `forget`: the lock is its parent's."""
        if self.pid != os.getpid():
            self.forget()
            return
        with once(_guard), _guard:
            if self._raw.closed:
                return
            with Translated("release the lock", self._name, self._location), self._raw:
                _write_information(self._raw.fileno(), b"")
                # Closing alone would leave the lock to a child that was forked and has not called forget() yet.
                unlock(self._raw.fileno())
            # Last: a release that finds no memory is repeated, and until it is done the lock is known as ours.
            _taken.discard(self)

    def forget(self) -> None:
        """Close this process's copy; the lock stays with every other copy, and with the last of them it goes."""
        with once(_guard), _guard:
            self.drop()

    def drop(self) -> None:
        """Do the same, with the guard held."""
        _taken.discard(self)
        self._raw.close()


class FolderLock:
    """A folder that is held: see `walkit.storage.interface.FolderHold`."""

    __slots__ = ("__weakref__", "_bind", "_folder", "_path", "key", "pid")

    def __init__(self, folder: HeldFolder, bind: Callable[[Folder], object]) -> None:
        self._folder: HeldFolder | None = folder
        self.key, self._path, self._bind = number_of(folder.fd), folder.path, bind
        self.pid = os.getpid()

    def number(self) -> FileNumber | None:
        """Return the number of the folder as the system says it now; None if the folder was removed."""
        folder = self._folder
        if folder is None:
            return None
        with Translated("look at", "", self._path):
            return number_of(folder.fd) if os.fstat(folder.fd).st_nlink else None

    def number_of(self, name: str) -> FileNumber | None:
        """Return the number of the file that has this name in the folder now; for "", of the folder at the location."""
        with Translated("look at", name, self._path):
            return number_at(self._folder if name and self._folder is not None else Folder(self._path), name)

    def place(self) -> str:
        """Return the path that the folder has now, as far as the system says it, else the location."""
        try:
            return self._path if self._folder is None else os.readlink(f"/proc/self/fd/{self._folder.fd}")
        except OSError:
            return self._path

    def release(self) -> None:
        """Leave the folder. In a forked child this is `forget`: the folder is its parent's."""
        if self.pid != os.getpid():
            self.forget()
            return
        with once(_guard), _guard:
            folder = self._folder
            if folder is None:
                return
            self._bind(Folder(self._path))
            with contextlib.suppress(OSError):
                fcntl.flock(folder.fd, fcntl.LOCK_UN)
            _taken.discard(self)
            self._folder = None  # last, as in `FileLock.release`

    def forget(self) -> None:
        """Close this process's copy; another process's copy stays."""
        with once(_guard), _guard:
            folder, self._folder = self._folder, None
            _taken.discard(self)
            self._bind(Folder(self._path))
            if folder is not None:
                folder.close()


_taken: weakref.WeakSet[FileLock | FolderLock] = weakref.WeakSet()
"""The locks of this process that are held: a forked child drops its copies. One that an interrupt has kept
from its taker is freed with its object."""


def _is_ours(key: FileNumber) -> bool:
    """Say whether this process holds the lock of a file or folder; a forked child has no lock of its parent."""
    return any(lock.key == key and lock.pid == os.getpid() for lock in _taken)


def _after_fork_in_child() -> None:
    """Drop the copies of the parent's locks: a child that outlives it would keep them, in the name of a dead process.

    A child forked while another thread was taking a lock would find the guard taken forever, too.
    """
    global _guard
    _guard = threading.RLock()
    for lock in tuple(_taken):
        lock.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


def take_lock(folder: Folder, name: str) -> FileLock | LockHolder:
    """Take the lock of this name, its file made if missing, or return its holder. Never waits for the holder."""
    with once(_guard), _guard, Translated("lock", name, folder.path):
        for tries_left in range(_NAME_TRIES, -1, -1):
            lock = _take(folder, name)
            # Its file may have lost its name before it was taken: another process takes the one that has the name.
            # On an untouched folder whose numbers differ by name, comparing says nothing.
            if isinstance(lock, LockHolder) or not tries_left or number_at(folder, name) == lock.key:
                break
            lock.drop()
        return lock


def _take(folder: Folder, name: str) -> FileLock | LockHolder:
    """Do one try of `take_lock`, with the guard held."""
    raw = open_regular(folder, name, os.O_RDWR | os.O_CREAT, "lock")
    fd = raw.fileno()
    try:
        key = number_of(fd)
        if not try_lock(fd):
            holder = _holder(fd, same_process=_is_ours(key))
            raw.close()
            return holder
        if _HAS_OFD and not _try_flock_too(fd, folder.path):
            raw.close()
            # The file was written by a holder that is gone: this one has written nothing there.
            return _UNKNOWN_HOLDER
        _write_information(fd, lock_information())
        lock = FileLock(raw, key, name, folder.path)
        _taken.add(lock)
    except BaseException:
        raw.close()
        raise
    return lock


def take_folder(path: str, lock_name: str, bind: Callable[[Folder], object]) -> FolderLock | LockHolder:
    """Hold a folder and `bind` its storage to it, or return its holder, who says who it is in the file `lock_name`."""
    with once(_guard), _guard, Translated("hold", "", path):
        folder = HeldFolder(path)
        key = number_of(folder.fd)
        try:
            if not _try_flock(folder.fd):
                return _holder_in(folder, lock_name, same_process=_is_ours(key))
        except OSError:
            pass  # this file system has no such lock, and its files have theirs
        lock = FolderLock(folder, bind)
        _taken.add(lock)
        bind(folder)
        return lock


def lock_is_held(folder: Folder, name: str) -> bool:
    """Say whether a living process holds the lock of this name; False if there is no such file."""
    with Translated("ask about the lock", name, folder.path):
        try:
            raw = open_regular(folder, name, os.O_RDONLY, "ask about the lock")
        except FileNotFoundError:
            return False
        with raw:
            return is_locked(raw.fileno())


def try_lock(fd: int) -> bool:
    """Take the lock of an open file; False if another opening of the file has it. OSError."""
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
    """Take flock beside the lock that is held, if the two are known to be apart; False if another has it."""
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


def unlock(fd: int) -> None:
    """Free the lock of an open file, for all copies of this opening. OSError."""
    if _HAS_OFD:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_UNLCK))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    fcntl.flock(fd, fcntl.LOCK_UN)


def is_locked(fd: int) -> bool:
    """Say whether another opening of a file has its lock. OSError."""
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
    """Return a text without control characters: a program that is given with -c has lines."""
    shown = "".join(c if c.isprintable() else " " for c in text[:_COMMAND_LENGTH_MAX])
    return " ".join(shown.split())


def lock_information() -> bytes:
    """Return the line that this process writes into a lock's file."""
    return json.dumps({"pid": os.getpid(), "command": own_command()}).encode() + b"\n"


def _write_information(fd: int, line: bytes) -> None:
    # The lock holds without this line, and a full disk must not keep a log from being opened to make room.
    with contextlib.suppress(OSError):
        os.pwrite(fd, line, 0)
        os.ftruncate(
            fd, len(line)
        )  # last: a block that was freed might be another's before it is asked for again


def _holder_in(folder: Folder, name: str, *, same_process: bool) -> LockHolder:
    """Return the holder of a folder, as far as a lock in it that is held says who it is."""
    with contextlib.suppress(OSError), open_regular(folder, name, os.O_RDONLY, "read") as raw:
        if is_locked(raw.fileno()):
            return _holder(raw.fileno(), same_process=same_process)
    return replace(_UNKNOWN_HOLDER, same_process=same_process)


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
