"""Facts about the machine and the file system that a measurement was taken on.

Nothing here fails: unknown facts are None. A number for a synchronous write means something only together with the
place it was written to; on a file system in memory a sync means nothing at all.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from walkit._internal.html import table
from walkit.storage.mounts import Mount, mount_of


@dataclass(frozen=True, kw_only=True)
class FileSystemFacts:
    """The file system under a path. Unknown = None."""

    type: str | None = None
    """ext4, xfs, btrfs, tmpfs, ..."""
    mount_point: str | None = None
    mount_options: str | None = None
    """Options of the mount and of the file system, as mountinfo has them."""
    device: str | None = None
    """Name of the block device below, as in /sys/block; of a partition, the whole disk."""
    rotational: bool | None = None
    write_cache: str | None = None
    """The kernel's view: "write back" (a sync flushes a cache) or "write through" (no cache)."""
    tmpfs: bool | None = None
    """True: it lives in memory, and sync means nothing here."""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """Processor, memory, kernel, Python, and the file system of the log. Unknown = None."""

    cpu: str | None = None
    cores: int | None = None
    cores_usable: int | None = None
    """Cores this process may run on."""
    memory_bytes: int | None = None
    virtual: bool | None = None
    """True if the processor says it runs under a hypervisor."""
    kernel: str | None = None
    python: str | None = None
    file_system: FileSystemFacts | None = None
    """None: the log was not on a file system, or no path was named."""

    @classmethod
    def here(cls, path: str | os.PathLike[str] | None = None) -> MachineFacts:
        """Return the facts of this machine, and of the file system of `path` (which need not exist)."""
        cpuinfo = _read("/proc/cpuinfo") or ""
        return cls(
            cpu=_cpu_field(cpuinfo, "model name") or platform.processor() or None,
            cores=os.cpu_count(),
            cores_usable=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            memory_bytes=_memory_bytes(),
            virtual="hypervisor" in (_cpu_field(cpuinfo, "flags") or "").split() if cpuinfo else None,
            kernel=f"{platform.system()} {platform.release()}",
            python=f"{platform.python_implementation()} {platform.python_version()}",
            file_system=None if path is None else file_system(path),
        )

    @property
    def where(self) -> str:
        """The file system in words, for the notes of a report."""
        system = self.file_system
        return "an unknown file system" if system is None else f"{system.type} ({system.mount_point})"

    @property
    def in_memory(self) -> bool:
        """Whether the file system is known to live in memory, where a sync means nothing."""
        return bool(self.file_system is not None and self.file_system.tmpfs)

    def _repr_html_(self) -> str:
        """Render a table of the facts for a notebook."""
        known: dict[str, object] = {k: v for k, v in vars(self).items() if k != "file_system"}
        known |= (
            {f"file system: {k}": v for k, v in vars(self.file_system).items()} if self.file_system else {}
        )
        return table((name, "unknown" if v is None else v) for name, v in known.items())


def walkit_version() -> str | None:
    """Return the version of walkit that is installed here; None for a checkout that never was."""
    try:
        return importlib.metadata.version("walkit")
    except importlib.metadata.PackageNotFoundError:
        return None


def file_system(path: str | os.PathLike[str]) -> FileSystemFacts:
    """Return the facts of the file system that holds `path`, which need not exist."""
    mount = mount_of(path)
    if mount is None:
        return FileSystemFacts()
    disk = _disk(mount)
    rotational = _read(disk / "queue/rotational") if disk else None
    return FileSystemFacts(
        type=mount.file_system,
        mount_point=mount.mount_point,
        mount_options=",".join(mount.options),
        device=disk.name if disk else None,
        rotational=None if rotational is None else rotational.strip() == "1",
        write_cache=(_read(disk / "queue/write_cache") or "").strip() or None if disk else None,
        tmpfs=mount.in_memory,
    )


def _disk(mount: Mount) -> Path | None:
    """Return the folder in /sys of the whole disk under a mount."""
    for number in (mount.device, _device_number(mount.source)):
        if number is None or number.startswith("0:"):
            continue
        try:
            folder = Path(f"/sys/dev/block/{number}").resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        return folder.parent if (folder / "partition").exists() else folder
    return None


def _device_number(source: str) -> str | None:
    # btrfs gives its mounts an anonymous number; its source still names a device.
    try:
        number = os.stat(source).st_rdev if source.startswith("/dev/") else 0
    except OSError:
        return None
    return f"{os.major(number)}:{os.minor(number)}" if number else None


def _cpu_field(cpuinfo: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _read(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
