"""Small file systems that tests mount and fill."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[Path]:
    """Mount a small file system, or skip where that is not allowed."""
    folder = place / "mount"
    folder.mkdir()
    done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily: a test that failed may have left a file open there, and the mount must not outlive it.
        subprocess.run(["umount", "-l", str(folder)], check=True)
