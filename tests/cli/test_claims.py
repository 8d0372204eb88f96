"""`walkit claims`: what is listed, what is dropped, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The folder of a log with two claims, one of them damaged."""
    place = tmp_path / "log"
    with walkit.open(place) as made:
        made.append_many([b"x"] * 20)
    walkit.claim(place, "reader", 12)
    walkit.claim(place, "spoiled", 5)
    (place / "claim-spoiled").write_bytes(b"nothing")
    return place


def test_claims_are_listed(log: Path, run: Run, tmp_path: Path) -> None:
    """List a live and a damaged claim as text, as JSON and into a file: 1, because one cannot be read."""
    plain, as_json = run("claims", log), run("claims", log, "--json")
    assert (plain.code, as_json.code, plain.err) == (1, 1, "")
    assert "2 claims" in plain.out and "problem: the claim file claim-spoiled is cut short" in plain.out
    report = json.loads(as_json.out)
    assert [(c["name"], c["state"], c["first_lsn"]) for c in report["claims"]] == [
        ("reader", "live", 12),
        ("spoiled", "damaged", None),
    ]
    assert report["claims"][0]["owner"] in plain.out and report["dropped"] is None
    assert run("claims", log, "--out", tmp_path / "claims.txt").code == 1
    assert "reader" in (tmp_path / "claims.txt").read_text()


def test_a_claim_is_dropped(log: Path, run: Run) -> None:
    """Drop the damaged claim, then one that is not there: 0 and 1; the other claim stays, and keeps the log."""
    dropped = run("claims", log, "--drop", "spoiled")
    assert dropped.code == 0 and "dropped claim 'spoiled'" in dropped.out
    absent = run("claims", log, "--drop", "spoiled", "--json")
    assert absent.code == 1 and json.loads(absent.out)["dropped"] is False
    with walkit.open(log) as again:
        assert again.trim(20) == 11


def test_a_missing_log(tmp_path: Path, run: Run) -> None:
    """List claims without a log, and drop one there: 3, and nothing is made."""
    for arguments in ((), ("--drop", "c")):
        assert run("claims", tmp_path / "none", *arguments).code == 3
    assert not (tmp_path / "none").exists()


def test_a_log_without_claims(tmp_path: Path, run: Run) -> None:
    """List a log without claims: 0, and a line for it."""
    walkit.open(tmp_path / "log").close()
    listed = run("claims", tmp_path / "log")
    assert listed.code == 0 and listed.out.startswith("0 claims on ")
