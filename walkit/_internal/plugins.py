"""Plug-ins of other packages by name: entry points, looked up at the request for a name and loaded one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from walkit._internal.arguments import refuse

Group = Literal["walkit.policies", "walkit.devices"]
"""The groups of entry points that walkit reads."""


def offered(group: Group) -> list[str]:
    """Return the names that installed packages offer in a group, sorted; loads none of them."""
    from importlib.metadata import entry_points

    return sorted({entry.name for entry in entry_points(group=group)})


def load(group: Group, name: str, option: str, own: Iterable[str]) -> Any:
    """Load the object that a package offers under this name.

    OptionsError, which names the option, if no package offers it (the message also has walkit's `own` names), if two
    packages offer different objects under it, and if it cannot be loaded; the cause is chained.
    """
    from importlib.metadata import entry_points

    found = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if not found:
        refuse(option, name, f"one of {', '.join(sorted({*own, *offered(group)}))}")
    if len(found) > 1:
        values = " and ".join(sorted(found))
        refuse(option, name, f"{group} offers it twice, as {values}")
    ((value, entry),) = found.items()
    try:
        return entry.load()
    except Exception as error:  # noqa: BLE001 - the package's own code runs, and may raise anything
        refuse(option, name, f"{value} of {group} cannot be loaded: {error}", cause=error)
