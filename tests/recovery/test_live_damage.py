"""A log that is damaged while its writer lives: other processes refuse missing records, and verify reports them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

import walkit
from tests.recovery.damage_corpus import CASES, Case, Files, case, load_bases
from walkit.errors import CorruptionError, SegmentMissingError, WalkitError
from walkit.models import CrashingStorage
from walkit.recovery.log_scan import read_durable_slot
from walkit.segments.manifest_store import LOCK_NAME, load_manifest


def _live(files: Files) -> CrashingStorage:
    """Return a log of these files whose lock is held."""
    storage = Case(0, "", [], files).image()
    storage.lock(LOCK_NAME)
    return storage


def _flip(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "a flip in its header": _flip,
    "cut to nothing": lambda data: b"",
    "missing": lambda data: None,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "base",
    ["killed", "imported, killed", "frames in flight over a rotation", "completion, holes over a rotation"],
)
def test_the_first_open_segment_is_missed_at_once(base: str, damage: str) -> None:
    """Damage the first segment in use under a held lock: its records were durable, so reader and verify refuse."""
    files = dict(load_bases()[base].files)
    storage = _live(files)
    name = load_manifest(storage).unsealed[0].name
    assert _read(storage) == list(range(1, read_durable_slot(storage).lsn + 1))
    assert walkit.verify(storage).ok
    damaged = DAMAGES[damage](files.pop(name))
    storage = _live(files if damaged is None else files | {name: damaged})
    with pytest.raises((CorruptionError, SegmentMissingError)):
        _read(storage)
    assert not walkit.verify(storage).ok
    assert not walkit.scan(storage).ok


def _read(storage: CrashingStorage) -> list[int]:
    with walkit.open(storage=storage, mode="r") as log:
        return [r.lsn for r in log.read()]


def test_verify_is_never_ok_where_a_reader_beside_the_writer_refuses() -> None:
    """Damage logs under a held lock: a reader's refusal is a problem of verify, and its records have no gap."""
    refused: list[tuple[int, bool]] = []
    for number in range(11, CASES, 211):
        damaged = case(number)
        storage = _live(damaged.files)
        with suppress(WalkitError):
            report = walkit.verify(storage)
            try:
                lsns = _read(storage)
            except WalkitError:
                lsns = []
                refused.append((number, report.ok is True))
            manifest = load_manifest(storage)
            whole = all(s.records == s.last_lsn - s.first_lsn + 1 for s in manifest.sealed)
            if lsns and whole and not manifest.gaps:
                assert lsns == list(range(lsns[0], lsns[-1] + 1)), number
    assert refused and not [number for number, ok in refused if ok]
