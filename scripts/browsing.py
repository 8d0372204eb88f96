"""Serving the dashboard and looking at it with a headless browser: for its tests and for the screenshots.

The browser is the machine's own Chromium, driven by playwright; nothing is fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "dashboards" / "app.py"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 120.0
"""How long a server may take to start on a busy machine."""
CONTROL = re.compile(r'^\s*- \'?(button|checkbox|combobox|radio|spinbutton|textbox) "([^"]*)"', re.MULTILINE)
"""A line of an accessibility tree that is a control."""
OF_PLOTLY = ("Download plot", "Zoom", "Pan", "Box Select", "Lasso Select", "Autoscale", "Reset axes")
"""How names of controls begin that plotly draws at each figure."""
OF_COLOUR = ["color-contrast", "link-in-text-block"]
"""The rules of axe whose answer depends on the theme: all others need to be asked in one theme alone."""
WATCHED = """() => {
    const model = name => Bokeh.documents.map(each => each.get_model_by_name(name)).find(each => each);
    const [picture, drawn] = [model("picture"), model("drawn")];
    [window.pictures, window.lags] = [[], []];
    let came = 0;
    picture.properties.value.change.connect(() => {
        came = performance.now();
        window.pictures.push([Number(picture.value), Number(drawn.value)]);
    });
    drawn.properties.value.change.connect(() => window.lags.push(performance.now() - came));
}"""
"""Notes at each picture its number and that of the last one drawn, and how long the drawing of each takes, in ms."""
SLOWED = 6
"""A slow browser's processor is so many times slower."""
CLICKED = {"Recovery": "Break and recover", "Runs": "Measure", "Live": "Stop"}
"""A page by its name, and a button of it: shown once the page is, while writers write."""
CHROMIUM_ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def find_browser() -> str | None:
    """Return the path of a Chromium or Chrome on PATH, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@dataclass(kw_only=True)
class Server:
    """A `panel serve` that is running."""

    url: str
    process: subprocess.Popen[str]
    scratch: Path
    """Its TMPDIR: where its sessions have their logs."""
    said: list[str]
    """The lines it has written."""

    def folders(self) -> list[Path]:
        """Return the folders of the sessions that are there."""
        return sorted(self.scratch.glob("walkit-dashboard-*"))


@contextmanager
def serve(
    *arguments: str, cwd: Path = ROOT, app: str | Path = APP, variables: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run `panel serve APP` until the block is left; ends with SIGTERM, as a person's Ctrl-C or a service would."""
    panel = Path(sys.executable).with_name("panel")
    command = [str(panel), "serve", str(app), "--port", "0", *arguments]
    with tempfile.TemporaryDirectory(prefix="walkit-served-") as scratch:
        environment = {**os.environ, "TMPDIR": scratch, "PYTHONPATH": str(ROOT), **(variables or {})}
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        said: list[str] = []
        found: list[str] = []
        ready = threading.Event()
        listener = threading.Thread(target=_listen, args=(process, said, found, ready), daemon=True)
        listener.start()
        try:
            if not ready.wait(PATIENCE_S) or not found:
                raise RuntimeError("panel serve did not come up:\n" + "".join(said))
            yield Server(url=found[0], process=process, scratch=Path(scratch), said=said)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            listener.join()
            assert process.stdout is not None
            process.stdout.close()


def _listen(
    process: subprocess.Popen[str], said: list[str], found: list[str], ready: threading.Event
) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        address = re.search(r"running at: (http://\S+)", line)
        if address:
            found.append(address[1])
            ready.set()
    ready.set()


@contextmanager
def open_browser(path: str) -> Iterator[Browser]:
    """Run the browser at `path`, headless, until the block is left."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass(kw_only=True)
class Seen:
    """A page, and its requests and errors since it was opened."""

    page: Page
    host: str
    ready_s: float
    """Seconds from asking for the page until its button could be pressed."""
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def outside(self) -> list[str]:
        """Return the requests that went to another place than the server, whatever became of them."""
        inside = ("data:", "blob:", "about:")
        return [
            url for url in self.requests if urlsplit(url).netloc != self.host and not url.startswith(inside)
        ]

    def inaccessible(self) -> list[str]:
        """Return what axe-core finds that is serious or critical on the page as it is now, in the light and the dark.

        Each is the theme, axe's name of the rule, and an element. In the second theme the rules of colours are asked.
        The theme is as it was afterwards.
        """
        from axe_playwright_python.sync_playwright import Axe

        found = []
        options: dict[str, object] = {"resultTypes": ["violations"], "preload": False}
        for more in ({}, {"runOnly": OF_COLOUR}):
            theme = self.page.evaluate("document.documentElement.dataset.theme")
            # The first run loads axe-core into the page.
            results = Axe().run(self.page, options=options | more).response["violations"]
            found += [
                f"{theme}: {violation['id']}: {node['html'][:200]}"
                for violation in results
                if violation["impact"] in ("serious", "critical")
                for node in violation["nodes"]
            ]
            self.page.evaluate("walkitTheme()")
        return found

    def controls(self) -> list[str]:
        """Return role and name of each control of the shown page, in their order, except figures' toolbars."""
        tree = self.page.locator("#main").aria_snapshot()
        return [f"{role} {name}" for role, name in CONTROL.findall(tree) if not name.startswith(OF_PLOTLY)]

    def settled_controls(self, seconds: float = 60.0) -> list[str]:
        """Return the controls of the page once there are some, and the same ones twice in a row."""
        deadline = monotonic() + seconds
        before: list[str] = []
        while not (now := self.controls()) or now != before:
            if monotonic() > deadline:
                raise TimeoutError(f"the page's controls still change after {seconds:.0f} s: {now}")
            before = now
            self.page.wait_for_timeout(200)
        return now

    def press(self, name: str) -> None:
        """Press the button of this name, once it can be pressed."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def turn_to(self, tab: str) -> None:
        """Show the page of the dashboard of this name."""
        self.page.get_by_role("link", name=tab, exact=True).click()


def look_at(
    browser: Browser,
    url: str,
    *,
    width: int = 1200,
    height: int = 1000,
    scheme: Literal["light", "dark"] = "light",
) -> Seen:
    """Open `url` in a window of its own (a session of its own) and wait until the Start button can be pressed.

    `scheme` is the system's preference.
    """
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(90_000)
    seen = Seen(page=page, host=urlsplit(url).netloc, ready_s=0.0)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            seen.complaints.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    began = monotonic()
    page.goto(url)
    page.get_by_role("button", name="Start", exact=True).click(trial=True)
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    seen.ready_s = monotonic() - began
    return seen


@contextmanager
def slowed(seen: Seen) -> Iterator[None]:
    """Make the page's processor six times slower in the block."""
    session = seen.page.context.new_cdp_session(seen.page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": SLOWED})
    try:
        yield
    finally:
        session.send("Emulation.setCPUThrottlingRate", {"rate": 1})
        session.detach()


def clicks_s(seen: Seen) -> dict[str, float]:
    """Click to each page in turn; return the seconds until its button is there. AssertionError for another title."""
    clicks = {}
    for name, button in CLICKED.items():
        began = monotonic()
        seen.page.get_by_role("link", name=name, exact=True).evaluate("link => link.click()")
        seen.page.get_by_role("button", name=button, exact=True).wait_for()
        clicks[name] = monotonic() - began
        assert seen.page.get_by_role("heading", level=1).inner_text() == name
    return clicks
