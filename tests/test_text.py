"""Tables as lines of text."""

from __future__ import annotations

import pytest

from walkit.text import aligned


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    """Align two rows under a head, one column to the right: as wide as the widest cell, and nothing trails."""
    lines = aligned(("way", "records/s"), [("append", "7"), ("x", "12,345,678,900")], right=(1,))
    assert lines == ["way          records/s", "append               7", "x       12,345,678,900"]
    assert aligned(("a", "b"), [("wide", "")]) == ["a     b", "wide"]
    assert aligned(("a", "b"), []) == ["a  b"]


def test_a_row_with_a_cell_too_many_is_refused() -> None:
    """A table is never shown with a cell left out."""
    with pytest.raises(ValueError, match="argument 2"):
        aligned(("a",), [("1", "2")])
