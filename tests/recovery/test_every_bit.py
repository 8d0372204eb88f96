"""Flips and cuts all over a small log of three segments: told, or harmless; and power cuts under parallel writes.

Every bit is flipped, in place: of headers and manifest before their codec, which alone reads them, of frames before the
walk that recovery, readers and tools share. The plan of an opening, and what `verify` says, are asked for samples, of
prime steps over all places; `-m slow` asks them of every bit there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

import walkit
from tests.support.damaged_logs import OPTIONS, Rows, flip, frames_of, read, rows_of, shorten, wipe
from tests.support.in_flight_logs import Flight, torn
from walkit.errors import CorruptionError, WalkitError
from walkit.format.frame import FrameHeader
from walkit.format.layout import FRAME_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME, read_manifest
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage
from walkit.recovery.log_scan import read_durable_slot
from walkit.recovery.plan import RecoveryPlan, plan_recovery
from walkit.segments.manifest_store import DURABLE_NAME, load_manifest

NAMES = (segment_name(1), segment_name(2), segment_name(3))
RECORDS = (2, 1, 3)
"""How many each segment holds, one a frame."""


@cache
def _small(closed: bool) -> tuple[CrashingStorage, Rows]:
    storage = CrashingStorage()
    rows: Rows = []
    for number, count in enumerate(RECORDS, 1):
        log = walkit.open(storage=storage, options=OPTIONS)
        for i in range(count):
            value = b"%d-%d " % (number, i) * (3 + 7 * i)
            rows.append((log.append(value, b"k").first_lsn, value))
        if number < len(RECORDS) or closed:
            log.close()
    image = storage.process_kill()
    log.close()
    return image, rows


def small(*, closed: bool) -> tuple[CrashingStorage, Rows]:
    """Return a copy of a log of three segments, closed or left by a killed writer, and its rows."""
    image, rows = _small(closed)
    return image.process_kill(), rows


def told_or_harmless(image: CrashingStorage, rows: Rows) -> str:
    """Return the fate of a flip: verify reports it ("told"), or every record is read as before ("harmless")."""
    try:
        found = walkit.verify(image)
    except WalkitError:
        return "told"
    if not found.ok:
        return "told"
    with walkit.open(None, mode="r", storage=image) as reader:
        assert rows_of(reader) == rows
    return "harmless"


def _flip_all(closed: bool, header_step: int) -> set[str]:
    whole, rows = small(closed=closed)
    outcomes = set()
    for name in (*NAMES, MANIFEST_NAME):
        end = read_manifest(read(whole, MANIFEST_NAME), "log").offset  # the rest is space for edits
        if name != MANIFEST_NAME:
            offset, last = frames_of(whole, name)[-1]
            end = offset + last.footprint
        first = 0 if name == MANIFEST_NAME else 4096
        bits = [*range(0, first * 8, header_step), *range(first * 8, end * 8, 251 if header_step > 1 else 1)]
        for bit in bits:
            image = whole.process_kill()
            flip(image, name, bit // 8, bit % 8)
            outcome = told_or_harmless(image, rows)
            assert outcome == "told", (name, bit)
            outcomes.add(outcome)
    return outcomes


STEPS = (47, pytest.param(1, marks=(pytest.mark.slow, pytest.mark.timeout(3600))))


def flipped(image: CrashingStorage, name: str, begin: int, end: int, step: int = 1) -> Iterator[int]:
    """Flip bits of these bytes of a file in place, one after the other; yields which is flipped just now."""
    data = read(image, name)
    file = image.open(name, "write")
    for bit in range(begin * 8, end * 8, step):
        byte = data[bit // 8]
        file.write(bit // 8, [bytes([byte ^ (1 << bit % 8)])])
        yield bit
        file.write(bit // 8, [bytes([byte])])
    file.close()


def planned(image: CrashingStorage, policy: str) -> RecoveryPlan:
    """Return an opening's decision, after a look at every frame that this policy reads."""
    return plan_recovery(image, load_manifest(image), read_durable_slot(image), policy)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("closed", [True, False])
def test_a_flip_in_any_frame_refuses_an_opening_that_reads_all(closed: bool, step: int) -> None:
    """Flip bits of each frame of a closed, or a killed, log: the policy absolute refuses, by the segment's name."""
    image, _ = small(closed=closed)
    for name in NAMES:
        offset, last = frames_of(image, name)[-1]
        for bit in flipped(image, name, 4096, offset + last.footprint, step):
            with pytest.raises(CorruptionError) as refused:
                planned(image, "absolute")
            assert refused.value.segment == name, bit
    assert planned(image, "absolute").end.last_lsn == sum(RECORDS)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("order", ["append", "completion"])
def test_a_flip_around_a_hole_costs_the_frame_it_is_in(order: str, step: int) -> None:
    """Flip bits of a log with a hole: a promised frame refuses, one after the hole is cut, the hole's do nothing."""
    flight = Flight(order=order, base=1, flying=2)
    image, name = flight.landed((2,), torn, marked=1), segment_name(1)
    whole = planned(image, "holes")
    assert (len(whole.manifest.holes), whole.end.last_lsn) == (1, flight.frames[2][0].last_lsn)
    for number, (header, _) in enumerate(flight.frames):
        begin = 4096 + header.position
        for bit in flipped(image, name, begin, begin + header.footprint, step):
            if number == 0:
                with pytest.raises(CorruptionError):
                    planned(image, "holes")
                continue
            found = planned(image, "holes")
            assert found.end == whole.end if number == 1 else found.end.last_lsn == header.first_lsn - 3, bit
            assert len(found.manifest.holes) == (number == 1), bit


def last_byte(offset: int, header: FrameHeader) -> int:
    """The file offset after the last nonzero byte of a frame: padding is zero, and no value here ends with zero."""
    return offset + FRAME_HEADER_BYTES + header.body_stored_bytes


def test_zeros_from_every_byte_of_the_frames_on_keep_exactly_the_frames_before_them() -> None:
    """Wipe the open segment of a killed log, and one with a hole, from each byte on: the frames before it, no other."""
    whole, _ = small(closed=False)
    whole.remove(DURABLE_NAME)
    flight = Flight(order="completion", base=1, flying=2)
    for image, name, kept in (
        (whole, NAMES[2], frames_of(whole, NAMES[2])),
        (
            flight.landed((2,), torn),
            segment_name(1),
            [(4096 + flight.frames[i][0].position, flight.frames[i][0]) for i in (0, 2)],
        ),
    ):
        end = kept[-1][0] + kept[-1][1].footprint
        for size in [*range(end, 4095, -1), *range(4095, -1, -61)]:
            wipe(image, name, size)
            last_lsn = max((h.last_lsn for offset, h in kept if size >= last_byte(offset, h)), default=None)
            found = planned(image, "holes").end.last_lsn
            assert found == (kept[0][1].first_lsn - 1 if last_lsn is None else last_lsn), size


@pytest.mark.parametrize("closed", [True, False])
def test_a_flip_of_sampled_bits_is_reported(closed: bool) -> None:
    """Flip every 251st bit of all frames, every 997th of the headers and the manifest: verify reports each."""
    assert _flip_all(closed, 997) == {"told"}


@pytest.mark.slow  # half an hour: verify looks at a log for each of its bits
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("closed", [True, False])
def test_a_flip_of_every_bit_is_reported(closed: bool) -> None:
    """Flip every bit of every header, frame and the manifest, one at a time: verify reports each."""
    assert _flip_all(closed, 1) == {"told"}


def test_a_flip_in_the_durable_slots_is_harmless() -> None:
    """Flip every eleventh bit of the cell of a killed log: no record is lost, and none is invented."""
    whole, rows = small(closed=False)
    for bit in range(0, 128 * 8, 11):
        image = whole.process_kill()
        cell = image.cell(DURABLE_NAME, 128, writable=True)
        assert cell is not None
        cell.write(bit // 8, bytes([cell.read()[bit // 8] ^ (1 << bit % 8)]))
        cell.close()
        with walkit.open(None, mode="r", storage=image) as reader:
            assert rows_of(reader) == rows, bit


@pytest.mark.parametrize(
    ("name", "closed", "cell"), [(NAMES[0], True, True), (NAMES[2], False, True), (NAMES[2], False, False)]
)
def test_a_cut_anywhere_is_refused_by_name(name: str, closed: bool, cell: bool) -> None:
    """F-9.10: cut a sealed segment at a sample of bytes, the open one, and with its cell: salvage keeps the rest."""
    whole, rows = small(closed=closed)
    if not cell:
        whole.remove(DURABLE_NAME)
    frames = frames_of(whole, name)
    end = frames[-1][0] + frames[-1][1].footprint
    for size in [*range(0, 4096, 509), *range(4096, end, 37)]:
        image = whole.process_kill()
        shorten(image, name, size)
        with pytest.raises(walkit.CorruptionError) as refused:
            walkit.open(storage=image, options=OPTIONS)
        assert refused.value.segment == name or refused.value.first_lost_lsn is not None
        lost = {h.first_lsn for offset, h in frames if size < offset + h.footprint}
        with walkit.open(storage=image, options=replace(OPTIONS, recovery="salvage")) as log:
            assert rows_of(log) == [row for row in rows if row[0] not in lost], size
