"""Verify of logs with few records left, or none: the durable slot names dropped records, which is not a fault."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

import walkit
from tests.support.crashes import SMALL
from tests.support.threads import wait_until
from walkit.models import CrashingStorage
from walkit.recovery.log_scan import read_durable_slot
from walkit.segments.manifest_store import DURABLE_NAME, load_manifest


def filled(storage: CrashingStorage, idle_marker_ms: int) -> walkit.WriteAheadLog:
    """An open log of several segments; with an idle mark after the last record if marks are on."""
    options = walkit.LogOptions(
        segment_bytes=SMALL.segment_bytes,
        frame_bytes_max=SMALL.frame_bytes_max,
        idle_marker_ms=idle_marker_ms,
    )
    log = walkit.open(storage=storage, options=options)
    for i in range(40):
        log.append(b"%d" % i * 3000, b"k%d" % (i % 3))
    if idle_marker_ms:
        wait_until(partial(has_marks, log), "an idle mark")
    return log


def has_marks(log: walkit.WriteAheadLog) -> bool:
    """Whether the timer has written a mark."""
    return log.statistics().marker_frames > 0


def stages(idle_marker_ms: int) -> Iterator[tuple[str, CrashingStorage]]:
    """A log that is trimmed to its last record, in each state that it comes to from there."""
    storage = CrashingStorage()
    log = filled(storage, idle_marker_ms)
    log.trim(log.acked_lsn)
    yield "live", storage
    yield "killed", storage.process_kill()
    for seed in range(4):
        yield "power cut", storage.crash(keep="random", seed=seed)
    log.close()
    yield "closed", storage
    log = walkit.open(storage=storage, options=SMALL)
    log.trim(log.acked_lsn)
    assert not load_manifest(storage).sealed
    yield "nothing left, live", storage
    yield "nothing left, killed", storage.process_kill()
    log.close()
    yield "nothing left, closed", storage
    assert 0 < read_durable_slot(storage).position <= load_manifest(storage).end.position
    log = walkit.open(storage=storage, options=SMALL)
    log.append(b"after")
    yield "one record after it, live", storage
    yield "one record after it, killed", storage.process_kill()
    log.close()
    yield "one record after it, closed", storage


@pytest.mark.parametrize("idle_marker_ms", [0, 1])
def test_a_wholly_trimmed_log_is_not_accused_for_its_cell(idle_marker_ms: int) -> None:
    """Trim all there is, by and by: in every state scan and verify find it in order, and it can be opened."""
    for name, image in stages(idle_marker_ms):
        for tool in (walkit.scan, walkit.verify):
            report = tool(image)
            assert report.ok, (name, [str(p) for p in report.problems])
            assert not [note for note in report.notes if "durable slot" in note and name != "power cut"], name
        if "live" not in name:
            walkit.open(storage=image.process_kill(), options=SMALL).close()


def test_a_cell_beyond_what_is_left_is_still_corruption() -> None:
    """Trim all, then promise more records than exist: nothing explains that, and verify reports it."""
    storage = CrashingStorage()
    log = filled(storage, 0)
    log.close()
    log = walkit.open(storage=storage, options=SMALL)
    log.trim(log.acked_lsn)
    log.append(b"after")
    image = storage.process_kill()
    log.close()
    for record in load_manifest(image).unsealed:
        file = image.open(record.name, "write")
        file.write(4096, [bytes(256)])
    assert image.cell(DURABLE_NAME, 128, writable=False) is not None
    assert not walkit.verify(image).ok
    with pytest.raises(walkit.CorruptionError):
        walkit.open(storage=image, options=SMALL)
