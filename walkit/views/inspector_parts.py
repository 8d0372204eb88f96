"""The parts of the Inspector page: rows of tables, pieces of HTML, the chooser of a log, the view of one frame."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from walkit._internal.arguments import refuse
from walkit._internal.html import BLUE, YELLOW, Markup, Part, bar, join, table, tag
from walkit._internal.text import bounds, counted
from walkit.format.frame import FrameHeader
from walkit.format.frame_fields import frame_fields
from walkit.format.layout import CODEC_NAMES, FRAME_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME
from walkit.plots import frame_bytes
from walkit.plots.units import bytes_text
from walkit.read.payloads import LINK_HEAD
from walkit.record import Kind, Link, Record, is_link
from walkit.recovery.scan_report import ScanReport, Verdict, frame_time, lsn_text
from walkit.storage.address import FILES
from walkit.storage.object_files import COUNTER
from walkit.views.background_jobs import Apply, Job, Looking
from walkit.views.base import (
    EXAMPLE_CSS,
    Button,
    Row,
    Select,
    TextInput,
    View,
    column,
    example_html,
    figure_pane,
    pn,
    sentence_html,
)
from walkit.views.frame_pages import (
    RECORDS_SHOWN_MAX,
    SEARCHED_BYTES_MAX,
    Damage,
    FramePage,
    FrameView,
    Item,
    KeySearch,
)
from walkit.views.log_outline import Outline, SegmentLine
from walkit.views.workspace import LogPath, Workspace

SEGMENT_HEAD = ("segment", "state", "LSN", "records", "frames", "bytes", "from position", "epoch")
FRAME_HEAD = ("position", "LSN", "records", "bytes", "codec", "sealed (UTC)", "promises")
HIT_HEAD = ("LSN", "kind", "value", "bytes", "frame at position", "segment")
RANGE_HEAD = ("from position", "to", "segment", "what", "LSN", "why")
IN_ORDER = (Verdict.INTACT, Verdict.NOT_READ, Verdict.UNUSED, Verdict.IN_PROGRESS)
SHOWN_BYTES = 48
"""Most bytes of a key or a value that a table shows."""
FOLDERS_MAX, LOGS_MAX, DEPTH_MAX = 2_000, 50, 3
LINES_MAX = 40


def logs_below(root: Path) -> list[LogPath]:
    """Return the logs at most three levels below the root, in folders and in object stores (`objects:`) of folders.

    Hidden folders are passed over.
    """
    waiting, seen, found = [(root, 0)], 0, list[LogPath]()
    while waiting and seen < FOLDERS_MAX and len(found) < LOGS_MAX:
        folder, depth = waiting.pop(0)
        seen += 1
        try:
            with os.scandir(folder) as entries:
                below = sorted(
                    e.name for e in entries if e.is_dir(follow_symlinks=False) and e.name[:1] != "."
                )
            is_log, in_objects = ((folder / name).is_file() for name in (MANIFEST_NAME, COUNTER))
        except OSError:
            continue
        if is_log:
            found.append(f"{FILES}{folder}" if in_objects else folder)
        elif depth < DEPTH_MAX:
            waiting += [(folder / name, depth + 1) for name in below]
    return found


def numbers_of(outline: Outline) -> list[tuple[str, str, str]]:
    """Return the facts of a log as (name, value, meaning)."""
    manifest = outline.manifest
    states = {
        "live": "a writer holds the log; the part on stable storage is shown",
        "closed": "its writer has closed it",
        "unclosed": "its writer ended without closing it, or writes to object storage; the next opening recovers",
    }
    lsns = "unknown" if outline.last_lsn is None else bounds(outline.first_lsn, outline.last_lsn)
    end = "unknown" if outline.end_position is None else f"{outline.end_position:,}"
    return [
        ("state", outline.state, states[outline.state]),
        ("LSN", lsns, "visible to a reader now"),
        ("end position", end, "end of the last frame that a reader sees"),
        (
            ("segments", f"{len(outline.segments):,}", "files that the manifest names")
            if outline.objects is None
            else (
                "objects",
                f"{outline.objects.end.number - outline.objects.floor.number:,}",
                "one for each frame",
            )
        ),
        ("low watermark", f"{manifest.low_watermark:,}", "records at or below this LSN may be gone"),
        ("epochs", f"{len(manifest.lineage):,}", "openings for writing"),
        ("manifest", f"{manifest.generation:,}", "its generation: it grows by one with each change"),
        ("log id", f"{manifest.log_id:016x}", "every frame carries it"),
    ]


def map_html(outline: Outline) -> Markup:
    """Return the segments as a bar by their bytes, those that were sealed and the one in use in two colours."""
    parts = [
        Part(
            line.end_position - line.start_position,
            BLUE if line.state == "sealed" else YELLOW,
            f"segment {line.number}, {line.state}: LSN {bounds(line.first_lsn or 0, line.last_lsn or 0)}",
        )
        for line in outline.segments
        if line.end_position > line.start_position
    ]
    said = f"{counted(len(parts), 'segment')}, {bytes_text(sum(part.size for part in parts))}"
    return join([tag("p", f"{said}: blue is sealed, yellow is in use."), bar(parts, label=said)])


def segment_row(line: SegmentLine, on: bool) -> Row:
    """Return the row of a segment."""
    used = line.state in ("sealed", "open")
    lsns = bounds(line.first_lsn, line.last_lsn) if line.first_lsn and line.last_lsn else ""
    if line.first_lsn and not line.last_lsn:
        lsns = f"from {line.first_lsn:,}"
    cells = (
        f"{line.number}",
        line.state if not line.problem else f"{line.state}: {line.problem}",
        lsns,
        "" if line.records is None else f"{line.records:,}",
        "" if line.frames is None else f"{line.frames:,}",
        f"{line.end_position - line.start_position:,}" if used else "",
        f"{line.start_position:,}" if used else "",
        f"{line.record.epoch:,}" if line.record.epoch else "",
    )
    return Row(
        id=str(line.number) if used else "",
        cells=cells,
        label=f"frames of segment {line.number}",
        on=on,
        tone="bad" if line.state == "unreadable" else "",
    )


def frame_rows(page: FramePage, chosen: int | None) -> list[Row]:
    """Return a row for each frame or damage of a page."""
    return [
        _frame_row(item, chosen is not None and item.position <= chosen < item.end_position)
        for item in page.items
    ]


def _frame_row(item: Item, on: bool) -> Row:
    at = f"{item.position:,}"
    if isinstance(item, Damage):
        size = f"{item.end_position - item.position:,}"
        cells: tuple[str, ...] = (at, "damage", "", size, "", "", item.fault.value)
        return Row(id=str(item.position), cells=cells, label=f"bytes at position {at}", on=on, tone="bad")
    cells = (
        at,
        "marker" if item.is_marker else bounds(item.first_lsn, item.last_lsn),
        f"{item.records:,}",
        f"{item.footprint:,}",
        CODEC_NAMES.get(item.codec) or "none",
        frame_time(item.sealed_us),
        f"{item.durable_position:,}",
    )
    return Row(id=str(item.position), cells=cells, label=f"bytes of the frame at position {at}", on=on)


def page_words(page: FramePage) -> str:
    """Return a page of frames as a sentence."""
    if not page.items:
        return f"Segment {page.line.number} holds no frame that could be read."
    last = page.items[-1]
    of = f" of {page.line.frames:,}" if page.line.frames is not None else ""
    return (
        f"{counted(len(page.items), 'frame')}{of} of segment {page.line.number}, positions "
        f"{page.first_position:,} to {last.end_position:,}."
    )


def fields_html(view: FrameView) -> Markup:
    """Return every named field of a frame as a table, for people and programs that cannot read the grid."""
    if len(view.data) < FRAME_HEADER_BYTES:
        return tag("p", f"{counted(len(view.data), 'byte')}: {view.data[:SHOWN_BYTES].hex(' ')}")
    rows = [(f.name, f"{f.offset:,}", f"{f.size:,}", _cut(f.value)) for f in frame_fields(view.data)]
    return _details("Named fields", table(rows, ("field", "offset", "bytes", "value"), right=(1, 2)))


def records_html(view: FrameView) -> Markup:
    """Return the first decoded records of a frame as a table; empty without records."""
    header = view.header
    if not view.records or not isinstance(header, FrameHeader):
        return Markup("")
    rows = [
        (f"{r.lsn:,}", str(r.kind), bytes_words(r.key), value_words(r), str(r.timestamp or ""))
        for r in view.records
    ]
    first = f", the first {RECORDS_SHOWN_MAX}" if header.records > len(view.records) else ""
    head = ("LSN", "kind", "key", "value", "timestamp")
    shown = _details(
        f"{counted(header.records, 'record')}{first}", table(rows, head, right=(0,)), opened=True
    )
    if not view.links:
        return shown
    links = table([facts.cells(bytes_words) for facts in view.links], LINK_HEAD, right=(0, 4, 5))
    return join([shown, _details(counted(len(view.links), "link"), links, opened=True)])


def _details(title: str, content: Markup, *, opened: bool = False) -> Markup:
    inside = tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=title)
    return tag("details", tag("summary", title), inside, **({"open": "open"} if opened else {}))


def bytes_words(data: bytes | None) -> str:
    """Return a key or value as a person reads it: text if it is printable, else hex; cut after some bytes."""
    if data is None:
        return "absent"
    part, more = data[:SHOWN_BYTES], "…" if len(data) > SHOWN_BYTES else ""
    text = part.decode("utf-8", "replace")
    return (f'"{text}"' if text.isprintable() and "�" not in text else f"0x{part.hex()}") + more


def value_words(record: Record) -> str:
    """Return the value of a record as a person reads it; for a link, what it links to."""
    if record.kind is not Kind.LINK or not is_link(record.value):
        return bytes_words(record.value)
    link = Link.decode(record.value)
    return (
        f"{link.kind} of {counted(link.length, 'byte')} in payload log {link.log_id:016x}, LSN {link.lsn:,}"
    )


def _cut(text: str) -> str:
    return text if len(text) <= 160 else text[:159] + "…"


def hit_rows(search: KeySearch) -> list[Row]:
    """Return a row for each record that was found."""
    return [
        Row(
            id=f"{hit.position}/{hit.record.lsn}",
            cells=(
                f"{hit.record.lsn:,}",
                str(hit.record.kind),
                value_words(hit.record),
                f"{len(hit.record.value or b''):,}",
                f"{hit.position:,}",
                f"{hit.segment}",
            ),
            label=f"the frame of LSN {hit.record.lsn:,}",
        )
        for hit in search.hits
    ]


def search_words(search: KeySearch) -> str:
    """Return the result of a search for a key, as sentences."""
    key = bytes_words(search.key)
    said = f"{counted(len(search.hits), 'record')} with the key {key} from LSN {search.from_lsn:,} on"
    if search.next_lsn is None:
        said += ", to the end of the log."
    elif search.searched_bytes >= SEARCHED_BYTES_MAX:
        said += (
            f"; the search ended after {search.searched_bytes >> 20:,} MiB, before LSN {search.next_lsn:,}."
        )
    else:
        said += f"; there may be more from LSN {search.next_lsn:,} on."
    if search.damaged:
        said += f" {counted(search.damaged, 'damaged range')} {'was' if search.damaged == 1 else 'were'} passed over."
    return said


def range_rows(report: ScanReport) -> list[Row]:
    """Return a row for each range of a report that is not in order; those that break a promise are red."""
    return [
        Row(
            id=str(r.start_position),
            cells=(
                f"{r.start_position:,}",
                f"{r.end_position:,}",
                r.segment.removesuffix(".segment").lstrip("0") or r.segment,
                r.verdict.value,
                lsn_text(r.first_lsn, r.last_lsn),
                r.reason,
            ),
            label=f"bytes at position {r.start_position:,}",
            tone="warn" if r.verdict in (Verdict.TORN, Verdict.STALE, Verdict.HOLE, Verdict.LOST) else "bad",
        )
        for r in report.verdict
        if r.verdict not in IN_ORDER
    ]


def report_html(report: ScanReport) -> Markup:
    """Return the outcome of a verify, its problems and its notes; the first and last of many."""
    said = [tag("li", tag("b", p.error.code), f": {p}", class_="bad") for p in report.problems]
    said += [tag("li", note) for note in report.notes]
    if len(said) > LINES_MAX:
        left = len(said) - LINES_MAX
        half = LINES_MAX // 2
        said = [*said[:half], tag("li", f"and {left:,} more"), *said[-half:]]
    good = not report.problems
    outcome = tag("b", report.summary(), class_="good" if good else "bad", role=None if good else "alert")
    taken = f" Read in {report.duration_s:,.2f} s."
    return join([tag("p", outcome, taken), tag("ul", *said) if said else Markup("")])


SCRATCH = "scratch"
"""The name of the session's own log in the URL; a folder of that name is ./scratch."""
FIND_BY = {"LSN": "lsn", "position": "position", "key": "key", "time": "time"}
HINTS = {
    "lsn": "a whole number",
    "position": "a whole number: any byte of the log",
    "key": "text, or hex after 0x",
    "time": "2026-11-23 14:05:00 (UTC); frames know when they were sealed",
}
NOTHING_YET = example_html(
    "the segments of a log, and the frames of one.",
    {"segments": (4, 4, 2), "frames": (1, 2, 1, 3, 1, -2)},
)
CHOOSE_A_FRAME = "<p>Choose a frame to see its fields, its records and its bytes.</p>"
SEGMENTS_DRAWN_MAX = 200
MIB = 20
"""Binary digits of a mebibyte."""
PAGE_CSS = """
h2 { font-size: 1.05em; margin: 0.6em 0 0.2em; }
.bad { color: var(--bad, #d9534f); } .good { color: var(--good, #1b6e3c); }
.scroll { overflow: auto; max-height: 320px; }
details { margin: 0.4em 0; } summary { cursor: pointer; font-weight: 600; }
table { font-size: 13px; border-collapse: collapse; } td, th { padding: 1px 8px 1px 2px; }
th { color: var(--soft); text-align: left; font-weight: normal; }
ul { margin: 0.2em 0; padding-left: 1.2em; }
"""


def html_pane(text: str = "", **named: Any) -> pn.pane.HTML:
    """Return a pane for HTML in the Inspector's style."""
    return pn.pane.HTML(text, sizing_mode="stretch_width", stylesheets=[PAGE_CSS, EXAMPLE_CSS], **named)


class LogChooser(View):
    """Which log is looked at: one of those that are known, or a path. It looks for logs below the data root."""

    def __init__(self, workspace: Workspace, opened: Callable[[], None], changed: Callable[[], None]) -> None:
        """`opened` is called when a log is chosen; `changed`, from any thread, when `refresh` has something to show."""
        super().__init__()
        self._workspace = workspace
        self.looking = Looking(workspace.looks, changed)
        self.path = TextInput(
            label=f"log: a path below {workspace.root.path}, a URL, or {SCRATCH}",
            placeholder="folder, objects:FOLDER or s3://BUCKET/FOLDER",
            width=330,
        )
        self.known = Select(label="known logs", width=260)
        self.open = Button(label="Open", color="primary", width=90)
        self.offer([])
        self._layout = pn.FlexBox(self.known, self.path, self.open, align_items="end")
        self.open.on_click(lambda _: opened())
        self.path.param.watch(lambda _: opened(), "enter_pressed")

        def chosen(change: Any) -> None:
            if change.new:
                self.path.value = change.new
                opened()

        self.known.param.watch(chosen, "value")
        self.looking.request("looking for logs", self._find_logs)
        if workspace.logs:
            self.path.value = workspace.root.show(workspace.logs[0])

    def _find_logs(self, _: Job) -> Apply:
        found = logs_below(self._workspace.root.path)
        return lambda: self.offer(found)

    def refresh(self) -> None:
        """Offer the logs that were found."""
        self.looking.take()

    def offer(self, below: list[LogPath]) -> None:
        """Offer the logs that the server was started with, the session's own, and these."""
        root = self._workspace.root
        names = [root.show(path) for path in self._workspace.logs]
        names += [name for path in below if (name := root.show(path)) not in names]
        self.known.options = {
            "choose one": "",
            **{n: n for n in names},
            "this session's scratch log": SCRATCH,
        }

    @property
    def text(self) -> str:
        """The requested log, as it was typed."""
        return (self.path.value or "").strip()

    def resolve(self) -> LogPath:
        """Return the requested log. OptionsError if it may not be read, or does not exist."""
        text = self.text
        if not text:
            refuse("path", text, f"choose a known log, or type its path or URL, or {SCRATCH}")
        if text == SCRATCH:
            path = Path(self._workspace.session.path)
            if not path.exists():
                refuse("path", text, "not made yet: press Start on the Live page first")
            return path
        return self._workspace.root.log(text)


class FrameFace(View):
    """One frame: its checks, its records, its bytes, its named fields."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: FrameView | None = None
        self.text = html_pane(CHOOSE_A_FRAME)
        self.figure = figure_pane()
        self.fields = html_pane()
        self._layout = column(self.text, self.figure, self.fields)

    def update(self, view: FrameView | None) -> None:
        """Show a frame, unless it is the one that is shown; None clears the face."""
        if view is self._shown:
            return
        self._shown = view
        if view is None:
            self.text.object, self.fields.object = CHOOSE_A_FRAME, ""
            self.figure.visible = False
            return
        title = f"<h2>Frame at position {view.position:,} in segment {view.line.number}</h2>"
        tone = {True: "good", False: "bad", None: ""}[view.intact]
        self.text.object = f"{title}<p class='{tone}'>{sentence_html(view.verdict)}</p>{records_html(view)}"
        drawn = len(view.data) >= FRAME_HEADER_BYTES
        if drawn:
            # At once: a figure that is drawn while it is hidden would be drawn a second time meanwhile.
            self.figure.param.update(object=frame_bytes(view.data, bytes_max=512), visible=True)
        else:
            self.figure.visible = False
        self.fields.object = fields_html(view)


def is_on(page: FramePage, position: int) -> bool:
    """Return whether a frame of this position is on the page."""
    return any(item.position == position for item in page.items)


def wanted_of(by: str, text: str) -> int | bytes | datetime:
    """Return the value to search for. ValueError or OverflowError for invalid text."""
    if by == "key":
        return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    if by == "time":
        when = datetime.fromisoformat(text)
        return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    plain = text.replace(",", "").replace("_", "")
    if not (plain.isascii() and plain.isdigit()) or len(plain) > 19:
        raise ValueError(HINTS[by])
    return int(plain)
