"""Random damage to logs and replicas that were not closed, healed: "ok" is never said of less than was promised."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

import walkit
from tests.replication.blocking_callers import WAIT_S
from tests.replication.healing.test_heal import OPTIONS, contents, fill, segments
from walkit.errors import CorruptionError
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.replication import Primary, Replica, heal
from walkit.replication.logs.imported_log import ImportedLog
from walkit.storage import FileStorage

LOGS = settings().max_examples // 3
"""8; 33 for a release, 666 with HYPOTHESIS_PROFILE=thorough."""
HERE, THERE = 600, 550
"""Records of the log, and of a replica that lags."""


def flipped_at(chance: random.Random, data: bytes, below: int) -> bytes:
    at = chance.randrange(min(below, len(data)))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def noisy(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data))
    noise = chance.randbytes(min(chance.randrange(1, 9_000), len(data) - at))
    return data[:at] + noise + data[at + len(noise) :]


SPOIL: tuple[Callable[[random.Random, bytes], bytes | None], ...] = (
    lambda chance, data: None,
    lambda chance, data: data[: chance.randrange(len(data))],
    lambda chance, data: flipped_at(chance, data, len(data)),
    lambda chance, data: flipped_at(chance, data, SEGMENT_HEADER_BYTES),
    lambda chance, data: data[: (at := chance.randrange(len(data)))] + bytes(len(data) - at),
    lambda chance, data: bytes(SEGMENT_HEADER_BYTES) + data[SEGMENT_HEADER_BYTES:],
    noisy,
)


def spoil(chance: random.Random, log: Path) -> None:
    """Damage one to three places of a log."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        there = segments(log)
        if not there:
            return
        path = chance.choice(there[-4:] if chance.randrange(3) else there)
        data = path.read_bytes()
        after = chance.choice(SPOIL)(chance, data) if data else None
        if after is None:
            path.unlink()
        else:
            path.write_bytes(after)


@pytest.mark.parametrize("peer_has", [HERE, THERE])
def test_what_is_called_whole_has_all_that_was_promised(tmp_path: Path, peer_has: int) -> None:
    """Damage a dead writer's log at random and heal it: a dry run promises no more, and "ok" means all 600 records."""
    chance, outcomes = random.Random(peer_has + 3), Counter[tuple[bool | None, bool]]()
    killed, options = tmp_path / "killed", replace(OPTIONS, idle_marker_ms=0)
    with walkit.open(tmp_path / "log", options=options) as log:
        fill(log, 250)
    with walkit.open(tmp_path / "log", options=options) as log:
        fill(log, THERE - 250)
        for records in (0, HERE - THERE):
            fill(log, records)
            if log.acked_lsn == peer_has:
                with Primary(log) as primary, Replica(tmp_path / "r", primary.address, options=options) as r:
                    r.wait_for(peer_has, WAIT_S)
        log.wait_idle()
        shutil.copytree(tmp_path / "log", killed, ignore=shutil.ignore_patterns("*.new"))
    with Primary(tmp_path / "r") as primary:
        for number in range(LOGS):
            folder = Path(shutil.copytree(killed, tmp_path / f"turn {number}"))
            spoil(chance, folder)
            before = contents(folder)
            tried = heal(folder, primary.address, dry_run=True)
            assert contents(folder) == before
            report = heal(folder, primary.address)
            assert [replace(s, kept_as="") for s in report.segments][: len(tried.segments)] == list(
                tried.segments
            )
            try:
                with walkit.open(folder) as opened:
                    found = [record.lsn for record in opened.read()]
            except CorruptionError:
                found = []
            if found:
                assert found == list(range(1, len(found) + 1))
            assert not report.ok or len(found) == HERE, (number, report.text())
            outcomes[report.ok, report.changed] += 1
            shutil.rmtree(folder)
    assert outcomes[True, True] > LOGS // 5 and (peer_has == HERE or outcomes[False, False])


def test_a_replica_that_is_called_whole_has_all_that_it_had(tmp_path: Path) -> None:
    """Damage a killed replica at random and heal it from its primary: "ok" means all 500, and still a replica's."""
    chance, outcomes = random.Random(3), Counter[bool | None]()
    killed, options = tmp_path / "killed", walkit.LogOptions(segment_bytes=96 * 1024)
    with (
        walkit.open(tmp_path / "log", options=replace(OPTIONS, idle_marker_ms=0)) as log,
        Primary(log) as primary,
    ):
        fill(log, 500)
        with Replica(tmp_path / "r", primary.address, options=options) as replica:
            replica.wait_for(500, WAIT_S)
            shutil.copytree(tmp_path / "r", killed, ignore=shutil.ignore_patterns("*.new"))
        fill(log, 20)
        for number in range(LOGS):
            folder = Path(shutil.copytree(killed, tmp_path / f"turn {number}"))
            spoil(chance, folder)
            report = heal(folder, primary.address)
            with suppress(CorruptionError), closing(ImportedLog(FileStorage(folder), options)) as opened:
                found = [record.lsn for record in opened.read()]
                assert found == list(range(1, len(found) + 1))
                assert not report.ok or len(found) >= 500, (number, report.text())
                assert all(s.flags & SegmentFlag.IMPORTED for s in opened.manifest.sealed)
                outcomes[report.ok] += 1
            shutil.rmtree(folder)
    assert outcomes[True] > LOGS // 5
