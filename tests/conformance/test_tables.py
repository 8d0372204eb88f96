"""The list of scenarios: each entry names tests that exist, also after a test was removed or renamed."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_each_scenario_names_tests_that_are_there() -> None:
    """Look up each test that a scenario names: its file has it, and `make test` runs it; each scenario has one."""
    rows = [line for line in (HERE / "scenarios.md").read_text().splitlines() if line.startswith("- ")]
    entries = {
        row: re.findall(r"`([^`]+::[^`]+)`", row) for row in rows if not row.startswith("- Not here: ")
    }
    assert len(entries) > 280 and [row for row, named in entries.items() if not named] == []
    missing = []
    for where in {where for named in entries.values() for where in named}:
        file, _, name = where.partition("::")
        if name not in names_in(HERE.parent / f"{file}.py"):
            missing.append(where)
    assert not missing


@cache
def names_in(path: Path) -> set[str]:
    """Return the tests, classes and state machines of a file that are neither slow nor skipped."""
    body = ast.parse(path.read_text()).body
    defined = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    kept_out = ("pytest.mark.slow", "pytest.mark.skip", "pytest.mark.skipif")
    return {
        node.name
        for node in defined
        if not any(ast.unparse(mark).partition("(")[0] in kept_out for mark in node.decorator_list)
    }
