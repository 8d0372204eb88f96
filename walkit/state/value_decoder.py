"""Values compared by column: decoded to columns, some of them left out, numbers with a tolerance."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from walkit._internal.arguments import check_number, refuse
from walkit._internal.arrow import stream_table

Decode: TypeAlias = Callable[[bytes], Mapping[str, Any]]
Decoder: TypeAlias = Literal["json", "arrow"] | Decode
"""`json`: a value is a JSON object. `arrow`: it is an Arrow IPC stream, as `append_bundle` writes. Or a function."""

ABSENT = object()
ERROR_MAX = 500
"""A decoder's error is shown with so many characters at most: a message may have a whole value in it."""


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Why two values are not compared by column: the side at fault, and the error's type and message."""

    side: Literal["left", "right", "both"]
    error: str

    @classmethod
    def of(cls, side: Literal["left", "right", "both"], error: Exception) -> Undecoded:
        """Return it for the error of a decoder."""
        text = "".join(
            traceback.format_exception_only(error)
        ).strip()  # also of an error whose __str__ raises
        return cls(side, text if len(text) <= ERROR_MAX else f"{text[: ERROR_MAX - 1]}…")


@dataclass(frozen=True, slots=True)
class Columns:
    """How values are compared. Picklable if the function is."""

    decode: Decode
    ignore: frozenset[str] = frozenset()
    tolerance: float = 0.0

    @classmethod
    def of(cls, decoder: Decoder | None, ignore: Collection[str], tolerance: float) -> Columns | None:
        """Return it for the arguments of a caller; None without a decoder. OptionsError for an invalid one."""
        if isinstance(ignore, str) or not all(isinstance(name, str) for name in ignore):
            refuse("ignore", ignore, "a collection of names of columns")
        check_number(tolerance, "tolerance")
        if decoder is None:
            if ignore or tolerance:
                refuse("decoder", None, "ignore and tolerance need a decoder")
            return None
        decode = (
            {"json": from_json, "arrow": from_arrow}.get(decoder) if isinstance(decoder, str) else decoder
        )
        if not callable(decode):
            refuse("decoder", decoder, "'json', 'arrow' or a function of bytes that returns a mapping")
        return cls(decode, frozenset(ignore), float(tolerance))

    def differences(self, left: bytes | None, right: bytes | None) -> dict[str, float | None] | Undecoded:
        """Return the columns that differ, with the difference of numbers; or why the values cannot be compared."""
        side: Literal["left", "right", "both"] = "left"
        try:
            ours = self._decoded(left)
            side = "right"
            others = self._decoded(right)
            side = "both"
            return self._columns_apart(ours, others)
        except Exception as error:  # noqa: BLE001 - whatever a caller's function or value raises: the key stays changed
            return Undecoded.of(side, error)

    def _decoded(self, value: bytes | None) -> Mapping[str, Any]:
        if value is None:
            raise ValueError("the record has no value")
        found = self.decode(value)
        if not isinstance(found, Mapping):
            raise TypeError(f"the decoder returned a {type(found).__name__}, no mapping")
        return found

    def _columns_apart(self, ours: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, float | None]:
        found = {}
        for name in (*ours, *(name for name in others if name not in ours)):
            one, other = ours.get(name, ABSENT), others.get(name, ABSENT)
            if name not in self.ignore and not self._equal(one, other):
                found[str(name)] = _distance(one, other)
        return found

    def _equal(self, one: object, other: object) -> bool:
        distance = _distance(one, other)
        if distance is not None:
            return distance <= self.tolerance
        if _is_number(one) and _is_number(other):  # infinities and NaN have no distance
            return one == other or (one != one and other != other)
        if type(one) is not type(other):
            return False
        if isinstance(one, np.ndarray):  # its == is one answer for each element
            return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")  # type: ignore[arg-type]
        return bool(one == other)


def from_json(value: bytes) -> Mapping[str, Any]:
    """Return the members of a JSON object; ValueError for another value."""
    found = json.loads(value)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def from_arrow(value: bytes) -> Mapping[str, Any]:
    """Return the columns of an Arrow IPC stream: a value if it has one row, else a list."""
    table = stream_table(value)
    columns = table.to_pydict()
    return {name: rows[0] for name, rows in columns.items()} if len(table) == 1 else columns


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _distance(one: Any, other: Any) -> float | None:
    if not (_is_number(one) and _is_number(other)):
        return None
    try:
        distance = abs(float(one - other))
    except OverflowError:
        return None
    return distance if math.isfinite(distance) else None
