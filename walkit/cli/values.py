"""Values of arguments: numbers, times and lists of them, refused in words."""

from __future__ import annotations

import argparse


def whole(text: str, what: str) -> int:
    """Return a whole number from 1 on; `what` it is, for the complaint."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}: a whole number from 1 on")
    return number


def lsn(text: str) -> int:
    """Return an LSN."""
    return whole(text, "an LSN")


def count(text: str) -> int:
    """Return a count."""
    return whole(text, "a count")


def counts(text: str) -> list[int]:
    """Return a list of counts."""
    return [whole(part, "a list of counts like 1,8,64") for part in text.split(",")]


def seconds(text: str) -> float:
    """Return a time in seconds."""
    return _time(text, "seconds", 86_400)


def milliseconds(text: str) -> float:
    """Return a time in milliseconds."""
    return _time(text, "milliseconds", 86_400_000)


def _time(text: str, unit: str, below: float) -> float:
    try:
        time = float(text)
    except ValueError:
        time = 0.0
    if not 0 < time < below:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: {unit} above 0")
    return time


def number(text: str) -> int:
    """Return a whole number from 0 on."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: a whole one from 0 on")
    return int(text)


def numbers(text: str) -> tuple[int, ...]:
    """Return a list of whole numbers from 0 on; "none" is the empty one."""
    return () if text == "none" else tuple(number(part) for part in text.split(","))
