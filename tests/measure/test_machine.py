"""The mountinfo parser on sample texts, and that nothing here fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from walkit.measure import FileSystemFacts, MachineFacts, file_system, machine
from walkit.measure.machine import find_mount, parse_mountinfo

MOUNTINFO = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue
40 27 0:44 / /data/my\040disk\134x rw - btrfs /dev/sdb1 rw,ssd
41 27 0:45 / /data rw - xfs /dev/sdc rw
42 27 0:46 / /data rw,nosuid - tmpfs tmpfs rw,size=4k
43 27 0:47 / /data2 ro - overlay overlay
this is no mount
44 27 0:48 / /half - ext4
"""


def test_mountinfo_lines_are_parsed() -> None:
    """Optional fields, escapes, options of both kinds and lines that are none, in order."""
    mounts = parse_mountinfo(MOUNTINFO)
    assert [mount.mount_point for mount in mounts] == [
        "/proc",
        "/",
        "/mnt2",
        "/data/my disk\\x",
        "/data",
        "/data",
        "/data2",
    ]
    assert mounts[2] == ("98:0", "/mnt2", "rw,noatime,errors=continue", "ext3", "/dev/root")
    assert mounts[6].options == "ro"


@pytest.mark.parametrize(
    ("path", "type_"),
    [
        ("/", "ext4"),
        ("/home/log", "ext4"),
        ("/mnt2", "ext3"),
        ("/mnt2/a/b", "ext3"),
        ("/mnt22", "ext4"),
        ("/data/log", "tmpfs"),
        ("/data2/log", "overlay"),
        ("/data/my disk\\x/log", "btrfs"),
        ("/data/my disk\\xy", "tmpfs"),
    ],
)
def test_longest_and_last_mount_wins(path: str, type_: str) -> None:
    """A path is on the deepest mount above it, by whole components; of two on one point, on the later."""
    found = find_mount(parse_mountinfo(MOUNTINFO), path)
    assert found is not None
    assert found.type == type_


def test_a_path_on_no_mount_is_unknown() -> None:
    """Without any mount above it nothing is found, and the facts are all unknown."""
    assert find_mount(parse_mountinfo("1 0 8:1 / /only rw - ext4 /dev/sda1 rw"), "/other") is None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux")
def test_this_machine_is_described(tmp_path: Path) -> None:
    """Here, for a file that does not exist yet: the file system's device number is the folder's own."""
    facts = MachineFacts.here(tmp_path / "not" / "yet")
    assert facts.cores == os.cpu_count()
    assert facts.memory_bytes
    assert facts.kernel
    assert facts.python
    place = facts.file_system
    assert place is not None
    assert place.type
    assert place.mount_point
    assert place.mount_options
    assert os.stat(place.mount_point).st_dev == os.stat(tmp_path).st_dev
    assert place.type in facts._repr_html_()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
def test_a_file_system_in_memory_is_known() -> None:
    """/dev/shm is a tmpfs and is flagged; it has no device."""
    place = file_system("/dev/shm/log")
    assert (place.type, place.tmpfs, place.device) == ("tmpfs", True, None)


def test_nothing_fails_where_nothing_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No /proc, no /sys, no sysconf: unknown, never an error."""

    def refuse(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(machine, "_read", lambda path: None)
    monkeypatch.setattr(os, "sysconf", refuse)
    facts = MachineFacts.here(tmp_path)
    assert (facts.memory_bytes, facts.virtual, facts.file_system) == (None, None, FileSystemFacts())
    assert "unknown" in facts._repr_html_()
