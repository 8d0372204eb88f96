"""The base of the reports: one set of rows as text, HTML and a dictionary."""

from __future__ import annotations

import math

import pytest

from walkit._internal.report import Cells, TableReport, rounded


class Kinds(TableReport):
    """A report with all there is to have."""

    bench = "kinds"

    @property
    def notes(self) -> list[str]:
        return ["plain & simple", "a warning"]

    def _head(self) -> Cells:
        return ("kind", "count")

    def _cells(self) -> list[Cells]:
        return [("put", "2,000"), ("delete", "7")]

    def _facts(self) -> dict[str, object]:
        return {"rows": 2}

    def _plain_notes(self) -> int:
        return 1

    def _lines_below(self) -> list[str]:
        return ["below"]


class Pairs(TableReport):
    """Names and values without a head, below a title."""

    bench, title = "pairs", "A < B"

    def _cells(self) -> list[Cells]:
        return [("name", "value"), ("longer", "x")]

    def _facts(self) -> dict[str, object]:
        return {}


def test_a_report_is_text_html_and_a_dictionary_by_the_same_rows() -> None:
    """With a head, notes, a warning and a line below: numbers are to the right, markup is escaped, warnings are red."""
    report = Kinds()
    assert str(report) == report.text()
    assert report.text().splitlines() == [
        *("plain & simple", "a warning"),
        *("kind    count", "put     2,000", "delete      7"),
        "below",
    ]
    assert report.to_dict() == {"bench": "kinds", "rows": 2}
    html = report._repr_html_()
    parts = ["<div>plain &amp; simple</div>", "font-weight:bold", "a warning", "kind</th>", "2,000", "below"]
    places = [html.index(part) for part in parts]
    assert places == sorted(places)
    assert html.count("text-align:right") == 3  # the column's head and its two values


def test_names_and_values_have_no_head() -> None:
    """Without a head every row is a row; the title stands above the HTML alone."""
    report = Pairs()
    assert report.text().splitlines() == ["name    value", "longer  x"]
    assert report._repr_html_().startswith("<div><b>A &lt; B</b><table>")
    assert "<th" not in report._repr_html_()


@pytest.mark.parametrize(("value", "expected"), [(None, None), (math.nan, None), (1.23456, 1.23), (2.0, 2.0)])
def test_unknown_values_become_null(value: float | None, expected: float | None) -> None:
    """JSON has no nan; known values are rounded."""
    assert rounded(value, 2) == expected
