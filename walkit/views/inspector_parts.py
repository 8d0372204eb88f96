"""The parts of the Inspector page: the chooser of a log, the view of one frame, and the search."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from walkit._internal.arguments import refuse
from walkit._internal.html import BLUE, GREEN, YELLOW
from walkit.format.layout import FRAME_HEADER_BYTES
from walkit.plots import frame_bytes
from walkit.plots.style import CLEAR
from walkit.views.frame_pages import FramePage, FrameView
from walkit.views.inspector_rows import fields_html, logs_below, records_html
from walkit.views.jobs import Apply, Job, Looking
from walkit.views.parts import (
    EXAMPLE_CSS,
    Button,
    Select,
    TextInput,
    View,
    example_html,
    figure_pane,
    pn,
    sentence_html,
)
from walkit.views.workspace import LogPath, Workspace

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
    "An example: the segments of a log, and the frames of one.",
    {
        "segments": [(4, BLUE), (4, BLUE), (2, YELLOW)],
        "frames": [(1, GREEN), (2, GREEN), (1, GREEN), (3, GREEN), (1, YELLOW), (2, CLEAR)],
    },
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
        self.looking.ask("looking for logs", self._look_for_logs)
        if workspace.logs:
            self.path.value = workspace.root.show(workspace.logs[0])

    def _look_for_logs(self, _: Job) -> Apply:
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
        self._layout = pn.Column(self.text, self.figure, self.fields, sizing_mode="stretch_width", margin=0)

    def tell(self, view: FrameView | None) -> None:
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
