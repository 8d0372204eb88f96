"""The Inspector page: any log below the data root, looked at down to its bytes. It opens nothing for writing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from time import monotonic

from walkit._internal.html import Markup, join
from walkit._internal.text import bounds
from walkit.errors import OptionsError
from walkit.format.frame import FrameHeader
from walkit.objects.verify import verify
from walkit.plots import segments
from walkit.recovery.scan_report import ScanReport
from walkit.views.background_jobs import Apply, Job, Looking
from walkit.views.base import (
    Button,
    JobBar,
    PagedTable,
    PickTable,
    Select,
    TextInput,
    View,
    column,
    figure_pane,
    numbers_html,
    pn,
    sentence_html,
    soon,
)
from walkit.views.frame_pages import (
    FramePage,
    FrameView,
    KeySearch,
    find_key,
    find_lsn,
    find_time,
    frame_around,
    page_before,
    page_from,
)
from walkit.views.inspector_parts import (
    FIND_BY,
    FRAME_HEAD,
    HINTS,
    HIT_HEAD,
    MIB,
    NOTHING_YET,
    RANGE_HEAD,
    SEGMENT_HEAD,
    SEGMENTS_DRAWN_MAX,
    FrameFace,
    LogChooser,
    frame_rows,
    hit_rows,
    html_pane,
    is_on,
    map_html,
    numbers_of,
    page_words,
    range_rows,
    report_html,
    search_words,
    segment_row,
    wanted_of,
)
from walkit.views.log_outline import Outline, outline_of
from walkit.views.workspace import LogPath, Workspace

ABOUT = "Here are the segments, frames and bytes of a log, and its damage."
LOOK_S = 1.0
"""Least time between two looks at the shown log."""
RESTS = 50
"""The time between two looks is at least this multiple of a look's time."""


class InspectorPage(View):
    """Segments, frames and bytes of a log; damage, and records found by LSN, key or time. Changes no byte."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.session = workspace.session
        self.looking = Looking(workspace.looks, soon(self.refresh))
        self.watching = Looking(workspace.looks, soon(self.refresh))
        """Looks at the shown log again, while nothing else is read."""
        self._next_s = 0.0
        self._frame_is_chosen = False
        self.outline: Outline | None = None
        self.page: FramePage | None = None
        self.frame: FrameView | None = None
        self.search: KeySearch | None = None
        self.report: ScanReport | None = None
        self._path: LogPath | None = None
        self.verifying = Looking(self.session.jobs)
        self.chooser = LogChooser(workspace, self.open, soon(self.refresh))
        self.example = html_pane(NOTHING_YET)
        self.status, self.numbers, self.frame_words, self.found_words, self.verdict = (
            html_pane() for _ in range(5)
        )
        self.bar = JobBar(self._cancel)
        segment_table = PickTable(
            "segments of the log", SEGMENT_HEAD, self._pick_segment, right=(0, 2, 3, 4, 5, 6, 7)
        )
        self.segments = PagedTable(segment_table, "segments")
        self.frames = PickTable("frames of the segment", FRAME_HEAD, self._pick_frame, right=(0, 1, 2, 3, 6))
        self.hits = PickTable("records found", HIT_HEAD, self._pick_frame, right=(0, 3, 4, 5))
        self.ranges = PagedTable(
            PickTable("ranges that are not in order", RANGE_HEAD, self._pick_frame, right=(0, 1, 2, 4)),
            "ranges",
        )
        self.face = FrameFace()
        self.strip = figure_pane()
        self._build_controls()
        self._layout = self._arranged()
        if workspace.logs:
            self.open()

    def _build_controls(self) -> None:
        self.first, self.back = (
            Button(label="First frames", width=120),
            Button(label="Previous frames", width=140),
        )
        self.on, self.last = (
            Button(label="Next frames", width=120),
            Button(label="Last frames", width=120),
        )
        self.find_by = Select(label="find by", options=FIND_BY, width=110)
        self.wanted = TextInput(label="what", placeholder=HINTS["lsn"], width=300)
        self.find, self.find_on = (
            Button(label="Find", width=90),
            Button(label="Search on", width=110, visible=False),
        )
        self.check = Button(label="Verify everything", width=160)
        self.find_by.param.watch(
            lambda change: setattr(self.wanted, "placeholder", HINTS[change.new]), "value"
        )
        self.first.on_click(lambda _: self._turn("first"))
        self.back.on_click(lambda _: self._turn("back"))
        self.on.on_click(lambda _: self._turn("on"))
        self.last.on_click(lambda _: self._turn("last"))
        self.find.on_click(lambda _: self._find())
        self.find_on.on_click(lambda _: self._find_on())
        self.check.on_click(lambda _: self._verify())
        self.wanted.param.watch(lambda _: self._find(), "enter_pressed")

    def _arranged(self) -> pn.Column:
        # The table of frames has more columns than a frame has bytes in a row.
        wider, narrower = ({"flex": f"{share} 1 420px", "min-width": "min(420px, 100%)"} for share in (5, 3))
        self.pager = pn.FlexBox(self.first, self.back, self.on, self.last)
        self.tools = pn.FlexBox(self.find_by, self.wanted, self.find, self.check, align_items="end")
        left = column(self.segments, self.frame_words, self.frames, self.pager, styles=wider)
        right = column(self.face, styles=narrower)
        self.body = column(
            self.numbers,
            self.tools,
            self.found_words,
            self.hits,
            self.find_on,
            self.verdict,
            self.strip,
            self.ranges,
            pn.FlexBox(left, right, sizing_mode="stretch_width", align_items="start"),
            visible=False,
        )
        return column(self.chooser, self.status, self.bar, self.example, self.body)

    # -- requests

    def open(self, position: int | None = None) -> None:
        """Look at the log that is chosen, and at the frame around a position."""
        self.verifying.problem = None
        try:
            self._path = self.chooser.resolve()
        except (OptionsError, OSError) as error:
            self._path = None
            self._forget()
            self.verifying.problem = f"{error}."
            self.refresh()
            return
        self._forget()
        self._request("reading the log", partial(self._read_at, position))

    def _forget(self) -> None:
        self.outline = self.page = self.frame = self.search = self.report = None
        self.looking.cancel()
        self._show_all()

    def _request(self, title: str, read: Callable[[Outline, Job], Apply]) -> None:
        """Read with an outline of the log: of a live one, or a first time, a new one."""
        path, known = self._path, self.outline
        if path is None:
            return
        self.verifying.problem = None

        def work(job: Job) -> Apply:
            outline = outline_of(path) if known is None or known.state == "live" else known
            apply = read(outline, job)

            def show() -> None:
                self.outline = outline
                apply()
                self._show_all()

            return show

        self.looking.request(title, work)
        self.refresh()

    def _read_at(self, position: int | None, outline: Outline, job: Job) -> Apply:
        if position is None:
            return self._read_newest(outline, job)
        try:
            view = frame_around(outline, position, job)
        except OptionsError as error:
            said = f"{error}."
            return lambda: setattr(self.verifying, "problem", said)
        page = self.page
        if page is None or page.line.number != view.line.number or not is_on(page, view.position):
            page = page_from(outline, view.line, view.position, job)
        return lambda: self._take(page, view)

    def _read_newest(self, outline: Outline, job: Job) -> Apply:
        """Read the last frames of the log, and the newest of them with its records."""
        used = [line for line in outline.segments if line.end_position > line.start_position]
        page = view = None
        if used and outline.problem is None:
            page = page_before(outline, used[-1], used[-1].end_position, job)
            found = [item for item in page.items if isinstance(item, FrameHeader) and item.records]
            view = frame_around(outline, found[-1].position, job) if found else None
        return lambda: self._take(page, view, chosen=False)

    def _take(self, page: FramePage | None, view: FrameView | None, *, chosen: bool = True) -> None:
        self.page, self.frame, self._frame_is_chosen = page, view, chosen and view is not None

    def _watch(self) -> None:
        """Look again at the log, which another process may write, and show its newest frame unless one is chosen."""
        path, known = self._path, self.outline
        if path is None or known is None or known.problem or monotonic() < self._next_s:
            return
        follows = not self._frame_is_chosen and self.search is None

        def work(job: Job) -> Apply:
            began_s = monotonic()
            outline = outline_of(path)
            grown = (outline.last_lsn, outline.state) != (known.last_lsn, known.state)
            apply = self._read_newest(outline, job) if grown and follows else lambda: None
            took_s = monotonic() - began_s

            def show() -> None:
                self._next_s = monotonic() + max(LOOK_S, RESTS * took_s)
                if grown and self.outline is known:
                    self.outline = outline
                    apply()
                    self._show_all()

            return show

        self._next_s = monotonic() + LOOK_S
        self.watching.request("looking again", work)

    def _pick_segment(self, row_id: str, _: bool) -> None:
        number = int(row_id)

        def read(outline: Outline, job: Job) -> Apply:
            page = page_from(outline, outline.segment(number), 0, job)
            return lambda: self._take(page, None)

        self._request("reading frames", read)

    def _pick_frame(self, row_id: str, _: bool = True) -> None:
        self._request("reading a frame", partial(self._read_at, int(row_id.partition("/")[0])))

    def _turn(self, way: str) -> None:
        page = self.page
        if page is None:
            return

        def read(outline: Outline, job: Job) -> Apply:
            line = outline.segment(page.line.number)
            if way == "back":
                found = page_before(outline, line, page.first_position, job)
            elif way == "last":
                found = page_before(outline, line, line.end_position, job)
            else:
                found = page_from(outline, line, (page.next_position or 0) if way == "on" else 0, job)
            return lambda: self._take(found, self.frame)

        self._request("reading frames", read)

    def _find(self) -> None:
        by, text = self.find_by.value, (self.wanted.value or "").strip()
        try:
            wanted = wanted_of(by, text)
        except (ValueError, OverflowError) as error:
            self.verifying.problem = f"{text[:80]!r} is not a valid {by}: {str(error) or HINTS[by]}."
            self.refresh()
            return
        self.search = None
        if isinstance(wanted, bytes):
            self._search(wanted, 1)
        elif by == "position" and isinstance(wanted, int):
            self._request("reading a frame", partial(self._read_at, wanted))
        else:

            def read(outline: Outline, job: Job) -> Apply:
                at = (
                    find_time(outline, wanted, job)
                    if isinstance(wanted, datetime)
                    else find_lsn(outline, wanted, job)
                )
                return self._read_at(at, outline, job)

            self._request(f"finding the {by}", read)

    def _find_on(self) -> None:
        if self.search is not None and self.search.next_lsn is not None:
            self._search(self.search.key, self.search.next_lsn)

    def _search(self, key: bytes, from_lsn: int) -> None:
        def read(outline: Outline, job: Job) -> Apply:
            found = find_key(outline, key, max(from_lsn, outline.first_lsn), job)
            return lambda: setattr(self, "search", found)

        self._request("searching for the key", read)

    def _verify(self) -> None:
        path = self._path
        if path is None:
            return

        def work(job: Job) -> Apply:
            report = verify(path, progress=lambda done, total: job.step(done >> MIB, total >> MIB, "MiB"))
            return lambda: self._take_report(path, report)

        self.verifying.request("verifying the log", work)
        self.refresh()

    def _take_report(self, path: LogPath, report: ScanReport) -> None:
        if path == self._path:
            self.report = report
            self._show_report()

    def _cancel(self) -> None:
        self.looking.cancel()
        self.verifying.cancel()

    # -- views

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""
        self.chooser.refresh()
        self.looking.take()
        self.watching.take()
        self.verifying.take()
        if not shown:
            return
        words = self.looking.words or (
            "" if self.outline is None else f"The log {self.outline.location}, read only{self._lsns()}."
        )
        if not self.looking.busy and not self.watching.busy:
            self._watch()
        refused = None if self.outline is None else self.outline.problem
        problem = self.verifying.problem or self.looking.problem or self.watching.problem or refused
        self.example.visible = self.outline is None and not self.looking.words
        self.status.object = sentence_html(words or ABOUT, problem=problem)
        self.bar.update(self.verifying.job or self.looking.job)
        if self.body.visible:  # the browser has no button yet while it is hidden, and fails to change it
            self.check.disabled = self.session.busy or self._path is None

    def _lsns(self) -> str:
        outline = self.outline
        if outline is None or outline.last_lsn is None:
            return ""
        return f": LSN {bounds(outline.first_lsn, outline.last_lsn)}"

    def _show_all(self) -> None:
        """Show the log, its segments, the page of frames, the frame and the search results."""
        outline, page = self.outline, self.page
        self.body.visible = outline is not None
        self.numbers.object = (
            "" if outline is None else join([map_html(outline), Markup(numbers_html(numbers_of(outline)))])
        )
        chosen = None if page is None else page.line.number
        lines = () if outline is None else outline.segments
        self.segments.update([segment_row(line, line.number == chosen) for line in lines])
        at = None if self.frame is None else self.frame.position
        self.frames.update([] if page is None else frame_rows(page, at))
        self.frame_words.object = "" if page is None else f"<h2>Frames</h2>{sentence_html(page_words(page))}"
        self.pager.visible = page is not None
        if page is not None:
            self.first.disabled = self.back.disabled = page.first_position <= page.line.start_position
            self.on.disabled = self.last.disabled = page.next_position is None
        self.face.update(self.frame)
        search = self.search
        self.hits.update([] if search is None else hit_rows(search))
        self.found_words.object = "" if search is None else sentence_html(search_words(search))
        self.find_on.visible = search is not None and search.next_lsn is not None
        if self.report is None:
            self._show_report()

    def _show_report(self) -> None:
        report = self.report
        self.verdict.object = "" if report is None else f"<h2>Verified</h2>{report_html(report)}"
        self.ranges.update([] if report is None else range_rows(report))
        drawn = report is not None and 0 < len(report.segments) <= SEGMENTS_DRAWN_MAX
        if report is not None and drawn:
            self.strip.param.update(object=segments(report), visible=True)
        else:
            self.strip.visible = False

    def code(self) -> str:
        """Return Python that reads the log and verifies it."""
        name = self.chooser.text or "orders"
        return f"""import walkit
from walkit import plots

report = walkit.verify({name!r})
plots.segments(report)
with walkit.open({name!r}, mode="r") as log:
    newest = list(log.read(max(log.first_lsn, log.last_lsn - 20)))"""

    def state(self) -> dict[str, str]:
        """Return which log is looked at, and which frame."""
        text = self.chooser.text
        at = {"position": str(self.frame.position)} if self.frame and self._frame_is_chosen else {}
        return ({"log": text} if self._path is not None else {}) | at

    def restore(self, state: Mapping[str, str]) -> None:
        """Open the log and the frame of a URL."""
        position = state.get("position", "")
        at = int(position) if position.isascii() and position.isdigit() and len(position) < 20 else None
        if "log" in state:
            self.chooser.path.value = state["log"]
            self.open(at)
        elif at is not None:
            self._pick_frame(str(at))
