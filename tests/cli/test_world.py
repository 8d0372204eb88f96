"""`walkit simulate world`: what it prints where every rule holds, and where one is broken."""

from __future__ import annotations

import json

from tests.cli.conftest import Run
from tests.simulate.world_mutants import MUTANTS

MUTANT = next(mutant for mutant in MUTANTS if mutant.name == "an error counted as progress")


def test_schedules_that_hold_every_rule_exit_with_0(run: Run) -> None:
    """Run three seeds twice: 0, what was run as text, and as JSON with the same digest."""
    text = run("simulate", "world", "--seed", "7", "--schedules", "3")
    plain = run("simulate", "world", "--seed", "7", "--schedules", "3", "--json")
    assert (text.code, plain.code) == (0, 0)
    report = json.loads(plain.out)
    assert (report["schedules"], report["failures"]) == (3, [])
    assert f"{report['digest']:08x}" in text.out


def test_a_failure_is_printed_with_the_command_that_runs_it_again(run: Run) -> None:
    """Break a core, run seeds until one fails, then run the command that was printed: the same failure, and 1."""
    with MUTANT.installed():
        first = run("simulate", "world", "--seed", "4", "--schedules", "1")
        assert first.code == 1
        lines = first.out.splitlines()
        (told,) = (line for line in lines if "breaks 'refused'" in line)
        command = next(line for line in lines if "again: " in line).split("again: walkit ")[1]
        again = run(*command.split())
    assert again.code == 1
    assert told in again.out.splitlines()
    assert run(*command.split()).code == 0
