"""`walkit simulate world`: what it prints where every rule holds."""

from __future__ import annotations

import json

from tests.cli.conftest import Run


def test_schedules_that_hold_every_rule_exit_with_0(run: Run) -> None:
    """Run two seeds with faults for half a second, twice: 0, what was run as text, and as JSON with the same digest."""
    asked = ("simulate", "world", "--seed", "7", "--schedules", "2", "--chaos-ms", "500")
    text, plain = run(*asked), run(*asked, "--json")
    assert (text.code, plain.code) == (0, 0)
    report = json.loads(plain.out)
    assert (report["schedules"], report["failures"]) == (2, [])
    assert f"{report['digest']:08x}" in text.out
