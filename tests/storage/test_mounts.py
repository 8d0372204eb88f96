"""Mount tables: parsed as proc_pid_mountinfo(5) says, and the right line chosen."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from walkit.storage import mount_of
from walkit.storage.mounts import choose_mount, parse_mounts

TABLE = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 0:25 / /dev/shm rw,nosuid master:2 shared:3 - tmpfs tmpfs rw,size=1024k
31 22 8:17 / /data rw,noatime - xfs /dev/sdb1 rw,noquota
32 31 8:33 / /data/with\040space rw - ext4 /dev/sdc1 rw
33 22 8:49 / /data rw - btrfs /dev/sdd1 rw,subvol=/@
34 22 0:40 / /over rw - overlay overlay rw,lowerdir=/a
nonsense
35 22 0:41 / /broken
36 22 0:48 / /half - ext4
37 22 0:49 / /back\134slash ro - overlay overlay ro
"""


def test_lines_become_mounts() -> None:
    """Every well-formed line is one mount: optional fields skipped, escapes undone, repeated options once."""
    mounts = parse_mounts(TABLE)
    points = ["/", "/dev/shm", "/data", "/data/with space", "/data", "/over", "/back\\slash"]
    assert [mount.mount_point for mount in mounts] == points
    assert mounts[0].options == ("rw", "relatime", "errors=remount-ro")
    assert (mounts[2].file_system, mounts[2].source, mounts[2].device) == ("xfs", "/dev/sdb1", "8:17")
    assert [mount.in_memory for mount in mounts] == [False, True, False, False, False, False, False]
    assert mounts[6].options == ("ro",)
    assert mounts[1].as_dict()["mount_options"] == "rw,nosuid,size=1024k"


@pytest.mark.parametrize(
    ("place", "device", "expected"),
    [
        ("/home/x", "8:1", "/dev/sda1"),
        ("/dev/shm/x", "0:25", "tmpfs"),
        ("/dev/shmx", "8:1", "/dev/sda1"),
        ("/data/x", "8:49", "/dev/sdd1"),
        ("/data/x", "8:17", "/dev/sdb1"),
        ("/data/x", "0:99", "/dev/sdd1"),
        ("/data/with space/log", "8:33", "/dev/sdc1"),
        ("/data/with space/log", "8:49", "/dev/sdd1"),
        ("/", "8:1", "/dev/sda1"),
        ("/data", "8:49", "/dev/sdd1"),
        ("/data/with spacer", "0:99", "/dev/sdd1"),
    ],
)
def test_the_mount_of_a_place(place: str, device: str, expected: str) -> None:
    """Longest mount point, newest of equals, and the path's own device before both."""
    mount = choose_mount(parse_mounts(TABLE), place, device)
    assert mount is not None
    assert mount.source == expected


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_this_machine(tmp_path: Path) -> None:
    """A folder here, and one that does not exist yet below it, are on the mount that os.path.ismount finds."""
    point = Path(os.path.realpath(tmp_path))
    while not os.path.ismount(point):
        point = point.parent
    for path in (tmp_path, tmp_path / "not" / "there"):
        mount = mount_of(path)
        assert mount is not None
        assert mount.mount_point == str(point)


def test_no_mounts() -> None:
    """An empty table gives no mount instead of a guess."""
    assert choose_mount(parse_mounts(""), "/x", "8:1") is None
