"""The bytes of a frame as a coloured grid."""

from __future__ import annotations

from collections.abc import Collection
from html import escape

import numpy as np

from walkit.format.frame_fields import FrameField, frame_fields
from walkit.log.observe import ObservedFrames
from walkit.plots.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, SKY, Figure, figure, go
from walkit.record import Buffer

COLUMNS = 16
ROW_PX, NAME_PX = 36, 16
"""Height of a row, and of the part of it below the bytes, where the names are."""
GROUPS = {
    "identity": (SKY, ("magic", "version", "codec", "flags", "log_id", "epoch", "epoch_id")),
    "place": (ORANGE, ("position", "first_lsn", "records", "span", "durable_position", "sealed_us")),
    "sizes": (GREEN, ("footprint", "body_stored_bytes", "body_raw_bytes")),
    "checksums": (PURPLE, ("body_crc", "chain", "header_crc")),
    "padding, unknown": ("#9a9a9a", ("padding", "unknown")),
    "body": (BLUE, ()),
}
"""By group its colour, and its fields; the body has all others."""
SHORT = {
    "version": "v",
    "body_stored_bytes": "body stored",
    "body_raw_bytes": "body raw",
    "kind bytes": "kind",
}
"""Names that are wider than their bytes."""
CASING = (("#ffffff", 6), ("#000000", 2))
"""Colours and widths of the lines around a highlighted byte: white below black is seen on every colour and page."""


def frame_bytes(
    frame: Buffer | ObservedFrames,
    *,
    highlight: Collection[int] = (),
    bytes_max: int = 1024,
) -> Figure:
    """Draw a frame byte by byte, 16 in a row: every field named below its bytes, in the colour of its group.

    `frame` is bytes with a frame at their start, or an observed frame. At most `bytes_max` bytes are drawn; the
    subtitle notes if there are more. `highlight` are offsets of bytes to outline, such as a changed byte. A damaged
    frame is drawn too: the values show which checksum is wrong. ValueError for less than a frame's header, or nothing
    to draw.
    """
    if bytes_max < 1:
        raise ValueError(f"bytes_max={bytes_max}: at least 1")
    data = bytes(memoryview(frame.data if isinstance(frame, ObservedFrames) else frame).cast("B"))
    fields = frame_fields(data)
    whole = fields[-1].end
    shown = min(whole, bytes_max)
    rows = -(-shown // COLUMNS)
    first = next(f.value for f in fields if f.name == "first_lsn")
    position = next(f.value for f in fields if f.name == "position")
    part = [f"the first {shown:,} bytes drawn"] if shown < whole else []
    seen = [field for field in fields if field.offset < shown]
    drawing = figure(
        f"Frame at position {position}, first LSN {first}: {whole:,} bytes",
        subtitle=part,
        alt=f"The {whole:,} bytes of a frame in rows of 16, a bracket for each of its {len(fields)} fields: "
        + ", ".join(f"{field.name} {field.size:,} B" for field in seen[:20]),
        height=190 + ROW_PX * rows,
    )
    drawing.add_trace(_grid(data, seen, shown, rows))
    for name, (paint, _) in GROUPS.items():
        if any(_group(field) == name for field in seen):
            # A heatmap has no legend: one square without a place for each group.
            marker = {"symbol": "square", "size": 12, "color": paint}
            drawing.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker))
    _add_brackets(drawing, seen, shown)
    for offset in sorted({at for at in highlight if 0 <= at < shown}):
        x, y = offset % COLUMNS, offset // COLUMNS
        for line, width in CASING:
            corners = {"x0": x - 0.5, "x1": x + 0.5, "y0": y - 0.31, "y1": y + 0.31}
            drawing.add_shape(type="rect", **corners, line={"color": line, "width": width})
    drawing.update_xaxes(
        side="top",
        tickvals=list(range(COLUMNS)),
        ticktext=[f"{n:x}" for n in range(COLUMNS)],
        showgrid=False,
        zeroline=False,
    )
    drawing.update_yaxes(
        autorange="reversed",
        tickvals=list(range(rows)),
        ticktext=[f"{n * COLUMNS:08x}" for n in range(rows)],
        showgrid=False,
        zeroline=False,
    )
    return drawing


def _group(field: FrameField) -> str:
    return next((group for group, (_, names) in GROUPS.items() if field.name in names), "body")


def _add_brackets(drawing: Figure, fields: list[FrameField], shown: int) -> None:
    """Draw a bracket below the bytes of each field in each row, and its name below the longest one."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for field in fields:
        end = min(field.end, shown)
        starts = [field.offset, *range((field.offset // COLUMNS + 1) * COLUMNS, end, COLUMNS)]
        runs = [(at, min((at // COLUMNS + 1) * COLUMNS, end) - at) for at in starts]
        for at, size in runs:
            x, y = at % COLUMNS, at // COLUMNS
            xs += [x - 0.42, x - 0.42, x + size - 0.58, x + size - 0.58, None]
            ys += [y + 0.31, y + 0.36, y + 0.36, y + 0.31, None]
        at, size = max(runs, key=lambda run: run[1])
        drawing.add_annotation(
            x=at % COLUMNS + (size - 1) / 2,
            y=at // COLUMNS + 0.52,
            text=escape(SHORT.get(field.name, field.name)),
            font={"size": 9},
            showarrow=False,
        )
    line = {"color": NEUTRAL, "width": 1}
    drawing.add_trace(go.Scatter(x=xs, y=ys, mode="lines", line=line, showlegend=False, hoverinfo="skip"))


def _grid(data: bytes, fields: list[FrameField], shown: int, rows: int) -> go.Heatmap:
    """Return the bytes as a heatmap whose z is the group's number; cells beyond the end are empty."""
    cells = rows * COLUMNS
    number = np.full(cells, np.nan)
    hover = np.full(cells, "", dtype=object)
    order = list(GROUPS)
    for field in fields:
        end = min(field.end, shown)
        number[field.offset : end] = order.index(_group(field))
        value = escape(field.value)
        for at in range(field.offset, end):
            hover[at] = (
                f"<b>{escape(field.name)}</b>: {value}<br>byte {at - field.offset + 1} of {field.size:,}, "
                f"offset {at} ({at:#x}), value {data[at]:#04x}"
            )
    hexes = np.array([f"{byte:02x}" for byte in data[:shown]] + [""] * (cells - shown), dtype=object)
    last = len(GROUPS) - 1
    # Each number has a band of one colour: plotly's scales run from 0 to 1, and a band begins where the last ended.
    scale = [
        (min(max((index + side) / last, 0.0), 1.0), paint)
        for index, (paint, _) in enumerate(GROUPS.values())
        for side in (-0.5, 0.5)
    ]
    return go.Heatmap(
        z=number.reshape(rows, COLUMNS),
        text=hexes.reshape(rows, COLUMNS),
        customdata=hover.reshape(rows, COLUMNS),
        texttemplate="%{text}",
        textfont={"family": "monospace"},
        hovertemplate="%{customdata}<extra></extra>",
        zmin=0,
        zmax=last,
        colorscale=scale,
        showscale=False,
        xgap=2,
        ygap=NAME_PX,
    )
