"""Where walkit can be mutated: the sites of four kinds, a draw among them by seed, and beacons in their place.

A mutant is one edit of the text: a comparison turned, a call dropped, a constant changed, a branch taken always.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("comparison turned", "call dropped", "constant changed", "branch taken always")
TURNED = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
FOR_TYPES = {"Literal", "TypeVar", "ParamSpec", "NewType", "cast"}
GROUND = "ground floor"
"""The modules directly in walkit/, except the Store: errors, events, records, options and the small helpers."""


@dataclass(frozen=True)
class Site:
    """A place, and the text it becomes: `block` is the whole lines around it, of which this is the n-th in the file."""

    file: str
    line: int
    kind: str
    before: str
    after: str
    block: str
    nth: int
    column: int
    """In bytes, within the block."""

    @property
    def room(self) -> str:
        """The room of walkit that it belongs to."""
        parts = self.file.split("/")
        return parts[1] if len(parts) > 2 else "store" if parts[1] == "store.py" else GROUND

    @property
    def key(self) -> str:
        """A name that stays while the lines above it move."""
        return f"{self.file}:{self.line}:{self.column}:{self.after}"

    def start(self, source: bytes) -> int | None:
        """The offset of the place in a file; None if its lines are gone."""
        block, at = self.block.encode(), -1
        for _ in range(self.nth + 1):
            at = source.find(block, at + 1)
            if at < 0:
                return None
        return at + self.column

    def mutated(self, source: bytes) -> bytes | None:
        """The file with this one edit; None if its lines are gone."""
        start = self.start(source)
        if start is None:
            return None
        return source[:start] + self.after.encode() + source[start + len(self.before.encode()) :]


class Finder:
    """The sites of one file, in order."""

    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        self._lines = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
        self.found: list[Site] = []
        self._walk(ast.parse(source), False)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The offsets of the first byte and of the one after the last."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )

    def _add(self, kind: str, node: ast.expr | ast.stmt, after: Iterable[str]) -> None:
        start, end = self.span(node)
        first = self._lines[node.lineno - 1]
        last = self._lines[node.end_lineno or node.lineno]
        block, nth, at = self._source[first:last], 0, -1
        while (at := self._source.find(block, at + 1)) != first:
            nth += 1
        before = self._source[start:end].decode()
        for text in after:
            place = (block.decode(), nth, start - first)
            self.found.append(Site(self._file, node.lineno, kind, before, text, *place))

    def _walk(self, node: ast.AST, live: bool) -> None:
        match node:
            case ast.Raise() | ast.JoinedStr() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if node.name != "__repr__":
                    for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                        self._walk(default, True)
                    self._all(node.body, True)
                return
            case ast.ClassDef():
                self._all(node.body, False)
                return
            case ast.Assign(targets=[ast.Name(id=name), *_]):
                if not name.startswith("__"):
                    self._walk(node.value, True)
                return
            case ast.AnnAssign(target=target):
                if node.value:
                    self._walk(node.value, live or isinstance(target, ast.Name))
                return
            case ast.Call(func=ast.Name(id=name)) if name in FOR_TYPES:
                return
            case ast.Subscript(value=ast.Name(id=name)) if name in FOR_TYPES:
                return
            case ast.match_case():
                self._all([*([node.guard] if node.guard else []), *node.body], live)
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                self._all(node.orelse, live)
                return
            case _ if not live:  # it has no name, and is run at import
                pass
            case ast.If() | ast.IfExp():
                text = self._source[slice(*self.span(node.test))].decode()
                self._add("branch taken always", node.test, [f"({text}) or True"])
            case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
                self._add("call dropped", node, ["pass"])
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                (start, _), (_, end) = self.span(left), self.span(right)
                head, tail = self.span(left)[1], self.span(right)[0]
                between = self._source[head:tail].decode()
                texts = [
                    re.sub(r"[<>=!]=?|(is|not|in)(\s+(not|in))?", t, between, count=1)
                    for t in TURNED[type(op)]
                ]
                self._add(
                    "comparison turned",
                    node,
                    [self._source[start:head].decode() + t + self._source[tail:end].decode() for t in texts],
                )
            case ast.Constant():
                self._constant(node)
        self._all(ast.iter_child_nodes(node), live)

    def _all(self, nodes: Iterable[ast.AST], live: bool) -> None:
        for node in nodes:
            self._walk(node, live)

    def _constant(self, node: ast.Constant) -> None:
        value: Any = node.value
        if isinstance(value, bool):
            value = not value
        elif isinstance(value, int | float):
            value = value + 1 if value in range(17) else value * 2
        elif (
            isinstance(value, str)
            and re.fullmatch(r"[A-Za-z_][\w./-]*", value)
            and node.lineno == node.end_lineno
        ):
            value += "x"
        else:
            return
        self._add("constant changed", node, [repr(value)])


def sites_of(root: Path) -> list[Site]:
    """Every site of walkit/ in a checkout, except in generated files and in code that has no name at import."""
    found = []
    for path in sorted(root.glob("walkit/**/*.py")):
        if "_pb2" not in path.name:
            found += Finder(str(path.relative_to(root)), path.read_bytes()).found
    return found


def compiles(source: bytes | None) -> bool:
    """Whether it is Python."""
    try:
        compile(source or b"?", "source", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def draw(root: Path, seed: int, count: int) -> list[Site]:
    """Draw mutants: one of each room at least, the rest by the rooms' numbers of sites; of each kind as many."""
    rng = random.Random(seed)
    by_room: dict[str, list[Site]] = defaultdict(list)
    for site in sites_of(root):
        by_room[site.room].append(site)
    seats = dict.fromkeys(sorted(by_room), 1)
    while sum(seats.values()) < count:
        seats[max(seats, key=lambda room: len(by_room[room]) / (seats[room] + 1))] += 1
    kinds = [KINDS[n % len(KINDS)] for n in range(count)]
    rng.shuffle(kinds)
    drawn: list[Site] = []
    for room, number in seats.items():
        by_kind = {kind: [site for site in by_room[room] if site.kind == kind] for kind in KINDS}
        for left in by_kind.values():
            rng.shuffle(left)
        for _ in range(number):
            kind = next(kind for kind in kinds if by_kind[kind])
            site = by_kind[kind].pop()
            while not compiles(site.mutated((root / site.file).read_bytes())):
                site = by_kind[kind].pop()
            kinds.remove(kind)
            drawn.append(site)
    return drawn


def beacons(root: Path, mutants: list[Site]) -> dict[str, bytes]:
    """The files of a checkout with a beacon at the place of each mutant, by name."""
    inserted: dict[str, list[tuple[int, int, int, bytes]]] = defaultdict(list)
    for n, site in enumerate(mutants):
        source = (root / site.file).read_bytes()
        start, call = site.start(source), b"__reached__(%d)" % n
        if start is None:
            continue
        if compiles(f"({site.before})".encode()):
            end = start + len(site.before.encode())
            inserted[site.file] += [
                (start, 1, start - end, b"(" + call + b", "),
                (end, 0, end - start, b")[1]"),
            ]
        else:
            indent = b" " * (start - source.rfind(b"\n", 0, start) - 1)
            inserted[site.file].append((start, 1, -1_000_000, call + b"\n" + indent))
    files = {}
    for file, places in inserted.items():
        source, last, parts = (root / file).read_bytes(), 0, []
        for start, _, _, text in sorted(set(places)):
            parts += [source[last:start], text]
            last = start
        files[file] = b"".join([*parts, source[last:]])
        assert compiles(files[file]), f"a beacon in {file} does not compile"
    return files
