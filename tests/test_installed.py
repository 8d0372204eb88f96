"""The wheel and the source archive: built, installed in an empty environment, and used there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Checkout

USE = """
import importlib.metadata, sys, walkit
assert "site-packages" in walkit.__file__, walkit.__file__
with walkit.open("orders") as log:
    log.append(b"paid", key=b"order-7")
with walkit.open("orders", mode="r") as reader:
    assert [record.value for record in reader.read()] == [b"paid"]
assert walkit.verify("orders").ok
try:
    walkit.spark.session()
except walkit.MissingExtraError as error:
    print(error.extra)
from walkit.cli import main
assert main(["demo"]) == 3  # and names the one extra that it needs
assert "walkit" in importlib.metadata.entry_points(group="pytest11").names
"""
PLUGIN = '''
import sys

BEFORE = "walkit" in sys.modules

def test_the_fixtures_are_there(walkit_crashing_storage, walkit_crash_states):
    """Append without a sync, cut the power in each way: all, nothing or a part is there, and walkit came late."""
    import walkit

    log = walkit.open(walkit_crashing_storage, options=walkit.LogOptions(durability="none"))
    log.append_many([b"x"] * 5)
    counts = []
    for left in walkit_crash_states(walkit_crashing_storage):
        with walkit.open(left) as after:
            counts.append(len(list(after.read())))
    log.close()
    assert not BEFORE and len(counts) == 10 and counts[:2] == [0, 5]

def test_an_order_is_lost(walkit_crashing_storage, walkit_crash_states):
    """The same with a claim that does not hold: this one fails."""
    import walkit

    with walkit.open(walkit_crashing_storage, options=walkit.LogOptions(durability="none")) as log:
        log.append(b"paid")
        for left in walkit_crash_states(walkit_crashing_storage):
            with walkit.open(left) as after:
                assert len(list(after.read())) == 1
'''
"""Tests of a program that uses walkit: its own tests find the fixtures, and one of them finds a fault."""


UV = Path(sys.executable).with_name("uv")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return what it prints; fails with its words."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_is_built_works_in_an_empty_environment(checkout: Checkout, tmp_path: Path, kind: str) -> None:
    """Build, install with the core's packages alone, use it: records, extras, the command, pytest's fixtures."""
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        kind,
        "--directory",
        tmp_path,
        cwd=checkout.root,
    )
    (built,) = (path for path in tmp_path.iterdir() if path.suffix in (".whl", ".gz"))
    environment = tmp_path / "environment"
    run(UV, "venv", "--quiet", "--python", sys.executable, environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", python, built, cwd=tmp_path)
    used = tmp_path / "used"
    used.mkdir()
    assert run(python, "-I", "-c", USE, cwd=used).split() == ["spark"]
    assert "orders" in run(environment / "bin" / "walkit", "inspect", used / "orders", cwd=used)
    assert run(environment / "bin" / "walkit", "verify", used / "orders", cwd=used)
    run(UV, "pip", "install", "--quiet", "--python", python, "pytest", cwd=tmp_path)
    (used / "test_orders.py").write_text(PLUGIN)
    tested = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=used,
        capture_output=True,
        text=True,
    )
    assert tested.returncode == 1 and "1 failed, 1 passed" in tested.stdout, tested.stdout + tested.stderr
    assert "test_an_order_is_lost" in tested.stdout
