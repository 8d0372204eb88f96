"""The dashboard's frame: a header with facts, a rail of pages, one page at a time, and its state in the URL.

The rail, the header and the theme are plain HTML of a template of our own, which shows before Panel has connected; a
page is built when it is first chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from walkit.views.base import pn

if TYPE_CHECKING:
    from bokeh.document import Document

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import parse_qsl, urlencode

from walkit._internal.html import Markup, tag
from walkit.measure import file_system
from walkit.plots.display import narrow_js
from walkit.views.base import View, code_html, html_pane
from walkit.views.workspace import Workspace

PERIOD_MIN_S = 0.25
PERIOD_MAX_S = 2.0
REST = 1.5
"""Time between two pictures, as a multiple of the time that the browser needs for one: clicks come between them."""


class Drawn(Protocol):
    """A source of pictures."""

    def refresh(self) -> bool:
        """Show what is new."""

    def take_in(self) -> None:
        """Keep what is new until the next picture."""


class Pace:
    """Refreshes what is `shown` each time that its browser is ready for more. Used by the thread of its session.

    A picture is all that one refresh sends. The browser writes the number of the newest picture back when it has drawn
    it, and a hidden window draws nothing. Until then nothing is sent: new data waits for the next picture.
    """

    def __init__(self, shown: Drawn, document: Document, clock: Callable[[], float] = monotonic) -> None:
        self._shown, self._document, self._clock = shown, document, clock
        self.picture = pn.widgets.TextInput(value="0", visible=False)
        """Number of the newest picture."""
        self.drawn = pn.widgets.TextInput(value="0", visible=False)
        """Number of the picture that the browser has drawn."""
        self._changed, self._number = False, 0
        self._sent_s = self._next_s = clock()
        self.drawn.param.watch(lambda _: self._acknowledged(), "value")
        document.on_change(self._on_change)

    def _on_change(self, event: Any) -> None:
        # A change with a setter comes from the browser.
        self._changed = self._changed or getattr(event, "setter", None) is None

    @property
    def waiting(self) -> bool:
        """Whether the browser has not drawn the newest picture yet."""
        return bool(self.picture.value != self.drawn.value)

    def _acknowledged(self) -> None:
        if not self.waiting:
            period_s = REST * (self._clock() - self._sent_s)
            self._next_s = self._sent_s + min(max(period_s, PERIOD_MIN_S), PERIOD_MAX_S)
            self.refresh()

    def refresh(self) -> bool:
        """Send a picture if the browser is ready for one; keep what is new otherwise."""
        now_s = self._clock()
        if self.waiting or now_s < self._next_s:
            self._shown.take_in()
            return True
        self._document.hold("combine")  # one message
        try:
            self._shown.refresh()
        finally:
            self._document.unhold()
        if self._changed:
            self._sent_s = now_s
            self._number += 1
            self.picture.value = str(self._number)
            self._changed = False  # the number itself does not count
        return True


class Page(Protocol):
    """One page of the dashboard. Used by one thread; `refresh` and the others never wait."""

    def __panel__(self) -> pn.viewable.Viewable:
        """Return the shown parts."""

    def refresh(self, shown: bool = True) -> None:
        """Show what is new. Called twice a second; of a page that is not shown only to take in what would be lost."""

    def code(self) -> str:
        """Return Python that does the work of the page as it is set."""

    def state(self) -> dict[str, str]:
        """Return the page's state for the URL, besides its name."""

    def restore(self, state: Mapping[str, str]) -> None:
        """Restore the state of a URL. Invalid text is ignored, or shown as a problem; it never raises."""


@dataclass(frozen=True)
class PageKind:
    """A page of the rail, and how to build it."""

    slug: str
    """Its name in the URL."""
    title: str
    build: Callable[[Workspace, Callable[[str, Mapping[str, str]], None]], Page]
    """Called with the workspace and `go(slug, state)`, which turns to another page."""


class Shell(View):
    """Shows one page at a time of those it is given. Used by one thread."""

    def __init__(self, workspace: Workspace, kinds: Sequence[PageKind], first: str | None = None) -> None:
        """`first`: name of the page that a URL without one means; the first of them unless it is given."""
        super().__init__()
        self.workspace = workspace
        self.kinds = {kind.slug: kind for kind in kinds}
        self.home = kinds[0].slug if first is None else first
        """Name of the page that a URL without one means."""
        self.slug = self.home
        """Name in the URL of the page that is shown."""
        self.wanted = pn.widgets.TextInput(visible=False)
        """The browser's request: the query of a URL, and a number that makes each request differ."""
        self.query = pn.widgets.TextInput(visible=False)
        """The state to show in the browser's URL."""
        self.facts = pn.pane.HTML("", sizing_mode="stretch_width")
        self.heading = pn.pane.HTML("", sizing_mode="stretch_width", margin=0, stylesheets=[HEADING_CSS])
        self.column = pn.Column(sizing_mode="stretch_width", margin=0)
        self.code = html_pane()
        """The code for the shown page, at its end."""
        self._pages: dict[str, Page] = {}
        self._shown = ""
        self.wanted.param.watch(lambda change: self.read_url(change.new.partition(" ")[0]), "value")
        self._show()

    @property
    def page(self) -> Page:
        """The page that is shown."""
        return self._pages[self.slug]

    def __panel__(self) -> pn.viewable.Viewable:
        """Return all of it for a notebook's cell, which has no template."""
        rail = pn.widgets.RadioButtonGroup(
            options={kind.title: slug for slug, kind in self.kinds.items()}, value=self.slug
        )
        rail.param.watch(lambda change: self.go(change.new), "value")
        return pn.Column(rail, self.facts, self.column, sizing_mode="stretch_width")

    def go(self, slug: str, state: Mapping[str, str] | None = None) -> None:
        """Show a page, built at its first visit, and restore the state of the URL in it."""
        if slug not in self.kinds:
            return
        self.slug = slug
        with pn.io.hold():  # one message: heading, page and address change together
            self._show()
            if state:
                self.page.restore(state)
            self.refresh()

    def _show(self) -> None:
        if self.slug not in self._pages:
            self._pages[self.slug] = self.kinds[self.slug].build(self.workspace, self.go)
        if self._shown != self.slug:
            self._shown = self.slug
            self.workspace.session.jobs.problem = None  # of another page
            self.heading.object = tag("h1", self.kinds[self.slug].title)
            self.column[:] = [self.heading, self._pages[self.slug], self.code]

    def read_url(self, query: str) -> None:
        """Show the page of a URL's query ("?page=..."), or the first one."""
        state = dict(parse_qsl(query.removeprefix("?")))
        self.go(state.pop("page", self.home), state)

    def refresh(self) -> bool:
        """Show new data on the shown page, and in the header."""
        for slug, page in self._pages.items():
            page.refresh(slug == self.slug)
        self.facts.object = facts_html(self.workspace)
        self.code.object = code_html(self.page.code())
        query = "?" + urlencode({"page": self.slug, **self.page.state()})
        self.query.value = query
        return True

    def take_in(self) -> None:
        """Keep what is new on each page, and show nothing of it."""
        for page in self._pages.values():
            page.refresh(False)

    def close(self) -> None:
        """End the session: its writers are killed, its logs are removed. Closing twice does nothing."""
        self.workspace.close()


def facts_html(workspace: Workspace) -> str:
    """Return the facts of the header: log, state, job, disk, file system, durability."""
    session = workspace.session
    place = file_system(session.folder)
    job = session.jobs.current
    doing = str(job) if job is not None else session.activity
    spinner = tag("span", "", class_="spinner", aria_hidden="true") if session.moving else ""
    shown = [
        ("log", session.log_name),
        ("durability", session.durability),
        ("file system", "unknown" if place is None else f"{place.type} on {place.mount_point}"),
    ]
    facts = [
        tag("span", tag("span", name, class_="label"), f" {value}", class_="fact")
        for name, value in shown
        if value
    ]
    state = tag("span", spinner, doing, role="status", class_="fact")
    return tag("style", Markup(FACTS_CSS)) + tag("div", state, *facts, class_="row")


HEADING_CSS = "h1 { font-size: 19px; line-height: 1.45; margin: 0 0 0.3em; }"
FACTS_CSS = """
.row { display: flex; flex-wrap: wrap; gap: 0.1em 1.4em; align-items: center; font-size: 13px; }
.label { color: var(--soft); }
.spinner { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.5em; border-radius: 50%;
  border: 2px solid var(--line); border-top-color: var(--accent);
  animation: turn 0.9s linear infinite; vertical-align: -0.1em; }
@keyframes turn { to { transform: rotate(360deg); } }
@media (prefers-reduced-motion: reduce) { .spinner { animation: none; } }
"""


def template_of(shell: Shell, pace: Pace) -> pn.Template:
    """Return the shell as a page of its own, for a served session that is refreshed at this pace."""
    here = files("walkit.views")
    first = shell.kinds[shell.slug]
    made = pn.Template(
        here.joinpath("shell.html").read_text(encoding="utf-8"),
        items={
            "facts": shell.facts,
            "page": shell.column,
            "wanted": shell.wanted,
            "query": shell.query,
            "picture": pace.picture,
            "drawn": pace.drawn,
        },
    )
    for name, value in {
        "shell_css": here.joinpath("shell.css").read_text(encoding="utf-8"),
        "shell_js": here.joinpath("shell.js")
        .read_text(encoding="utf-8")
        .replace("WALKIT_NARROW", narrow_js()),
        "pages": [{"slug": kind.slug, "title": kind.title} for kind in shell.kinds.values()],
        "home_page": shell.home,
        "first_page": first.slug,
    }.items():
        made.add_variable(name, value)
    return made
