"""`walkit copy`: what is printed and made, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import walkit

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def test_a_live_log_is_copied(tmp_path: Path, run: Run) -> None:
    """Copy an open log as text and as JSON: 0, and the copies are in order; to a folder that is there: 2."""
    with walkit.open(tmp_path / "log") as log:
        log.append_many([b"x"] * 20)
        plain = run("copy", tmp_path / "log", tmp_path / "one")
        as_json = run("copy", tmp_path / "log", tmp_path / "two", "--json")
        again = run("copy", tmp_path / "log", tmp_path / "one")
    assert (plain.code, as_json.code, again.code) == (0, 0, 2)
    assert f"{tmp_path / 'one'} is a copy of {tmp_path / 'log'}" in plain.out
    assert json.loads(as_json.out)["last_lsn"] == 20
    assert "is there already" in again.err and again.out == ""
    for name in ("one", "two"):
        assert walkit.verify(tmp_path / name).ok


def test_what_cannot_be_copied(tmp_path: Path, run: Run) -> None:
    """Copy a missing log: 3. Copy a damaged log: 1. Nothing that opens as a log is made."""
    assert run("copy", tmp_path / "none", tmp_path / "copy").code == 3
    assert list(tmp_path.iterdir()) == []
    with walkit.open(tmp_path / "log") as log:
        log.append(bytes(9000))
    segment = next((tmp_path / "log").glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[8000] ^= 1
    segment.write_bytes(data)
    assert run("copy", tmp_path / "log", tmp_path / "copy").code == 1
    assert not (tmp_path / "copy").exists()
