"""Where the log keeps its word over a power cut: the calls and comparisons that scripts/crash_score.py takes away.

A site is a call of sync, sync of a directory, replace, remove or poison, their wrappers included, or a comparison with
a claim, a bound, a watermark, a generation, a tombstone or a durable position. An edit drops, inverts or swaps it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from scripts.mutant_sites import Finder, Site

ROOMS = ("log", "commit", "segments", "recovery", "compaction", "state", "store.py", "storage/interface.py")
"""The storage counts with its interface only: the laboratory's disk is a model in memory."""
LEFT_OUT = ("walkit/log/scratch.py",)
"""A folder of the operating system, which ends with its process."""

CALLS = {
    "sync of a directory": r"sync_directory",
    "sync": r"sync|sync_now|sync_for_leader|sync_unsealed|sync_segments|sync_and_apply|make_durable|drop_cached",
    "replace": r"(storage|target)\.replace|rename|write_whole|store\.update",
    "remove": r"(storage|target)\.remove|remove_if_there|remove_claims|table\.remove|orphan_files\.(remove|give_up)",
    "poison": r"(on_)?poison|poisoning|(failure|segment|self)\.fail",
}
"""By kind, the ends of function names, without leading underscores."""
OF_THE_SYSTEM = ("os.", "FileStorage(")
"""How calls begin that leave the storage which the log was given."""
COMPARED = {
    "claim": {"claim", "claims", "hold", "holds", "need", "needs", "needed", "released", "expired", "passed"},
    "tombstone": {"tombstone", "tombstones", "exact", "horizon"},
    "generation": {"generation"},
    "durable": {"durable", "promised", "vouched", "synced"},
    "watermark": {"watermark", "low", "checkpoint", "trimmed"},
    "bound": {"bound", "floor", "limits", "slots", "oldest"},
}
"""By kind, words of which one is among the names that are compared; the first kind that fits counts."""
KINDS = (*CALLS, *COMPARED)
EDITS = ("dropped", "inverted", "swapped")
INVERTED = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
}
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
STAYS = (ast.Return, ast.Raise, ast.Break, ast.Continue, ast.Pass, ast.Import, ast.ImportFrom, ast.Nonlocal)
"""Statements with which nothing is swapped; nor is it with a counter or an event, which no state holds."""


def call_kind(node: ast.AST) -> str:
    """Return the kind of a call; "" for any other node."""
    if not isinstance(node, ast.Call):
        return ""
    name = re.sub(r"(^|\.)_+", r"\1", ast.unparse(node.func))
    if name.startswith(OF_THE_SYSTEM):
        return ""
    return next((kind for kind, ends in CALLS.items() if re.search(rf"(^|[._])({ends})$", name)), "")


def compared_kind(node: ast.Compare) -> str:
    """Return the kind of a comparison; "" for one that no promise rests on, or that asks for None."""
    single = node.comparators[0] if len(node.ops) == 1 else None
    if not all(isinstance(op, tuple(INVERTED)) for op in node.ops):
        return ""
    if isinstance(single, ast.Constant) and not isinstance(single.value, str):
        return ""  # of an argument: no number in the code is a promise
    words: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                words |= {*name.split("_")}
            case ast.Constant(value=str(state)):
                words |= {state} & COMPARED["claim"]
    if "lsn" not in words:
        words.discard("low")  # of a search, and not the low watermark
    return next((kind for kind, wanted in COMPARED.items() if words & wanted), "")


def is_wording(node: ast.AST) -> bool:
    """Return whether a node only chooses between two texts, of a message or an event, which no state holds."""
    chosen = (node.body, node.orelse) if isinstance(node, ast.IfExp) else ()
    return bool(chosen) and all(isinstance(c, ast.Constant) and isinstance(c.value, str) for c in chosen)


def names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Return the plain names that a statement loads, or stores."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


class PromiseFinder(Finder):
    """The sites of one file at which a promise is kept."""

    def _walk(self, node: ast.AST, live: bool) -> None:
        if isinstance(node, ast.Assert) or is_wording(node):
            return
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                self._block(node, field, block)
        for call in ast.iter_child_nodes(node):
            kind = call_kind(call)
            if kind and isinstance(call, ast.expr) and not isinstance(node, ast.Expr):
                if isinstance(node, ast.withitem):
                    self._add(f"{kind}, dropped", call, ['__import__("contextlib").nullcontext()'])
                elif kind == "remove":
                    self._add(f"{kind}, dropped", call, ["True"])
        if isinstance(node, ast.Call):
            for word in node.keywords if ast.unparse(node.func).endswith("write") else ():
                if word.arg == "sync" and ast.unparse(word.value) != "False":
                    self._add("sync, dropped", word.value, ["False"])
        if isinstance(node, ast.Compare):
            self._comparison(node)
        self._all(ast.iter_child_nodes(node), live)

    def _block(self, parent: ast.AST, field: str, block: list[ast.stmt]) -> None:
        for n, statement in enumerate(block):
            kind = call_kind(statement.value) if isinstance(statement, ast.Expr) else ""
            if not kind:
                continue
            self._add(f"{kind}, dropped", statement, ["pass"])
            if isinstance(parent, ast.If) and field == "body":
                self._add(f"{kind}, inverted", parent.test, [f"not ({self._text(parent.test)})"])
            for first, second in self._pairs(block, n):
                self._swap(f"{kind}, swapped", first, second)

    @staticmethod
    def _pairs(block: list[ast.stmt], n: int) -> Iterator[tuple[ast.stmt, ast.stmt]]:
        """Yield the statement with each neighbour, except exits and those that need or make its names."""
        for first, second in zip(block[max(n - 1, 0) : n + 1], block[max(n, 1) : n + 2], strict=False):
            other = first if second is block[n] else second
            is_told = isinstance(other, ast.AugAssign) or "events.emit" in ast.unparse(other)
            is_text = isinstance(other, ast.Expr) and isinstance(other.value, ast.Constant)
            loaded, stored = (names(first, c) | names(second, c) for c in (ast.Load, ast.Store))
            if not isinstance(other, STAYS) and not is_text and not is_told and not loaded & stored:
                yield first, second

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._source[slice(*self.span(node))].decode()

    def _swap(self, kind: str, first: ast.stmt, second: ast.stmt) -> None:
        (start, middle), (again, end) = self.span(first), self.span(second)
        between = self._source[middle:again].decode()
        both = ast.Pass(
            lineno=first.lineno,
            col_offset=first.col_offset,
            end_lineno=second.end_lineno,
            end_col_offset=second.end_col_offset,
        )
        assert self.span(both) == (start, end)
        self._add(kind, both, [self._text(second) + between + self._text(first)])

    def _comparison(self, node: ast.Compare) -> None:
        kind = compared_kind(node)
        if not kind:
            return
        self._add(f"{kind}, dropped", node, ["True", "False"])
        self._add(f"{kind}, inverted", node, [f"not ({self._text(node)})"])
        if len(node.ops) == 1 and isinstance(node.ops[0], ORDERED):
            left, right = node.left, node.comparators[0]
            operator = ast.unparse(node)[len(ast.unparse(left)) :].split()[0]
            self._add(f"{kind}, swapped", node, [f"({self._text(right)}) {operator} ({self._text(left)})"])


def kind_of(site: Site) -> str:
    """Return the kind of a site without its edit."""
    return site.kind.partition(", ")[0]


def edit_of(site: Site) -> str:
    """Return what is done at a site: one of EDITS."""
    return site.kind.partition(", ")[2]


def name_of(site: Site) -> str:
    """Return a short name of a mutant that stays while the lines above it move."""
    parts = (site.file, site.kind, site.block, site.nth, site.column, site.before, site.after)
    return sha256(repr(parts).encode()).hexdigest()[:8]


def promise_sites(root: Path) -> list[Site]:
    """Return every site in the rooms of the log of a checkout."""
    found: list[Site] = []
    for room in ROOMS:
        place = root / "walkit" / room
        for path in sorted(place.glob("**/*.py")) if place.is_dir() else [place]:
            file, source = str(path.relative_to(root)), path.read_bytes()
            if file not in LEFT_OUT:
                found += PromiseFinder(file, source).found
    return list({name_of(site): site for site in found}.values())


def draw(
    sites: Iterable[Site], seed: int, count: int, equivalent: Iterable[str] = ()
) -> tuple[list[Site], list[Site]]:
    """Return (mutants, equivalent ones passed over), drawn by seed: of each kind as many, of each place one at first.

    A mutant's turn depends on its own text alone, so that a change of other lines leaves the draw nearly as it was.
    ValueError if more than one in four of those drawn is equivalent.
    """
    known = {*equivalent}

    def turn(site: Site) -> str:
        return sha256(f"{seed} {name_of(site)}".encode()).hexdigest()

    waiting: dict[str, list[Site]] = {kind: [] for kind in KINDS}
    places: dict[tuple[str, int], int] = {}
    for site in sorted(sites, key=turn):
        waiting[kind_of(site)].append(site)
    for queue in waiting.values():
        ranks = []
        for site in queue:
            place = (site.file, site.line)
            ranks.append(places.setdefault(place, 0))
            places[place] += 1
        queue[:] = [
            site
            for _, _, site in sorted(zip(ranks, range(len(queue)), queue, strict=True), key=lambda r: r[:2])
        ]
    drawn: list[Site] = []
    passed: list[Site] = []
    while len(drawn) < count and any(waiting.values()):
        for queue in waiting.values():
            while queue and name_of(queue[0]) in known:
                passed.append(queue.pop(0))
            if queue and len(drawn) < count:
                drawn.append(queue.pop(0))
    if 4 * len(passed) > len(drawn) + len(passed):
        raise ValueError(
            f"{len(passed)} of {len(drawn) + len(passed)} mutants are called equivalent: one in four at most"
        )
    return drawn, passed
