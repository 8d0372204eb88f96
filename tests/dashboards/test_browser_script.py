"""scripts/browser.sh: it installs a missing browser if it can, else reports it, and never fails."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Checkout


@pytest.mark.parametrize(
    ("tools", "user", "calls", "words"),
    [
        ({"chromium": "0", "apt-get": "0"}, "0", [], ""),
        ({"google-chrome": "0"}, "1000", [], ""),
        ({"apt-get": "0"}, "0", ["update", "install"], "installing"),
        ({"apt-get": "1"}, "0", ["update"], "could not install"),
        ({"apt-get": "0"}, "1000", [], "as root"),
        ({}, "0", [], "as root"),
    ],
    ids=["there", "another", "installed", "no-network", "no-root", "no-apt"],
)
def test_a_browser_is_installed_if_possible(
    checkout: Checkout, tmp_path: Path, tools: dict[str, str], user: str, calls: list[str], words: str
) -> None:
    """Tools on an otherwise empty PATH note how they are called: the right calls and words, always exit code 0."""
    note = tmp_path / "calls"
    note.touch()
    found = tmp_path / "bin"
    found.mkdir()
    for name, code in (tools | {"id": ""}).items():
        text = f"echo {user}" if name == "id" else f'echo "$1" >>"{note}"; exit {code}'
        (found / name).write_text(f"#!/bin/sh\n{text}\n")
        (found / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(checkout.root / "scripts" / "browser.sh")],
        env={"PATH": str(found)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert note.read_text().split() == calls
    assert words in done.stderr
    assert bool(words) == bool(done.stderr)
