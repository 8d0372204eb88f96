"""Configures Sphinx for the site: `make docs` copies the pages into one tree and builds it with this file.

The pages are Markdown and notebooks (MyST), the reference is made of docstrings. Nothing is asked of a network: the
theme, its fonts and its scripts come with the package, and links between projects (intersphinx) are off.
"""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.domains.python import PythonDomain

import walkit
import walkit.errors

project = "walkit"
author = "The walkit authors"
copyright = author
version = release = walkit.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["files/**"]
root_doc = "index"

# Text: GitHub reads the same files, so anchors are made as it makes them.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, Any] = {}
nb_merge_streams = True
nb_mime_priority_overrides = [("html", "text/html", 0)]

# The reference: in the order of the source, with short names, and names in backticks are links.
default_role = "py:obj"
add_module_names = False
python_use_unqualified_type_names = True
python_display_short_literal_types = True
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = True
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 120
suppress_warnings = ["ref.python"]

html_theme = "pydata_sphinx_theme"
html_title = "walkit"
html_static_path = ["_static"]
html_css_files = ["walkit.css"]
html_js_files = ["figures.js"]
html_extra_path = ["extra"]
html_copy_source = False
html_show_sourcelink = False
ALONE = sorted(
    {path.stem for path in Path(__file__).parent.glob("*.md")}
    | {"changelog", "contributing", "data", "format", "genindex"}
)
"""Pages of the first level, which have no neighbours: a list of them on the left would be empty."""
html_sidebars: dict[str, list[str]] = {page: [] for page in ALONE}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "walkit"},
    "show_prev_next": True,
    "collapse_navigation": True,  # the whole tree on each of 150 pages would take half of the build
    "navigation_with_keys": False,
    "header_links_before_dropdown": 5,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

SPAN = re.compile(r"(?<![`\w:])`([^`\n]+)`(?=[A-Za-z0-9])")
"""Code with an ending right after it (`frame`s), which reStructuredText takes for no code without an escape."""

CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
"""Code; with `<` in it, it would be read as a link and its target."""

STAR = re.compile(r"`[^`]*`|(?<![\w*])\*\w(?:[^*\n]*\w)?\*(?![\w*])|(\*)")
"""A star that is neither in code nor around a word."""


def as_restructured(
    app: object, what: str, name: str, item: object, options: object, lines: list[str]
) -> None:
    """Make the few signs of a docstring that reStructuredText reads otherwise what a reader of the source sees."""
    text = "\n".join(lines)
    text = re.sub(
        r"^Alias for field number \d+$", "", text
    )  # what a NamedTuple says of a field without words
    text = CODE.sub(lambda found: f"`{found[0]}`" if "<" in found[1] else found[0], text)
    text = SPAN.sub(r"`\1`\\ ", text)
    text = STAR.sub(lambda found: found[0] if found[1] is None else r"\*", text)
    text = re.sub(r"(?<=\w)_(?=[\s,.)])", r"\_", text)
    lines[:] = text.split("\n")


PAGES = {
    path.stem: "walkit" if path.stem == "walkit" else f"walkit.{path.stem}"
    for path in sorted((Path(__file__).parent / "api").glob("*.md"))
    if path.stem not in ("README", "index")
}
"""The pages of the reference, and their modules."""
CURRENT = {"page": ""}
"""The page that is read: autodoc does not say."""


@cache
def owners() -> dict[int, str]:
    """Return the page of each class and function that several modules show: one page has it, the front door first."""
    found = {id(value): "errors" for value in vars(walkit.errors).values() if is_error(value)}
    for page in ("walkit", *PAGES):
        module = importlib.import_module(PAGES.get(page, page))
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, type) or inspect.isroutine(value):
                found.setdefault(id(value), page)
    return found


def is_error(value: object) -> bool:
    """Say whether this is a class of error."""
    return isinstance(value, type) and issubclass(value, walkit.WalkitError)


def as_short(
    app: object,
    what: str,
    name: str,
    item: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Return a signature as the source has it: names of types without their modules, and no `<factory>`."""
    if signature is None:
        return None, returns
    signature = re.sub(r"~[\w.]*?(\w+)(?![\w.])", r"\1", signature)
    return signature.replace("<factory>", "..."), returns


def without_object(app: object, tree: Any) -> None:
    """Take away the line that says of a class that it is an object."""
    for line in list(tree.findall(nodes.paragraph)):
        if line.astext() == "Bases: object":
            line.parent.remove(line)


def is_elsewhere(app: object, what: str, name: str, item: object, skip: bool, options: object) -> bool | None:
    """Say that a name is left out of this page, since another page has it; None if not."""
    page = CURRENT["page"].removeprefix("api/")
    if inspect.ismodule(item):
        return True
    return True if what == "module" and owners().get(id(item), page) != page else None


def remember(app: object, name: str, source: list[str]) -> None:
    """Keep the name of the page that is read."""
    CURRENT["page"] = name


def with_plotly(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Give pages of notebooks plotly.js, and no other page."""
    if page.startswith("notebooks/") and tree is not None and "data-figure=" in context.get("body", ""):
        app.add_js_file("plotly.min.js")  # before the pictures that ask for it


class Names(PythonDomain):
    """Python's names, each searched for once: Sphinx goes through all of them for each mention of one."""

    found: dict[tuple[Any, ...], Any] = {}

    def find_obj(self, env: Any, *wanted: Any, **more: Any) -> Any:
        """Return the objects that a name may mean."""
        key = (len(self.objects), *wanted, *more.items())
        if key not in self.found:
            self.found[key] = super().find_obj(env, *wanted, **more)
        return self.found[key]


def setup(app: Any) -> dict[str, bool]:
    """Connect the functions above."""
    app.add_domain(Names, override=True)
    app.connect("autodoc-process-docstring", as_restructured)
    app.connect("autodoc-process-signature", as_short)
    app.connect("doctree-read", without_object)
    app.connect("autodoc-skip-member", is_elsewhere)
    app.connect("source-read", remember)
    app.connect("html-page-context", with_plotly)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
