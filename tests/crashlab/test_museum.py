"""Each historic bug is found by an exploration, or the oracle proves nothing; nothing of it is left afterwards."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from walkit.crashlab import RULES, SCENARIOS, explore, museum
from walkit.crashlab.mutant import Patch
from walkit.errors import OptionsError

BUDGET = 24
BUDGETS = {"hole-accepted": 100}
SEEDS = {
    "failed-sync-retried": 4,
    "promise-first": 2,
    "hole-accepted": 8,
    "directory-unsynced": 6,
    "removed-first": 7,
    "snapshot-ahead": 4,
}
"""Seeds whose first states have the bug, where others take up to ten times as many."""


@pytest.mark.parametrize("name", museum.MUTANTS)
def test_each_mutant_is_found(name: str) -> None:
    """Put a bug back and explore its scenario: each patch is entered, and states break a rule that the bug is about."""
    mutant = museum.MUTANTS[name]
    entered: Counter[str] = Counter()

    def counted(patch: Patch) -> Patch:
        def change(own: Callable[..., Any]) -> Callable[..., Any]:
            changed = patch.change(own)

            def call(*given: Any, **named: Any) -> Any:
                entered[patch.name] += 1
                return changed(*given, **named)

            return call

        return replace(patch, change=change)

    with replace(mutant, patches=tuple(map(counted, mutant.patches))).applied():
        found = explore(mutant.scenario, budget=BUDGETS.get(name, BUDGET), seed=SEEDS.get(name, 0))
    assert entered.keys() == {patch.name for patch in mutant.patches}
    assert all(patch.name == "__init__" or not patch.name.startswith("_") for patch in mutant.patches)
    assert mutant.rules and set(mutant.rules) <= RULES.keys() - {"next"}
    assert any(found.rules.get(rule) for rule in mutant.rules), found.text()
    assert found.broken == sum(found.rules.values()) <= found.distinct and not found.ok
    assert mutant.scenario in SCENARIOS and mutant.seen_in and mutant.text and name == mutant.name


def test_nothing_of_a_mutant_is_left() -> None:
    """Apply each mutant and leave it: every function of walkit is the one that it was. Two at once are refused."""

    def functions() -> dict[tuple[str, str], object]:
        modules = {n: m for n, m in list(sys.modules.items()) if n.partition(".")[0] == "walkit"}
        found: dict[tuple[str, str], object] = {}
        for name, module in modules.items():
            for attribute, value in vars(module).items():
                if callable(value):
                    found[name, attribute] = value
                for method, function in vars(value).items() if isinstance(value, type) else ():
                    found[name, f"{attribute}.{method}"] = function
        return found

    before = functions()
    for mutant in museum.MUTANTS.values():
        own = [vars(patch.owner)[patch.name] for patch in mutant.patches]
        with mutant.applied():
            assert all(vars(p.owner)[p.name] is not f for p, f in zip(mutant.patches, own, strict=True))
            with pytest.raises(OptionsError), museum.MUTANTS["removed-first"].applied():
                pass
    after = functions()
    assert {key: after[key] for key in before} == before
