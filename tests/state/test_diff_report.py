"""The report of a diff and the decoders of its values, without Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from walkit.state import DiffReport
from walkit.state.value_decoder import Columns, Undecoded


def test_counts_that_do_not_reconcile_are_shown() -> None:
    """A report with wrong counts: its text and its JSON show that."""
    report = DiffReport(
        left="a", right="b", left_keys=3, right_keys=3, inserted=1, deleted=0, changed=0, unchanged=3
    )
    assert not report.reconciles and "do not reconcile" in report.text()
    assert report.to_dict()["reconciles"] is False


VALUES: list[tuple[Any, Any, dict[str, float | None] | str]] = [
    ({"a": 1}, {"a": 3}, {"a": 2.0}),
    ({1: 1, b"b": 1}, {1: 2, b"b": 2}, {"1": 1.0, "b'b'": 1.0}),
    ([1], [2], "left"),
    ({"a": 1}, None, "right"),
    ({"a": np.arange(3)}, {"a": np.arange(3)}, {}),
    ({"a": np.arange(3)}, {"a": np.arange(4)}, {"a": None}),
    ({"a": np.array([np.nan])}, {"a": np.array([np.nan])}, {}),
    ({"a": [np.arange(3)]}, {"a": [np.arange(3)]}, "both"),
    (ZeroDivisionError("no"), {"a": 1}, "left"),
]


@pytest.mark.parametrize(("left", "right", "expected"), VALUES)
def test_a_decoder_ends_no_report(left: Any, right: Any, expected: object) -> None:
    """Decode to mappings, to none, to arrays and to lists of arrays: columns that differ, or the side at fault."""

    def decode(value: bytes) -> Any:
        decoded = {b"l": left, b"r": right}[value]
        if isinstance(decoded, Exception):
            raise decoded
        return decoded

    columns = Columns.of(decode, (), 0.0)
    assert columns is not None
    found = columns.differences(b"l", b"r")
    assert (found.side if isinstance(found, Undecoded) else found) == expected
