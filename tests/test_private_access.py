"""How often the tests reach into an object of walkit by a private name: what they look at should be public."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tests.test_architecture import python_files

if TYPE_CHECKING:
    from tests.conftest import Checkout

ACCESSES_MAX = 105
"""At most so many in all tests. Where a test needs one more, another means (`log.parts`, an event, a metric) is due."""
CONVENTIONS = frozenset(
    (
        *("_repr_html_", "_repr_mimebundle_", "_ipython_display_"),
        *("_replace", "_fields", "_asdict", "_make", "_is_owned"),
    )
)
"""Names of other protocols: those of IPython, of named tuples, and of the locks that a Condition takes."""
STANDARD_MODULES = frozenset(("asyncio", "dis", "os", "sys"))
ANOTHERS = re.compile(r"(?<!\bself)(?<!\bcls)\._[^\W_]")
"""The shape of a private name of another object; a file without it needs no parsing."""


def named_in(tree: ast.Module) -> set[str]:
    """Return the names that a module gives to its own functions, classes, variables and attributes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node):
            found.add(node.attr)
    return found


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _is_standard(node: ast.Attribute) -> bool:
    begin: ast.expr = node
    while isinstance(begin, ast.Attribute):
        begin = begin.value
    return isinstance(begin, ast.Name) and begin.id in STANDARD_MODULES


def private_accesses(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, expression) for each private name of an object that is neither the test's own nor a convention."""
    tree = ast.parse(source)
    own = named_in(tree) | CONVENTIONS
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or _is_own(node) or _is_standard(node):
            continue
        if node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in own:
            yield node.lineno, ast.unparse(node)


def accesses_of(files: Mapping[str, str]) -> list[str]:
    """Return where private names are used, and which."""
    return [
        f"{path}:{line}: {expression}"
        for path, source in files.items()
        if ANOTHERS.search(source)
        for line, expression in private_accesses(source)
    ]


def test_tests_look_at_public_names(checkout: Checkout) -> None:
    """Count the private names that all tests use of walkit's objects: no more than there may be."""
    found = accesses_of(python_files(checkout, "tests/"))
    assert 0 < len(found) <= ACCESSES_MAX, "\n".join([f"{len(found)} private accesses", *found])
