"""Parts of every view: Panel, set up to work without a network, the clock that refreshes a view, and tables."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from walkit._internal.html import Markup, tag
from walkit.errors import MissingExtraError
from walkit.plots.style import CLEAR, colour
from walkit.views.background_jobs import Job, sentence

try:
    # Plotly takes a pandas that another thread has half loaded for a whole one: a thread that draws would fail.
    import pandas as pd  # noqa: F401
    import panel as pn
    import param
    from panel.custom import JSComponent
    from panel.io.resources import LOCAL_DIST
    from tornado.websocket import WebSocketClosedError
except ImportError as error:
    raise MissingExtraError(extra="dashboard", package="panel") from error

if TYPE_CHECKING:
    from bokeh.document import Document

__all__ = ["pn"]  # the modules of this room take Panel from here

REFRESH_MS = 500
"""Time between two refreshes of a view in a notebook."""
SERVED_MS = 250
"""Time between two refreshes of a served page."""
TABLE_CSS = """
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 0.8em; }
td, th { padding: 1px 14px 1px 2px; }
"""
"""Columns of a table have room between them, and the next element is clear of it."""
EXAMPLE_CSS = """
.example { margin: 0.6em 0; max-width: 46em; }
.example div { display: flex; align-items: center; margin: 3px 0; }
.example span { flex: 0 0 8.5em; color: var(--soft, inherit); }
.example i { height: 18px; opacity: 0.5; }
"""
NUMBER_DIGITS_MAX = 18
"""Digits of a number in a URL."""
RED = "var(--bad, #d9534f)"
"""The colour of problems; on a page of the dashboard that of its theme."""
logger = logging.getLogger("walkit")


class Refreshing(Protocol):
    """A view that `tick` refreshes."""

    def refresh(self) -> bool:
        """Show the new data; False if nothing more will come."""


class View(pn.viewable.Viewer):
    """A part of a page: its `_layout` is shown, in a cell and in a served session alike.

    A refresh may set everything again: setting an unchanged value sends nothing to the browser.
    """

    _layout: Any

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __panel__(self) -> pn.viewable.Viewable:
        """Return the shown parts."""
        layout: pn.viewable.Viewable = self._layout
        return layout


FOCUS_CSS = """
:is(a, button, input, select):focus-visible {
  outline: 2px solid var(--accent, Highlight) !important; outline-offset: 1px;
}
"""
"""The focus is visible in either theme: Panel's own outline is thin and grey, and plotly's buttons have none."""


class Select(pn.widgets.Select):
    """A Select whose arrow has the colour of its text: Panel's own is black, in the dark theme too."""

    _stylesheets = [
        *pn.widgets.Select._stylesheets,
        FOCUS_CSS,
        """
select:not([multiple]).bk-input, select:not([size]).bk-input {
  background-image: linear-gradient(45deg, transparent 50%, currentColor 50%),
    linear-gradient(135deg, currentColor 50%, transparent 50%);
  background-position: right calc(0.6em + 4px) center, right 0.6em center;
  background-size: 4.5px 5px; background-repeat: no-repeat;
}
""",
    ]


class IntInput(pn.widgets.IntInput):
    """An IntInput whose arrows have the colour of its text."""

    _stylesheets = [
        *pn.widgets.IntInput._stylesheets,
        FOCUS_CSS,
        """
.bk-spin-wrapper > .bk-spin-btn.bk-spin-btn-up::before { border-bottom-color: var(--ink, currentColor) !important; }
.bk-spin-wrapper > .bk-spin-btn.bk-spin-btn-down::before { border-top-color: var(--ink, currentColor) !important; }
""",
    ]


class Button(pn.widgets.Button):
    """A Button whose words are read on either theme, with a colour too."""

    _stylesheets = [
        *pn.widgets.Button._stylesheets,
        FOCUS_CSS,
        """
:host(.solid) .bk-btn.bk-btn-primary { background-color: var(--accent, #0b5cad); color: var(--on-accent, #ffffff); }
:host(.solid) .bk-btn.bk-btn-danger { background-color: var(--bad, #b3261e); color: var(--on-accent, #ffffff); }
:host(.solid) .bk-btn.bk-btn[disabled] { background-color: var(--raised, #8883); color: var(--soft, inherit); }
""",
    ]


class TextInput(pn.widgets.TextInput):
    """A TextInput of which one sees that it has the focus."""

    _stylesheets = [*pn.widgets.TextInput._stylesheets, FOCUS_CSS]


class Form(View):
    """A part of a page with widgets whose values are in the URL, by the names in `named`."""

    named: Mapping[str, Any]

    def request(self, action: Callable[[], object]) -> None:
        """Do what a person asks for, and show its effect."""
        action()
        self.refresh()

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""

    def state(self) -> dict[str, str]:
        """Return the values as text, by their names."""
        return {name: _text_of(widget.value) for name, widget in self.named.items()}

    def restore(self, state: Mapping[str, str]) -> None:
        """Set the widgets from a URL, in their order; invalid values are ignored."""
        for name, widget in self.named.items():
            value = _value_of(widget, state[name]) if name in state else None
            if value is not None:
                widget.value = value


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _value_of(widget: Any, text: str) -> Any:
    """Return the value of a widget that a text means; None if it means none."""
    if isinstance(widget, pn.widgets.Checkbox):
        return {"yes": True, "no": False}.get(text)
    if isinstance(widget, pn.widgets.IntInput):
        is_number = text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
        return int(text) if is_number and (widget.start or 0) <= int(text) <= (widget.end or 0) else None
    options = widget.options.values() if isinstance(widget.options, dict) else widget.options
    return next((each for each in options if str(each) == text), None)


def tool_bar(*parts: pn.viewable.Viewable) -> pn.viewable.Viewable:
    """Return widgets in a row, which wraps on a narrow page."""
    return pn.FlexBox(
        *parts, align_items="end", gap="4px 0", margin=(0, 0, 4, 0), sizing_mode="stretch_width"
    )


def column(*parts: pn.viewable.Viewable | View, **options: Any) -> pn.Column:
    """Return parts one below the other, as wide as the page."""
    return pn.Column(*parts, sizing_mode="stretch_width", **options)


FIGURE_CSS = """
.js-plotly-plot .main-svg text:not(.heatmap-label text) { fill: var(--ink, #808080) !important; }
.js-plotly-plot .gridlayer path { stroke: var(--grid, #80808055) !important; }
.js-plotly-plot .legend .bg { fill: transparent !important; }
.heatmap-label text[style*="rgb(68, 68, 68)"] { fill: #000000 !important; }
"""
"""Text and grid of a figure take the page's colours, light or dark. plotly writes on light cells in too pale a grey."""


def figure_pane(figure: Any = None, **options: Any) -> pn.pane.Plotly:
    """Return a pane for a figure; it is hidden until there is one."""
    return pn.pane.Plotly(
        figure,
        config={"displaylogo": False, "responsive": True, "showSendToCloud": False},
        sizing_mode="stretch_width",
        visible=figure is not None,
        margin=0,  # the figure is drawn as wide as the pane with its margin, and would reach out of it
        stylesheets=[FIGURE_CSS, FOCUS_CSS],
        **options,
    )


def html_pane(html: str = "") -> pn.pane.HTML:
    """Return a pane for HTML as wide as the page, whose tables can be read."""
    return pn.pane.HTML(html, sizing_mode="stretch_width", stylesheets=[TABLE_CSS, EXAMPLE_CSS])


def example_html(words: str, rows: Mapping[str, Sequence[int]]) -> Markup:
    """Return a pale example of the figure to come: by the name of each row its areas; negative ones are gaps."""
    lines = [
        tag("div", tag("span", name), *(_area(number, size) for number, size in enumerate(sizes)))
        for name, sizes in rows.items()
    ]
    return tag("figure", tag("figcaption", f"An example: {words}"), *lines, class_="example")


def _area(number: int, size: int) -> Markup:
    return tag("i", style=f"flex:{abs(size)} 1 0;background:{colour(number) if size > 0 else CLEAR}")


def code_html(code: str) -> Markup:
    """Return Python code, folded away."""
    shown = scrolled("pre", "the code for this", code)
    return tag("details", tag("summary", "The code for this"), shown)


def scrolled(name: str, label: str, content: object, class_: str | None = None, style: str = "") -> Markup:
    """Return an element that scrolls sideways by itself, also by the keyboard."""
    style = f"overflow-x:auto;max-width:100%;{style}"
    return tag(name, content, class_=class_, style=style, tabindex="0", role="region", aria_label=label)


class ReportView(View):
    """Shows the newest report that it is given: a text, a figure, and other parts below them. Used by one thread."""

    def __init__(self, nothing_yet: Markup, *more: pn.viewable.Viewable) -> None:
        super().__init__()
        self._shown: object = None
        self.text = html_pane(nothing_yet)
        self.figure = figure_pane()
        self._layout = column(self.text, self.figure, *more)

    def _is_new(self, report: object) -> bool:
        """Return whether there is a report, and another one than is shown; from now on this one is."""
        if report is None or report is self._shown:
            return False
        self._shown = report
        return True

    def _draw(self, drawing: Any) -> None:
        self.figure.object = drawing
        self.figure.visible = True


def ready() -> None:
    """Set Panel up for the place where this runs, a notebook or a served session. Anywhere else it changes nothing.

    `inline`: the browser's files come from here and from no CDN, so nothing is blank without a network.
    """
    pn.extension("plotly", inline=True)
    document = served_document()
    if document is not None:
        # Panel learns the place of its styles when it renders the page. If a browser returns to a session that the
        # server has dropped, the new one is made without a page, and would use the CDN.
        document.template_variables.setdefault("dist_url", f"{pn.state.rel_path or '.'}/{LOCAL_DIST}")
        for name in ("asyncio", "bokeh.server.protocol_handler"):
            logging.getLogger(name).addFilter(is_news)  # adding it again does nothing


def is_news(record: logging.LogRecord) -> bool:
    """Whether a record of the event loop or of Bokeh belongs in the server's log.

    A message to a window that closes meanwhile is not news, nor is one from it: Bokeh asserts that it has a session.
    """
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, AssertionError):
        return not isinstance(error, WebSocketClosedError)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (last.name, Path(last.filename).name) != ("session", "connection.py")


def served_document() -> Document | None:
    """Return the document of the session that is being served; None anywhere else."""
    document = pn.state.curdoc
    return document if document is not None and document.session_context is not None else None


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return hasattr(get_ipython(), "kernel")


def tick(view: Refreshing) -> None:
    """Refresh `view` from now on, as long as it is there and more may come.

    In a served session on its event loop; it ends with the session. In a notebook on a thread, because the kernel's
    event loop stands still while a cell runs, which is when there is something to see. Elsewhere nothing happens:
    the maker of the view calls `refresh`.
    """
    if served_document() is not None:
        pn.state.add_periodic_callback(lambda: _refresh(view), period=SERVED_MS)
    elif in_notebook():
        threading.Thread(
            target=_keep_refreshing, args=(weakref.ref(view),), name="walkit-view", daemon=True
        ).start()


def _refresh(view: Refreshing) -> None:
    view.refresh()


def _keep_refreshing(known: weakref.ref[Refreshing]) -> None:
    while (view := known()) is not None:
        try:
            if not view.refresh():
                return
        except Exception:  # this thread has no caller: it is logged, with its stack
            logger.exception("a view could not be refreshed, and stands still from now on")
            return
        del view
        time.sleep(REFRESH_MS / 1000)


def soon(refresh: Callable[[], None]) -> Callable[[], None]:
    """Return a function for any thread that calls `refresh` soon on the thread of the session that is being served.

    Elsewhere it does nothing: the maker of the view refreshes it.
    """
    document = served_document()

    def ask() -> None:
        if (
            document is not None
            and document.session_context is not None
            and not document.session_context.destroyed
        ):
            document.add_next_tick_callback(refresh)

    return ask


def sentence_html(text: str, *, warnings: Iterable[str] = (), problem: str | None = None) -> str:
    """Return a status sentence; warnings about the numbers, and the problem, are red."""
    red = [f"<b style='color:{RED}'>{escape(warning)}</b>" for warning in warnings]
    if problem:
        red.append(f"<b role='alert' style='color:{RED}'>{escape(problem)}</b>")
    return "<br>".join([f"<span>{escape(text)}</span>", *red])


def numbers_html(numbers: Iterable[tuple[str, str, str]]) -> str:
    """Return (name, value, meaning) as a row of large numbers; the meaning shows on hovering."""
    cells = [
        tag(
            "div",
            tag("div", name, style="font-size:0.8em;opacity:0.7"),
            tag("div", value, style="font-size:1.35em;font-variant-numeric:tabular-nums"),
            title=meaning,
            style="min-width:6.5em",
        )
        for name, value, meaning in numbers
    ]
    return tag("div", *cells, style="display:flex;flex-wrap:wrap;gap:0.4em 1.6em")


BAR_CSS = "progress { width: min(24em, 60%); accent-color: var(--accent); margin-right: 0.8em; }"


class JobBar(View):
    """Shows a job. Used by one thread."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        super().__init__()
        self.text = pn.pane.HTML("", sizing_mode="stretch_width", stylesheets=[BAR_CSS])
        self.cancel = Button(label="Cancel", width=90)
        self.cancel.on_click(lambda _: cancel())
        self._layout = pn.Row(self.text, self.cancel, visible=False, sizing_mode="stretch_width")

    def update(self, job: Job | None) -> None:
        """Show a job that is under way; None, or one that has ended, hides the bar."""
        under_way = job is not None and not job.ended
        if under_way and job is not None:
            known = {} if not job.total else {"value": min(job.done, job.total), "max": job.total}
            html = tag("progress", "", aria_label=job.title, **known) + tag(
                "span", sentence(job), role="status"
            )
            self.text.object = html
        self._layout.visible = under_way


ROWS_MAX = 100
"""Rows on one page of a PagedTable."""
Tone = Literal["", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its name in `on_pick`, its cells as text, and whether it is chosen."""

    id: str
    """Unique in the table; "" for a row that cannot be chosen."""
    cells: tuple[str, ...]
    label: str = ""
    """Name of the row's button for screen readers; if empty, the first cell."""
    on: bool = False
    tone: Tone = ""


class PickTable(JSComponent):
    """Shows rows, and calls `on_pick(id, on)` where a person chooses one. Used by one thread."""

    shown = param.Dict(default={}, doc="the drawn rows, as in JSON")
    _esm = files("walkit.views").joinpath("pick_table.js").read_text(encoding="utf-8")
    _stylesheets = [files("walkit.views").joinpath("pick_table.css").read_text(encoding="utf-8")]

    def __init__(
        self,
        label: str,
        head: Sequence[str],
        on_pick: Callable[[str, bool], None],
        *,
        right: Collection[int] = (),
        kind: Literal["button", "checkbox"] = "button",
    ) -> None:
        """`head` are the columns, `right` the numbers of those that are set to the right; `label` names the table."""
        self._fixed = {"label": label, "head": list(head), "right": sorted(right), "kind": kind}
        self._on_pick = on_pick
        super().__init__(  # type: ignore[no-untyped-call]
            shown={**self._fixed, "rows": []}, visible=False, sizing_mode="stretch_width"
        )

    def update(self, rows: Sequence[Row]) -> None:
        """Show these rows instead of the earlier ones; without one the table is hidden."""
        told = [
            {"id": r.id, "cells": list(r.cells), "label": r.label or r.cells[0], "on": r.on, "tone": r.tone}
            for r in rows
        ]
        if told != self.shown["rows"]:
            self.shown = {**self._fixed, "rows": told}
            self.visible = bool(told)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The shown rows, as in JSON."""
        found: list[dict[str, Any]] = self.shown["rows"]
        return found

    def pick(self, row_id: str, on: bool = True) -> None:
        """Choose a row, as a person does. A row that is no longer shown is ignored."""
        if row_id and any(row["id"] == row_id for row in self.rows):
            self._on_pick(row_id, on)

    def _handle_msg(self, msg: Any) -> None:
        if isinstance(msg, dict) and isinstance(msg.get("id"), str):
            self.pick(msg["id"], bool(msg.get("on")))


class PagedTable(View):
    """A PickTable of many rows, ROWS_MAX at a time, with buttons for the pages. Used by one thread."""

    def __init__(self, table: PickTable, what: str) -> None:
        super().__init__()
        self.table = table
        self._what, self._at = what, 0
        self._rows: Sequence[Row] = ()
        self.back = Button(label=f"Previous {what}", width=150)
        self.on = Button(label=f"Next {what}", width=150)
        self.words = pn.pane.HTML("", align="center")
        self.pager = pn.Row(self.back, self.on, self.words, visible=False)
        self.back.on_click(lambda _: self._turn(-ROWS_MAX))
        self.on.on_click(lambda _: self._turn(ROWS_MAX))
        self._layout = column(table, self.pager)

    def update(self, rows: Sequence[Row]) -> None:
        """Show these rows; a page that is beyond their end gives way to the last one."""
        self._rows = rows
        self._turn(0)

    def _turn(self, by: int) -> None:
        last = max(len(self._rows) - 1, 0) // ROWS_MAX * ROWS_MAX
        self._at = min(max(self._at + by, 0), last)
        end = self._at + ROWS_MAX
        self.table.update(self._rows[self._at : end])
        self.pager.visible = len(self._rows) > ROWS_MAX
        self.back.disabled, self.on.disabled = self._at == 0, self._at == last
        self.words.object = (
            f"{self._what} {self._at + 1:,} to {min(end, len(self._rows)):,} of {len(self._rows):,}"
        )
