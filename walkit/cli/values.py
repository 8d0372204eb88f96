"""Values of arguments, by the names that the table gives them: numbers, times, lists and places, refused in words."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from walkit.format.layout import LSN_MAX


class PlaceAt(NamedTuple):
    """The place of a log, and the LSN of a point in its history; None is its end."""

    path: str
    lsn: int | None


def place_at(text: str) -> PlaceAt:
    """Return the place that LOG or LOG@LSN names. ArgumentTypeError if the text after the last @ is not an LSN.

    A folder may have an @ in its name: one that is there is taken as it is, and so is an @ in a folder above it.
    """
    path, at, number = text.rpartition("@")
    if not text or (at and not path):
        raise argparse.ArgumentTypeError(f"{text!r} names no log: give its folder, and perhaps @LSN after it")
    if not at or os.path.isdir(text) or "/" in number:
        return PlaceAt(text, None)
    if not (number.isascii() and number.isdigit()) or int(number) > LSN_MAX:
        raise argparse.ArgumentTypeError(
            f"{number!r} in {text!r} is not an LSN: a whole number, 0 for the state before the first record"
        )
    return PlaceAt(path, int(number))


def whole(what: str, least: int = 1, most: int = LSN_MAX) -> Callable[[str], int]:
    """Return what takes a whole number within bounds; `what` it is, for the complaint."""

    def value(text: str) -> int:
        if not (re.fullmatch(r"[0-9]+(_[0-9]+)*", text) and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return int(text)

    return value


def time(unit: str, below: float) -> Callable[[str], float]:
    """Return what takes a time above 0."""

    def value(text: str) -> float:
        try:
            given = float(text)
        except ValueError:
            given = 0.0
        if not 0 < given < below:
            raise argparse.ArgumentTypeError(f"{text!r} is not a time: {unit} above 0")
        return given

    return value


def listed(value: Callable[[str], Any], empty: str | None = None) -> Callable[[str], list[Any]]:
    """Return what takes a list with commas; the text `empty`, if any, is the list without an element."""
    return lambda text: [] if text == empty else [value(part) for part in text.split(",")]


def refuse_token(_: str) -> NoReturn:
    """Name the right place for a token, without repeating it."""
    raise argparse.ArgumentTypeError(
        "--token would show the token to every user of this machine, through its command line (ps): give "
        "--token-file FILE, or the environment variable WALKIT_TOKEN"
    )


count = whole("a count: a whole number from 1 on")
number = whole("a number: a whole one from 0 on", least=0)

VALUES: dict[str | None, Callable[[str], Any]] = {
    "N": count,
    "RECORDS": count,
    "N,N": listed(whole("a list of counts like 1,8,64: a whole number from 1 on")),
    "LSN": whole("an LSN: a whole number from 1 on"),
    "LOG[@LSN]": place_at,
    "S": time("seconds", 86_400),
    "MS": time("milliseconds", 86_400_000),
    "R": float,
    "A,A": listed(float),
    "NAME,NAME": listed(str, ""),
    "ORDER,ORDER": listed(str),
    "number": number,
    "numbers": listed(number, "none"),
    "port": whole("a port: 0 to 65535", 0, 65_535),
    "token": refuse_token,
}
