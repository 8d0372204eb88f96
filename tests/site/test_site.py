"""The site of the documentation: a few pages of it by default, the whole one as `slow`, without a network."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import nbformat
import pytest
from sphinx.util.inventory import InventoryFile

import walkit
from scripts.browsing import OF_COLOUR
from scripts.make_docs import LINK, TOCTREE, Tree, build, gather
from walkit import plots

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.conftest import Checkout

pytestmark = pytest.mark.timeout(900)

WITH_A_FIGURE = "06-group-commit"
FEW = ("index", "glossary", "api/policy", f"notebooks/{WITH_A_FIGURE}")
"""The pages of the small site: the first one, and one with tables, of the reference, and with a figure."""
LOOKED_AT = (
    *FEW,
    *("operations", "architecture", "decisions/index", "notebooks/01-one-record-on-disk"),
)
"""A page of each kind, none of the largest: another slow test looks at all."""
# Slow: Sphinx takes half a minute to a minute for 171 pages. The small site is made by the same code, and test_docs
# looks up each link of each Markdown file.
WHOLE = pytest.param("whole", marks=pytest.mark.slow)
of_the_whole = pytest.mark.parametrize("site", [WHOLE], indirect=True)
LIST = "```{toctree}\n:hidden:\n\n"
LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


@dataclass
class Links(HTMLParser):
    """The anchors of a page, its files, and its links."""

    html: str
    ids: set[str] = field(default_factory=set)
    loaded: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif (tag, name) in LOADS and value:
                self.loaded.append(value)
            elif name == "href" and value:
                self.linked.append(value)


def dead_links(pages: Mapping[str, Links], files: set[str]) -> list[str]:
    """Links and loads that lead to no file of the site, or to no anchor of a page; `pages` by path from the root."""
    found = []
    for path, page in pages.items():
        for target in (*page.loaded, *page.linked):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            place = _normal(path, unquote(name.partition("?")[0]))
            known = pages[place].ids if place in pages else {anchor}
            if place not in files or (anchor and unquote(anchor) not in known):
                found.append(f"{path}: {target}")
    return found


def _normal(path: str, name: str) -> str:
    parts = path.split("/")[:-1] if name else path.split("/")
    for part in name.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


@dataclass(frozen=True)
class Site:
    """The built site, and its pages by path."""

    root: Path
    pages: Mapping[str, Links]
    files: set[str]
    whole: bool

    def looked_at(self) -> list[str]:
        """Return the names of the pages that a browser opens."""
        return [name for name in LOOKED_AT if f"{name}.html" in self.pages]


def keep_few(source: Path) -> None:
    """Take the other pages out of a source tree: the first page lists those that stay, a link to another is words."""
    for page in [*source.rglob("*.md"), *source.rglob("*.ipynb")]:
        if str(page.relative_to(source).with_suffix("")) not in FEW:
            page.unlink()
    for name in FEW:
        (page,) = source.glob(f"{name}.*")
        page.write_text(with_few(page, FEW[1:] if name == FEW[0] else ()), encoding="utf-8")


def with_few(page: Path, listed: Sequence[str]) -> str:
    """Return the text of a page with only the links that lead to files, and with these pages listed."""

    def shown(link: re.Match[str]) -> str:
        return str(link[0] if (page.parent / link[3].partition("#")[0]).is_file() else link[2])

    text = LINK.sub(shown, page.read_text("utf-8"))
    return TOCTREE.sub(lambda found: found[1] + "".join(f"{name}\n" for name in listed), text)


@pytest.fixture(scope="module", params=["few", WHOLE])
def site(
    request: pytest.FixtureRequest, checkout: Checkout, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    """The site as `make docs ARGS=--no-execute` makes it, with one figure in a notebook that was executed before."""
    place = tmp_path_factory.mktemp("site")
    figure = plots.replication_lag([(0.0, 2, 1), (1.0, 5, 5)])
    cell = nbformat.v4.new_code_cell("lag")
    cell.outputs = [nbformat.v4.new_output("display_data", figure._repr_mimebundle_())]
    heading = nbformat.v4.new_markdown_cell("# Group commit\n\n[the glossary](../docs/glossary.md#the-log)")
    executed, root = place / "executed", place / "out"
    executed.mkdir()
    metadata = {"language_info": {"name": "python"}}
    notebook = nbformat.v4.new_notebook(cells=[heading, cell], metadata=metadata)
    nbformat.write(notebook, executed / f"{WITH_A_FIGURE}.ipynb")
    if request.param == "few":
        gather(place / "source", executed)
        keep_few(place / "source")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Sphinx for the authors of its extensions; its own are errors
            build(place / "source", root)
    else:
        command = [sys.executable, "scripts/make_docs.py", "--no-execute", "--out", str(root)]
        done = subprocess.run(
            [*command, "--executed", str(executed)], cwd=checkout.root, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    pages = {path: Links((root / path).read_text("utf-8")) for path in files if path.endswith(".html")}
    return Site(root, pages, files, whole=request.param != "few")


def test_no_link_is_dead_and_nothing_comes_from_elsewhere(site: Site) -> None:
    """Walk every page: what it links to and loads is a file of the site, anchors included; no load names a host."""
    links = 5_000 if site.whole else 80
    assert len(site.pages) > (100 if site.whole else len(FEW))
    assert sum(len(page.linked) for page in site.pages.values()) > links
    assert len(dead_links(site.pages, set())) > links, "each of them is looked up"
    found = dead_links(site.pages, site.files)
    assert not found, "\n".join(found[:40])
    outside = {
        f"{path}: {target[:80]}"
        for path, page in site.pages.items()
        for target in page.loaded
        if re.match(r"(https?:)?//", target)
    }
    assert outside == set()


@of_the_whole
def test_every_page_of_the_repository_is_in_the_site(site: Site, checkout: Checkout) -> None:
    """Each Markdown file of docs/, the format, the changelog and each notebook is a page with a heading of its own."""
    tree = Tree(checkout.root, Path("nowhere"))
    wanted = {
        re.sub(r"\.(md|ipynb)$", ".html", tree.place_of(path) or "")
        for path in checkout.names()
        if re.match(r"(docs/.*\.md|notebooks/.*\.ipynb|CHANGELOG\.md|walkit/format/FORMAT\.md)$", path)
    }
    assert len(wanted) > 100
    assert wanted - site.pages.keys() == set()


def documented(site: Site) -> set[str]:
    """The names of the reference, dotted."""
    with (site.root / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, uri: uri)
    return {name for kind, names in _items(inventory) if kind.startswith("py:") for name in names}


def _items(inventory: Any) -> list[tuple[str, Any]]:
    return list(getattr(inventory, "data", inventory).items())


@of_the_whole
def test_every_public_name_is_in_the_reference(site: Site) -> None:
    """Each name of __all__ of walkit and of each public room, each method and property of a class, has its entry."""
    found = documented(site)
    last = {name.rsplit(".", 1)[-1] for name in found}
    modules = [
        "walkit",
        *(f"walkit.{name}" for name in dir(walkit) if inspect.ismodule(getattr(walkit, name))),
    ]
    wanted: dict[str, Any] = {}
    for name in modules:
        module = importlib.import_module(name)
        wanted |= {f"{name}.{key}": getattr(module, key) for key in getattr(module, "__all__", ())}
    assert len(wanted) > 250
    missing = []
    for name, value in wanted.items():
        if inspect.ismodule(value):
            continue
        key = name.rsplit(".", 1)[-1]
        # A class or a function that several modules show is on one page; what is neither, under its own module.
        is_shared = inspect.isclass(value) or inspect.isroutine(value)
        if name not in found and not (is_shared and key in last):
            missing.append(name)
        if inspect.isclass(value) and value.__module__.startswith("walkit"):
            methods = [
                part
                for part, own in vars(value).items()
                if part[0] != "_"
                and (inspect.isfunction(own) or isinstance(own, property | classmethod | staticmethod))
            ]
            entries = {entry.rsplit(".", 1)[-1] for entry in found if f".{key}." in f".{entry}"}
            missing += [f"{name}.{part}" for part in methods if part not in entries]
    assert missing == []


def look(browser: Browser, site: Site, name: str, **settings: Any) -> tuple[Page, list[str]]:
    """Open a page of the site from its file in a window of its own; the list gets what it complains of and asks for."""
    page = browser.new_context(**settings).new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda line: said.append(line.text) if line.type in ("error", "warning") else None)
    page.on("request", lambda asked: said.append(asked.url) if asked.url.startswith("http") else None)
    page.goto((site.root / f"{name}.html").as_uri())
    return page, said


def complaints(browser: Browser, site: Site, name: str, scheme: str) -> list[str]:
    """Faults of a page at 390 pixels: its width, its errors and requests, and axe's serious findings."""
    from axe_playwright_python.sync_playwright import Axe

    page, said = look(browser, site, name, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    wide = page.evaluate("document.documentElement.scrollWidth")
    found = [f"{wide} px wide"] if wide > 390 else []
    found += said  # before axe asks for the styles as files, which a browser refuses
    # Figures are plotly's, and are judged with the dashboard's pages.
    outside = {"exclude": [[".plotly-graph-div"]]}
    options: dict[str, Any] = {"resultTypes": ["violations"], "preload": False}
    options |= {"runOnly": OF_COLOUR} if scheme == "dark" else {}
    axe = Axe().run(page, context=outside, options=options)
    found += [
        f"{violation['id']}: {node['html'][:200]}"
        for violation in axe.response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
    page.context.close()
    return [f"{name}, {scheme}: {each}" for each in found]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_pages_fit_a_phone_and_are_accessible(site: Site, browser: Browser, scheme: str) -> None:
    """A page, or each kind, at 390 pixels: no sideways scroll, no complaint, nothing serious for axe."""
    names = site.looked_at() if site.whole else ["glossary"]
    assert [each for name in names for each in complaints(browser, site, name, scheme)] == []


@of_the_whole
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_phone_and_is_accessible(site: Site, browser: Browser, scheme: str) -> None:
    """The same of every page, except the list of all names, which the theme makes."""
    names = sorted(path.removesuffix(".html") for path in site.pages)
    assert [each for name in names for each in complaints(browser, site, name, scheme)] == []


FOCUSED = """async () => {
    await Promise.allSettled(document.getAnimations().map(each => each.finished));
    const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
    return {
        name: (at.getAttribute("aria-label") || at.innerText || at.title || "").trim().slice(0, 40),
        tag: at.tagName, on_screen: box.width > 0 && box.bottom > 0 && box.top < innerHeight,
        marked: style.outlineStyle !== "none" || style.boxShadow !== "none",
    };
}"""
"""The element with the focus, once nothing moves: what it says, if it is on the screen, if one sees that it has it."""


# Slow: the wide page. The narrow one has the same stops, and a menu.
@pytest.mark.parametrize(
    ("width", "name"), [pytest.param(1280, "index", marks=pytest.mark.slow), (390, "glossary")]
)
def test_the_keyboard_is_enough(site: Site, browser: Browser, width: int, name: str) -> None:
    """Tab through a page: the skip link comes first and leads to the text; each stop is seen; a menu opens, closes."""
    page, said = look(browser, site, name, viewport={"width": width, "height": 844}, color_scheme="light")
    stops = []
    for _ in range(30):
        page.keyboard.press("Tab")
        stops.append(page.evaluate(FOCUSED))
    stops = [stop for stop in stops if stop["tag"] != "BODY"]  # past the last one it starts again
    assert stops[0]["name"] == "Skip to main content"
    assert [stop for stop in stops if not (stop["on_screen"] and stop["marked"])] == []
    assert {stop["tag"] for stop in stops} >= {"A", "BUTTON"}
    page.reload()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**#main-content")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('#main-content').contains(document.activeElement)")
    if width == 390:
        page.locator("button.primary-toggle").focus()
        page.keyboard.press("Enter")
        page.locator("dialog[open]").first.wait_for()
        page.keyboard.press("Escape")
        page.locator("dialog[open]").first.wait_for(state="detached")
    assert said == []
    page.context.close()


# Slow: a browser opens each page again. The test of a figure has a page of the small site without scripts.
@pytest.mark.slow
def test_pages_are_readable_without_scripts(site: Site, browser: Browser) -> None:
    """Each kind of page with scripts off, on a phone: heading, text and links are there, and nothing is too wide."""
    for name in site.looked_at():
        page, _ = look(browser, site, name, java_script_enabled=False, viewport={"width": 390, "height": 844})
        assert page.locator("h1").first.is_visible(), name
        assert len(page.locator("article").inner_text()) > 60, name
        assert page.locator("article a[href]").count() > 0, name
        assert page.locator("article").bounding_box()["width"] <= 390, name  # type: ignore[index]
        page.context.close()


def test_a_figure_is_drawn_and_is_a_picture_without_scripts(site: Site, browser: Browser) -> None:
    """The page with a figure: plotly draws it, its words follow the theme; without scripts a picture and the text."""
    name = f"notebooks/{WITH_A_FIGURE}"
    page, _ = look(browser, site, name, color_scheme="dark")
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    colour = "getComputedStyle(document.querySelector('.main-svg .gtitle, .main-svg .xtick text')).fill"
    assert page.evaluate(colour) == "rgb(214, 217, 222)"
    assert page.get_by_role("button", name="Download plot").count() == 1
    assert page.get_by_role("button", name="Share chart").count() == 0, "no data leaves the page"
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    page.wait_for_function(f"{colour} === 'rgb(51, 55, 61)'")
    page.context.close()
    still, _ = look(browser, site, name, java_script_enabled=False, color_scheme="dark")
    assert still.locator("img[alt][data-figure]").count() == 1
    assert still.locator("h1").inner_text().startswith("Group commit")
    assert still.locator("a[download]").count() == 2
    still.context.close()


def test_search_finds_without_a_network(site: Site, browser: Browser) -> None:
    """Ask the site's own search for a word that few pages have: the page that explains it is among the results."""
    page, said = look(browser, site, "search")
    page.goto(f"{(site.root / 'search.html').as_uri()}?q=vouched")
    page.get_by_role("link", name="Glossary").first.wait_for()
    assert [line for line in said if line.startswith("http")] == []
    page.context.close()


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("[a](../walkit/format/FORMAT.md#rules)", "[a](format.md#rules)"),
        ("[a](decisions/README.md)", "[a](decisions/index.md)"),
        ("[a](../README.md)", "[a](index.md)"),
        ("![a](rooms.svg)", "![a](files/docs/rooms.svg)"),
        ("[the tests](../tests)", "the tests"),
        ("[a](https://e.org) [b](#here) `[c](../tests)`", "[a](https://e.org) [b](#here) `[c](../tests)`"),
        ("[![p](rooms.svg)](architecture.md)", "[![p](files/docs/rooms.svg)](architecture.md)"),
        (f"{LIST}One <../CHANGELOG>\ninstall\n```", f"{LIST}One <changelog>\ninstall\n```"),
    ],
)
def test_links_are_set_to_where_pages_are(checkout: Checkout, text: str, moved: str) -> None:
    """Each kind of link of a page in docs/: to a page, a picture, a folder, elsewhere, in code, in a list of pages."""
    tree = Tree(checkout.root, Path("nowhere"))
    assert tree.at_home("docs/some.md", text) == moved
