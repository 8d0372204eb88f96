"""The tables of scenarios: each entry names tests that exist, also after a test was removed or renamed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conformance import (
    test_automq_commit,
    test_automq_delta,
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
    test_iggy_cluster,
    test_iggy_journal,
    test_iggy_quiver_recovery,
    test_kevo_replication,
    test_quiver_upkeep,
)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.__name__))
def test_each_entry_of_a_table_names_tests_that_are_there(table: Any, checkout: Checkout) -> None:
    """Look up every test that a scenario of the table names: its file has a test or a class of that name."""
    missing = []
    for where in (where for entry in table.WHERE.values() for where in entry):
        file, name = where.split("::")
        source = (checkout.root / "tests" / f"{file}.py").read_text(encoding="utf-8")
        if not re.search(rf"^(def|class) {name}\(", source, re.MULTILINE):
            missing.append(where)
    assert not missing
