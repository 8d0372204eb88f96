"""Checks of what callers give to any function, each refused by one OptionsError: "option=value: what it may be"."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any, NoReturn

from walkit.errors import OptionsError

NUMBER_MAX = (1 << 63) - 1
"""The largest LSN there can be: an int64 of Arrow and of the manifest."""
SHOWN_CHARS_MAX = 200
"""A message has no more of a value."""


def refuse(
    option: str, value: object, text: str, stored: object = None, cause: BaseException | None = None
) -> NoReturn:
    """Raise the OptionsError for a value that a caller gave: "option=value: text"."""
    # The repr of invalid Arrow data can end the process.
    is_arrow = hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")
    shown = f"<{type(value).__name__}>" if is_arrow else repr(value)
    if len(shown) > SHOWN_CHARS_MAX:
        shown = f"{shown[:SHOWN_CHARS_MAX]}..."
    raise OptionsError(f"{option}={shown}: {text}", option=option, wanted=value, stored=stored) from cause


def as_lsn(value: Any, option: str = "lsn") -> int:
    """Return the LSN that a caller gave as a plain int; numpy's whole numbers, which pandas gives, are taken too.

    OptionsError unless it is a whole number of 64 bits: nothing else may reach a file.
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


def check_kind(value: object, kind: type, option: str, or_none: bool = True) -> None:
    """Raise OptionsError unless a value is an instance of a class, or None where that is allowed."""
    if not (isinstance(value, kind) or (or_none and value is None)):
        refuse(option, value, f"an instance of {kind.__name__}" + ", or None" * or_none)


def check_choice(value: object, choices: Iterable[object], option: str, more: str = "") -> None:
    """Raise OptionsError unless a value is one of the choices; `more` ends the message."""
    allowed = tuple(choices)
    if value not in allowed:
        refuse(option, value, f"one of {', '.join(map(repr, allowed))}{more}")


def check_whole(
    value: object, option: str, low: int = 1, high: int | None = None, or_none: bool = False
) -> None:
    """Raise OptionsError unless a value is an int from `low` to `high`, or None where that is allowed."""
    if or_none and value is None:
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):  # type: ignore[operator]
        limit = "" if high is None else f" to {high:,}"
        refuse(option, value, f"a whole number from {low:,}{limit}" + ", or None" * or_none)


def check_number(
    value: Any,
    option: str,
    low: float = 0,
    high: float = math.inf,
    above: bool = False,
    or_none: bool = False,
) -> None:
    """Raise OptionsError unless a value is a finite number from `low`, or `above` it, to `high`, or an allowed None."""
    if or_none and value is None:
        return
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not low <= value <= high or value == math.inf or (above and value == low):
        least = f"above {low:,g}" if above else f"from {low:,g}"
        limit = "" if high == math.inf else f" to {high:,g}"
        refuse(option, value, f"a number {least}{limit}" + ", or None" * or_none)


def as_seconds(value: Any, option: str = "timeout") -> float:
    """Return a time that a caller gave, in seconds; OptionsError unless it is a number."""
    try:
        seconds = float(value)
        if isinstance(value, str | bytes) or seconds != seconds:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        refuse(option, value, "a number of seconds; nothing was written")
    return seconds


def check_progress(value: object, arguments: str) -> None:
    """Raise OptionsError for a `progress` that is neither None nor callable.

    `arguments` are its parameters, for the message. Call this before the work starts.
    """
    if value is not None and not callable(value):
        refuse("progress", value, f"a callable that takes {arguments}, or None; nothing was changed")


def check_bool(value: object, option: str) -> None:
    """Raise OptionsError unless a value is True or False; 1 and 0 are refused, as the caller may mean a number."""
    if type(value) is not bool:
        refuse(option, value, "True or False")
