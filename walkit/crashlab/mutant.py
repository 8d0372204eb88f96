"""A mutant: walkit with one historic bug put back, for as long as a `with` block."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from walkit._internal.arguments import refuse

Change = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Takes a function of walkit and returns its replacement."""

_applied: list[str] = []


@dataclass(frozen=True)
class Patch:
    """One function or method that a mutant replaces."""

    owner: Any
    """The class that has it, or the module: then it is replaced in every module of walkit that has imported it."""
    name: str
    change: Change = field(repr=False)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace it within the block."""
        own = vars(self.owner)[self.name]
        changed = self.change(own)
        self._replace(own, changed)
        try:
            yield
        finally:
            self._replace(changed, own)

    def _replace(self, before: Any, after: Any) -> None:
        if isinstance(self.owner, type):
            setattr(self.owner, self.name, after)
            return
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "walkit" and vars(module).get(self.name) is before:
                setattr(module, self.name, after)


@dataclass(frozen=True)
class Mutant:
    """A bug that a log had, as a patch of walkit itself."""

    name: str
    text: str
    """The bug in a sentence."""
    seen_in: str
    """Where the bug was: engines, with the number of the report."""
    scenario: str
    """The scenario in which it shows."""
    rules: tuple[str, ...]
    """The bug is found if states of the scenario break one of these. "next" is in none: there the oracle's own
    append meets the bug, whatever the scenario did."""
    patches: tuple[Patch, ...] = field(repr=False)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the bug in this process, in every log, until the block ends: for nothing but a laboratory.

        OptionsError within the block of another mutant.
        """
        if _applied:
            refuse("mutant", self.name, f"{_applied[0]!r} is applied already")
        with ExitStack() as undone:
            for patch in self.patches:
                undone.enter_context(patch.applied())
            _applied.append(self.name)
            undone.callback(_applied.clear)
            yield


def applied_mutant() -> str:
    """Return the name of the mutant that is applied; "" if none is."""
    return _applied[0] if _applied else ""
