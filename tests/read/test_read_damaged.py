"""`read(damaged="unverified")`: intact records as ever, and the records that a damaged frame still holds, marked."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walkit
from tests.support.damaged import Copy, kill_log, value_of
from tests.support.examples import examples
from walkit.errors import CorruptionError, OptionsError
from walkit.format.body import Columns
from walkit.format.frame import FrameHeader, FrameIdentity, prepare_body, seal_frame
from walkit.format.frame_fields import records_left
from walkit.format.layout import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES
from walkit.record import UnverifiedRecord

RECORDS = 2000
FRAME_LSNS = range(2, RECORDS + 2)
Events = list[tuple[str, dict[str, Any]]]


def _write(path: Path, codec: str | None = None, durability: str = "sync") -> list[walkit.Record]:
    """Write one record, 2,000 in a frame, and one more; return all. Keys, values and times have different lengths."""
    options = walkit.LogOptions(codec=codec, durability=durability, idle_marker_ms=0)  # type: ignore[arg-type]
    with walkit.open(path, options=options) as log:
        log.append(b"first")
        values = [b"%d" % (n * n) for n in range(RECORDS)]
        log.append_many(values, [b"key %d" % n for n in range(RECORDS)])
        log.append(b"last")
        return list(log.read())


def _frame(path: Path) -> tuple[Path, int, FrameHeader]:
    """Return the file of the frame of 2,000, its offset there, and its header."""
    copy = Copy(path)
    offset, header = copy.frames(0)[1]
    assert header.records == RECORDS
    return path / copy.used(0), offset, header


def _read(path: Path, *bounds: int) -> tuple[list[walkit.Record], Events]:
    events: Events = []
    with walkit.open(path, mode="r", events=lambda name, facts: events.append((name, facts))) as log:
        return list(log.read(*bounds, damaged="unverified")), events


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_flipped_bit_costs_no_other_record(codec: str | None, tmp_path: Path) -> None:
    """Flip one bit after another of a frame of 2,000 records: every record comes out right, all of the frame marked."""
    written = _write(tmp_path / "log", codec)
    file, start, header = _frame(tmp_path / "log")
    data, chance = file.read_bytes(), random.Random(35)
    end = FRAME_HEADER_BYTES + header.body_stored_bytes
    for within in [*range(0, FRAME_HEADER_BYTES, 7), *range(FRAME_HEADER_BYTES, end, end // 30), end - 1]:
        damaged = bytearray(data)
        damaged[start + within] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        found, events = _read(tmp_path / "log")
        assert found == written, within
        assert {r.lsn for r in found if not r.verified} == {*FRAME_LSNS}, within
        ((name, facts),) = events
        assert (name, facts["records"], facts["error"]) == ("walkit.read.damage", RECORDS, "")
    with walkit.open(tmp_path / "log", mode="r") as log, pytest.raises(CorruptionError):
        list(log.read())
    assert "unverified" in found[5]._repr_html_() and repr(found[5]).startswith("UnverifiedRecord(")


def _burn(path: Path, begin: int, count: int) -> None:
    """Invert bytes of the frame's body."""
    file, start, _ = _frame(path)
    data, at = bytearray(file.read_bytes()), start + FRAME_HEADER_BYTES + begin
    data[at : at + count] = bytes(255 - byte for byte in data[at : at + count])
    file.write_bytes(data)


def test_wider_damage_costs_what_it_hit(tmp_path: Path) -> None:
    """Invert 20 bytes of the last values, of the lengths, and of a compressed body: a few, all and all are lost."""
    written = _write(tmp_path / "log")
    shutil.copytree(tmp_path / "log", tmp_path / "lengths")
    _, _, header = _frame(tmp_path / "log")
    _burn(tmp_path / "log", header.body_stored_bytes - 20, 20)
    found, _ = _read(tmp_path / "log")
    assert [r.lsn for r in found] == [r.lsn for r in written]
    assert [r for r in found if r != written[r.lsn - 1]] == found[-4:-1]
    _burn(tmp_path / "lengths", 100, 20)
    lost, events = _read(tmp_path / "lengths")
    assert [r.lsn for r in lost] == [1, RECORDS + 2] and "beyond the body" in events[0][1]["error"]
    _write(tmp_path / "zstd", "zstd")
    _burn(tmp_path / "zstd", 0, 20)
    lost, events = _read(tmp_path / "zstd")
    assert [r.lsn for r in lost] == [1, RECORDS + 2] and "decompress" in events[0][1]["error"]


def test_unverified_records_enter_no_state(tmp_path: Path) -> None:
    """Salvage the log: reads, batches and a Store have the intact records alone, and each mark is asked for."""
    written = _write(tmp_path / "log")
    _burn(tmp_path / "log", 20_000, 1)
    options = walkit.LogOptions(recovery="salvage")
    with walkit.Store.open(tmp_path / "log", options=options) as store:
        assert len(store) == 0 and [r.lsn for r in store.log.read()] == [1, RECORDS + 2]
        assert store.log.to_arrow().num_rows == 2
        after = list(store.log.read(damaged="unverified"))
        assert after == written and sum(not r.verified for r in after) == RECORDS
        part = store.log.read(11, 20, damaged="unverified")
        assert [(r.lsn, type(r)) for r in part] == [(lsn, UnverifiedRecord) for lsn in range(11, 21)]
        with pytest.raises(OptionsError):
            store.log.read(damaged="all")  # type: ignore[arg-type]


def _flip_tail(copy: Copy) -> None:
    copy.flip_in_frame(len(copy.headers) - 1, -2, "body")


def _flip_headers(copy: Copy) -> None:
    for frame in (3, 4):
        copy.flip_in_frame(1, frame, "header")


DAMAGES: dict[str, tuple[Callable[[Copy], object], int]] = {
    "tail of a killed writer": (_flip_tail, 1),
    "header of a segment": (lambda copy: copy.flip(copy.used(1), 30), 0),
    "headers of two frames": (_flip_headers, 2),
    "padding of a frame": (lambda copy: copy.flip_in_frame(1, 3, "padding"), 1),
}
"""By name: a damage of a killed writer's log, and how many records are unverified then."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_record_comes_out_of_a_damaged_log(damage: str, tmp_path: Path) -> None:
    """Damage a killed writer's log in other places: a reader that asks gets each record, in order, once."""
    kill_log(tmp_path / "log")
    do, marked = DAMAGES[damage]
    do(Copy(tmp_path / "log"))
    found, _ = _read(tmp_path / "log")
    assert [r.value for r in found] == [value_of(n) for n in range(60)]
    assert sum(not r.verified for r in found) == marked


def test_missing_segment_is_named(tmp_path: Path) -> None:
    """Remove a segment: the records of the others come, and an event names it."""
    kill_log(tmp_path / "log")
    copy = Copy(tmp_path / "log")
    copy.remove(copy.used(1))
    found, events = _read(tmp_path / "log")
    assert 0 < len(found) < 60 and all(r.verified for r in found)
    assert {facts["segment"] for _, facts in events} == {copy.used(1)}
    assert "the file is missing" in [facts["error"] for _, facts in events]


def test_frames_of_another_segment_repeat_no_record(tmp_path: Path) -> None:
    """Put a segment without its header over the last one: each record comes once, in order; an event names the file."""
    kill_log(tmp_path / "log")
    copy = Copy(tmp_path / "log")
    data = (copy.path / copy.used(0)).read_bytes()
    (copy.path / copy.used(-1)).write_bytes(bytes(SEGMENT_HEADER_BYTES) + data[SEGMENT_HEADER_BYTES:])
    found, events = _read(tmp_path / "log")
    lsns = [r.lsn for r in found]
    assert lsns == sorted(set(lsns)) and len(lsns) < 60
    assert copy.used(-1) in {facts["segment"] for _, facts in events}


BODY = prepare_body(Columns(3, 0x31, [b"a", b"bb", b"c"], [b"x", b"yyy", b"z"], None, [0, 2, 5]))


@given(data=st.binary(min_size=BODY.stored_bytes, max_size=BODY.stored_bytes), at=st.integers(0, 60))
@settings(max_examples=examples(300), deadline=None)
def test_hostile_bodies_give_rows_or_a_reason(data: bytes, at: int) -> None:
    """Put any bytes from any place on in the body of a frame: rows of it, or a reason, and no error."""
    buffers, _, _ = seal_frame(
        BODY, FrameIdentity(1, 1, 1), position=0, first_lsn=7, durable_position=0, chain=0, sealed_us=0,
        alignment=64, span=6,
    )  # fmt: skip
    frame = b"".join(buffers)
    header = FrameHeader.parse(frame)
    begin = FRAME_HEADER_BYTES + min(at, BODY.stored_bytes)
    hostile = frame[:begin] + data[: FRAME_HEADER_BYTES + BODY.stored_bytes - begin]
    rows, detail = records_left(header, hostile)
    rows.validate(full=True)
    assert len(rows) == 3 or detail
    assert all(7 <= lsn <= 12 for lsn in rows.column("lsn").to_pylist())
