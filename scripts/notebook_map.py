#!/usr/bin/env python3
"""Draw notebooks/map.svg: which notebook is about which part of a record's path, and in which order to read them.

    python scripts/notebook_map.py

The picture is committed, since the index of the notebooks shows it before any cell has run. It has a ground of its own
in light and in dark, so that it is readable on a page of either, whatever the page's own theme is; it needs no script.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script: use the checkout, installed or not
    sys.path.insert(0, str(ROOT))

from walkit._internal.html import BLUE, GREEN, PURPLE, Markup, join, tag  # noqa: E402

TARGET = ROOT / "notebooks" / "map.svg"
WIDTH, HEIGHT = 1000, 854
BOX, BOX_HEIGHT = 212, 62
PLACES = {
    "01": (30, 72, "One record on disk", "bytes, checksums, promises"),
    "06": (272, 72, "Group commit", "records that share a frame"),
    "03": (514, 72, "Acknowledgement order", "parallel writes, one order"),
    "05": (756, 72, "Checkpoint, compaction", "short openings, a small log"),
    "04": (514, 228, "Crash and recovery", "what is left, and how soon"),
    "02": (756, 228, "The main job", "all of it, on real flights"),
    "07": (30, 362, "What a sync costs", "one durable write, seven ways"),
    "10": (272, 362, "Your own policy", "and device, and state machine"),
    "09": (514, 362, "Tail latency", "stalls, open and closed loops"),
    "08": (756, 362, "Peers", "SQLite, LevelDB, RocksDB, LMDB"),
    "11": (30, 446, "Published figures", "and the arithmetic under them"),
    "12": (272, 446, "Delta replication", "polls, deltas, a cut link"),
    "13": (514, 446, "Spark replay and diff", "where Spark begins to pay"),
    "14": (756, 446, "Streams, change feed", "a query killed, each record once"),
    "15": (30, 530, "The crash laboratory", "what a power cut may leave"),
    "16": (272, 530, "A log on object storage", "batching, its latency and its bill"),
}
"""Of each notebook: x, y, what it is about, and in a few words more."""
PATHS = {
    "Student": (BLUE, ("01", "04", "06", "05")),
    "Storage engineer": (PURPLE, ("06", "07", "03", "09", "10")),
    "Spark user": (GREEN, ("01", "02", "05", "13", "14")),
}
"""Of each reader: a colour, and the notebooks in the order to read them."""
ENDS = {"Student": "02", "Storage engineer": "walkit bench write", "Spark user": "docs/spark.md"}
"""The next step after these notebooks."""
STYLE = """
text { font-family: system-ui, "DejaVu Sans", Helvetica, Arial, sans-serif; font-size: 14px; fill: #1b2733; }
.name { font-weight: 600; } .small { font-size: 12px; fill: #43525f; }
.title { font-size: 15px; font-weight: 600; } .number { font-weight: 600; fill: #ffffff; }
.ground { fill: #f6f8fa; stroke: #c5ced6; } .box { fill: #ffffff; stroke: #5b7083; stroke-width: 1.5; }
.line { fill: none; stroke: #34495c; stroke-width: 1.8; marker-end: url(#head); } .head { fill: #34495c; }
.badge { fill: #34495c; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .small { fill: #b4c0cb; } .number { fill: #ffffff; }
.ground { fill: #161d24; stroke: #3d4b58; } .box { fill: #222c36; stroke: #8195a6; }
.line { stroke: #9fb2c3; } .head { fill: #9fb2c3; } .badge { fill: #56697a; }
}
"""


def words(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> Markup:
    """Return a line of text at a place."""
    return tag("text", text, x=x, y=y, text_anchor=anchor, class_=kind or None)


def arrow(path: str) -> Markup:
    """Return a line with a head at its end."""
    return tag("path", class_="line", d=path)


def place(number: str) -> Markup:
    """Return the box of one notebook, its number at the corner."""
    x, y, name, more = PLACES[number]
    middle = x + BOX / 2
    return join(
        [
            tag("rect", class_="box", x=x, y=y, width=BOX, height=BOX_HEIGHT, rx=6),
            words(middle, y + 28, name, "name", "middle"),
            words(middle, y + 48, more, "small", "middle"),
            tag("circle", class_="badge", cx=x + 4, cy=y + 2, r=14),
            words(x + 4, y + 7, number, "number", "middle"),
        ]
    )


def reading_path(reader: str, y: float) -> Markup:
    """Return one reader's line of numbered stops, first to last."""
    colour, stops = PATHS[reader]
    first, step = 196, 165 if len(stops) < 5 else 143
    last = first + step * (len(stops) - 1)
    drawn = [
        words(30, y + 5, reader, "name"),
        tag("path", d=f"M {first} {y} H {last + 60}", stroke=colour, stroke_width=5, fill="none"),
    ]
    for index, number in enumerate(stops):
        drawn += [
            tag("circle", cx=first + step * index, cy=y, r=15, fill=colour),
            words(first + step * index, y + 5, number, "number", "middle"),
            words(first + step * index, y + 31, PLACES[number][2], "small", "middle"),
        ]
    return join([*drawn, words(last + 70, y + 5, f"then {ENDS[reader]}", "small")])


def drawn_map() -> str:
    """Return the picture as the text of an SVG file."""
    about = "; ".join(f"{number} {name}: {more}" for number, (_, _, name, more) in sorted(PLACES.items()))
    orders = "; ".join(f"{reader}: {', '.join(stops)}" for reader, (_, stops) in PATHS.items())
    head = tag(
        "marker",
        tag("path", class_="head", d="M 0 0 L 10 5 L 0 10 z"),
        id="head",
        viewBox="0 0 10 10",
        refX=9,
        refY=5,
        orient="auto",
        markerWidth=7,
        markerHeight=7,
    )
    parts = [
        tag("title", "The notebooks of walkit", id="title"),
        tag(
            "desc", f"The notebooks along the path of a record. {about}. Reading paths. {orders}.", id="desc"
        ),
        tag("style", Markup(STYLE)),
        tag("defs", head),
        tag("rect", class_="ground", width=WIDTH, height=HEIGHT, rx=8),
        words(30, 40, "The path of a record: append, frame, disk, acknowledgement, state", "title"),
        *(arrow(f"M {x + BOX} 103 H {x + BOX + 26}") for x in (30, 272, 514)),
        arrow("M 620 134 V 224"),
        words(630, 186, "a crash", "small"),
        arrow("M 862 134 V 224"),
        words(872, 186, "a replica, Spark", "small"),
        arrow("M 862 290 V 326"),
        arrow("M 514 259 H 136 V 138"),
        words(148, 249, "recovery: the log takes the next record", "small"),
        *map(place, PLACES),
        words(30, 338, "Asked more closely", "title"),
        words(30, 634, "Where to begin", "title"),
        *(reading_path(reader, 676 + 66 * index) for index, reader in enumerate(PATHS)),
    ]
    written = tag(
        "svg",
        *(join([part, "\n"]) for part in parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        width=WIDTH,
        height=HEIGHT,
        aria_labelledby="title desc",
    )
    return f"{written}\n"


if __name__ == "__main__":
    TARGET.write_text(drawn_map(), encoding="utf-8")
    print(TARGET)
