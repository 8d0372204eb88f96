"""Something expensive made once for all processes of a test run: the demo, an executed notebook, the site."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Once = Callable[[str, Callable[[Path], object]], Path]
"""`once(name, make)` returns the folder that `make(folder)` has filled, in this process or in another."""


def made_once(shared: Path, name: str, make: Callable[[Path], object]) -> Path:
    """Return `shared/name` after one process has filled it with `make`; the others wait for that one.

    If `make` raises, each process that asks gets the error: the first its own, the others its text. Nothing is made
    twice.
    """
    folder, made, failed = shared / name, shared / f"{name}.made", shared / f"{name}.failed"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if failed.exists():
            pytest.fail(f"another process could not make {name}: {failed.read_text()}")
        if not made.exists():
            folder.mkdir()
            try:
                make(folder)
            except BaseException as error:
                failed.write_text(repr(error))
                raise
            made.touch()
    return folder


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of this test run have in common."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    shared.mkdir(exist_ok=True)
    return shared
