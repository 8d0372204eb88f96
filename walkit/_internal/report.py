"""One base of the reports that are a table: a report says its rows once, and is text, HTML and a dictionary by them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from walkit._internal.html import Markup, join, red_lines, table, tag
from walkit._internal.text import aligned

Cells = tuple[str, ...]


class TableReport(ABC):
    """Notes, a table, and lines below it. A subclass has `_head`, `_cells`, `_facts` and any of the rest."""

    __slots__ = ()

    bench: ClassVar[str] = ""
    """Name of the benchmark, in the dictionary; only reports of `walkit.bench` have one."""
    title: ClassVar[str] = ""
    """The heading above the HTML."""
    left_columns: ClassVar[int] = 1
    """Columns that are set to the left; those after them are numbers, set to the right."""

    @property
    def notes(self) -> list[str]:
        """What the numbers were taken on, and what makes them mean less."""
        return []

    def _head(self) -> Cells:
        """Return the names of the columns; empty where rows are names and values."""
        return ()

    @abstractmethod
    def _cells(self) -> list[Cells]:
        """Return the rows of the table as text, each as long as the head."""

    @abstractmethod
    def _facts(self) -> dict[str, Any]:
        """Return what the dictionary has beside the name of a benchmark."""

    def text(self) -> str:
        """Return the table as aligned text, with what it was taken on above and the lines below."""
        rows = [cells for cells in (self._head(), *self._cells()) if cells]
        lines = aligned(rows[0], rows[1:], right=self._right()) if rows else []
        return "\n".join([*self.notes, *lines, *self._lines_below()])

    def __str__(self) -> str:
        return self.text()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**({"bench": self.bench} if self.bench else {}), **self._facts()}

    def _repr_html_(self) -> str:
        plain = self._plain_notes()
        parts: list[Markup] = [tag("b", self.title)] if self.title else []
        parts += [tag("div", note) for note in self.notes[:plain]]
        parts.append(red_lines(self.notes[plain:]))
        parts.append(table(self._cells(), self._head(), right=self._right(), titles=self._row_titles()))
        content = join([*parts, *self._html_below()])
        return tag("div", content) if self.title else content

    def _right(self) -> range:
        return range(self.left_columns, len(self._head()))

    def _plain_notes(self) -> int:
        """Return how many of the notes are no warnings; warnings are the last ones."""
        return len(self.notes)

    def _row_titles(self) -> Sequence[str]:
        """Return what shows when a row of the HTML is pointed at; empty: nothing."""
        return ()

    def _lines_below(self) -> Sequence[str]:
        """Return the lines below the table in text."""
        return ()

    def _html_below(self) -> Sequence[Markup]:
        """Return the lines below the table as HTML."""
        return [tag("div", line) for line in self._lines_below()]


def rounded(value: float | None, digits: int) -> float | None:
    """Round, with None for what is not known: JSON has no nan."""
    return None if value is None or value != value else round(value, digits)
