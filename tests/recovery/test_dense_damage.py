"""A segment that is damaged in thousands of places: reads and memory grow with it, and no faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import walkit
from tests.recovery.damage_corpus import files_in
from tests.support.logs import tiny
from walkit.errors import CorruptionError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.models import CrashingStorage
from walkit.models.faults import FaultyStorage

RECORDS = 1_000
FOOTPRINT_OFFSET = 56
BODY_OFFSET = 100
READS_MAX = 80
"""How often the bytes of a segment are read where every second frame, 128 bytes of it, is damaged."""


@cache
def _damaged() -> CrashingStorage:
    storage = CrashingStorage()
    options = tiny(durability="none", segment_bytes=512 * 1024)
    with walkit.open(storage=storage, options=options) as log:
        for i in range(RECORDS):
            log.append(b"%d" % i)
    (name,) = [n for n in storage.names() if n.endswith(".segment")]
    file = storage.open(name, "write")
    data = file.read(0, file.size())
    offset, number = SEGMENT_HEADER_BYTES, 0
    while data[offset : offset + 4] == b"WLKF":
        if number % 2:
            file.write(offset + BODY_OFFSET, [bytes([data[offset + BODY_OFFSET] ^ 1])])
        offset += int.from_bytes(data[offset + FOOTPRINT_OFFSET :][:4], "little")
        number += 1
    file.sync()
    file.close()
    assert number >= RECORDS
    return storage


@cache
def _salvaged() -> CrashingStorage:
    storage = _damaged().process_kill()
    walkit.repair(storage, policy="salvage")
    return storage


TOOLS: dict[str, Callable[[Any], Any]] = {
    "scan": walkit.scan,
    "verify": walkit.verify,
    "salvage": lambda storage: walkit.repair(storage, policy="salvage"),
    "read": lambda storage: list(walkit.open(storage=storage, mode="r").read()),
}


@pytest.mark.parametrize(
    ("tool", "salvaged"),
    [(tool, salvaged) for tool in TOOLS for salvaged in (False, True) if salvaged or tool != "read"],
)
def test_what_is_read_grows_with_the_segment(tool: str, salvaged: bool) -> None:
    """Damage every second of 1,000 frames, before and after a salvage: a bounded multiple of the bytes is read."""
    storage = FaultyStorage((_salvaged() if salvaged else _damaged()).process_kill())
    (name,) = [n for n in storage.names() if n.endswith(".segment")]
    file = storage.open(name, "read")
    size = file.size()
    file.close()
    found = TOOLS[tool](storage)
    read = sum(
        operation.size for operation in storage.trace if (operation.name, operation.file) == ("read", name)
    )
    assert read < READS_MAX * size
    if tool == "verify":
        assert found.ok is salvaged and len(found.verdict) >= RECORDS
    if tool == "read":
        assert len(found) == RECORDS // 2


def test_more_lost_ranges_than_a_manifest_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit of a manifest below a salvage's record: a typed error, and not a file is changed."""
    storage = _damaged().process_kill()
    before = files_in(storage)
    monkeypatch.setattr("walkit.format.manifest.MANIFEST_BYTES_MAX", 8192)
    with pytest.raises(CorruptionError, match="room"):
        walkit.repair(storage, policy="salvage")
    assert files_in(storage) == before
