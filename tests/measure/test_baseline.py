"""The raw-device loop: its writes, their flags, and its cleanup."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from walkit.errors import StorageError
from walkit.measure import raw_baseline
from walkit.measure.baseline import REGION_BYTES_MAX
from walkit.storage import FileStorage
from walkit.storage.file import O_DIRECT

pytestmark = pytest.mark.skipif(not hasattr(os, "O_DSYNC"), reason="no O_DSYNC on this platform")


class Spy:
    """Really writes, and notes how."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail_at: int | None = None) -> None:
        self.sizes: list[int] = []
        self.offsets: list[int] = []
        self.flags: set[int] = set()
        self.links: set[int] = set()
        self.fail_at, self._pwrite = fail_at, os.pwrite
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        """Stand in for os.pwrite."""
        self.sizes.append(len(data))
        self.offsets.append(offset)
        self.flags.add(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC)
        self.links.add(os.fstat(fd).st_nlink)
        if len(self.sizes) == self.fail_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._pwrite(fd, data, offset)


def test_it_writes_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """50 operations are 50 consecutive O_DSYNC writes on space zeroed before; no file stays."""
    spy = Spy(monkeypatch)
    found = raw_baseline(tmp_path, block_bytes=4096, operations=50)
    assert spy.sizes[-50:] == [4096] * 50
    assert spy.offsets[-50:] == list(range(0, 50 * 4096, 4096))
    assert sum(spy.sizes[:-50]) == REGION_BYTES_MAX
    assert spy.flags == {os.O_DSYNC}
    assert spy.links == {0}
    assert (found.writes, found.block_bytes, found.mode) == (50, 4096, "O_DSYNC")
    assert found.latencies.mean * 50 / 1e9 == pytest.approx(found.duration_s, rel=2e-3)
    assert found.writes_per_s == pytest.approx(50 / found.duration_s)
    assert list(tmp_path.iterdir()) == []


def test_it_goes_round_in_its_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Blocks of a third of the region: the fourth is at the start again, none leaves the zeroed space."""
    spy = Spy(monkeypatch)
    block_bytes = REGION_BYTES_MAX // 3
    raw_baseline(tmp_path, block_bytes=block_bytes, operations=4)
    assert spy.offsets[-4:] == [0, block_bytes, 2 * block_bytes, 0]
    zeroed = sum(spy.sizes[:-4])
    assert max(spy.offsets[-4:]) + block_bytes <= zeroed <= REGION_BYTES_MAX


def test_seconds_bound_the_loop(tmp_path: Path) -> None:
    """A bound in seconds ends at the first write that passes it, and both bounds at the first reached."""
    found = raw_baseline(tmp_path, block_bytes=512, seconds=0.05)
    assert found.duration_s >= 0.05
    assert found.duration_s - found.latencies.max / 1e9 <= 0.05
    assert raw_baseline(tmp_path, block_bytes=512, seconds=60, operations=3).writes == 3


@pytest.mark.parametrize("fail_at", [1, 20])
def test_a_full_disk_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fail_at: int) -> None:
    """ENOSPC while zeroing and in the loop: StorageError with the errno, no file and no descriptor left."""
    before = len(os.listdir("/proc/self/fd"))
    Spy(monkeypatch, fail_at=fail_at)
    with pytest.raises(StorageError) as caught:
        raw_baseline(tmp_path, operations=10)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_such_place(tmp_path: Path) -> None:
    """An absent folder is a StorageError that names it."""
    with pytest.raises(StorageError, match="absent"):
        raw_baseline(tmp_path / "absent")


def test_threads_share_the_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three threads, 50 operations in all: each block of the file is written once, and the clock is that of all."""
    spy = Spy(monkeypatch)
    found = raw_baseline(tmp_path, block_bytes=4096, operations=50, threads=3)
    assert sorted(spy.offsets[-50:]) == list(range(0, 50 * 4096, 4096))
    assert (found.writes, found.threads) == (50, 3)
    assert found.writes_per_s == pytest.approx(50 / found.duration_s)


def test_direct_writes_go_past_the_page_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The loop's writes are O_DIRECT and O_DSYNC where the place takes them, and unaligned blocks are refused."""
    if (why_not := FileStorage(tmp_path).direct_io_refusal()) is not None:
        pytest.skip(why_not)
    spy, written = Spy(monkeypatch), []
    inner = spy.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        written.append(fcntl.fcntl(fd, fcntl.F_GETFL) & O_DIRECT)
        return inner(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    found = raw_baseline(tmp_path, block_bytes=8192, operations=5, threads=2, direct=True)
    assert written[-5:] == [O_DIRECT] * 5 and not any(written[:-5])
    assert found.mode == "O_DIRECT|O_DSYNC"
    with pytest.raises(ValueError, match="4096"):
        raw_baseline(tmp_path, block_bytes=5000, operations=1, direct=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bounds", [{"block_bytes": 0}, {"operations": 0}, {"seconds": 0.0}, {"threads": 0}])
def test_impossible_bounds_are_refused(tmp_path: Path, bounds: dict[str, Any]) -> None:
    """Bounds below 1 raise ValueError before a file is made."""
    with pytest.raises(ValueError, match="at least 1"):
        raw_baseline(tmp_path, **bounds)
