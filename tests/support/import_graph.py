"""Which module imports which, read from the source, and the modules that a change reaches."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

FRONT_DOOR = "walkit"
trees: dict[str, ast.Module] = {}
"""Trees by source, for checks that look at many modules several times; they take 180 MB while they are here."""


def parsed(source: str) -> ast.Module:
    """Return the tree of a module."""
    return trees.get(source) or ast.parse(source)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a node, and those in them; without the expressions it is a tenth of `ast.walk`."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


@cache
def imported(path: str, source: str) -> tuple[tuple[int, str], ...]:
    """Return (line, dotted name) of every import: in functions, under TYPE_CHECKING, relative, and by import_module."""
    return tuple(_imported(path, source))


def _imported(path: str, source: str) -> Iterator[tuple[int, str]]:
    package = path.removesuffix(".py").split("/")[:-1]
    tree = parsed(source)
    is_by_name = "import_module" in source or "__import__" in source
    for node in ast.walk(tree) if is_by_name else statements(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"}:
                yield node.lineno, str(node.args[0].value)


def module_of(path: str) -> str:
    """Return the dotted name of a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_graph(files: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the modules that each module of `files` (text by path) imports, among themselves.

    The front door is left out: it fetches what it is asked for.
    """
    names = {module_of(path): path for path in files}
    names.pop(FRONT_DOOR, None)
    found = {}
    for name, path in names.items():
        wanted = [target for _, target in imported(path, files[path])]
        found[name] = {n if n in names else n.rpartition(".")[0] for n in wanted} & names.keys() - {name}
    return found


def front_door(source: str) -> dict[str, str]:
    """Return the module that each name of walkit/__init__.py comes from."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(FRONT_DOOR):
            for alias in node.names:
                here = node.module == FRONT_DOOR
                found[alias.asname or alias.name] = f"walkit.{alias.name}" if here else str(node.module)
    return found


def taken_at_the_door(source: str) -> set[str]:
    """Return the names that a file uses as `walkit.name`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == FRONT_DOOR
    }


def reached(graph: Mapping[str, Iterable[str]], changed: Iterable[str]) -> dict[str, int]:
    """Return the modules that import one of `changed`, each with the fewest imports on the way (0: changed itself)."""
    importers: dict[str, set[str]] = {}
    for name, targets in graph.items():
        for target in targets:
            importers.setdefault(target, set()).add(name)
    steps = dict.fromkeys(changed, 0)
    waiting = list(steps)
    for name in waiting:
        for other in importers.get(name, set()) - steps.keys():
            steps[other] = steps[name] + 1
            waiting.append(other)
    return steps
