"""Each historic bug is found by an exploration, or the oracle proves nothing; nothing of it is left afterwards."""

from __future__ import annotations

import sys

import pytest

from walkit.crashlab import SCENARIOS, explore, museum
from walkit.errors import OptionsError

BUDGETS = {"promise-first": 150, "hole-accepted": 240, "removed-first": 240}
"""States that it takes, if sixty are too few; some more than the fewest that find it under several seeds."""


@pytest.mark.parametrize("name", museum.MUTANTS)
def test_each_mutant_is_found(name: str) -> None:
    """Put a bug back and explore its scenario: a state breaks a rule. The mutant says where it was seen."""
    mutant = museum.MUTANTS[name]
    with mutant.applied():
        found = explore(mutant.scenario, budget=BUDGETS.get(name, 60))
    assert not found.ok and found.broken <= found.distinct, found.text()
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
        with mutant.applied():
            assert functions() != before
            with pytest.raises(OptionsError), museum.MUTANTS["removed-first"].applied():
                pass
        after = functions()
        assert {key: after[key] for key in before} == before, mutant.name
