"""How options of a workload are refused: one sentence that names the option, its value and what it may be."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from walkit._arguments import refuse


def require(holds: bool, option: str, value: object, wanted: str) -> None:
    """Raise OptionsError that names the option unless it `holds`."""
    if not holds:
        refuse(option, value, f"{wanted}")


def is_count(value: object, least: int = 1) -> bool:
    """Say whether a value is a whole number of at least `least`."""
    return type(value) is int and value >= least


def require_between(given: object, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Raise OptionsError unless each attribute of `given` is a whole number within its (least, most)."""
    for option, (least, most) in bounds.items():
        value = getattr(given, option)
        good = is_count(value, least) and value <= most
        require(good, option, value, f"a whole number from {least} to {most:,}")


def require_one_of(given: object, allowed: Mapping[str, Collection[object]]) -> None:
    """Raise OptionsError unless each attribute of `given` is one of its values."""
    for option, values in allowed.items():
        value = getattr(given, option)
        require(value in values, option, value, f"it is one of {values}")
