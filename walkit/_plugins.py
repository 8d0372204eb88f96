"""What other packages offer under a name: entry points, looked up when a name is asked for and loaded one by one."""

from __future__ import annotations

from typing import Any, Literal

from walkit.errors import OptionsError

Group = Literal["walkit.policies", "walkit.devices"]
"""The groups of entry points that walkit reads."""


def offered(group: Group) -> list[str]:
    """Return the names that installed packages offer in a group, sorted; loads none of them."""
    from importlib.metadata import entry_points

    return sorted({entry.name for entry in entry_points(group=group)})


def load(group: Group, name: str) -> Any:
    """Load what a package offers under this name; KeyError where none does.

    OptionsError where two packages offer different things under it, and where it cannot be loaded, which is chained.
    """
    from importlib.metadata import entry_points

    found = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if not found:
        raise KeyError(name)
    if len(found) > 1:
        values = " and ".join(sorted(found))
        raise OptionsError(f"{group}: {name!r} is offered twice, as {values}", option=group, wanted=name)
    ((value, entry),) = found.items()
    try:
        return entry.load()
    except Exception as error:  # the package's own code runs, and may raise anything
        raise OptionsError(
            f"{group}: {name!r} ({value}) cannot be loaded: {error}", option=group, wanted=name
        ) from error
