"""The tables of scenarios: each entry names tests that exist, also after a test was removed or renamed."""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

import pytest

from tests.conformance import (
    test_automq_commit,
    test_automq_delta,
    test_automq_objects,
    test_iggy_cluster,
    test_iggy_journal,
    test_iggy_quiver_recovery,
    test_kevo_replication,
    test_quiver_upkeep,
)
from tests.conftest import Checkout

TABLES = (
    test_automq_commit,
    test_automq_delta,
    test_automq_objects,
    test_iggy_cluster,
    test_iggy_journal,
    test_iggy_quiver_recovery,
    test_kevo_replication,
    test_quiver_upkeep,
)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.__name__))
def test_each_entry_of_a_table_names_tests_that_are_there(table: Any, checkout: Checkout) -> None:
    """Look up each test that a scenario names: its file has it, and `make test` runs it; each scenario has one."""
    assert [scenario for scenario, entry in table.WHERE.items() if not entry] == []
    missing = []
    for where in (where for entry in table.WHERE.values() for where in entry):
        file, _, name = where.partition("::")
        if name not in names_in(str(checkout.root / "tests" / f"{file}.py")):
            missing.append(where)
    assert not missing


@cache
def names_in(path: str) -> set[str]:
    """Return the tests, classes and state machines of a file that are neither slow nor skipped."""
    with open(path, encoding="utf-8") as file:
        body = ast.parse(file.read()).body
    defined = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    kept_out = ("pytest.mark.slow", "pytest.mark.skip", "pytest.mark.skipif")
    return {
        node.name
        for node in defined
        if not any(ast.unparse(mark).partition("(")[0] in kept_out for mark in node.decorator_list)
    }
