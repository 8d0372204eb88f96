"""How a log looks in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walkit.log.engine import LogEngine


def log_html(engine: LogEngine) -> str:
    """Return marks, segments and the last cut as HTML, readable on dark and on light."""
    core, manifest = engine.core, engine.store.current
    state = "closed" if engine.closed else "poisoned" if core.failure is not None else "open"
    marks = (
        ("first", engine.first_lsn),
        ("durable", core.durable_lsn),
        ("acked", core.acked_lsn),
        ("appended", core.appended_lsn),
    )
    cells = "".join(f"<td>{name}</td><td style='text-align:right'><b>{lsn:,}</b></td>" for name, lsn in marks)
    sizes = [(s.number, s.size_bytes, s.first_lsn, s.last_lsn, "sealed") for s in manifest.sealed]
    for segment in list(engine.segments.open_segments):
        if segment.header is not None:
            size = segment.end_position - segment.header.start_position
            sizes.append((segment.number, size, segment.header.first_lsn, segment.last_lsn, "open"))
    total = sum(s[1] for s in sizes) or 1
    bars = "".join(_bar(*segment, total) for segment in sizes[-200:])
    report = engine.recovery
    cuts = (
        ""
        if report is None
        else "".join(
            f"<div><small>last opening cut {c.bytes:,} bytes at position {c.position:,}: "
            f"{escape(c.reason)}</small></div>"
            for c in report.cuts
        )
    )
    return (
        f"<div><b>log {escape(engine.storage.location)}</b> ({state}, durability {engine.options.durability})"
        f"<table><tr>{cells}</tr></table>"
        f"<div style='width:36em;white-space:nowrap;font-size:0'>{bars}</div>"
        f"<small>{len(sizes)} segments, {sum(s[1] for s in sizes):,} bytes of frames "
        f"(<span style='color:#66ccee'>■</span> sealed <span style='color:#ccbb44'>■</span> open)</small>{cuts}</div>"
    )


def _bar(number: int, size: int, first: int, last: int, kind: str, total: int) -> str:
    """Return one segment as a box, its width by its bytes."""
    title = f"segment {number}: {size:,} bytes, LSN {first:,} to {last:,}, {kind}"
    colour = "#66ccee" if kind == "sealed" else "#ccbb44"
    return (
        f"<span title='{title}' style='display:inline-block;height:16px;width:{max(size / total * 100, 0.3):.2f}%;"
        f"box-sizing:border-box;border:1px solid #888;background:{colour}'></span>"
    )
