"""The grid of a frame's bytes: each byte in its place, under its field's name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import walkit
from tests.support.makers import flipped
from walkit.format.frame_fields import frame_fields
from walkit.models import CrashingStorage
from walkit.plots import frame_bytes
from walkit.plots.framebytes import GROUPS, SHORT


@pytest.fixture(scope="module")
def seen() -> walkit.ObservedFrames:
    """The first frame of a log, as an observer got it: one transaction of two records."""
    frames: list[walkit.ObservedFrames] = []
    with walkit.open(storage=CrashingStorage(), options=walkit.LogOptions(idle_marker_ms=0)) as log:
        log.observe(frames.append)
        with log.transaction() as tx:
            tx.put(b"N14228", b"<b>")
            tx.put(b"UA1545", b"boarding")
    return frames[0]


def cells(drawing: Any, what: str) -> list[Any]:
    return list(np.asarray(getattr(drawing.data[0], what)).ravel())


def test_each_byte_is_in_its_place_under_its_field(seen: walkit.ObservedFrames) -> None:
    """Read the grid row by row: the frame's bytes in hex, and on hover the field, its value and the offset."""
    drawing = frame_bytes(seen)
    data, fields = seen.data, frame_fields(seen.data)
    assert cells(drawing, "text") == [f"{byte:02x}" for byte in data]
    hovers, numbers = cells(drawing, "customdata"), cells(drawing, "z")
    for field in fields:
        group = next((name for name, (_, own) in GROUPS.items() if field.name in own), "body")
        for at in range(field.offset, field.end):
            assert numbers[at] == list(GROUPS).index(group)
            assert hovers[at].startswith(f"<b>{field.name}</b>: ")
            assert f"offset {at} ({at:#x})" in hovers[at]
    assert "<b>boarding" not in "".join(hovers) and "&lt;b&gt;boarding" in "".join(hovers)
    assert drawing.layout.title.text == f"Frame at position 0, first LSN 1: {len(data)} bytes"


def test_every_field_has_a_bracket_and_its_name_below_its_bytes(seen: walkit.ObservedFrames) -> None:
    """Brackets cover each field's bytes, row by row; names stand below them; the scale paints each group's number."""
    drawing = frame_bytes(seen)
    fields = frame_fields(seen.data)
    *squares, brackets = drawing.data[1:]
    assert [trace.name for trace in squares] == list(GROUPS)
    names = [note.text for note in drawing.layout.annotations]
    assert names == [SHORT.get(field.name, field.name) for field in fields]
    covered = list[int]()
    for at in range(0, len(brackets.x), 5):
        (left, _, right, _, gap), row = brackets.x[at : at + 5], round(brackets.y[at])
        assert gap is None
        covered += range(row * 16 + round(left + 0.42), row * 16 + round(right + 0.58))
    assert covered == list(range(len(seen.data)))
    for field, note in zip(fields, drawing.layout.annotations, strict=True):
        assert field.offset <= int(note.y) * 16 + note.x < field.end
    for index, trace in enumerate(squares):
        band = drawing.data[0].colorscale[2 * index : 2 * index + 2]
        assert {paint for _, paint in band} == {trace.marker.color}


def test_a_changed_byte_is_framed_and_its_checksum_named(seen: walkit.ObservedFrames) -> None:
    """Flip a bit in a value and highlight its byte: two lines around that cell, and body_crc says it is wrong."""
    drawing = frame_bytes(flipped(seen.data, 8 * 125), highlight=[125, 125, 10_000])
    assert len(drawing.layout.shapes) == 2
    for shape in drawing.layout.shapes:
        assert (shape.x0, shape.x1, shape.y0, shape.y1) == (12.5, 13.5, 6.69, 7.31)
    hover = next(h for h in cells(drawing, "customdata") if h.startswith("<b>body_crc</b>"))
    assert re.search(r"0x[0-9a-f]{8}, but the bytes give 0x[0-9a-f]{8}", hover)


def test_long_frames_are_drawn_in_part_and_no_frames_are_refused(seen: walkit.ObservedFrames) -> None:
    """Bytes_max inside the header and inside a row; bytes that follow; too few bytes; nothing to draw."""
    part = frame_bytes(seen.data, bytes_max=41)
    assert "the first 41 bytes drawn" in part.layout.title.text
    assert np.asarray(part.data[0].z).shape == (3, 16)
    assert cells(part, "text")[40:] == ["01"] + [""] * 7
    assert part.layout.annotations[-1].text == "first_lsn"
    assert cells(frame_bytes(memoryview(seen.data + seen.data)), "text") == cells(frame_bytes(seen), "text")
    with pytest.raises(ValueError, match="96 bytes of header"):
        frame_bytes(seen.data[:50])
    with pytest.raises(ValueError, match="bytes_max=0"):
        frame_bytes(seen, bytes_max=0)
