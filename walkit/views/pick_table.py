"""A table whose rows are chosen by a button or a checkbox each: for keyboard, mouse and screen reader."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

import param
from panel.custom import JSComponent

from walkit.views.parts import Button, View, pn

ROWS_MAX = 100
"""Rows on one page of a PagedTable."""
Tone = Literal["", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its name in `on_pick`, its cells as text, and whether it is chosen."""

    id: str
    """Unique in the table; "" for a row that cannot be chosen."""
    cells: tuple[str, ...]
    label: str = ""
    """Name of the row's button for screen readers; if empty, the first cell."""
    on: bool = False
    tone: Tone = ""


class PickTable(JSComponent):
    """Shows rows, and calls `on_pick(id, on)` where a person chooses one. Used by one thread."""

    shown = param.Dict(default={}, doc="the drawn rows, as in JSON")
    _esm = files("walkit.views").joinpath("pick_table.js").read_text(encoding="utf-8")
    _stylesheets = [files("walkit.views").joinpath("pick_table.css").read_text(encoding="utf-8")]

    def __init__(
        self,
        label: str,
        head: Sequence[str],
        on_pick: Callable[[str, bool], None],
        *,
        right: Collection[int] = (),
        kind: Literal["button", "checkbox"] = "button",
    ) -> None:
        """`head` are the columns, `right` the numbers of those that are set to the right; `label` names the table."""
        self._fixed = {"label": label, "head": list(head), "right": sorted(right), "kind": kind}
        self._on_pick = on_pick
        super().__init__(  # type: ignore[no-untyped-call]
            shown={**self._fixed, "rows": []}, visible=False, sizing_mode="stretch_width"
        )

    def tell(self, rows: Sequence[Row]) -> None:
        """Show these rows instead of the earlier ones; without one the table is hidden."""
        told = [
            {"id": r.id, "cells": list(r.cells), "label": r.label or r.cells[0], "on": r.on, "tone": r.tone}
            for r in rows
        ]
        if told != self.shown["rows"]:
            self.shown = {**self._fixed, "rows": told}
            self.visible = bool(told)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The shown rows, as in JSON."""
        found: list[dict[str, Any]] = self.shown["rows"]
        return found

    def pick(self, row_id: str, on: bool = True) -> None:
        """Choose a row, as a person does. A row that is no longer shown is ignored."""
        if row_id and any(row["id"] == row_id for row in self.rows):
            self._on_pick(row_id, on)

    def _handle_msg(self, msg: Any) -> None:
        if isinstance(msg, dict) and isinstance(msg.get("id"), str):
            self.pick(msg["id"], bool(msg.get("on")))


class PagedTable(View):
    """A PickTable of many rows, ROWS_MAX at a time, with buttons for the pages. Used by one thread."""

    def __init__(self, table: PickTable, what: str) -> None:
        super().__init__()
        self.table = table
        self._what, self._at = what, 0
        self._rows: Sequence[Row] = ()
        self.back = Button(label=f"Previous {what}", width=150)
        self.on = Button(label=f"Next {what}", width=150)
        self.words = pn.pane.HTML("", align="center")
        self.pager = pn.Row(self.back, self.on, self.words, visible=False)
        self.back.on_click(lambda _: self._turn(-ROWS_MAX))
        self.on.on_click(lambda _: self._turn(ROWS_MAX))
        self._layout = pn.Column(table, self.pager, sizing_mode="stretch_width", margin=0)

    def tell(self, rows: Sequence[Row]) -> None:
        """Show these rows; a page that is beyond their end gives way to the last one."""
        self._rows = rows
        self._turn(0)

    def _turn(self, by: int) -> None:
        last = max(len(self._rows) - 1, 0) // ROWS_MAX * ROWS_MAX
        self._at = min(max(self._at + by, 0), last)
        end = self._at + ROWS_MAX
        self.table.tell(self._rows[self._at : end])
        self.pager.visible = len(self._rows) > ROWS_MAX
        self.back.disabled, self.on.disabled = self._at == 0, self._at == last
        self.words.object = (
            f"{self._what} {self._at + 1:,} to {min(end, len(self._rows)):,} of {len(self._rows):,}"
        )
