"""The pages of docs/ match the code: examples run; tables of errors, metrics, events and words are whole."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit
from scripts import make_docs
from tests.test_docs import examples
from walkit import errors, events, metrics

if TYPE_CHECKING:
    from tests.conftest import Checkout

RUN_PAGES = """
import json, os, pathlib, sys, traceback
for page, code in json.load(sys.stdin):
    folder = pathlib.Path(page.replace("/", "-"))
    folder.mkdir()
    os.chdir(folder)
    try:
        exec(compile(code, page, "exec"), {"__name__": "__main__"})
    except BaseException:
        sys.exit(f"{page}\\n{traceback.format_exc()}")
    finally:
        os.chdir("..")
"""
ERROR_ROW = re.compile(r"^\| `(\w+Error)` \| `([\w-]+)` \| (.+) \| (.+) \|$", re.MULTILINE)


def pages_with_examples(checkout: Checkout) -> list[tuple[str, str]]:
    """The first page, the pages by task and those of the reference, each with all its Python that needs no Spark."""
    pages = [
        (path, "".join(examples(text)[0]))
        for path, text in checkout.files(".md").items()
        if re.match(r"docs/(index\.md|how-to/|api/)", path)
    ]
    return [(path, code) for path, code in pages if code]


DOUBLES = ("docs/api/bench.md", "docs/api/crashlab.md", "docs/api/measure.md", "docs/api/plots.md")
"""The tests of the commands, README.md's example and a page by task do the same by default."""


@pytest.mark.parametrize(
    "left_out", [DOUBLES, pytest.param((), marks=pytest.mark.slow)]
)  # slow: these pages too
def test_the_python_of_each_page_runs(left_out: tuple[str, ...], checkout: Checkout, tmp_path: Path) -> None:
    """Run each page's Python from top to end in an empty folder of its own, with warnings as errors: none raises."""
    pages = [(page, code) for page, code in pages_with_examples(checkout) if page not in left_out]
    assert len(pages) > 18
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN_PAGES],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(checkout.root)},
        input=json.dumps(pages),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    written = tmp_path / "docs-how-to-extend-and-test.md" / "test_orders.py"
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_walkit", "-c", "/dev/null", str(written)],
        cwd=written.parent,
        env={**os.environ, "PYTHONPATH": str(checkout.root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "1 passed" in tested.stdout


@pytest.fixture(scope="module")
def operations(checkout: Checkout) -> str:
    """docs/operations.md."""
    return (checkout.root / "docs" / "operations.md").read_text()


def test_every_error_has_a_next_step(operations: str) -> None:
    """The table of the site has one row per class of walkit.errors, with code, meaning and next step."""
    classes = {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value)
        and issubclass(value, errors.WalkitError)
        and value is not errors.WalkitError
    }
    rows = ERROR_ROW.findall(make_docs.with_tables(operations))
    assert len(classes) > 25
    assert sorted(name for name, *_ in rows) == sorted(classes)
    assert {name: code for name, code, *_ in rows} == {name: value.code for name, value in classes.items()}
    assert all(len(meaning.split()) > 2 and len(step.split()) > 1 for _, _, meaning, step in rows)


def test_the_tables_of_the_site_have_every_metric_and_event(operations: str) -> None:
    """Make the three tables that the page names: a row of each metric, event and attribute, with its meaning."""
    page = make_docs.with_tables(operations)
    wanted = {f.name: f.metadata["help"] for f in fields(metrics.LogStatistics)}
    wanted |= {name: text for name, (_, text) in events.EVENTS.items()}
    wanted |= {name: text for name, (_, text) in events.ATTRIBUTES.items()}
    assert len(wanted) > 100
    for name, meaning in wanted.items():
        assert re.search(rf"^\| `{re.escape(name)}` \| .*{re.escape(meaning)}", page, re.MULTILINE), name
    assert events.CARRIES.keys() == events.EVENTS.keys()
    assert {each for names in events.CARRIES.values() for each in names} == events.ATTRIBUTES.keys()


class Carried(ast.NodeVisitor):
    """The attributes of each event that a module emits: keywords, and dictionaries that are passed on as such."""

    def __init__(self, source: str) -> None:
        self.of_events: dict[str, set[str]] = {}
        self.of_calls: dict[str, set[str]] = {}
        """Keywords of every call, by the function's name."""
        self.passed_on: list[tuple[str, str]] = []
        """Events that have the keywords of a function's callers, with the function's name."""
        self._functions: list[ast.FunctionDef] = []
        self.visit(ast.parse(source))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        words = {each.arg for each in node.keywords if each.arg}
        self.of_calls.setdefault(name, set()).update(words)
        if name == "emit" and node.args and isinstance(node.args[0], ast.Constant):
            event = str(node.args[0].value)
            found = self.of_events.setdefault(event, set())
            found |= words
            for each in node.keywords:
                if each.arg is None:
                    found |= self._in_dictionary(event, each.value)
        self.generic_visit(node)

    def _in_dictionary(self, event: str, value: ast.expr) -> set[str]:
        """The keys of the dictionary with which a local name was last written, and of those that it takes in."""
        assert isinstance(value, ast.Name)
        function = self._functions[-1]
        if function.args.kwarg is not None and function.args.kwarg.arg == value.id:
            self.passed_on.append((event, function.name))
            return set()
        shown = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and [value.id] == [getattr(t, "id", "") for t in node.targets]
        ]
        assert len(shown) == 1 and isinstance(shown[0], ast.Dict), f"{event}: not one dictionary"
        found = set()
        for key, inner in zip(shown[0].keys, shown[0].values, strict=True):
            if key is None:
                found |= self._in_dictionary(event, inner)
            else:
                assert isinstance(key, ast.Constant)
                found.add(str(key.value))
        return found


def test_every_event_has_the_attributes_that_are_declared(checkout: Checkout) -> None:
    """Read what each call that emits passes, in every module: events.CARRIES says all of it, and no more."""
    # An event may have a part of the keywords that a function passes on from its callers.
    sources = [source for path, source in checkout.files(".py").items() if path.startswith("walkit/")]
    modules = [Carried(source) for source in sources if "emit(" in source]
    found: dict[str, set[str]] = {}
    for module in modules:
        for event, words in module.of_events.items():
            found.setdefault(event, set()).update(words)
    passed_on = {event: function for module in modules for event, function in module.passed_on}
    callers = [Carried(each) for each in sources if any(f"{name}(" in each for name in passed_on.values())]
    assert found.keys() == events.CARRIES.keys() and len(passed_on) == 4
    for event, declared in events.CARRIES.items():
        more = set[str]()
        for module in callers:
            more |= module.of_calls.get(passed_on.get(event, "none"), set())
        assert found[event] <= {*declared} <= found[event] | more, event


def test_the_glossary_is_short(checkout: Checkout) -> None:
    """Count the rows of its tables: each has one meaning, and there are at most 70."""
    rows = re.findall(
        r"^\| ([^|]+?) \| [^|]+ \|$", (checkout.root / "docs" / "glossary.md").read_text(), re.MULTILINE
    )
    words = [row for row in rows if row != "word"]
    assert 40 < len(words) <= 70 and len(set(words)) == len(words)


def test_every_public_room_has_a_page_of_the_reference(checkout: Checkout) -> None:
    """Each room that `import walkit` offers has a page with its module; the index of the reference lists all pages."""
    folder = checkout.root / "docs" / "api"
    pages = {path.stem for path in folder.glob("*.md")} - {"README"}
    rooms = {name for name in dir(walkit) if inspect.ismodule(getattr(walkit, name, None))}
    assert rooms - pages - {"store"} == set()
    index = (folder / "README.md").read_text()
    for page in pages:
        module = "walkit" if page == "walkit" else f"walkit.{page}"
        assert f".. automodule:: {module}\n" in (folder / f"{page}.md").read_text()
        assert f"({page}.md)" in index and f"\n{page}\n" in index
