"""Checks of what callers give to any function: LSNs, seconds, True or False, functions for progress."""

from __future__ import annotations

import operator
from typing import Any, NoReturn

from walkit.errors import OptionsError

NUMBER_MAX = (1 << 63) - 1
"""The largest LSN there can be: Arrow's int64, and what a manifest holds."""


def refuse(option: str, value: object, text: str, stored: object = None) -> NoReturn:
    """Raise the OptionsError for a value that a caller gave: "option=value: text"."""
    raise OptionsError(f"{option}={value!r}: {text}", option=option, wanted=value, stored=stored) from None


def as_lsn(value: Any, option: str = "lsn") -> int:
    """Return the LSN that a caller gave as a plain int; numpy's whole numbers, which pandas gives, are taken too.

    OptionsError for what is no whole number of 64 bits: nothing else may reach a file that has to be read again.
    """
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            value = operator.index(value)
        except TypeError:
            refuse(option, value, "an LSN is a whole number; nothing was changed")
    if not -NUMBER_MAX <= value <= NUMBER_MAX:
        refuse(option, value, "an LSN has 64 bits; nothing was changed")
    plain: int = value
    return plain


def check_kind(value: object, kind: type, option: str) -> None:
    """Raise OptionsError for a value that is neither None nor of a class."""
    if value is not None and not isinstance(value, kind):
        raise OptionsError(
            f"{option} is a {type(value).__name__}, not {kind.__name__}", option=option, wanted=value
        )


def as_seconds(value: Any, option: str = "timeout") -> float:
    """Return a time that a caller gave, in seconds; OptionsError for what is no number."""
    try:
        seconds = float(value)
        if isinstance(value, str | bytes) or seconds != seconds:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        refuse(option, value, "a number of seconds; nothing was written")
    return seconds


def check_progress(value: object, arguments: str) -> None:
    """Raise OptionsError for a `progress` that is neither None nor callable.

    `arguments` are what it takes, for the message. To be called before anything is begun.
    """
    if value is not None and not callable(value):
        refuse("progress", value, f"a callable that takes {arguments}, or None; nothing was changed")


def check_bool(value: object, option: str) -> None:
    """OptionsError for what is neither True nor False, also where it counts as one: 1 may have meant a number."""
    if type(value) is not bool:
        refuse(option, value, "True or False")
