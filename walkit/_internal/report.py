"""Reports: timed phases, facts as HTML, and the base of those that are a table, as text, HTML and a dictionary."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from walkit._internal.html import COLOURS, WRAPS, Markup, Part, bar, join, red_lines, swatch, table, tag
from walkit._internal.html import facts as facts_html
from walkit._internal.text import aligned


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One timed part of a report. Seconds, from the beginning."""

    name: str
    started_s: float
    duration_s: float
    detail: dict[str, Any] = field(default_factory=dict)


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
        """The conditions of the measurement, and facts that weaken its numbers."""
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
        """Return the table as aligned text, with its machine above and the lines below."""
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
        """Return how many of the notes are not warnings; warnings are the last ones."""
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
    """Round, with None for an unknown value: JSON has no nan."""
    return None if value is None or value != value else round(value, digits)


def fields_html(title: str, value: Any) -> str:
    """Return a table of the texts and numbers of a dataclass that are known."""
    facts = ((f.name.replace("_", " "), getattr(value, f.name)) for f in fields(value))
    shown = [(n, v if isinstance(v, str) else f"{v:,}") for n, v in facts if isinstance(v, str | int | float)]
    return report_html(title, [(name, text) for name, text in shown if text])


def report_html(
    title: str,
    facts: list[tuple[str, str]],
    *,
    phases: tuple[Phase, ...] = (),
    lines: Sequence[str] = (),
) -> str:
    """Return a table of facts, a bar of phases and lines of text below; readable on dark and on light."""
    parts = [tag("b", title), facts_html(facts)]
    if phases:
        paint = [COLOURS[i % len(COLOURS)] for i in range(len(phases))]
        names = [f"{p.name} {p.duration_s * 1000:.2f} ms" for p in phases]
        parts.append(bar([Part(p.duration_s, c, n) for p, c, n in zip(phases, paint, names, strict=True)]))
        parts.append(
            tag("small", *(join([swatch(c), " ", n, " "]) for c, n in zip(paint, names, strict=True)))
        )
    parts += [tag("div", line) for line in lines]
    return tag("div", *parts, style=WRAPS)


class PhaseClock:
    """Collects phases while they happen."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.phases: list[Phase] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[dict[str, Any]]:
        """Time a block; facts put into the yielded dict are in the report."""
        started = time.perf_counter()
        detail: dict[str, Any] = {}
        try:
            yield detail
        finally:
            now = time.perf_counter()
            self.phases.append(
                Phase(name=name, started_s=started - self.began, duration_s=now - started, detail=detail)
            )

    def split_off(self, name: str, duration_s: float) -> None:
        """Make a phase of its own of so many seconds of the last one, which went on in turns with it."""
        last = self.phases.pop()
        duration_s = min(max(duration_s, 0.0), last.duration_s)
        first_s = last.duration_s - duration_s
        self.phases.append(replace(last, duration_s=first_s))
        self.phases.append(Phase(name=name, started_s=last.started_s + first_s, duration_s=duration_s))
