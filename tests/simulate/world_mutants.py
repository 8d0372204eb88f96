"""Mutants of cores and shells: each a small change of one function's source, with the fault that it stands for."""

from __future__ import annotations

import importlib
import inspect
import json
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BY_HAND = Path(__file__).parent / "world_mutants.json"
DRAWN = Path(__file__).parents[2] / "docs/evidence/world-mutants.json"
"""A mechanical draw; the world finds those with `found`, and a reason stands beside the others."""


@dataclass(frozen=True)
class Mutant:
    """In the source of `target` ("module:Class.function") `old`, which is there once, becomes `new`."""

    name: str
    target: str
    old: str
    new: str
    seed: int
    """A seed that showed it once: the search begins there, so that a test runs few schedules."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have the changed function in the place of the right one in this block."""
        module_name, _, path = self.target.partition(":")
        right: Any = importlib.import_module(module_name)
        for name in path.split("."):
            right = getattr(right, name)
        source = textwrap.dedent(inspect.getsource(right))
        assert source.count(self.old) == 1, f"{self.name}: {self.target} has changed"
        made: dict[str, Any] = {}
        code = "from __future__ import annotations\n" + source.replace(self.old, self.new)
        exec(compile(code, f"<mutant {self.name}>", "exec"), right.__globals__, made)  # noqa: S102 - the mutant
        kept, right.__code__ = right.__code__, made[right.__name__].__code__  # for all who have imported it
        try:
            yield
        finally:
            right.__code__ = kept


FIELDS = ("name", "target", "old", "new", "seed")
MUTANTS = {
    row["name"]: Mutant(*(row[field] for field in FIELDS))
    for file in (BY_HAND, DRAWN)
    for row in json.loads(file.read_text())
    if "seed" in row
}
