"""Historic bugs of write-ahead logs, each put back into walkit: what an exploration has to find."""

from __future__ import annotations

from walkit.crashlab.mutant import Mutant

MUTANTS: dict[str, Mutant] = {}
"""By name."""
