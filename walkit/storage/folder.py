"""Folders of files, found by path or by a descriptor that follows them, and the one way in which files are opened.

Opening a descriptor and owning it is one C call: no interrupt, and no lack of stack or memory, comes between the two.
The name of a file may lead to something else: a pipe, a socket, a device. `open_regular` refuses it, and
does not wait for it as a plain open(2) of a pipe does.

A log belongs to the owner of its manifest. New files and folders take the manifest's mode, owner and group, by a
descriptor that this process has just made: a tool that root runs leaves a log that its owner can use.
"""

from __future__ import annotations

import errno
import io
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from walkit._internal.threads import MEMORY_TRIES
from walkit.storage.interface import FileNumber, storage_error

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MODEL_NAME = "manifest"
MODEL_SUFFIX = ".segment"
"""The file whose mode and owner new files of a folder take. Without it a file with the suffix serves."""
_OWN = stat.S_IRUSR | stat.S_IWUSR
_WRITING = os.O_RDWR | os.O_WRONLY | os.O_CREAT
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class Folder:
    """A folder that is found by its path at each call. `at(name)` and `fd` are the arguments of os calls."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def fd(self) -> int | None:
        """The descriptor to look names up in; None if the path says the folder."""
        return None

    def at(self, name: str = "") -> str:
        """Return where a file of the folder is; "" is the folder itself."""
        return f"{self.path}/{name}" if name else self.path


class HeldFolder(Folder):
    """A folder that is held by a descriptor: a call reaches the same folder, whatever the path leads to by now.

    A call of the system with `fd` keeps a reference to the object: the descriptor is closed with the last one.
    """

    __slots__ = ("_opened",)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._opened: list[int] = []
        _open_into(self._opened, path, _FOLDER_FLAGS)

    @property
    def fd(self) -> int:
        """The descriptor of the folder."""
        return self._opened[0]

    def at(self, name: str = "") -> str:
        """Return the name of a file, relative to the descriptor."""
        return name or "."

    def close(self) -> None:
        """Close the descriptor, for who knows that no call has it; closing twice does nothing."""
        opened = getattr(self, "_opened", ())  # an interrupted making has none
        tries = 0
        while opened:
            try:
                next(map(os.close, map(opened.pop, (0,))), None)  # one C call
            except MemoryError:
                tries += 1
                if tries >= MEMORY_TRIES:
                    raise

    __del__ = close


def _open_into(
    opened: list[int], path: str, flags: int, permissions: int = 0o666, dir_fd: int | None = None
) -> None:
    """Open a path and put its descriptor into a list, in one C call, so closing the list's descriptors is enough."""
    opened.extend(map(partial(os.open, dir_fd=dir_fd), (path,), (flags,), (permissions,)))


@contextmanager
def opened_folder(folder: Folder, name: str = "", flags: int = 0) -> Iterator[int]:
    """Have a descriptor of a folder, or of one in it, for the block. OSError."""
    opened: list[int] = []
    try:
        _open_into(opened, folder.at(name), _FOLDER_FLAGS | flags, dir_fd=folder.fd)
        yield opened[0]
    finally:
        if opened:
            os.close(opened[0])


def number_of(fd: int) -> FileNumber:
    """Return the number of the file or folder that a descriptor has open. OSError."""
    status = os.fstat(fd)
    return FileNumber(status.st_dev, status.st_ino)


def number_at(folder: Folder, name: str) -> FileNumber | None:
    """Return the number of the file or folder that a name leads to now; None if it leads nowhere. OSError."""
    try:
        status = os.stat(folder.at(name), dir_fd=folder.fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileNumber(status.st_dev, status.st_ino)


def open_raw(folder: Folder, name: str, flags: int, permissions: int = 0o666) -> io.FileIO:
    """Open a file and return its owner: of any kind but a folder, which is an IsADirectoryError. OSError.

    A symbolic link is refused (ELOOP) if it is to be written, made or replaced: it would lead out of the folder.
    The owner's `close` marks it as closed and closes it in one step of the interpreter: no descriptor is closed twice,
    or never. One that is dropped open closes itself, with a warning.
    """
    if name and flags & _WRITING:
        flags |= os.O_NOFOLLOW
    opened: list[int] = []
    owners: list[io.FileIO] = []
    try:
        _open_into(opened, folder.at(name), flags | os.O_CLOEXEC, permissions, folder.fd)
        owners.extend(map(io.FileIO, opened))
        return owners[0]
    finally:
        # FileIO takes no folder, and leaves its descriptor to us.
        if opened and not owners:
            os.close(opened[0])


def open_regular(
    folder: Folder, name: str, flags: int, action: str, *, permissions: int = 0o666
) -> io.FileIO:
    """Return the owner of a regular file; never waits. OSError, where something else is there a StorageError.

    Its errno is EISDIR for a folder, else EINVAL. A new file gets `permissions`, less the process's umask. With a
    manifest beside it, it gets those of them that the manifest has, and its owner: see `refuse_stranger`.
    """
    try:
        # A pipe without the other end is waited for, unless O_NONBLOCK is set; a regular file does not care.
        raw = _open_or_make(folder, name, flags | os.O_NONBLOCK | os.O_NOCTTY, permissions)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a pipe that nothing reads
            mode = os.stat(folder.at(name), dir_fd=folder.fd).st_mode
            _refuse_irregular(mode, action, name, folder.path)
        if error.errno == errno.EISDIR:
            raise storage_error(action, name, folder.path, errno.EISDIR) from error
        if error.errno == errno.ELOOP:
            reason = f"it is a symbolic link{_advice(action)}"
            raise storage_error(action, name, folder.path, errno.ELOOP, reason) from error
        raise
    try:
        _refuse_irregular(os.fstat(raw.fileno()).st_mode, action, name, folder.path)
        raw.name = f"{name} in {folder.path}"
    except BaseException:
        raw.close()
        raise
    return raw


def _open_or_make(folder: Folder, name: str, flags: int, permissions: int) -> io.FileIO:
    """Open a file, or make it if `flags` allow it: always by O_EXCL, so that a new file is known to be one."""
    if not flags & os.O_CREAT:
        return open_raw(folder, name, flags)
    while True:
        if not flags & os.O_EXCL:
            with suppress(FileNotFoundError):
                return open_raw(folder, name, flags & ~os.O_CREAT)
        model = refuse_stranger(folder)
        mode = permissions if model is None else permissions & model.st_mode | _OWN
        try:
            raw = open_raw(folder, name, flags | os.O_EXCL, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            continue  # another process has just made it
        try:
            if model is not None:
                _take_after(raw.fileno(), model, mode)
        except BaseException:
            raw.close()
            raise
        return raw


def make_folder(folder: Folder, name: str = "", permissions: int = 0o777, like: Folder | None = None) -> None:
    """Make a folder unless it is there; one within the folder of a log takes after its manifest. OSError.

    A folder that root makes for a log belongs to the owner of the log in `like`.
    """
    model = refuse_stranger(folder) if name else None
    readers = 0 if model is None else model.st_mode & 0o666 | _OWN
    try:
        os.mkdir(
            folder.at(name),
            permissions if model is None else readers | readers >> 2 & 0o111,
            dir_fd=folder.fd,
        )
    except FileExistsError:
        with suppress(FileNotFoundError):  # a link to nothing
            if stat.S_ISDIR(os.stat(folder.at(name), dir_fd=folder.fd).st_mode):
                return
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    mode = readers | readers >> 2 & 0o111
    if like is not None and os.geteuid() == 0:
        model, mode = refuse_stranger(like), permissions
    if model is not None:
        with opened_folder(folder, name, os.O_NOFOLLOW) as fd:
            made = os.fstat(fd)
            if made.st_uid == os.geteuid():  # else another has this name by now
                _take_after(fd, model, mode & made.st_mode if like is not None else mode)


def refuse_stranger(folder: Folder) -> os.stat_result | None:
    """Return the status whose owner new files take, or None; StorageError (EACCES) for a user who may not write there.

    It is that of the manifest. Without one, as before a repair, it is that of a segment, or for root of the folder.

    Root may, and the owner. Another user may if the owner can use the files that this user makes: by a group that the
    two share, or because the mode lets everybody write.
    """
    model = _status_at(folder, MODEL_NAME) or _status_without_manifest(folder)
    if model is None or stat.S_ISDIR(model.st_mode):
        return model
    user = os.geteuid()
    if not stat.S_ISREG(model.st_mode):
        return None
    for_all, for_group = model.st_mode & 0o006 == 0o006, model.st_mode & 0o060 == 0o060
    if user in (0, model.st_uid) or for_all or (for_group and _is_shared(model)):
        return model
    reason = (
        f"it belongs to user {model.st_uid}, who could not use the files that user {user} makes. Do this as that user "
        "or as root, or let a group that both are in read and write the log. Nothing was changed"
    )
    raise storage_error("write to", "", folder.path, errno.EACCES, reason)


def _status_at(folder: Folder, name: str) -> os.stat_result | None:
    try:
        return os.stat(folder.at(name), dir_fd=folder.fd, follow_symlinks=not name)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _status_without_manifest(folder: Folder) -> os.stat_result | None:
    found = _status_at(folder, "")
    if found is None:
        return None
    segments: list[str] = []
    with suppress(PermissionError), opened_folder(folder) as fd:
        segments = sorted(name for name in os.listdir(fd) if name.endswith(MODEL_SUFFIX))
    by_segment = _status_at(folder, segments[0]) if segments else None
    return by_segment or (found if os.geteuid() == 0 else None)


def _is_shared(model: os.stat_result) -> bool:
    """Say whether this user and a file's owner are both in its group; an owner without a name is taken to be."""
    if model.st_gid not in (os.getegid(), *os.getgroups()):
        return False
    try:
        owner = pwd.getpwuid(model.st_uid)
    except KeyError:
        return True
    return model.st_gid in os.getgrouplist(owner.pw_name, owner.pw_gid)


def _take_after(fd: int, model: os.stat_result, mode: int) -> None:
    """Give a new file or folder the owner and group of another, and a mode; by descriptor, as a name may move."""
    made = os.fstat(fd)
    if stat.S_ISDIR(model.st_mode):
        mode = stat.S_IMODE(made.st_mode)  # the mode of a folder says nothing about that of a file
    owner = model.st_uid if os.geteuid() == 0 else made.st_uid
    if (made.st_uid, made.st_gid) != (owner, model.st_gid):
        try:
            os.fchown(fd, owner, model.st_gid)
        except OSError:
            # A root without that right, as over NFS, may make a new log; in another user's log it may not.
            if owner != made.st_uid and not stat.S_ISDIR(model.st_mode):
                raise
            mode = (
                mode & ~0o070 | (mode & 0o007) << 3
            )  # the group that it has instead has the rights of everybody
    os.fchmod(fd, mode | made.st_mode & stat.S_ISGID)


def _refuse_irregular(mode: int, action: str, name: str, location: str) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise storage_error(action, name, location, errno.EISDIR)
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    reason = f"it is {kind}, not a regular file{_advice(action)}"
    raise storage_error(action, name, location, errno.EINVAL, reason)


def _advice(action: str) -> str:
    """Return the advice for a file that walkit never makes so; a lock has no content that could be lost."""
    return "; remove it, and try again: the next writer makes the file" if action.endswith("lock") else ""
