"""State machines that count their own effects: a machine whose rules never apply shows nothing."""

from __future__ import annotations

from typing import Any


def that_did(machine: Any, *effects: str) -> Any:
    """Return the machine's test case, which fails if any of these effects never happened in all of its runs."""
    case = machine.TestCase
    run = case.runTest

    def counted(self: Any) -> None:
        machine.did.clear()
        run(self)
        missed = [effect for effect in effects if not machine.did[effect]]
        assert not missed, f"{missed} never happened: {dict(machine.did)}"

    case.runTest = counted
    return case
