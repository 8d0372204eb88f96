"""What became of a log's records on their way into a DataFrame, as far as Spark's analyzed plan shows it.

The plan is read as Spark prints it (`DataFrame.explain`), with views in it; what a cache holds has the plan that it was
made by. A classic session also gives what `load()` noted at each relation; over Spark Connect that is known only of the
whole. Steps that are not known (an aggregation, Python code) end the search: what is below them is not looked at, and
`Records.unseen` names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from walkit.spark.conditions import COMPUTED, KEY, LSN, is_by_chance, mentioned, plain, read_condition, split
from walkit.spark.facts import SOURCE_NAME, LogFacts, facts_in

ColumnNames = ("lsn", "kind", "key", "value", "timestamp")
"""Those of a log; of others nothing is known."""

_LINE = re.compile(r"^((?:[: ] {2})*)[:+]- (.*)$", re.DOTALL)
_COLUMN = re.compile(r"([^\[\],]*?)#(\d+)L?(?:\s|$)")
_ALIAS = re.compile(r"(.*) AS [^\[\]()]*?#(\d+)L?", re.DOTALL)
_MADE = re.compile(r" AS [^\[\]()#]*#(\d+)L?")
_LIST = re.compile(r"\[(.*)\]", re.DOTALL)
_REFERENCE = re.compile(r"CTERelationRef (\d+)")

SAME_ROWS = {
    *("Project", "SubqueryAlias", "View", "Sort", "Repartition", "RepartitionByExpression", "Window"),
    *(
        "RebalancePartitions",
        "ResolvedHint",
        "UnresolvedHint",
        "CollectMetrics",
        "CTERelationDef",
        "Distinct",
    ),
}
"""Steps that leave every row as it is, or drop what is there twice."""
FEWER_ROWS = {
    "Sample": "a sample",
    "GlobalLimit": "a limit",
    "LocalLimit": "a limit",
    "Offset": "an offset",
    "Tail": "a limit",
    "Generate": "rows made of a row's columns (explode)",
}
FIRST_SIDE = {"Except", "Intersect"}
SEVERAL = {"Union", "Join", "WithCTE", *FIRST_SIDE}
"""Steps with several inputs; those of others that are printed before the last one are subqueries of a condition."""


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A step of a plan: its line, and the steps that it takes rows from."""

    text: str
    children: tuple[PlanNode, ...] = ()

    @property
    def name(self) -> str:
        """Name of the step."""
        return re.split(r"\W", self.text, maxsplit=1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """A log that the rows are read from, and which of its LSNs may be among them."""

    facts: LogFacts | None
    """What `load()` noted; None where it noted nothing, or where that is not to be had."""
    pushes: bool = False
    """Whether option `pushFilters` of a load without notes is to be seen."""
    first_lsn: int = 1
    last_lsn: int | None = None
    by_key: bool = False
    """Whether there are conditions that may be about the key, so that another read may have the other keys."""

    def within(self, first_lsn: int | None, last_lsn: int | None, *, by_key: bool) -> LogRead:
        """Return this under a condition."""
        lasts = [lsn for lsn in (self.last_lsn, last_lsn) if lsn is not None]
        first, last = max(self.first_lsn, first_lsn or 1), min(lasts, default=None)
        return replace(self, first_lsn=first, last_lsn=last, by_key=self.by_key or by_key)

    def meets(self, other: LogRead) -> bool:
        """Whether this and another read surely have records in common."""
        ours, others = self.facts, other.facts
        if ours is None or others is None or ours.log_id != others.log_id or self.by_key or other.by_key:
            return False
        last = min(
            ours.last_lsn, others.last_lsn, *(r.last_lsn for r in (self, other) if r.last_lsn is not None)
        )
        return max(self.first_lsn, other.first_lsn, ours.first_lsn, others.first_lsn) <= last


@dataclass(slots=True)
class Records:
    """What a plan shows of the records in its rows."""

    reads: list[LogRead] = field(default_factory=list)
    columns: dict[int, frozenset[str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """In words, by what some records of a key may be left out and others not."""
    twice: list[str] = field(default_factory=list)
    """The logs of which records are there twice."""
    brought_together: bool = False
    """Whether a union or a join is among the steps, so that an LSN may be in several rows."""
    unseen: list[str] = field(default_factory=list)
    """Steps through which the plan does not show the records."""

    @property
    def have_unique_lsns(self) -> bool:
        """Whether the rows are of one read of one log, so that no two of them have the same LSN."""
        return len(self.reads) == 1 and not self.brought_together and not self.unseen


def records_of(df: DataFrame) -> Records:
    """Return what the plan of a DataFrame shows of the records of logs in it."""
    noted = {} if is_remote() else _noted(df)
    return look_through(parse_plan(_analyzed(df)), noted, LogFacts.of(df))


def is_load(df: DataFrame) -> bool:
    """Return whether a DataFrame is a load of a log as it is: no step is after it that changes rows or columns."""
    plan = parse_plan(_analyzed(df))
    return not plan.children and plan.name == "RelationV2" and plan.text.endswith(f"] {SOURCE_NAME}")


def _analyzed(df: DataFrame) -> str:
    if not is_remote():
        return str(df._jdf.queryExecution().analyzed().toString())
    text = str(df._explain_string(extended=True))  # type: ignore[operator]
    _, _, rest = text.partition("== Analyzed Logical Plan ==\n")
    plan, _, _ = rest.partition("\n\n== ")
    return plan.partition("\n")[2]  # a line with the schema is before the plan


@dataclass(frozen=True, slots=True)
class Noted:
    """What is known of one relation in a classic session's plan."""

    facts: LogFacts | None
    pushes: bool


def _noted(df: DataFrame) -> dict[int, Noted]:
    """Return what is known of each relation with a column `lsn`, by that column's number in the plan."""
    found = {}
    leaves = df._jdf.queryExecution().analyzed().collectLeaves().iterator()
    while leaves.hasNext():
        leaf = leaves.next()
        columns = leaf.output().iterator()
        while columns.hasNext():
            column = columns.next()
            if column.name() == LSN:
                facts = facts_in(column.metadata().json())
                own_schema = facts is None and leaf.toString().startswith("RelationV2[")
                pushes = own_schema and leaf.options().getBoolean("pushFilters", False)
                found[column.exprId().id()] = Noted(facts, pushes)
    return found


def parse_plan(text: str) -> PlanNode:
    """Return the tree that a plan's text shows: three columns a level, `+- ` or `:- ` before each step."""
    lines: list[tuple[int, str]] = []
    for line in text.rstrip("\n").split("\n"):
        match = _LINE.match(line)
        if match is not None:
            lines.append((len(match[1]) // 3 + 1, match[2]))
        elif lines:
            depth, before = lines[-1]
            lines[-1] = (depth, f"{before}\n{line}")  # a literal with a line break in it
        else:
            lines.append((0, line))
    return _tree(lines, 0, len(lines))


def _tree(lines: Sequence[tuple[int, str]], start: int, stop: int) -> PlanNode:
    depth, text = lines[start]
    begins = [at for at in range(start + 1, stop) if lines[at][0] == depth + 1]
    ends = [*begins[1:], stop]
    node = PlanNode(text, tuple(_tree(lines, a, b) for a, b in zip(begins, ends, strict=bool(begins))))
    sides = {"Join": 2}.get(node.name, 1)
    return node if node.name in SEVERAL - {"Join"} else replace(node, children=node.children[-sides:])


def look_through(plan: PlanNode, noted: Mapping[int, Noted], whole: LogFacts | None) -> Records:
    """Return what a plan shows; `whole` is noted of its rows, and counts for the first log where no other is known."""
    return _Search(noted, whole).look(plan)


class _Search:
    def __init__(self, noted: Mapping[int, Noted], whole: LogFacts | None) -> None:
        self._noted = noted
        self._whole = None if noted else whole
        self._shared: dict[str, PlanNode] = {}
        """Definitions of common table expressions, by number."""

    def look(self, node: PlanNode) -> Records:
        if node.name == "WithCTE":
            for definition in node.children[:-1]:
                self._shared[definition.text.split()[1].rstrip(",")] = definition
            return self.look(node.children[-1])
        if not node.children:
            return self._leaf(node)
        if node.name == "Union":
            return _joined(node, [self.look(child) for child in node.children])
        if node.name == "Join":
            sides = [self.look(child) for child in node.children]
            found = next((side for side in sides if side.reads), sides[0])
            found.reads = [replace(read, by_key=True) for read in found.reads]
            found.brought_together = True
            if mentioned(node.text, found.columns) - {KEY, COMPUTED} or is_by_chance(node.text):
                found.left_out.append(f"the join on {plain(node.text.partition(', ')[2])}")
            return found
        if node.name in FIRST_SIDE:
            found = self.look(node.children[0])
            found.left_out.append(f"the set operation {node.name.upper()}")
            return found
        found = self.look(node.children[0])
        if node.name == "Filter":
            _filter(node.text.removeprefix("Filter "), found)
        elif node.name == "Deduplicate":
            _deduplicate(node, found)
        elif node.name in FEWER_ROWS:
            found.left_out.append(FEWER_ROWS[node.name])
        elif node.name not in SAME_ROWS:
            return Records(unseen=[node.name])
        if node.name == "Distinct":
            found.twice = []
        found.columns.update(_computed(node, found.columns))
        return found

    def _leaf(self, node: PlanNode) -> Records:
        reference = _REFERENCE.match(node.text)
        columns = dict(_columns_in(node.text))
        if reference is not None and reference[1] in self._shared:
            found = self.look(self._shared[reference[1]])
            found.columns = columns
            return found
        lsn = next((number for number, names in columns.items() if names == {LSN}), None)
        noted = self._noted.get(lsn) if lsn is not None else None
        facts = noted.facts if noted is not None else self._whole
        if lsn is None or (facts is None and not node.text.endswith(f" {SOURCE_NAME}")):
            return Records()
        if noted is None:
            self._whole = None
        found = Records([LogRead(facts=facts, pushes=noted is not None and noted.pushes)], columns)
        if not node.text.startswith("RelationV2[") and not node.text.endswith(f" {SOURCE_NAME}"):
            # A checkpoint, or rows with a load's schema: whatever was left out before.
            found.unseen.append(node.name)
        return found


def _columns_in(text: str) -> Iterator[tuple[int, frozenset[str]]]:
    listed = _LIST.search(text)
    for column in split(listed[1], ", ") if listed else ():
        found = _COLUMN.fullmatch(column)
        if found is not None and found[1] in ColumnNames:
            yield int(found[2]), frozenset({found[1]})


def _filter(condition: str, found: Records) -> None:
    said = read_condition(condition, found.columns)
    found.left_out += [f"the condition {part}" for part in said.left_out]
    found.reads = [r.within(said.first_lsn, said.last_lsn, by_key=said.by_key) for r in found.reads]


def _deduplicate(node: PlanNode, found: Records) -> None:
    if LSN in mentioned(node.text, found.columns):
        found.twice = []
    elif found.reads:
        found.left_out.append(f"dropping rows that are equal in {plain(_LIST.search(node.text)[1])}")  # type: ignore[index]


def _joined(node: PlanNode, sides: Sequence[Records]) -> Records:
    """Return what a union of these has: its columns are those of its first side."""
    found = Records(columns=sides[0].columns, brought_together=True)
    for side in sides:
        found.twice += [
            read.facts.log_id
            for read in side.reads
            if read.facts is not None and any(read.meets(other) for other in found.reads)
        ]
        found.reads += side.reads
        found.left_out += side.left_out
        found.twice += side.twice
        found.unseen += side.unseen
    return found


def _computed(node: PlanNode, columns: Mapping[int, frozenset[str]]) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield the columns that a step makes anew, each with what it is made of; a window's are of its rows' LSNs."""
    if node.name == "Window":
        for number in _MADE.findall(node.text):
            yield int(number), frozenset({LSN, COMPUTED})
    listed = _LIST.search(node.text) if node.name == "Project" else None
    for item in split(listed[1], ", ") if listed else ():
        alias = _ALIAS.fullmatch(item)
        if alias is None:
            continue
        source = _COLUMN.fullmatch(alias[1])
        if source is not None and int(source[2]) in columns:
            yield int(alias[2]), columns[int(source[2])]
        else:
            yield int(alias[2]), mentioned(alias[1], columns) | {COMPUTED}
