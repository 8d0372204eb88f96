"""The notebooks run from top to bottom, leave nothing behind, and are committed without what running them adds."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import json
import re
import shutil
import signal
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from plotly.offline import get_plotlyjs

import walkit
from scripts.book import SCRIPT, figures_of, write_page
from scripts.browsing import find_browser, open_browser
from scripts.notebook_map import PATHS, PLACES, TARGET, drawn_map
from walkit.log.scratch import sweep

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))
CHAPTERS = [name for name in NAMES if name != "00-index.ipynb"]
LINES_MAX = 14
CELLS_MIN, CELLS_MAX = 15, 30
PARTS = (
    r"\*\*The question\*\*: ",
    r"\*\*Prediction\*\*|## Prediction",
    r"## Answer",
    r"## Limits",
    r"## Summary",
    r"\*\*Next\*\*: ",
)
"""The parts of each notebook, in this order: a question first, then a prediction."""
FIGURE = 'class="plotly-graph-div"'
CELL_TIMEOUT_S = 500
MISSING = object()
IMPORTED_WHERE_THERE = {"googleapis-common-protos", "grpcio-tools", "protobuf"}
"""Packages that another one imports only if installed: grpc does that, and Spark (the module google)."""


def cells_of(name: str, kind: str = "code") -> list[Any]:
    """The cells of one kind, as JSON has them, each source as one text."""
    cells = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    return [{**c, "source": "".join(c["source"])} for c in cells if c["cell_type"] == kind]


def marks_of_running(notebook: Any) -> list[str]:
    """The marks that running a notebook adds to its file."""
    found = []
    for cell in notebook["cells"]:
        if cell.get("outputs") or cell.get("execution_count") is not None:
            found.append(cell["id"])
        found += [f"{cell['id']}: {key}" for key in cell["metadata"]]
    return found


@pytest.fixture(autouse=True)
def own_ctrl_c() -> Iterator[None]:
    """Put the handler of SIGINT back: nbclient leaves the one of its event loop."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_committed_as_written(name: str) -> None:
    """No outputs, execution counts or cell metadata; valid by nbformat's schema; for whatever Python 3 there is."""
    notebook = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    assert marks_of_running(notebook) == []
    nbformat.validate(notebook)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_have_short_cells_and_end_in_assertions(name: str) -> None:
    """At most 14 lines a code cell, words first, and a last cell that asserts."""
    cells = cells_of(name)
    assert [c["id"] for c in cells if c["source"].count("\n") >= LINES_MAX] == []
    assert cells_of(name, "markdown")[0]["source"].startswith("# ")
    assert cells[-1]["source"].count("assert ") >= 3


def missing_parts(text: str) -> list[str]:
    """The parts that a notebook's text lacks, or has in another order."""
    found, at = [], 0
    for part in PARTS:
        place = re.compile(part).search(text, at)
        if place is None:
            found.append(part)
        else:
            at = place.start()
    return found


@pytest.mark.parametrize("name", CHAPTERS)
def test_notebooks_ask_predict_and_answer(name: str) -> None:
    """Question, prediction, answer, limits, summary and the next step, in this order, in 15 to 30 cells."""
    words = cells_of(name, "markdown")
    assert missing_parts("\n".join(cell["source"] for cell in words)) == []
    assert CELLS_MIN <= len(words) + len(cells_of(name)) <= CELLS_MAX


def test_the_map_is_current_and_matches_the_index() -> None:
    """Draw the map again: the committed one, with every notebook; its reading paths are those of the index's text."""
    assert TARGET.read_text(encoding="utf-8") == drawn_map(), "python scripts/notebook_map.py"
    ET.fromstring(drawn_map())
    assert sorted(PLACES) == [name[:2] for name in CHAPTERS]
    text = "".join(cell["source"] for cell in cells_of("00-index.ipynb", "markdown"))
    assert "](map.svg)" in text
    listed = re.findall(r"^- \*\*(.+?)\*\*:((?:.|\n  )*)", text, re.MULTILINE)
    paths = {reader: tuple(re.findall(r"\[(\d\d)\]", line)) for reader, line in listed}
    assert paths == {reader: stops for reader, (_, stops) in PATHS.items()}


def test_the_index_knows_every_notebook_and_what_needs_spark() -> None:
    """The index has one row for each other notebook, with a link that leads there; Spark is noted if it is used."""
    text = "".join(cell["source"] for cell in cells_of("00-index.ipynb", "markdown"))
    rows = re.findall(
        r"^\| \[([^\]]+)\]\(([^)]+)\) \|.*\| (\d+) \| (\d+) \| (yes|no) \|$", text, re.MULTILINE
    )
    assert [link for _, link, *_ in rows] == CHAPTERS
    for title, link, _, _, needs_spark in rows:
        assert title == Path(link).stem
        uses = any(re.search(r"walkit\.spark|pyspark", cell["source"]) for cell in cells_of(link))
        assert uses == (needs_spark == "yes"), title


@pytest.mark.parametrize("name", NAMES)
def test_links_between_notebooks_lead_somewhere(name: str) -> None:
    """Every relative link of every text cell is a notebook that is there, or the map."""
    for cell in cells_of(name, "markdown"):
        for target in re.findall(r"\]\(([^)#]+)\)", cell["source"]):
            assert target in {*NAMES, TARGET.name}, target


def project() -> Any:
    """pyproject.toml's table [project]."""
    return tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]


def asked_for(extras: Iterable[str]) -> set[str]:
    """The packages that the core and these extras ask for themselves."""
    listed = [Requirement(line) for line in project()["dependencies"]]
    waiting, seen = list(extras), set()
    while waiting:
        extra = waiting.pop()
        if extra not in seen:
            seen.add(extra)
            found = [Requirement(line) for line in project()["optional-dependencies"][extra]]
            waiting += [more for one in found if one.name == "walkit" for more in one.extras]
            listed += [one for one in found if one.name != "walkit"]
    return {str(canonicalize_name(one.name)) for one in listed}


def brought(packages: Iterable[str]) -> set[str]:
    """Packages, and all that they bring with them, as what is installed here says."""
    waiting, found = list(packages), set[str]()
    while waiting:
        name = str(canonicalize_name(waiting.pop()))
        if name in found:
            continue
        found.add(name)
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or Python
        needed = map(Requirement, lines)
        waiting += [r.name for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


packages_of_modules = cache(importlib.metadata.packages_distributions)


def undeclared(imported: Iterable[str], extras: Iterable[str]) -> set[str]:
    """Of imported modules, the packages that walkit's extras know and that installing these extras does not bring.

    Several packages may share a module (google): one of them that is brought is enough.
    """
    homes = packages_of_modules()
    there, known = brought(asked_for(extras)), asked_for(project()["optional-dependencies"])
    found = set[str]()
    for module in imported:
        packages = {str(canonicalize_name(home)) for home in homes.get(module, ())}
        if not packages & there:
            found |= packages & known
    return found - IMPORTED_WHERE_THERE


def extras_of(name: str) -> set[str]:
    """The extras that a notebook says it needs, before it begins; the index needs the least."""
    text = "".join(cell["source"] for cell in cells_of(name, "markdown"))
    begin = re.search(r"\*\*Before you begin\*\*:(.*?)(?:\n\n|$)", text, re.DOTALL)
    said = re.findall(r"walkit\[([\w,]+)\]", begin[1]) if begin else []
    return {extra for group in said for extra in group.split(",")} or {"notebooks"}


def with_constant(source: str, name: str, value: str) -> str:
    """A cell with another value for a constant that it sets, alone or with others in one statement; else the cell."""
    lines = source.split("\n")
    for statement in ast.parse(re.sub(r"^%", "#", source, flags=re.MULTILINE)).body:
        if isinstance(statement, ast.Assign):
            names = {n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            if name in names:
                lines.insert(statement.end_lineno or 0, f"{name} = {value}")
                return "\n".join(lines)
    return source


def test_a_constant_is_set_in_its_place() -> None:
    """Alone, in a tuple, over several lines: the new value follows the old one, and other cells stay as they are."""
    assert with_constant("A = 1\nA + B", "A", "7") == "A = 1\nA = 7\nA + B"
    assert with_constant("A, B = (\n    1,\n    5,\n)\nprint(B)", "B", "range(2)") == (
        "A, B = (\n    1,\n    5,\n)\nB = range(2)\nprint(B)"
    )
    assert with_constant("print(A)\nfor A in (1, 2):\n    pass", "A", "7").count("7") == 0


def run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **constants: object) -> Path:
    """Run a copy of a notebook in a copy of the folder, with other constants; return its page in the book.

    Nothing of walkit's is left behind. Its kernel imports only packages of the extras that the notebook names. A kernel
    that a busy machine ends late is killed by its client: then the next scratch log's sweep finds the rest.
    """
    folder, temporary = tmp_path / "notebooks", tmp_path / "tmp"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns(".*"))
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")  # compiles less: a short run takes half
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook: Any = nbformat.read(folder / name, as_version=4)
    for constant, value in constants.items():
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        changed = [with_constant(cell.source, constant, repr(value)) for cell in code]
        assert sum(new != cell.source for new, cell in zip(changed, code, strict=True)) == 1, constant
        for cell, new in zip(code, changed, strict=True):
            cell.source = new
    before = sorted(path.name for path in folder.iterdir())
    modules = tmp_path / "modules"
    last = f"import pathlib, sys\n_ = pathlib.Path({str(modules)!r}).write_text(' '.join(sys.modules))"
    notebook.cells.append(nbformat.v4.new_code_cell(last))
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    assert marks_of_running(notebook)
    assert sorted(path.name for path in folder.iterdir()) == before
    imported = {module.split(".")[0] for module in modules.read_text().split()}
    assert undeclared(imported, extras_of(name)) == set()
    sweep()
    assert [path.name for path in temporary.iterdir() if "walkit" in path.name] == []
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    said = "".join(each.get("text", "") for each in outputs)
    assert not any(each.output_type == "error" for each in outputs)
    assert "Warning" not in said and "exit code" not in said
    wanted = sum("\nplots." in f"\n{cell.source}" for cell in notebook.cells if cell.cell_type == "code")
    figures = [FIGURE in output["data"]["text/html"] for output in figures_of(notebook)]
    assert figures == [True] * wanted, "each figure travels"
    (tmp_path / "book" / "data").mkdir(parents=True)
    write_page(notebook, Path(name).stem, tmp_path / "book")
    page = (tmp_path / "book" / name).with_suffix(".html")
    assert page.read_text(encoding="utf-8").count(FIGURE) == wanted, "and is on the page of the book"
    return page


def look_at_page(page: Path, browser_path: str) -> None:
    """Open a page of the book on a phone: no error, no request, no sideways scroll, and each figure is drawn."""
    (page.parent / SCRIPT).write_text(get_plotlyjs(), encoding="utf-8")
    found: list[str] = []
    with open_browser(browser_path) as browser:
        tab = browser.new_page(viewport={"width": 390, "height": 844})
        tab.on("pageerror", lambda error: found.append(str(error)))
        tab.on("request", lambda asked: found.append(asked.url) if asked.url.startswith("http") else None)
        tab.goto(page.as_uri())
        figures = tab.locator(".plotly-graph-div")
        for number in range(figures.count()):
            figures.nth(number).locator(".main-svg").first.wait_for()
        assert figures.count() >= 3 and found == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390


SPARK = ("02-the-main-job.ipynb", "13-spark-replay-and-diff.ipynb", "14-streams-and-change-feed.ipynb")
"""Those with a Spark of their own."""
FEWER: dict[str, dict[str, object]] = {
    "01-one-record-on-disk.ipynb": {"ROUNDS": 1},
    "02-the-main-job.ipynb": {"OPERATIONS": 5_000, "ROUNDS": 2},
    "04-crash-and-recovery.ipynb": {"OPERATIONS": 6_000, "RUNS": 1, "SIZE": 2_500},
    "13-spark-replay-and-diff.ipynb": {"ROUNDS": 2},
    "14-streams-and-change-feed.ipynb": {},
}
"""Constants of short runs: of the notebooks that a newcomer opens first, and of those with Spark."""
LOOKED_AT = "16-a-log-on-object-storage.ipynb"
"""The notebook whose page a browser opens; tests/site and tests/lab look at others."""
# Slow: each starts a JVM. tests/demo runs what 02 shows, and tests/spark asks what 13 and 14 do, of one JVM.
OF_SPARK = (pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900))
# Slow: 24 s. Notebook 01 runs by default; tests/crashlab and tests/recovery ask what 04 does.
MARKS = {"04-crash-and-recovery.ipynb": (pytest.mark.slow,)} | dict.fromkeys(SPARK, OF_SPARK)


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in FEWER])
def test_notebooks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run it in a kernel of its own, outside of this checkout: assertions hold, files are gone, its page is made."""
    run(name, tmp_path, monkeypatch, **FEWER[name])


# Slow: each takes 12 to 60 s. Names and keywords that a notebook uses are looked up in each by default, and the tests
# of their rooms run what they call.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SPARK])
def test_notebooks_run_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with every round, as a reader runs it; a browser opens the page of one."""
    page = run(name, tmp_path, monkeypatch)
    monkeypatch.undo()  # a browser's sockets want a short TMPDIR
    if name == LOOKED_AT and (browser_path := find_browser()) is not None:
        look_at_page(page, browser_path)


@pytest.mark.parametrize("name", NAMES)
def test_what_notebooks_use_of_walkit_exists(name: str) -> None:
    """Look up each name that a notebook takes from walkit, and each keyword of a call of one: none is missing."""
    code = "\n".join(re.sub(r"^%", "#", cell["source"], flags=re.MULTILINE) for cell in cells_of(name))
    tree, names, missing = ast.parse(code), dict[str, Any](), list[str]()
    for line in ast.walk(tree):
        if isinstance(line, ast.Import) and line.names[0].name == "walkit":
            names["walkit"] = walkit
        elif isinstance(line, ast.ImportFrom) and str(line.module).startswith("walkit"):
            module = importlib.import_module(str(line.module))
            names |= {each.asname or each.name: getattr(module, each.name) for each in line.names}
    assert names or name == "00-index.ipynb"

    def found(node: ast.AST) -> Any:
        if isinstance(node, ast.Name):
            return names.get(node.id, MISSING)
        if not isinstance(node, ast.Attribute):
            return MISSING
        of = found(node.value)
        if not (inspect.ismodule(of) or inspect.isclass(of)):
            return MISSING
        if not hasattr(of, node.attr):
            missing.append(ast.unparse(node))
        return getattr(of, node.attr, MISSING)

    for node in ast.walk(tree):
        called = found(node.func) if isinstance(node, ast.Call) else found(node)
        if isinstance(node, ast.Call) and (inspect.isfunction(called) or inspect.isclass(called)):
            taken = inspect.signature(called).parameters
            if all(each.kind is not each.VAR_KEYWORD for each in taken.values()):
                missing += [
                    f"{ast.unparse(node.func)}({k.arg}=" for k in node.keywords if k.arg not in {*taken, None}
                ]
    assert missing == []
