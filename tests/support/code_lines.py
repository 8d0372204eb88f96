"""Lines with code per room, and the budget of each room.

`python -m tests.support.code_lines` prints the table; with `--lower`, it lowers the budgets in code_lines.json to what
the rooms have now. tests/test_architecture.py holds each room to its budget.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections.abc import Mapping
from pathlib import Path

from tests.support.import_graph import parsed, statements

BUDGETS = Path(__file__).with_name("code_lines.json")
COUNTED = ("walkit/", "pyspark_walkit/", "dashboards/", "scripts/")
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Return how many lines of a module have code: no blank lines, no comments, no docstrings."""
    docstrings = {
        line
        for node in statements(parsed(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = {number: line.strip() for number, line in enumerate(source.split("\n"), 1)}
    if not any('"""' in line for number, line in lines.items() if number not in docstrings):
        return sum(line[:1] not in ("", "#") for number, line in lines.items() if number not in docstrings)
    # A string over several lines, whose blank lines count. The tokens of all modules take five seconds.
    found = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(found - docstrings)


def room_lines(files: Mapping[str, str]) -> dict[str, int]:
    """Return the lines with code of each room: a folder in walkit, the modules beside it, or another root folder.

    `files` are texts by path. Generated modules and files outside the counted folders are left out.
    """
    found: dict[str, int] = {}
    for path, source in sorted(files.items()):
        if path.startswith(COUNTED) and "_pb2" not in path:
            root, room, *inner = path.split("/")
            name = root if root != "walkit" else room if inner else "(root)"
            found[name] = found.get(name, 0) + code_lines(source)
    return found


def rounded_up(lines: int) -> int:
    """Return the budget for a number of lines: the next ten."""
    return -(-lines // 10) * 10


def over_budget(lines: Mapping[str, int], budgets: Mapping[str, int]) -> list[str]:
    """Return a sentence for each room over its budget, or without one, and for each budget without a room."""
    return [
        *(
            f"{room} has {count:,} lines with code; its budget is {budgets.get(room, 0):,}"
            for room, count in lines.items()
            if count > budgets.get(room, 0)
        ),
        *(f"{room} has a budget and no module" for room in budgets if room not in lines),
    ]


def main(arguments: list[str]) -> None:
    """Print the table, or lower the budgets."""
    from tests.conftest import ROOT, Checkout

    lines = room_lines(Checkout(root=ROOT).files(".py"))
    budgets: dict[str, int] = json.loads(BUDGETS.read_text())
    if "--lower" in arguments:
        budgets = {
            room: min(budgets[room], rounded_up(count)) for room, count in lines.items() if room in budgets
        }
        BUDGETS.write_text(json.dumps(budgets, indent=0) + "\n")
    for room, count in lines.items():
        print(f"{room:16}{count:8,}  of {budgets.get(room, 0):8,}")
    print(f"{'in all':16}{sum(lines.values()):8,}  of {sum(budgets.values()):8,}")


if __name__ == "__main__":
    main(sys.argv[1:])
