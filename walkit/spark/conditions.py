"""Conditions as Spark prints them: which LSNs they leave, and which columns of a log they look at.

Spark's own text is read, as in `Filter ((lsn#0L <= cast(7 as bigint)) AND isnotnull(key#2))`, because it is the one
form in which a plan is to be had everywhere: of a classic session, over Spark Connect, through views. A number after
`#` identifies a column, whatever its later name. What is not understood counts as looked at, and never as a
bound.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

KEY, LSN = "key", "lsn"
JUST_THE_LSN = frozenset({LSN})
COMPUTED = "computed"
"""Marks, beside the columns of a log, that a column is computed from; without it the column is the log's own."""

Columns = Mapping[int, frozenset[str]]
"""Which columns of a log each of a plan's columns is made of, by the number that the plan gives it."""
Bounds = tuple[int | None, int | None]
"""The first and the last LSN, inclusive; None for no bound."""

_COLUMN = re.compile(r"#(\d+)L?\b")
_ONE_COLUMN = re.compile(r"(cast\()?[^#()]*#(\d+)L?(?(1) as (bigint|double|decimal\((\d+),(\d+)\))\))")
"""A column, alone or cast to a type in which LSNs compare as they do: text and narrow numbers are none."""
LSN_DIGITS = 19
_IS_NOT_NULL = re.compile(r"isnotnull\([^#()]*#(\d+)L?\)")
_BETWEEN = re.compile(r"between\(([^#(),]*#\d+L?), (.*)\)")
_CHANCE = re.compile(r"\b(rand|randn|random|uuid|monotonically_increasing_id|spark_partition_id)\(")
_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<=>": "<=>"}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


@dataclass(slots=True)
class Condition:
    """What a condition says of the records that it leaves."""

    first_lsn: int | None = None
    last_lsn: int | None = None
    left_out: list[str] = field(default_factory=list)
    """Parts that may leave out some records of a key and not the others."""
    by_key: bool = False
    """Whether there are parts that say nothing of a log's columns but the key."""


def read_condition(text: str, columns: Columns) -> Condition:
    """Return what the condition of a filter says, AND-ed parts together."""
    found = Condition()
    for part in conjuncts(text):
        bounds = _bounds(part, columns)
        if bounds is not None:
            found.first_lsn = max((n for n in (found.first_lsn, bounds[0]) if n is not None), default=None)
            found.last_lsn = min((n for n in (found.last_lsn, bounds[1]) if n is not None), default=None)
            continue
        alone = _IS_NOT_NULL.fullmatch(part)
        if alone is not None and columns.get(int(alone[1])) == JUST_THE_LSN:
            continue  # no record is without an LSN
        if mentioned(part, columns) - {KEY, COMPUTED} or is_by_chance(part):
            found.left_out.append(plain(part))
        else:
            found.by_key = True
    return found


def is_by_chance(text: str) -> bool:
    """Return whether an expression comes out differently from row to row, or from run to run."""
    return _CHANCE.search(text) is not None


def mentioned(text: str, columns: Columns) -> frozenset[str]:
    """Return the columns of the log that an expression is made of."""
    return frozenset().union(*(columns.get(int(number), frozenset()) for number in _COLUMN.findall(text)))


def plain(text: str) -> str:
    """Return an expression without the numbers of columns."""
    return _COLUMN.sub("", text)


def conjuncts(text: str) -> Iterator[str]:
    """Yield the AND-ed parts of a condition, without the parentheses around them."""
    text = _bare(text)
    parts = list(split(text, " AND "))
    if len(parts) == 1:
        yield text
    else:
        for part in parts:
            yield from conjuncts(part)


def split(text: str, by: str) -> Iterator[str]:
    """Yield the parts of a text between separators that are in no parentheses or brackets."""
    depth = start = at = 0
    while at < len(text):
        depth += (text[at] in "([") - (text[at] in ")]")
        if depth == 0 and text.startswith(by, at):
            yield text[start:at]
            start = at = at + len(by)
        else:
            at += 1
    yield text[start:]


def _bare(text: str) -> str:
    """Return a text without parentheses around the whole of it."""
    text = text.strip()
    while text.startswith("(") and text.endswith(")") and _closes_last(text):
        text = text[1:-1].strip()
    return text


def _closes_last(text: str) -> bool:
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at == len(text) - 1
    return False


def _bounds(part: str, columns: Columns) -> Bounds | None:
    """Return the LSNs that a comparison of the LSN with a number leaves; None for anything else."""
    negated = part.startswith("NOT ")
    part = _bare(part[4:]) if negated else part
    between = _BETWEEN.fullmatch(part)
    if between is not None and not negated:
        limits = [_number(text) for text in split(between[2], ", ")]
        if not _is_lsn(between[1], columns) or len(limits) != 2 or limits[0] is None or limits[1] is None:
            return None
        return math.ceil(limits[0]), math.floor(limits[1])
    for sign, swapped in _SWAPPED.items():
        sides = list(split(part, f" {sign} "))
        if len(sides) != 2:
            continue
        left, right = sides
        turned = _is_lsn(right, columns)
        number = _number(left) if turned else _number(right) if _is_lsn(left, columns) else None
        said = swapped if turned else sign
        return None if number is None else _compared(_NEGATED.get(said, "") if negated else said, number)
    return None


def _compared(sign: str, number: float) -> Bounds | None:
    match sign:
        case "<":
            return None, math.ceil(number) - 1
        case "<=":
            return None, math.floor(number)
        case ">":
            return math.floor(number) + 1, None
        case ">=":
            return math.ceil(number), None
        case "=" | "<=>":
            return math.ceil(number), math.floor(number)
    return None


def _is_lsn(text: str, columns: Columns) -> bool:
    found = _ONE_COLUMN.fullmatch(_bare(text))
    if found is None or columns.get(int(found[2])) != JUST_THE_LSN:
        return False
    return found[4] is None or int(found[4]) - int(found[5]) >= LSN_DIGITS


def _number(text: str) -> int | float | None:
    """Return the number that an expression without columns comes to; None where it is none, or not a plain one."""
    if re.search(r" as (?:bigint|int)\)", text) and re.search(r"[.E]", text):
        return None  # it may lose a fraction
    narrow = " as int)" in text
    text = re.sub(r" as (?:bigint|int|double|decimal\(\d+,\d+\))\)", ")", text)
    text = re.sub(r"\bcast\(", "(", text).strip()
    if not re.fullmatch(r"[\d+\-*(). E]+", text):
        return None
    try:
        number = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, OverflowError):
        return None
    if not math.isfinite(number) or (narrow and abs(number) >= 2**31):
        return None
    return number


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            result: int | float = _ARITHMETIC[type(op)](_value(left), _value(right))
            return result
    raise ValueError(ast.dump(node))
