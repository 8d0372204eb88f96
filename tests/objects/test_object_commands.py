"""The commands on a log on object storage, by its URL."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import walkit
from walkit.cli import main
from walkit.errors import OptionsError


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a log of six records, the last of a second opening."""
    place = f"objects:{tmp_path / 'log'}"
    with walkit.open(place) as log:
        for at in range(5):
            log.append(b"%d" % at, key=b"k%d" % (at % 2))
    with walkit.open(place) as log:
        log.append(b"last", key=b"k9")
    return place


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    return capsys.readouterr().out


def test_reading_commands_take_a_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Inspect, verify, dump and diff of a log on object storage show what is in it."""
    assert "6 records" in output(capsys, "inspect", url)
    frames = json.loads(output(capsys, "inspect", url, "--frames", "--json"))["frames"]
    assert [row["first_lsn"] for row in frames] == list(range(1, 7))
    assert "ok: 6 frames, 6 records" in output(capsys, "verify", url)
    rows = [json.loads(line) for line in output(capsys, "dump", url, "--from", "2").splitlines()]
    assert [row["value"] for row in rows] == ["1", "2", "3", "4", "last"]
    assert "k9" in output(capsys, "diff", f"{url}@5", url, code=1)
    assert len(walkit.diff((walkit.open(url, "r"), 5), url)) == 1


def test_what_needs_a_folder_is_refused_by_url(url: str) -> None:
    """Repair and times of a log on object storage: OptionsError, and nothing is made of the URL."""
    calls: tuple[Callable[[], object], ...] = (
        lambda: walkit.repair(url),
        lambda: walkit.lsn_at(url, datetime.now(UTC)),
    )
    for call in calls:
        with pytest.raises(OptionsError, match="object storage"):
            call()
