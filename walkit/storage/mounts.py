"""Which file system a path is on, as the kernel says in /proc/self/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from walkit._internal.arguments import refuse

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
"""File systems without a device: a sync there means nothing."""

COPYING_FILE_SYSTEMS = frozenset({"btrfs", "zfs", "bcachefs", "nilfs2", "f2fs"})
"""File systems that write new blocks for a part that is overwritten: it takes room, though no file grows."""

LOCAL_FILE_SYSTEMS = MEMORY_FILE_SYSTEMS | {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs", "nilfs2", "reiserfs"),
    *("overlay", "vfat", "exfat", "ntfs3", "hfsplus", "udf"),
}
"""File systems that no other machine writes to: the kernel's two kinds of locks do not see each other there."""

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """One mounted file system.

    `device` is "major:minor"; `source` the mounted thing (a device, or a word); `options` those of the mount and of
    the file system, in the kernel's order, without repeats.
    """

    mount_point: str
    file_system: str
    source: str
    device: str
    options: tuple[str, ...]

    @property
    def in_memory(self) -> bool:
        """Whether nothing there survives a power cut, so that a sync means nothing."""
        return self.file_system in MEMORY_FILE_SYSTEMS

    @property
    def is_local(self) -> bool:
        """Whether surely no other machine writes to it; False if unknown, as for FUSE."""
        return self.file_system in LOCAL_FILE_SYSTEMS

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for run records."""
        return {
            "file_system": self.file_system,
            "mount_point": self.mount_point,
            "mount_source": self.source,
            "mount_options": ",".join(self.options),
            "in_memory": self.in_memory,
        }


def mount_of(path: str | os.PathLike[str]) -> Mount | None:
    """Return the mount that holds `path` (or its nearest parent that exists); None if the kernel does not report it."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            text = table.read()
    except OSError:
        return None
    place = _nearest_existing(os.path.realpath(path))
    try:
        number = os.stat(place).st_dev
    except OSError:
        return None
    return choose_mount(parse_mounts(text), place, f"{os.major(number)}:{os.minor(number)}")


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts of a mountinfo text, in its order; lines of another shape are left out."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, about = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(about) < 3:
            continue
        options = dict.fromkeys(fields[5].split(",") + about[2].split(","))
        mounts.append(
            Mount(
                mount_point=_unescaped(fields[4]),
                file_system=about[0],
                source=_unescaped(about[1]),
                device=fields[2],
                options=tuple(options),
            )
        )
    return mounts


def choose_mount(mounts: list[Mount], place: str, device: str) -> Mount | None:
    """Return the mount that `place` is on: the longest mount point above it, and the newest of those.

    Mounts of the device the path is on come first: a mount point can lie hidden under a later mount of its parent.
    A device that no mount names is normal on btrfs, where each subvolume has its own.
    """
    above = [m for m in mounts if m.mount_point == "/" or (place + "/").startswith(m.mount_point + "/")]
    candidates = [m for m in above if m.device == device] or above
    best = None
    for mount in candidates:
        if best is None or len(mount.mount_point) >= len(best.mount_point):
            best = mount
    return best


def _nearest_existing(place: str) -> str:
    while not os.path.exists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    return place


def _unescaped(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def require_folder(path: str | os.PathLike[str] | None) -> None:
    """OptionsError if a place to measure in is not a folder, before anything is made. None means the usual one."""
    if path is not None and not os.path.isdir(path):
        refuse("path", path, "an existing folder on the device to measure")
