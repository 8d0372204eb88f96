"""Checks of what callers give to any function: LSNs, seconds, True or False, functions for progress."""

from __future__ import annotations

import operator
from typing import Any

from walkit.errors import OptionsError

NUMBER_MAX = (1 << 63) - 1
"""The largest LSN there can be: Arrow's int64, and what a manifest holds."""


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
            raise OptionsError(
                f"{option}={value!r}: an LSN is a whole number; nothing was changed",
                option=option,
                wanted=value,
            ) from None
    if not -NUMBER_MAX <= value <= NUMBER_MAX:
        raise OptionsError(
            f"{option}={value}: an LSN has 64 bits; nothing was changed", option=option, wanted=value
        )
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
        raise OptionsError(
            f"{option}={value!r}: a number of seconds; nothing was written", option=option, wanted=value
        ) from None
    return seconds


def check_progress(value: object, arguments: str) -> None:
    """Raise OptionsError for a `progress` that is neither None nor callable.

    `arguments` are what it takes, for the message. To be called before anything is begun.
    """
    if value is not None and not callable(value):
        raise OptionsError(
            f"progress={value!r}: a callable that takes {arguments}, or None; nothing was changed",
            option="progress",
            wanted=value,
        )


def check_bool(value: object, option: str) -> None:
    """OptionsError for what is neither True nor False, also where it counts as one: 1 may have meant a number."""
    if type(value) is not bool:
        raise OptionsError(f"{option}={value!r}: True or False", option=option, wanted=value)
