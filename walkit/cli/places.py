"""LOG@LSN on the command line: the place of a log, and a point in its history."""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

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
