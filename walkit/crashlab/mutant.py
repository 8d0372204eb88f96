"""A mutant: walkit with one historic bug put back, for as long as a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from walkit.errors import OptionsError

Change = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Takes a function of walkit and returns the one that stands in its place."""

_applied: list[str] = []


@dataclass(frozen=True)
class Patch:
    """One function that a mutant replaces."""

    owner: Any
    """The module or class that has it."""
    name: str
    change: Change = field(repr=False)


@dataclass(frozen=True)
class Mutant:
    """A bug that a log had, as a patch of walkit itself."""

    name: str
    text: str
    """What is wrong, in a sentence."""
    seen_in: str
    """Where the bug was: the engine, and its issue."""
    scenario: str
    """The scenario in which it shows."""
    rules: tuple[str, ...]
    """The rules of `walkit.crashlab.RULES` one of which it breaks first."""
    patches: tuple[Patch, ...] = field(repr=False)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the bug in this process, in every log, until the block ends. Not beside logs that matter.

        OptionsError within the block of another mutant.
        """
        if _applied:
            raise OptionsError(f"the mutant {_applied[0]!r} is applied already", option="mutant")
        with ExitStack() as undone:
            for patch in self.patches:
                own = vars(patch.owner)[patch.name]
                undone.callback(setattr, patch.owner, patch.name, own)
                setattr(patch.owner, patch.name, patch.change(own))
            _applied.append(self.name)
            undone.callback(_applied.clear)
            yield


def applied_mutant() -> str:
    """Return the name of the mutant that is applied; "" where none is."""
    return _applied[0] if _applied else ""
